package manager

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/engine"
)

// locker takes, renews and gives back the locks that leased jobs need, as the engine orders: within the turn if
// the store has the locks, or else by asking the service that has them. What active leases hold is renewed
// whoever took it: managers that share a store do so for each other, lest a lock end with the process that took
// it.
type locker struct {
	m       *Manager
	service lokt.Service
	life    time.Duration // of a lock without renewal

	mu      sync.Mutex
	taken   map[string]engine.LockOrder // by lease: what was taken so far, until the engine knows
	tails   map[string]chan struct{}    // by lease: closed when the last order so far has been followed
	watched map[string]bool             // locks that somebody outside holds
}

// Bounds on what others may make the locker wait.
const (
	lockTimeout = 5 * time.Second // for an answer of the lock service
	// for the answer to a heartbeat: what is not known by then is told with the next
	lostTimeout = time.Second
	freeTimeout = 5 * time.Second       // for the locks of a job that ended, before its end is answered
	minWatch    = 50 * time.Millisecond // between looks at a lock: what seems to be free may be refused all the same
)

// ownerPrefix begins the owner of a lock that is held for a job; the job's ID follows.
const ownerPrefix = "job:"

func newLocker(m *Manager, s lokt.Service) *locker {
	return &locker{
		m: m, service: s, life: max(2*m.cfg.Life(), 30*time.Second), taken: map[string]engine.LockOrder{},
		tails: map[string]chan struct{}{}, watched: map[string]bool{},
	}
}

func (k *locker) claim(o engine.LockOrder, name string) lokt.Claim {
	return lokt.Claim{
		Name: name, LeaseID: o.LeaseID, Owner: lokt.Owner{ID: ownerPrefix + o.JobID, AnySession: true}, Strict: true,
		TTL: k.life,
	}
}

// within returns what carries out orders in a step of the store, and notes the locks that cannot be had.
func (k *locker) within(step lokt.Step, blocked *[]string) func(engine.LockOrder) engine.Op {
	return func(o engine.LockOrder) engine.Op {
		if o.Kind == engine.FreeLocks {
			for _, name := range o.Names {
				_, _ = step.Release(lokt.Target{Name: name, LeaseID: o.LeaseID}) // or it is not held any more
			}
			return engine.Unlocked{LeaseID: o.LeaseID}
		}
		claims := make([]lokt.Claim, len(o.Names))
		for i, name := range o.Names {
			claims[i] = k.claim(o, name)
		}
		holders, err := step.Acquire(claims...)
		done := engine.Locked{Order: o, Tokens: map[string]uint64{}}
		if err != nil {
			done.Blocked = o.Names[0]
			if b := (*lokt.BlockedError)(nil); errors.As(err, &b) {
				done.Blocked = b.Name
			}
			*blocked = append(*blocked, done.Blocked)
		}
		for _, h := range holders {
			done.Tokens[h.Name] = h.Token
		}
		return done
	}
}

// follow does what the engine orders, in the background, tells it when that is done, and then calls after; if
// that takes long, earlier. Orders for one lease are followed one after another: what one takes for a lease that
// is granted then, none that was given before gives back.
func (k *locker) follow(o engine.LockOrder, after func()) {
	done := make(chan struct{})
	k.mu.Lock()
	before := k.tails[o.LeaseID]
	k.tails[o.LeaseID] = done
	k.mu.Unlock()
	k.m.tasks.Go(func() {
		defer after()
		defer time.AfterFunc(freeTimeout, after).Stop()
		if before != nil {
			<-before
		}
		switch {
		case o.Kind == engine.FreeLocks:
			k.release(o.LeaseID, o.Names)
			k.tell(engine.Unlocked{LeaseID: o.LeaseID})
		case !k.active(o.LeaseID): // or it was granted after an order before this one
			k.offer(o)
		}
		close(done)
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.tails[o.LeaseID] == done {
			delete(k.tails, o.LeaseID)
		}
	})
}

// offer takes the locks, and tells the engine what came of it. Meanwhile the locks are renewed.
func (k *locker) offer(o engine.LockOrder) {
	tokens, blocked := k.take(o)
	if blocked != "" {
		k.setTaken(o, false)
		k.release(o.LeaseID, o.Names) // all of them: it is not always known what became of one
	}
	k.tell(engine.Locked{Order: o, Tokens: tokens, Blocked: blocked})
	k.setTaken(o, false)
	if blocked != "" {
		k.watch(blocked)
	}
}

func (k *locker) setTaken(o engine.LockOrder, taken bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if delete(k.taken, o.LeaseID); taken {
		k.taken[o.LeaseID] = o
	}
}

// tell passes on to the engine what came of an order, until it is known to have taken that in.
func (k *locker) tell(o engine.Op) {
	for {
		c, err := k.m.send(context.Background(), o)
		if err != nil {
			return
		}
		if r := <-c.done; r.Err == nil {
			return
		}
	}
}

// active reports whether the engine has the lease.
func (k *locker) active(leaseID string) bool {
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	return k.m.engine.Active(leaseID)
}

// take takes all the locks, in order of name. It returns their tokens, or the one that could not be had.
func (k *locker) take(o engine.LockOrder) (tokens map[string]uint64, blocked string) {
	names := slices.Sorted(slices.Values(o.Names))
	tokens = make(map[string]uint64, len(names))
	for i, name := range names {
		token, err := k.acquire(o, name)
		if err != nil && k.freeLeft(err, name) {
			token, err = k.acquire(o, name)
		}
		if err != nil {
			return nil, name
		}
		tokens[name] = token
		o.Names = names[:i+1]
		k.setTaken(o, true)
	}
	return tokens, ""
}

func (k *locker) acquire(o engine.LockOrder, name string) (token uint64, err error) {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockTimeout)
	defer cancel()
	h, err := k.service.Acquire(ctx, k.claim(o, name))
	return h.Token, err
}

// release gives locks back. One that cannot be given back ends by itself, within its life.
func (k *locker) release(leaseID string, names []string) {
	for _, name := range names {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(k.m.ctx), lockTimeout)
		_, _ = k.service.Release(ctx, lokt.Target{Name: name, LeaseID: leaseID})
		cancel()
	}
}

// freeLeft gives back what is in the way of a lock that a job needs, and was left behind by a manager of this
// store that was killed before it could give it back. It reports whether there was anything.
func (k *locker) freeLeft(err error, name string) (freed bool) {
	blocked := (*lokt.BlockedError)(nil)
	if !errors.As(err, &blocked) {
		return false
	}
	for _, h := range blocked.Holders {
		if jobID, ours := strings.CutPrefix(h.Owner.ID, ownerPrefix); ours && k.left(jobID, h.LeaseID) {
			k.release(h.LeaseID, []string{name})
			freed = true
		}
	}
	return freed
}

// left reports whether a lease is of a job of this store, and neither active nor about to be.
func (k *locker) left(jobID, leaseID string) bool {
	k.m.mu.Lock()
	e := k.m.engine
	wanted, lives := e.Active(leaseID) || e.Awaits(leaseID), e.Lives(jobID)
	k.m.mu.Unlock()
	if wanted || lives {
		return !wanted && !k.m.cfg.Shared // otherwise another manager may be about to grant it
	}
	ctx, cancel := context.WithTimeout(k.m.ctx, lockTimeout)
	defer cancel()
	_, err := k.m.store.Ended(ctx, jobID)
	return err == nil
}

// renew keeps the locks of leased jobs alive, until the manager is closed.
func (k *locker) renew() {
	tick := time.NewTicker(k.life / 4)
	defer tick.Stop()
	for {
		k.mu.Lock()
		orders := slices.Collect(maps.Values(k.taken))
		k.mu.Unlock()
		k.m.mu.Lock()
		orders = append(orders, k.m.engine.LocksHeld()...)
		k.m.mu.Unlock()
		for _, o := range orders {
			for _, name := range o.Names {
				k.renewOne(o, name)
			}
		}
		select {
		case <-k.m.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// renewOne renews a lock, and takes it up again if it was lost, as after a restart that took long.
func (k *locker) renewOne(o engine.LockOrder, name string) {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockTimeout)
	defer cancel()
	_, err := k.service.Renew(ctx, lokt.Renewal{Name: name, LeaseID: o.LeaseID})
	if errors.Is(err, lokt.ErrNotFound) && k.wanted(o.LeaseID) {
		// somebody else may have it now: then it is theirs, and tried again with the next renewal
		_, _ = k.acquire(o, name)
		if !k.wanted(o.LeaseID) {
			k.release(o.LeaseID, []string{name})
		}
	}
}

// wanted reports whether the locks of a lease are to be held. It has seen what other managers had stored when it
// was called: what one of them ends later, it gives back itself.
func (k *locker) wanted(leaseID string) bool {
	k.mu.Lock()
	_, taken := k.taken[leaseID]
	k.mu.Unlock()
	if taken {
		return true
	}
	if k.m.cfg.Shared {
		_, _ = k.m.do(k.m.ctx, engine.Status{}) // if it fails, what is known must do
	}
	return k.active(leaseID)
}

// lost returns the locks of leases that are not held as they were when these were granted, by lease: not at all,
// or with a newer token, so that somebody else may have held them in between. What cannot be found out is not
// lost.
func (k *locker) lost(ctx context.Context, leaseIDs ...string) map[string][]string {
	k.m.mu.Lock()
	held := k.m.engine.LocksOf(leaseIDs)
	k.m.mu.Unlock()
	if len(held) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	all := map[string][]string{}
	for _, o := range held {
		lost := slices.DeleteFunc(slices.Sorted(slices.Values(o.Names)), func(name string) bool {
			return !k.gone(ctx, o.LeaseID, name, o.Tokens[name])
		})
		if len(lost) > 0 && k.active(o.LeaseID) { // otherwise they were given back meanwhile
			all[o.LeaseID] = lost
		}
	}
	return all
}

// gone reports whether it is certain that a lock is not held for a lease as it was. A token of 0 is not known.
func (k *locker) gone(ctx context.Context, leaseID, name string, token uint64) bool {
	s, err := k.service.Get(ctx, name)
	if err != nil || s.Lock.Corrupt != "" || s.Lock.Freeze != nil && s.Lock.Freeze.Damaged != "" {
		return false
	}
	h, held := s.Lock.Holder(leaseID)
	if held {
		_, stale := s.Stale(h)
		held = !stale
	}
	return !held || token != 0 && h.Token != token
}

// tellLost completes answers to heartbeats.
func (m *Manager) tellLost(ctx context.Context, all []jobs.LeaseAnswer) {
	if m.locks == nil {
		return
	}
	leaseIDs := make([]string, len(all))
	for i := range all {
		leaseIDs[i] = all[i].LeaseID
	}
	lost := m.locks.lost(ctx, leaseIDs...)
	for i := range all {
		if all[i].Err == nil {
			all[i].LostLocks = lost[all[i].LeaseID]
		}
	}
}

// watch tells the engine when a lock that somebody outside holds may be had, and in any case after a while: if the
// engine still cannot have it then, it is watched anew.
func (k *locker) watch(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.watched[name] {
		return
	}
	k.watched[name] = true
	k.m.tasks.Go(func() {
		k.awaitVacancy(name)
		k.mu.Lock()
		delete(k.watched, name)
		k.mu.Unlock()
		k.tell(engine.Vacant{Lock: name})
	})
}

// awaitVacancy waits until nobody holds the lock and nobody waits for it, but no longer than LockRetry.
func (k *locker) awaitVacancy(name string) {
	ctx, cancel := context.WithTimeout(k.m.ctx, engine.LockRetry)
	defer cancel()
	for first := true; ctx.Err() == nil; first = false {
		s, err := k.service.Get(ctx, name)
		ends, vacant := vacancy(s)
		wait := engine.LockRetry
		switch {
		case err != nil:
		case vacant && !first:
			return
		case vacant: // just now, or it is not what it seems
			wait = minWatch
		case !ends.IsZero():
			wait = max(ends.Sub(s.Now), minWatch)
		}
		waiting, done := context.WithTimeout(ctx, wait)
		if err == nil {
			err = k.service.Wait(waiting, lokt.Watch{Name: name, Seen: s.Lock.Revision})
		}
		if err != nil { // the time is over, or the service cannot tell
			<-waiting.Done()
		}
		done()
	}
}

// vacancy reports whether a lock can be had by somebody who is not in its queue, and otherwise when the first of
// its holds, or its freeze, ends by itself; zero for never.
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
