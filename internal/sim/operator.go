package sim

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
)

// operate has a person end, pass on and hold up what the clients have.
func (w *world) operate(r *rand.Rand, ttl time.Duration) {
	me := w.newActor("operator", r)
	service := w.reach(me)
	w.vague = true // the history does not have it
	w.harm, w.strike, w.allowed[copied] = max(w.harm, 0.1), make(chan struct{}), true
	w.script(func() {
		for k := range 5 + r.IntN(15) {
			id, name, to := 900+k, slices.Sorted(maps.Keys(lockNames))[r.IntN(3)], w.scripts[r.IntN(len(w.scripts))].locker.Owner()
			what, named, long := r.IntN(5), r.IntN(3) == 0, randomly(r, lokt.MinTTL, ttl)
			if w.sleep(randomly(r, time.Millisecond, ttl)); slices.Contains(w.o.Mask.Idle, id) || me.pass(me.ctx, pointWork, "begins") != fine {
				continue
			}
			w.actions = append(w.actions, id)
			for _, c := range w.scripts {
				if !c.died && len(c.held) > 0 && what < 2 { // or most locks would be free
					name = c.held[0].Name()
				}
			}
			by := lokt.Owner{ID: fmt.Sprint("operator-", id), Session: "1"}
			s, err := service.Get(me.ctx, name)
			t := lokt.Target{Name: name, Owner: by, Force: true, UpTo: s.Lock.Token}
			if live := s.Live(); named && len(live) > 0 {
				t.LeaseID = live[0].LeaseID
			} else {
				w.looked[by.ID] = s.Lock.Token
			}
			switch {
			case err != nil || len(s.Lock.Holders) == 0 && what < 3:
			case what < 2:
				w.say(me, "unlocks %s by force", name)
				_, err = service.Release(me.ctx, t)
			case what == 2:
				w.say(me, "passes %s to %s", name, to.ID)
				_, err = service.Tell(me.ctx, t, lokt.Message{Pass: &lokt.Claim{Owner: to, TTL: long}})
			case what == 3:
				if _, err = service.Freeze(me.ctx, name, lokt.Freeze{Owner: by, TTL: long}); err == nil {
					w.sleep(long / 2)
					_, err = service.Unfreeze(me.ctx, lokt.Target{Name: name, Owner: by})
				}
			default:
				_, err = service.Acquire(me.ctx, lokt.Claim{Name: name, Owner: by, Limit: lockNames[name], TTL: long})
			}
			if err != nil {
				w.say(me, "is refused: %s", w.reason(err))
			}
		}
	})
}

// forced notes what an operator's request has ended or passed on, and looks whether it was there when the operator looked.
func (w *world) forced(e lokt.Event) {
	if e.Type != lokt.EventForceBreak && e.Type != lokt.EventPass {
		return
	}
	if most, looked := w.looked[e.Extra[lokt.ExtraBy]]; looked && e.Token > most {
		w.broke("late force", "lock %s: %s of token %d, and its operator had looked at %d", e.Name, e.Type, e.Token, most)
	}
	w.forcedOut[grant{e.LeaseID, e.Token}] = true
	if e.Type == lokt.EventForceBreak { // its holder hears of it with the next renewal, or relies on the last one
		w.ended[grant{e.LeaseID, e.Token}] = w.now() + cmp.Or(e.TTL, time.Hour)
		close(w.strike)
		w.strike = make(chan struct{})
	}
}
