package sqlstore

// Changes of locks are stored in a transaction that has their rows locked: one exchange locks and reads them, another
// stores what became of them. Those that arrive together share it. Rows that somebody else has locked are passed over,
// because nobody is to wait for a row who has locked another; their changes are tried again one by one, and wait.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
)

// pgLanes is how many groups of changes are on their way to the disk at the same time.
const pgLanes = 2

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

// commit stores requests together, but not those of locks that somebody else has locked. For a single one that is waited
// for.
func (s *serverLocks) commit(rs []*request, wait bool) (err error) {
	defer func(begin time.Time) { s.db.options.observe("commit", begin, err) }(time.Now())
	return s.db.lend(context.Background(), s.db.writers, pgExchange, func(ctx context.Context, c *pgx.Conn) error {
		return s.with(c).run(ctx, rs, wait)
	})
}

// pgLocks are locks that are read and changed together, over one connection, while nobody else can change them.
type pgLocks struct {
	*serverLocks
	conn  *pgx.Conn
	state pgState // when they were read; a change is judged by its time
	locks map[string]*pgChange
}

// pgChange is what becomes of a lock.
type pgChange struct {
	was, is pgLock
	told    []lokt.Event
	err     error // it cannot be read or stored
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

// run runs requests and stores what they change.
func (t *pgLocks) run(ctx context.Context, rs []*request, wait bool) error {
	var names, unknown []string
	t.mu.Lock()
	for _, r := range rs {
		names = append(names, r.name)
		if l := t.known[r.name]; wait || l == nil || l.row == "" {
			unknown = append(unknown, r.name)
		}
	}
	t.mu.Unlock()
	if len(unknown) > 0 { // in a transaction of its own: who makes the same row waits until it ends
		var b pgx.Batch
		b.Queue(pgUnflushed)
		b.Queue(makeRows, unknown)
		if err := exchange(ctx, t.conn, &b, pgExchange); err != nil {
			return err
		}
	}
	var b pgx.Batch
	pgBegin(&b)
	if err := t.take(ctx, &b, names, wait); err != nil {
		return err
	}
	if t.state.away() {
		if err := t.startTimes(ctx); err != nil {
			return err
		}
		return t.with(t.conn).run(ctx, rs, wait)
	}
	for _, r := range rs {
		if l := t.locks[r.name]; l == nil {
			r.err = errElsewhere
		} else if r.err = l.err; r.err == nil {
			r.guard(func() { l.become(r.change(l.is.snapshot(t.state.now))) })
		}
	}
	b = pgx.Batch{}
	if !t.write(&b) { // somebody was refused, which need not outlive the power
		b.Queue(pgUnflushed)
	}
	b.Queue("COMMIT")
	if err := exchange(ctx, t.conn, &b, pgExchange); err != nil {
		return err
	}
	t.publish()
	for _, r := range rs {
		if l := t.locks[r.name]; l != nil {
			r.err = l.err
		}
	}
	return nil
}

// startTimes ends a transaction in which nothing can be judged, and gives everybody a full time.
func (t *pgLocks) startTimes(ctx context.Context) error {
	if _, err := t.conn.Exec(ctx, "ROLLBACK"); err != nil {
		return err
	}
	return t.arrive(ctx, t.conn)
}

// take locks the rows of locks, after what the batch has already, and reads them. Those that somebody else has locked are
// waited for, or are not taken.
func (t *pgLocks) take(ctx context.Context, b *pgx.Batch, names []string, wait bool) error {
	statement := "SELECT name FROM locks WHERE name = ANY($1::text[]) ORDER BY name FOR UPDATE"
	if !wait {
		statement += " SKIP LOCKED"
	}
	var taken []string
	b.Queue(statement, names).Query(func(rows pgx.Rows) (err error) {
		taken, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	locks, state, err := t.read(ctx, t.conn, b, names)
	t.state = state
	for _, name := range taken {
		t.locks[name] = &pgChange{was: locks[name], is: locks[name], err: locks[name].damaged}
	}
	return err
}

const (
	pgUnflushed = "SELECT set_config('synchronous_commit', 'off', true)"

	makeRows = `INSERT INTO locks (name, revision, token)
		SELECT n, revision_floor, token_floor FROM state, (SELECT DISTINCT unnest($1::text[]) AS n ORDER BY n) u ON CONFLICT (name) DO NOTHING`

	storeLocks = `UPDATE locks l SET revision = u.revision, token = u.token, changed = u.changed, waiting = u.waiting, free = u.free, doc = u.doc, sum = u.sum
		FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[], $8::bigint[])
			AS u (name, revision, token, changed, waiting, free, doc, sum) WHERE l.name = u.name RETURNING l.name, ` + rowName

	storeEvents = `INSERT INTO lock_events_new (n, since, until, lock, doc, sum)
		SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[])`

	dropWaiters = `DELETE FROM waiters w USING unnest($1::text[], $2::text[]) AS u (lock, lease_id)
		WHERE w.lock = u.lock AND w.lease_id = u.lease_id`

	putWaiters = `INSERT INTO waiters (lock, lease_id, priority, place, doc, sum)
		SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[])
		ON CONFLICT (lock, lease_id) DO UPDATE SET
			priority = excluded.priority, place = excluded.place, doc = excluded.doc, sum = excluded.sum`
)

// write adds the statements that store what became of the locks, and reports whether any has changed. What cannot be
// stored has its error set.
func (t *pgLocks) write(b *pgx.Batch) (changed bool) {
	var rows, events, gone, came pgRows
	for _, l := range t.locks {
		if l.err == nil {
			l.err = l.addTo(t.state.now, &rows, &events, &gone, &came)
		}
	}
	if len(rows) > 0 {
		b.Queue(storeLocks, rows.lists()...).Query(func(rows pgx.Rows) error {
			return eachRow(rows, func(from row) error {
				var name, row string
				err := from.Scan(&name, &row)
				t.locks[name].is.row = row
				return err
			})
		})
	}
	events.queue(b, storeEvents)
	gone.queue(b, dropWaiters)
	came.queue(b, putWaiters)
	return len(rows) > 0
}

// addTo adds the rows of a lock, none if there is an error.
func (l *pgChange) addTo(now time.Time, rows, events, gone, came *pgRows) (err error) {
	name := l.is.Name
	var alone, told document
	if l.changed() {
		l.is.changed = later(now, l.was.changed)
		alone, err = sealLock(&l.is.Lock)
	}
	if err == nil && len(l.told) > 0 {
		told, err = seal(name, l.told)
	}
	left, put := l.is.QueueChange(&l.was.Lock)
	var waiters pgRows
	for _, w := range put {
		d, e := sealWaiter(name, w)
		err = cmp.Or(err, e)
		waiters = append(waiters, []any{name, w.LeaseID, int64(w.Priority), w.Place, d.text, d.sum})
	}
	if err != nil {
		return err
	}
	if l.changed() {
		*rows = append(*rows, []any{name, int64(l.is.Revision), int64(l.is.Token), l.is.changed.UnixNano(), int64(len(l.is.Queue)),
			l.is.Free(), alone.text, alone.sum})
	}
	if len(l.told) > 0 {
		since, until := span(l.told)
		*events = append(*events, []any{int64(len(l.told)), since, until, name, told.text, told.sum})
	}
	*came = append(*came, waiters...)
	for _, lease := range left {
		*gone = append(*gone, []any{name, lease})
	}
	return nil
}

// publish wakes whom the changes concern, after they were stored.
func (t *pgLocks) publish() {
	locks, names, grown := map[string]pgLock{}, []string(nil), false
	for name, l := range t.locks {
		if l.err == nil && (l.changed() || len(l.told) > 0) {
			locks[name], names, grown = l.is, append(names, name), grown || len(l.told) > 0
		}
	}
	t.learn(t.state, locks)
	t.db.notify(names...)
	if grown {
		t.grown.ring()
	}
}

// arrive says that somebody uses the database. If nobody did for a while, everybody who lives by time gets a full time
// from now.
func (s *serverLocks) arrive(ctx context.Context, c *pgx.Conn) error {
	t := s.with(c)
	var b pgx.Batch
	b.Queue("UPDATE state SET clock = greatest(clock, c.now) FROM (SELECT "+pgNow+" * 1000 AS now) c WHERE c.now - clock <= $1 RETURNING "+
		stateColumns, int64(awayAfter)).QueryRow(func(row pgx.Row) error { return t.state.scan(row) })
	if err := exchange(ctx, c, &b, pgExchange); !errors.Is(err, pgx.ErrNoRows) {
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
			t.locks[name] = &pgChange{was: was, is: is}
		}
	}
	b = pgx.Batch{}
	b.Queue("UPDATE state SET clock = greatest(clock, $1)", t.state.now.UnixNano())
	t.write(&b)
	b.Queue("COMMIT")
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	t.publish()
	return nil
}
