package jobs

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
)

// locker takes, renews and gives back the locks that leased jobs need, as the engine orders.
type locker struct {
	m       *Manager
	service lokt.Service
	life    time.Duration // of a lock without renewal

	mu   sync.Mutex
	held map[string]lockOrder // by lease: taken, or being taken up again after a restart
}

// lockPatience bounds how long a lock service may take to answer.
const lockPatience = 5 * time.Second

func newLocker(m *Manager, s lokt.Service) *locker {
	return &locker{m: m, service: s, life: max(2*m.cfg.life(), 30*time.Second), held: map[string]lockOrder{}}
}

// follow does what the engine orders, in the background, and tells it when it is done.
func (k *locker) follow(o lockOrder) {
	k.m.task(func() {
		if o.kind == lockFree {
			k.forget(o.leaseID)
			k.release(o, o.names)
			k.tell(unlockedOp{o.leaseID})
			return
		}
		tokens, blocked := k.take(o)
		if blocked == "" {
			k.remember(o)
		}
		k.tell(lockedOp{o, tokens, blocked})
	})
}

// resume counts the locks of a lease that lived before as held; the next renewal takes them up.
func (k *locker) resume(o lockOrder) { k.remember(o) }

func (k *locker) remember(o lockOrder) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held[o.leaseID] = o
}

func (k *locker) forget(leaseID string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, leaseID)
}

// tell passes on to the engine what came of an order. Nobody waits for an answer.
func (k *locker) tell(o op) {
	c, err := k.m.send(context.Background(), o)
	if err == nil {
		k.m.forgo(c)
	}
}

// take takes all the locks, in order of name, or none. It returns their tokens, or the one that could not be had.
func (k *locker) take(o lockOrder) (tokens map[string]uint64, blocked string) {
	names := slices.Sorted(slices.Values(o.names))
	tokens = make(map[string]uint64, len(names))
	for i, name := range names {
		token, err := k.acquire(o, name)
		if err != nil {
			k.release(o, names[:i+1]) // that one too: it is not always known what became of it
			return nil, name
		}
		tokens[name] = token
	}
	return tokens, ""
}

func (k *locker) acquire(o lockOrder, name string) (token uint64, err error) {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockPatience)
	defer cancel()
	h, err := k.service.Acquire(ctx, lokt.Claim{
		Name: name, LeaseID: o.leaseID, Owner: lokt.Owner{ID: ownerPrefix + o.jobID, AnySession: true}, Strict: true, TTL: k.life,
	})
	return h.Token, err
}

// release gives locks back. One that cannot be given back ends by itself, within its life.
func (k *locker) release(o lockOrder, names []string) {
	for _, name := range names {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(k.m.ctx), lockPatience)
		_, _ = k.service.Release(ctx, lokt.Target{Name: name, LeaseID: o.leaseID})
		cancel()
	}
}

// ownerPrefix begins the owner of a lock that is held for a job; the job's ID follows.
const ownerPrefix = "job:"

// tidy gives back the locks that an earlier manager of the store took for its jobs, and was killed before it could give
// back: those that jobs here name, lest these wait until such a lock ends by itself.
func (k *locker) tidy() {
	if k.m.cfg.Shared {
		return // it may be at work for another manager
	}
	names := map[string]bool{}
	k.m.mu.Lock()
	for _, en := range k.m.engine.jobs {
		for _, name := range en.job.Locks {
			names[name] = true
		}
	}
	k.m.mu.Unlock()
	for name := range names {
		ctx, cancel := context.WithTimeout(k.m.ctx, lockPatience)
		s, err := k.service.Get(ctx, name)
		if err == nil {
			for _, h := range s.Live() {
				if jobID, ours := strings.CutPrefix(h.Owner.ID, ownerPrefix); ours && k.orphaned(ctx, jobID, h.LeaseID) {
					k.release(lockOrder{leaseID: h.LeaseID}, []string{name})
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
	wanted, lives := e.leases[leaseID] != nil || e.pendings[leaseID] != nil, e.jobs[jobID] != nil
	k.m.mu.Unlock()
	if wanted || lives {
		return !wanted
	}
	_, _, err := k.m.store.Ended(ctx, jobID)
	return err == nil
}

// renew keeps the locks of leased jobs alive, until the manager is closed.
func (k *locker) renew() {
	k.tidy()
	tick := time.NewTicker(k.life / 4)
	defer tick.Stop()
	for {
		k.mu.Lock()
		orders := make([]lockOrder, 0, len(k.held))
		for _, o := range k.held {
			orders = append(orders, o)
		}
		k.mu.Unlock()
		for _, o := range orders {
			for _, name := range o.names {
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
func (k *locker) renewOne(o lockOrder, name string) {
	ctx, cancel := context.WithTimeout(k.m.ctx, lockPatience)
	_, err := k.service.Renew(ctx, lokt.Renewal{Name: name, LeaseID: o.leaseID})
	cancel()
	if errors.Is(err, lokt.ErrNotFound) && k.holds(o.leaseID) {
		_, _ = k.acquire(o, name) // somebody else may have it now: then it is theirs, and tried again with the next renewal
		if !k.holds(o.leaseID) {
			k.release(o, []string{name})
		}
	}
}

func (k *locker) holds(leaseID string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, ok := k.held[leaseID]
	return ok
}
