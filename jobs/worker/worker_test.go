package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/jobs/worker"
	"github.com/lokt-dev/lokt/store/memstore"
)

// faulty is a service that can be out of reach, or that answers but is not heard.
type faulty struct {
	jobs.Service

	mu    sync.Mutex
	away  bool // nothing gets through
	deaf  bool // requests get through, their answers do not
	calls map[string]int
	times []time.Time // of heartbeats
}

func (f *faulty) set(away, deaf bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away, f.deaf = away, deaf
}

func (f *faulty) swap(s jobs.Service) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Service = s
}

// count returns how often something was called.
func (f *faulty) count(name string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[name]
}

var errLine = fmt.Errorf("%w: the line is cut", lokt.ErrUnavailable)

// through passes a call on, if it gets through.
func through[T any](f *faulty, name string, call func(jobs.Service) (T, error)) (T, error) {
	f.mu.Lock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[name]++
	s, away := f.Service, f.away
	f.mu.Unlock()
	var none T
	if away {
		return none, errLine
	}
	v, err := call(s)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaf || f.away {
		return none, errLine
	}
	return v, err
}

func (f *faulty) Request(ctx context.Context, a jobs.Request) (jobs.Grant, error) {
	return through(f, "ask", func(s jobs.Service) (jobs.Grant, error) { return s.Request(ctx, a) })
}

func (f *faulty) Heartbeat(ctx context.Context, b jobs.Heartbeat) (jobs.HeartbeatAnswer, error) {
	name := "beat"
	if b.Wait > 0 {
		name = "listen"
	}
	f.mu.Lock()
	f.times = append(f.times, time.Now())
	f.mu.Unlock()
	return through(f, name, func(s jobs.Service) (jobs.HeartbeatAnswer, error) { return s.Heartbeat(ctx, b) })
}

func (f *faulty) Complete(ctx context.Context, c jobs.Completion) (bool, error) {
	return through(f, "complete", func(s jobs.Service) (bool, error) { return s.Complete(ctx, c) })
}

func (f *faulty) Report(ctx context.Context, p jobs.Progress) error {
	_, err := through(f, "report", func(s jobs.Service) (struct{}, error) { return struct{}{}, s.Report(ctx, p) })
	return err
}

// shop is a service, a worker at it, and what the worker said.
type shop struct {
	t     *testing.T
	m     *manager.Manager
	f     *faulty
	w     *worker.Worker
	drain context.CancelFunc
	done  chan error

	mu      sync.Mutex
	notices []worker.Notice
}

func (s *shop) said(what worker.NoticeType) (all []worker.Notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.notices {
		if n.Type == what {
			all = append(all, n)
		}
	}
	return all
}

// bubble runs a test in a bubble with a worker.
func bubble(t *testing.T, c jobs.Config, o worker.WorkerOptions, h worker.Handler, test func(t *testing.T, s *shop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shop{t: t, m: openWith(t, manager.Options{Config: c}), done: make(chan error, 1)}
		s.f = &faulty{Service: s.m}
		o.Notify = func(n worker.Notice) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.notices = append(s.notices, n)
		}
		var err error
		if s.w, err = worker.NewWorker(s.f, h, o); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.drain = cancel
		go func() { s.done <- s.w.Run(ctx) }()
		synctest.Wait()
		test(t, s)
		cancel()
		s.w.Stop()
		if err := <-s.done; err != nil {
			t.Errorf("the worker ended with %v", err)
		}
		synctest.Wait()
	})
}

// end drains the worker and returns how long that took.
func (s *shop) end() time.Duration {
	s.t.Helper()
	begin := time.Now()
	s.drain()
	if err := <-s.done; err != nil {
		s.t.Errorf("the worker ended with %v", err)
	}
	s.done <- nil
	return time.Since(begin)
}

func (s *shop) view(id string) jobs.View {
	s.t.Helper()
	v, err := s.m.Get(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

// is checks a job's state.
func (s *shop) is(id string, want jobs.State) jobs.View {
	s.t.Helper()
	synctest.Wait()
	v := s.view(id)
	if v.Job.State != want {
		s.t.Errorf("the job is %s (%s), not %s", v.Job.State, v.Job.Code, want)
	}
	return v
}

// Promise S-85.
func TestAWorkerDoesJobsAndTellsTheirResults(t *testing.T) {
	h := func(_ context.Context, r *worker.Run) (any, error) {
		var p struct{ N int }
		if err := r.Payload(&p); err != nil {
			return nil, err
		}
		switch p.N {
		case 0:
			return nil, errors.New("nothing to do")
		case 1:
			panic("one is too much")
		case 2:
			return func() {}, nil
		}
		time.Sleep(time.Duration(p.N) * time.Second)
		return map[string]int{"square": p.N * p.N}, nil
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{ID: "w"}, h, func(t *testing.T, s *shop) {
		for n, want := range map[int]struct {
			state  jobs.State
			output string
		}{
			0: {jobs.Failed, `"nothing to do"`}, 1: {jobs.Failed, "one is too much"}, 2: {jobs.Failed, "no JSON"}, 3: {jobs.Completed, `{"square":9}`},
			100: {jobs.Completed, `{"square":10000}`},
		} {
			id := submit(t, s.m, func(spec *jobs.Spec) { spec.Payload = fmt.Appendf(nil, `{"N":%d}`, n) })
			time.Sleep(time.Duration(n)*time.Second + time.Millisecond)
			v := s.is(id, want.state)
			if got := string(v.Job.Output.Result) + string(v.Job.Output.Error); !strings.Contains(got, want.output) {
				t.Errorf("%d: output is %s, not %s", n, got, want.output)
			}
		}
		if got := len(s.said(worker.NoticeEnded)); got != 5 {
			t.Errorf("%d ends were told", got)
		}
	})
}

// Promise S-85.
func TestAWorkerTakesOnlyWhatItHasRoomFor(t *testing.T) {
	var mu sync.Mutex
	running, most, units, mostUnits := 0, 0, 0, 0
	h := func(_ context.Context, r *worker.Run) (any, error) {
		mu.Lock()
		running, units = running+1, units+r.Job.Units
		most, mostUnits = max(most, running), max(mostUnits, units)
		mu.Unlock()
		time.Sleep(time.Second)
		mu.Lock()
		running, units = running-1, units-r.Job.Units
		mu.Unlock()
		return nil, nil
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{Concurrency: 3, Units: 5, Types: []string{"a"}, Capabilities: []string{"x"}}, h, func(t *testing.T, s *shop) {
		var ids []string
		for i := range 20 {
			ids = append(ids, submit(t, s.m, func(spec *jobs.Spec) { spec.Type, spec.Units, spec.Tags = "a", 1+i%5, []string{"needs:x"} }))
		}
		large := submit(t, s.m, func(spec *jobs.Spec) { spec.Type, spec.Units = "a", 6 })
		other := submit(t, s.m, func(spec *jobs.Spec) { spec.Type = "b" })
		needy := submit(t, s.m, func(spec *jobs.Spec) { spec.Type, spec.Tags = "a", []string{"needs:y"} })
		time.Sleep(20 * time.Second)
		for _, id := range ids {
			s.is(id, jobs.Completed)
		}
		for _, id := range []string{large, other, needy} {
			s.is(id, jobs.Queued)
		}
		mu.Lock()
		defer mu.Unlock()
		if most != 3 || mostUnits != 5 {
			t.Errorf("at most %d jobs of %d units ran at the same time", most, mostUnits)
		}
	})
}

// wait blocks until the context ends and returns its cause.
func wait(ctx context.Context, _ *worker.Run) (any, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// Promise S-86.
func TestHeartbeatsComeAtTheProposedIntervalAndAreSpread(t *testing.T) {
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, wait, func(t *testing.T, s *shop) {
		id := submit(t, s.m)
		time.Sleep(time.Hour)
		s.is(id, jobs.Running)
		s.f.mu.Lock()
		times := slices.Clone(s.f.times)
		s.f.mu.Unlock()
		seen := map[time.Duration]bool{}
		for i := 1; i < len(times); i++ {
			d := times[i].Sub(times[i-1])
			if d < 6*time.Second || d > 9*time.Second { // half of what is proposed, because their answers wait
				t.Errorf("%v between two heartbeats", d)
			}
			seen[d] = true
		}
		if len(times) < 200 || len(seen) < 50 {
			t.Errorf("%d heartbeats, %d different intervals", len(times), len(seen))
		}
	})
}

// Promise S-86. A quarter of the lease is the time that a command has to end by itself.
func TestALeaseThatIsKeptNeverLooksAsIfItWasAboutToEnd(t *testing.T) {
	const ttl = 4 * time.Second
	least := ttl
	h := func(ctx context.Context, r *worker.Run) (any, error) {
		for range 1000 {
			time.Sleep(ttl / 40)
			least = min(least, r.Remaining())
		}
		return nil, nil
	}
	bubble(t, jobs.Config{TTL: ttl}, worker.WorkerOptions{}, h, func(t *testing.T, s *shop) {
		id := submit(t, s.m)
		time.Sleep(2 * time.Minute)
		s.is(id, jobs.Completed)
		if least < ttl*2/5 {
			t.Errorf("only %v of %v were left", least, ttl)
		}
	})
}

// Promise S-86.
func TestTheContextEndsBeforeTheLeaseCan(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
		var ended time.Time
		var cause, atOnce error
		h := func(ctx context.Context, r *worker.Run) (any, error) {
			<-ctx.Done()
			ended, cause, atOnce = time.Now(), context.Cause(ctx), r.Err()
			return nil, cause
		}
		bubble(t, jobs.Config{TTL: ttl}, worker.WorkerOptions{}, h, func(t *testing.T, s *shop) {
			time.Sleep(19 * time.Second) // the request waits, for longer than a short lease lasts
			id := submit(t, s.m)
			time.Sleep(3*ttl + time.Second)
			s.is(id, jobs.Running)
			s.f.set(true, false)
			expires := s.view(id).Lease.ExpiresAt
			time.Sleep(2 * ttl)
			synctest.Wait()
			if ended.IsZero() || !ended.Before(expires) || expires.Sub(ended) > ttl {
				t.Errorf("TTL %v: the context ended %v before the lease", ttl, expires.Sub(ended))
			}
			if !errors.Is(cause, lokt.ErrLost) || !errors.Is(atOnce, lokt.ErrLost) || !errors.Is(cause, lokt.ErrUnavailable) {
				t.Errorf("the cause is %v, and %v", cause, atOnce)
			}
			s.is(id, jobs.Expired)
			if len(s.said(worker.NoticeDoubt)) == 0 || len(s.said(worker.NoticeStop)) != 1 {
				t.Errorf("doubt was told %d times, the stop %d times", len(s.said(worker.NoticeDoubt)), len(s.said(worker.NoticeStop)))
			}
			s.f.set(false, false)
			time.Sleep(time.Minute)
			if len(s.said(worker.NoticeUntold)) != 1 {
				t.Error("it was not told that the end came too late")
			}
		})
	}
}

// Promise S-86.
func TestAnAnswerThatCameTooLateStartsNothing(t *testing.T) {
	ran := false
	h := func(context.Context, *worker.Run) (any, error) { ran = true; return nil, nil }
	bubble(t, jobs.Config{}, worker.WorkerOptions{ID: "w", Wait: -1}, h, func(t *testing.T, s *shop) {
		s.end()
		submit(t, s.m)
		slow := slowGrants{s.m}
		w, err := worker.NewWorker(slow, h, worker.WorkerOptions{ID: "late", Wait: -1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := w.Run(ctx); err != nil || ran {
			t.Errorf("it ended with %v, and ran: %v", err, ran)
		}
	})
}

// slowGrants is a service whose grants take longer to arrive than leases last.
type slowGrants struct{ jobs.Leaser }

func (s slowGrants) Request(ctx context.Context, a jobs.Request) (jobs.Grant, error) {
	g, err := s.Leaser.Request(ctx, a)
	time.Sleep(90 * time.Second)
	return g, err
}

// Promise S-87.
func TestAWorkerLearnsAtOnceThatItsJobIsToBeStopped(t *testing.T) {
	var cause error
	h := func(ctx context.Context, _ *worker.Run) (any, error) {
		<-ctx.Done()
		cause = context.Cause(ctx)
		return nil, cause
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, h, func(t *testing.T, s *shop) {
		id := submit(t, s.m)
		time.Sleep(100 * time.Second)
		if _, err := s.m.Cancel(t.Context(), id, "not needed"); err != nil {
			t.Fatal(err)
		}
		s.is(id, jobs.Cancelled)
		if !errors.Is(cause, worker.ErrCancelled) {
			t.Errorf("the cause is %v", cause)
		}

		id = submit(t, s.m)
		time.Sleep(100 * time.Second)
		v := s.is(id, jobs.Running)
		if err := s.m.Revoke(t.Context(), v.Lease.ID, "make room"); err != nil {
			t.Fatal(err)
		}
		s.is(id, jobs.Failed)
		if !errors.Is(cause, lokt.ErrLost) || !errors.Is(cause, jobs.ErrRevoked) {
			t.Errorf("the cause is %v", cause)
		}
		if n := s.said(worker.NoticeUntold); len(n) != 1 || !errors.Is(n[0].Err, jobs.ErrRevoked) {
			t.Errorf("told was %v", n)
		}

		id = submit(t, s.m, func(spec *jobs.Spec) { spec.MaxRuntime = 10 * time.Second })
		time.Sleep(10*time.Second - time.Millisecond)
		s.is(id, jobs.Running)
		if !errors.Is(cause, worker.ErrRuntime) {
			t.Errorf("the cause is %v", cause)
		}
		time.Sleep(time.Millisecond)
		if v := s.is(id, jobs.Failed); v.Job.Code != jobs.CodeRuntime {
			t.Errorf("its code is %s", v.Job.Code)
		}
	})
}

// Promise S-87.
func TestWithoutWaitingACancellationComesWithAHeartbeat(t *testing.T) {
	bubble(t, jobs.Config{}, worker.WorkerOptions{Wait: -1}, wait, func(t *testing.T, s *shop) {
		id := submit(t, s.m)
		time.Sleep(100 * time.Second)
		if _, err := s.m.Cancel(t.Context(), id, ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(18 * time.Second)
		s.is(id, jobs.Cancelled)
		if n := s.f.count("listen"); n != 0 {
			t.Errorf("%d heartbeats waited", n)
		}
	})
}

// Promise S-88.
func TestAWorkerRidesOutARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.NewJobs()
		open := func() *manager.Manager {
			m, err := manager.Open(t.Context(), store, manager.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		m := open()
		f := &faulty{Service: m}
		h := func(_ context.Context, r *worker.Run) (any, error) {
			time.Sleep(2 * time.Minute)
			return r.Job.Attempt, r.Err()
		}
		w, err := worker.NewWorker(f, h, worker.WorkerOptions{Concurrency: 2})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		first := submit(t, m)
		for _, pause := range []time.Duration{100 * time.Second, 40 * time.Second} { // while it runs, and when it ends
			time.Sleep(pause)
			f.set(true, false)
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(40 * time.Second)
			m = open()
			f.swap(m)
			f.set(false, false)
		}
		second := submit(t, m)
		time.Sleep(3 * time.Minute)
		for _, id := range []string{first, second} {
			if v, err := m.Get(t.Context(), id); err != nil || v.Job.State != jobs.Completed || string(v.Job.Output.Result) != "1" {
				t.Errorf("the job is %+v, %v", v.Job, err)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// workASecond runs a worker for a second.
func workASecond(t *testing.T, l jobs.Leaser, h worker.Handler, o worker.WorkerOptions) {
	t.Helper()
	w, err := worker.NewWorker(l, h, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// Promise S-88.
func TestTheLeaseIsKeptUntilTheEndIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openWith(t, manager.Options{})
		id := submit(t, m)
		l := &shaky{Leaser: m, until: time.Now().Add(10 * time.Minute)}
		workASecond(t, l, func(context.Context, *worker.Run) (any, error) { return "done", nil }, worker.WorkerOptions{})
		if v, err := m.Get(t.Context(), id); err != nil || v.Job.State != jobs.Completed || len(v.Attempts) != 1 {
			t.Errorf("the job is %+v, %v", v.Job, err)
		}
	})
}

// shaky is a service that takes no ends for a time.
type shaky struct {
	jobs.Leaser
	until time.Time
}

func (s *shaky) Complete(ctx context.Context, c jobs.Completion) (bool, error) {
	if time.Now().Before(s.until) {
		return false, errLine
	}
	return s.Leaser.Complete(ctx, c)
}

// Promise S-88. The second attempt would be another's.
func TestAnAskWhoseAnswerWasLostIsGrantedTheSameLease(t *testing.T) {
	bubble(t, jobs.Config{}, worker.WorkerOptions{Wait: -1}, func(_ context.Context, r *worker.Run) (any, error) { return r.Job.Attempt, nil }, func(t *testing.T, s *shop) {
		s.f.set(false, true)
		id := submit(t, s.m)
		time.Sleep(5 * time.Second)
		s.is(id, jobs.Leased)
		s.f.set(false, false)
		time.Sleep(11 * time.Second)
		if v := s.is(id, jobs.Completed); len(v.Attempts) != 1 {
			t.Errorf("it took %d attempts", len(v.Attempts))
		}
		if len(s.said(worker.NoticeAway)) != 1 || len(s.said(worker.NoticeBack)) != 1 {
			t.Errorf("away was told %d times, back %d times", len(s.said(worker.NoticeAway)), len(s.said(worker.NoticeBack)))
		}
	})
}

// Promise S-86.
func TestALeaseThatAnEarlierTryWasGrantedCountsFromThatTry(t *testing.T) {
	var ran []int
	handle := func(_ context.Context, r *worker.Run) (any, error) {
		ran = append(ran, r.Lease.Attempt)
		return nil, nil
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{Wait: -1}, handle, func(t *testing.T, s *shop) {
		s.f.set(false, true)
		id := submit(t, s.m, func(sp *jobs.Spec) { sp.MaxAttempts = 2 })
		time.Sleep(65 * time.Second) // the lease has ended, and is still the answer to the request
		s.is(id, jobs.Queued)
		s.f.set(false, false)
		time.Sleep(30 * time.Second)
		if s.is(id, jobs.Completed); len(ran) != 1 || ran[0] != 2 {
			t.Errorf("the attempts %v were begun", ran)
		}
	})
}

// Promise S-88.
func TestALeaseGrantedWhileAWorkerWasToldToEndIsNotLeftBehind(t *testing.T) {
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, func(context.Context, *worker.Run) (any, error) { return nil, nil }, func(t *testing.T, s *shop) {
		time.Sleep(time.Second)
		s.f.set(false, true) // the request waits; its grant will not arrive
		id := submit(t, s.m)
		s.is(id, jobs.Leased)
		later := submit(t, s.m)
		s.f.set(false, false)
		s.drain()
		if err := <-s.done; err != nil {
			t.Error(err)
		}
		s.done <- nil
		s.is(id, jobs.Completed)
		s.is(later, jobs.Queued)
	})
}

// Promise S-89.
func TestAWorkerThatIsToldToEndFinishesWhatItIsAt(t *testing.T) {
	h := func(ctx context.Context, _ *worker.Run) (any, error) {
		time.Sleep(10 * time.Minute)
		return nil, ctx.Err()
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{Concurrency: 2}, h, func(t *testing.T, s *shop) {
		ids := []string{submit(t, s.m), submit(t, s.m), submit(t, s.m)}
		time.Sleep(time.Minute)
		if d := s.end(); d != 9*time.Minute {
			t.Errorf("it took %v to end", d)
		}
		s.is(ids[0], jobs.Completed)
		s.is(ids[1], jobs.Completed)
		s.is(ids[2], jobs.Queued)
		if len(s.said(worker.NoticeDraining)) != 1 {
			t.Error("it was not told that there will be no more")
		}
	})
}

// Promise S-89.
func TestStopEndsAWorkerAtOnce(t *testing.T) {
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, wait, func(t *testing.T, s *shop) {
		id := submit(t, s.m)
		time.Sleep(time.Minute)
		begin := time.Now()
		s.w.Stop()
		if err := <-s.done; err != nil || time.Since(begin) != 0 {
			t.Errorf("it ended after %v with %v", time.Since(begin), err)
		}
		s.done <- nil
		if v := s.is(id, jobs.Failed); !strings.Contains(string(v.Job.Output.Error), worker.ErrStopped.Error()) {
			t.Errorf("its error is %s", v.Job.Output.Error)
		}
	})
	deaf := func(context.Context, *worker.Run) (any, error) { time.Sleep(time.Hour); return nil, nil }
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, deaf, func(t *testing.T, s *shop) {
		submit(t, s.m)
		time.Sleep(time.Minute)
		begin := time.Now()
		s.w.Stop()
		if err := <-s.done; err != nil || time.Since(begin) != 5*time.Second {
			t.Errorf("it ended after %v with %v, though a handler goes on", time.Since(begin), err)
		}
		s.done <- nil
		time.Sleep(time.Hour)
	})
}

// Promise S-89.
func TestAWorkerThatIsStoppedSaysWhichEndsItCouldNotTell(t *testing.T) {
	h := func(context.Context, *worker.Run) (any, error) { time.Sleep(time.Second); return nil, nil }
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, h, func(t *testing.T, s *shop) {
		submit(t, s.m)
		synctest.Wait() // it has begun
		s.f.set(true, true)
		time.Sleep(10 * time.Second)
		s.w.Stop()
		if err := <-s.done; err != nil {
			t.Error(err)
		}
		s.done <- nil
		if said := s.said(worker.NoticeUntold); len(said) != 1 || !errors.Is(said[0].Err, lokt.ErrUnavailable) {
			t.Errorf("it is said of ends that %+v", said)
		}
	})
}

func TestNewsAboutAJobArriveAndTheirNumberIsBounded(t *testing.T) {
	h := func(ctx context.Context, r *worker.Run) (any, error) {
		if found, err := r.Resume(new(int)); err != nil || found != (r.Job.Attempt == 2) {
			return nil, fmt.Errorf("checkpoint: %v, %w", found, err)
		}
		if r.Job.Attempt == 1 {
			for i := range 1000 {
				r.Progress(float64(i) / 1000)
				time.Sleep(10 * time.Millisecond)
			}
			time.Sleep(50 * time.Millisecond) // what comes now is younger than the last report
			r.Message("half way")
			if err := r.Metrics(map[string]int{"rows": 7}); err != nil {
				return nil, err
			}
			if err := r.Checkpoint(ctx, 42); err != nil {
				return nil, err
			}
			return nil, errors.New("once more")
		}
		at := 0
		_, err := r.Resume(&at)
		return at, err
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, h, func(t *testing.T, s *shop) {
		id := submit(t, s.m, func(spec *jobs.Spec) { spec.MaxAttempts, spec.RetryBackoff = 2, time.Minute })
		time.Sleep(5500 * time.Millisecond)
		if v := s.is(id, jobs.Running); v.Job.Output.Progress == nil || *v.Job.Output.Progress < 0.4 {
			t.Errorf("known is %+v", v.Job.Output)
		}
		time.Sleep(10 * time.Second)
		v := s.is(id, jobs.Queued)
		if o := v.Job.Output; o == nil || o.Message != "half way" || string(o.Metrics) != `{"rows":7}` || *o.Progress != 0.999 {
			t.Errorf("known is %+v", o)
		}
		if n := s.f.count("report"); n < 10 || n > 13 {
			t.Errorf("%d reports were sent", n)
		}
		time.Sleep(time.Minute)
		if v := s.is(id, jobs.Completed); string(v.Job.Output.Result) != "42" {
			t.Errorf("the result is %s", v.Job.Output.Result)
		}
	})
}

// Promise S-91.
func TestMetricsThatAreRefusedTakeNothingElseWithThem(t *testing.T) {
	h := func(_ context.Context, r *worker.Run) (any, error) {
		r.Progress(math.NaN())
		r.Progress(0.5)
		r.Progress(math.NaN())
		r.Message("half way")
		return nil, r.Metrics(jsontext.Value(`"large"`))
	}
	for _, wait := range []time.Duration{0, 5 * time.Second} { // told with the end of the job, and before it
		synctest.Test(t, func(t *testing.T) {
			m := openWith(t, manager.Options{})
			id := submit(t, m)
			workASecond(t, refusing{Leaser: m, metrics: fmt.Errorf("%w: too large", lokt.ErrInvalid)}, func(ctx context.Context, r *worker.Run) (any, error) {
				defer time.Sleep(wait)
				return h(ctx, r)
			}, worker.WorkerOptions{})
			v, err := m.Get(t.Context(), id)
			if o := v.Job.Output; err != nil || v.Job.State != jobs.Completed || o == nil || o.Progress == nil || *o.Progress != 0.5 || o.Message != "half way" {
				t.Errorf("the job is %+v with %+v, %v", v.Job, o, err)
			}
		})
	}
}

// refusing is a service that answers with errors of its own.
type refusing struct {
	jobs.Leaser
	metrics             error
	ask, complete, fail error
}

func (r refusing) Request(ctx context.Context, a jobs.Request) (jobs.Grant, error) {
	if r.ask != nil {
		return jobs.Grant{}, r.ask
	}
	return r.Leaser.Request(ctx, a)
}

func (r refusing) Report(ctx context.Context, p jobs.Progress) error {
	if r.metrics != nil && p.Metrics != nil {
		return r.metrics
	}
	return r.Leaser.Report(ctx, p)
}

func (r refusing) Complete(ctx context.Context, c jobs.Completion) (bool, error) {
	if r.complete != nil && c.Status == jobs.Completed {
		return false, r.complete
	}
	if r.fail != nil && c.Status == jobs.Failed {
		return false, r.fail
	}
	return r.Leaser.Complete(ctx, c)
}

func TestAWorkerEndsWithErrorsThatDoNotPass(t *testing.T) {
	unknown := errors.New("who asks is not known")
	for _, err := range []error{unknown, &jobs.InvalidError{}} {
		w, bad := worker.NewWorker(refusing{ask: err}, wait, worker.WorkerOptions{Final: func(err error) bool { return errors.Is(err, unknown) }})
		if bad != nil {
			t.Fatal(bad)
		}
		if got := w.Run(t.Context()); !errors.Is(got, err) {
			t.Errorf("it ended with %v", got)
		}
	}
	for _, o := range []worker.WorkerOptions{{Concurrency: -1}, {ID: "a\nb"}, {Units: -1}, {Margin: -1}} {
		if _, err := worker.NewWorker(refusing{}, wait, o); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestAResultThatIsRefusedFailsTheJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openWith(t, manager.Options{})
		id := submit(t, m)
		h := func(context.Context, *worker.Run) (any, error) { return jsontext.Value(`"large"`), nil }
		workASecond(t, refusing{Leaser: m, complete: fmt.Errorf("%w: too large", lokt.ErrInvalid)}, h, worker.WorkerOptions{})
		if v, err := m.Get(t.Context(), id); err != nil || v.Job.State != jobs.Failed || !strings.Contains(string(v.Job.Output.Error), "too large") {
			t.Errorf("the job is %+v, %v", v.Job, err)
		}
	})
}

// lengthy is an error that says more than the service takes.
type lengthy struct{}

func (lengthy) Error() string                { return "no room" }
func (lengthy) MarshalJSON() ([]byte, error) { return json.Marshal(strings.Repeat("x", 1000)) }

// brief refuses failures that say too much.
type brief struct{ jobs.Leaser }

func (b brief) Complete(ctx context.Context, c jobs.Completion) (bool, error) {
	if len(c.Error) > 500 {
		return false, fmt.Errorf("%w: too large", lokt.ErrInvalid)
	}
	return b.Leaser.Complete(ctx, c)
}

func TestAnErrorThatIsRefusedFailsTheJobWithItsText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openWith(t, manager.Options{})
		id := submit(t, m)
		workASecond(t, brief{m}, func(context.Context, *worker.Run) (any, error) { return nil, lengthy{} }, worker.WorkerOptions{})
		v, err := m.Get(t.Context(), id)
		if err != nil || v.Job.State != jobs.Failed || v.Job.Code != jobs.CodeFailed {
			t.Fatalf("the job is %+v, %v", v.Job, err)
		}
		if said := string(v.Job.Output.Error); !strings.Contains(said, "no room") || !strings.Contains(said, "too large") {
			t.Errorf("it says %s", said)
		}
	})
}

func TestALeaseIsLetGoWhoseEndIsRefusedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openWith(t, manager.Options{})
		id := submit(t, m)
		untold := make(chan error, 1)
		never := fmt.Errorf("%w: not like this", lokt.ErrInvalid)
		workASecond(t, refusing{Leaser: m, complete: never, fail: never}, func(context.Context, *worker.Run) (any, error) { return 1, nil },
			worker.WorkerOptions{Notify: func(n worker.Notice) {
				if n.Type == worker.NoticeUntold {
					untold <- n.Err
				}
			}})
		select {
		case err := <-untold:
			if !errors.Is(err, never) {
				t.Errorf("untold because of %v", err)
			}
		default:
			t.Error("it was not said that the end was refused")
		}
		time.Sleep(2 * time.Minute) // nobody renews the lease any more
		if v, err := m.Get(t.Context(), id); err != nil || v.Job.State != jobs.Expired {
			t.Errorf("the job is %+v, %v", v.Job, err)
		}
	})
}

func TestWhatIsNoTextInAMessageDoesNotKeepItBack(t *testing.T) {
	long := strings.Repeat("x", jobs.MaxTextLen-1) + "\u00e9" // which is cut in two
	for _, text := range []string{"a\xffb", "a\x00b", long, strings.Repeat("x\xff", jobs.MaxTextLen/2)} {
		bubble(t, jobs.Config{}, worker.WorkerOptions{}, func(_ context.Context, r *worker.Run) (any, error) {
			r.Message(text)
			return nil, nil
		}, func(t *testing.T, s *shop) {
			id := submit(t, s.m)
			if v := s.is(id, jobs.Completed); v.Job.Output == nil || !strings.HasPrefix(v.Job.Output.Message, text[:1]) {
				t.Errorf("of %.10q... nothing was told", text)
			}
		})
	}
}

// tardy is a service whose first heartbeat takes its time, and the answers to whose requests do.
type tardy struct {
	jobs.Leaser
	by, grants time.Duration
	once       sync.Once
}

func (l *tardy) Request(ctx context.Context, a jobs.Request) (jobs.Grant, error) {
	g, err := l.Leaser.Request(ctx, a)
	if g.Denied == nil {
		time.Sleep(l.grants)
	}
	return g, err
}

func (l *tardy) Heartbeat(ctx context.Context, b jobs.Heartbeat) (jobs.HeartbeatAnswer, error) {
	l.once.Do(func() { time.Sleep(l.by) })
	return l.Leaser.Heartbeat(ctx, b)
}

// The service counts from the grant, which a worker whose ask has waited confirms before it begins.
//
// Promise S-87.
func TestTheMaximumRuntimeCountsFromTheGrant(t *testing.T) {
	const most = 10 * time.Second
	for what, delays := range map[string]struct{ grants, beat, waits time.Duration }{
		"the request waits, and the first heartbeat is late": {0, 5 * time.Second, 18 * time.Second},
		"the grant is late":                        {3 * time.Second, 0, 0},
		"the request waits, and the grant is late": {3 * time.Second, 0, 18 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := openWith(t, manager.Options{})
				stopped := make(chan time.Time, 1)
				leaser := &tardy{Leaser: m, by: delays.beat, grants: delays.grants}
				w, err := worker.NewWorker(leaser, func(ctx context.Context, r *worker.Run) (any, error) {
					<-ctx.Done()
					stopped <- time.Now()
					return nil, r.Err()
				}, worker.WorkerOptions{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				go func() { done <- w.Run(ctx) }()
				time.Sleep(delays.waits)
				granted := time.Now()
				id := submit(t, m, func(s *jobs.Spec) { s.MaxRuntime = most })
				if took := (<-stopped).Sub(granted); took >= most || took < most/2 {
					t.Errorf("the handler was stopped %v after the grant", took)
				}
				time.Sleep(time.Until(granted.Add(most)))
				if v, err := m.Get(t.Context(), id); err != nil || v.Job.Code != jobs.CodeRuntime {
					t.Errorf("it ended as %q, %v", v.Job.Code, err)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Promise S-238.
func TestJobsAreLeasedAheadAndGoBackWhenTheWorkerDrains(t *testing.T) {
	var mu sync.Mutex
	var begun []string
	h := func(_ context.Context, r *worker.Run) (any, error) {
		mu.Lock()
		begun = append(begun, r.Job.ID)
		mu.Unlock()
		time.Sleep(10 * time.Minute) // many times what a lease lasts
		return nil, nil
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{Prefetch: 2}, h, func(t *testing.T, s *shop) {
		var ids []string
		for range 6 {
			ids = append(ids, submit(t, s.m, func(spec *jobs.Spec) { spec.MaxAttempts = 1 }))
		}
		leases := map[string]bool{}
		time.Sleep(9 * time.Minute)
		for i, want := range []jobs.State{jobs.Running, jobs.Leased, jobs.Leased, jobs.Queued, jobs.Queued, jobs.Queued} {
			if v := s.is(ids[i], want); want != jobs.Queued {
				leases[v.Lease.ID] = true
			}
		}
		if len(leases) != 3 {
			t.Errorf("%d leases for three jobs", len(leases))
		}
		time.Sleep(time.Minute) // into the second job
		s.is(ids[0], jobs.Completed)
		s.is(ids[1], jobs.Running)
		time.Sleep(time.Minute)
		s.drain()
		synctest.Wait()
		for i, want := range []jobs.State{jobs.Completed, jobs.Running, jobs.Queued, jobs.Queued, jobs.Queued, jobs.Queued} {
			v := s.is(ids[i], want)
			if want == jobs.Queued && (v.Job.Attempt != 0 || len(v.Attempts) != 0 || v.Lease != nil) {
				t.Errorf("it went back as %+v", v)
			}
		}
		if took := s.end(); took != 9*time.Minute {
			t.Errorf("the job under way had %v", took)
		}
		s.is(ids[1], jobs.Completed)
		if !slices.Equal(begun, ids[:2]) {
			t.Errorf("%v were begun", begun)
		}
		if n := len(s.said(worker.NoticeUntold)); n != 0 {
			t.Errorf("%d ends count for nothing", n)
		}
	})
}

// Promise S-238.
func TestWhatWouldLoseByWaitingIsNotLeasedAhead(t *testing.T) {
	h := func(ctx context.Context, r *worker.Run) (any, error) {
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
		}
		return nil, nil
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{Prefetch: 5}, h, func(t *testing.T, s *shop) {
		first := submit(t, s.m)
		time.Sleep(time.Second)
		all := []string{
			submit(t, s.m, func(spec *jobs.Spec) { spec.Locks = []string{"db"} }),
			submit(t, s.m, func(spec *jobs.Spec) { spec.MaxRuntime = time.Hour }),
			submit(t, s.m, func(spec *jobs.Spec) { spec.Unique = true }),
			submit(t, s.m), // which must not keep the worker from those before it
		}
		time.Sleep(50 * time.Second)
		for _, id := range all {
			s.is(id, jobs.Queued)
		}
		for _, id := range all { // each begins when the one before it has ended: the request that waits is made anew
			time.Sleep(time.Minute)
			s.is(first, jobs.Completed)
			s.is(id, jobs.Running)
			first = id
		}
	})
}

// Promise S-238.
func TestAJobThatWasLeasedAheadIsNotBegunOnceItIsCancelledOrLost(t *testing.T) {
	var mu sync.Mutex
	begun := map[string]int{}
	h := func(_ context.Context, r *worker.Run) (any, error) {
		mu.Lock()
		begun[r.Job.ID]++
		mu.Unlock()
		time.Sleep(10 * time.Minute) // whatever becomes of the lease
		return nil, nil
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{Prefetch: 2}, h, func(t *testing.T, s *shop) {
		first, second, third := submit(t, s.m), submit(t, s.m), submit(t, s.m)
		time.Sleep(time.Second)
		if _, err := s.m.Cancel(t.Context(), second, "not needed"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		s.is(second, jobs.Cancelled)
		s.is(first, jobs.Running)
		lost := s.is(third, jobs.Leased).Lease
		s.f.set(true, false)
		time.Sleep(3 * time.Minute) // both leases are over
		s.f.set(false, false)
		time.Sleep(7 * time.Minute)
		v := s.is(third, jobs.Running)
		if v.Lease.Token == lost.Token || v.Job.Attempt != 1 {
			t.Errorf("after three minutes without a heartbeat it has %+v, attempt %d", v.Lease, v.Job.Attempt)
		}
		mu.Lock()
		if begun[first] != 1 || begun[second] != 0 || begun[third] != 1 {
			t.Errorf("first begun %d times, second %d, third %d", begun[first], begun[second], begun[third])
		}
		mu.Unlock()
		time.Sleep(10 * time.Minute) // the handler ends
	})
}

// keeping is a service that takes no jobs back.
type keeping struct{ jobs.Service }

func (k keeping) Complete(ctx context.Context, c jobs.Completion) (bool, error) {
	if c.Status == jobs.Queued {
		return false, errLine
	}
	return k.Service.Complete(ctx, c)
}

// Promise S-238. What was not begun goes back by itself when its lease is over.
func TestAWorkerThatEndsWaitsForNoLeaseThatIsOver(t *testing.T) {
	h := func(context.Context, *worker.Run) (any, error) {
		time.Sleep(time.Minute)
		return nil, nil
	}
	bubble(t, jobs.Config{TTL: time.Minute}, worker.WorkerOptions{Prefetch: 2}, h, func(t *testing.T, s *shop) {
		s.f.swap(keeping{s.m})
		ids := []string{submit(t, s.m), submit(t, s.m), submit(t, s.m)}
		time.Sleep(30 * time.Second)
		s.is(ids[2], jobs.Leased)
		time.AfterFunc(31*time.Second, func() { s.f.set(true, false) }) // when the job has ended
		if took := s.end(); took > 3*time.Minute {
			t.Errorf("it took %v to end", took)
		}
		s.is(ids[0], jobs.Completed)
		time.Sleep(2 * time.Minute)
		s.is(ids[2], jobs.Queued)
	})
}
