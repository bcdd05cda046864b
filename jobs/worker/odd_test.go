package worker_test

import (
	"context"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/jobs/worker"
)

// absent is an error that panics when it is asked what it says, as one does whose pointer is nil.
type absent struct{ text string }

func (a *absent) Error() string { return a.text }

// broken is a result, and an error, that panics when it is encoded.
type broken struct{}

func (broken) Error() string                { return "broken" }
func (broken) MarshalJSON() ([]byte, error) { panic("no JSON today") }

// Promises S-85 and S-410.
func TestAHandlerThatEndsOddlyFailsItsJobAndNothingElse(t *testing.T) {
	ends := map[string]func() (any, error){
		"exit":   func() (any, error) { runtime.Goexit(); return nil, nil },
		"nil":    func() (any, error) { var a *absent; return nil, a },
		"result": func() (any, error) { return broken{}, nil },
		"error":  func() (any, error) { return nil, broken{} },
		"panic":  func() (any, error) { panic(new(absent)) },
	}
	h := func(_ context.Context, r *worker.Run) (any, error) { return ends[r.Job.Type]() }
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, h, func(t *testing.T, s *shop) {
		for end, says := range map[string]string{"exit": "Goexit", "nil": "nil pointer", "result": "no JSON today", "error": "no JSON today", "panic": "panic"} {
			id := submit(t, s.m, func(spec *jobs.Spec) { spec.Type = end })
			time.Sleep(time.Second)
			if v := s.is(id, jobs.Failed); v.Job.Output == nil || !strings.Contains(string(v.Job.Output.Error), says) {
				t.Errorf("%s: the job says %+v", end, v.Job.Output)
			}
		}
		if took := s.end(); took > time.Second {
			t.Errorf("the worker drained in %v", took)
		}
	})
}

// Promise S-199. Of what is printed at once the service is sent the first part alone, which ends within the lease ID; what looks
// like its beginning is sent when it is known to be none.
func TestALeaseIDIsNotShownWhereverOutputIsCut(t *testing.T) {
	long := strings.Repeat("x", jobs.MaxTextLen-16)
	for _, parts := range [][]string{{long + "ID"}, {long + "I", "D"}, {"xI", "Dx"}, {"I", "D"}, {"I", "DI"}, {"xI"}} {
		h := func(_ context.Context, r *worker.Run) (any, error) {
			id := r.Lease.ID
			for _, part := range parts {
				_, _ = r.Write([]byte(strings.NewReplacer("ID", id, "I", id[:16], "D", id[16:]).Replace(part)))
				time.Sleep(5 * time.Second)
			}
			return id, nil
		}
		bubble(t, jobs.Config{}, worker.WorkerOptions{}, h, func(t *testing.T, s *shop) {
			id := submit(t, s.m)
			time.Sleep(time.Minute)
			v := s.is(id, jobs.Completed)
			o, err := s.m.Output(t.Context(), id, 0)
			text := ""
			for _, p := range o.Pieces {
				text += p.Text
			}
			leaseID, all := strings.Trim(string(v.Job.Output.Result), `"`), strings.Join(parts, "")
			want := strings.NewReplacer("ID", strings.Repeat("*", 32), "I", leaseID[:16]).Replace(all)
			if err != nil || text != want {
				t.Errorf("%.40q is shown as %q, %v", all, text[max(len(text)-40, 0):], err)
			}
		})
	}
}

// Promise S-199.
func TestWhatACancelledJobPrintsWhileItEndsIsKept(t *testing.T) {
	h := func(ctx context.Context, r *worker.Run) (any, error) {
		<-ctx.Done()
		for range 3 {
			time.Sleep(2 * time.Second)
			_, _ = r.Write([]byte("cleaning up\n"))
		}
		return nil, ctx.Err()
	}
	bubble(t, jobs.Config{}, worker.WorkerOptions{}, h, func(t *testing.T, s *shop) {
		id := submit(t, s.m)
		time.Sleep(time.Second)
		if _, err := s.m.Cancel(t.Context(), id, ""); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		s.is(id, jobs.Cancelled)
		if o, err := s.m.Output(t.Context(), id, 0); err != nil || len(o.Pieces) != 3 {
			t.Errorf("it has printed %+v, %v", o, err)
		}
	})
}

func TestLargeNumbersOfAWorkerKeepNoJobFromBeingDone(t *testing.T) {
	for _, o := range []worker.WorkerOptions{{Margin: time.Hour}, {Prefetch: math.MaxInt}} {
		h := func(_ context.Context, r *worker.Run) (any, error) {
			time.Sleep(5 * time.Minute)
			return nil, r.Err()
		}
		bubble(t, jobs.Config{}, o, h, func(t *testing.T, s *shop) {
			id := submit(t, s.m)
			time.Sleep(6 * time.Minute)
			s.is(id, jobs.Completed)
		})
	}
}

// stopping is a service whose grant meets a worker that was stopped meanwhile.
type stopping struct {
	jobs.Service
	stop func()
}

func (s *stopping) Request(ctx context.Context, a jobs.Request) (jobs.Grant, error) {
	g, err := s.Service.Request(ctx, a)
	s.stop()
	return g, err
}

// Promise S-89.
func TestAJobThatIsGrantedToAWorkerThatWasStoppedIsNotBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := openWith(t, manager.Options{})
		s := &stopping{Service: m}
		w, err := worker.NewWorker(s, func(context.Context, *worker.Run) (any, error) { return nil, nil }, worker.WorkerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.stop = w.Stop
		id := submit(t, m)
		if err := w.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if v, err := m.Get(t.Context(), id); err != nil || v.Job.State != jobs.Queued || v.Job.Attempt != 0 {
			t.Errorf("the job is %s after %d attempts, %v", v.Job.State, v.Job.Attempt, err)
		}
	})
}

func TestAWorkerWhoseNotifyDoesNotReturnEnds(t *testing.T) {
	for _, kind := range []worker.NoticeType{worker.NoticeStarted, worker.NoticeEnded} {
		synctest.Test(t, func(t *testing.T) {
			m := openWith(t, manager.Options{})
			var gone atomic.Bool
			o := worker.WorkerOptions{Notify: func(n worker.Notice) {
				if n.Type == kind && !gone.Swap(true) {
					runtime.Goexit()
				}
			}}
			w, err := worker.NewWorker(m, func(context.Context, *worker.Run) (any, error) { return nil, nil }, o)
			if err != nil {
				t.Fatal(err)
			}
			submit(t, m)
			ctx, drain := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if err := w.Run(ctx); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
			id := submit(t, m) // there is room for it
			synctest.Wait()
			if v, err := m.Get(t.Context(), id); err != nil || v.Job.State != jobs.Completed {
				t.Errorf("%s: the next job is %s, %v", kind, v.Job.State, err)
			}
			drain()
			select {
			case <-ended:
			case <-time.After(time.Hour):
				t.Errorf("%s: the worker does not end", kind)
				w.Stop()
				<-ended
			}
		})
	}
}
