package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
)

// request is one Update that waits for its turn.
type request struct {
	change    func(lokt.Snapshot) lokt.Change
	done      chan struct{} // closed when err is the answer
	err       error
	panicked  any      // by change, if it did: Update panics too
	begun     bool     // what it changed may have been sent; guarded by slot.mu
	withdrawn bool     // nobody waits for it any more; guarded by slot.mu
	try       *attempt // of which it is not known whether it was stored: the same for all of its batch
}

// attempt is a transaction: what was decided on a state.
type attempt struct {
	decided
	id    string // of the change, in the record if there was one to store
	event string // the key with its events, or empty
	on    *state
	next  *state
	ops   []clientv3.Op
}

// maxBatch is how many Updates of a name share one transaction at most: the events of so many fit beside any record.
const maxBatch = 32

// Update implements lokt.Store. Updates of the same name by the same store that come at the same time share a
// transaction.
func (s *Store) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	r := &request{change: change, done: make(chan struct{})}
	sl := s.pin(name)
	defer s.unpin(sl)
	if !s.enqueue(sl, r) {
		return errClosed
	}
	select {
	case <-r.done:
		return r.answer()
	case <-ctx.Done():
	}
	sl.mu.Lock()
	r.withdrawn = true // from here on change is not called
	begun := r.begun
	sl.mu.Unlock()
	switch err := ctx.Err(); {
	case errors.Is(err, context.DeadlineExceeded) && begun:
		return fmt.Errorf("%w: no answer from etcd, and it is not known whether the change was stored: %w", lokt.ErrUnavailable, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: no answer from etcd: %w", lokt.ErrUnavailable, err)
	default:
		return err
	}
}

// answer is what Update returns when the request is done.
func (r *request) answer() error {
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.err
}

// run calls the change. It reports false if that panicked.
func (r *request) run(s lokt.Snapshot) (c lokt.Change, ok bool) {
	defer func() {
		if !ok {
			r.panicked = recover()
		}
	}()
	return r.change(s), true
}

// enqueue gives the request to the goroutine that works for the slot. It reports false if the store is closed.
func (s *Store) enqueue(sl *slot, r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.queue = append(sl.queue, r)
	if !sl.running {
		sl.running = true
		s.attend(sl)
	}
	return true
}

// attend starts a goroutine that works for the slot while there is work. Its caller holds both mutexes.
func (s *Store) attend(sl *slot) {
	sl.pins++
	s.work.Go(func() {
		defer s.unpin(sl)
		for {
			sl.mu.Lock()
			n := min(len(sl.queue), maxBatch)
			batch := slices.Clone(sl.queue[:n])
			sl.queue = slices.Delete(sl.queue, 0, n)
			sl.running = n > 0
			sl.mu.Unlock()
			if n == 0 {
				return
			}
			s.serve(sl, batch)
		}
	})
}

// maxLosing is for how many time-outs changes may lose against those of other stores before they are given up.
const maxLosing = 6

// serve carries out the changes of the batch.
func (s *Store) serve(sl *slot, batch []*request) {
	start := time.Now()
	quiet := start // when etcd last said something
	fail := func(err error) {
		for _, r := range batch {
			r.finish(err)
		}
	}
	for n, fresh := 0, false; len(batch) > 0; n++ {
		rest, again, err := s.turn(sl, batch, fresh, quiet.Add(s.timeout))
		batch, fresh = rest, again
		most := n
		switch {
		case err == nil: // others were faster: no reason to wait for long
			quiet, most = time.Now(), min(n, 3)
			if len(batch) > 0 && time.Since(start) > maxLosing*s.timeout {
				fail(fmt.Errorf("%w: others change the lock all the time", lokt.ErrUnavailable))
				return
			}
		case errors.Is(err, lokt.ErrFull) && len(batch) > 1: // one of them at a time: those that fit are stored
			for _, r := range batch {
				s.serve(sl, []*request{r})
			}
			return
		case s.ctx.Err() != nil:
			fail(errClosed)
			return
		case !transient(err) || time.Since(quiet) >= s.timeout:
			fail(unavailable(context.Background(), err))
			return
		}
		if len(batch) > 0 && n > 0 {
			s.pause(s.ctx, most)
		}
	}
}

// finish answers the request.
func (r *request) finish(err error) {
	if err != nil && r.try != nil {
		err = fmt.Errorf("it is not known whether the change was stored: %w", err)
	}
	r.err = err
	close(r.done)
}

// turn tries once to carry out the changes of the batch, on a fresh state if need be. It returns the requests that are
// not answered yet, and whether they need a fresh state. After a transient error another turn may succeed.
func (s *Store) turn(sl *slot, batch []*request, fresh bool, until time.Time) (rest []*request, again bool, err error) {
	ctx, cancel := context.WithDeadline(s.ctx, until)
	defer cancel()
	try := batch[0].try
	st, guess, err := s.base(ctx, sl, try, fresh)
	if err != nil {
		return batch, fresh, err
	}
	if try != nil {
		switch {
		case slices.Contains(st.changes, try.id):
			s.settle(try.decided)
			return nil, false, nil
		case st.latest() == try.on.latest(): // it may still be on its way, and another decision must not be answered if it arrives
			return s.send(ctx, sl, try)
		}
		for _, r := range batch {
			if r.try = nil; len(st.changes) == keepChanges && !slices.Contains(st.changes, try.base()) {
				r.finish(fmt.Errorf("%w: no answer from etcd, and the lock was changed too often since to tell", lokt.ErrUnavailable))
			}
		}
		if batch[0].err != nil {
			return nil, false, nil
		}
	}
	d := s.decide(sl, st, batch)
	switch {
	case len(d.batch) == 0:
		return nil, false, nil
	case d.changed || len(d.events) > 0:
		return s.commit(ctx, sl, st, d)
	case guess: // what it was decided on may be old
		return d.batch, true, nil
	}
	s.settle(d)
	return nil, false, nil
}

// base returns the state to decide on: a guess, which saves one of two round trips, if nothing was heard of a change
// since the last one, and otherwise one that is read.
func (s *Store) base(ctx context.Context, sl *slot, try *attempt, fresh bool) (st *state, guess bool, err error) {
	sl.mu.Lock()
	st = sl.cached
	sl.mu.Unlock()
	if st != nil && !fresh && try == nil {
		return st, true, nil
	}
	var events []string
	if try != nil && try.event != "" {
		events = []string{try.event}
	}
	st, there, err := s.read(ctx, sl, events...)
	if err == nil && len(events) > 0 && there[try.event] {
		found := *st
		found.changes = remember(st.changes, try.id)
		st = &found
	}
	return st, false, err
}

// base is the ID of the change before the attempt; empty if there was none.
func (t *attempt) base() string {
	if len(t.on.changes) == 0 {
		return ""
	}
	return t.on.changes[len(t.on.changes)-1]
}

// decided is what a batch of changes comes to.
type decided struct {
	batch   []*request
	lock    lokt.Lock
	now     time.Time // by the lock's clock
	at      time.Time // the same by this process's
	events  []lokt.Event
	changed bool
}

// decide runs the changes one after another, each on what the one before it made.
func (s *Store) decide(sl *slot, st *state, batch []*request) decided {
	snap := st.lookToChange(s.now(), s.floor.Load())
	d := decided{lock: snap.Lock, now: snap.Now, at: time.Now()}
	raised := snap.Lock
	sl.mu.Lock()
	defer sl.mu.Unlock()
	for _, r := range batch {
		if r.withdrawn {
			continue
		}
		r.begun = true
		snap.Lock = d.lock
		c, ok := r.run(snap)
		if !ok {
			close(r.done)
			continue
		}
		d.lock = c.Lock
		d.lock.Name, d.lock.Revision, d.lock.Corrupt = sl.name, raised.Revision, ""
		d.events = append(d.events, c.Events...)
		d.batch = append(d.batch, r)
	}
	snap.Lock = d.lock
	d.changed = !d.lock.Equal(&raised) || st.stale(snap)
	if d.lock.Free() && st.lock.Free() && d.lock.Token == raised.Token { // nothing was granted
		d.lock.Token, d.changed = st.lock.Token, false
	}
	return d
}

// settle answers the requests of a batch that was carried out.
func (s *Store) settle(d decided) {
	if s.observe != nil && len(d.events) > 0 {
		s.observing.Lock()
		s.observe(d.events)
		s.observing.Unlock()
	}
	for _, r := range d.batch {
		r.finish(nil)
	}
}

// commit stores what was decided on the state, if it is still as it was. It returns what turn does.
func (s *Store) commit(ctx context.Context, sl *slot, st *state, d decided) (rest []*request, again bool, err error) {
	id := lokt.NewLeaseID()[:16] // different for every change
	try := &attempt{decided: d, id: id, on: st, next: &state{lock: d.lock, at: d.now, changes: remember(st.changes, id), known: d.at}}
	if d.changed {
		if try.ops, err = s.puts(try.next, st); err != nil {
			return d.batch, false, err
		}
	}
	if len(d.events) > 0 {
		try.event = s.eventKey(id)
		left := maxRequestBytes
		for _, op := range try.ops {
			left -= len(op.KeyBytes()) + len(op.ValueBytes())
		}
		value, err := encodeEvents(sl.name, d.events, left)
		if err != nil {
			return d.batch, false, err
		}
		try.ops = append(try.ops, clientv3.OpPut(try.event, string(value)))
	}
	return s.send(ctx, sl, try)
}

// send has etcd store an attempt. One may be sent again: only the first to arrive finds the lock as it was.
func (s *Store) send(ctx context.Context, sl *slot, try *attempt) (rest []*request, again bool, err error) {
	unchanged := []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(s.lockKey(sl.name)), "=", try.on.mod),
		clientv3.Compare(clientv3.ModRevision(s.freeKey(sl.name)), "=", try.on.free),
	}
	asked := s.rev.Load()
	single, cancel := s.attempt(ctx, 0) // what becomes of it can be found out
	defer cancel()
	r, err := s.client.Txn(single).If(unchanged...).Then(try.ops...).Else(s.queries(sl.name)...).Commit()
	switch {
	case err != nil && refused(err):
		return try.batch, false, err
	case err != nil:
		for _, q := range try.batch {
			q.try = try
		}
		return try.batch, true, err
	}
	s.note(r.Header, asked)
	if !r.Succeeded {
		_, err := s.answer(sl, r.Header, r.Responses)
		return try.batch, false, err
	}
	if try.changed {
		if try.next.header = r.Header.Revision; try.next.lock.Free() {
			try.next.free = try.next.header
		} else {
			try.next.mod = try.next.header
		}
		sl.learn(try.next)
	}
	if try.event != "" {
		s.stored()
	}
	s.settle(try.decided)
	return nil, false, nil
}

// puts returns the operations that store the lock.
func (s *Store) puts(next, st *state) ([]clientv3.Op, error) {
	name := next.lock.Name
	key, other, stale := s.lockKey(name), s.freeKey(name), st.free
	if next.lock.Free() {
		key, other, stale = other, key, st.mod
		next.at = s.now()
	}
	value, err := encode(next.lock, next.at, next.changes)
	if err != nil {
		return nil, err
	}
	n, had := len(next.lock.Holders)+len(next.lock.Queue), len(st.lock.Holders)+len(st.lock.Queue)
	if len(value) > maxRecordBytes && n > had {
		return nil, fmt.Errorf("%w: %q has %d holders and waiters, and etcd has no room for more: try again later, "+
			"say less in metadata, or spread them over several locks", lokt.ErrFull, name, n-1)
	}
	ops := []clientv3.Op{clientv3.OpPut(key, string(value))}
	if stale > 0 {
		ops = append(ops, clientv3.OpDelete(other))
	}
	return ops, nil
}
