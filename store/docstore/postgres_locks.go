package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokt-dev/lokt"
)

// serverLocks are the locks in a database of PostgreSQL.
type serverLocks struct {
	db      *serverDB
	seed    maphash.Seed
	lanes   [pgLanes]*group // a lock's changes are all in one, so that those that meet share a transaction
	apart   chan struct{}   // a free place for each change that waits for another process
	queues  queueCache
	waiting pgWaiting
	teller  *teller
	grown   alarm         // there are more events
	fresh   atomic.Int64  // how many events were stored since many were told of
	many    chan struct{} // many events have no number
	closed  atomic.Bool

	arriving  chan struct{} // has an element while somebody says that the database is in use
	numbering chan struct{} // has an element while somebody numbers events

	mu    sync.Mutex
	known map[string]struct{} // names that have a row
}

const (
	pgLanes     = 4
	pgApart     = 4
	pgCommit    = 4500 * time.Millisecond // how long a commit may take: two of them are the most that a caller waits for
	pgAttempts  = 10                      // how often a transaction that was undone because of others is tried
	mostKnown   = 100_000                 // names, and thus some 10 MB
	restartMany = 1000                    // locks that are written at a time when times start again
)

func newServerLocks(d *serverDB) *serverLocks {
	s := &serverLocks{
		db: d, seed: maphash.MakeSeed(), apart: make(chan struct{}, pgApart), teller: newTeller(d.options.Events), many: make(chan struct{}, 1),
		arriving: make(chan struct{}, 1), numbering: make(chan struct{}, 1), known: map[string]struct{}{},
	}
	for i := range s.lanes {
		s.lanes[i] = newGroup(func(rs []*request) error { return s.commit(context.Background(), rs, skipLocked) })
		go s.lanes[i].loop()
	}
	return s
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

// How rows of locks are read.
const (
	asTheyAre  = ""
	forUpdate  = " FOR UPDATE"
	skipLocked = " FOR UPDATE SKIP LOCKED" // without those that another transaction has locked: nobody waits who has locked others
)

// errElsewhere says that another transaction has the lock's row locked.
var errElsewhere = errors.New("another process is changing the lock")

// Update implements lokt.Store. change may be run several times, by another goroutine. If it panics, Update does.
func (s *serverLocks) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	err := s.lanes[maphash.String(s.seed, name)%pgLanes].perform(ctx, &request{name: name, change: change})
	if !errors.Is(err, errElsewhere) {
		return err
	}
	select {
	case s.apart <- struct{}{}:
		defer func() { <-s.apart }()
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pgCommit):
		return fmt.Errorf("%w: other processes keep the lock for themselves", lokt.ErrUnavailable)
	}
	r := &request{name: name, change: change}
	if err := s.commit(ctx, []*request{r}, forUpdate); err != nil {
		return err
	}
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.err
}

// commit stores requests in one transaction.
func (s *serverLocks) commit(ctx context.Context, rs []*request, how string) (err error) {
	begin := time.Now()
	defer func() { s.db.options.observe("commit", begin, err) }()
	for range pgAttempts {
		if err = s.db.lend(ctx, pgCommit, func(ctx context.Context, c *pgx.Conn) error { return s.store(ctx, c, rs, how) }); !again(err) {
			break
		}
	}
	if len(rs) > 1 && refused(err) { // one of them has what cannot be stored
		for _, r := range rs {
			if r.err == nil && r.panicked == nil {
				r.err = s.commit(ctx, []*request{r}, how)
			}
		}
		return nil
	}
	return err
}

// refused reports whether the server did not take data.
func refused(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code[:2] == "22" || e.Code[:2] == "23" || e.Code[:2] == "54")
}

// store runs the requests and stores what they change: two exchanges with the server.
func (s *serverLocks) store(ctx context.Context, c *pgx.Conn, rs []*request, how string) error {
	names := make([]string, 0, len(rs))
	for _, r := range rs {
		if r.panicked == nil && r.err == nil {
			names = append(names, r.name)
		}
	}
	slices.Sort(names) // everybody's order
	names = slices.Compact(names)
	t, err := s.begin(ctx, c, names, how)
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r.panicked != nil || r.err != nil {
			continue
		}
		l := t.locks[r.name]
		if l == nil {
			r.err = errElsewhere
		} else if r.err = l.err; r.err == nil {
			var change lokt.Change
			if r.guard(func() { change = r.change(t.snapshot(l)) }) {
				l.become(change)
			}
		}
	}
	var b pgx.Batch
	names, events := t.write(&b)
	for _, r := range rs {
		if l := t.locks[r.name]; l != nil && r.err == nil {
			r.err = l.err
		}
	}
	switch {
	case len(names) == 0 && events == 0:
		_, err := c.Exec(ctx, "ROLLBACK")
		return err
	case len(names) == 0: // somebody was refused, which need not outlive the power
		var first pgx.Batch
		first.Queue("SET LOCAL synchronous_commit TO off")
		b.QueuedQueries = append(first.QueuedQueries, b.QueuedQueries...)
	}
	if t.now.Sub(t.last) > 2*presence { // whoever should have said that the database is in use could not
		b.Queue("UPDATE state SET clock = greatest(clock, $1)", t.now.UnixNano())
	}
	b.Queue("COMMIT")
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	t.publish()
	return nil
}

// begin begins a transaction and reads the time and the locks, which nobody else changes until it ends.
func (s *serverLocks) begin(ctx context.Context, c *pgx.Conn, names []string, how string) (*pgLocks, error) {
	for range 2 {
		t := &pgLocks{store: s, locks: map[string]*pgLock{}}
		var b pgx.Batch
		b.Queue("BEGIN")
		b.Queue(pgLimits)
		t.ask(&b, names, how)
		t.askState(&b)
		if err := c.SendBatch(ctx, &b).Close(); err != nil {
			return nil, err
		}
		if !t.away() {
			return t, nil
		}
		// Nobody was there for a while: nothing is judged by its time before everybody has a full time again.
		if _, err := c.Exec(ctx, "ROLLBACK"); err != nil {
			return nil, err
		}
		if err := s.db.arrive(ctx); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: times start again too often", lokt.ErrUnavailable)
}

// learn notes that the locks have rows.
func (s *serverLocks) learn(locks map[string]*pgLock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) > mostKnown {
		clear(s.known)
	}
	for name := range locks {
		s.known[name] = struct{}{}
	}
}

// unknown returns the names that may have no row.
func (s *serverLocks) unknown(names []string) (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if _, known := s.known[name]; !known {
			all = append(all, name)
		}
	}
	return all
}

// pgLocks are locks as a transaction reads and changes them.
type pgLocks struct {
	store             *serverLocks
	now, last         time.Time // last is when somebody said that the database is in use
	tokens, revisions uint64    // nothing is below these floors
	locks             map[string]*pgLock
	cached            map[string]cachedQueue // those that need not be read again, if their versions are the same
}

// pgLock is one of them.
type pgLock struct {
	was, is lokt.Lock
	version string // differs with every change of the row
	now     time.Time
	told    [][]lokt.Event // of each change
	err     error          // it is damaged, or what it became cannot be stored
	changed bool

	waiting int
	free    bool
	text    document
	cached  bool
}

// become makes the lock what a change says.
func (l *pgLock) become(c lokt.Change) {
	c.Lock.Name, c.Lock.Revision = l.is.Name, l.is.Revision
	if !c.Lock.Equal(&l.is) {
		l.changed = true
		l.is = c.Lock
		l.is.Revision++
	}
	if len(c.Events) > 0 {
		l.told = append(l.told, c.Events)
	}
}

func (t *pgLocks) snapshot(l *pgLock) lokt.Snapshot { return lokt.Snapshot{Lock: l.is, Now: l.now} }

const lockColumns = "name, revision || '/' || xmin, revision, token, changed, waiting, free, doc, sum"

// ask adds the statements that read locks. A row can be locked only if it is there.
func (t *pgLocks) ask(b *pgx.Batch, names []string, how string) {
	missing := names
	if how == skipLocked {
		missing = t.store.unknown(names)
	}
	if how != asTheyAre && len(missing) > 0 {
		b.Queue(`INSERT INTO locks (name, revision, token) SELECT n, revision_floor, token_floor FROM state, unnest($1::text[]) AS n ORDER BY n COLLATE "C"
			ON CONFLICT (name) DO NOTHING`, missing)
	}
	b.Queue("SELECT "+lockColumns+" FROM locks WHERE name = ANY($1::text[]) ORDER BY name"+how, names).Query(t.readLocks)
	// Only this statement sees what was stored while the rows were waited for.
	t.cached = t.store.queues.some(names)
	versions := make([]string, len(names))
	for i, name := range names {
		versions[i] = t.cached[name].version
	}
	b.Queue(`SELECT w.lock, w.lease_id, w.doc, w.sum FROM unnest($1::text[], $2::text[]) AS k (name, version)
		JOIN locks l ON l.name = k.name AND l.revision || '/' || l.xmin <> k.version JOIN waiters w ON w.lock = l.name`,
		names, versions).Query(t.readWaiters)
}

// askState adds the statement that reads the time.
func (t *pgLocks) askState(b *pgx.Batch) {
	b.Queue("SELECT " + pgNow + ", clock, token_floor, revision_floor FROM state").QueryRow(func(row pgx.Row) error {
		var now, clock, tokens, revisions int64
		if err := row.Scan(&now, &clock, &tokens, &revisions); err != nil {
			return err
		}
		t.now, t.last = time.UnixMicro(now).UTC(), time.Unix(0, clock).UTC()
		t.tokens, t.revisions = uint64(tokens), uint64(revisions)
		for name, l := range t.locks {
			t.open(name, l)
		}
		return nil
	})
}

// away reports whether nobody used the database for a while.
func (t *pgLocks) away() bool { return t.now.Sub(t.last) > awayAfter }

func (t *pgLocks) readLocks(rows pgx.Rows) error {
	for rows.Next() {
		l := &pgLock{}
		var name string
		var revision, token, changed int64
		if err := rows.Scan(&name, &l.version, &revision, &token, &changed, &l.waiting, &l.free, &l.text.text, &l.text.sum); err != nil {
			return err
		}
		l.is = lokt.Lock{Name: name, Revision: uint64(revision), Token: uint64(token)}
		l.now = time.Unix(0, changed).UTC()
		if c, ok := t.cached[name]; ok && c.version == l.version {
			l.is.Queue, l.cached = c.queue, true
		}
		t.locks[name] = l
	}
	return rows.Err()
}

func (t *pgLocks) readWaiters(rows pgx.Rows) error {
	for rows.Next() {
		var lock, lease string
		var d document
		if err := rows.Scan(&lock, &lease, &d.text, &d.sum); err != nil {
			return err
		}
		l := t.locks[lock]
		if l == nil || l.cached {
			continue
		}
		w, err := d.openWaiter(lock, lease)
		l.err = first(l.err, err)
		l.is.Queue = append(l.is.Queue, w)
	}
	return rows.Err()
}

// open reads the document of a lock whose queue has been read.
func (t *pgLocks) open(name string, l *pgLock) {
	queue := l.is.Queue
	if l.text.text != "" && l.err == nil {
		l.is, l.err = l.text.openLock(name, l.waiting, l.free)
	}
	if l.err == nil && len(queue) != l.waiting {
		l.err = fmt.Errorf("%w: lock %s: %d wait for it, and %d are there", lokt.ErrDamaged, name, l.waiting, len(queue))
	}
	if !l.cached {
		sortQueue(queue)
	}
	l.is.Name, l.is.Queue = name, queue
	l.is.Token, l.is.Revision = max(l.is.Token, t.tokens), max(l.is.Revision, t.revisions)
	l.was, l.now = l.is, later(t.now, l.now)
	if l.err == nil && !l.cached {
		t.store.queues.put(name, l.version, queue)
	}
}

// write adds the statements that store what became of the locks, and returns which changed and how many events there are. What
// cannot be stored has its error set.
func (t *pgLocks) write(b *pgx.Batch) (names []string, events int) {
	var locks, came, gone, told pgRows
	for _, name := range slices.Sorted(maps.Keys(t.locks)) {
		l := t.locks[name]
		if l.err != nil || !l.changed && len(l.told) == 0 {
			continue
		}
		if l.err = l.addTo(&locks, &came, &gone, &told); l.err != nil {
			continue
		}
		if l.changed {
			names = append(names, name)
		}
		for _, all := range l.told {
			events += len(all)
		}
	}
	if len(names) > 0 {
		b.Queue(`UPDATE locks l SET revision = u.revision, token = u.token, changed = u.changed, waiting = u.waiting, free = u.free, doc = u.doc, sum = u.sum
			FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::text[], $8::bigint[])
			AS u (name, revision, token, changed, waiting, free, doc, sum) WHERE l.name = u.name RETURNING l.name, l.revision || '/' || l.xmin`,
			locks.args(8)...).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				var name, version string
				if err := rows.Scan(&name, &version); err != nil {
					return err
				}
				t.locks[name].version = version
			}
			return rows.Err()
		})
	}
	gone.queue(b, 2, `DELETE FROM waiters w USING unnest($1::text[], $2::text[]) AS u (lock, lease_id) WHERE w.lock = u.lock AND w.lease_id = u.lease_id`)
	came.queue(b, 6, `INSERT INTO waiters (lock, lease_id, priority, place, doc, sum)
		SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[])
		ON CONFLICT (lock, lease_id) DO UPDATE SET priority = excluded.priority, place = excluded.place, doc = excluded.doc, sum = excluded.sum`)
	told.queue(b, 6, `INSERT INTO lock_events_new (n, at, upto, lock, doc, sum)
		SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[])`)
	return names, events
}

// addTo adds the rows of a lock, none if there is an error.
func (l *pgLock) addTo(locks, came, gone, told *pgRows) error {
	name := l.is.Name
	alone, err := sealLock(&l.is)
	if err != nil {
		return err
	}
	left, put := queueChange(l.was.Queue, l.is.Queue)
	waiters := make([]document, len(put))
	for i, w := range put {
		if waiters[i], err = sealWaiter(name, w); err != nil {
			return err
		}
	}
	happened := make([]document, len(l.told))
	for i, all := range l.told {
		if happened[i], err = seal(name, all); err != nil {
			return err
		}
	}
	if l.changed {
		locks.add(name, int64(l.is.Revision), int64(l.is.Token), l.now.UnixNano(), int64(len(l.is.Queue)), l.is.Free(), alone.text, alone.sum)
	}
	for _, lease := range left {
		gone.add(name, lease)
	}
	for i, w := range put {
		came.add(name, w.LeaseID, int64(w.Priority), w.Place, waiters[i].text, waiters[i].sum)
	}
	for i, all := range l.told {
		since, until := span(all)
		told.add(int64(len(all)), since, until, name, happened[i].text, happened[i].sum)
	}
	return nil
}

// publish wakes whom the changes concern, after they were stored.
func (t *pgLocks) publish() {
	t.store.learn(t.locks)
	var names []string
	events := 0
	for _, name := range slices.Sorted(maps.Keys(t.locks)) {
		l := t.locks[name]
		if l.err != nil {
			continue
		}
		if l.changed {
			names = append(names, name)
			t.store.queues.put(name, l.version, l.is.Queue)
			t.store.waiting.wake(&l.was, &l.is)
		}
		for _, all := range l.told {
			events += len(all)
			t.store.teller.add(all)
		}
	}
	if events > 0 {
		t.store.grown.ring()
	}
	t.store.db.notice.add(names, events > 0, false)
	if t.store.fresh.Add(int64(events)) >= numberAfter {
		t.store.fresh.Store(0)
		select {
		case t.store.many <- struct{}{}:
		default:
		}
	}
}

// read reads locks as they are at one moment, by a condition for their rows and the same one for those of who waits.
func (s *serverLocks) read(ctx context.Context, op, locks, waiters string, args ...any) (*pgLocks, error) {
	t := &pgLocks{store: s, locks: map[string]*pgLock{}}
	return t, s.db.using(ctx, op, func(ctx context.Context, c *pgx.Conn) error {
		var b pgx.Batch
		b.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
		b.Queue("SELECT "+lockColumns+" FROM locks WHERE "+locks, args...).Query(t.readLocks)
		b.Queue("SELECT lock, lease_id, doc, sum FROM waiters WHERE "+waiters, args...).Query(t.readWaiters)
		t.askState(&b)
		b.Queue("COMMIT")
		return c.SendBatch(ctx, &b).Close()
	})
}

// View implements lokt.Store.
func (s *serverLocks) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.Snapshot{}, err
	}
	t := &pgLocks{store: s, locks: map[string]*pgLock{}}
	if err := s.db.using(ctx, "view", func(ctx context.Context, c *pgx.Conn) error {
		var b pgx.Batch
		b.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
		t.ask(&b, []string{name}, asTheyAre)
		t.askState(&b)
		b.Queue("COMMIT")
		return c.SendBatch(ctx, &b).Close()
	}); err != nil {
		return lokt.Snapshot{}, err
	}
	l := t.locks[name]
	if l == nil {
		l = &pgLock{}
		t.open(name, l)
	}
	if l.err != nil {
		return lokt.Snapshot{}, l.err
	}
	return t.snapshot(l), nil
}

// List implements lokt.Store. All locks are as they were at one moment.
func (s *serverLocks) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		queued := ""
		if f.Queued {
			queued = " AND waiting > 0"
		}
		t, err := s.read(ctx, "list", "NOT free AND starts_with(name, $1)"+queued, "starts_with(lock, $1)", f.Prefix)
		if err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(t.locks)) {
			l := t.locks[name]
			err := first(l.err, s.usable(ctx))
			if !yield(t.snapshot(l), err) || err != nil && l.err == nil {
				return
			}
		}
	}
}

// arrive says that somebody uses the database. If nobody did for a while, everybody who lives by time gets a full time from now.
func (d *serverDB) arrive(ctx context.Context) error {
	s := d.locks
	select {
	case s.arriving <- struct{}{}:
		defer func() { <-s.arriving }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return d.lend(ctx, pgLoading, func(ctx context.Context, c *pgx.Conn) error {
		const now = pgNow + " * 1000"
		done, err := c.Exec(ctx, "UPDATE state SET clock = greatest(clock, "+now+") WHERE clock = 0 OR "+now+" - clock <= $1", int64(awayAfter))
		if err != nil || done.RowsAffected() > 0 {
			return err
		}
		return s.restart(context.WithoutCancel(ctx), c) // which is for everybody, and takes a while with many locks
	})
}

// restart gives everybody a full time.
func (s *serverLocks) restart(ctx context.Context, c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, pgLoading)
	defer cancel()
	t := &pgLocks{store: s, locks: map[string]*pgLock{}}
	var b pgx.Batch
	b.Queue("BEGIN")
	b.Queue("SELECT 1 FROM state FOR UPDATE")
	b.Queue("SELECT " + lockColumns + " FROM locks WHERE NOT free ORDER BY name FOR UPDATE").Query(t.readLocks)
	b.Queue("SELECT lock, lease_id, doc, sum FROM waiters").Query(t.readWaiters)
	t.askState(&b)
	if err := c.SendBatch(ctx, &b).Close(); err != nil {
		return err
	}
	if !t.away() { // somebody else came first
		_, err := c.Exec(ctx, "ROLLBACK")
		return err
	}
	all := slices.Sorted(maps.Keys(t.locks))
	for part := range slices.Chunk(all, restartMany) {
		some := &pgLocks{store: s, locks: map[string]*pgLock{}}
		for _, name := range part {
			l := t.locks[name]
			l.changed = l.err == nil && restart(&l.is, t.now, t.last)
			some.locks[name] = l
		}
		var b pgx.Batch
		some.write(&b)
		if err := c.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
	}
	b = pgx.Batch{}
	b.Queue("UPDATE state SET clock = greatest(clock, $1)", t.now.UnixNano())
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
		s.waiting.wakeAll()
		s.grown.ring()
		for _, lane := range s.lanes {
			lane.close()
		}
	}
	return nil
}

// pgRows are rows to be written by one statement, column by column.
type pgRows struct{ columns []any }

func (p *pgRows) add(values ...any) {
	if p.columns == nil {
		p.columns = make([]any, len(values))
	}
	for i, v := range values {
		switch v := v.(type) {
		case string:
			p.columns[i] = appendTo(p.columns[i], v)
		case int64:
			p.columns[i] = appendTo(p.columns[i], v)
		case bool:
			p.columns[i] = appendTo(p.columns[i], v)
		case *string:
			p.columns[i] = appendTo(p.columns[i], v)
		case *int64:
			p.columns[i] = appendTo(p.columns[i], v)
		}
	}
}

func appendTo[T any](column any, v T) []T {
	all, _ := column.([]T)
	return append(all, v)
}

// args returns so many columns.
func (p *pgRows) args(n int) []any { return p.columns[:n] }

// queue adds a statement that takes so many columns, if there are rows.
func (p *pgRows) queue(b *pgx.Batch, n int, statement string) {
	if p.columns != nil {
		b.Queue(statement, p.args(n)...)
	}
}

// queueCache keeps the queues of locks, which may be long, as this process has read or written them last. Waiters are never
// changed in place. The version of the lock's row says whether a queue is still the lock's: it has the transaction that wrote it.
type queueCache struct {
	mu  sync.Mutex
	all map[string]cachedQueue
}

type cachedQueue struct {
	version string
	queue   []*lokt.Waiter
}

const mostQueues = 1000

func (q *queueCache) put(name, version string, queue []*lokt.Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(queue) == 0 {
		delete(q.all, name)
		return
	}
	if q.all == nil || len(q.all) >= mostQueues {
		q.all = map[string]cachedQueue{}
	}
	q.all[name] = cachedQueue{version, queue}
}

// some returns those of the queues that are known.
func (q *queueCache) some(names []string) map[string]cachedQueue {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := map[string]cachedQueue{}
	for _, name := range names {
		if c, ok := q.all[name]; ok {
			all[name] = c
		}
	}
	return all
}

// pgWaiting are the calls of Wait, by the name of the lock.
type pgWaiting struct {
	mu  sync.Mutex
	all map[string]*pgWaited
}

type pgWaited struct {
	lokt.Watchers
	calls int
	wakes int // how often the lock changed
}

// Wait implements lokt.Store. Changes by other processes wake everybody who waits for the lock.
func (s *serverLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	w := s.waiting.enter(watch.Name)
	defer s.waiting.leave(watch.Name, w)
	s.waiting.mu.Lock()
	before := w.wakes
	s.waiting.mu.Unlock()
	snap, err := s.View(ctx, watch.Name)
	if err != nil {
		return err
	}
	s.waiting.mu.Lock()
	var me *lokt.Watcher
	if w.wakes == before {
		me = w.Watch(&snap.Lock, watch)
	}
	s.waiting.mu.Unlock()
	if me == nil {
		return nil
	}
	defer func() {
		s.waiting.mu.Lock()
		w.Remove(me)
		s.waiting.mu.Unlock()
	}()
	timer := time.NewTimer(lookAnyway)
	defer timer.Stop()
	select {
	case <-me.Changed:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.usable(context.WithoutCancel(ctx))
}

func (p *pgWaiting) enter(name string) *pgWaited {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[string]*pgWaited{}
	}
	w := p.all[name]
	if w == nil {
		w = &pgWaited{}
		p.all[name] = w
	}
	w.calls++
	return w
}

func (p *pgWaiting) leave(name string, w *pgWaited) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.calls--; w.calls == 0 {
		delete(p.all, name)
	}
}

// wake wakes those whom a change concerns.
func (p *pgWaiting) wake(was, is *lokt.Lock) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.all[is.Name]; w != nil {
		w.wakes++
		w.Wake(was, is)
	}
}

// wakeName wakes everybody who waits for a lock.
func (p *pgWaiting) wakeName(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.all[name]; w != nil {
		w.wakes++
		w.WakeAll()
	}
}

func (p *pgWaiting) wakeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.all {
		w.wakes++
		w.WakeAll()
	}
}
