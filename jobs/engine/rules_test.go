package engine

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

func TestWhatBecomesOfAJobFollowsItsAttempt(t *testing.T) {
	for _, c := range []struct {
		how           jobs.State
		code          string
		cancel        bool
		attempt, most int
		end           jobs.State
		again         bool
	}{
		{jobs.Completed, jobs.CodeCompleted, false, 1, 1, jobs.Completed, false},
		{jobs.Completed, jobs.CodeCompleted, false, 1, 3, jobs.Completed, false},
		{jobs.Completed, jobs.CodeCompleted, true, 1, 3, jobs.Completed, false},
		{jobs.Failed, jobs.CodeFailed, false, 1, 1, jobs.Failed, false},
		{jobs.Failed, jobs.CodeFailed, false, 1, 2, jobs.Queued, true},
		{jobs.Failed, jobs.CodeFailed, false, 2, 2, jobs.Failed, false},
		{jobs.Failed, jobs.CodeFailed, true, 1, 2, jobs.Cancelled, false},
		{jobs.Failed, jobs.CodeRuntime, false, 1, 1, jobs.Failed, false},
		{jobs.Failed, jobs.CodeRuntime, false, 1, 2, jobs.Queued, true},
		{jobs.Failed, jobs.CodeRuntime, true, 1, 2, jobs.Cancelled, false},
		{jobs.Failed, jobs.CodeRevoked, false, 1, 2, jobs.Failed, false},
		{jobs.Failed, jobs.CodeRevoked, true, 1, 2, jobs.Failed, false},
		{jobs.Expired, jobs.CodeExpired, false, 1, 1, jobs.Expired, false},
		{jobs.Expired, jobs.CodeExpired, false, 2, 3, jobs.Queued, true},
		{jobs.Expired, jobs.CodeExpired, true, 1, 1, jobs.Cancelled, false},
	} {
		j := &jobs.Job{Spec: jobs.Spec{MaxAttempts: c.most}, Attempt: c.attempt, Cancel: c.cancel}
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
		{time.Second, 13, time.Hour}, {time.Second, 1000, time.Hour}, {0, 1000, 0}, {2 * time.Hour, 1, time.Hour}, {jobs.MaxDuration, 1000, time.Hour},
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
		{Never, 0.7, 1500 * time.Millisecond}, {-time.Hour, 0, 250 * time.Millisecond}, {0, 1, 250 * time.Millisecond},
		{200 * time.Millisecond, 1, 250 * time.Millisecond}, {time.Second, 0, time.Second}, {time.Second, 0.5, 1100 * time.Millisecond},
		{time.Second, 1, 1200 * time.Millisecond}, {4500 * time.Millisecond, 1, 5 * time.Second}, {time.Hour, 0, 5 * time.Second}, {Never - 1, 1, 5 * time.Second},
		{1234567 * time.Microsecond, 0, 1234 * time.Millisecond},
	} {
		if got := retryAfter(c.remaining, c.jitter); got != c.want {
			t.Errorf("%v before, with jitter %v, it is %v, not %v", c.remaining, c.jitter, got, c.want)
		}
	}
}

func TestClassesAreAStepApart(t *testing.T) {
	for i, p := range jobs.Priorities() {
		if got := place(1_000_000, p, 10*time.Minute); got != 1_000_000+int64(i)*600_000 {
			t.Errorf("%s is placed at %d", p, got)
		}
	}
	a, b := &jobs.Job{Ord: 1, Seq: 2}, &jobs.Job{Ord: 1, Seq: 3}
	if !a.Before(b) || b.Before(a) || a.Before(a) || (&jobs.Job{Ord: 2, Seq: 1}).Before(b) {
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
	print := func(payload string) string {
		s := jobs.NewSpec()
		s.Payload = jsontext.Value(payload)
		return s.Fingerprint()
	}
	for _, same := range [][]string{
		{`{}`, ` { } `},
		{`{"a":1,"b":2}`, `{"b":2.0,"a":10e-1}`},
		{`{"a":"\u00e9\n"}`, `{"a":"é\u000a"}`},
	} {
		for _, p := range same[1:] {
			if print(p) != print(same[0]) {
				t.Errorf("%s is not %s", p, same[0])
			}
		}
	}
	differ := []string{
		`{}`, `{"a":1}`, `{"a":"1"}`, `{"a":true}`, `{"a":null}`, `{"a":[1]}`, `{"a":[1,2]}`, `{"a":[[1],2]}`, `{"a":{"b":1}}`, `{"b":1}`, `{"a":-1}`, `{"a":11}`,
		`{"a":1e300}`, `{"a":1e301}`, `{"a":5,"a":1}`, `{"a":12345678901234567890}`, `{"a":12345678901234567891}`, `{"a":""}`, `{"a":[]}`, `{"a":{}}`,
	}
	seen := map[string]string{}
	for _, p := range differ {
		if other, ok := seen[print(p)]; ok {
			t.Errorf("%s is %s", p, other)
		}
		seen[print(p)] = p
	}
	base := jobs.NewSpec()
	for i, edit := range []func(*jobs.Spec){
		func(s *jobs.Spec) { s.Type = "x" }, func(s *jobs.Spec) { s.Priority = jobs.High }, func(s *jobs.Spec) { s.Units = 2 }, func(s *jobs.Spec) { s.Unique = true },
		func(s *jobs.Spec) { s.Tags = []string{"a"} }, func(s *jobs.Spec) { s.Tags = []string{"a", ""} }, func(s *jobs.Spec) { s.MaxRuntime = 1 }, func(s *jobs.Spec) { s.MaxAttempts = 2 },
		func(s *jobs.Spec) { s.RetryBackoff = 2 }, func(s *jobs.Spec) { s.RunAt = time.Unix(0, 0) }, func(s *jobs.Spec) { s.RunAt = time.Unix(1, 0) }, func(s *jobs.Spec) { s.Locks = []string{"a"} },
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
	var h jobs.Histogram
	if h.Quantile(0.95) != 0 {
		t.Error("of nothing there is a quantile")
	}
	h.Observe(1234 * time.Millisecond)
	if h.Quantile(0.95) != 1234*time.Millisecond {
		t.Errorf("of one duration it is %v", h.Quantile(0.95))
	}
	var all []time.Duration
	var parts [3]jobs.Histogram
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range 10_000 {
		d := time.Duration(math.Exp(rng.Float64()*15) * float64(time.Millisecond))
		all = append(all, d)
		parts[i%3].Observe(d)
	}
	slices.Sort(all)
	var sum jobs.Histogram
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
		nil: "", jobs.ErrJobNotFound: "job_not_found", fmt.Errorf("x: %w", jobs.ErrLeaseNotFound): "lease_not_found", jobs.ErrWorkerMismatch: "worker_mismatch",
		jobs.ErrConflict: "idempotency_conflict", &jobs.InvalidError{}: "invalid", lokt.ErrUnavailable: "unavailable", errors.New("x"): "internal",
	} {
		if got := jobs.Code(err); got != want {
			t.Errorf("%v has the code %q, not %q", err, got, want)
		}
	}
	wrong := &jobs.InvalidError{Problems: []jobs.Problem{{Type: "enum", Loc: []any{"jobs", 3, "priority"}, Msg: "is wrong"}, {Loc: []any{"x"}, Msg: "too"}}}
	if got := wrong.Error(); got != "invalid request: jobs.3.priority: is wrong; x: too" {
		t.Error(got)
	}
}

func TestConfigsAreChecked(t *testing.T) {
	if err := (jobs.Config{}).Validate(); err != nil {
		t.Errorf("the zero config: %v", err)
	}
	d := jobs.Config{}.WithDefaults()
	if d.Total != 100 || d.TTL != time.Minute || d.Grace != 0 || d.Interval(1) != 15*time.Second || d.AgeingStep != 10*time.Minute || d.ReserveAfter != 2*time.Minute || d.ReserveLimit != 10*time.Minute {
		t.Errorf("the defaults are %+v", d)
	}
	if d.TTL = 30 * time.Second; d.Interval(1) != 10*time.Second {
		t.Errorf("for 30 s the interval is %v", d.Interval(1))
	}
	// Promise S-234.
	for leases, want := range map[int]time.Duration{0: 10 * time.Second, 200_000: 10 * time.Second, 280_000: 14 * time.Second, 1_000_000: 15 * time.Second} {
		if got := d.Interval(leases); got != want {
			t.Errorf("with %d leases of 30 s the interval is %v", leases, got)
		}
	}
	most := jobs.MaxTotal
	for _, c := range []jobs.Config{
		{Total: -1}, {Total: most + 1}, {Reserve: -1}, {Reserve: 100}, {Total: 3, Reserve: 3}, {TTL: -1}, {TTL: time.Microsecond}, {Grace: -1}, {AgeingStep: -1},
		{ReserveLimit: -1}, {MaxParked: -1},
	} {
		if err := c.Validate(); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// world plays turns for tests of single rules.
type world struct {
	*testing.T
	e   *Engine
	now Instant
	n   uint64
}

func newWorld(t *testing.T, c jobs.Config) *world {
	return &world{T: t, e: newEngine(c), now: Instant{Wall: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}}
}

// do plays one request in a turn of its own, and returns its answer; nil if there is none yet.
func (w *world) do(o Op) any {
	w.Helper()
	w.n++
	out := w.turn(Call{w.n, o})
	for _, r := range out.Replies {
		if r.ID == w.n {
			if r.Err != nil {
				return r.Err
			}
			return r.Result
		}
	}
	return nil
}

func (w *world) turn(all ...Call) Outcome {
	w.Helper()
	out := w.e.Turn(w.now, all, nil)
	if err := w.e.check(); err != nil {
		w.Fatal(err)
	}
	return out
}

func (w *world) pass(d time.Duration) {
	w.now.Mono += d
	w.now.Wall = w.now.Wall.Add(d)
}

// submit queues a job of that ID.
func (w *world) submit(id string, edits ...func(*jobs.Spec)) {
	w.Helper()
	s := jobs.NewSpec()
	for _, edit := range edits {
		edit(&s)
	}
	w.do(Submit{Jobs: []NewJob{{Spec: s, ID: id}}})
}

// ask asks for a lease of that ID, and returns the job, or why there is none.
func (w *world) ask(worker, leaseID string) string {
	w.Helper()
	g, ok := w.do(Request{Request: jobs.Request{WorkerID: worker}, LeaseID: leaseID}).(jobs.Grant)
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
		w := newWorld(t, jobs.Config{})
		w.submit("a")
		w.want("ask", w.ask("w", "L"), "a")
		shown := w.e.leases["L"].Lease.ExpiresAt
		w.now.Wall = w.now.Wall.Add(step)
		w.pass(time.Minute - 1)
		w.want("leases before the deadline", w.do(Status{}).(jobs.Snapshot).ActiveLeases, 1)
		b := w.do(Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"L"}}).([]jobs.LeaseAnswer)[0]
		if b.ExpiresAt.Before(shown) {
			t.Errorf("with the clock set by %v, expiry moved from %v to %v", step, shown, b.ExpiresAt)
		}
		w.now.Wall = w.now.Wall.Add(-step)
		w.pass(time.Minute - 1)
		w.want("leases before the second deadline", w.do(Status{}).(jobs.Snapshot).ActiveLeases, 1)
		w.pass(1)
		w.want("leases at the second deadline", w.do(Status{}).(jobs.Snapshot).ActiveLeases, 0)
	}
}

func TestArrivalsKeepTheirOrderWhenTheWallClockIsSetBack(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.submit("a")
	w.now.Wall = w.now.Wall.Add(-time.Hour)
	w.submit("b")
	w.submit("high", func(s *jobs.Spec) { s.Priority = jobs.High })
	for i, want := range []string{"high", "a", "b"} {
		w.want("ask", w.ask("w", strconv.Itoa(i)), want)
	}
}

func TestAnEndedLeaseGivesItsUnitsBackOnce(t *testing.T) {
	w := newWorld(t, jobs.Config{Total: 5})
	w.submit("a", func(s *jobs.Spec) { s.Units = 3; s.MaxAttempts = 3; s.RetryBackoff = 0 })
	w.want("ask", w.ask("w", "L"), "a")
	w.want("first end", w.do(Complete{jobs.Completion{LeaseID: "L", WorkerID: "w", Status: jobs.Failed}}), true)
	for range 3 {
		w.want("another end", w.do(Complete{jobs.Completion{LeaseID: "L", WorkerID: "w", Status: jobs.Failed}}), false)
		w.want("revocation", w.do(Revoke{"L", ""}), jobs.ErrLeaseNotFound)
		w.pass(time.Hour)
	}
	w.want("free", w.do(Status{}).(jobs.Snapshot).Available, 5)
}

func TestDrainAnswersAllThatWaitAndGrantsNothing(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.submit("a")
	w.want("ask", w.ask("w", "L"), "a")
	w.turn(Call{100, Request{Request: jobs.Request{WorkerID: "v", Wait: jobs.MaxWait}, LeaseID: "M"}}, Call{101, Heartbeat{jobs.Heartbeat{WorkerID: "w", Wait: jobs.MaxWait}, []string{"L"}}})
	out := w.turn(Call{102, Drain{}})
	got := map[uint64]any{}
	for _, r := range out.Replies {
		got[r.ID] = r.Result
	}
	if g, ok := got[100].(jobs.Grant); !ok || g.Denied == nil {
		t.Errorf("the request was answered with %+v", got[100])
	}
	if b, ok := got[101].([]jobs.LeaseAnswer); !ok || !b[0].Drain {
		t.Errorf("the heartbeat was answered with %+v", got[101])
	}
	w.submit("b")
	if g, ok := w.do(Request{Request: jobs.Request{WorkerID: "v", Wait: jobs.MaxWait}, LeaseID: "N"}).(jobs.Grant); !ok || g.Denied == nil {
		t.Errorf("a request was answered with %+v", g)
	}
	if b, ok := w.do(Heartbeat{jobs.Heartbeat{WorkerID: "w", Wait: jobs.MaxWait}, []string{"L"}}).([]jobs.LeaseAnswer); !ok || !b[0].Drain {
		t.Errorf("a heartbeat was answered with %+v", b)
	}
	w.want("completion", w.do(Complete{jobs.Completion{LeaseID: "L", WorkerID: "w", Status: jobs.Completed}}), true)
}

func TestParkedRequestsAreLimited(t *testing.T) {
	w := newWorld(t, jobs.Config{MaxParked: 2})
	for i := range 4 {
		g, answered := w.do(Request{Request: jobs.Request{WorkerID: strconv.Itoa(i), Wait: jobs.MaxWait}, LeaseID: strconv.Itoa(i)}).(jobs.Grant)
		if answered != (i >= 2) || answered && g.Denied == nil {
			t.Errorf("ask %d was answered with %+v", i, g)
		}
	}
}

func TestPollingGrowsNothing(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.submit("a", func(s *jobs.Spec) { s.Type = "other" })
	for i := range 100 {
		o := Request{Request: jobs.Request{WorkerID: "w", Types: []string{"t"}, RequestID: "r" + strconv.Itoa(i)}, LeaseID: strconv.Itoa(i)}
		if out := w.turn(Call{uint64(1000 + i), o}); !out.Changes.Empty() {
			t.Fatalf("a denied ask stores %+v", out.Changes)
		}
	}
	e := w.e
	if n := len(e.workers) + len(e.waiters) + len(e.asked) + e.ends.Len() + len(e.waiting); n != 1 {
		t.Errorf("%d things are remembered of an idle worker", n)
	}
}

func TestWhatIsPastItsLifeIsForgotten(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	for i := range 3 {
		id := strconv.Itoa(i)
		w.submit(id, func(s *jobs.Spec) { s.IdempotencyKey = id; s.Locks = []string{"l" + id} })
		w.do(Request{Request: jobs.Request{WorkerID: "w" + id, RequestID: "r", Types: []string{"generic"}}, LeaseID: "L" + id})
		w.do(Complete{jobs.Completion{LeaseID: "L" + id, WorkerID: "w" + id, Status: jobs.Completed}})
	}
	w.pass(25 * time.Hour)
	w.turn()
	e := w.e
	if n := len(e.jobs) + len(e.keys) + len(e.memos) + e.fading.Len() + len(e.workers) + len(e.names) +
		len(e.groups) + len(e.leases) + e.deadlines.Len() + len(e.limits) + len(e.granted); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

func TestWorkersThatAskOnceAreForgotten(t *testing.T) {
	w := newWorld(t, jobs.Config{Total: 10})
	w.submit("a")
	w.want("ask", w.ask("busy", "L"), "a")
	w.turn(Call{1 << 40, Request{Request: jobs.Request{WorkerID: "parked", Wait: jobs.MaxWait}, LeaseID: "P"}})
	for i := range 3 * maxWorkers {
		w.e.Turn(w.now, []Call{{uint64(i), Request{Request: jobs.Request{WorkerID: strconv.Itoa(i)}, LeaseID: "M"}}}, nil)
	}
	w.turn()
	if n := len(w.e.workers); n > maxWorkers || n < maxWorkers-1 || w.e.workers["busy"] == nil || w.e.workers["parked"] == nil {
		t.Errorf("%d workers are known", n)
	}
	for range maxWorkers/sweepPerTurn + 1 {
		w.pass(workerLife)
		w.do(Heartbeat{jobs.Heartbeat{WorkerID: "busy"}, []string{"L"}})
	}
	if n := len(w.e.workers); n > 1 {
		t.Errorf("%d workers are known when all but one have gone", n)
	}
}

func TestListPagesMergeLivingAndEnded(t *testing.T) {
	job := func(rev int, s jobs.State) jobs.Job {
		return jobs.Job{ID: strconv.Itoa(rev), Revision: uint64(rev), State: s}
	}
	living := func(from uint64, revs ...int) LivingPage {
		p := LivingPage{From: from}
		for _, r := range revs {
			p.page.Jobs = append(p.page.Jobs, jobs.View{Job: job(r, jobs.Queued)})
		}
		return p
	}
	for _, c := range []struct {
		p     LivingPage
		ended []int
		want  string
		next  uint64
	}{
		{living(0, 9), []int{8, 7}, "[9 8 7]", 0},
		{living(0, 9, 5), []int{8, 7}, "[9 8 7]", 7},
		{living(5, 9, 6, 5), nil, "[9 6 5]", 5},
		{living(5, 9), []int{8}, "[9 8]", 5},
		{living(5), nil, "[]", 5},
		{living(0), []int{4, 3, 2, 1}, "[4 3 2]", 2},
	} {
		var ended []jobs.Record
		for _, r := range c.ended {
			ended = append(ended, jobs.Record{Job: job(r, jobs.Failed)})
		}
		p := Merge(c.p, ended, 3)
		var revs []uint64
		for _, v := range p.Jobs {
			revs = append(revs, v.Job.Revision)
		}
		next := uint64(0)
		if p.Next != "" {
			var err error
			if next, err = jobs.ParseCursor(p.Next); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprint(revs); got != c.want || next != c.next {
			t.Errorf("%+v with %v is %s, then below %d; not %s, %d", c.p, c.ended, got, next, c.want, c.next)
		}
	}
}

func TestAWalkOverThePagesLooksOnceAtEachJobThatStays(t *testing.T) {
	const n = 3 * listBudget
	for _, c := range []struct {
		f           jobs.Filter
		pages, most int
	}{{jobs.Filter{Limit: 1000}, n / 1000, n}, {jobs.Filter{Type: "rare"}, n / listBudget, 1}} {
		w := newWorld(t, jobs.Config{})
		all := make([]NewJob, n)
		for i := range all {
			all[i] = NewJob{Spec: jobs.NewSpec(), ID: strconv.Itoa(i)}
			all[i].Spec.Priority = jobs.Priorities()[i%4]
		}
		all[n/2].Spec.Type = "rare"
		w.e.Turn(w.now, []Call{{1, Submit{Jobs: all}}}, nil)
		newest, looked, pages, gone, listed := w.e.Revision, 0, 0, 0, map[string]bool{}
		for more := true; more; pages++ {
			p := w.e.Turn(w.now, []Call{{1, List{c.f}}}, nil).Replies[0].Result.(LivingPage)
			for _, v := range p.page.Jobs {
				if listed[v.Job.ID] {
					t.Errorf("job %s is listed twice", v.Job.ID)
				}
				listed[v.Job.ID] = true
			}
			for i := range w.e.shelves {
				s := &w.e.shelves[i]
				for at := s.Iter(); at.Next(); {
					if p.From <= at.Key() && at.Key() <= newest && at.Value() != nil {
						s.Set(at.Key(), nil) // who looks at it again panics
						looked++
					}
				}
			}
			if c.f.After, more = Merge(p, nil, c.f.Most()).Next, p.From > 0; more {
				w.e.Turn(w.now, []Call{
					{1, Submit{Jobs: []NewJob{{Spec: all[n/2].Spec, ID: fmt.Sprint("new", pages)}}}},
					{2, Cancel{JobID: strconv.Itoa(n - 1 - pages)}}, // it has been listed
					{3, Cancel{JobID: strconv.Itoa(pages)}},         // it has not
				}, nil)
				gone++
			}
		}
		if looked != n-gone || len(listed) != min(c.most, n-gone) || pages != c.pages {
			t.Errorf("%+v: %d jobs were looked at, and %d are listed, on %d pages", c.f, looked, len(listed), pages)
		}
	}
}

// Promise S-238. From the answer on, the attempt counts, whoever is killed: others may have it if it does not.
func TestThatAJobThatWaitedAtItsWorkerHasBegunIsStoredBeforeTheAnswer(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.submit("j")
	w.do(Request{LeaseID: "L", Request: jobs.Request{WorkerID: "w", Ahead: true}})
	begun := Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"L"}}
	if _, ok := w.e.Quick(w.now, &begun); ok {
		t.Error("it begins outside of a turn")
	}
	out := w.turn(Call{1, begun})
	if r := out.Changes.Jobs; len(r) != 1 || r[0].State != jobs.Running || r[0].Lease.Ahead {
		t.Errorf("what is stored is %+v", r)
	}
	if _, ok := w.e.Quick(w.now, &begun); !ok {
		t.Error("a later heartbeat takes a turn")
	}
}

// Promise S-101. A client may think of as many tags and types as it likes.
func TestStatisticsAreBounded(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	const many = mostStatistics + 200
	for i := range many {
		w.submit(fmt.Sprint("j", i), func(s *jobs.Spec) { s.Type, s.Tags = fmt.Sprint("type", i), []string{fmt.Sprint("tag", i)} })
	}
	types, tags := int64(0), int64(0)
	all := w.e.history(false)
	for _, s := range all {
		if s.Tag != "" {
			tags += s.Events[jobs.EventSubmit]
		} else {
			types += s.Events[jobs.EventSubmit]
		}
	}
	if len(all) > mostStatistics+2 || types != many || tags != many {
		t.Errorf("%d statistics have %d submissions by type, and %d by tag", len(all), types, tags)
	}
}
