package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

var frozenTypes = []string{"other", "generic", ""}

// manage has a person cancel jobs, take leases away, freeze types, and look.
func (w *world) manage(r *rand.Rand) {
	me := w.newActor("boss", r)
	service, types := w.reach(me).Jobs(), slices.Clone(frozenTypes) // each once: a late copy of one request does not undo the other then
	w.script(func() {
		for k := range 4 + r.IntN(12) {
			id, what, long := 900+k, r.IntN(8), randomly(r, time.Second, 20*time.Second)
			if w.sleep(randomly(r, 10*time.Millisecond, 20*time.Second)); slices.Contains(w.o.Mask.Idle, id) || me.pass(me.ctx, pointWork, "begins") != fine {
				continue
			}
			w.actions = append(w.actions, id)
			p, err := service.List(me.ctx, jobs.Filter{})
			if err != nil {
				w.say(me, "is refused: %s", w.reason(err))
				continue
			}
			w.checkPage(p)
			living := slices.DeleteFunc(p.Jobs, func(v jobs.View) bool { return v.Job.State.Ended() })
			v := jobs.View{}
			if len(living) > 0 {
				v = living[r.IntN(len(living))]
			}
			switch {
			case what < 3 && v.Job.ID != "":
				w.cancel(me, service, v.Job)
			case what == 3 && v.Lease != nil:
				w.say(me, "revokes the lease of job %s", keyOf(&v.Job))
				if service.Revoke(me.ctx, v.Lease.ID, "") == nil {
					w.stop(me, v.Job)
				}
			case what < 6 && len(types) > 0:
				of := types[0]
				types = types[1:]
				w.say(me, "freezes %q", of)
				if service.Freeze(me.ctx, of) == nil && !w.calm { // when somebody ends all of them
					w.say(me, "knows that %q is frozen", of)
					w.board.frozen[of] = true
				}
				w.sleep(long)
				w.thaw(me, service, of)
			case what == 6:
				_, _ = service.Stats(me.ctx, 1)
				_, _ = service.Decisions(me.ctx, 1)
				_, _ = service.Workers(me.ctx)
				_, _ = service.CountEnded(me.ctx, jobs.Completed, "")
			}
		}
	})
}

// thaw ends freezes.
func (w *world) thaw(me *actor, service jobs.Service, types ...string) {
	for _, of := range types {
		delete(w.board.frozen, of)
		w.say(me, "unfreezes %q", of)
		for service.Unfreeze(me.ctx, of) != nil && me.ctx.Err() == nil {
			time.Sleep(time.Second)
		}
	}
}

// checkPage looks whether a list says what adds up.
func (w *world) checkPage(p jobs.Page) {
	units := 0
	for _, v := range p.Jobs {
		if v.Lease != nil {
			units += v.Lease.Units
		}
		if what, _, _ := strings.Cut(v.WaitingFor, ":"); what != "" {
			w.count("a job waits: " + what)
		}
	}
	s := p.Snapshot
	w.deny(units != s.Leased || s.Available < 0, "sums", "leases of %d units are listed, and said to be %d, with %d left", units, s.Leased, s.Available)
}

// hireTemp starts a life of a worker that keeps to the plain contract: it asks for some jobs, keeps all of them with one heartbeat,
// and goes by the clock.
func (w *world) hireTemp(name string, r *rand.Rand) {
	a := w.newWorker(name, r, w.hireTemp)
	service, id := w.reach(a).Jobs(), fmt.Sprint(name, "-", a.index)
	w.running.Go(func() {
		for a.pass(a.ctx, pointWork, "asks") == fine {
			var mine []*run
			for range 1 + a.index%3 {
				asked := w.now()
				if g, err := service.Request(a.ctx, jobs.Request{WorkerID: id}); err == nil && g.Denied == nil {
					me := &run{Grant: g, a: a, until: asked + lokt.Usable(g.Lease.TTL, g.Lease.TTL/10)}
					most := asked + lokt.Usable(cmp.Or(g.Job.MaxRuntime, time.Hour), 0)
					me.err = func() (err error) {
						if w.now() > min(me.until, most) {
							err = lokt.ErrLost
						}
						return err
					}
					mine = append(mine, me)
				}
			}
			if len(mine) == 0 || w.attend(a, service, id, mine) != nil {
				w.sleep(2 * time.Second)
			}
		}
	})
}

// attend does jobs at the same time, as far as their leases last.
func (w *world) attend(a *actor, service jobs.Service, id string, mine []*run) (err error) {
	ids := make([]string, len(mine))
	for i, r := range mine {
		ids[i], r.over = r.Lease.ID, true
		if a.pass(a.ctx, pointWork, "begins job "+keyOf(&r.Job)) == fine && r.err() == nil {
			r.over = false
			w.begins(r)
		}
	}
	for beat := range 1 + a.index%4 {
		asked := w.now()
		all, err := service.HeartbeatAll(a.ctx, id, ids)
		for i, l := range all {
			mine[i].over = mine[i].over || l.Err != nil || l.Cancel
			mine[i].until = asked + lokt.Usable(mine[i].Lease.TTL, mine[i].Lease.TTL/10)
		}
		if err == nil && len(all) > 1 {
			w.count("heartbeats are sent together")
		}
		_ = service.Report(a.ctx, jobs.Progress{LeaseID: ids[0], WorkerID: id, Progress: new(float64(beat) / 5)})
		if w.sleep(w.board.config.TTL / 4); a.pass(a.ctx, pointWork, "works on jobs") != fine {
			return a.ctx.Err()
		}
	}
	for i, r := range mine {
		t, c := w.task(keyOf(&r.Job), r.Job.ID), jobs.Completion{LeaseID: ids[i], WorkerID: id, Status: jobs.Failed}
		if !r.over && r.err() == nil {
			t.done, c.Status = true, jobs.Completed
		}
		r.over = true
		w.say(a, "has ended job %s: %s", keyOf(&r.Job), c.Status)
		applied, failed := service.Complete(a.ctx, c)
		t.told, err = t.told || applied && c.Status == jobs.Completed, cmp.Or(err, failed)
	}
	return err
}
