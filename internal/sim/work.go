package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/worker"
)

// task is a job.
type task struct {
	id         string
	runs       []*run
	done, told bool   // a handler has done it, and its worker was told that this counts
	saved      uint64 // the highest checkpoint that was acknowledged
}

// keyOf is under which key a job is known: it has one, but for those of schedules.
func keyOf(j *jobs.Job) string { return cmp.Or(j.IdempotencyKey, j.ID) }

// task returns the job with the key, which has that ID.
func (w *world) task(key, id string) *task {
	t := w.board.tasks[key]
	if t == nil {
		t = &task{id: id}
		w.board.tasks[key] = t
	}
	w.deny(t.id != id, "keys", "job %s is two jobs", key)
	return t
}

// run is an attempt at a job, as its worker knows it.
type run struct {
	jobs.Grant
	a       *actor
	err     func() error    // looks at the clock
	ctx     context.Context // which ends by itself; nil of one that goes by the clock
	over    bool
	until   time.Duration // its lease lasts, if it goes by the clock
	printed string
}

// believes reports whether the worker was told that the job is its own, and nothing else since.
func (r *run) believes() bool {
	switch {
	case r.over || r.a.died || r.a.w.now() < r.a.dazed:
		return false
	case r.a.w.now() < r.a.until || r.ctx == nil:
		return r.err() == nil
	}
	return r.ctx.Err() == nil
}

// begins notes that a worker begins an attempt.
func (w *world) begins(me *run) *task {
	key := keyOf(&me.Job)
	w.say(me.a, "begins attempt %d at job %s, with token %d", me.Lease.Attempt, key, me.Lease.Token)
	t := w.task(key, me.Job.ID)
	for _, o := range t.runs {
		w.deny(o.Lease.Token >= me.Lease.Token, "tokens", "job %s: attempt %d has token %d, and one before had %d", key, me.Lease.Attempt, me.Lease.Token, o.Lease.Token)
	}
	t.runs = append(t.runs, me)
	return t
}

// employ makes a scheduler, workers, and those who submit jobs.
func (w *world) employ(r *rand.Rand) {
	more := rand.New(rand.NewPCG(w.o.Seed, 1<<46)) // for what came later
	b := &board{
		config: jobs.Config{Total: 2 + r.IntN(3), TTL: randomly(r, 2*time.Second, 20*time.Second), Grace: time.Duration(r.IntN(2)) * time.Second,
			Shared: w.o.Seed%2 == 0, AgeingStep: 5 * time.Second},
		store: w.db.Jobs(), tasks: map[string]*task{}, records: map[string]*jobs.Record{}, memos: map[string]jobs.Memo{},
		stopped: map[string]time.Duration{}, frozen: map[string]bool{},
		lock: "a", limit: jobs.Limit{Slots: 1}, keep: time.Duration(more.IntN(2)) * randomly(more, 10*time.Second, 10*time.Minute),
	}
	if more.IntN(3) > 0 {
		b.lock, b.limit = "s", jobs.Limit{Slots: 1 + more.IntN(2), Starts: 1 + more.IntN(3),
			Per: randomly(more, time.Second, 6*time.Second).Truncate(time.Millisecond), Burst: more.IntN(2)}
	}
	waits := rand.New(rand.NewPCG(w.o.Seed, 1<<47))
	b.config.ReserveAfter, b.config.ReserveLimit = randomly(waits, 100*time.Millisecond, time.Minute), randomly(waits, time.Second, 5*time.Minute)
	w.board = b
	for i := range 1 + more.IntN(3)*int(1-w.o.Seed%2) {
		w.daemons = append(w.daemons, &daemon{})
		w.daemons[i].start(w.newActor(fmt.Sprint("daemon", i+1), r))
	}
	for i := range 1 + r.IntN(3) {
		hire := w.hire
		if i > 0 && more.IntN(2) == 0 {
			hire = w.hireTemp
		}
		hire(fmt.Sprint("worker", i+1), r)
	}
	for i := range 1 + r.IntN(3) {
		c := &client{actor: w.newActor(people[i], r)}
		w.scripts = append(w.scripts, c)
		specs := make([]jobs.Spec, 1+r.IntN(4))
		var lists [][]jobs.Spec
		for k := range specs {
			s := jobs.NewSpec()
			s.Units, s.MaxAttempts, s.IdempotencyKey = 1+r.IntN(2), 1+r.IntN(4), fmt.Sprint(c.name, k)
			s.Payload = jsontext.Value(fmt.Sprintf(`{"touches":%d,"gap":%d,"fails":%t,"saves":%t}`,
				r.IntN(5), randomly(r, time.Millisecond, b.config.TTL), more.IntN(5) == 0, more.IntN(4) == 0))
			if r.IntN(3) == 0 {
				s.Locks = []string{b.lock}
			}
			if r.IntN(6) == 0 {
				s.MaxRuntime = randomly(r, time.Second, 60*time.Second)
			}
			specs[k] = w.more(more, s, specs[:k])
			if k == 0 || more.IntN(2) == 0 {
				lists = append(lists, nil)
			}
			lists[len(lists)-1] = append(lists[len(lists)-1], specs[k])
		}
		w.order(c, lists, i*100)
	}
	if more.IntN(3) > 0 {
		w.manage(more)
	}
}

// more has a job ask for more than most do.
func (w *world) more(r *rand.Rand, s jobs.Spec, before []jobs.Spec) jobs.Spec {
	x := &jobs.Extra{}
	if w.o.Seed%5 < 2 {
		x.Fair = [...]string{"", "x", "y"}[r.IntN(3)]
	}
	s.Extra, s.Type, s.Priority = x, [...]string{"generic", "other"}[r.IntN(2)], jobs.Priorities()[r.IntN(4)]
	switch roll := r.IntN(10); {
	case roll < 2:
		s.Locks = []string{w.board.lock}
	case roll == 3:
		x.Cron = [...]string{"@every 1s", "@every 7s", "* * * * *"}[r.IntN(3)]
	case roll == 4 && !w.allowed[setClock]: // which may be wrong for hours
		s.RunAt = time.Now().Add(randomly(r, time.Second, time.Minute))
	case roll == 5:
		s.Unique = true
	}
	for range r.IntN(3) {
		if len(before) > 0 && x.Cron == "" {
			x.After, x.AfterAny = append(x.After, before[r.IntN(len(before))].IdempotencyKey), r.IntN(2) == 0
		}
	}
	if x.After = slices.Compact(x.After); len(s.Locks) > 0 {
		x.Limits = map[string]jobs.Limit{w.board.lock: w.board.limit}
	}
	return s
}

// order submits lists of jobs one after another, and waits for their ends.
func (w *world) order(c *client, lists [][]jobs.Spec, id int) {
	service := w.reach(c.actor).Jobs()
	w.script(func() {
		for _, list := range lists {
			if id++; slices.Contains(w.o.Mask.Idle, id-1) || c.pass(c.ctx, pointWork, "begins") != fine {
				continue
			}
			w.actions = append(w.actions, id-1)
			for _, s := range list {
				for k, key := range s.Extras().After { // in place of keys, what the jobs are known by
					at := slices.IndexFunc(list, func(o jobs.Spec) bool { return o.IdempotencyKey == key })
					if s.Extra.After[k] = fmt.Sprint("#", at); at < 0 {
						s.Extra.After[k] = cmp.Or(w.board.tasks[key], &task{id: "left-out"}).id
					}
				}
				w.say(c.actor, "submits job %s", s.IdempotencyKey)
			}
			got, err := service.Submit(c.ctx, list)
			for ; err != nil && c.ctx.Err() == nil && !errors.Is(err, lokt.ErrInvalid); got, err = service.Submit(c.ctx, list) { // the keys make it safe
				w.say(c.actor, "is refused: %s", w.reason(err))
				time.Sleep(time.Second)
			}
			if err != nil && c.ctx.Err() == nil {
				w.count("a job was to run after one that is not known")
			}
			for i, r := range got {
				w.say(c.actor, "knows that job %s is queued", list[i].IdempotencyKey)
				w.task(list[i].IdempotencyKey, r.JobID)
			}
			for i := range got {
				w.watch(c, service, list[i].IdempotencyKey)
			}
		}
	})
}

// watch looks at a job until it has ended, and ends it if it is a schedule.
func (w *world) watch(c *client, service jobs.Service, key string) {
	t, b := w.board.tasks[key], w.board
	for looks := 0; c.pass(c.ctx, pointWork, "looks") == fine; looks++ {
		v, err := service.Get(c.ctx, t.id)
		state, code := v.Job.State, v.Job.Code
		if jobs.Code(err) == jobs.Code(jobs.ErrJobNotFound) {
			w.count("a job is forgotten")
			w.deny(b.keep == 0 || !b.records[t.id].State.Ended(), "lost jobs", "job %s was acknowledged, and is not there", key)
			return
		}
		if err == nil && state == jobs.Scheduled && (looks > 20 || w.calm && w.now()-w.calmSince > settleIn/3) {
			w.cancel(c.actor, service, v.Job)
		}
		if err == nil && state.Ended() {
			w.say(c.actor, "sees that job %s has ended: %s, %s", key, state, code)
			w.count("a job ends: " + code)
			w.deny(t.told && state != jobs.Completed || state == jobs.Completed && !t.done, "lost jobs",
				"job %s is %s: done %t, and its worker was told so %t", key, state, t.done, t.told)
			w.checkOutput(c, service, key)
			return
		}
		w.sleep(2 * time.Second)
	}
}

// cancel cancels a job.
func (w *world) cancel(a *actor, service jobs.Service, j jobs.Job) {
	w.say(a, "cancels job %s", keyOf(&j))
	if _, err := service.Cancel(a.ctx, j.ID, ""); err == nil {
		w.stop(a, j)
	}
}

// stop notes that it is known to be acknowledged that a job was cancelled, or its lease revoked.
func (w *world) stop(a *actor, j jobs.Job) {
	if _, again := w.board.stopped[j.ID]; !again {
		w.say(a, "knows that job %s is not to go on", keyOf(&j))
		w.board.stopped[j.ID] = w.now()
	}
}

// checkOutput looks whether what is kept of a job's output is what was printed, once and in order.
func (w *world) checkOutput(c *client, service jobs.Service, key string) {
	o, _ := service.Output(c.ctx, w.board.tasks[key].id, 0)
	end := int64(0)
	for _, p := range o.Pieces {
		w.count("output is read")
		printed := slices.ContainsFunc(w.board.tasks[key].runs, func(r *run) bool {
			at := p.Offset - r.Job.Report().Printed
			return r.Lease.Attempt == p.Attempt && at >= 0 && at <= int64(len(r.printed)) && strings.HasPrefix(r.printed[at:], p.Text)
		})
		w.deny(p.Offset < end || !printed, "output", "job %s: %q of attempt %d, at offset %d and behind %d, was not printed so", key, p.Text, p.Attempt, p.Offset, end)
		end = p.End()
	}
}

// newWorker makes a process that is hired again when it has died.
func (w *world) newWorker(name string, r *rand.Rand, hire func(string, *rand.Rand)) *actor {
	a := w.newActor(name, r)
	a.again = func() bool {
		w.say(a, "starts again")
		hire(name, r)
		return true
	}
	w.workers = append(w.workers, a)
	return a
}

// hire starts a life of a worker.
func (w *world) hire(name string, r *rand.Rand) {
	a := w.newWorker(name, r, w.hire)
	o := worker.WorkerOptions{
		ID: fmt.Sprint(name, "-", a.index), Concurrency: 1 + a.index%2, Prefetch: a.index % 3, Units: a.index % 4 / 3 * 2,
		Wait: 5 * time.Second, Elapsed: a.elapsed, Notify: func(n worker.Notice) {
			if n.Run == nil {
				return
			}
			w.count("worker: " + string(n.Type))
			if n.Type == worker.NoticeEnded && n.State == jobs.Queued {
				w.count("worker: a job goes back")
			}
			if n.Type == worker.NoticeEnded && n.State == jobs.Completed {
				w.task(keyOf(&n.Run.Job), n.Run.Job.ID).told = true
			}
		},
	}
	service := w.reach(a).Jobs()
	k, err := worker.NewWorker(service, func(ctx context.Context, r *worker.Run) (any, error) { return nil, w.work(ctx, a, r) }, o)
	if err != nil {
		panic(err)
	}
	ctx, enough := context.WithTimeout(a.ctx, [...]time.Duration{time.Hour, time.Hour, randomly(w.late, time.Second, 2*time.Minute)}[w.late.IntN(3)])
	w.running.Go(func() {
		defer enough()
		defer context.AfterFunc(a.ctx, k.Stop)()
		if a.pass(a.ctx, pointWork, "begins") == fine {
			_ = k.Run(ctx)
		}
		if a.pass(a.ctx, pointWork, "ends") == fine {
			w.count("a worker drains")
			a.exit()
			a.again()
			a.again = nil
		}
	})
}

// work does a job.
func (w *world) work(ctx context.Context, a *actor, r *worker.Run) error {
	key := keyOf(&r.Job)
	me := &run{Grant: jobs.Grant{Lease: r.Lease, Job: r.Job}, a: a, err: r.Err, ctx: ctx}
	if a.pass(a.ctx, pointWork, "begins job "+key) != fine || r.Err() != nil {
		return r.Err()
	}
	t := w.begins(me)
	var plan struct {
		Touches, Gap int
		Fails, Saves bool
	}
	var saved uint64
	again, err := r.Resume(&saved)
	if again {
		w.count("an attempt goes on from a checkpoint")
	}
	lost := w.board.config.Shared && saved < t.saved // otherwise it is stored within a second
	w.deny(lost, "checkpoints", "job %s: attempt %d goes on from %d, and %d was acknowledged", key, r.Lease.Attempt, saved, t.saved)
	err = cmp.Or(err, r.Payload(&plan))
	for i := range plan.Touches {
		w.sleep(time.Duration(plan.Gap))
		if a.pass(a.ctx, pointWork, "works on job "+key) != fine {
			return a.ctx.Err()
		}
		if err = r.Err(); err != nil {
			break
		}
		if !plan.Saves {
			continue
		}
		text := fmt.Sprintf("%d of %d\n", i, r.Lease.Token)
		me.printed += text
		_, _ = r.Write([]byte(text))
		r.Progress(float64(i) / 5)
		if at := r.Token()<<8 + uint64(i); r.Checkpoint(ctx, at) == nil {
			t.saved = max(t.saved, at)
		}
	}
	if err == nil && plan.Fails {
		err = errPlanned
	}
	me.over, t.done = true, t.done || err == nil
	w.say(a, "has ended job %s: %v", key, err)
	return err
}

var errPlanned = errors.New("as planned")

// checkJobs looks whether a job runs twice at once, whether those that run share what there is, and whether workers are told what they should be.
func (w *world) checkJobs() {
	b := w.board
	units, locked := 0, []string(nil)
	for _, key := range slices.Sorted(maps.Keys(b.tasks)) {
		var now *run
		t := b.tasks[key]
		since, stopped := b.stopped[t.id]
		for _, r := range t.runs {
			if !r.believes() {
				continue
			}
			renewed := stopped && w.now() > since+b.config.Life()*21/20+time.Second
			w.deny(renewed, "cancelled jobs", "job %s: %s is at it %v after it was cancelled, or revoked", key, r.a.name, w.now()-since)
			if b.records[t.id].Code == jobs.CodeRevoked { // others may have what it had before it hears of that
				continue
			}
			if now != nil {
				w.broke("jobs run twice", "job %s: %s and %s are at it, with tokens %d and %d", key, now.a.name, r.a.name, now.Lease.Token, r.Lease.Token)
			}
			now = r
			units += r.Lease.Units
			if len(r.Job.Locks) > 0 {
				locked = append(locked, key)
			}
		}
	}
	w.deny(len(locked) > b.limit.Slots, "locks of jobs", "jobs %v run, and each has one lock", locked)
	w.deny(units > b.config.Total, "capacity", "jobs that take %d units run, and there are %d", units, b.config.Total)
}
