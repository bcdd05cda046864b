//go:build unix

package replicas_test

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
	"github.com/lokt-dev/lokt/jobs"
)

// lives are those of jobs that are offered at a pace.
type lives interface {
	counts() (done, offered int64)
	more(ctx context.Context, n int) // to be queued at once
	finish(t *testing.T)             // ends them, and checks that nothing is lost that was acknowledged
}

// mill lets jobs live, at a pace, and knows which were acknowledged.
type mill struct {
	client *httpapi.JobsClient
	stop   context.CancelFunc
	all    sync.WaitGroup
	cycles atomic.Int64 // whole lives
	offers atomic.Int64 // how many there were to be

	mu     sync.Mutex
	open   map[string]bool   // acknowledged, and not known to have ended
	tokens map[string]uint64 // of jobs that were granted
	acked  int
	twice  []string
}

// startMill lets so many clients submit, request and complete jobs, so many in a second in all. What none of them is free for is dropped.
func startMill(t *testing.T, url string, clients, pace int) *mill {
	t.Helper()
	c, err := httpapi.New(url, httpapi.ClientOptions{Attempt: 5 * time.Second, Patience: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	m := &mill{client: c.Jobs(), stop: stop, open: map[string]bool{}, tokens: map[string]uint64{}}
	due := make(chan struct{}, clients)
	m.all.Go(func() {
		defer close(due)
		for begun := time.Now(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
			for m.offers.Load() < int64(time.Since(begun).Seconds()*float64(pace)) {
				m.offers.Add(1)
				select {
				case due <- struct{}{}:
				default:
				}
			}
		}
	})
	for i := range clients {
		m.all.Go(func() {
			for range due {
				m.submit(ctx, 1)
				m.work(ctx, fmt.Sprint("mill-", i), 0)
			}
		})
	}
	t.Cleanup(func() { m.stop(); m.all.Wait(); _ = c.Close() })
	return m
}

func (m *mill) counts() (done, offered int64) { return m.cycles.Load(), m.offers.Load() }

func (m *mill) more(ctx context.Context, n int) {
	for range n / 500 {
		m.submit(ctx, 500)
	}
}

// submit submits so many jobs.
func (m *mill) submit(ctx context.Context, n int) {
	spec := jobs.NewSpec()
	spec.MaxAttempts, spec.RetryBackoff = 100, 10*time.Millisecond
	if got, err := m.client.Submit(ctx, slices.Repeat([]jobs.Spec{spec}, n)); err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, r := range got {
			m.open[r.JobID] = true
			m.acked++
		}
	}
}

// work takes a job and completes it, and reports whether there was one.
func (m *mill) work(ctx context.Context, who string, wait time.Duration) bool {
	g, err := m.client.Request(ctx, jobs.Request{WorkerID: who, Wait: wait})
	if err != nil || g.Denied != nil {
		return false
	}
	m.mu.Lock()
	if g.Lease.Token <= m.tokens[g.Job.ID] {
		m.twice = append(m.twice, fmt.Sprintf("job %s has token %d after %d", g.Job.ID, g.Lease.Token, m.tokens[g.Job.ID]))
	}
	m.tokens[g.Job.ID] = g.Lease.Token
	m.mu.Unlock()
	if ok, err := m.client.Complete(ctx, jobs.Completion{LeaseID: g.Lease.ID, WorkerID: who, Status: jobs.Completed}); err == nil && ok {
		m.cycles.Add(1)
		m.mu.Lock()
		delete(m.open, g.Job.ID)
		m.mu.Unlock()
	}
	return true
}

// finish ends what is left, and checks that all that was acknowledged is completed.
func (m *mill) finish(t *testing.T) {
	t.Helper()
	m.stop()
	m.all.Wait()
	for i := range 32 {
		m.all.Go(func() {
			for end := time.Now().Add(patience); time.Now().Before(end); {
				if s, err := m.client.Status(t.Context()); err == nil && s.Queue.Sum()+s.ActiveLeases == 0 {
					break
				}
				for m.work(t.Context(), fmt.Sprint("mill-last-", i), time.Second) {
				}
			}
		})
	}
	m.all.Wait()
	for id := range m.open { // whose end was not answered
		if v, err := m.client.Get(t.Context(), id); err != nil || v.Job.State != jobs.Completed {
			t.Errorf("acknowledged job %s: %v, %v", id, v.Job.State, err)
		}
	}
	for _, s := range m.twice {
		t.Error(s)
	}
	t.Logf("%d jobs acknowledged and completed", m.acked)
}

// bystander uses another table of the same server now and then, and keeps how long that took.
type bystander struct {
	mu   sync.Mutex
	took []time.Duration
}

func startBystander(t *testing.T, pg *servers.Postgres) *bystander {
	t.Helper()
	if err := pg.Exec("CREATE TABLE public.bystander (id int PRIMARY KEY, n bigint NOT NULL); INSERT INTO public.bystander SELECT i, 0 FROM generate_series(1, 100) i"); err != nil {
		t.Fatal(err)
	}
	b := &bystander{}
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		for ctx.Err() == nil {
			c, err := pgx.Connect(ctx, pg.URL(pg.Addr, "public"))
			for i := 0; err == nil; i++ {
				begun := time.Now()
				if _, err = c.Exec(ctx, "UPDATE bystander SET n = n + 1 WHERE id = $1", i%100+1); err == nil {
					b.mu.Lock()
					b.took = append(b.took, time.Since(begun))
					b.mu.Unlock()
				}
				time.Sleep(5 * time.Millisecond)
			}
			if c != nil {
				_ = c.Close(context.Background())
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); ended.Wait() })
	return b
}

// median returns that of what was kept since it was asked last.
func (b *bystander) median() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.took
	b.took = nil
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// A database that others use as well stays healthy, and lokt on it: whatever is done, requests are answered again afterwards,
// nothing that was acknowledged is lost, and the end keeps to its grace. Each scene takes five minutes where LOKT_SOAK is set, as
// long as LOKT_FAULT_TIME says, or a second. What it costs is logged; bounds are far from it: the machine does other things too.
//
// Promises S-95, S-96.
func TestPostgreSQLStaysHealthyAmongOthers(t *testing.T) {
	together(t)
	if testing.Short() {
		t.Skip("takes a minute and more")
	}
	scene, pace, most := time.Second, 100, 100 // jobs per second, connections
	switch {
	case os.Getenv("LOKT_FAULT_TIME") != "":
		scene, pace, most = faultTime(t), 1000, 300
	case os.Getenv("LOKT_SOAK") != "":
		scene, pace, most = 5*time.Minute, 1000, 300
	}
	pg := servers.NeedPostgres(t, fmt.Sprint("max_connections=", most))
	if err := pg.Exec("CREATE SCHEMA lokt"); err != nil {
		t.Fatal(err)
	}
	b := startBystander(t, pg)
	r := startReplica(t, nil, func([]string) []string { return []string{"--store", pg.URL(pg.Addr, "lokt"), "--capacity", "1000"} })
	m := startMill(t, "http://"+r.address(), 128, pace) // with no proxy between
	liveAmongOthers(t, pg, b, m, "lokt", scene, pace)
	begun := time.Now()
	r.signal(syscall.SIGTERM)
	select {
	case <-r.done:
		took := time.Since(begun)
		t.Logf("it ended in %v", took.Round(time.Millisecond))
		if took > 10*time.Second+stretch {
			t.Error("that is longer than its --shutdown-timeout")
		}
	case <-time.After(patience):
		t.Error("it does not end")
	}
	if pace == 1000 {
		t.Run("River", func(t *testing.T) { // which is not judged
			if err := pg.Exec("CREATE SCHEMA river"); err != nil {
				t.Fatal(err)
			}
			liveAmongOthers(t, pg, b, startRiver(t, pg.URL(pg.Addr, "river"), pace), "river", scene, pace)
		})
	}
}

// riverLives is River, in a process of its own.
type riverLives struct {
	in            io.WriteCloser
	done, offered atomic.Int64
	ended         chan struct{} // when there is no more output
	last          string        // line of it
}

func startRiver(t *testing.T, url string, pace int) *riverLives {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "river")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, ".")
	build.Dir = "../../bench/river"
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("River cannot be built: %v: %s", err, out)
	}
	l := &riverLives{ended: make(chan struct{})}
	cmd := exec.CommandContext(t.Context(), bin, "-pace", strconv.Itoa(pace), url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if l.in, err = cmdIn(cmd, err); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(l.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			l.last = lines.Text()
			if offered, done, two := strings.Cut(l.last, " "); two && offered != "lost" {
				n, _ := strconv.ParseInt(offered, 10, 64)
				l.offered.Store(n)
				n, _ = strconv.ParseInt(done, 10, 64)
				l.done.Store(n)
			}
		}
	}()
	t.Cleanup(func() {
		_ = l.in.Close()
		_ = cmd.Wait()
	})
	return l
}

// cmdIn starts the command, and returns its standard input.
func cmdIn(cmd *exec.Cmd, err error) (io.WriteCloser, error) {
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	return in, cmp.Or(err, cmd.Start())
}

func (l *riverLives) counts() (done, offered int64) { return l.done.Load(), l.offered.Load() }

func (l *riverLives) more(_ context.Context, n int) { _, _ = fmt.Fprintln(l.in, n) }

func (l *riverLives) finish(t *testing.T) {
	t.Helper()
	_ = l.in.Close()
	<-l.ended
	t.Logf("%d jobs done; %s", l.done.Load(), l.last)
}

// liveAmongOthers plays the scenes.
func liveAmongOthers(t *testing.T, pg *servers.Postgres, b *bystander, m lives, name string, scene time.Duration, pace int) {
	t.Helper()
	connect := func() *pgx.Conn {
		t.Helper()
		c, err := pgx.Connect(t.Context(), pg.URL(pg.Addr, name))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	dead := func() (n, bytes int64) {
		t.Helper()
		c := connect()
		defer func() { _ = c.Close(t.Context()) }()
		if err := c.QueryRow(t.Context(), `SELECT sum(n_dead_tup), sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE schemaname = $1`, name).Scan(&n, &bytes); err != nil {
			t.Fatal(err)
		}
		return n, bytes
	}
	measured := func(what string, do func()) (rate float64, latency time.Duration) {
		t.Helper()
		b.median()
		before, offered := m.counts()
		begun := time.Now()
		do()
		took := time.Since(begun).Seconds()
		done, all := m.counts()
		rate, latency = float64(done-before)/took, b.median()
		n, bytes := dead()
		t.Logf("%s: %.0f of %.0f jobs/s, a bystander's update %v, %d dead rows, %d MiB", what, rate, float64(all-offered)/took,
			latency.Round(10*time.Microsecond), n, bytes>>20)
		return rate, latency
	}
	wait := func() { time.Sleep(scene) }
	recovered := func(what string) {
		t.Helper()
		before, _ := m.counts()
		for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if done, _ := m.counts(); done >= before+int64(pace)/2 {
				return
			} else if time.Now().After(end) {
				if t.Logf("after %s no jobs are done", what); name == "lokt" {
					t.FailNow()
				}
				return
			}
		}
	}
	recovered("the start")
	calm, usual := measured("calm", wait)

	pin := connect()
	if _, err := pin.Exec(t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class"); err != nil {
		t.Fatal(err)
	}
	pinned, late := measured("a snapshot is pinned", wait)
	for again := 0; again < 3 && pinned < calm/2; again++ { // this machine may have stood still
		pinned, late = measured("a snapshot is pinned", wait)
	}
	t.Logf("with a pinned snapshot: %.2f of the jobs, %.2f of the latency", pinned/calm, late.Seconds()/usual.Seconds())
	if pinned < calm/2 && name == "lokt" {
		t.Errorf("a pinned snapshot leaves %.0f of %.0f jobs/s", pinned, calm)
	}
	_ = pin.Close(t.Context())

	host, port, _ := net.SplitHostPort(pg.Addr)
	measured("pg_dump", func() {
		for end := time.Now().Add(scene); time.Now().Before(end); {
			dump := pg.Command((&pair{Postgres: pg}).bin("pg_dump"), "-f", os.DevNull, "-h", host, "-p", port, "-U", "lokt", "postgres")
			if out, err := dump.CombinedOutput(); err != nil {
				t.Fatalf("pg_dump: %v: %s", err, out)
			}
		}
	})

	var idle []*pgx.Conn
	for range 20 {
		c := connect()
		idle = append(idle, c)
		if _, err := c.Exec(t.Context(), "BEGIN; SELECT count(*) FROM pg_class"); err != nil {
			t.Fatal(err)
		}
	}
	measured("20 clients are idle in transactions", wait)
	for _, c := range idle {
		_ = c.Close(t.Context())
	}

	m.more(t.Context(), 5*pace)
	measured(fmt.Sprintf("%d more are queued", 5*pace), wait)
	end := fmt.Sprintf("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '%s'", name)
	measured("backends are ended twice a second", func() {
		for until := time.Now().Add(scene); time.Now().Before(until); time.Sleep(500 * time.Millisecond) {
			if err := pg.Exec(end); err != nil {
				t.Fatal(err)
			}
		}
	})
	recovered("the end of backends")

	measured("there is no connection left", func() {
		var all []*pgx.Conn
		killed := false
		for begun := time.Now(); time.Since(begun) < scene || !killed && time.Since(begun) < patience; {
			c, err := pgx.Connect(t.Context(), pg.URL(pg.Addr, "public"))
			if err == nil {
				all = append(all, c)
				continue
			}
			if len(all) > 0 && !killed { // lokt's go, and others take their places
				_, err := all[0].Exec(t.Context(), end)
				killed = err == nil
			}
			time.Sleep(10 * time.Millisecond)
		}
		for _, c := range all {
			_ = c.Close(t.Context())
		}
		if !killed {
			t.Errorf("%d connections are not all", len(all))
		}
	})
	recovered("there was no connection left")

	if err := pg.Crash(); err != nil {
		t.Fatal(err)
	}
	recovered("a crash of the server")
	m.finish(t)
	n, bytes := dead()
	t.Logf("in the end: %d dead rows, %d MiB", n, bytes>>20)
}
