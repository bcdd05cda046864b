package manager

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/engine"
)

// locker has the locks of leased jobs taken, renewed and given back, as the engine orders: within the turn if the
// store has the locks, or else by the service that has them. Every manager renews what active leases hold, whoever
// took it, lest a lock end with the process that did.
type locker struct {
	m       *Manager
	service lokt.Service
	life    time.Duration // of a lock without renewal

	mu    sync.Mutex
	tails map[string]chan struct{} // by lease: closed when the last order so far has been followed

	standing string // the ID of the job for whose locks somebody stands in their queues; under m.mu
	leave    context.CancelFunc
}

// Bounds on what others may make the locker wait.
const (
	lockTimeout = 5 * time.Second // for an answer of the lock service
	// for the answer to a heartbeat: what is not known by then is told with the next
	lostTimeout = time.Second
	keptLife    = 30 * time.Second      // of a lock that is kept for a job whose manager is gone
	minWatch    = 50 * time.Millisecond // between tries of a lock: what seems to be free may be refused all the same
	atOnce      = 64                    // renewals under way, so that each may take a while, and they share what it takes to store them
)

func newLocker(m *Manager, s lokt.Service) *locker {
	return &locker{m: m, service: s, life: max(2*m.cfg.Life(), 30*time.Second), tails: map[string]chan struct{}{}}
}

func (k *locker) claim(o engine.LockOrder, name string) lokt.Claim {
	return lokt.Claim{
		Name: name, LeaseID: o.LeaseID, Owner: jobOwner(o.JobID), Strict: true, TTL: k.life, Limit: o.Limits[name].Slots,
	}
}

func jobOwner(jobID string) lokt.Owner {
	return lokt.Owner{ID: jobs.OwnerPrefix + jobID, AnySession: true}
}

// within carries out an order in a step of the store.
func (k *locker) within(step lokt.Step, o engine.LockOrder) engine.Op {
	if o.Kind == engine.FreeLocks {
		for _, name := range o.Names {
			_, _ = step.Release(lokt.Target{Name: name, LeaseID: o.LeaseID}) // or it is not held any more
		}
		return engine.Unlocked{LeaseID: o.LeaseID}
	}
	return k.locked(o, step.Acquire)
}

// locked has all the locks acquired, or none, and returns what came of it.
func (k *locker) locked(o engine.LockOrder, acquire func(...lokt.Claim) ([]lokt.Holder, error)) engine.Locked {
	claims := make([]lokt.Claim, len(o.Names))
	for i, name := range o.Names {
		claims[i] = k.claim(o, name)
	}
	holders, err := acquire(claims...)
	done := engine.Locked{Order: o, Tokens: make(map[string]uint64, len(holders))}
	if err != nil {
		done.Blocked = o.Names[0]
		if b := (*lokt.BlockedError)(nil); errors.As(err, &b) {
			done.Blocked = b.Name
		}
	}
	for _, h := range holders {
		done.Tokens[h.Name] = h.Token
	}
	return done
}

// follow carries out an order with another service, in the background, and tells the engine. Orders for one lease are
// followed one after another: what one takes for a lease that is granted then, none that was given before gives back.
func (k *locker) follow(o engine.LockOrder) {
	done := make(chan struct{})
	k.mu.Lock()
	before := k.tails[o.LeaseID]
	k.tails[o.LeaseID] = done
	k.mu.Unlock()
	k.m.tasks.Go(func() {
		if before != nil {
			<-before
		}
		switch {
		case o.Kind == engine.FreeLocks:
			k.release(o.LeaseID, o.Names...)
			k.m.tell(engine.Unlocked{LeaseID: o.LeaseID})
		case k.active(o.LeaseID): // it was granted after an order before this one
		case !k.m.tell(k.locked(o, k.acquireAll)) && !k.active(o.LeaseID):
			k.release(o.LeaseID, o.Names...)
		}
		close(done)
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.tails[o.LeaseID] == done {
			delete(k.tails, o.LeaseID)
		}
	})
}

// acquireAll acquires all the locks, in order of name, or none. What others see meanwhile is some of them.
func (k *locker) acquireAll(claims ...lokt.Claim) (holders []lokt.Holder, err error) {
	slices.SortFunc(claims, func(a, b lokt.Claim) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range claims {
		h, err := k.acquire(c)
		if err != nil && k.freeLeft(err, c.Name) {
			h, err = k.acquire(c)
		}
		if err != nil {
			names := make([]string, len(claims))
			for i := range claims { // all of them: it is not always known what became of one
				names[i] = claims[i].Name
			}
			k.release(c.LeaseID, names...)
			return nil, &lokt.BlockedError{Name: c.Name}
		}
		holders = append(holders, h)
	}
	return holders, nil
}

func (k *locker) acquire(c lokt.Claim) (lokt.Holder, error) {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockTimeout)
	defer cancel()
	return k.service.Acquire(ctx, c)
}

// release gives locks back, all at once. One that cannot be given back ends by itself, within its life.
func (k *locker) release(leaseID string, names ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.m.ctx), lockTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() { _, _ = k.service.Release(ctx, lokt.Target{Name: name, LeaseID: leaseID}) })
	}
	all.Wait()
}

// active reports whether the engine has the lease.
func (k *locker) active(leaseID string) bool {
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	return k.m.engine.Active(leaseID)
}

// freeLeft gives back what is in the way of a lock that a job needs, and was left behind by a manager of this
// store that was killed before it could give it back. It reports whether there was anything.
func (k *locker) freeLeft(err error, name string) (freed bool) {
	blocked := (*lokt.BlockedError)(nil)
	if !errors.As(err, &blocked) {
		return false
	}
	for _, h := range blocked.Holders {
		if jobID, ours := strings.CutPrefix(h.Owner.ID, jobs.OwnerPrefix); ours && k.left(jobID, h.LeaseID) {
			k.release(h.LeaseID, name)
			freed = true
		}
	}
	return freed
}

// left reports whether a lease is of a job of this store, and neither active nor about to be.
func (k *locker) left(jobID, leaseID string) bool {
	k.m.mu.Lock()
	wanted, lives := k.m.engine.Wanted(leaseID) || jobID == k.standing, k.m.engine.Lives(jobID)
	k.m.mu.Unlock()
	if wanted || lives {
		return !wanted && !k.m.cfg.Shared // otherwise another manager may be about to grant it
	}
	ctx, cancel := context.WithTimeout(k.m.ctx, lockTimeout)
	defer cancel()
	_, err := k.m.store.Ended(ctx, jobID)
	return err == nil
}

// stand has the manager stand in the queues of the locks of the job whose turn it is at them, and of no other: those outside
// always wait for them otherwise.
func (k *locker) stand(o engine.LockOrder) {
	if o.JobID == k.standing {
		return
	}
	if k.leave != nil {
		k.leave()
	}
	k.standing, k.leave = o.JobID, nil
	if o.JobID == "" {
		return
	}
	var ctx context.Context
	ctx, k.leave = context.WithCancel(k.m.ctx)
	k.m.tasks.Go(func() {
		for ctx.Err() == nil {
			k.standIn(ctx, o)
			select {
			case <-ctx.Done():
			case <-time.After(engine.LockRetry):
			}
		}
	})
}

// standIn waits for the locks, one after another in order of name, and keeps them until it is over or one is lost. The holds are the
// job's own, and not strict: what it takes for a lease it gets beside them.
func (k *locker) standIn(ctx context.Context, o engine.LockOrder) {
	l, err := lokt.NewLocker(k.service, jobOwner(o.JobID), lokt.LockerOptions{})
	if err != nil {
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTimeout)
		defer cancel()
		_ = l.Close(ctx) // what is not given back ends by itself
	}()
	for _, name := range slices.Sorted(slices.Values(o.Names)) {
		lease, err := l.Acquire(ctx, name, lokt.Options{TTL: keptLife, Wait: -1, Limit: o.Limits[name].Slots})
		if err != nil {
			return
		}
		ctx = lease.Context() // what waits in it is known to keep this lock
		k.m.tell(engine.Vacant{Lock: name})
	}
	<-ctx.Done()
}

// renew keeps the locks of leased jobs alive, until the manager is closed: also those that a manager took which had a shorter
// time for them.
func (k *locker) renew() {
	for k.m.ctx.Err() == nil {
		k.m.mu.Lock()
		orders := k.m.engine.LocksHeld()
		k.m.mu.Unlock()
		begun, least := time.Now(), k.life
		var mu sync.Mutex
		var all sync.WaitGroup
		slots := make(chan struct{}, atOnce)
		for _, o := range orders {
			for _, name := range o.Names {
				slots <- struct{}{}
				all.Go(func() {
					ttl := k.renewOne(o, name)
					mu.Lock()
					least = min(least, cmp.Or(ttl, least))
					mu.Unlock()
					<-slots
				})
			}
		}
		all.Wait()
		select {
		case <-k.m.ctx.Done():
		case <-time.After(time.Until(begun.Add(least / 4))):
		}
	}
}

// renewOne renews a lock, and takes it up again if it was lost, as after a restart that took long. What other managers
// had stored when it was called is seen first: what one of them ends later, it gives back itself. It returns the lock's time
// to live, 0 if that is not known.
func (k *locker) renewOne(o engine.LockOrder, name string) (ttl time.Duration) {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockTimeout)
	defer cancel()
	h, err := k.service.Renew(ctx, lokt.Renewal{Name: name, LeaseID: o.LeaseID})
	if over(err) && k.lives(o.LeaseID) {
		// somebody else may have it now: then it is theirs, and tried again with the next renewal
		_, _ = k.acquire(k.claim(o, name))
		if !k.lives(o.LeaseID) {
			k.release(o.LeaseID, name)
		}
	}
	return h.TTL
}

// over reports whether a renewal says that the hold has ended, whoever holds the lock now.
func over(err error) bool {
	return errors.Is(err, lokt.ErrNotFound) || errors.Is(err, lokt.ErrNotOwner)
}

// lives reports whether the lease is active. It first takes in what other managers have stored; if that fails, what is known must do.
func (k *locker) lives(leaseID string) bool {
	if k.m.cfg.Shared {
		ctx, cancel := context.WithTimeout(k.m.ctx, lockTimeout)
		defer cancel()
		_, _ = k.m.do(ctx, engine.Status{})
	}
	return k.active(leaseID)
}

// kept renews the locks of a lease, and reports whether they are held as they were taken, as far as can be found out.
func (k *locker) kept(ctx context.Context, l *jobs.Lease) bool {
	ctx, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	for name, token := range l.LockTokens {
		h, err := k.service.Renew(ctx, lokt.Renewal{Name: name, LeaseID: l.ID})
		if over(err) || err == nil && h.Token != token {
			return false
		}
	}
	return true
}

// tellLost completes answers to heartbeats: with the locks that are not held as they were when the leases were
// granted, but not at all, or with a newer token, so that somebody else may have held them in between, or that go to
// another soon. What cannot be found out is not lost.
func (k *locker) tellLost(ctx context.Context, all []jobs.LeaseAnswer) {
	orders := map[int]engine.LockOrder{}
	k.m.mu.Lock()
	for i := range all {
		if o, held := k.m.engine.LocksOf(all[i].LeaseID); held && all[i].Err == nil {
			orders[i] = o
		}
	}
	k.m.mu.Unlock()
	if len(orders) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	for i := range all { // in their order; one without locks has an order without names
		o := orders[i]
		lost := slices.DeleteFunc(slices.Sorted(slices.Values(o.Names)), func(name string) bool {
			return !k.gone(ctx, o.LeaseID, name, o.Tokens[name])
		})
		if len(lost) > 0 && k.active(o.LeaseID) { // otherwise they were given back meanwhile
			all[i].LostLocks = lost
		}
	}
}

// gone reports whether it is certain that a lock is not held for a lease as it was, or that its hold, renewed or not, ends
// because another wants it. A token of 0 is not known.
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
	return !held || token != 0 && h.Token != token || h.Yield != nil && !h.Yield.Deadline.IsZero()
}

// watch tells the engine when a lock that was refused may be had: it has changed, as it may have before this looks, or the time of a hold
// or freeze is over. The engine tries it again after LockWatch in any case; if it is refused then, it is watched anew.
func (k *locker) watch(o engine.LockOrder) {
	name := o.Names[0]
	k.m.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(k.m.ctx, engine.LockWatch)
		defer cancel()
		least := time.NewTimer(minWatch)
		defer least.Stop()
		s, err := k.service.Get(ctx, name)
		if err == nil && s.WouldGrant(k.claim(o, name)) != nil {
			next := engine.LockWatch
			if at := s.NextChange(); !at.IsZero() {
				next = at.Sub(s.Now) + time.Millisecond // a hold ends after its time, not at it
			}
			waiting, done := context.WithTimeout(ctx, next)
			if err = k.service.Wait(waiting, lokt.Watch{Name: name, Seen: s.Lock.Revision}); waiting.Err() != nil {
				err = nil
			}
			done()
		}
		if err != nil { // the service cannot tell
			least.Reset(engine.LockRetry)
		}
		select {
		case <-least.C:
			k.m.tell(engine.Vacant{Lock: name})
		case <-ctx.Done():
		}
	})
}
