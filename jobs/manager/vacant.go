package manager

import (
	"context"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs/engine"
)

// minWatch is the least time between two looks at a lock that somebody outside holds: what is said to be free may be refused all the same.
const minWatch = 50 * time.Millisecond

// watch tells the engine when a lock that somebody outside holds can be had, if that is before the engine tries it again by itself.
func (k *locker) watch(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.watched[name]; ok {
		k.watched[name] = true // the watch may be about to end: the engine tries the lock again at the same moment
		return
	}
	k.watched[name] = false
	k.m.task(func() {
		for more := true; more; {
			vacant := k.awaitVacancy(name)
			k.mu.Lock()
			if more = k.watched[name] && !vacant; more {
				k.watched[name] = false
			} else {
				delete(k.watched, name)
			}
			k.mu.Unlock()
			if vacant {
				k.tell(engine.Vacant{Lock: name})
			}
		}
	})
}

// awaitVacancy waits until nobody holds the lock and nobody waits for it, and reports whether that came in time.
func (k *locker) awaitVacancy(name string) bool {
	ctx, cancel := context.WithTimeout(k.m.ctx, engine.LockRetry)
	defer cancel()
	for first := true; ; first = false {
		s, err := k.service.Get(ctx, name)
		if err != nil {
			return false
		}
		wait := engine.LockRetry
		switch ends, vacant := vacancy(s); {
		case vacant && !first:
			return true
		case vacant: // just now, or it is not what it seems
			wait = minWatch
		case !ends.IsZero():
			wait = max(ends.Sub(s.Now), minWatch)
		}
		waiting, done := context.WithTimeout(ctx, wait)
		err = k.service.Wait(waiting, lokt.Watch{Name: name, Seen: s.Lock.Revision})
		over := waiting.Err() != nil
		done()
		if ctx.Err() != nil || err != nil && !over {
			return false
		}
	}
}

// vacancy reports whether a lock can be had by somebody who is not in its queue, and otherwise when the first of its holds, or its freeze,
// ends by itself; zero for never.
func vacancy(s lokt.Snapshot) (ends time.Time, vacant bool) {
	consider := func(t time.Time) {
		if !t.IsZero() && (ends.IsZero() || t.Before(ends)) {
			ends = t
		}
	}
	live := s.Live()
	for i := range live {
		consider(live[i].ExpiresAt)
	}
	frozen := s.Frozen()
	if frozen != nil {
		consider(frozen.ExpiresAt)
	}
	waits := slices.ContainsFunc(s.Lock.Queue, func(w *lokt.Waiter) bool { return !s.Away(w) })
	return ends, len(live) == 0 && frozen == nil && s.Lock.Corrupt == "" && !waits
}
