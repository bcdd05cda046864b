package sqlstore

// A change of locks that are known is one statement, which stores it where the locks are as they are known: one round trip,
// in no transaction that this process could be stopped in the middle of. It makes twice as many changes per second as
// reading each lock in a transaction first. Where somebody else has changed the lock, it is read and the change tried again,
// at last while its row is locked.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokt-dev/lokt"
)

const (
	pgLanes    = 2
	pgAttempts = 3 // how often a change is tried

	pgLate = time.Second // how long after the time by which it was judged a change may be stored
)

// errElsewhere says that others keep changing the lock.
var errElsewhere = fmt.Errorf("%w: other processes are changing the lock", lokt.ErrUnavailable)

// Update implements lokt.Store. change may be run several times, by another goroutine. If it panics, Update does.
func (s *serverLocks) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	lane := s.lanes[maphash.String(s.seed, name)%pgLanes]
	err := lane.perform(ctx, &request{name: name, change: change})
	if !errors.Is(err, errElsewhere) {
		return err
	}
	timed, cancel := context.WithTimeout(ctx, pgExchange)
	defer cancel()
	select {
	case s.apart <- struct{}{}:
	case <-timed.Done():
		return cmp.Or(ctx.Err(), err)
	}
	defer func() { <-s.apart }()
	r := &request{name: name, change: change}
	if err := s.commit([]*request{r}, true); err != nil {
		return err
	}
	return r.outcome()
}

// commit stores requests, together or each not at all. For a single one the lock's row may be locked, and waited for.
func (s *serverLocks) commit(rs []*request, lock bool) (err error) {
	defer func(begin time.Time) { s.db.options.observe("commit", begin, err) }(time.Now())
	left, later := slices.Clone(rs), []*request(nil)
	var e *pgconn.PgError
	for n := 0; n < pgAttempts && len(left) > 0; n++ {
		if err = s.db.lend(context.Background(), s.db.writers, pgExchange, func(ctx context.Context, c *pgx.Conn) error {
			t := s.with(c)
			if err := t.take(ctx, left, lock); err != nil {
				return err
			}
			if t.state.away() {
				return t.startTimes(ctx)
			}
			begin := time.Now()
			for i, r := range left {
				if i > 0 && time.Since(begin) > judging {
					left, later = left[:i:i], slices.Concat(left[i:], later)
					break
				}
				if l := t.locks[r.name]; l.err == nil {
					r.guard(func() { l.become(r.change(l.is.snapshot(t.state.now))) })
				}
			}
			var b pgx.Batch
			if t.write(&b, false); lock {
				b.Queue("COMMIT")
			}
			if err := exchange(ctx, c, &b, pgExchange); err != nil {
				return err
			}
			t.publish()
			left = slices.DeleteFunc(left, func(r *request) bool {
				l := t.locks[r.name]
				r.err = l.err
				r.over = l.stored || l.err != nil || r.panicked != nil
				return r.over
			})
			return nil
		}); err != nil && (!errors.As(err, &e) || e.Code != "40P01") { // a circle of processes that wait for each other
			return err
		}
	}
	for _, r := range left {
		r.err = errElsewhere
	}
	for _, r := range later {
		r.later = true
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
	t.mu.Lock()
	unknown := lock || time.Since(t.zeroed) > awayAfter // clocks drift
	for _, r := range rs {
		l := t.get(r.name).pgLock
		t.locks[r.name] = &pgChange{was: l, is: l, err: l.damaged}
		unknown = unknown || l.row == ""
	}
	t.state = t.serverLocks.state
	t.state.now = t.zero.Add(time.Since(t.start))
	t.mu.Unlock()
	if !unknown {
		return nil
	}
	var b pgx.Batch
	if lock {
		pgBegin(&b)
	}
	return t.fetch(ctx, &b, slices.Sorted(maps.Keys(t.locks)), lock)
}

// startTimes ends a transaction in which nothing can be judged, and gives everybody a full time.
func (t *pgLocks) startTimes(ctx context.Context) error {
	if _, err := t.conn.Exec(ctx, "ROLLBACK"); err != nil {
		return err
	}
	return t.arrive(ctx, t.conn)
}

// fetch reads locks after what the batch has already, and locks their rows if that has begun a transaction. Names without
// a row get one.
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

// takeRows has those rows passed over that somebody else is changing, because nobody is to wait for a row who has locked
// another.
const takeRows = "FOR UPDATE OF l SKIP LOCKED"

// storeLocks stores changes and events of locks that are as they were read, unless the time by which they were judged has
// passed. A time that is about to come is waited for. The division fails if fewer are stored than must be.
const storeLocks = `WITH mine AS (
	SELECT u.* FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[],
		$8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[])
		AS u (name, row, revision, token, changed, waiting, free, doc, sum, n, since, until, events, events_sum)
	JOIN locks l ON l.name = u.name AND ` + rowName + ` = u.row
	WHERE (SELECT token_floor = $15 AND revision_floor = $16 AND clock >= $17
		AND CASE WHEN $18 - now BETWEEN 1 AND 100000 THEN pg_sleep(($18 - now) / 1e6) IS NOT NULL ELSE now BETWEEN $18 AND $19 END
		FROM state, (SELECT ` + pgNow + ` AS now OFFSET 0) c) ` + takeRows + `
), written AS (
	UPDATE locks l SET revision = u.revision, token = u.token, changed = u.changed, waiting = u.waiting, free = u.free, doc = u.doc, sum = u.sum
	FROM mine u WHERE l.name = u.name AND u.doc <> '' RETURNING ` + rowName + ` AS row
), told AS (
	INSERT INTO lock_events_new (n, since, until, lock, doc, sum)
	SELECT n, since, until, name, events, events_sum FROM mine WHERE n > 0
)
SELECT ` + stateColumns + `, ARRAY(SELECT name FROM mine), ARRAY(SELECT row FROM written),
	1 / ((SELECT count(*) FROM mine) >= $20)::int FROM state`

// The queue of a lock that was stored in the same transaction.
const (
	dropWaiters = `DELETE FROM waiters w USING unnest($1::text[], $2::text[]) AS u (lock, lease_id), locks l
		WHERE w.lock = u.lock AND w.lease_id = u.lease_id AND l.name = u.lock AND ` + isStored
	isStored = "l.xmin = pg_current_xact_id_if_assigned()::xid"
)

// write adds the statements that store what became of the locks, those that are as they were read. If all must be, they
// fail if one is not. What cannot be stored has its error set.
func (t *pgLocks) write(b *pgx.Batch, all bool) {
	var rows, gone pgRows
	came := newTables()
	changed, told := false, false
	for _, name := range slices.Sorted(maps.Keys(t.locks)) {
		l := t.locks[name]
		if l.err == nil {
			l.err = l.addTo(t.state.now, &rows, &gone, came)
		}
		changed, told = changed || l.changed(), told || len(l.told) > 0
	}
	if len(rows) == 0 {
		return
	}
	statement, late, least := storeLocks, pgLate, 0
	if !changed && !told { // what is only looked at is not locked
		statement = strings.Replace(statement, takeRows, "", 1)
	}
	if !changed && !t.locked { // somebody was refused, which need not outlive the power
		b.Queue("SELECT set_config('synchronous_commit', 'off', true)")
	}
	if t.locked {
		late = time.Minute
	}
	if all {
		least = len(rows)
	}
	t.sent = time.Now()
	state := t.state
	b.Queue(statement, append(rows.lists(), int64(state.tokens), int64(state.revisions), state.now.Add(-awayAfter).UnixNano(),
		state.now.UnixMicro(), state.now.Add(late).UnixMicro(), least)...).QueryRow(func(row pgx.Row) error {
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
	gone.queue(b, dropWaiters)
	came.queue(b, " JOIN locks l ON l.name = u.lock WHERE "+isStored)
}

// addTo adds the rows of a lock, none if there is an error.
func (l *pgChange) addTo(now time.Time, rows, gone *pgRows, came *pgTables) (err error) {
	name := l.is.Name
	var alone, events document
	var since, until int64
	if l.changed() {
		l.is.changed = l.was.judged(now)
		alone, err = sealLock(&l.is.Lock)
	}
	if err == nil && len(l.told) > 0 {
		since, until = span(l.told)
		events, err = seal(name, l.told)
	}
	left, put := l.is.QueueChange(&l.was.Lock)
	queue := newTables()
	for _, w := range put {
		queue.put(waitersTable, waiterKey(name, w.LeaseID), w, name, w.LeaseID)
	}
	if err = cmp.Or(err, queue.err); err != nil {
		return err
	}
	*rows = append(*rows, []any{name, l.was.row, int64(l.is.Revision), int64(l.is.Token), l.is.changed.UnixNano(), int64(len(l.is.Queue)),
		l.is.Free(), alone.text, alone.sum, int64(len(l.told)), since, until, events.text, events.sum})
	for into, rows := range queue.rows {
		came.rows[into] = append(came.rows[into], rows...)
	}
	for _, lease := range left {
		*gone = append(*gone, []any{name, lease})
	}
	return nil
}

// publish wakes whom the changes concern, after they were stored.
func (t *pgLocks) publish() {
	if t.sent.IsZero() {
		return
	}
	locks, names, grown := map[string]pgLock{}, []string(nil), false
	for name, l := range t.locks {
		if l.err == nil && !l.stored { // somebody else has changed it
			locks[name] = pgLock{Lock: l.was.Lock}
		} else if l.stored && (l.changed() || len(l.told) > 0) {
			locks[name], names, grown = l.is, append(names, name), grown || len(l.told) > 0
		}
	}
	t.learn(t.sent, t.state, locks, true)
	t.db.notify(names...)
	if grown {
		t.grown.ring()
	}
}

// arrive says that somebody uses the database. If nobody did for a while, or its clock was set back, everybody who lives by time gets
// a full time from now.
func (s *serverLocks) arrive(ctx context.Context, c *pgx.Conn) error {
	t := s.with(c)
	t.locked = true
	sent := time.Now()
	var b pgx.Batch
	b.Queue("UPDATE state SET clock = greatest(clock, c.now) FROM (SELECT "+pgNow+" * 1000 AS now) c WHERE c.now - clock BETWEEN $1 AND $2 RETURNING "+
		stateColumns, -int64(clockBack), int64(awayAfter)).QueryRow(func(row pgx.Row) error { return t.state.scan(row) })
	if err := exchange(ctx, c, &b, pgExchange); !errors.Is(err, pgx.ErrNoRows) {
		if err == nil {
			s.learn(sent, t.state, nil, false)
		}
		return err
	}
	b = pgx.Batch{}
	pgBegin(&b)
	b.Queue("SELECT 1 FROM state FOR UPDATE")
	b.Queue("SELECT 1 FROM locks WHERE NOT free ORDER BY name FOR UPDATE")
	locks := t.state.ask(&b, nil, "NOT free")
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	for name, was := range locks { // none is away if somebody else came first
		is := was
		if was.damaged == nil && t.state.away() && restart(&is.Lock, t.state.now, t.state.last) {
			t.state.raise(&is) // it is known from now on
			t.locks[name] = &pgChange{was: was, is: is}
		}
	}
	b = pgx.Batch{}
	b.Queue("UPDATE state SET clock = $1", t.state.now.UnixNano()) // nobody else could since the row was locked
	t.write(&b, true)
	b.Queue("COMMIT")
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	t.publish()
	return nil
}
