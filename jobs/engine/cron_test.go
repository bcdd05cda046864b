package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// everyMinute makes a spec a schedule.
func everyMinute(s *jobs.Spec) { s.Extra = &jobs.Extra{Cron: "* * * * *"} }

// runs counts the jobs of schedules by their tick, and checks that they name it.
func (w *world) runs() map[string]int {
	w.Helper()
	n := map[string]int{}
	for _, en := range w.e.jobs {
		if t := en.Extras().Ticks; t != nil && en.State != jobs.Scheduled {
			n[t.Schedule+t.Tick.Format(" 15:04:05")]++
		}
	}
	return n
}

// finish has a worker do all that is queued.
func (w *world) finish() {
	w.Helper()
	for i := 0; ; i++ {
		lease := fmt.Sprint("L", w.n)
		if w.ask("w", lease) == jobs.DeniedEmpty {
			return
		}
		w.do(Complete{jobs.Completion{LeaseID: lease, WorkerID: "w", Status: jobs.Completed}})
	}
}

func TestAStepOfTheWallClockRunsNoTickTwice(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.submit("s", everyMinute)
	w.pass(time.Minute)
	w.turn()
	w.want("runs", fmt.Sprint(w.runs()), "map[s 00:01:00:1]")
	w.finish()
	w.now.Wall = w.now.Wall.Add(-10 * time.Minute)
	for range 10 { // until the same minute is over again
		w.turn()
		w.want("runs after a step back", len(w.runs()), 0)
		w.pass(time.Minute)
	}
	w.turn()
	w.want("runs", len(w.runs()), 0)
	w.pass(time.Minute)
	w.turn()
	w.want("runs", fmt.Sprint(w.runs()), "map[s 00:02:00:1]")
	w.finish()
	w.now.Wall = w.now.Wall.Add(time.Hour + 30*time.Second)
	w.turn()
	w.want("runs after a step forward", fmt.Sprint(w.runs()), "map[s 01:02:00:1]")
}

// What many schedules bring at once is more than one turn takes.
func TestTicksOfManySchedulesAreBounded(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	const many = 5000
	all := make([]NewJob, many)
	for i := range all {
		all[i] = NewJob{Spec: jobs.NewSpec(), ID: fmt.Sprint("s", i)}
		everyMinute(&all[i].Spec)
	}
	w.do(Submit{Jobs: all})
	w.pass(time.Minute)
	turns := 0
	for ; len(w.runs()) < many && turns < many; turns++ {
		w.want("due at once", w.e.Next() <= w.now.Mono, true)
		if out := w.turn(); len(out.Changes.Jobs) > mostMoved/recordWeight+2 {
			t.Fatalf("a turn changed %d jobs", len(out.Changes.Jobs))
		}
	}
	if turns < 3 || len(w.runs()) != many {
		t.Errorf("%d jobs in %d turns", len(w.runs()), turns)
	}
	w.want("schedules in the queue", w.e.depths().Sum(), many)
}

// A schedule in a time zone that this system does not know ends, and says so.
func TestAScheduleThatCannotBeReadFails(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.submit("s", everyMinute)
	w.e.jobs["s"].Extra.Cron = "CRON_TZ=No/Where * * * * *"
	w.pass(time.Minute)
	out := w.turn()
	if r := out.Changes.Jobs; len(r) != 1 || r[0].State != jobs.Failed || r[0].Reason == "" || w.e.jobs["s"] != nil {
		t.Errorf("it is %+v", r)
	}
}
