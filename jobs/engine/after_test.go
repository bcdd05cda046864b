package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// dependents returns a world in which so many jobs are to run after one that is leased, and what each turn stored.
func dependents(t *testing.T, n int) (*world, *table) {
	w, tb := newWorld(t, jobs.Config{Total: 1 << 20}), newTable()
	play := func(all ...Call) {
		out := w.e.Turn(w.now, all, nil)
		if err := tb.apply(&out.Changes); err != nil {
			t.Fatal(err)
		}
	}
	first := jobs.NewSpec()
	first.Type = "first"
	play(Call{1, Submit{Jobs: []NewJob{{Spec: first, ID: "first"}}}})
	play(Call{2, Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "lease"}})
	for at := 0; at < n; at += 1000 {
		var batch []NewJob
		for i := at; i < min(n, at+1000); i++ {
			s := jobs.NewSpec()
			s.Extra = &jobs.Extra{After: []string{"first"}}
			batch = append(batch, NewJob{Spec: s, ID: fmt.Sprintf("J%06d", i)})
		}
		play(Call{3, Submit{Jobs: batch}})
	}
	return w, tb
}

func end(s jobs.State) Call {
	return Call{9, Complete{jobs.Completion{LeaseID: "lease", WorkerID: "w", Status: s}}}
}

func TestWhatFailedIsPassedOnOverManyTurnsKillsAndReplicas(t *testing.T) {
	for _, how := range []string{"one engine", "a kill after each turn", "another replica after the first turn"} {
		t.Run(how, func(t *testing.T) {
			const n = 7000
			w, tb := dependents(t, n)
			last := jobs.NewSpec()
			last.Extra = &jobs.Extra{After: []string{fmt.Sprintf("J%06d", n-1)}}
			out := w.turn(Call{4, Submit{Jobs: []NewJob{{Spec: last, ID: "last"}}}})
			if err := tb.apply(&out.Changes); err != nil {
				t.Fatal(err)
			}
			other := Load(w.e.cfg, tb.living(w.now.Wall), "other", w.now)
			turns := 0
			for first := []Call{end(jobs.Failed)}; ; first = nil {
				ask := Request{Request: jobs.Request{WorkerID: "v"}, LeaseID: fmt.Sprint("lease ", turns)}
				out := w.turn(append(first, Call{uint64(100 + turns), ask})...)
				if err := tb.apply(&out.Changes); err != nil {
					t.Fatal(err)
				}
				if turns++; len(out.Changes.Jobs) > 3000 {
					t.Errorf("%d jobs were stored in one turn", len(out.Changes.Jobs))
				}
				switch {
				case how == "a kill after each turn":
					w.pass(48 * time.Hour)
					w.e = Load(w.e.cfg, tb.living(w.now.Wall), fmt.Sprint("kill ", turns), w.now)
				case how != "one engine" && turns == 1:
					other.Follow(&out.Changes, w.now)
					w.e = other
				}
				if len(w.e.failures) == 0 {
					break
				}
				w.want("next turn", w.e.Next() <= w.now.Mono, true)
			}
			if turns < 3 {
				t.Errorf("%d turns were enough", turns)
			}
			for id, r := range tb.jobs {
				if id != "first" && (r.State != jobs.Cancelled || r.Code != jobs.CodeAfter) {
					t.Fatalf("job %s is %+v", id, r.Job)
				}
			}
			w.pass(time.Millisecond)
			if l := tb.living(w.now.Wall); len(l.Jobs)+len(l.Memos) > 0 {
				t.Errorf("there are %d jobs and the memos %+v still", len(l.Jobs), l.Memos)
			}
		})
	}
}
