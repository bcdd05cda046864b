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
	db     *serverDB
	seed   maphash.Seed
	lanes  [pgLanes]*group // a lock's changes are all in one, so that those that meet share a transaction
	apart  chan struct{}   // has an element for each change that waits for another process
	teller *teller
	grown  alarm         // there are more events
	fresh  atomic.Int64  // how many events were stored since many were told of
	many   chan struct{} // many events have no number
	closed atomic.Bool

	arriving chan struct{} // has an element while somebody says that the database is in use

	mu      sync.Mutex
	waiting map[string]*pgWaiting
	queues  map[string]pgQueue
	views   map[string]*pgView // of each lock that is looked at; nil unless somebody wants the next look
}

const (
	pgLanes    = 4
	pgApart    = 2
	pgAttempts = 5 // how often a transaction that was undone because of others is tried
)

func newServerLocks(d *serverDB) *serverLocks {
	s := &serverLocks{
		db: d, seed: maphash.MakeSeed(), apart: make(chan struct{}, pgApart), teller: newTeller(d.options.Events),
		many: make(chan struct{}, 1), arriving: make(chan struct{}, 1),
		waiting: map[string]*pgWaiting{}, queues: map[string]pgQueue{}, views: map[string]*pgView{},
	}
	for i := range s.lanes {
		s.lanes[i] = newGroup(func(rs []*request) error { return s.commit(context.Background(), rs, skipLocked) })
		go s.lanes[i].loop()
	}
	return s
}

func (s *serverLocks) usable(ctx context.Context) error {
	if s.closed.Load() && ctx.Err() == nil {
		return errClosed
	}
	return ctx.Err()
}

// How rows of locks are read.
const (
	asTheyAre = ""
	forUpdate = " FOR UPDATE"

	// Without those that others have locked: nobody waits for a lock who has locked another.
	skipLocked = " FOR UPDATE SKIP LOCKED"
)

// errElsewhere says that another transaction has the lock's row locked.
var errElsewhere = errors.New("another process is changing the lock")

// Update implements lokt.Store. change may be run several times, by another goroutine. If it panics, Update
// does.
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
	case <-time.After(pgExchange):
		return unavailable(err)
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
	defer func(begin time.Time) { s.db.options.observe("commit", begin, err) }(time.Now())
	var e *pgconn.PgError
	for range pgAttempts {
		err = s.db.lend(ctx, s.db.writers, pgExchange, func(ctx context.Context, c *pgx.Conn) error {
			return s.store(ctx, c, rs, how)
		})
		if !errors.As(err, &e) || e.Code != "40P01" { // a circle of processes that wait for each other
			break
		}
	}
	return err
}

// store runs the requests and stores what they change: two exchanges with the server.
func (s *serverLocks) store(ctx context.Context, c *pgx.Conn, rs []*request, how string) error {
	var names []string
	for _, r := range rs {
		names = append(names, r.name)
	}
	slices.Sort(names) // everybody's order
	names = slices.Compact(names)
	t := s.transaction()
	if err := t.begin(ctx, c, func(b *pgx.Batch) { t.ask(b, names, how) }); err != nil {
		return err
	}
	for _, r := range rs {
		l := t.locks[r.name]
		switch {
		case r.panicked != nil || r.err != nil:
		case l == nil:
			r.err = errElsewhere
		case l.err != nil:
			r.err = l.err
		default:
			var change lokt.Change
			if r.guard(func() { change = r.change(t.snapshot(l)) }) {
				l.become(change)
			}
		}
	}
	var b pgx.Batch
	changed := t.write(&b)
	for _, r := range rs {
		if l := t.locks[r.name]; l != nil && r.err == nil {
			r.err = l.err
		}
	}
	if b.Len() == 0 {
		_, err := c.Exec(ctx, "ROLLBACK")
		return err
	}
	if !changed { // somebody was refused, which need not outlive the power
		b.Queue("SET LOCAL synchronous_commit TO off")
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

// pgLocks are locks as a transaction reads and changes them.
type pgLocks struct {
	*serverLocks
	now, last         time.Time // last is when somebody said that the database is in use
	tokens, revisions uint64    // nothing is below these floors
	locks             map[string]*pgLock
	known             map[string]pgQueue // those that need not be read again, if their versions are the same
}

// pgLock is one of them.
type pgLock struct {
	was, is lokt.Lock
	version string // differs with every change of the row: it has the transaction that wrote it
	now     time.Time
	told    [][]lokt.Event // of each change
	changed bool
	err     error // it is damaged, or what it became cannot be stored

	waiting int
	free    bool
	known   bool // its queue
	text    document
}

// pgQueue is the queue of a lock, which may be long, as this process has read or written it last. Waiters are
// never changed in place.
type pgQueue struct {
	version string
	queue   []*lokt.Waiter
}

const mostQueues = 1000

func (s *serverLocks) transaction() *pgLocks {
	return &pgLocks{serverLocks: s, locks: map[string]*pgLock{}}
}

func (t *pgLocks) snapshot(l *pgLock) lokt.Snapshot { return lokt.Snapshot{Lock: l.is, Now: l.now} }

// become makes the lock what a change says.
func (l *pgLock) become(c lokt.Change) {
	c.Lock.Name, c.Lock.Revision = l.is.Name, l.is.Revision
	if !c.Lock.Equal(&l.is) {
		l.changed, l.is = true, c.Lock
		l.is.Revision++
	}
	if len(c.Events) > 0 {
		l.told = append(l.told, c.Events)
	}
}

// begin begins a transaction and has it read something, and the time. If nobody used the database for a
// while, nothing is judged by its time before everybody has a full time again.
func (t *pgLocks) begin(ctx context.Context, c *pgx.Conn, read func(b *pgx.Batch)) error {
	for range 2 {
		var b pgx.Batch
		pgBegin(&b)
		read(&b)
		t.askState(&b)
		if err := exchange(ctx, c, &b, pgExchange); err != nil || t.now.Sub(t.last) <= awayAfter {
			return err
		}
		if _, err := c.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
		if err := t.db.arrive(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: times start again too often", lokt.ErrUnavailable)
}

const lockColumns = "name, revision || '/' || xmin, revision, token, changed, waiting, free, doc, sum"

// ask adds the statements that read locks. A row can be locked only if it is there.
func (t *pgLocks) ask(b *pgx.Batch, names []string, how string) {
	if how != asTheyAre {
		b.Queue(`INSERT INTO locks (name, revision, token)
			SELECT n, revision_floor, token_floor FROM state, unnest($1::text[]) AS n ON CONFLICT (name) DO NOTHING`, names)
	}
	b.Queue("SELECT "+lockColumns+" FROM locks WHERE name = ANY($1::text[]) ORDER BY name"+how, names).Query(t.readLocks)
	t.known = map[string]pgQueue{}
	versions := make([]string, len(names))
	t.mu.Lock()
	for i, name := range names {
		t.known[name] = t.queues[name]
		versions[i] = t.queues[name].version
	}
	t.mu.Unlock()
	// Only a statement of its own sees what was stored while the rows were waited for.
	b.Queue(`SELECT w.lock, w.lease_id, w.doc, w.sum FROM unnest($1::text[], $2::text[]) AS k (name, version)
		JOIN locks l ON l.name = k.name AND l.revision || '/' || l.xmin <> k.version JOIN waiters w ON w.lock = l.name`,
		names, versions).Query(t.readWaiters)
}

// askState adds the statement that reads the time, after what reads locks.
func (t *pgLocks) askState(b *pgx.Batch) {
	b.Queue("SELECT " + pgNow + ", clock, token_floor, revision_floor FROM state").QueryRow(func(row pgx.Row) error {
		var now, clock int64
		err := row.Scan(&now, &clock, &t.tokens, &t.revisions)
		t.now, t.last = time.UnixMicro(now).UTC(), time.Unix(0, clock).UTC()
		for name, l := range t.locks {
			t.open(name, l)
		}
		return err
	})
}

func (t *pgLocks) readLocks(rows pgx.Rows) error {
	var next pgLock
	var changed int64
	l := &next.is
	_, err := pgx.ForEachRow(rows, []any{
		&l.Name, &next.version, &l.Revision, &l.Token, &changed, &next.waiting, &next.free, &next.text.text, &next.text.sum,
	}, func() error {
		one := next
		one.now = time.Unix(0, changed).UTC()
		if q := t.known[l.Name]; q.version == one.version {
			one.is.Queue, one.known = q.queue, true
		}
		t.locks[l.Name] = &one
		return nil
	})
	return err
}

func (t *pgLocks) readWaiters(rows pgx.Rows) error {
	var lock, lease string
	var d document
	_, err := pgx.ForEachRow(rows, []any{&lock, &lease, &d.text, &d.sum}, func() error {
		if l := t.locks[lock]; l != nil && !l.known {
			w, err := d.openWaiter(lock, lease)
			if l.is.Queue = append(l.is.Queue, w); l.err == nil {
				l.err = err
			}
		}
		return nil
	})
	return err
}

// open reads the document of a lock whose queue has been read.
func (t *pgLocks) open(name string, l *pgLock) {
	queue := l.is.Queue
	if l.text.text != "" && l.err == nil {
		l.is, l.err = l.text.openLock(name, l.waiting, l.free)
	}
	if l.err == nil && len(queue) != l.waiting {
		l.err = fmt.Errorf("%w: queue of lock %s: of %d who wait %d are there", lokt.ErrDamaged, name, l.waiting, len(queue))
	}
	if !l.known {
		sortQueue(queue)
	}
	l.is.Name, l.is.Queue = name, queue
	l.is.Token, l.is.Revision = max(l.is.Token, t.tokens), max(l.is.Revision, t.revisions)
	l.was, l.now = l.is, later(t.now, l.now)
	if l.err == nil && !l.known {
		t.learn(name, l)
	}
}

// learn remembers the queue of a lock.
func (s *serverLocks) learn(name string, l *pgLock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queues) >= mostQueues {
		clear(s.queues)
	}
	if s.queues[name] = (pgQueue{l.version, l.is.Queue}); len(l.is.Queue) == 0 {
		delete(s.queues, name)
	}
}

// write adds the statements that store what became of the locks, and reports whether any changed. What cannot
// be stored has its error set.
func (t *pgLocks) write(b *pgx.Batch) (changed bool) {
	var locks, came, gone, told columns
	for _, name := range slices.Sorted(maps.Keys(t.locks)) {
		if l := t.locks[name]; l.err == nil && (l.changed || len(l.told) > 0) {
			l.err = l.addTo(&locks, &came, &gone, &told)
			changed = changed || l.err == nil && l.changed
		}
	}
	locks.queue(b, `UPDATE locks l SET revision = u.revision, token = u.token, changed = u.changed,
		waiting = u.waiting, free = u.free, doc = u.doc, sum = u.sum
		FROM ROWS AS u (name, revision, token, changed, waiting, free, doc, sum) WHERE l.name = u.name
		RETURNING l.name, l.revision || '/' || l.xmin`).
		Query(func(rows pgx.Rows) error {
			var name, version string
			_, err := pgx.ForEachRow(rows, []any{&name, &version}, func() error {
				t.locks[name].version = version
				return nil
			})
			return err
		})
	gone.queue(b, `DELETE FROM waiters w USING ROWS AS u (lock, lease_id)
		WHERE w.lock = u.lock AND w.lease_id = u.lease_id`)
	came.queue(b, `INSERT INTO waiters (lock, lease_id, priority, place, doc, sum) SELECT * FROM ROWS
		ON CONFLICT (lock, lease_id) DO UPDATE
		SET priority = excluded.priority, place = excluded.place, doc = excluded.doc, sum = excluded.sum`)
	told.queue(b, "INSERT INTO lock_events_new (n, since, until, lock, doc, sum) SELECT * FROM ROWS")
	return changed
}

// addTo adds the rows of a lock, none if there is an error.
func (l *pgLock) addTo(locks, came, gone, told *columns) error {
	name := l.is.Name
	alone, err := sealLock(&l.is)
	if err != nil {
		return err
	}
	left, put := queueChange(l.was.Queue, l.is.Queue)
	docs := make([]document, len(put)+len(l.told))
	for i, w := range put {
		if docs[i], err = sealWaiter(name, w); err != nil {
			return err
		}
	}
	events := docs[len(put):]
	for i, all := range l.told {
		if events[i], err = seal(name, all); err != nil {
			return err
		}
	}
	if l.changed {
		locks.add(name, int64(l.is.Revision), int64(l.is.Token), l.now.UnixNano(), int64(len(l.is.Queue)), l.is.Free(),
			alone.text, alone.sum)
	}
	for _, lease := range left {
		gone.add(name, lease)
	}
	for i, w := range put {
		came.add(name, w.LeaseID, int64(w.Priority), w.Place, docs[i].text, docs[i].sum)
	}
	for i, all := range l.told {
		since, until := span(all)
		told.add(int64(len(all)), since, until, name, events[i].text, events[i].sum)
	}
	return nil
}

// publish wakes whom the changes concern, after they were stored.
func (t *pgLocks) publish() {
	var names []string
	events := int64(0)
	for name, l := range t.locks {
		if l.err != nil || !l.changed && len(l.told) == 0 {
			continue
		}
		names = append(names, name)
		if l.changed {
			t.learn(name, l)
			t.wake(&l.was, &l.is)
		}
		for _, all := range l.told {
			events += int64(len(all))
			t.teller.add(all)
		}
	}
	if events > 0 {
		t.grown.ring()
	}
	t.db.notice.add(names...)
	if t.fresh.Add(events) >= numberAfter {
		t.fresh.Store(0)
		poke(t.many)
	}
}

// read reads locks as they are at one moment.
func (s *serverLocks) read(ctx context.Context, op string, ask func(t *pgLocks, b *pgx.Batch)) (*pgLocks, error) {
	t := s.transaction()
	if err := s.usable(ctx); err != nil {
		return t, err
	}
	return t, s.db.using(ctx, op, func(ctx context.Context, c *pgx.Conn) error {
		var b pgx.Batch
		b.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
		ask(t, &b)
		t.askState(&b)
		b.Queue("COMMIT")
		return c.SendBatch(ctx, &b).Close()
	})
}

// pgView is a look at a lock that all share who wanted one before it began: many may wait for the same lock.
type pgView struct {
	snap  lokt.Snapshot
	err   error
	done  chan struct{}
	users int // who have not left
	leave context.CancelFunc
}

// View implements lokt.Store.
func (s *serverLocks) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.Snapshot{}, err
	}
	s.mu.Lock()
	v, looking := s.views[name]
	if v == nil {
		v = &pgView{done: make(chan struct{})}
		s.views[name] = v
		if !looking {
			go s.look(name)
		}
	}
	v.users++
	s.mu.Unlock()
	select {
	case <-v.done:
		return v.snap, v.err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if v.users--; v.users == 0 && v.leave != nil {
			v.leave()
		}
		return lokt.Snapshot{}, ctx.Err()
	}
}

// look looks at a lock as long as somebody wants to who came after the last time. Meanwhile there is an entry
// in views.
func (s *serverLocks) look(name string) {
	for {
		ctx, leave := context.WithTimeout(context.Background(), pgExchange)
		s.mu.Lock()
		v := s.views[name]
		if s.views[name] = nil; v == nil {
			delete(s.views, name)
		} else if v.leave = leave; v.users == 0 {
			leave()
		}
		s.mu.Unlock()
		if v == nil {
			leave()
			return
		}
		t, err := s.read(ctx, "view", func(t *pgLocks, b *pgx.Batch) { t.ask(b, []string{name}, asTheyAre) })
		leave()
		if v.err = unavailable(err); err == nil { // its context ends for want of an answer only
			l := t.locks[name]
			if l == nil {
				l = &pgLock{}
				t.open(name, l)
			}
			v.snap, v.err = t.snapshot(l), l.err
		}
		close(v.done)
	}
}

// List implements lokt.Store. All locks are as they were at one moment.
func (s *serverLocks) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		t, err := s.read(ctx, "list", func(t *pgLocks, b *pgx.Batch) {
			b.Queue("SELECT "+lockColumns+` FROM locks
				WHERE NOT free AND starts_with(name, $1) AND (waiting > 0 OR NOT $2)`, f.Prefix, f.Queued).Query(t.readLocks)
			b.Queue("SELECT lock, lease_id, doc, sum FROM waiters WHERE starts_with(lock, $1)", f.Prefix).Query(t.readWaiters)
		})
		if err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(t.locks)) {
			l := t.locks[name]
			over := s.usable(ctx)
			if l.err == nil {
				l.err = over
			}
			if !yield(t.snapshot(l), l.err) || over != nil {
				return
			}
		}
	}
}

// arrive says that somebody uses the database. If nobody did for a while, everybody who lives by time gets a
// full time from now.
func (d *serverDB) arrive(ctx context.Context) error {
	select {
	case d.locks.arriving <- struct{}{}:
		defer func() { <-d.locks.arriving }()
	case <-ctx.Done():
		return ctx.Err()
	}
	// It is for everybody, and takes a while with many locks.
	return d.lend(context.WithoutCancel(ctx), d.writers, pgLoading, func(ctx context.Context, c *pgx.Conn) error {
		const now = pgNow + " * 1000"
		done, err := c.Exec(ctx, "UPDATE state SET clock = greatest(clock, "+now+") WHERE clock = 0 OR "+now+" - clock <= $1",
			int64(awayAfter))
		if err != nil || done.RowsAffected() > 0 {
			return err
		}
		t := d.locks.transaction()
		var b pgx.Batch
		b.Queue("BEGIN")
		b.Queue("SELECT 1 FROM state FOR UPDATE")
		b.Queue("SELECT " + lockColumns + " FROM locks WHERE NOT free ORDER BY name FOR UPDATE").Query(t.readLocks)
		b.Queue("SELECT lock, lease_id, doc, sum FROM waiters").Query(t.readWaiters)
		t.askState(&b)
		if err := c.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		for _, l := range t.locks { // of which none is away if somebody else came first
			l.changed = l.err == nil && t.now.Sub(t.last) > awayAfter && restart(&l.is, t.now, t.last)
		}
		b = pgx.Batch{}
		t.write(&b)
		b.Queue("UPDATE state SET clock = greatest(clock, $1)", t.now.UnixNano())
		b.Queue("COMMIT")
		if err := c.SendBatch(ctx, &b).Close(); err != nil {
			return err
		}
		t.publish()
		return nil
	})
}

// Close makes every later call fail, and waits return. The database stays open.
func (s *serverLocks) Close() error {
	if !s.closed.Swap(true) {
		s.wakeName("*")
		s.grown.ring()
		for _, lane := range s.lanes {
			lane.close()
		}
	}
	return nil
}

// pgWaiting are the calls of Wait for a lock.
type pgWaiting struct {
	lokt.Watchers
	calls int
	wakes int // how often the lock changed
}

// Wait implements lokt.Store. Changes by other processes wake everybody who waits for the lock.
func (s *serverLocks) Wait(ctx context.Context, watch lokt.Watch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waiting[watch.Name]
	if w == nil {
		w = &pgWaiting{}
		s.waiting[watch.Name] = w
	}
	w.calls++
	defer func() {
		if w.calls--; w.calls == 0 {
			delete(s.waiting, watch.Name)
		}
	}()
	for {
		before := w.wakes
		s.mu.Unlock()
		snap, err := s.View(ctx, watch.Name)
		s.mu.Lock()
		if err != nil || w.wakes != before {
			return err
		}
		me := w.Watch(&snap.Lock, watch)
		if me == nil {
			return nil
		}
		s.mu.Unlock()
		again := false
		select {
		case <-me.Changed:
		case <-time.After(lookAnyway):
			again = true
		case <-ctx.Done():
		}
		s.mu.Lock()
		w.Remove(me)
		if err := s.usable(ctx); err != nil || !again {
			return err
		}
	}
}

// wake wakes those whom a change concerns.
func (s *serverLocks) wake(was, is *lokt.Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.waiting[is.Name]; w != nil {
		w.wakes++
		w.Wake(was, is)
	}
}

// wakeName wakes everybody who waits for the lock; a star stands for all.
func (s *serverLocks) wakeName(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := map[string]*pgWaiting{name: s.waiting[name]}
	if name == "*" {
		some = s.waiting
	}
	for _, w := range some {
		if w != nil {
			w.wakes++
			w.WakeAll()
		}
	}
}
