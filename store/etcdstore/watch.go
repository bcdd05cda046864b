package etcdstore

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/lokt-dev/lokt"
)

// lookAnyway is how long a wait lasts at most: its caller looks again then, in case no event came through.
const lookAnyway = 5 * time.Second

// Wait implements lokt.Store. One watch of all locks wakes everybody.
func (s *Store) Wait(ctx context.Context, w lokt.Watch) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	sl := s.pin(w.Name)
	defer s.unpin(sl)
	me := &waiting{leaseID: w.LeaseID, wake: make(chan struct{})}
	for first := true; ; first = false {
		sl.mu.Lock()
		known := sl.valid
		if known && revision(sl.latest, sl.lapsed) == w.Seen {
			sl.waiters[me] = struct{}{}
		}
		sl.mu.Unlock()
		if known {
			break
		}
		if !first { // events come in faster than answers
			return nil
		}
		bounded, cancel := s.bound(ctx)
		_, _, err := s.read(bounded, sl)
		cancel()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return s.explain(ctx, err)
		}
	}
	sl.mu.Lock()
	_, asleep := sl.waiters[me]
	sl.mu.Unlock()
	if !asleep {
		return s.usable(ctx)
	}
	defer func() {
		sl.mu.Lock()
		delete(sl.waiters, me)
		sl.mu.Unlock()
	}()
	return s.sleep(ctx, me.wake)
}

// sleep returns when it is woken, and after a while in any case, because watches can be lost.
func (s *Store) sleep(ctx context.Context, wake <-chan struct{}) error {
	anyway := time.NewTimer(s.anyway)
	defer anyway.Stop()
	select {
	case <-wake:
		return s.usable(context.WithoutCancel(ctx))
	case <-anyway.C:
		return nil
	case <-s.ctx.Done():
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// rewatch has the watch begin anew.
func (s *Store) rewatch() {
	select {
	case s.renew <- struct{}{}:
	default:
	}
}

// watch hands on events from the revision on, until the store is closed. When events may have been missed, because etcd was
// compacted or could not be reached, everybody looks again.
func (s *Store) watch(from int64) {
	s.log.begin(from)
	for n := 0; s.ctx.Err() == nil; n++ {
		next, seen := s.follow(from)
		if seen {
			n = 0
		}
		if s.ctx.Err() != nil {
			return
		}
		if from = next; from == 0 {
			ctx, cancel := s.bound(s.ctx)
			var now *clientv3.GetResponse
			err := s.try(ctx, func(ctx context.Context) (err error) {
				now, err = s.client.Get(ctx, s.prefix+dirLock, clientv3.WithCountOnly())
				return err
			})
			cancel()
			if err == nil {
				from = now.Header.Revision + 1
			}
		}
		s.log.begin(from)
		s.each(func(sl *slot) { sl.forget(false) })
		if from == 0 || n > 0 {
			select {
			case <-time.After(s.pause(n)):
			case <-s.ctx.Done():
			}
		}
	}
}

// follow hands on the events of one watch. It returns the revision to go on from, or 0 if that is not known.
func (s *Store) follow(from int64) (next int64, seen bool) {
	if from == 0 {
		return 0, false
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	defer cancel()
	events := s.client.Watch(ctx, s.prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify())
	for {
		select {
		case <-s.renew:
			return 0, seen
		case r, ok := <-events:
			switch {
			case !ok:
				return from, seen
			case r.CompactRevision > 0:
				return 0, seen
			case r.Err() != nil:
				return from, seen
			}
			seen = true
			s.hear(r.Events)
			from = max(from, r.Header.Revision+1)
		}
	}
}

// hear wakes those whom events concern.
func (s *Store) hear(events []*clientv3.Event) {
	now := time.Now()
	type change struct {
		name string
		rev  int64
	}
	stored := map[change]bool{}
	for _, e := range events {
		if dir, name := s.nameOf(e.Kv.Key); e.Type == mvccpb.Event_PUT && (dir == "lock" || dir == "free") {
			stored[change{name, e.Kv.ModRevision}] = true
		}
	}
	for _, e := range events {
		dir, name := s.nameOf(e.Kv.Key)
		if dir == "event" {
			if e.Type == mvccpb.Event_PUT {
				s.log.hear(e.Kv)
			}
			continue
		}
		sl := s.peek(name, dir == "lock" && e.Type == mvccpb.Event_PUT)
		if sl == nil {
			continue
		}
		rev := e.Kv.ModRevision
		switch {
		case e.Type == mvccpb.Event_PUT && dir == "lock":
			sl.changed(rev, now, s.whom(sl, e.Kv.Value))
		case e.Type == mvccpb.Event_PUT && dir == "free":
			sl.changed(rev, now, nil)
		case e.Type == mvccpb.Event_DELETE && !stored[change{name, rev}]:
			if dir == "hold" || dir == "thaw" {
				sl.ended(rev)
			} else { // not our doing
				sl.forget(false)
			}
		}
		s.unpin(sl)
	}
}

// whom says who is to be woken by a record, which is only read if somebody could sleep on.
func (s *Store) whom(sl *slot, value []byte) func(*waiting) bool {
	here := map[string]bool{}
	sl.mu.Lock()
	for w := range sl.waiters {
		if w.leaseID != "" {
			here[w.leaseID] = true
		}
	}
	sl.mu.Unlock()
	if len(here) == 0 {
		return nil
	}
	r, err := decode(sl.name, value)
	if err != nil {
		return nil
	}
	first, queued := "", make(map[string]bool, len(here))
	for _, w := range r.Queue {
		if here[w.LeaseID] {
			if queued[w.LeaseID] = true; first == "" {
				first = w.LeaseID // which looks when holds expire
			}
		}
	}
	return func(w *waiting) bool { return w.leaseID == "" || w.leaseID == first || !queued[w.leaseID] }
}
