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

// locker takes, renews and gives back the locks that leased jobs need, as the engine orders. What leases of the engine hold
// is renewed whoever took it: managers that share a store do so for each other, lest a lock end with the process that took it.
type locker struct {
	m       *Manager
	service lokt.Service
	life    time.Duration // of a lock without renewal

	mu    sync.Mutex
	taken map[string]engine.LockOrder // by lease: the engine does not know of it yet
	tails map[string]chan struct{}    // by lease: closed when the last order so far has been followed

	watched map[string]bool // locks that somebody outside holds, and that are looked at until they are tried again: whether they are to be looked at for longer
}

// lockPatience bounds how long a lock service may take to answer.
const lockPatience = 5 * time.Second

func newLocker(m *Manager, s lokt.Service) *locker {
	return &locker{
		m: m, service: s, life: max(2*m.cfg.Life(), 30*time.Second), taken: map[string]engine.LockOrder{}, tails: map[string]chan struct{}{},
		watched: map[string]bool{},
	}
}

// follow does what the engine orders, in the background, and tells it when it is done. Orders for one lease are followed one
// after another: what one takes for a lease that is granted then, none that was given before gives back.
func (k *locker) follow(o engine.LockOrder) {
	done := make(chan struct{})
	k.mu.Lock()
	before := k.tails[o.LeaseID]
	k.tails[o.LeaseID] = done
	k.mu.Unlock()
	k.m.task(func() {
		defer k.end(o.LeaseID, done)
		if before != nil {
			<-before
		}
		switch {
		case o.Kind == engine.FreeLocks:
			k.release(o, o.Names)
			k.tell(engine.Unlocked{LeaseID: o.LeaseID})
		case !k.active(o.LeaseID): // or it was granted after an order before this one
			k.offer(o)
		}
	})
}

// end lets the next order for the lease begin.
func (k *locker) end(leaseID string, done chan struct{}) {
	close(done)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tails[leaseID] == done {
		delete(k.tails, leaseID)
	}
}

// offer takes the locks, and tells the engine what came of it until it has taken that in. Meanwhile the locks are renewed.
func (k *locker) offer(o engine.LockOrder) {
	tokens, blocked := k.take(o)
	if blocked == "" {
		k.mu.Lock()
		k.taken[o.LeaseID] = o
		k.mu.Unlock()
		defer func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			delete(k.taken, o.LeaseID)
		}()
	}
	for {
		c, err := k.m.send(context.Background(), engine.Locked{Order: o, Tokens: tokens, Blocked: blocked})
		if err != nil {
			return
		}
		if r := <-c.done; r.Err == nil { // otherwise it is not known what was stored
			if blocked != "" {
				k.watch(blocked)
			}
			return
		}
	}
}

// tell passes on to the engine what came of an order. Nobody waits for an answer.
func (k *locker) tell(o engine.Op) {
	c, err := k.m.send(context.Background(), o)
	if err == nil {
		k.m.forgo(c)
	}
}

// active reports whether the engine has the lease.
func (k *locker) active(leaseID string) bool {
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	return k.m.engine.Active(leaseID)
}

// take takes all the locks, in order of name, or none. It returns their tokens, or the one that could not be had. Where that
// takes long, those that it has are renewed meanwhile.
func (k *locker) take(o engine.LockOrder) (tokens map[string]uint64, blocked string) {
	names := slices.Sorted(slices.Values(o.Names))
	tokens = make(map[string]uint64, len(names))
	renewed := time.Now()
	for i, name := range names {
		token, err := k.acquire(o, name)
		if err != nil && k.free(err, name) {
			token, err = k.acquire(o, name)
		}
		if err != nil {
			k.release(o, names[:i+1]) // that one too: it is not always known what became of it
			return nil, name
		}
		tokens[name] = token
		if time.Since(renewed) < k.life/8 {
			continue
		}
		renewed = time.Now()
		for _, had := range names[:i+1] {
			if k.keep(o, had) != nil {
				k.release(o, names[:i+1])
				return nil, had
			}
		}
	}
	return tokens, ""
}

// keep renews a lock that is held.
func (k *locker) keep(o engine.LockOrder, name string) error {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockPatience)
	defer cancel()
	_, err := k.service.Renew(ctx, lokt.Renewal{Name: name, LeaseID: o.LeaseID})
	return err
}

func (k *locker) acquire(o engine.LockOrder, name string) (token uint64, err error) {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockPatience)
	defer cancel()
	h, err := k.service.Acquire(ctx, lokt.Claim{
		Name: name, LeaseID: o.LeaseID, Owner: lokt.Owner{ID: ownerPrefix + o.JobID, AnySession: true}, Strict: true, TTL: k.life,
	})
	return h.Token, err
}

// release gives locks back. One that cannot be given back ends by itself, within its life.
func (k *locker) release(o engine.LockOrder, names []string) {
	for _, name := range names {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(k.m.ctx), lockPatience)
		_, _ = k.service.Release(ctx, lokt.Target{Name: name, LeaseID: o.LeaseID})
		cancel()
	}
}

// ownerPrefix begins the owner of a lock that is held for a job; the job's ID follows.
const ownerPrefix = "job:"

// free gives back what is in the way of a lock that a job needs, and was left behind by jobs that have ended: whoever held it
// for them was killed before it could give it back. It reports whether there was anything.
func (k *locker) free(err error, name string) (freed bool) {
	var blocked *lokt.BlockedError
	if !errors.As(err, &blocked) {
		return false
	}
	ctx, cancel := context.WithTimeout(k.m.ctx, lockPatience)
	defer cancel()
	for _, h := range blocked.Holders {
		if jobID, ours := strings.CutPrefix(h.Owner.ID, ownerPrefix); ours && k.over(ctx, jobID) {
			k.release(engine.LockOrder{LeaseID: h.LeaseID}, []string{name})
			freed = true
		}
	}
	return freed
}

// over reports whether a job of this store has ended: no lease of it will ever be active.
func (k *locker) over(ctx context.Context, jobID string) bool {
	k.m.mu.Lock()
	lives := k.m.engine.Lives(jobID)
	k.m.mu.Unlock()
	if lives {
		return false
	}
	_, _, err := k.m.store.Ended(ctx, jobID)
	return err == nil
}

// tidy gives back the locks that an earlier manager of the store took for its jobs, and was killed before it could give
// back: those that jobs here name, lest these wait until such a lock ends by itself.
func (k *locker) tidy() {
	if k.m.cfg.Shared {
		return // it may be at work for another manager
	}
	names := map[string]bool{}
	k.m.mu.Lock()
	for name := range k.m.engine.LockNames() {
		names[name] = true
	}
	k.m.mu.Unlock()
	for name := range names {
		ctx, cancel := context.WithTimeout(k.m.ctx, lockPatience)
		s, err := k.service.Get(ctx, name)
		if err == nil {
			for _, h := range s.Live() {
				if jobID, ours := strings.CutPrefix(h.Owner.ID, ownerPrefix); ours && k.orphaned(ctx, jobID, h.LeaseID) {
					k.release(engine.LockOrder{LeaseID: h.LeaseID}, []string{name})
				}
			}
		}
		cancel()
	}
}

// orphaned reports whether a lease that holds a lock is of a job of this store, and neither active nor about to be.
func (k *locker) orphaned(ctx context.Context, jobID, leaseID string) bool {
	k.m.mu.Lock()
	e := k.m.engine
	wanted, lives := e.Active(leaseID) || e.Awaits(leaseID), e.Lives(jobID)
	k.m.mu.Unlock()
	if wanted || lives {
		return !wanted
	}
	return k.over(ctx, jobID)
}

// renew keeps the locks of leased jobs alive, until the manager is closed.
func (k *locker) renew() {
	k.tidy()
	tick := time.NewTicker(k.life / 4)
	defer tick.Stop()
	for {
		for _, o := range k.orders() {
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

// orders returns what is to be renewed.
func (k *locker) orders() []engine.LockOrder {
	k.mu.Lock()
	orders := slices.Collect(maps.Values(k.taken))
	k.mu.Unlock()
	k.m.mu.Lock()
	defer k.m.mu.Unlock()
	return append(orders, k.m.engine.LocksHeld()...)
}

// renewOne renews a lock, unless another manager has lately, and takes it up again if it was lost, as after a restart that
// took long.
func (k *locker) renewOne(o engine.LockOrder, name string) {
	if k.m.cfg.Shared && k.fresh(o, name) {
		return
	}
	if err := k.keep(o, name); errors.Is(err, lokt.ErrNotFound) && k.wanted(o.LeaseID) {
		_, _ = k.acquire(o, name) // somebody else may have it now: then it is theirs, and tried again with the next renewal
		if !k.wanted(o.LeaseID) {
			k.release(o, []string{name})
		}
	}
}

// fresh reports whether a lock was renewed lately, by whomever. What cannot be read is renewed.
func (k *locker) fresh(o engine.LockOrder, name string) bool {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockPatience)
	defer cancel()
	s, err := k.service.Get(ctx, name)
	h, held := s.Lock.Holder(o.LeaseID)
	return err == nil && held && s.Now.Sub(h.AcquiredAt) < k.life/5
}

// wanted reports whether the locks of a lease are to be held. It has seen what other managers had stored when it was called:
// what one of them ends later, it gives back itself.
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

// lookPatience bounds how long the answer to a heartbeat waits for the lock service. What it does not say by then, it says the next time.
const lookPatience = time.Second

// lost returns the locks of leases that are not held as they were when these were granted, by name: not at all, or with a newer
// token, so that somebody else may have held them in between. What cannot be found out is not lost.
func (k *locker) lost(ctx context.Context, leaseIDs ...string) map[string][]string {
	type held struct {
		names  []string
		tokens map[string]uint64
	}
	found := map[string]held{}
	k.m.mu.Lock()
	for _, id := range leaseIDs {
		if o, tokens, ok := k.m.engine.LockedBy(id); ok {
			found[id] = held{o.Names, tokens}
		}
	}
	k.m.mu.Unlock()
	if len(found) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	all := map[string][]string{}
	for id, h := range found {
		var lost []string
		for _, name := range h.names {
			if k.gone(ctx, id, name, h.tokens[name]) {
				lost = append(lost, name)
			}
		}
		if lost != nil && k.active(id) { // otherwise they were given back meanwhile
			slices.Sort(lost)
			all[id] = lost
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

// lostLocks completes the answer to a heartbeat.
func (m *Manager) lostLocks(ctx context.Context, leaseID string, a *jobs.HeartbeatAnswer) {
	if m.locks != nil {
		a.LostLocks = m.locks.lost(ctx, leaseID)[leaseID]
	}
}

// lostLocksOf completes the answers to many heartbeats.
func (m *Manager) lostLocksOf(ctx context.Context, leaseIDs []string, all []jobs.LeaseAnswer) {
	if m.locks == nil {
		return
	}
	lost := m.locks.lost(ctx, leaseIDs...)
	for i := range all {
		if all[i].Err == nil {
			all[i].LostLocks = lost[all[i].LeaseID]
		}
	}
}
