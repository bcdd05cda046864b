package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// table is a store in the simplest form: what comes out of a turn goes in, and all of it comes back.
type table struct {
	jobs     map[string]jobs.Record // with those that ended
	memos    map[string]jobs.Memo
	stats    map[string]jobs.Statistic
	frozen   []string
	counters jobs.Counters
	events   []jobs.Event
}

func newTable() *table {
	return &table{jobs: map[string]jobs.Record{}, memos: map[string]jobs.Memo{}, stats: map[string]jobs.Statistic{}}
}

// legal are the states that may follow a stored one, in one turn or in several that were stored together.
func legal(from, to jobs.State) bool {
	switch from {
	case "", jobs.Queued, jobs.Leased, jobs.Running:
		return from != "" || to == jobs.Scheduled || to == jobs.Queued || to == jobs.Leased || to == jobs.Cancelled
	case jobs.Scheduled:
		return to == jobs.Scheduled || to == jobs.Cancelled
	}
	return false // nothing follows an end
}

func (tb *table) apply(c *jobs.Changes) error {
	if c.Empty() {
		return nil
	}
	for i, r := range c.Jobs {
		old, ok := tb.jobs[r.ID]
		switch {
		case !legal(old.State, r.State):
			return fmt.Errorf("job %s went from %q to %q", r.ID, old.State, r.State)
		case ok && (r.Token < old.Token || r.Revision <= old.Revision || r.Ord != old.Ord || r.Seq != old.Seq || len(r.Attempts) < len(old.Attempts)):
			return fmt.Errorf("job %s went from %+v to %+v", r.ID, old, r)
		case i > 0 && r.Revision <= c.Jobs[i-1].Revision:
			return fmt.Errorf("revision %d follows %d", r.Revision, c.Jobs[i-1].Revision)
		case r.State.Ended() != !r.EndedAt.IsZero() || r.State.Active() != (r.Lease != nil) || r.State.Active() != (r.LeaseID != ""):
			return fmt.Errorf("job is stored as %+v with lease %+v", r.Job, r.Lease)
		}
		tb.jobs[r.ID] = *r
	}
	for _, m := range c.Memos {
		tb.memos[m.ID] = m
	}
	for _, n := range c.Stats {
		tb.stats[fmt.Sprintf("%v %q %q %q", n.Hour, n.Source, n.Type, n.Tag)] = n
	}
	tb.frozen, tb.counters = c.Frozen, c.Counters
	for _, ev := range c.Events {
		if n := len(tb.events); n > 0 && ev.Seq != tb.events[n-1].Seq+1 {
			return fmt.Errorf("event %d follows %d", ev.Seq, tb.events[n-1].Seq)
		}
		tb.events = append(tb.events, ev)
	}
	return nil
}

// living is what is there at a time on the wall clock.
func (tb *table) living(now time.Time) jobs.Changes {
	l := jobs.Changes{Frozen: slices.Clone(tb.frozen), Counters: tb.counters}
	for _, r := range tb.jobs {
		if !r.State.Ended() {
			l.Jobs = append(l.Jobs, &r)
		}
	}
	for _, m := range tb.memos {
		if m.Expires.After(now) {
			l.Memos = append(l.Memos, m)
		}
	}
	inOrder(&l)
	return l
}

// inOrder puts what lives into one order, for comparison.
func inOrder(l *jobs.Changes) {
	slices.SortFunc(l.Jobs, func(a, b *jobs.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	slices.SortFunc(l.Memos, func(a, b jobs.Memo) int { return cmp.Compare(a.ID, b.ID) })
	slices.Sort(l.Frozen)
}

// told says in words what was answered, as the model does.
func told(r Reply) string {
	if r.Err != nil {
		return "error " + jobs.Code(r.Err)
	}
	beaten := func(b jobs.HeartbeatAnswer) string {
		return fmt.Sprintf("until %s cancel %v drain %v", b.ExpiresAt.Format(time.RFC3339Nano), b.Cancel, b.Drain)
	}
	switch v := r.Result.(type) {
	case []jobs.Receipt:
		var all []string
		for _, rc := range v {
			all = append(all, rc.JobID+":"+string(rc.State))
		}
		return strings.Join(all, " ")
	case jobs.Grant:
		if v.Denied != nil {
			return fmt.Sprintf("denied %s %v", v.Denied.Code, v.Denied.RetryAfter)
		}
		l := v.Lease
		return fmt.Sprintf("grant %s of %s to %s token %d attempt %d until %s", l.ID, v.Job.ID, l.WorkerID, l.Token, l.Attempt, l.ExpiresAt.Format(time.RFC3339Nano))
	case []jobs.LeaseAnswer:
		var all []string
		for _, b := range v {
			if b.Err != nil {
				all = append(all, jobs.Code(b.Err))
			} else {
				all = append(all, beaten(b.HeartbeatAnswer))
			}
		}
		return strings.Join(all, ", ")
	case jobs.View:
		return fmt.Sprintf("%s %s attempts %d", v.Job.State, v.WaitingFor, len(v.Attempts))
	case jobs.Snapshot:
		return fmt.Sprintf("%+v", v)
	}
	return fmt.Sprint(r.Result)
}

// game plays the same requests to the engine and to the model.
type game struct {
	choose   func(n int) int // from 0 to n-1
	cfg      jobs.Config
	e        *Engine
	m        *model
	tb       *table
	follower *Engine
	now      Instant
	ids      uint64
	jobs     []string
	leases   []string // granted ones, the newest last
	owner    map[string]string
	tokens   map[string]uint64 // by lease
	last     map[string]uint64 // by job
	parked   []uint64
	keys     bool           // there are fairness keys
	did      map[string]int // what happened, to see that everything does
}

// gameConfig is small numbers, so that everything happens soon.
func gameConfig() jobs.Config {
	return jobs.Config{
		Total: 10, Reserve: 1, TTL: 10 * time.Second, Grace: time.Second, AgeingStep: 20 * time.Second,
		ReserveAfter: 4 * time.Second, ReserveLimit: 15 * time.Second, MaxParked: 6,
	}
}

func newGame(choose func(n int) int) *game {
	g := &game{
		choose: choose, cfg: gameConfig(), tb: newTable(), owner: map[string]string{}, tokens: map[string]uint64{},
		last: map[string]uint64{}, did: map[string]int{}, now: Instant{Wall: time.Date(2030, 1, 2, 3, 4, 5, 678901234, time.UTC)},
	}
	g.keys = g.choose(2) == 0
	g.e, g.m = newEngine(g.cfg), newModel(g.cfg)
	g.follower = newEngine(g.cfg)
	return g
}

func pick[T any](g *game, all ...T) T { return all[g.choose(len(all))] }

// recent picks one of the newest, rarely an older one.
func (g *game) recent(all []string) string {
	if len(all) == 0 {
		return "unknown"
	}
	n := min(len(all), 8)
	if g.choose(20) == 0 {
		n = len(all)
	}
	return all[len(all)-1-g.choose(n)]
}

func (g *game) spec() jobs.Spec {
	s := jobs.NewSpec()
	s.Type = pick(g, "a", "a", "b", "c")
	s.Priority = pick(g, jobs.Normal, jobs.Normal, jobs.High, jobs.Low, jobs.Background)
	s.Units = pick(g, 1, 1, 2, 3, 5, 8, 9, 10)
	s.Unique = g.choose(6) == 0
	s.MaxAttempts = pick(g, 1, 1, 2, 4)
	s.RetryBackoff = pick(g, 0, time.Second, 3*time.Second)
	s.MaxRuntime = pick(g, 0, 0, 0, 3*time.Second, 8*time.Second, 30*time.Second)
	switch g.choose(8) {
	case 0:
		s.Tags = []string{"needs:x", "x"}
	case 1:
		s.Tags = []string{"y", "y", "needs:y", "needs:x"}
	}
	if g.choose(6) == 0 {
		s.Locks = pick(g, []string{"l"}, []string{"l", "k"}, []string{"k"})
		if name := pick(g, s.Locks...); g.choose(2) == 0 {
			s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{name: pick(g,
				jobs.Limit{Slots: 2}, jobs.Limit{Slots: 3}, jobs.Limit{Starts: 1, Per: 2 * time.Second},
				jobs.Limit{Slots: 3, Starts: 3, Per: 20 * time.Second, Burst: 2})}}
		}
	}
	if g.choose(8) == 0 {
		s.RunAt = g.now.Wall.Add(pick(g, -time.Second, time.Second, 20*time.Second))
	}
	if g.keys && g.choose(2) == 0 {
		s.Extra = &jobs.Extra{Limits: s.Extras().Limits, Fair: pick(g, "t1", "t2", "t3")}
	}
	if s.Extra == nil {
		s.Extra = &jobs.Extra{}
	}
	if g.choose(25) == 0 {
		s.Extra.Cron = pick(g, "@every 7s", "@every 20s", "* * * * *", "*/5 * * * *")
	} else if len(g.jobs) > 0 && g.choose(6) == 0 {
		s.Extra.AfterAny = g.choose(4) == 0
		for range pick(g, 1, 1, 2) {
			s.Extra.After = append(s.Extra.After, g.recent(g.jobs))
		}
	}
	if g.choose(5) == 0 {
		s = jobs.NewSpec()
		s.IdempotencyKey, s.Units = pick(g, "k1", "k2", "k3"), pick(g, 1, 1, 1, 2)
	}
	return s
}

func (g *game) ask() Request {
	a := Request{LeaseID: "L" + strconv.FormatUint(g.ids, 10), Jitter: pick(g, 0, 0.5, 1)}
	a.WorkerID = pick(g, "w1", "w2", "w3", "w4")
	switch g.choose(6) {
	case 0:
		a.MaxUnits = pick(g, 1, 3)
	case 1:
		a.Types = pick(g, []string{"a"}, []string{"b", "c"})
	case 2:
		a.Capabilities = pick(g, []string{"x"}, []string{"needs:x", "y"})
	}
	a.Ahead = g.choose(6) == 0
	if g.choose(3) == 0 {
		a.Wait = pick(g, time.Second, 5*time.Second, 30*time.Second)
	}
	if g.choose(6) == 0 {
		a.RequestID = pick(g, "r1", "r2")
	}
	return a
}

// holder returns the worker of a lease, mostly.
func (g *game) holder(leaseID string) string {
	if w := g.owner[leaseID]; w != "" && g.choose(12) > 0 {
		return w
	}
	return pick(g, "w1", "w2")
}

func (g *game) request() Call {
	g.ids++
	r := Call{ID: g.ids}
	lease := g.recent(g.leases)
	half := 0.5
	switch g.choose(23) {
	case 0, 1, 2, 3, 4:
		var all []NewJob
		for i := range pick(g, 1, 1, 1, 2, 3) {
			n := NewJob{Spec: g.spec(), ID: fmt.Sprintf("J%d-%d", g.ids, i)}
			if i > 0 && g.choose(2) == 0 {
				n.Extra = &jobs.Extra{After: []string{"#" + strconv.Itoa(g.choose(i))}}
			}
			all = append(all, n)
		}
		for _, n := range all {
			g.jobs = append(g.jobs, n.ID)
		}
		ended := map[string]jobs.State{}
		for _, id := range g.jobs {
			if s := g.tb.jobs[id].State; s.Ended() {
				ended[id] = s
			}
		}
		r.Op = Submit{Jobs: all, Ended: ended}
	case 5, 6, 7, 8, 9, 10:
		r.Op = g.ask()
		g.parked = append(g.parked, r.ID)
	case 11, 12:
		b := jobs.Heartbeat{WorkerID: g.holder(lease)}
		if g.choose(3) == 0 {
			b.Progress, b.Checkpoint = &half, jsontext.Value(`{"at": 1}`)
		}
		if g.choose(4) == 0 {
			b.Wait = 3 * time.Second
		}
		b.Ahead = g.choose(6) == 0
		r.Op = Heartbeat{b, []string{lease}}
	case 13:
		r.Op = Heartbeat{jobs.Heartbeat{WorkerID: pick(g, "w1", "w2", "w3")}, []string{lease, g.recent(g.leases), "unknown"}}
	case 14, 15, 16:
		c := jobs.Completion{LeaseID: lease, WorkerID: g.holder(lease), Status: pick(g, jobs.Completed, jobs.Completed, jobs.Failed, jobs.Queued)}
		if c.Status != jobs.Queued {
			c.Error = jsontext.Value(`"e"`)
		}
		r.Op = Complete{c}
	case 17:
		r.Op = Report{jobs.Progress{LeaseID: lease, WorkerID: g.holder(lease), Progress: &half}}
	case 18:
		r.Op = Cancel{g.recent(g.jobs), "because"}
	case 19:
		r.Op = Revoke{lease, "so there"}
	case 20:
		r.Op = Freeze{pick(g, "", "a", "b"), g.choose(3) == 0}
	case 21:
		r.Op = Withdraw{LeaseID: lease}
	default:
		id := uint64(0)
		if n := len(g.parked); n > 0 {
			id = g.parked[n-1-g.choose(min(n, 5))]
		}
		r.Op = Withdraw{CallID: id}
	}
	return r
}

// pass lets time go by.
func (g *game) pass() {
	d := time.Duration(0)
	switch g.choose(12) {
	case 0, 1, 2:
	case 3, 4, 5, 6:
		d = time.Duration(1+g.choose(40)) * 50 * time.Millisecond
	case 7, 8:
		if next := g.e.Next(); next != Never {
			d = max(next-g.now.Mono, 0)
		}
	case 9:
		d = g.cfg.TTL / 2
	case 10:
		d = pick(g, jobs.SeenFor, g.cfg.ReserveAfter, g.cfg.ReserveLimit, jobs.RequestLife)
	default:
		if g.choose(8) == 0 {
			g.now.Wall = g.now.Wall.Add(pick(g, -time.Hour, time.Minute, 25*time.Hour))
			g.did["clock set"]++
		}
	}
	g.now.Mono += d
	g.now.Wall = g.now.Wall.Add(d)
}

// step plays one turn, and compares.
func (g *game) step() error {
	if g.choose(150) == 0 {
		if err := g.restart(); err != nil {
			return err
		}
	}
	g.pass()
	var all []Call
	for range pick(g, 1, 1, 1, 2, 5) {
		all = append(all, g.request())
	}
	g.ids++
	all = append(all, Call{g.ids, Status{}})
	for range 2 {
		g.ids++
		all = append(all, Call{g.ids, Get{g.recent(g.jobs)}})
	}
	theirs := slices.Clone(all) // the engine puts IDs in place of numbers
	for i, r := range theirs {
		if s, ok := r.Op.(Submit); ok {
			s.Jobs = slices.Clone(s.Jobs)
			for k := range s.Jobs {
				s.Jobs[k].Spec = s.Jobs[k].Clone()
			}
			theirs[i].Op = s
		}
	}
	out := g.e.Turn(g.now, all, nil)
	want := g.m.turn(g.now, theirs)
	if g.e.claimant.job != nil {
		g.did["a claimant"]++
	}
	got := map[uint64]string{}
	for _, r := range out.Replies {
		if _, twice := got[r.ID]; twice {
			return fmt.Errorf("request %d is answered twice", r.ID)
		}
		got[r.ID] = told(r)
		if err := g.learn(r); err != nil {
			return err
		}
	}
	if n := len(g.e.failures) + len(g.e.failed); n > 0 {
		return fmt.Errorf("%d failures are not attended to", n)
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("at %v requests %s\nanswered %s\nexpected %s", g.now.Mono, words(all), sorted(got), sorted(want))
	}
	if err := g.tb.apply(&out.Changes); err != nil {
		return err
	}
	for _, r := range out.Changes.Jobs {
		if t := r.Extras().Ticks; t != nil && t.Skipped > 0 {
			g.did["tick skipped"]++
		} else if t != nil && t.Schedule != "" && !slices.Contains(g.jobs, r.ID) {
			g.jobs = append(g.jobs, r.ID)
			g.did["tick"]++
		}
	}
	if !out.Changes.Empty() {
		g.follower.Follow(&out.Changes, g.now)
		if len(out.Changes.Stats) > 0 {
			g.did["statistics"]++
		}
	}
	return g.e.check()
}

// learn notes what was granted, and checks the tokens.
func (g *game) learn(r Reply) error {
	switch v := r.Result.(type) {
	case jobs.Grant:
		if v.Denied != nil {
			g.did[v.Denied.Code]++
			return nil
		}
		if had := g.tokens[v.Lease.ID]; had != 0 && had == v.Lease.Token {
			g.did["granted again"]++
			return nil
		}
		if v.Lease.Token <= g.last[v.Job.ID] {
			return fmt.Errorf("token %d of %s follows %d", v.Lease.Token, v.Job.ID, g.last[v.Job.ID])
		}
		g.last[v.Job.ID], g.tokens[v.Lease.ID], g.owner[v.Lease.ID] = v.Lease.Token, v.Lease.Token, v.Lease.WorkerID
		g.leases = append(g.leases, v.Lease.ID)
		g.did["granted"]++
	case jobs.View:
		what, _, _ := strings.Cut(v.WaitingFor, ":")
		g.did["waiting for "+what]++
	}
	if r.Err != nil {
		g.did[jobs.Code(r.Err)]++
	}
	return nil
}

// restart replaces the engine by one that knows what was stored.
func (g *game) restart() error {
	g.did["restart"]++
	g.e.setNow(g.now)
	stored := g.tb.living(g.e.Now.Wall)
	running := map[string]bool{}
	for _, j := range stored.Jobs {
		running[j.ID] = j.State == jobs.Running
	}
	if len(g.e.touched) == 0 {
		if err := same(stored, g.e.living()); err != nil {
			return fmt.Errorf("what was stored is not what was there: %w", err)
		}
	}
	if err := same(stored, g.follower.living()); err != nil {
		return fmt.Errorf("who followed knows something else: %w", err)
	}
	if err := g.follower.check(); err != nil {
		return fmt.Errorf("who followed: %w", err)
	}
	g.lost(g.e)
	g.ids++
	g.e = Load(g.cfg, g.tb.living(g.e.Now.Wall), fmt.Sprint("engine ", g.ids), g.now)
	g.m.restart(g.now, running)
	g.parked = nil
	if err := same(stored, g.e.living()); err != nil {
		return fmt.Errorf("what was loaded is not what was stored: %w", err)
	}
	return g.e.check()
}

// lost takes the statistics that were not stored out of what the model counted.
func (g *game) lost(e *Engine) {
	for _, n := range e.history(true) {
		before := g.tb.stats[fmt.Sprintf("%v %q %q %q", n.Hour, n.Source, n.Type, n.Tag)]
		if n.Tag == "" {
			for t, count := range n.Events {
				g.m.events[t] -= int(count - before.Events[t])
			}
			for _, en := range e.touched { // nor is the event, which the model takes back itself
				if en.Type == n.Type && en.State == jobs.Running && g.tb.jobs[en.ID].State != jobs.Running {
					g.m.events[jobs.EventRunning]++
				}
			}
		}
		if n.Type != "" {
			was, is := ends(before), ends(n)
			for s, count := range is.ByState {
				g.m.ended[s] -= int(count - was.ByState[s])
			}
		}
	}
}

// ends sums up the ends of jobs.
func ends(all ...jobs.Statistic) jobs.Stats {
	return jobs.Summarize(all, time.Time{}, time.Unix(1<<40, 0))
}

// same compares what lives, but for what heartbeats move without storing it, and memos, which engines forget when they come
// to it.
func same(a, b jobs.Changes) error {
	for _, l := range []*jobs.Changes{&a, &b} {
		l.Jobs, l.Memos, l.Counters.Revision, l.Counters.Event = slices.Clone(l.Jobs), nil, 0, 0
		for i := range l.Jobs {
			r := new(*l.Jobs[i])
			if l.Jobs[i] = r; r.Lease != nil {
				lease := *r.Lease
				lease.ExpiresAt, lease.LastHeartbeat = time.Time{}, time.Time{}
				r.Lease = &lease
			}
		}
	}
	x, errA := lokt.Marshal(a)
	y, errB := lokt.Marshal(b)
	if err := errors.Join(errA, errB); err != nil || bytes.Equal(x, y) {
		return err
	}
	i := 0
	for i < len(x) && i < len(y) && x[i] == y[i] {
		i++
	}
	i = max(i-200, 0)
	return fmt.Errorf("...%s\nis not\n...%s", x[i:min(i+600, len(x))], y[i:min(i+600, len(y))])
}

// living returns everything that lives, as a store would hand it back, in order.
func (e *Engine) living() jobs.Changes {
	l := jobs.Changes{Counters: e.Counters, TokenFloor: e.tokenFloor}
	for _, en := range e.jobs {
		l.Jobs = append(l.Jobs, en.record())
	}
	for _, m := range e.memos {
		l.Memos = append(l.Memos, m.Memo)
	}
	for t := range e.frozen {
		l.Frozen = append(l.Frozen, t)
	}
	inOrder(&l)
	return l
}

func words(all []Call) string {
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, "\n  %d %T %+v", r.ID, r.Op, r.Op)
	}
	return b.String()
}

func sorted(m map[uint64]string) string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "\n  %d %s", id, m[id])
	}
	return b.String()
}

// check reports what is inconsistent in the engine.
func (e *Engine) check() error {
	leased, kept := 0, 0
	byWorker := map[string]int{}
	for id, en := range e.leases {
		leased += en.Lease.Units
		byWorker[en.worker.id]++
		if en.Lease.ID != id || en.LeaseID != id || !en.State.Active() || e.jobs[en.ID] != en {
			return fmt.Errorf("lease %s and job %+v do not belong together", id, en.Job)
		}
		if en.alarm > en.deadline() {
			return fmt.Errorf("lease %s would expire too late", id)
		}
	}
	for _, p := range e.pendings {
		kept += p.kept.Units
	}
	for id, w := range e.workers {
		if w.leases != byWorker[id] {
			return fmt.Errorf("worker %s has %d leases, not %d", id, byWorker[id], w.leases)
		}
	}
	if leased != e.leased || kept != e.kept || len(e.leases) != e.deadlines.Len() {
		return fmt.Errorf("%d units are leased and %d kept, not %d and %d; %d deadlines", leased, kept, e.leased, e.kept, e.deadlines.Len())
	}
	inLines, queued := 0, jobs.Depths{}
	for id, en := range e.jobs {
		if en.ID != id || en.State.Ended() || en.in != e.shelf(&en.Job) {
			return fmt.Errorf("job %s is %+v", id, en.Job)
		}
		if en.State == jobs.Scheduled {
			if en.Lease != nil || en.line != nil || en.waitsIn != e.timed || !en.ReadyAt.Equal(en.Extra.Ticks.Next) {
				return fmt.Errorf("schedule %s does not wait for its tick: %+v", id, en.Job)
			}
			continue
		}
		if en.State != jobs.Queued {
			if en.Lease == nil || en.line != nil || en.waitsIn != nil {
				return fmt.Errorf("job %s is leased, and in the queue or without a lease", id)
			}
			continue
		}
		*map[jobs.Priority]*int{jobs.High: &queued.High, jobs.Normal: &queued.Normal, jobs.Low: &queued.Low, jobs.Background: &queued.Background}[en.Priority]++
		places := 0
		for _, in := range []bool{en.line != nil, en.waitsIn != nil, en.pending, e.obstacle(en) != ""} {
			if in {
				places++
			}
		}
		if places != 1 || en.Lease != nil || en.LeaseID != "" {
			return fmt.Errorf("job %s waits in %d places", id, places)
		}
		if en.line != nil {
			inLines++
		}
	}
	if queued != e.depths() {
		return fmt.Errorf("queued are %+v, not %+v", queued, e.depths())
	}
	for _, g := range e.groups {
		open := 0
		for _, l := range g.lines {
			inLines -= l.jobs.Len()
			if l.jobs.Len() == 0 || l.group != g {
				return fmt.Errorf("line %+v of %+v is empty or lost", l.alike, g.shape)
			}
			for i, en := range l.jobs.All() {
				if en.line != l || i > 0 && en.Before(&l.jobs.All()[(i-1)/2].Job) {
					return fmt.Errorf("job %s stands in a wrong line, or place", en.ID)
				}
			}
			if (l.closed == "") != (l.at > 0) {
				return fmt.Errorf("line %+v is closed by %q, and in the heaps or not", l.alike, l.closed)
			}
			if l.closed == "" {
				open++
			}
		}
		if open != g.open.Len() {
			return fmt.Errorf("%d lines are open, not %d", open, g.open.Len())
		}
		for i, l := range g.open.All() {
			if i > 0 && l.head().Before(&g.open.All()[(i-1)/2].head().Job) {
				return fmt.Errorf("heap of lines is out of order")
			}
		}
	}
	for id, all := range e.followers {
		for seq, en := range all {
			if e.jobs[id] == nil || e.jobs[en.ID] != en || en.Seq != seq || !slices.Contains(en.Extras().After, id) {
				return fmt.Errorf("job %s does not run after %s", en.ID, id)
			}
		}
	}
	if inLines != 0 {
		return fmt.Errorf("%d more jobs are in lines than there are", -inLines)
	}
	listed := 0
	for i := range e.shelves {
		c := &e.shelves[i]
		listed += c.Len()
		for at := c.Iter(); at.Next(); {
			if en := at.Value(); en.in != c || en.Revision != at.Key() || e.jobs[en.ID] != en {
				return fmt.Errorf("job %s is listed in a wrong place", en.ID)
			}
		}
	}
	if listed != len(e.jobs) {
		return fmt.Errorf("%d jobs are listed, not %d", listed, len(e.jobs))
	}
	asks := 0
	for key, p := range e.waiting {
		asks += len(p.asks)
		if len(p.asks) == 0 || key != p.key || !slices.IsSortedFunc(p.asks, func(a, b *waiter) int { return cmp.Compare(a.arrival, b.arrival) }) {
			return fmt.Errorf("a profile waits without asks, or out of order")
		}
	}
	for id, w := range e.waiters {
		if w.ask != nil && id == w.calls[0] && w.kept == nil {
			asks--
		}
	}
	if asks != 0 {
		return fmt.Errorf("%d asks in line are of nobody", asks)
	}
	if !slices.IsSortedFunc(e.limits, func(a, b *entry) int { return cmp.Compare(a.runUntil, b.runUntil) }) {
		return fmt.Errorf("runtimes are out of order")
	}
	return nil
}

// play plays steps, and then lets everything end.
func (g *game) play(steps int, more func() bool) error {
	for i := 0; i < steps && more(); i++ {
		if err := g.step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	g.now.Mono += lazyWrite
	g.now.Wall = g.now.Wall.Add(lazyWrite)
	g.e.last = true
	out := g.e.Turn(g.now, nil, nil)
	g.m.turn(g.now, nil)
	if err := g.tb.apply(&out.Changes); err != nil {
		return err
	}
	for _, j := range g.m.jobs {
		stored := g.tb.jobs[j.id]
		if stored.State != j.state || stored.Code != j.code || stored.Attempt != j.attempt || stored.Token != j.token || !stored.ReadyAt.Equal(j.readyWall) {
			return fmt.Errorf("job %s is %+v, not %+v", j.id, stored, j)
		}
	}
	var all []jobs.Statistic
	for _, n := range g.tb.stats {
		all = append(all, n)
	}
	counted, ended := jobs.Decide(all, time.Time{}, 1), ends(all...)
	for t, n := range g.m.events {
		if counted.Events[t] != int64(n) {
			return fmt.Errorf("%d events %s were counted, not %d", counted.Events[t], t, n)
		}
	}
	for s, n := range g.m.ended {
		if ended.ByState[s] != int64(n) {
			return fmt.Errorf("%d jobs were counted as %s, not %d", ended.ByState[s], s, n)
		}
	}
	return nil
}

// It plays 10,000 steps of random requests, 100,000 where LOKT_SOAK is set, and with
// LOKT_JOBS_STEPS as many as it says, in games of more steps.
func TestEngineAnswersAsTheModelDoes(t *testing.T) {
	seeds, steps := 25, 400
	if os.Getenv("LOKT_SOAK") != "" {
		seeds = 250
	}
	if s, err := strconv.Atoi(os.Getenv("LOKT_JOBS_STEPS")); err == nil {
		seeds, steps = max(s/2000, 1), 2000
	}
	var mu sync.Mutex
	did := map[string]int{}
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for seed := part; seed < seeds; seed += 4 {
				rng := rand.New(rand.NewPCG(uint64(seed), 7))
				g := newGame(rng.IntN)
				if err := g.play(steps, func() bool { return true }); err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
				mu.Lock()
				for what, n := range g.did {
					did[what] += n
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, what := range []string{
		"granted", "granted again", "restart", "statistics", "clock set", jobs.DeniedEmpty, jobs.DeniedCapacity, jobs.DeniedEligible, "lease_not_found", "worker_mismatch",
		"idempotency_conflict", "waiting for capacity", "waiting for reserved_for", "waiting for unique", "waiting for no_worker",
		"waiting for lock", "waiting for run_at", "waiting for frozen", "waiting for after", "waiting for rate",
		"a claimant", "tick", "tick skipped",
	} {
		if did[what] == 0 {
			t.Errorf("it never came to %q: %v", what, did)
		}
	}
}

// FuzzEngine plays requests made from the fuzzer's bytes to the engine and to the model.
func FuzzEngine(f *testing.F) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 4 {
		b := make([]byte, 2000)
		for i := range b {
			b[i] = byte(rng.IntN(256))
		}
		f.Add(b)
	}
	f.Add(bytes.Repeat([]byte{0}, 400))
	f.Fuzz(func(t *testing.T, b []byte) {
		g := newGame(func(n int) int {
			if len(b) == 0 {
				return 0
			}
			c := int(b[0])
			b = b[1:]
			return c % n
		})
		if err := g.play(200, func() bool { return len(b) > 0 }); err != nil {
			t.Fatal(err)
		}
	})
}
