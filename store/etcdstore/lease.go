package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
)

// pool keeps etcd leases that holds no longer need for other holds of the same TTL: granting one costs etcd a
// write to its log, starting one again does not.
type pool struct {
	mu    sync.Mutex
	spare []spare // in the order in which they came
}

type spare struct {
	lease etcdLease
	since time.Time // when it came; it lives for its seconds from then at most
}

// maxSpare bounds how many leases are kept. Clients choose TTLs, and may choose another one each time, so it is for all of them together.
const maxSpare = 256

// put keeps a lease, for which the one that came first may have to go.
func (p *pool) put(l etcdLease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.spare) == maxSpare {
		p.spare = slices.Delete(p.spare, 0, 1)
	}
	p.spare = append(p.spare, spare{l, time.Now()})
}

// get returns the lease of so many seconds that came last, if it may be alive.
func (p *pool) get(seconds int64) (etcdLease, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range slices.Backward(p.spare) {
		switch {
		case s.lease.Seconds != seconds:
			continue
		case time.Since(s.since) <= time.Duration(seconds)*time.Second:
			p.spare = slices.Delete(p.spare, i, i+1)
			return s.lease, true
		}
		p.spare = slices.DeleteFunc(p.spare, func(s spare) bool { return s.lease.Seconds == seconds }) // all the others came before
		break
	}
	return etcdLease{}, false
}

// start returns an etcd lease of so many seconds, all of which are to come.
func (s *Store) start(ctx context.Context, seconds int64) (etcdLease, error) {
	for {
		l, ok := s.pool.get(seconds)
		if !ok {
			break
		}
		alive, err := s.restart(ctx, l)
		if err != nil {
			return etcdLease{}, err
		}
		if alive {
			return l, nil
		}
	}
	var granted etcdLease
	err := s.try(ctx, func(ctx context.Context) error {
		r, err := s.client.Grant(ctx, seconds)
		if err == nil {
			granted = etcdLease{r.ID, seconds}
		}
		return err
	})
	return granted, err
}

// restart starts an etcd lease's time again. It reports false if there is no such lease any more.
func (s *Store) restart(ctx context.Context, l etcdLease) (alive bool, err error) {
	err = s.try(ctx, func(ctx context.Context) error {
		_, err := s.client.KeepAliveOnce(ctx, l.ID)
		return err
	})
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false, nil
	}
	return err == nil, err
}

// timing is what the timers of a changed lock take.
type timing struct {
	leases  leases
	alive   map[string]clientv3.LeaseID
	cmps    []clientv3.Cmp
	puts    []clientv3.Op
	gone    []string    // timers whose keys are deleted
	taken   []etcdLease // new ones, that nothing depends on if the change is not stored
	dropped []etcdLease // those that nothing depends on once the change is stored
}

// errTooLate says that an etcd lease ended while its hold was being renewed.
var errTooLate = errors.New("the etcd lease has just ended")

// seconds returns how long an etcd lease lives that covers d.
func seconds(d time.Duration) int64 { return max(int64((d+time.Second-1)/time.Second), 1) }

// time starts the timers that the changed lock needs and that the state does not have. It puts back the recorded ends that
// the change did not touch.
//
// A grant that waits to be taken up has no timer: the lock's own clock says when it lapses.
func (s *Store) time(ctx context.Context, st *state, v view, l *lokt.Lock) (t timing, err error) {
	t = timing{leases: leases{}, alive: map[string]clientv3.LeaseID{}}
	defer func() {
		if err != nil {
			t.giveBack(s)
		}
	}()
	before := map[string]time.Time{}
	for _, h := range v.Lock.Holders {
		before[h.LeaseID] = h.ExpiresAt
	}
	if f := v.Lock.Freeze; f != nil {
		before[freezeID] = f.ExpiresAt
	}
	end := func(id string, at *time.Time) error {
		was, had := st.timers[id]
		recorded, adjusted := v.adjusted[id]
		if had && (before[id].Equal(*at) || adjusted && recorded.Equal(*at)) {
			if adjusted {
				*at = recorded
			}
			t.leases[id] = was
			if on, ok := st.alive[id]; ok {
				t.alive[id] = on
			}
			return nil
		}
		n := seconds(at.Sub(v.Now))
		if had && was.Seconds == n && st.running(id) {
			switch alive, err := s.restart(ctx, was); {
			case err != nil:
				return err
			case !alive:
				return errTooLate
			}
			t.leases[id], t.alive[id] = was, was.ID
			t.cmps = append(t.cmps, clientv3.Compare(clientv3.CreateRevision(s.timerKey(l.Name, id)), ">", 0))
			return nil
		}
		fresh, err := s.start(ctx, n)
		if err != nil {
			return err
		}
		t.taken = append(t.taken, fresh)
		t.leases[id], t.alive[id] = fresh, fresh.ID
		t.puts = append(t.puts, clientv3.OpPut(s.timerKey(l.Name, id), "", clientv3.WithLease(fresh.ID)))
		if had && st.running(id) {
			t.dropped = append(t.dropped, was)
		}
		return nil
	}
	for i := range l.Holders {
		if h := &l.Holders[i]; !h.ExpiresAt.IsZero() && h.Pending.IsZero() {
			if err := end(h.LeaseID, &h.ExpiresAt); err != nil {
				return t, err
			}
		}
	}
	if f := l.Freeze; f != nil && !f.ExpiresAt.IsZero() {
		if err := end(freezeID, &f.ExpiresAt); err != nil {
			return t, err
		}
	}
	if len(t.puts) > maxOps {
		return t, fmt.Errorf("%w: %d etcd leases in one change, more than %d", lokt.ErrInvalid, len(t.puts), maxOps)
	}
	for id, on := range st.alive { // keys that belong to no timer, too
		if _, stays := t.leases[id]; stays {
			continue
		}
		if len(t.puts)+len(t.gone) == maxOps { // no hold depends on it: a later change will do
			t.alive[id] = on
			continue
		}
		t.gone = append(t.gone, id)
		if st.running(id) {
			t.dropped = append(t.dropped, st.timers[id])
		}
	}
	return t, nil
}

// giveBack keeps what was taken for a change that was not stored.
func (t *timing) giveBack(s *Store) {
	for _, l := range t.taken {
		s.pool.put(l)
	}
	t.taken = nil
}

// maxOps is how many operations etcd takes in one transaction, by default, less what else a change has.
const maxOps = 120

// ops returns the operations on the timers' keys.
func (s *Store) ops(name string, t timing) []clientv3.Op {
	ops := t.puts
	for _, id := range t.gone {
		ops = append(ops, clientv3.OpDelete(s.timerKey(name, id)))
	}
	return ops
}
