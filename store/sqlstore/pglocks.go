package sqlstore

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
)

// serverLocks are the locks in a database of PostgreSQL.
type serverLocks struct {
	db     *serverDB
	events *events
	watch  watchers
	closed atomic.Bool
	many   chan struct{} // many events have no number

	numbering numbering

	// For the goroutine that commits only.
	known map[string]bool // names that have a row
	fresh int             // how many events were stored since many were told of
}

func newServerLocks(d *serverDB) *serverLocks {
	return &serverLocks{db: d, events: newEvents(d.options), many: make(chan struct{}, 1), known: map[string]bool{}, numbering: numbering{busy: make(chan struct{}, 1)}}
}

func (s *serverLocks) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.closed.Load() {
		return errClosed
	}
	return nil
}

// Update implements lokt.Store. change may be run several times, by another goroutine. If it panics, Update does.
func (s *serverLocks) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.group.perform(ctx, &request{name: name, change: change})
}

// attempts is how often a transaction that was undone because of others is tried.
const attempts = 10

// commit stores requests in one transaction.
func (d *serverDB) commit(rs []*request) (err error) {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), pgTimeout)
	defer cancel()
	returned := false
	defer func() {
		if !returned && d.writer != nil { // a request has ended this goroutine within the transaction
			_ = d.writer.Close(ctx)
			d.writer = nil
		}
		d.observe("commit", begin, err)
	}()
	err = d.tryCommit(ctx, rs)
	returned = true
	return err
}

func (d *serverDB) tryCommit(ctx context.Context, rs []*request) (err error) {
	for range attempts {
		if d.writer != nil && d.writer.gone() {
			_ = d.writer.Close(ctx)
			d.writer = nil
		}
		if d.writer == nil {
			if d.writer, err = d.dial(ctx); err != nil {
				d.writer = nil
				return pgError(err)
			}
		}
		var b *batch
		if b, err = d.locks.store(ctx, d.writer, rs); err == nil {
			d.locks.publish(b)
			return nil
		}
		if !d.writer.abandon(ctx) {
			_ = d.writer.Close(ctx)
			d.writer = nil
		}
		if !again(err) {
			clear(d.locks.known)
			return pgError(err)
		}
	}
	return pgError(err)
}

// store runs the requests and stores what they change.
func (s *serverLocks) store(ctx context.Context, c *pgConn, rs []*request) (*batch, error) {
	b := &batch{were: map[string]*entry{}, locks: map[string]*entry{}}
	for _, r := range rs {
		if r.err == nil && r.panicked == nil && r.change != nil {
			b.were[r.name] = nil
		}
	}
	last, err := s.fetch(ctx, c, b)
	if err != nil {
		return nil, err
	}
	now := b.now
	for _, r := range rs {
		if r.err != nil || r.panicked != nil || r.change == nil {
			continue
		}
		have := b.locks[r.name]
		if have == nil {
			have = b.were[r.name]
		}
		b.run(r, have, later(now, b.were[r.name].changed))
	}
	if b.empty() {
		if err := c.exec(ctx, "ROLLBACK"); err != nil {
			return nil, err
		}
		return b, c.flush(ctx)
	}
	if len(b.locks) == 0 { // somebody was refused
		if err := c.exec(ctx, "SET LOCAL synchronous_commit TO off"); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.locks)) {
		putInOrder(b.were[name], b.locks[name])
		if err := writeLock(ctx, c, b.were[name], b.locks[name], later(now, b.were[name].changed)); err != nil {
			return nil, err
		}
	}
	if err := s.writeEvents(ctx, c, b); err != nil {
		return nil, err
	}
	if now.Sub(last) > 2*presence { // whoever should have said that somebody is there could not
		if err := c.exec(ctx, "UPDATE state SET clock = greatest(clock, ?)", now.UnixNano()); err != nil {
			return nil, err
		}
	}
	if err := c.exec(ctx, "COMMIT"); err != nil {
		return nil, err
	}
	if err := c.flush(ctx); err != nil {
		return nil, err
	}
	for name := range b.locks {
		s.known[name] = true
	}
	if len(s.known) > maxFree {
		clear(s.known)
	}
	return b, nil
}

// fetch begins a transaction and reads the time, and the locks that the batch is about, which nobody else changes until it ends. It returns
// when the database was used last.
func (s *serverLocks) fetch(ctx context.Context, c *pgConn, b *batch) (last time.Time, err error) {
	names := slices.Sorted(maps.Keys(b.were))
	for range 2 {
		if err := c.exec(ctx, "BEGIN"); err != nil {
			return last, err
		}
		var missing []string
		for _, name := range names {
			if !s.known[name] {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 { // a row can be locked only if it is there; the order is everybody's
			if err := c.exec(ctx, `INSERT INTO locks (name, revision, token, changed)
				SELECT n, revision_floor, token_floor, 0 FROM state, unnest(?::text[]) AS n ORDER BY n COLLATE "C" ON CONFLICT (name) DO NOTHING`, missing); err != nil {
				return last, err
			}
		}
		state := s.state()
		found, err := readLocks(ctx, c, selection{` WHERE name = ANY(?) ORDER BY name FOR UPDATE`, " WHERE lock = ANY(?)", []any{names}}, nobodys, state.question())
		if err != nil {
			return last, err
		}
		if b.now = state.now; b.now.Sub(state.last) <= awayAfter {
			for _, name := range names {
				b.were[name] = state.raise(found, name)
			}
			return state.last, nil
		}
		// Nobody was there for a while: nothing is judged by its time before everybody has a full time again.
		if err := c.exec(ctx, "ROLLBACK"); err != nil {
			return last, err
		}
		if err := s.db.arrive(ctx, c); err != nil {
			return last, err
		}
	}
	return last, unavailable(errStalled)
}

// nobodys is a lock of which nothing is known.
func nobodys(name string) *entry { return &entry{lock: lokt.Lock{Name: name}} }

// lockState is what the database says of all locks: the time, when it was used last, and below which nothing is.
type lockState struct {
	now, last         time.Time
	tokens, revisions uint64
	fits              func(oldest int64) error
}

func (s *serverLocks) state() *lockState { return &lockState{fits: s.db.fits} }

func (s *lockState) question() question {
	return question{"SELECT " + pgNow + " * 1000, clock, token_floor, revision_floor, oldest FROM state", nil, func(r *row) error {
		s.now, s.last, s.tokens, s.revisions = r.nanos(), r.nanos(), r.count(), r.count()
		return s.fits(r.number())
	}}
}

// raise returns a lock, known or not, with nothing below the floors.
func (s *lockState) raise(found map[string]*entry, name string) *entry {
	e := found[name]
	if e == nil {
		e = nobodys(name)
	}
	e.lock.Token, e.lock.Revision = max(e.lock.Token, s.tokens), max(e.lock.Revision, s.revisions)
	return e
}

// publish wakes whom a batch concerns.
func (s *serverLocks) publish(b *batch) {
	for _, e := range b.locks {
		s.watch.wake(&e.lock)
	}
	s.events.publish(b)
	s.db.notice.locks(slices.Collect(maps.Keys(b.locks)), b.events > 0)
	if s.fresh += b.events; s.fresh >= numberAfter {
		s.fresh = 0
		select {
		case s.many <- struct{}{}:
		default:
		}
	}
}

// View implements lokt.Store.
func (s *serverLocks) View(ctx context.Context, name string) (snap lokt.Snapshot, err error) {
	if err := s.usable(ctx); err != nil {
		return snap, err
	}
	err = s.db.reading(ctx, "view", func(q querier) error {
		state := s.state()
		found, err := readLocks(ctx, q, selection{" WHERE name = ?", " WHERE lock = ?", []any{name}}, nobodys, state.question())
		if err == nil {
			e := state.raise(found, name)
			snap = lokt.Snapshot{Lock: e.lock, Now: later(state.now, e.changed)}
		}
		return err
	})
	return snap, err
}

// List implements lokt.Store. All locks are as they were at one moment.
func (s *serverLocks) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		var all map[string]*entry
		state := s.state()
		which := notFree()
		if f.Prefix != "" {
			which = selection{which.locks + " AND starts_with(name, ?)", " WHERE starts_with(lock, ?)", []any{f.Prefix}}
		}
		if err := s.db.reading(ctx, "list", func(q querier) (err error) {
			all, err = readLocks(ctx, q, which, nobodys, state.question())
			return err
		}); err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if err := s.usable(ctx); err != nil {
				yield(lokt.Snapshot{Lock: lokt.Lock{Name: name}}, err)
				return
			}
			e := state.raise(all, name)
			if listed(&e.lock, f) && !yield(lokt.Snapshot{Lock: e.lock, Now: later(state.now, e.changed)}, nil) {
				return
			}
		}
	}
}

// Wait implements lokt.Store. Changes by other processes wake every watcher of the lock.
func (s *serverLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if err := s.watch.wait(ctx, watch, lookAnyway, s.View); err != nil {
		return err
	}
	return s.usable(context.WithoutCancel(ctx))
}

// Close makes every later call fail, and waits return. The database stays open.
func (s *serverLocks) Close() error {
	s.closed.Store(true)
	s.watch.wakeAll()
	s.events.wakeAll()
	return nil
}

// end closes the locks with the database.
func (s *serverLocks) end() {
	_ = s.Close()
	s.events.end()
}
