package sqlstore

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt/jobs"
)

// Jobs to which something has happened are read by other statements than those that only wait.
func TestEveryLivingJobIsLoadedWholeWhereverItStands(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 7))
	progress := 0.5
	touch := []func(j *jobs.Job){
		func(j *jobs.Job) { j.Attempt, j.Token, j.StartedAt, j.Code = 1, 7, j.CreatedAt, "worker_error" },
		func(j *jobs.Job) { j.UpdatedAt = j.CreatedAt.Add(time.Second) },
		func(j *jobs.Job) { j.RunAt, j.ReadyAt = j.CreatedAt.Add(time.Hour), j.CreatedAt.Add(time.Hour) },
		func(j *jobs.Job) { j.Locks, j.MaxRuntime = []string{"a", "b"}, time.Minute },
		func(j *jobs.Job) { j.Unique, j.IdempotencyKey = true, "key" },
		func(j *jobs.Job) { j.Cancel, j.Reason = true, "why" },
		func(j *jobs.Job) {
			j.Output = &jobs.Report{Progress: &progress, Message: "m", Metrics: jsontext.Value(`{"a": 1}`)}
		},
	}
	for _, share := range []int{0, 1, 20, 200, 900, 1000} { // per mille of all
		db := start(t, place(t), Options{})
		var want []jobs.Job
		var c jobs.Changes
		for n := range 700 {
			at := time.UnixMilli(1_700_000_000_000 + int64(n)).UTC()
			j := jobs.Job{Spec: jobs.NewSpec(), ID: fmt.Sprint("job-", n), State: jobs.Queued, CreatedAt: at, UpdatedAt: at, ReadyAt: at, Seq: uint64(3*n + 1), Ord: int64(n), Revision: uint64(n + 1)}
			if n%5 == 0 {
				j.Tags, j.Priority = []string{fmt.Sprint("tag-", n%2)}, jobs.High
			}
			if random.IntN(1000) < share {
				touch[random.IntN(len(touch))](&j)
			}
			want = append(want, j)
			c.Jobs = append(c.Jobs, jobs.JobChange{Job: j, What: jobs.New | jobs.Moved | jobs.Reported})
		}
		c.Counters = jobs.Counters{Seq: 2100, Revision: 700}
		if err := db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes { return c }); err != nil {
			t.Fatal(err)
		}
		rows, err := db.jobs.Load(t.Context())
		if err != nil || len(rows.Jobs) != len(want) {
			t.Fatalf("%d of %d are loaded, %v", len(rows.Jobs), len(want), err)
		}
		for i := range want {
			if !reflect.DeepEqual(rows.Jobs[i], want[i]) {
				t.Fatalf("of %d per mille touched: loaded is\n%+v\nnot\n%+v", share, rows.Jobs[i], want[i])
			}
		}
		shut(t, db)
	}
}
