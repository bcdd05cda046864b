package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/worker"
)

// board is what is known of jobs from outside.
type board struct {
	config jobs.Config
	store  jobs.Store
	tasks  map[string]*task // by key
}

// task is a job.
type task struct {
	id         string
	runs       []*run
	done, told bool // a handler has done it, and its worker was told that this counts
}

// task returns the job with the key, which has that ID.
func (w *world) task(key, id string) *task {
	t := w.board.tasks[key]
	if t == nil {
		t = &task{id: id}
		w.board.tasks[key] = t
	}
	if t.id != id {
		w.broke("keys", "job %s is two jobs", key)
	}
	return t
}

// run is an attempt at a job, as its handler knows it.
type run struct {
	*worker.Run
	a    *actor
	ctx  context.Context
	over bool
}

// believes reports whether the handler was told that the job is its own, and nothing else since.
func (r *run) believes() bool {
	switch {
	case r.over || r.a.died || r.a.w.now() < r.a.dazed:
		return false
	case r.a.w.now() < r.a.until:
		return r.Err() == nil
	}
	return r.ctx.Err() == nil
}

// turns is the scheduler's store as a daemon sees it.
type turns struct {
	jobs.Store
	a *actor
}

// now is the time by the store's clock; zero if the scheduler's own is to be used.
func (s turns) now() (now time.Time) {
	if s.a.w.board.config.Shared {
		now = time.Now().Add(-s.a.w.db.behind)
	}
	return now
}

func (s turns) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	if f := s.a.pass(ctx, pointChange, "changes jobs"); f != fine && f != twice {
		return failure(ctx, f)
	}
	if err := s.Store.Update(context.Background(), func(f jobs.Facts) jobs.Changes {
		f.Now = s.now()
		return turn(f)
	}); err != nil {
		return err
	}
	return failure(ctx, s.a.pass(ctx, pointAnswer, "hears that jobs are changed"))
}

func (s turns) Load(ctx context.Context) (jobs.Changes, error) {
	if f := s.a.pass(ctx, pointRead, "loads jobs"); f != fine {
		return jobs.Changes{}, failure(ctx, f)
	}
	c, err := s.Store.Load(context.Background())
	c.Now = s.now()
	slices.SortFunc(c.Jobs, func(a, b *jobs.Record) int { return cmp.Compare(a.Revision, b.Revision) })
	slices.SortFunc(c.Memos, func(a, b jobs.Memo) int { return cmp.Compare(a.ID, b.ID) })
	return c, err
}

// employ makes a scheduler, workers, and those who submit jobs.
func (w *world) employ(r *rand.Rand) {
	w.board = &board{
		config: jobs.Config{
			Total: 2 + r.IntN(3), TTL: randomly(r, 2*time.Second, 20*time.Second), Grace: time.Duration(r.IntN(2)) * time.Second,
			Shared: w.o.Seed%2 == 0,
		},
		store: w.db.Jobs(), tasks: map[string]*task{},
	}
	w.daemons = append(w.daemons, &daemon{})
	w.daemons[0].start(w.newActor("daemon1", r))
	for i := range 1 + r.IntN(3) {
		w.hire(fmt.Sprint("worker", i+1), r)
	}
	for i := range 1 + r.IntN(3) {
		c := &client{actor: w.newActor(people[i], r)}
		w.scripts = append(w.scripts, c)
		specs := make([]jobs.Spec, 1+r.IntN(4))
		for k := range specs {
			s := jobs.NewSpec()
			s.Units, s.MaxAttempts, s.IdempotencyKey = 1+r.IntN(2), 1+r.IntN(4), fmt.Sprint(c.name, k)
			s.Payload = jsontext.Value(fmt.Sprintf(`{"touches":%d,"gap":%d}`, r.IntN(5), randomly(r, time.Millisecond, w.board.config.TTL)))
			if r.IntN(3) == 0 {
				s.Locks = []string{"a"}
			}
			if r.IntN(6) == 0 {
				s.MaxRuntime = randomly(r, time.Second, 60*time.Second)
			}
			specs[k] = s
		}
		w.order(c, specs, i*100)
	}
}

// order submits jobs one after another, and waits for their ends.
func (w *world) order(c *client, specs []jobs.Spec, id int) {
	service := w.reach(c.actor).Jobs()
	w.script(func() {
		for k, s := range specs {
			if slices.Contains(w.o.Mask.Idle, id+k) || c.pass(c.ctx, pointWork, "begins") != fine {
				continue
			}
			w.actions = append(w.actions, id+k)
			w.say(c.actor, "submits job %s", s.IdempotencyKey)
			got, err := service.Submit(c.ctx, []jobs.Spec{s})
			for ; err != nil && c.ctx.Err() == nil; got, err = service.Submit(c.ctx, []jobs.Spec{s}) { // the key makes it safe
				w.say(c.actor, "is refused: %s", w.reason(err))
				time.Sleep(time.Second)
			}
			if err != nil {
				return
			}
			w.say(c.actor, "knows that job %s is queued", s.IdempotencyKey)
			t := w.task(s.IdempotencyKey, got[0].JobID)
			for over := false; !over && c.pass(c.ctx, pointWork, "looks") == fine; w.sleep(2 * time.Second) {
				v, err := service.Get(c.ctx, t.id)
				if jobs.Code(err) == jobs.Code(jobs.ErrJobNotFound) {
					w.broke("lost jobs", "job %s was acknowledged, and is not there", s.IdempotencyKey)
				}
				if over = err == nil && v.Job.State.Ended(); over {
					w.say(c.actor, "sees that job %s has ended: %s, %s", s.IdempotencyKey, v.Job.State, v.Job.Code)
					w.count("a job ends: " + v.Job.Code)
				}
				if completed := v.Job.State == jobs.Completed; over && (t.told && !completed || completed && !t.done) {
					w.broke("lost jobs", "job %s is %s: done %t, and its worker was told so %t", s.IdempotencyKey, v.Job.State, t.done, t.told)
				}
			}
		}
	})
}

// hire starts a life of a worker.
func (w *world) hire(name string, r *rand.Rand) {
	a := w.newActor(name, r)
	a.again = func() bool {
		w.say(a, "starts again")
		w.hire(name, r)
		return true
	}
	o := worker.WorkerOptions{
		ID: fmt.Sprint(name, "-", a.index), Concurrency: 1 + a.index%2, Prefetch: a.index % 3, Wait: 5 * time.Second, Elapsed: a.elapsed, Notify: func(n worker.Notice) {
			if n.Run == nil {
				return
			}
			w.count("worker: " + string(n.Type))
			if n.Type == worker.NoticeEnded && n.State == jobs.Queued {
				w.count("worker: a job goes back")
			}
			if n.Type == worker.NoticeEnded && n.State == jobs.Completed {
				w.task(n.Run.Job.IdempotencyKey, n.Run.Job.ID).told = true
			}
		},
	}
	service := w.reach(a).Jobs()
	k, err := worker.NewWorker(service, func(ctx context.Context, r *worker.Run) (any, error) { return nil, w.work(ctx, a, r) }, o)
	if err != nil {
		panic(err)
	}
	w.workers = append(w.workers, a)
	w.running.Go(func() {
		defer context.AfterFunc(a.ctx, k.Stop)()
		if a.pass(a.ctx, pointWork, "begins") == fine {
			_ = k.Run(a.ctx)
		}
	})
}

// work does a job.
func (w *world) work(ctx context.Context, a *actor, r *worker.Run) error {
	key := r.Job.IdempotencyKey
	me := &run{Run: r, a: a, ctx: ctx}
	if a.pass(a.ctx, pointWork, "begins job "+key) != fine || r.Err() != nil {
		return r.Err()
	}
	w.say(a, "begins attempt %d at job %s, with token %d", r.Lease.Attempt, key, r.Token())
	t := w.task(key, r.Job.ID)
	for _, o := range t.runs {
		if o.Token() >= r.Token() {
			w.broke("tokens", "job %s: attempt %d has token %d, and one before had %d", key, r.Lease.Attempt, r.Token(), o.Token())
		}
	}
	t.runs = append(t.runs, me)
	var plan struct{ Touches, Gap int }
	err := r.Payload(&plan)
	for range plan.Touches {
		w.sleep(time.Duration(plan.Gap))
		if a.pass(a.ctx, pointWork, "works on job "+key) != fine {
			return a.ctx.Err()
		}
		if err = r.Err(); err != nil {
			break
		}
	}
	me.over, t.done = true, t.done || err == nil
	w.say(a, "has ended job %s: %v", key, err)
	return err
}

// checkJobs looks whether a job runs twice at once, and whether those that run share what there is.
func (w *world) checkJobs() {
	units, locked := 0, map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(w.board.tasks)) {
		var now *run
		for _, r := range w.board.tasks[key].runs {
			if !r.believes() {
				continue
			}
			if now != nil {
				w.broke("jobs run twice", "job %s: %s and %s are at it, with tokens %d and %d", key, now.a.name, r.a.name, now.Token(), r.Token())
			}
			now = r
			units += r.Lease.Units
			for _, name := range r.Job.Locks {
				if locked[name] != "" {
					w.broke("locks of jobs", "jobs %s and %s run, and each has lock %s", locked[name], key, name)
				}
				locked[name] = key
			}
		}
	}
	if units > w.board.config.Total {
		w.broke("capacity", "jobs that take %d units run, and there are %d", units, w.board.config.Total)
	}
}
