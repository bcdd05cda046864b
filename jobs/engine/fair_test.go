package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

func keyed(key string, units int, p jobs.Priority) func(*jobs.Spec) {
	return func(s *jobs.Spec) { s.Extra, s.Units, s.Priority = &jobs.Extra{Fair: key}, units, p }
}

// serve grants and completes so many jobs, one after another, and returns the units by key, and which job was which.
func (w *world) serve(n int) (units map[string]int, order []string) {
	w.Helper()
	units = map[string]int{}
	for range n {
		w.n++
		lease := fmt.Sprint("lease ", w.n)
		id := w.ask("w", lease)
		j := w.e.jobs[id]
		if j == nil {
			w.Fatalf("granted is %q", id)
		}
		units[j.Extras().Fair] += j.Units
		order = append(order, id)
		w.do(Complete{jobs.Completion{LeaseID: lease, WorkerID: "w", Status: jobs.Completed}})
		w.pass(time.Second)
	}
	return units, order
}

// Promise S-230.
func TestTenThousandJobsOfOneKeyDoNotStarveAnothersTen(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	var batch []NewJob
	for i := range 10_000 {
		s := jobs.NewSpec()
		keyed("many", 1, jobs.Normal)(&s)
		batch = append(batch, NewJob{Spec: s, ID: fmt.Sprint("many ", i)})
	}
	w.e.Turn(w.now, []Call{{1, Submit{Jobs: batch}}}, nil)
	w.serve(10)
	w.pass(10 * time.Hour) // the others are much older
	for i := range 10 {
		w.submit(fmt.Sprint("few ", i), keyed("few", 1, jobs.Normal), func(s *jobs.Spec) { s.Type = "other" })
	}
	if units, order := w.serve(21); units["few"] != 10 || units["many"] != 11 {
		t.Errorf("served were %v: %q", units, order)
	}
	for i := range 4 {
		w.submit(fmt.Sprint("large ", i), keyed("large", 10, jobs.Normal))
	}
	if units, order := w.serve(22); units["large"] != 20 || units["many"] != 20 {
		t.Errorf("by units served were %v: %q", units, order)
	}
}

// Promise S-396.
func TestKeysThatAreNewAllTheTimeKeepNoOtherWaiting(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.do(Freeze{Type: "frozen", Frozen: true})
	w.submit("never", keyed("never", 1, jobs.Normal), func(s *jobs.Spec) { s.Type = "frozen" })
	for i := range 20 {
		w.submit(fmt.Sprint("old ", i), keyed("old", 3, jobs.Normal))
	}
	total, old, served := 0, 0, 0
	for i := range 60 {
		if served == 0 { // what was served was the new one, and there is another
			w.submit(fmt.Sprint("new ", i), keyed(fmt.Sprint("new ", i), 1, jobs.Normal))
		}
		units, _ := w.serve(1)
		served = units["old"]
		old += served
		total += max(served, 1)
	}
	if old < total/2-3 || old > total/2+3 { // at each moment there are two keys with jobs
		t.Errorf("of %d units that were served, %d were of the key that has waited", total, old)
	}
}

func TestAKeyHasNothingToMakeUpFor(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.do(Freeze{Type: "frozen", Frozen: true})
	for i := range 40 {
		w.submit(fmt.Sprint("idle ", i), keyed("idle", 1, jobs.Normal), func(s *jobs.Spec) { s.Type = "frozen" })
		w.submit(fmt.Sprint("busy ", i), keyed("busy", 1, jobs.Normal))
	}
	w.serve(20)
	w.do(Freeze{Type: "frozen"})
	if units, order := w.serve(20); units["idle"] > 11 || units["busy"] > 11 {
		t.Errorf("served were %v: %q", units, order)
	}
}

// Promise S-230.
func TestTurnsKeepThePromiseOfAgeing(t *testing.T) {
	w := newWorld(t, jobs.Config{AgeingStep: time.Minute})
	for i := range 300 {
		w.submit(fmt.Sprint("a ", i), keyed("a", 1, jobs.High))
	}
	w.submit("low", func(s *jobs.Spec) { s.Priority = jobs.Background })
	low := w.e.jobs["low"].Job
	seen := map[string]*entry{}
	for n := range 600 { // keys come and go, and always have jobs that are newer
		id := fmt.Sprint("b ", n)
		w.submit(id, keyed(fmt.Sprint("b ", n%5), 1, jobs.High))
		seen[id] = w.e.jobs[id]
		_, order := w.serve(1)
		if order[0] == "low" {
			w.want("it is overtaken for three steps at most by what came later", n >= 180, true)
			return
		}
		if en := seen[order[0]]; en != nil && !en.Before(&low) {
			t.Fatalf("%s is before it, after %v", order[0], w.now.Mono)
		}
	}
	t.Error("it is never first")
}
