package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/joint"
)

// serverLocks are the locks in a database of PostgreSQL, and what this process knows of them.
type serverLocks struct {
	db    *serverDB
	seed  maphash.Seed
	lanes [pgLanes]*group // a lock's changes are all in one, so that those that meet share a statement
	apart chan struct{}   // has an element for each change that is made while its row is locked
	grown alarm           // there are more events
	start time.Time
	views joint.Reads[lokt.Snapshot]
	closable

	mu      sync.Mutex
	known   map[string]*pgKnown
	due     map[string]bool // watched, and perhaps not as they are known
	poke    chan struct{}   // some are due
	heard   time.Time       // when all locks were forgotten last
	state   pgState
	highest pgState   // its floors are the highest that any server has shown: one that takes over may have lower ones
	zero    time.Time // the database's clock at start, late by how long a statement was on its way
	zeroed  time.Time // when that was measured
}

// mostKnown is how many locks are remembered.
const mostKnown = 20_000

// pgLock is a lock as it was read or written last.
type pgLock struct {
	lokt.Lock
	row     string    // names this state of its row; empty if there is none, or if somebody else has changed it
	changed time.Time // see judged
	damaged error
}

// rowName is the name of a row's state: the transaction that wrote it tells it from others with the revision, and what it says
// does after a standby has taken over, where transactions of which it did not hear have their numbers used again.
const rowName = "l.name || ' ' || l.revision || '/' || l.xmin || '/' || l.sum"

func (l *pgLock) snapshot(now time.Time) lokt.Snapshot {
	return lokt.Snapshot{Lock: l.Lock, Now: l.judged(now)}
}

// judged returns the time by which the lock is judged: not before that of its last change, unless the clock was set back since.
func (l *pgLock) judged(now time.Time) time.Time {
	if l.changed.Sub(now) > clockBack {
		return now
	}
	return later(now, l.changed)
}

// pgKnown is what is known of a lock, and who waits for it here.
type pgKnown struct {
	pgLock
	heard    time.Time // when it was said last that somebody else has changed it
	watchers lokt.Watchers
}

// pgState is what the database says about all locks.
type pgState struct {
	now, last         time.Time // last is when somebody said that the database is in use
	tokens, revisions uint64    // nothing is below these floors
}

// stateColumns are the time at which the statement arrived, and what the database says.
const stateColumns = "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint, clock, token_floor, revision_floor"

func (s *pgState) scan(from pgx.Row, more ...any) error {
	var now, last int64
	err := from.Scan(append([]any{&now, &last, &s.tokens, &s.revisions}, more...)...)
	if err == nil { // otherwise it is what it was
		s.now, s.last = time.UnixMicro(now).UTC(), time.Unix(0, last).UTC()
	}
	return err
}

// away reports whether nobody has used the database for a while, or its clock was set back: nothing is judged by its time before
// everybody has a full time again.
func (s *pgState) away() bool {
	since := s.now.Sub(s.last)
	return since > awayAfter || since < -clockBack
}

func (s *pgState) raise(l *pgLock) {
	l.Token, l.Revision = max(l.Token, s.tokens), max(l.Revision, s.revisions)
}

func newServerLocks(d *serverDB) *serverLocks {
	s := &serverLocks{
		db: d, seed: maphash.MakeSeed(), apart: make(chan struct{}, pgLanes),
		start: time.Now(), known: map[string]*pgKnown{}, due: map[string]bool{}, poke: make(chan struct{}, 1),
	}
	for i := range s.lanes {
		s.lanes[i] = newGroup(func(rs []*request, _ func() []*request) error { return s.commit(rs, false) })
		go s.lanes[i].loop()
	}
	return s
}

// get returns what is known of a lock. Its caller holds the mutex.
func (s *serverLocks) get(name string) *pgKnown {
	if s.known[name] == nil {
		s.known[name] = &pgKnown{}
	}
	return s.known[name]
}

// learn takes over what the database said to a statement that was sent at a time. It is sure of locks that nobody can
// have changed before this call.
func (s *serverLocks) learn(sent time.Time, state pgState, locks map[string]pgLock, sure bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if zero := state.now.Add(-sent.Sub(s.start)); zero.Before(s.zero) || sent.Sub(s.zeroed) > presence {
		s.zero, s.zeroed = zero, sent
	}
	if s.state.tokens != state.tokens || s.state.revisions != state.revisions || len(s.known) > mostKnown {
		s.forget()
	}
	s.state = state
	s.highest.tokens, s.highest.revisions = max(s.highest.tokens, state.tokens), max(s.highest.revisions, state.revisions)
	for name, is := range locks {
		l := s.get(name)
		was := l.pgLock
		if !sure && is.Revision < was.Revision { // it was read before the other was
			continue
		}
		if !sure && later(s.heard, l.heard).After(sent) {
			is.row = ""
		}
		if l.pgLock = is; is.Revision != was.Revision {
			l.watchers.Wake(&was.Lock, &is.Lock)
		}
	}
}

// forget forgets all locks. Its caller holds the mutex.
func (s *serverLocks) forget() {
	s.heard = time.Now()
	for name, l := range s.known {
		l.watchers.WakeAll()
		delete(s.known, name)
	}
}

// stale says that somebody else has changed a lock; a star stands for all.
func (s *serverLocks) stale(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "*" {
		s.forget()
		return
	}
	l := s.get(name)
	l.row, l.heard = "", time.Now()
	s.lookAt(name, l)
}

// lookAt has a lock read if it is watched. Its caller holds the mutex.
func (s *serverLocks) lookAt(name string, l *pgKnown) {
	if !l.watchers.None() {
		s.due[name] = true
		poke(s.poke)
	}
}

// lookAnyway has all locks read that are watched.
func (s *serverLocks) lookAnyway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, l := range s.known {
		s.lookAt(name, l)
	}
}

// look reads the locks that are due.
func (s *serverLocks) look(ctx context.Context) {
	for {
		select {
		case <-s.poke:
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		names := slices.Collect(maps.Keys(s.due))
		clear(s.due)
		s.mu.Unlock()
		for some := range slices.Chunk(names, 1000) {
			_ = s.db.using(ctx, "view", func(ctx context.Context, c *pgx.Conn) error {
				_, _, err := s.read(ctx, c, &pgx.Batch{}, some, false)
				return err
			})
		}
	}
}

// ask adds the statements that read the locks l for which the condition holds, but not those that are known as they are,
// and then the state. What they find is there when the batch is done.
func (s *pgState) ask(b *pgx.Batch, known map[string]pgLock, where string, args ...any) map[string]pgLock {
	rows, found := make([]string, 0, len(known)), map[string]pgLock{}
	for _, l := range known {
		rows = append(rows, l.row)
	}
	b.Queue(`WITH found AS (SELECT *, `+rowName+` AS row FROM locks l
			WHERE `+where+` AND `+rowName+` NOT IN (SELECT unnest($1::text[])))
		SELECT name, '', row, revision, token, changed, waiting, free, doc, sum FROM found
		UNION ALL SELECT w.lock, w.lease_id, '', 0, 0, 0, 0, false, w.doc, w.sum FROM waiters w JOIN found ON name = lock`,
		append([]any{rows}, args...)...).Query(func(rows pgx.Rows) error {
		waiting, queues, wrong := map[string]int{}, map[string][]*lokt.Waiter{}, map[string]error{}
		err := each(rows, func(from row) error {
			var name, lease string
			var changed int64
			var many int
			var free bool
			var l pgLock
			var d document
			err := from.Scan(&name, &lease, &l.row, &l.Revision, &l.Token, &changed, &many, &free, &d.text, &d.sum)
			if lease != "" {
				w, e := d.openWaiter(name, lease)
				queues[name], wrong[name] = append(queues[name], w), cmp.Or(wrong[name], e)
				return err
			}
			if d.text != "" {
				l.Lock, l.damaged = d.openLock(name, many, free)
			}
			l.Name, l.changed = name, time.Unix(0, changed).UTC()
			found[name], waiting[name] = l, many
			return err
		})
		for name, l := range found {
			l.Queue, l.damaged = queues[name], cmp.Or(l.damaged, wrong[name])
			sortQueue(l.Queue)
			if n := waiting[name]; l.damaged == nil && len(l.Queue) != n {
				l.damaged = fmt.Errorf("%w: queue of lock %s: %d wait, not %d", lokt.ErrDamaged, name, len(l.Queue), n)
			}
			found[name] = l
		}
		return err
	})
	b.Queue("SELECT " + stateColumns + " FROM state").QueryRow(func(row pgx.Row) error { return s.scan(row) })
	return found
}

// read reads locks after what the batch has already.
func (s *serverLocks) read(
	ctx context.Context, c *pgx.Conn, b *pgx.Batch, names []string, sure bool,
) (locks map[string]pgLock, state pgState, err error) {
	known := map[string]pgLock{}
	s.mu.Lock()
	for _, name := range names {
		if l := s.known[name]; l != nil && l.row != "" {
			known[name] = l.pgLock
		}
	}
	s.mu.Unlock()
	locks = state.ask(b, known, "l.name = ANY($2::text[])", names)
	sent := time.Now()
	if err := exchange(ctx, c, b, pgExchange); err != nil {
		return nil, state, err
	}
	for _, name := range names {
		l, found := locks[name]
		if !found {
			l = known[name]
		}
		l.Name = name
		state.raise(&l)
		locks[name] = l
	}
	s.learn(sent, state, locks, sure)
	return locks, state, nil
}

// using lends a connection to somebody who reads.
func (s *serverLocks) using(ctx context.Context, op string, use useConn) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.db.using(ctx, op, use)
}

// View implements lokt.Store.
func (s *serverLocks) View(ctx context.Context, name string) (snap lokt.Snapshot, err error) {
	if err := s.usable(ctx); err != nil {
		return snap, err
	}
	snap, err = s.views.Do(ctx, name, pgTimeout, func() (snap lokt.Snapshot, err error) {
		err = s.using(context.Background(), "view", func(ctx context.Context, c *pgx.Conn) error {
			locks, state, err := s.read(ctx, c, &pgx.Batch{}, []string{name}, false)
			l := locks[name]
			snap = l.snapshot(state.now)
			return cmp.Or(err, l.damaged)
		})
		return snap, err
	})
	if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		err = unavailable(err) // it is not the caller's time that is over
	}
	return snap, err
}

// List implements lokt.Store. All locks are as they were at one moment.
func (s *serverLocks) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		var locks map[string]pgLock
		var state pgState
		err := s.using(ctx, "list", func(ctx context.Context, c *pgx.Conn) error {
			var b pgx.Batch
			locks = state.ask(&b, nil, "NOT free AND starts_with(name, $2) AND (waiting > 0 OR NOT $3)", f.Prefix, f.Queued)
			return c.SendBatch(ctx, &b).Close()
		})
		if err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(locks)) {
			l := locks[name]
			state.raise(&l)
			over := s.usable(ctx)
			if !yield(l.snapshot(state.now), cmp.Or(over, l.damaged)) || over != nil {
				return
			}
		}
	}
}

// Wait implements lokt.Store.
func (s *serverLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	l := s.get(watch.Name)
	me := l.watchers.Watch(&l.Lock, watch)
	if me == nil {
		return nil
	}
	if l.row == "" { // it is not what was seen
		s.lookAt(watch.Name, l)
	}
	s.mu.Unlock()
	select {
	case <-me.Changed:
	case <-ctx.Done():
	}
	s.mu.Lock()
	l.watchers.Remove(me)
	return s.usable(ctx)
}

// Close makes every later call fail, and waits return. The database stays open.
func (s *serverLocks) Close() error {
	if !s.closed.Swap(true) {
		s.stale("*")
		s.grown.ring()
		for _, lane := range s.lanes {
			lane.close()
		}
	}
	return nil
}

const (
	keptFree    = time.Hour        // how long the row of a free lock is kept at least
	manyFree    = 1000             // how many are worth it to be forgotten
	forgetEvery = 10 * time.Minute // how often that is looked for
)

// forgetFree returns what deletes rows of locks that have been free since a time, some of them, if there are so many. The floors rise to what
// they had, so that every process reads anew what it knows. Turns, which would fail for that, are waited for and kept waiting.
func forgetFree(age time.Duration, least int, done *int64) func(execute, time.Time) error {
	return func(exec execute, now time.Time) (err error) {
		if _, err = exec("SELECT 1 FROM job_state FOR UPDATE"); err != nil {
			return err
		}
		before := now.Add(-age).UnixNano()
		*done, err = exec(`WITH few AS (SELECT FROM locks WHERE free AND changed < ? LIMIT ?), gone AS (DELETE FROM locks l
			USING (SELECT name FROM locks WHERE free AND changed < ? AND (SELECT count(*) FROM few) = ? LIMIT 10000 FOR UPDATE SKIP LOCKED) u
			WHERE l.name = u.name RETURNING l.token, l.revision)
			UPDATE state SET token_floor = greatest(token_floor, most.token), revision_floor = greatest(revision_floor, most.revision)
			FROM (SELECT max(token) AS token, max(revision) AS revision FROM gone) most WHERE most.token IS NOT NULL`, before, least, before, least)
		return err
	}
}

// Events are stored with their change, in a table of those that have no number yet, and numbered by whoever reads first;
// if nobody reads, every two seconds. A number that a change took itself would have to be locked until the change is on
// the disk, and no two changes could be on their way there at once.

// number gives all events that were stored before a number.
func (s *serverLocks) number(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, "SELECT CASE WHEN has_new_lock_events() THEN number_lock_events(false) END")
	return err
}

// WaitEvents implements lokt.EventLog.
func (s *serverLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.grown.next()
	there := false
	if err := s.using(ctx, "events", func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT lock_event > $1 OR has_new_lock_events() FROM state", int64(after)).Scan(&there)
	}); err != nil || there {
		return err
	}
	select {
	case <-grown:
	case <-time.After(presence):
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.usable(context.WithoutCancel(ctx))
}

// ReadEvents implements lokt.EventLog. What is stored while it numbers events is left for later.
func (s *serverLocks) ReadEvents(ctx context.Context, q lokt.EventQuery) (page lokt.EventPage, err error) {
	err = s.using(ctx, "events", func(ctx context.Context, c *pgx.Conn) error {
		if err := s.number(ctx, c); err != nil {
			return err
		}
		return atOneMoment(func(ctx context.Context, c *pgx.Conn) (err error) {
			if page, err = readEvents(lookWith(ctx, c), serverEvents, q); err != nil {
				return err
			}
			return c.QueryRow(ctx, "SELECT lock_event FROM state").Scan(&page.Newest)
		})(ctx, c)
	})
	return page, err
}
