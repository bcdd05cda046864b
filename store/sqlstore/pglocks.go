package sqlstore

import (
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
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

	// For the goroutine that commits only.
	known map[string]bool // names that have a row
}

func newServerLocks(d *serverDB) *serverLocks {
	return &serverLocks{db: d, events: newEvents(d.options), known: map[string]bool{}}
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
	defer func() { d.observe("commit", begin, err) }()
	for range attempts {
		if d.writer == nil || d.writer.IsClosed() {
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
	now, err := s.fetch(ctx, c, b)
	if err != nil {
		return nil, err
	}
	b.now = now
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
		if err := writeLock(ctx, c, b.were[name], b.locks[name], later(now, b.were[name].changed)); err != nil {
			return nil, err
		}
	}
	if err := s.writeEvents(ctx, c, b); err != nil {
		return nil, err
	}
	if err := c.exec(ctx, "SELECT pg_notify(?, ?)", s.db.channel, s.notice(b)); err != nil {
		return nil, err
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

// fetch begins a transaction and reads the locks that the batch is about, which nobody else changes until it ends. It returns the time.
func (s *serverLocks) fetch(ctx context.Context, c *pgConn, b *batch) (now time.Time, err error) {
	names := slices.Sorted(maps.Keys(b.were))
	for range 2 {
		if err := c.exec(ctx, "BEGIN"); err != nil {
			return now, err
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
				return now, err
			}
		}
		state := &lockState{}
		found, err := readLocks(ctx, c, selection{` WHERE name = ANY(?) ORDER BY name FOR UPDATE`, " WHERE lock = ANY(?)", []any{names}}, nobodys, state.question())
		if err != nil {
			return now, err
		}
		if now = state.now; now.Sub(state.last) <= awayAfter {
			for _, name := range names {
				b.were[name] = state.raise(found, name)
			}
			return now, nil
		}
		// Nobody was there for a while: nothing is judged by its time before everybody has a full time again.
		if err := c.exec(ctx, "ROLLBACK"); err != nil {
			return now, err
		}
		if err := s.db.arrive(ctx, c); err != nil {
			return now, err
		}
	}
	return now, unavailable(errStalled)
}

// nobodys is a lock of which nothing is known.
func nobodys(name string) *entry { return &entry{lock: lokt.Lock{Name: name}} }

// lockState is what the database says of all locks: the time, when it was used last, and below which nothing is.
type lockState struct {
	now, last         time.Time
	tokens, revisions uint64
}

func (s *lockState) question() question {
	return question{"SELECT " + pgNow + " * 1000, clock, token_floor, revision_floor FROM state", nil, func(r *row) error {
		s.now, s.last, s.tokens, s.revisions = r.nanos(), r.nanos(), r.count(), r.count()
		return nil
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

// notice says what has changed, in as many bytes as a notification has.
func (s *serverLocks) notice(b *batch) string {
	text := s.db.origin + " " + strings.Join(slices.Collect(maps.Keys(b.locks)), " ")
	if len(text) > 7900 {
		return s.db.origin + " *"
	}
	return text
}

// writeEvents numbers the batch's events and stores them. Until the transaction ends nobody else can, so the numbers are in the order of
// the commits.
func (s *serverLocks) writeEvents(ctx context.Context, c *pgConn, b *batch) error {
	n := 0
	for _, told := range b.told {
		n += len(told)
	}
	if b.events = n; n == 0 {
		return nil
	}
	if err := c.exec(ctx, "UPDATE state SET lock_event = lock_event + ?, clock = greatest(clock, ?)", n, b.now.UnixNano()); err != nil {
		return err
	}
	for _, told := range b.told {
		for i := range told {
			n--
			if err := writeEvent(ctx, c, "(SELECT lock_event FROM state) - ?", uint64(n), &told[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// trim forgets some of the oldest events.
func (s *serverLocks) trim(ctx context.Context, c *pgConn) error {
	newest, err := one(ctx, c, "SELECT lock_event FROM state")
	if err != nil {
		return err
	}
	now, err := one(ctx, c, "SELECT "+pgNow+" * 1000")
	if err != nil {
		return err
	}
	upTo, err := s.events.oldest(ctx, c, time.Unix(0, now), uint64(newest))
	if err != nil || upTo == 0 {
		return err
	}
	if err := c.exec(ctx, "DELETE FROM lock_events WHERE seq <= ?", upTo); err != nil {
		return err
	}
	return c.flush(ctx)
}

// publish wakes whom a batch concerns.
func (s *serverLocks) publish(b *batch) {
	for _, e := range b.locks {
		s.watch.wake(&e.lock)
	}
	s.events.publish(b)
}

// View implements lokt.Store.
func (s *serverLocks) View(ctx context.Context, name string) (snap lokt.Snapshot, err error) {
	if err := s.usable(ctx); err != nil {
		return snap, err
	}
	err = s.db.reading(ctx, "view", func(q querier) error {
		state := &lockState{}
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
		state := &lockState{}
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

// WaitEvents implements lokt.EventLog.
func (s *serverLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.events.more()
	if err := s.usable(ctx); err != nil {
		return err
	}
	var newest int64
	if err := s.db.using(ctx, "events", func(ctx context.Context, c *pgConn) (err error) {
		newest, err = one(ctx, c, "SELECT lock_event FROM state")
		return err
	}); err != nil {
		return err
	}
	if uint64(newest) > after {
		return nil
	}
	timer := time.NewTimer(lookAnyway)
	defer timer.Stop()
	select {
	case <-grown:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.usable(context.WithoutCancel(ctx))
}

// ReadEvents implements lokt.EventLog.
func (s *serverLocks) ReadEvents(ctx context.Context, q lokt.EventQuery) (lokt.EventPage, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.EventPage{}, err
	}
	return readEvents(ctx, s.db.reading, q)
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
