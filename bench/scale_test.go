//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// A simulation of loktd on one database and on several, with many more hosts than a benchmark has, from what operations were
// measured to cost. It always gives the table that docs/scale.md quotes and explains.

// cost is what one operation was measured to take of the CPU of a daemon and of the database, and how many bytes of log it writes.
type cost struct {
	daemon, database time.Duration
	bytes            float64
}

// engine is a store as docs/scale.md says that it was measured, with 64 requests at a time.
type engine struct {
	name    string
	renewal cost
	turn    cost // acquire and release
	batched cost // renewal of one of 100 leases in a request; zero if there is no such request
	writers int  // how many transactions of one daemon run at a time; 0 if nothing limits them but the CPU
}

func onPostgres() engine {
	return engine{
		name:    "PostgreSQL",
		renewal: cost{101 * time.Microsecond, 64 * time.Microsecond, 877},
		turn:    cost{191 * time.Microsecond, 120 * time.Microsecond, 1360},
		batched: cost{13700 * time.Nanosecond, 11800 * time.Nanosecond, 534},
		writers: 1,
	}
}

func onEtcd() engine {
	return engine{
		name:    "etcd",
		renewal: cost{223 * time.Microsecond, 257 * time.Microsecond, 3887},
		turn:    cost{430 * time.Microsecond, 473 * time.Microsecond, 6286},
	}
}

// What every scenario has in common. A flush takes longer than the median of the measured ones, 0.2 ms, and less than the slowest, 5 ms.
const (
	hosts     = 10_000
	allLeases = 1_000_000
	allGrants = 10_000 // per second, each released again
	flush     = time.Millisecond

	daemonCores   = 8
	databaseCores = 16
	span          = 2 * time.Second
)

// scenario is one way to carry the load.
type scenario struct {
	engine
	databases int // names are spread over so many by their prefix
	daemons   int // of each database
	ttl       time.Duration
	batch     bool // renewals come 100 in a request
}

func scenarios() []scenario {
	return []scenario{
		{onPostgres(), 1, 3, 30 * time.Second, false},
		{onPostgres(), 1, 16, 30 * time.Second, false},
		{onPostgres(), 1, 3, 5 * time.Minute, false},
		{onPostgres(), 1, 6, 30 * time.Second, true},
		{onPostgres(), 4, 6, 30 * time.Second, false},
		{onPostgres(), 4, 3, 30 * time.Second, true},
		{onEtcd(), 1, 6, 30 * time.Second, false},
		{onEtcd(), 1, 6, 5 * time.Minute, false},
		{onEtcd(), 8, 3, 30 * time.Second, false},
	}
}

// renewalsPerSecond is how many renewals keep all leases: five for each time to live, as a Locker sends them.
func (s scenario) renewalsPerSecond() float64 { return allLeases / (s.ttl.Seconds() / 5) }

// need is what the load takes of each daemon, of each database and of its log, by arithmetic.
type need struct {
	daemon, database float64 // cores
	megabytes        float64 // per second
}

func (s scenario) need() need {
	renewal := s.renewal
	if s.batch {
		renewal = s.batched
	}
	r, share := s.renewalsPerSecond(), 1/float64(s.databases)
	return need{
		daemon:    share / float64(s.daemons) * (r*renewal.daemon.Seconds() + allGrants*s.turn.daemon.Seconds()),
		database:  share * (r*renewal.database.Seconds() + allGrants*s.turn.database.Seconds()),
		megabytes: share * (r*renewal.bytes + allGrants*s.turn.bytes) / 1e6,
	}
}

// fullest names what has the least room, and how much of it is used.
func (s scenario) fullest() (string, float64) {
	n := s.need()
	name, used := "CPU of the daemons", n.daemon/daemonCores
	if u := n.database / databaseCores; u > used {
		name, used = "CPU of the database", u
	}
	if s.writers > 0 {
		if u := n.database / float64(s.daemons*s.writers); u > used {
			name, used = "the daemons' writers", u
		}
	}
	return name, used
}

// report prints what becomes of every scenario.
func reportScale(w io.Writer) {
	fmt.Fprintf(w, "%d hosts, %d leases, %d grants per second\n\n", hosts, allLeases, allGrants)
	fmt.Fprintln(w, "store       databases  daemons  TTL   renewals    CPU, cores        log     fullest                    grants: median, 99 %")
	fmt.Fprintln(w, "                       of each        per second  daemon  database  MB/s")
	for _, s := range scenarios() {
		n := s.need()
		what, used := s.fullest()
		outcome := "falls behind"
		if median, p99, kept := s.simulate(); kept {
			outcome = fmt.Sprintf("%.1f ms, %.1f ms", inMS(median), inMS(p99))
		}
		renewals := fmt.Sprintf("%.0f", s.renewalsPerSecond())
		if s.batch {
			renewals += " *"
		}
		fmt.Fprintf(w, "%-10s  %9d  %7d  %-4s  %-10s  %6.1f  %8.1f  %4.0f    %-20s %3.0f %%  %s\n", s.name, s.databases, s.daemons, shortly(s.ttl), renewals,
			n.daemon, n.database, n.megabytes, what, 100*used, outcome)
	}
	fmt.Fprintln(w, "\n* 100 in a request. Cores, log and daemons are those of one database.")
}

func shortly(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f m", d.Minutes())
}

func inMS(d float64) float64 { return 1e3 * d }

// arrival is a request that a daemon has read and wants stored.
type arrival struct {
	at, ready float64 // seconds
	work      float64 // of the database's CPU
	grant     bool
}

// simulated is a daemon: it takes requests in, and has what has arrived stored in one transaction at a time.
type simulated struct {
	random         *rand.Rand
	renewal, grant float64 // when the next ones come
	busy           float64 // until when it reads what came before
	next           arrival
	ahead          bool // next is one that has come and is not stored

	batch []arrival
	at    float64 // when it does what it does next
	flush bool    // which is to flush the batch, not to begin one
}

// simulation is one database with its daemons. All databases are alike.
type simulation struct {
	scenario
	renewalEvery, grantEvery float64 // seconds, at one daemon
	slower                   float64 // how much longer the database computes because others do
	arrived, stored          int
	waits                    []float64
}

// simulate returns how long grants take in the database and the daemon, and whether the load was carried.
func (s scenario) simulate() (median, p99 float64, kept bool) {
	m := &simulation{scenario: s}
	parts := float64(s.databases * s.daemons)
	m.grantEvery, m.renewalEvery = parts/allGrants/2, parts/s.renewalsPerSecond() // a grant is two changes
	if s.batch {
		m.renewalEvery *= 100
	}
	m.slower = max(1, float64(s.daemons)/databaseCores)
	if s.writers == 0 {
		m.slower = 1 / float64(databaseCores) * float64(s.daemons) // transactions of one daemon overlap: all cores serve all daemons
	}
	daemons := make([]*simulated, s.daemons)
	for i := range daemons {
		d := &simulated{random: rand.New(rand.NewPCG(1, uint64(i)))}
		d.renewal, d.grant = d.random.ExpFloat64()*m.renewalEvery, d.random.ExpFloat64()*m.grantEvery
		daemons[i] = d
	}
	for {
		d := slices.MinFunc(daemons, func(a, b *simulated) int {
			if a.at < b.at {
				return -1
			}
			return 1
		})
		if d.at > span.Seconds() {
			break
		}
		if !d.flush {
			m.begin(d)
			continue
		}
		end := d.at + flush.Seconds()
		for _, a := range d.batch {
			if a.grant && end > span.Seconds()/4 { // until then it fills
				m.waits = append(m.waits, end-a.at)
			}
		}
		m.stored += len(d.batch)
		d.batch, d.at, d.flush = d.batch[:0], end, false
	}
	for _, d := range daemons {
		for d.peek(m); d.next.at < span.Seconds(); d.peek(m) {
			m.arrived++
			d.ahead = false
		}
	}
	slices.Sort(m.waits)
	if len(m.waits) == 0 || float64(m.arrived-m.stored) > 0.03*float64(m.arrived) {
		return 0, 0, false
	}
	return m.waits[len(m.waits)/2], m.waits[len(m.waits)*99/100], true
}

// peek makes next the request that the daemon reads next.
func (d *simulated) peek(m *simulation) {
	if d.ahead {
		return
	}
	d.ahead = true
	c, n := m.renewal, 1.0
	if m.batch {
		c, n = m.batched, 100
	}
	a := arrival{at: d.renewal}
	if d.grant < d.renewal {
		c, n = m.turn, 0.5
		a = arrival{at: d.grant, grant: true}
		d.grant += d.random.ExpFloat64() * m.grantEvery
	} else {
		d.renewal += d.random.ExpFloat64() * m.renewalEvery
	}
	d.busy = max(d.busy, a.at) + n*c.daemon.Seconds()/daemonCores
	a.ready, a.work = d.busy, n*c.database.Seconds()
	d.next = a
}

// begin takes what has arrived, or waits for it, and computes.
func (m *simulation) begin(d *simulated) {
	d.peek(m)
	from := max(d.at, d.next.ready)
	if from > d.at {
		d.at = from
		return
	}
	work := 0.0
	for d.next.ready <= from {
		d.batch = append(d.batch, d.next)
		work += d.next.work
		m.arrived++
		d.ahead = false
		d.peek(m)
	}
	d.at, d.flush = from+work*m.slower, true
}

func TestTheSimulationPrintsWhatTheDocumentationQuotes(t *testing.T) {
	var b bytes.Buffer
	reportScale(&b)
	page, err := os.ReadFile("../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```\n"+b.String()+"```\n") {
		t.Errorf("docs/scale.md does not quote:\n%s", &b)
	}
}

func TestTheSimulationAgreesWithTheArithmetic(t *testing.T) {
	for _, s := range scenarios() {
		_, used := s.fullest()
		_, _, kept := s.simulate()
		if used > 1.05 && kept {
			t.Errorf("%+v needs %.0f %% of what there is, and keeps up", s, 100*used)
		}
		if used < 0.9 && !kept {
			t.Errorf("%+v needs %.0f %% of what there is, and falls behind", s, 100*used)
		}
	}
}

func TestGrantsTakeAtLeastAFlush(t *testing.T) {
	for _, s := range scenarios() {
		if median, p99, kept := s.simulate(); kept && (median < flush.Seconds() || p99 < median) {
			t.Errorf("%+v: half of the grants take %v s, and 99 %% %v s, where a flush takes %v", s, median, p99, flush)
		}
	}
}

func TestMoreLoadTakesLonger(t *testing.T) {
	light := scenario{onPostgres(), 4, 3, 5 * time.Minute, false}
	heavy := light
	heavy.databases = 1
	less, _, kept1 := light.simulate()
	more, _, kept2 := heavy.simulate()
	if !kept1 || !kept2 || less >= more {
		t.Errorf("on four databases half of the grants take %v s, and on one %v s", less, more)
	}
}
