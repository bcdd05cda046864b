package engine

import (
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// Promise S-351. The next daemon has a shorter TTL, whether it is a restart or a replica; the worker knows of the old one only.
func TestALeaseLastsAsLongAsItsWorkerWasToldThoughTheTTLIsShorterNow(t *testing.T) {
	for _, shared := range []bool{false, true} {
		w, tb := newWorld(t, jobs.Config{Shared: shared}), newTable()
		for i, o := range []Op{
			Submit{Jobs: []NewJob{{Spec: jobs.NewSpec(), ID: "a"}}},
			Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "L"},
		} {
			out := w.turn(Call{uint64(i + 1), o})
			if err := tb.apply(&out.Changes); err != nil {
				t.Fatal(err)
			}
		}
		c := w.e.cfg
		c.TTL = 5 * time.Second
		w.e = Load(c, tb.living(w.now.Wall), "next", w.now)
		for range 3 {
			w.pass(59 * time.Second)
			b, ok := w.do(Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"L"}}).([]jobs.LeaseAnswer)
			if until := w.now.Wall.Add(time.Minute); !ok || b[0].Err != nil || !b[0].ExpiresAt.Equal(until) {
				t.Fatalf("shared %v: a heartbeat that should last until %v is answered with %+v", shared, until, b)
			}
		}
		if l := w.do(Get{"a"}).(jobs.View).Lease; l.TTL != time.Minute {
			t.Errorf("shared %v: shown is a TTL of %v", shared, l.TTL)
		}
		c.TTL = time.Hour // the worker may ask the others next
		w.e = Load(c, tb.living(w.now.Wall), "third", w.now)
		if g := w.do(Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "L"}).(jobs.Grant); g.Lease.TTL != time.Minute {
			t.Errorf("shared %v: asked again, the worker is told a TTL of %v", shared, g.Lease.TTL)
		}
	}
}
