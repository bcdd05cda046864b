package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

func TestWhatBecomesOfAJobFollowsItsAttempt(t *testing.T) {
	for _, c := range []struct {
		how           State
		code          string
		cancel        bool
		attempt, most int
		end           State
		again         bool
	}{
		{Completed, CodeCompleted, false, 1, 1, Completed, false},
		{Completed, CodeCompleted, false, 1, 3, Completed, false},
		{Completed, CodeCompleted, true, 1, 3, Completed, false},
		{Failed, CodeFailed, false, 1, 1, Failed, false},
		{Failed, CodeFailed, false, 1, 2, Queued, true},
		{Failed, CodeFailed, false, 2, 2, Failed, false},
		{Failed, CodeFailed, true, 1, 2, Cancelled, false},
		{Failed, CodeRuntime, false, 1, 1, Failed, false},
		{Failed, CodeRuntime, false, 1, 2, Queued, true},
		{Failed, CodeRuntime, true, 1, 2, Cancelled, false},
		{Failed, CodeRevoked, false, 1, 2, Failed, false},
		{Failed, CodeRevoked, true, 1, 2, Failed, false},
		{Expired, CodeExpired, false, 1, 1, Expired, false},
		{Expired, CodeExpired, false, 2, 3, Queued, true},
		{Expired, CodeExpired, true, 1, 1, Cancelled, false},
	} {
		j := &Job{Spec: Spec{MaxAttempts: c.most}, Attempt: c.attempt, Cancel: c.cancel}
		if end, again := outcome(j, c.how, c.code); end != c.end || again != c.again {
			t.Errorf("%+v: %s, again %v", c, end, again)
		}
	}
}

func TestBackoffDoublesUpToAnHour(t *testing.T) {
	for _, c := range []struct {
		base time.Duration
		n    int
		want time.Duration
	}{
		{time.Second, 1, time.Second}, {time.Second, 2, 2 * time.Second}, {time.Second, 5, 16 * time.Second}, {time.Second, 12, 2048 * time.Second},
		{time.Second, 13, time.Hour}, {time.Second, 1000, time.Hour}, {0, 1000, 0}, {2 * time.Hour, 1, time.Hour}, {MaxDuration, 1000, time.Hour},
	} {
		if got := backoff(c.base, c.n); got != c.want {
			t.Errorf("retry %d after %v waits %v, not %v", c.n, c.base, got, c.want)
		}
	}
}

func TestRetryAfterIsClampedAndJittered(t *testing.T) {
	for _, c := range []struct {
		remaining time.Duration
		jitter    float64
		want      time.Duration
	}{
		{never, 0.7, 1500 * time.Millisecond}, {-time.Hour, 0, 250 * time.Millisecond}, {0, 1, 250 * time.Millisecond},
		{200 * time.Millisecond, 1, 250 * time.Millisecond}, {time.Second, 0, time.Second}, {time.Second, 0.5, 1100 * time.Millisecond},
		{time.Second, 1, 1200 * time.Millisecond}, {4500 * time.Millisecond, 1, 5 * time.Second}, {time.Hour, 0, 5 * time.Second}, {never - 1, 1, 5 * time.Second},
		{1234567 * time.Microsecond, 0, 1234 * time.Millisecond},
	} {
		if got := retryAfter(c.remaining, c.jitter); got != c.want {
			t.Errorf("%v before, with jitter %v, it is %v, not %v", c.remaining, c.jitter, got, c.want)
		}
	}
}

func TestClassesAreAStepApart(t *testing.T) {
	for i, p := range Priorities() {
		if got := place(1_000_000, p, 10*time.Minute); got != 1_000_000+int64(i)*600_000 {
			t.Errorf("%s is placed at %d", p, got)
		}
	}
	a, b := &Job{Ord: 1, Seq: 2}, &Job{Ord: 1, Seq: 3}
	if !a.before(b) || b.before(a) || a.before(a) || (&Job{Ord: 2, Seq: 1}).before(b) {
		t.Error("jobs are not in order of place and submission")
	}
}

func TestNeedsAreMetByCapabilities(t *testing.T) {
	for _, c := range []struct {
		tags, capabilities []string
		want               bool
	}{
		{nil, nil, true}, {[]string{"gpu"}, nil, true}, {[]string{"needs:gpu"}, nil, false}, {[]string{"needs:gpu"}, []string{"gpu"}, true},
		{[]string{"needs:gpu"}, []string{"needs:gpu"}, true}, {[]string{"needs:a", "needs:b"}, []string{"a"}, false},
		{[]string{"needs:a", "x", "needs:b", "needs:a"}, []string{"b", "a", "c"}, true}, {[]string{"needs:"}, []string{"x"}, false}, {[]string{"needs:"}, []string{""}, true},
	} {
		has := map[string]bool{}
		for _, x := range c.capabilities {
			has[x] = true
		}
		if got := capable(has, needsOf(c.tags)); got != c.want {
			t.Errorf("tags %q with capabilities %q: %v", c.tags, c.capabilities, got)
		}
	}
}

func TestFingerprintTellsJobsApartByWhatTheyDecodeTo(t *testing.T) {
	print := func(payload string) [32]byte {
		s := NewSpec()
		s.Payload = json.RawMessage(payload)
		return s.Fingerprint()
	}
	for _, same := range [][]string{
		{`{}`, ` { } `},
		{`{"a":1,"b":2}`, `{"b":2.0,"a":10e-1}`, `{"a":5,"b":2,"a":1}`},
		{`{"a":-0}`, `{"a":0.000e5}`},
		{`{"a":"\u00e9\n"}`, `{"a":"é\u000a"}`},
		{`{"a":12345678901234567890123.5}`, `{"a":1234567890123456789012350e-2}`},
	} {
		for _, p := range same[1:] {
			if print(p) != print(same[0]) {
				t.Errorf("%s is not %s", p, same[0])
			}
		}
	}
	differ := []string{
		`{}`, `{"a":1}`, `{"a":"1"}`, `{"a":true}`, `{"a":null}`, `{"a":[1]}`, `{"a":[1,2]}`, `{"a":[[1],2]}`, `{"a":{"b":1}}`, `{"b":1}`, `{"a":-1}`, `{"a":11}`,
		`{"a":1e400}`, `{"a":1e401}`, `{"a":1e99999999999999999999}`, `{"a":12345678901234567890}`, `{"a":12345678901234567891}`, `{"a":""}`, `{"a":[]}`, `{"a":{}}`,
	}
	seen := map[[32]byte]string{}
	for _, p := range differ {
		if other, ok := seen[print(p)]; ok {
			t.Errorf("%s is %s", p, other)
		}
		seen[print(p)] = p
	}
	base := NewSpec()
	for i, edit := range []func(*Spec){
		func(s *Spec) { s.Type = "x" }, func(s *Spec) { s.Priority = High }, func(s *Spec) { s.Units = 2 }, func(s *Spec) { s.Unique = true },
		func(s *Spec) { s.Tags = []string{"a"} }, func(s *Spec) { s.Tags = []string{"a", ""} }, func(s *Spec) { s.MaxRuntime = 1 }, func(s *Spec) { s.MaxAttempts = 2 },
		func(s *Spec) { s.RetryBackoff = 2 }, func(s *Spec) { s.RunAt = time.Unix(0, 0) }, func(s *Spec) { s.RunAt = time.Unix(1, 0) }, func(s *Spec) { s.Locks = []string{"a"} },
	} {
		s := base
		edit(&s)
		if other, ok := seen[s.Fingerprint()]; ok {
			t.Errorf("edit %d is like %s", i, other)
		}
		seen[s.Fingerprint()] = strconv.Itoa(i)
	}
	keyed := base
	keyed.IdempotencyKey, keyed.Tags = "k", []string{}
	if keyed.Fingerprint() != base.Fingerprint() {
		t.Error("the key, or an empty list, makes a difference")
	}
}

func TestQuantilesAreRightToAPercent(t *testing.T) {
	var h Histogram
	if h.Quantile(0.95) != 0 {
		t.Error("of nothing there is a quantile")
	}
	h.Observe(1234 * time.Millisecond)
	if h.Quantile(0.95) != 1234*time.Millisecond {
		t.Errorf("of one duration it is %v", h.Quantile(0.95))
	}
	var all []time.Duration
	var parts [3]Histogram
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 10_000 {
		d := time.Duration(math.Exp(rng.Float64()*15) * float64(time.Millisecond))
		all = append(all, d)
		parts[i%3].Observe(d)
	}
	slices.Sort(all)
	var sum Histogram
	for _, p := range parts {
		sum.Merge(p)
	}
	for _, q := range []float64{0, 0.01, 0.5, 0.95, 0.99, 1} {
		want := all[max(int(math.Ceil(q*10_000)), 1)-1]
		if got := sum.Quantile(q); math.Abs(float64(got-want)) > 0.0101*float64(want) {
			t.Errorf("quantile %v is %v, not %v", q, got, want)
		}
	}
	if sum.Count() != 10_000 || sum.Min != all[0] || sum.Max != all[9999] {
		t.Errorf("of 10000 there are %d, from %v to %v", sum.Count(), sum.Min, sum.Max)
	}
}

func TestCodesAreStable(t *testing.T) {
	for err, want := range map[error]string{
		nil: "", ErrJobNotFound: "job_not_found", fmt.Errorf("x: %w", ErrLeaseNotFound): "lease_not_found", ErrWorkerMismatch: "worker_mismatch",
		ErrConflict: "idempotency_conflict", &InvalidError{}: "invalid", lokt.ErrUnavailable: "unavailable", errors.New("x"): "internal",
	} {
		if got := Code(err); got != want {
			t.Errorf("%v has the code %q, not %q", err, got, want)
		}
	}
	wrong := &InvalidError{Problems: []Problem{{Type: "enum", Loc: at("jobs", 3, "priority"), Msg: "is wrong"}, {Loc: at("x"), Msg: "too"}}}
	if got := wrong.Error(); got != "invalid request: jobs.3.priority: is wrong; x: too" {
		t.Error(got)
	}
}

func TestConfigsAreChecked(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero config: %v", err)
	}
	d := Config{}.withDefaults()
	if d.Total != 100 || d.TTL != time.Minute || d.Grace != 0 || d.interval() != 15*time.Second || d.AgeingStep != 10*time.Minute || d.ReserveAfter != 2*time.Minute || d.ReserveLimit != 10*time.Minute {
		t.Errorf("the defaults are %+v", d)
	}
	if d.TTL = 30 * time.Second; d.interval() != 10*time.Second {
		t.Errorf("for 30 s the interval is %v", d.interval())
	}
	for _, c := range []Config{
		{Total: -1}, {Total: 1 << 40}, {Reserve: -1}, {Reserve: 100}, {Total: 3, Reserve: 3}, {TTL: -1}, {TTL: time.Microsecond}, {Grace: -1}, {AgeingStep: -1},
		{ReserveLimit: -1}, {MaxParked: -1},
	} {
		if err := c.Validate(); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
		if _, err := Open(context.Background(), nil, Options{Config: c}); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("a manager with %+v: %v", c, err)
		}
	}
}

// world plays turns for tests of single rules.
type world struct {
	*testing.T
	e   *engine
	now instant
	n   uint64
}

func newWorld(t *testing.T, c Config) *world {
	return &world{T: t, e: newEngine(c), now: instant{wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}}
}

// do plays one request in a turn of its own, and returns its answer; nil if there is none yet.
func (w *world) do(o op) any {
	w.Helper()
	w.n++
	out := w.turn(request{w.n, o})
	for _, r := range out.replies {
		if r.id == w.n {
			if r.err != nil {
				return r.err
			}
			return r.result
		}
	}
	return nil
}

func (w *world) turn(all ...request) turned {
	w.Helper()
	out := w.e.turn(w.now, all)
	if err := w.e.check(); err != nil {
		w.Fatal(err)
	}
	return out
}

func (w *world) pass(d time.Duration) {
	w.now.mono += d
	w.now.wall = w.now.wall.Add(d)
}

// submit queues a job of that ID.
func (w *world) submit(id string, edits ...func(*Spec)) {
	w.Helper()
	s := NewSpec()
	for _, edit := range edits {
		edit(&s)
	}
	w.do(submitOp{[]newJob{{Spec: s, id: id}}})
}

// ask asks for a lease of that ID, and returns the job, or why there is none.
func (w *world) ask(worker, leaseID string) string {
	w.Helper()
	g, ok := w.do(askOp{Request: Request{WorkerID: worker}, leaseID: leaseID}).(Grant)
	switch {
	case !ok:
		return ""
	case g.Denied != nil:
		return g.Denied.Code
	}
	return g.Job.ID
}

func (w *world) want(what string, got, want any) {
	w.Helper()
	if got != want {
		w.Fatalf("%s: %v, not %v", what, got, want)
	}
}

func TestSteppingTheWallClockNeitherKillsNorProlongsALease(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, 24 * 365 * time.Hour} {
		w := newWorld(t, Config{})
		w.submit("a")
		w.want("ask", w.ask("w", "L"), "a")
		shown := w.e.leases["L"].lease.ExpiresAt
		w.now.wall = w.now.wall.Add(step)
		w.pass(time.Minute - 1)
		w.want("leases before the deadline", w.do(statusOp{}).(Snapshot).ActiveLeases, 1)
		b := w.do(beatOp{Heartbeat{LeaseID: "L", WorkerID: "w"}}).(HeartbeatAnswer)
		if b.ExpiresAt.Before(shown) {
			t.Errorf("with the clock set by %v, expiry moved from %v to %v", step, shown, b.ExpiresAt)
		}
		w.now.wall = w.now.wall.Add(-step)
		w.pass(time.Minute - 1)
		w.want("leases before the second deadline", w.do(statusOp{}).(Snapshot).ActiveLeases, 1)
		w.pass(1)
		w.want("leases at the second deadline", w.do(statusOp{}).(Snapshot).ActiveLeases, 0)
	}
}

func TestArrivalsKeepTheirOrderWhenTheWallClockIsSetBack(t *testing.T) {
	w := newWorld(t, Config{})
	w.submit("a")
	w.now.wall = w.now.wall.Add(-time.Hour)
	w.submit("b")
	w.submit("high", func(s *Spec) { s.Priority = High })
	for i, want := range []string{"high", "a", "b"} {
		w.want("ask", w.ask("w", strconv.Itoa(i)), want)
	}
}

func TestAnEndedLeaseGivesItsUnitsBackOnce(t *testing.T) {
	w := newWorld(t, Config{Total: 5})
	w.submit("a", func(s *Spec) { s.Units = 3; s.MaxAttempts = 3; s.RetryBackoff = 0 })
	w.want("ask", w.ask("w", "L"), "a")
	w.want("first end", w.do(completeOp{Completion{LeaseID: "L", WorkerID: "w", Status: Failed}}), true)
	for range 3 {
		w.want("another end", w.do(completeOp{Completion{LeaseID: "L", WorkerID: "w", Status: Failed}}), false)
		w.want("revocation", w.do(revokeOp{"L", ""}), ErrLeaseNotFound)
		w.pass(time.Hour)
	}
	w.want("free", w.do(statusOp{}).(Snapshot).Available, 5)
}

func TestDrainAnswersAllThatWaitAndGrantsNothing(t *testing.T) {
	w := newWorld(t, Config{})
	w.submit("a")
	w.want("ask", w.ask("w", "L"), "a")
	w.turn(request{100, askOp{Request: Request{WorkerID: "v", Wait: MaxWait}, leaseID: "M"}}, request{101, beatOp{Heartbeat{LeaseID: "L", WorkerID: "w", Wait: MaxWait}}})
	out := w.turn(request{102, drainOp{}})
	got := map[uint64]any{}
	for _, r := range out.replies {
		got[r.id] = r.result
	}
	if g, ok := got[100].(Grant); !ok || g.Denied == nil {
		t.Errorf("the ask was answered with %+v", got[100])
	}
	if b, ok := got[101].(HeartbeatAnswer); !ok || !b.Drain {
		t.Errorf("the heartbeat was answered with %+v", got[101])
	}
	w.submit("b")
	if g, ok := w.do(askOp{Request: Request{WorkerID: "v", Wait: MaxWait}, leaseID: "N"}).(Grant); !ok || g.Denied == nil {
		t.Errorf("an ask was answered with %+v", g)
	}
	if b, ok := w.do(beatOp{Heartbeat{LeaseID: "L", WorkerID: "w", Wait: MaxWait}}).(HeartbeatAnswer); !ok || !b.Drain {
		t.Errorf("a heartbeat was answered with %+v", b)
	}
	w.want("completion", w.do(completeOp{Completion{LeaseID: "L", WorkerID: "w", Status: Completed}}), true)
}

func TestParkedRequestsAreLimited(t *testing.T) {
	w := newWorld(t, Config{MaxParked: 2})
	for i := range 4 {
		g, answered := w.do(askOp{Request: Request{WorkerID: strconv.Itoa(i), Wait: MaxWait}, leaseID: strconv.Itoa(i)}).(Grant)
		if answered != (i >= 2) || answered && g.Denied == nil {
			t.Errorf("ask %d was answered with %+v", i, g)
		}
	}
}

func TestPollingGrowsNothing(t *testing.T) {
	w := newWorld(t, Config{})
	w.submit("a", func(s *Spec) { s.Type = "other" })
	for i := range 100 {
		o := askOp{Request: Request{WorkerID: "w", Types: []string{"t"}, RequestID: "r" + strconv.Itoa(i)}, leaseID: strconv.Itoa(i)}
		if out := w.turn(request{uint64(1000 + i), o}); !out.changes.Empty() {
			t.Fatalf("a denied ask stores %+v", out.changes)
		}
	}
	e := w.e
	if n := len(e.workers) + len(e.waiters) + len(e.byProfile) + len(e.asked) + e.ends.len() + len(e.waiting); n != 2 {
		t.Errorf("%d things are remembered of an idle worker", n)
	}
}

func TestWhatIsPastItsLifeIsForgotten(t *testing.T) {
	w := newWorld(t, Config{})
	for i := range 3 {
		id := strconv.Itoa(i)
		w.submit(id, func(s *Spec) { s.IdempotencyKey = id; s.Locks = []string{"l" + id} })
		w.do(askOp{Request: Request{WorkerID: "w" + id, RequestID: "r", Types: []string{"generic"}}, leaseID: "L" + id})
		w.do(completeOp{Completion{LeaseID: "L" + id, WorkerID: "w" + id, Status: Completed}})
	}
	w.pass(25 * time.Hour)
	out := w.turn()
	if len(out.changes.Dropped) != 3 || len(out.changes.Forgot) != 3 {
		t.Errorf("forgotten are %+v", out.changes)
	}
	e := w.e
	if n := len(e.jobs) + len(e.keys) + e.dyingKeys.len() + len(e.answered) + e.answers.len() + len(e.workers) + len(e.byProfile) + len(e.names) +
		len(e.groups) + len(e.leases) + e.deadlines.len() + len(e.limits) + len(e.granted); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

func TestListPagesMergeLivingAndEnded(t *testing.T) {
	job := func(rev int, s State) Job { return Job{ID: strconv.Itoa(rev), Revision: uint64(rev), State: s} }
	living := func(more bool, below int, revs ...int) livingPage {
		p := livingPage{more: more, next: cursor{below: uint64(below)}}
		for _, r := range revs {
			p.page.Jobs = append(p.page.Jobs, View{Job: job(r, Queued)})
		}
		return p
	}
	for _, c := range []struct {
		p     livingPage
		ended []int
		want  string
		next  uint64
	}{
		{living(false, 9, 9), []int{8, 7}, "[9 8 7]", 0},
		{living(false, 5, 9, 5), []int{8, 7}, "[9 8 7]", 7},
		{living(true, 5, 9, 6, 5), []int{3, 2}, "[9 6 5]", 5},
		{living(true, 5, 9), []int{8, 3}, "[9 8]", 5},
		{living(true, 5), nil, "[]", 5},
		{living(false, 0), []int{4, 3, 2, 1}, "[4 3 2]", 2},
	} {
		var ended []Job
		for _, r := range c.ended {
			ended = append(ended, job(r, Failed))
		}
		p := merge(c.p, ended, 3)
		var revs []uint64
		for _, v := range p.Jobs {
			revs = append(revs, v.Job.Revision)
		}
		next := uint64(0)
		if p.Next != "" {
			cur, err := parseCursor(p.Next)
			if err != nil {
				t.Fatal(err)
			}
			next = cur.below
		}
		if got := fmt.Sprint(revs); got != c.want || next != c.next {
			t.Errorf("%+v with %v is %s, then below %d; not %s, %d", c.p, c.ended, got, next, c.want, c.next)
		}
	}
}

func TestRareJobsAreListedWithoutLookingAtAllAtOnce(t *testing.T) {
	w := newWorld(t, Config{})
	for i := range 25 {
		var all []newJob
		for k := range 1000 {
			s := NewSpec()
			if i == 2 && k == 500 {
				s.Tags = []string{"rare"}
			}
			all = append(all, newJob{Spec: s, id: fmt.Sprintf("%d-%d", i, k)})
		}
		w.e.turn(w.now, []request{{1, submitOp{all}}})
	}
	f := Filter{Tag: "rare"}
	found, pages := "", 0
	for more := true; more; pages++ {
		p := merge(w.do(listOp{f}).(livingPage), nil, f.limit())
		for _, v := range p.Jobs {
			found += v.Job.ID
		}
		f.After, more = p.Next, p.Next != ""
	}
	if found != "2-500" || pages != 3 {
		t.Errorf("found %q on %d pages", found, pages)
	}
}
