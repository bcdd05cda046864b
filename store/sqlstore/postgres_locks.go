package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokt-dev/lokt"
)

// serverLocks are the locks in a database of PostgreSQL. A change of locks that are known takes one statement, which
// stores it where nobody else has changed the lock meanwhile. Where somebody has, the lock is read and the change tried
// again, at last while its row is locked.
type serverLocks struct {
	db     *serverDB
	seed   maphash.Seed
	lanes  [pgLanes]*group // a lock's changes are all in one, so that those that meet share a statement
	apart  [pgLanes]*group // those that others get in the way of, each in a transaction of its own
	teller *teller
	grown  alarm         // there are more events
	fresh  atomic.Int64  // how many events were stored since many were told of
	many   chan struct{} // many events have no number
	start  time.Time
	closable

	mu      sync.Mutex
	known   map[string]pgLock
	watched map[string]*lokt.Watchers
	due     map[string]bool      // watched, and changed by somebody else
	heard   map[string]time.Time // when it was said last that somebody else has changed a lock
	poke    chan struct{}        // some are due
	state   pgState
	zero    time.Time // the database's clock at start, late by how long a statement was on its way
	zeroed  time.Time // when that was measured
}

const (
	pgLanes    = 2
	pgAttempts = 3      // how often a change is tried
	mostKnown  = 20_000 // locks
)

// pgLock is a lock as it was read or written last.
type pgLock struct {
	lokt.Lock
	row     string    // names this state of its row; empty if there is none, or if somebody else has changed it
	changed time.Time // it is not judged by an earlier time
	damaged error
}

// rowName is the name of a row's state: the transaction that wrote it tells it from others with the revision.
const rowName = "l.name || ' ' || l.revision || '/' || l.xmin"

func (l *pgLock) snapshot(now time.Time) lokt.Snapshot {
	return lokt.Snapshot{Lock: l.Lock, Now: later(now, l.changed)}
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
	s.now, s.last = time.UnixMicro(now).UTC(), time.Unix(0, last).UTC()
	return err
}

// ask adds the statement that reads the state.
func (s *pgState) ask(b *pgx.Batch) {
	b.Queue("SELECT " + stateColumns + " FROM state").QueryRow(func(row pgx.Row) error { return s.scan(row) })
}

// away reports whether nobody has used the database for a while: nothing is judged by its time before everybody has a
// full time again.
func (s *pgState) away() bool { return s.now.Sub(s.last) > awayAfter }

func newServerLocks(d *serverDB) *serverLocks {
	s := &serverLocks{
		db: d, seed: maphash.MakeSeed(), teller: newTeller(d.options.Events),
		many: make(chan struct{}, 1), poke: make(chan struct{}, 1), start: time.Now(),
		known: map[string]pgLock{}, watched: map[string]*lokt.Watchers{}, due: map[string]bool{},
		heard: map[string]time.Time{},
	}
	for i := range s.lanes {
		s.lanes[i] = newGroup(func(rs []*request) error { return s.commit(rs, false) })
		s.apart[i] = newGroup(func(rs []*request) error {
			var err error
			for _, r := range rs {
				if err == nil {
					err = s.commit([]*request{r}, true)
				}
				if r.err == nil { // when the database stalls, they do not wait one after another
					r.err = err
				}
			}
			return nil
		})
		go s.lanes[i].loop()
		go s.apart[i].loop()
	}
	return s
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
	for name, is := range locks {
		was, known := s.known[name]
		if known && !sure && is.Revision < was.Revision { // it was read before the other was
			continue
		}
		if !sure && later(s.heard[name], s.heard["*"]).After(sent) {
			is.row = ""
		}
		s.known[name] = is
		if w := s.watched[name]; w != nil && !known {
			w.WakeAll()
		} else if w != nil && is.Revision != was.Revision {
			w.Wake(&was.Lock, &is.Lock)
		}
	}
}

// forget forgets all locks. Its caller holds the mutex.
func (s *serverLocks) forget() {
	clear(s.known)
	for _, w := range s.watched {
		w.WakeAll()
	}
}

// stale says that somebody else has changed a lock; a star stands for all.
func (s *serverLocks) stale(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == "*" {
		s.forget()
	}
	if len(s.heard) > mostKnown {
		clear(s.heard)
	}
	s.heard[name] = time.Now()
	if l, known := s.known[name]; known {
		l.row = ""
		s.known[name] = l
	}
	if s.watched[name] != nil {
		s.due[name] = true
		poke(s.poke)
	}
}

// ask adds the statement that reads the locks l for which the condition holds, but not those that are known as they are.
// What it finds is there when the batch is done.
func ask(b *pgx.Batch, known map[string]pgLock, where string, args ...any) map[string]pgLock {
	rows, found := make([]string, 0, len(known)), map[string]pgLock{}
	for _, l := range known {
		rows = append(rows, l.row)
	}
	b.Queue(`WITH found AS (SELECT *, `+rowName+` AS row FROM locks l
			WHERE `+where+` AND `+rowName+` NOT IN (SELECT unnest($1::text[])))
		SELECT name, '', row, revision, token, changed, waiting, free, doc, sum FROM found
		UNION ALL SELECT w.lock, w.lease_id, '', 0, 0, 0, 0, false, w.doc, w.sum FROM waiters w JOIN found ON name = lock`,
		append([]any{rows}, args...)...).Query(func(rows pgx.Rows) error {
		var name, lease, row string
		var revision, token uint64
		var changed int64
		var waiting int
		var free bool
		var d document
		queues, missing, wrong := map[string][]*lokt.Waiter{}, map[string]int{}, map[string]error{}
		_, err := pgx.ForEachRow(rows, []any{
			&name, &lease, &row, &revision, &token, &changed, &waiting, &free, &d.text, &d.sum,
		}, func() (err error) {
			if lease != "" {
				w, err := d.openWaiter(name, lease)
				if queues[name], missing[name] = append(queues[name], w), missing[name]-1; err != nil {
					wrong[name] = err
				}
				return nil
			}
			l := pgLock{row: row, changed: time.Unix(0, changed).UTC(), Lock: lokt.Lock{Revision: revision, Token: token}}
			if d.text != "" {
				l.Lock, l.damaged = d.openLock(name, waiting, free)
			}
			l.Name = name
			found[name], missing[name] = l, missing[name]+waiting
			return nil
		})
		for name, l := range found {
			l.Queue = queues[name]
			if sortQueue(l.Queue); l.damaged == nil {
				l.damaged = wrong[name]
			}
			if l.damaged == nil && missing[name] != 0 {
				l.damaged = fmt.Errorf("%w: queue of lock %s: %d who wait are missing", lokt.ErrDamaged, name, missing[name])
			}
			found[name] = l
		}
		return err
	})
	return found
}

// read reads locks after what the batch has already.
func (s *serverLocks) read(
	ctx context.Context, c *pgx.Conn, b *pgx.Batch, names []string, sure bool,
) (locks map[string]pgLock, state pgState, err error) {
	known := map[string]pgLock{}
	s.mu.Lock()
	for _, name := range names {
		if l, there := s.known[name]; there {
			known[name] = l
		}
	}
	s.mu.Unlock()
	locks = ask(b, known, "l.name = ANY($2::text[])", names)
	state.ask(b)
	sent := time.Now()
	if err := exchange(ctx, c, b, pgExchange); err != nil {
		return nil, state, err
	}
	for _, name := range names {
		l, found := locks[name]
		if !found && known[name].row != "" {
			l = known[name]
		}
		l.Name = name
		state.raise(&l)
		locks[name] = l
	}
	s.learn(sent, state, locks, sure)
	return locks, state, nil
}

func (s *pgState) raise(l *pgLock) {
	l.Token, l.Revision = max(l.Token, s.tokens), max(l.Revision, s.revisions)
}

// errElsewhere says that others keep changing the lock.
var errElsewhere = fmt.Errorf("%w: other processes are changing the lock", lokt.ErrUnavailable)

// Update implements lokt.Store. change may be run several times, by another goroutine. If it panics, Update does.
func (s *serverLocks) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	lane := maphash.String(s.seed, name) % pgLanes
	err := s.lanes[lane].perform(ctx, &request{name: name, change: change})
	if errors.Is(err, errElsewhere) {
		err = s.apart[lane].perform(ctx, &request{name: name, change: change})
	}
	return err
}

// commit stores requests, together or each not at all. For a single one the lock's row may be locked, and waited for.
func (s *serverLocks) commit(rs []*request, lock bool) (err error) {
	defer func(begin time.Time) { s.db.options.observe("commit", begin, err) }(time.Now())
	left := slices.Clone(rs)
	var e *pgconn.PgError
	for n := 0; n < pgAttempts && len(left) > 0; n++ {
		if err = s.db.lend(context.Background(), s.db.writers, pgExchange, func(ctx context.Context, c *pgx.Conn) error {
			t := s.with(c)
			if err := t.take(ctx, left, lock); err != nil {
				return err
			}
			for _, r := range left {
				var change lokt.Change
				if l := t.locks[r.name]; l.err == nil && r.guard(func() { change = r.change(l.is.snapshot(t.state.now)) }) {
					l.become(change)
				}
			}
			err := t.store(ctx)
			if err == nil {
				left = slices.DeleteFunc(left, t.settle)
			}
			return err
		}); err != nil && (!errors.As(err, &e) || e.Code != "40P01") { // a circle of processes that wait for each other
			return err
		}
	}
	for _, r := range left {
		r.err = errElsewhere
	}
	return nil
}

// pgLocks are locks as they are read and changed together, over one connection.
type pgLocks struct {
	*serverLocks
	conn   *pgx.Conn
	locked bool    // in a transaction in which nobody else changes them
	state  pgState // when they were read; a change is judged by its time
	locks  map[string]*pgChange
	sent   time.Time // the statement that changes them
}

// pgChange is what becomes of a lock.
type pgChange struct {
	was, is pgLock
	told    []lokt.Event
	err     error // it cannot be read or stored
	stored  bool
}

func (l *pgChange) changed() bool { return l.is.Revision != l.was.Revision }

// become makes the lock what a change says.
func (l *pgChange) become(c lokt.Change) {
	c.Lock.Name, c.Lock.Revision = l.is.Name, l.is.Revision
	if !c.Lock.Equal(&l.is.Lock) {
		l.is.Lock = c.Lock
		l.is.Revision++
	}
	l.told = append(l.told, c.Events...)
}

func (s *serverLocks) with(c *pgx.Conn) *pgLocks {
	return &pgLocks{serverLocks: s, conn: c, locks: map[string]*pgChange{}}
}

// take has the locks of requests as they are known, or reads them.
func (t *pgLocks) take(ctx context.Context, rs []*request, lock bool) error {
	var names []string
	t.mu.Lock()
	unknown := time.Since(t.zeroed) > awayAfter // clocks drift
	for _, r := range rs {
		l := t.known[r.name]
		names, unknown = append(names, r.name), unknown || l.row == ""
		t.locks[r.name] = &pgChange{was: l, is: l, err: l.damaged}
	}
	t.state = t.serverLocks.state
	t.state.now = t.zero.Add(time.Since(t.start))
	t.mu.Unlock()
	slices.Sort(names)
	names = slices.Compact(names)
	for range pgAttempts {
		if !unknown && !lock {
			return nil
		}
		var b pgx.Batch
		if lock {
			pgBegin(&b)
		}
		if err := t.fetch(ctx, &b, names, lock); err != nil || !t.state.away() {
			return err
		}
		if _, err := t.conn.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
		if err := t.arrive(ctx, t.conn); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: times start again too often", lokt.ErrUnavailable)
}

// fetch reads locks, and locks their rows in a transaction that has begun. Names without a row get one.
func (t *pgLocks) fetch(ctx context.Context, b *pgx.Batch, names []string, lock bool) error {
	b.Queue(`INSERT INTO locks (name, revision, token)
		SELECT n, revision_floor, token_floor FROM state, unnest($1::text[]) AS n ON CONFLICT (name) DO NOTHING`, names)
	if lock {
		b.Queue("SELECT 1 FROM locks WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE", names)
		t.locked = true
	}
	locks, state, err := t.read(ctx, t.conn, b, names, lock)
	t.state = state
	for name, l := range locks {
		t.locks[name] = &pgChange{was: l, is: l, err: l.damaged}
	}
	return err
}

// settle reports whether it is known what became of a request.
func (t *pgLocks) settle(r *request) bool {
	l := t.locks[r.name]
	if r.panicked == nil {
		r.err = l.err
	}
	return r.panicked != nil || r.err != nil || l.stored
}

// store stores what became of the locks.
func (t *pgLocks) store(ctx context.Context) error {
	var b pgx.Batch
	t.write(&b, false)
	if t.locked {
		b.Queue("COMMIT")
	}
	if b.Len() == 0 {
		return nil
	}
	if err := exchange(ctx, t.conn, &b, pgExchange); err != nil {
		return err
	}
	t.publish()
	return nil
}

// write adds the statement that stores what became of the locks, those that are as they were read. If all must be, it
// fails if one is not. What cannot be stored has its error set.
func (t *pgLocks) write(b *pgx.Batch, all bool) {
	var names, were []string
	locks := pgRows{table: "locks", columns: "name, revision, token, changed, waiting, free, doc, sum", keys: 1}
	gone := pgRows{table: "waiters", columns: "lock, lease_id", keys: 2}
	came := pgRows{table: "waiters", columns: "lock, lease_id, priority, place, doc, sum", keys: 2}
	told := pgRows{table: "lock_events_new", columns: "n, since, until, lock, doc, sum"}
	for _, name := range slices.Sorted(maps.Keys(t.locks)) {
		l := t.locks[name]
		if l.err == nil {
			l.err = l.addTo(t.state.now, &locks, &gone, &came, &told)
		}
		if l.err == nil {
			names, were = append(names, name), append(were, l.was.row)
		}
	}
	if len(names) == 0 {
		return
	}
	if locks.lists == nil && !t.locked { // somebody was refused, which need not outlive the power
		b.Queue("SELECT set_config('synchronous_commit', 'off', true)")
	}
	late, lock, least := time.Second, "", 0
	if t.locked {
		late = time.Minute
	}
	if locks.lists != nil || told.lists != nil {
		lock = " FOR UPDATE OF l SKIP LOCKED" // nobody waits for a row who has locked another
	}
	if all {
		least = len(names)
	}
	var s script
	t.sent = time.Now()
	now := t.state.now.UnixMicro()
	begin, end := s.arg(now), s.arg(now+late.Microseconds()) // the time must have come, or is waited for
	s.with("mine", fmt.Sprintf(`SELECT l.name FROM locks l WHERE l.name = ANY(%s::text[]) AND %s = ANY(%s::text[]) AND (
		SELECT token_floor = %s AND revision_floor = %s AND clock >= %s
			AND CASE WHEN %s - now BETWEEN 1 AND 100000 THEN pg_sleep((%s - now) / 1e6) IS NOT NULL ELSE now BETWEEN %s AND %s END
		FROM state, (SELECT `+pgNow+` AS now OFFSET 0) c)%s`, s.arg(names), rowName, s.arg(were), s.arg(int64(t.state.tokens)),
		s.arg(int64(t.state.revisions)), s.arg(t.state.now.Add(-awayAfter).UnixNano()), begin, begin, begin, end, lock))
	const mine = " JOIN mine ON mine.name = u."
	written := "'{}'::text[]"
	if locks.lists != nil {
		written = "ARRAY(SELECT row FROM written)"
		s.with("written", s.update(&locks, mine+"name")+" RETURNING "+rowName+" AS row")
	}
	if gone.lists != nil {
		s.with("gone", "DELETE FROM waiters w USING "+s.from(&gone)+mine+"lock WHERE w.lock = u.lock AND w.lease_id = u.lease_id")
	}
	if came.lists != nil {
		s.with("came", s.insert(&came, mine+"lock"))
	}
	if told.lists != nil {
		s.with("told", s.insert(&told, mine+"lock"))
	}
	s.queue(b, "SELECT "+stateColumns+", ARRAY(SELECT name FROM mine), "+written+`,
		1 / (SELECT (count(*) >= `+s.arg(int64(least))+")::int FROM mine) FROM state").QueryRow(func(row pgx.Row) error {
		var stored, rows []string
		err := t.state.scan(row, &stored, &rows, nil)
		for _, name := range stored {
			t.locks[name].stored = true
		}
		for _, row := range rows {
			t.locks[row[:strings.LastIndexByte(row, ' ')]].is.row = row
		}
		return err
	})
}

// addTo adds the rows of a lock, none if there is an error.
func (l *pgChange) addTo(now time.Time, locks, gone, came, told *pgRows) error {
	name := l.is.Name
	var alone, events document
	var err error
	if l.changed() {
		alone, err = sealLock(&l.is.Lock)
	}
	if err == nil && len(l.told) > 0 {
		events, err = seal(name, l.told)
	}
	if err != nil {
		return err
	}
	left, put := queueChange(l.was.Queue, l.is.Queue)
	docs := make([]document, len(put))
	for i, w := range put {
		if docs[i], err = sealWaiter(name, w); err != nil {
			return err
		}
	}
	if l.changed() {
		l.is.changed = later(now, l.was.changed)
		locks.add(name, int64(l.is.Revision), int64(l.is.Token), l.is.changed.UnixNano(), int64(len(l.is.Queue)),
			l.is.Free(), alone.text, alone.sum)
	}
	for _, lease := range left {
		gone.add(name, lease)
	}
	for i, w := range put {
		came.add(name, w.LeaseID, int64(w.Priority), w.Place, docs[i].text, docs[i].sum)
	}
	if n := len(l.told); n > 0 {
		since, until := span(l.told)
		told.add(int64(n), since, until, name, events.text, events.sum)
	}
	return nil
}

// publish wakes whom the changes concern, after they were stored.
func (t *pgLocks) publish() {
	if t.sent.IsZero() {
		return
	}
	locks, names, events := map[string]pgLock{}, []string(nil), 0
	for name, l := range t.locks {
		if l.err == nil && !l.stored { // somebody else has changed it
			locks[name] = pgLock{Lock: l.was.Lock}
		} else if l.stored && (l.changed() || len(l.told) > 0) {
			locks[name], names, events = l.is, append(names, name), events+len(l.told)
			t.teller.add(l.told)
		}
	}
	t.learn(t.sent, t.state, locks, true)
	t.db.notify(names...)
	if events > 0 {
		t.grown.ring()
	}
	if t.fresh.Add(int64(events)) >= numberAfter {
		t.fresh.Store(0)
		poke(t.many)
	}
}

// View implements lokt.Store.
func (s *serverLocks) View(ctx context.Context, name string) (snap lokt.Snapshot, err error) {
	if err := s.usable(ctx); err != nil {
		return snap, err
	}
	err = s.db.using(ctx, "view", func(ctx context.Context, c *pgx.Conn) error {
		locks, state, err := s.read(ctx, c, &pgx.Batch{}, []string{name}, false)
		if err == nil {
			l := locks[name]
			snap, err = l.snapshot(state.now), l.damaged
		}
		return err
	})
	return snap, err
}

// List implements lokt.Store. All locks are as they were at one moment.
func (s *serverLocks) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		var locks map[string]pgLock
		var state pgState
		err := s.usable(ctx)
		if err == nil {
			err = s.db.using(ctx, "list", func(ctx context.Context, c *pgx.Conn) error {
				var b pgx.Batch
				locks = ask(&b, nil, "NOT free AND starts_with(name, $2) AND (waiting > 0 OR NOT $3)", f.Prefix, f.Queued)
				state.ask(&b)
				return c.SendBatch(ctx, &b).Close()
			})
		}
		if err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(locks)) {
			l := locks[name]
			state.raise(&l)
			over := s.usable(ctx)
			if !yield(l.snapshot(state.now), errors.Join(l.damaged, over)) || over != nil {
				return
			}
		}
	}
}

// arrive says that somebody uses the database. If nobody did for a while, everybody who lives by time gets a full time
// from now.
func (s *serverLocks) arrive(ctx context.Context, c *pgx.Conn) error {
	const now = pgNow + " * 1000"
	t := s.with(c)
	t.locked = true
	sent := time.Now()
	if err := t.state.scan(c.QueryRow(ctx, "UPDATE state SET clock = greatest(clock, "+now+") WHERE clock = 0 OR "+now+` - clock <= $1
		RETURNING `+stateColumns, int64(awayAfter))); !errors.Is(err, pgx.ErrNoRows) {
		if err == nil {
			s.learn(sent, t.state, nil, false)
		}
		return err
	}
	var b pgx.Batch
	pgBegin(&b)
	b.Queue("SELECT 1 FROM state FOR UPDATE")
	b.Queue("SELECT 1 FROM locks WHERE NOT free ORDER BY name FOR UPDATE")
	locks := ask(&b, nil, "NOT free")
	t.state.ask(&b)
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	for name, was := range locks { // none is away if somebody else came first
		is := was
		if was.damaged == nil && t.state.away() && restart(&is.Lock, t.state.now, t.state.last) {
			t.locks[name] = &pgChange{was: was, is: is}
		}
	}
	b = pgx.Batch{}
	b.Queue("UPDATE state SET clock = greatest(clock, $1)", t.state.now.UnixNano())
	t.write(&b, true)
	b.Queue("COMMIT")
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	t.publish()
	return nil
}

// Close makes every later call fail, and waits return. The database stays open.
func (s *serverLocks) Close() error {
	if !s.closed.Swap(true) {
		s.stale("*")
		s.grown.ring()
		for _, lane := range append(s.lanes[:], s.apart[:]...) {
			lane.close()
		}
	}
	return nil
}

// Wait implements lokt.Store.
func (s *serverLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	s.mu.Lock()
	_, known := s.known[watch.Name]
	s.mu.Unlock()
	if !known {
		if _, err := s.View(ctx, watch.Name); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return err
	}
	l := s.known[watch.Name]
	ws := s.watched[watch.Name]
	if ws == nil {
		ws = &lokt.Watchers{}
	}
	me := ws.Watch(&l.Lock, watch)
	if me == nil {
		return nil
	}
	s.watched[watch.Name] = ws
	if l.row == "" { // it is not what was seen
		s.due[watch.Name] = true
		poke(s.poke)
	}
	s.mu.Unlock()
	select {
	case <-me.Changed:
	case <-ctx.Done():
	}
	s.mu.Lock()
	if ws.Remove(me); ws.None() && s.watched[watch.Name] == ws {
		delete(s.watched, watch.Name)
	}
	return s.usable(ctx)
}

// look reads the locks that are watched when somebody else has changed them, and now and then in any case.
func (s *serverLocks) look(ctx context.Context) {
	tick := time.NewTicker(lookAnyway)
	defer tick.Stop()
	for {
		all := false
		select {
		case <-s.poke:
		case <-tick.C:
			all = true
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		names := slices.Collect(maps.Keys(s.due))
		if all {
			names = slices.Collect(maps.Keys(s.watched))
		}
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

// Events are stored with their change, in a table of those that have no number yet, and numbered by whoever reads first;
// if nobody reads, every two seconds, and after so many. A number that a change took itself would have to be locked until
// the change is on the disk, and no two changes could be on their way there at once.
const numberAfter = 4096

// number gives all events that were stored before a number.
func (s *serverLocks) number(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, "SELECT CASE WHEN has_new_lock_events() THEN number_lock_events(false) END")
	return err
}

// WaitEvents implements lokt.EventLog.
func (s *serverLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.grown.next()
	if err := s.usable(ctx); err != nil {
		return err
	}
	there := false
	if err := s.db.using(ctx, "events", func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT lock_event > $1 OR has_new_lock_events() FROM state", int64(after)).Scan(&there)
	}); err != nil || there {
		return err
	}
	select {
	case <-grown:
	case <-time.After(lookAnyway):
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.usable(context.WithoutCancel(ctx))
}

// ReadEvents implements lokt.EventLog. What is stored while it numbers events is left for later.
func (s *serverLocks) ReadEvents(ctx context.Context, q lokt.EventQuery) (page lokt.EventPage, err error) {
	if err := s.usable(ctx); err != nil {
		return page, err
	}
	err = s.db.using(ctx, "events", func(ctx context.Context, c *pgx.Conn) error {
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

// trim forgets the oldest events that are too old or too many, some at a time.
func (s *serverLocks) trim(ctx context.Context, c *pgx.Conn) error {
	for range 100 {
		done, err := c.Exec(ctx, `DELETE FROM lock_events WHERE first <= (SELECT max(first)
			FROM (SELECT * FROM lock_events ORDER BY first LIMIT 5000) oldest, state
			WHERE $1::bigint >= 0 AND last <= lock_event - $1::bigint
			OR $2::bigint >= 0 AND until < `+pgNow+` * 1000 - $2::bigint)`,
			int64(s.db.options.KeepEvents), int64(s.db.options.KeepEventsFor))
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
	}
	return nil
}
