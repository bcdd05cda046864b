package sqlstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

//go:embed schema/postgres.sql
var postgresSchema string

// serverDB is a database of PostgreSQL, which any number of processes share. The database is the truth, and so is its clock.
type serverDB struct {
	pool    *pgxpool.Pool
	readers chan struct{} // has an element for each connection that somebody reads with
	options Options
	origin  string // tells this process's notifications from those of others
	channel string // of notifications
	locks   *serverLocks
	jobs    *serverJobs
	notice  notices

	stop    context.CancelFunc
	tasks   sync.WaitGroup
	closing sync.Once
	mu      sync.Mutex
	closed  bool
	users   sync.WaitGroup
}

const (
	awayAfter   = 10 * time.Second // for how long nobody may use the database before everybody who lives by time gets a full time again
	presence    = 2 * time.Second  // how often a process says that the database is in use
	lookAnyway  = 2 * time.Second  // after how long those who wait look again, although nobody woke them
	pgTimeout   = 8 * time.Second  // how long somebody waits for the database
	pgLonger    = time.Second      // how much longer what was begun may take that nobody waits for any more
	pgLoading   = 5 * time.Minute  // how long it may take to read everything, or to start times again
	pgDial      = 5 * time.Second
	pgReaders   = 7
	pgWriters   = pgLanes + pgApart + 2 // and a turn of the scheduler, and what this process does of its own accord
	pgPrincipal = "lokt"                // what connections call themselves
	presenceOp  = "presence"            // what this process does of its own accord, which is not observed
)

// pgLimits has the server end, within a transaction, what takes too long or waits too long, and the transaction when it hears
// nothing: a process that is stopped or cut off in the middle of one keeps others waiting that long. Session settings would not
// do, because poolers lend sessions.
const pgLimits = "SELECT set_config('statement_timeout', '10000', true), set_config('lock_timeout', '8000', true), " +
	"set_config('idle_in_transaction_session_timeout', '10000', true)"

// pgNow selects the time, in microseconds.
const pgNow = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

// openServer opens a database of PostgreSQL. Its tables are made in the first schema of the search path if there are none.
func openServer(ctx context.Context, url string, o Options) (_ *serverDB, err error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", lokt.ErrInvalid, err)
	}
	c := config.ConnConfig
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = pgPrincipal
	}
	c.RuntimeParams["client_encoding"] = "UTF8" // whatever the role's settings say
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = pgDial
	}
	config.MaxConns, config.MinConns = pgReaders+pgWriters, 0
	d := &serverDB{options: o, origin: lokt.NewLeaseID(), readers: make(chan struct{}, pgReaders)}
	d.notice.poke = make(chan struct{}, 1)
	if d.pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), config); err != nil {
		return nil, pgError(err)
	}
	if err := d.makeTables(ctx); err != nil {
		d.pool.Close()
		return nil, pgError(err)
	}
	background, stop := context.WithCancel(context.Background())
	d.stop = stop
	d.locks, d.jobs = newServerLocks(d), newServerJobs(d)
	if err = d.arrive(ctx); err == nil {
		// Tables may have been copied from another cluster, whose transactions had other numbers.
		_, err = d.pool.Exec(ctx, "SELECT number_lock_events(true)")
	}
	if err != nil {
		_ = d.Close()
		return nil, pgError(err)
	}
	d.tasks.Go(func() { d.listen(background) })
	d.tasks.Go(func() { d.stay(background) })
	d.tasks.Go(func() { d.tell(background) })
	return d, nil
}

// makeTables makes the tables if there are none. Processes that start at the same time do so one after another.
func (d *serverDB) makeTables(ctx context.Context) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		var schema, encoding string
		err := tx.QueryRow(ctx, "SELECT coalesce(current_schema(), ''), current_setting('server_encoding')").Scan(&schema, &encoding)
		switch {
		case err != nil:
			return err
		case schema == "":
			return fmt.Errorf("%w: the search path names no schema that is there", lokt.ErrInvalid)
		case encoding != "UTF8" && encoding != "SQL_ASCII": // what clients send would not get into the tables
			return fmt.Errorf("%w: the database's encoding is %s: use one that was made with ENCODING 'UTF8' TEMPLATE template0", lokt.ErrInvalid, encoding)
		}
		d.channel = "lokt_" + schema
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", d.channel); err != nil {
			return err
		}
		var there, older bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass(quote_ident($1) || '.lokt_schema') IS NOT NULL, to_regclass(quote_ident($1) || '.schema_version') IS NOT NULL`,
			schema).Scan(&there, &older); err != nil {
			return err
		}
		version := int64(0) // of databases from before there was a schema 1
		switch {
		case there:
			err = tx.QueryRow(ctx, "SELECT version FROM lokt_schema").Scan(&version)
		case !older:
			version = schemaVersion
			_, err = tx.Conn().PgConn().Exec(ctx, postgresSchema).ReadAll()
		}
		if err == nil && version != schemaVersion {
			err = fmt.Errorf("%w: the schema %s has tables of version %d, and this program knows only version %d", lokt.ErrInvalid, schema, version, schemaVersion)
		}
		return err
	})
}

// stay keeps saying that the database is in use, lets the scheduler look for what others did although nobody said so, and gives
// events their numbers and forgets the oldest.
func (d *serverDB) stay(ctx context.Context) {
	tick := time.NewTicker(presence)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
			d.jobs.look()
			_ = d.arrive(ctx)
		case <-d.locks.many:
		case <-ctx.Done():
			return
		}
		_ = d.using(ctx, presenceOp, func(ctx context.Context, c *pgx.Conn) error {
			if err := d.locks.numberNew(ctx, c); err != nil || n%15 != 0 {
				return err
			}
			return d.locks.trim(ctx, c)
		})
	}
}

// listen wakes whom the changes of other processes concern.
func (d *serverDB) listen(ctx context.Context) {
	config := d.pool.Config().ConnConfig
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if origin, what, _ := strings.Cut(n.Payload, " "); origin != d.origin {
			d.hear(what)
		}
	}
	for ctx.Err() == nil {
		c, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			if _, err = c.Exec(ctx, "LISTEN "+pgx.Identifier{d.channel}.Sanitize()); err == nil {
				d.hear("*") // nobody told us while we did not listen
			}
			for err == nil {
				err = c.PgConn().WaitForNotification(ctx)
			}
			_ = c.Close(context.WithoutCancel(ctx))
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// hear looks at what has changed elsewhere: the named locks, or with a star everything, and with an exclamation mark the jobs.
func (d *serverDB) hear(what string) {
	switch what {
	case "!":
		d.jobs.look()
		return
	case "*":
		d.jobs.look()
		d.locks.waiting.wakeAll()
	default:
		for _, name := range strings.Fields(what) {
			d.locks.waiting.wakeName(name)
		}
	}
	d.locks.grown.ring()
}

// outliving returns a context for what is begun for somebody: it ends a moment after that of who wanted it. To call a statement
// back costs the connection, because it is not known how far the server is, and a pooler may not survive it; nearly all end by
// themselves within that moment.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(pgLonger, cancel) })
	return longer, func() {
		stop()
		cancel()
	}
}

// using lends a connection to somebody who reads, and tells the observer what was done.
func (d *serverDB) using(ctx context.Context, op string, use func(ctx context.Context, c *pgx.Conn) error) (err error) {
	begin := time.Now()
	if op != presenceOp {
		defer func() { d.options.observe(op, begin, err) }()
	}
	timed, cancel := context.WithTimeout(ctx, pgTimeout)
	defer cancel()
	select {
	case d.readers <- struct{}{}:
		defer func() { <-d.readers }()
	case <-timed.Done():
		return first(ctx.Err(), pgError(timed.Err()))
	}
	return first(ctx.Err(), d.lend(timed, pgTimeout, use))
}

// lend lends a connection for so long at most. One on which a transaction was left open is not lent again.
func (d *serverDB) lend(ctx context.Context, atMost time.Duration, use func(ctx context.Context, c *pgx.Conn) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return errClosed
	}
	d.users.Add(1)
	d.mu.Unlock()
	defer d.users.Done()
	timed, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	c, err := d.pool.Acquire(timed)
	if err != nil {
		return first(ctx.Err(), pgError(err))
	}
	defer c.Release() // which closes it if use has panicked within a transaction
	longer, end := outliving(timed)
	defer end()
	if err = use(longer, c.Conn()); err == nil {
		return nil
	}
	switch raw := c.Conn(); {
	case raw.IsClosed() && longer.Err() == nil: // nobody here closed it: the others are likely to be gone, too
		d.pool.Reset()
	case !raw.IsClosed() && raw.PgConn().TxStatus() != 'I':
		_, _ = raw.Exec(longer, "ROLLBACK")
	}
	return first(ctx.Err(), pgError(err))
}

// first returns the first error that is none.
func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// atOneMoment reads the database as it is at one moment.
func atOneMoment(ctx context.Context, c *pgx.Conn, read func(ctx context.Context, c *pgx.Conn) error) error {
	if _, err := c.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return err
	}
	if err := read(ctx, c); err != nil {
		return err
	}
	_, err := c.Exec(ctx, "COMMIT")
	return err
}

// Locks implements backend.
func (d *serverDB) Locks() LockStore { return d.locks }

// Jobs implements backend.
func (d *serverDB) Jobs() jobs.Store { return d.jobs }

// Path implements backend.
func (d *serverDB) Path() string { return d.pool.Config().ConnConfig.Database }

// Ping implements backend.
func (d *serverDB) Ping(ctx context.Context) error {
	return d.using(ctx, "ping", func(ctx context.Context, c *pgx.Conn) error {
		var n int64
		return c.QueryRow(ctx, "SELECT clock FROM state").Scan(&n)
	})
}

// Backup implements backend.
func (d *serverDB) Backup(context.Context, string) error {
	return fmt.Errorf("%w: a database of PostgreSQL is backed up with pg_dump or pg_basebackup", lokt.ErrInvalid)
}

// Contents implements backend.
func (d *serverDB) Contents(ctx context.Context) (found Contents, err error) {
	err = d.using(ctx, "contents", func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT (SELECT count(*) FROM locks WHERE NOT free), (SELECT count(*) FROM jobs WHERE ended_at IS NULL)").
			Scan(&found.Locks, &found.Jobs)
	})
	return found, err
}

// Failed implements backend: a server is asked again and again.
func (d *serverDB) Failed() <-chan struct{} { return nil }

// Close implements backend.
func (d *serverDB) Close() error {
	d.closing.Do(func() {
		_ = d.locks.Close() // what was asked for before is stored
		_ = d.jobs.Close()
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		d.stop()
		d.tasks.Wait()
		d.users.Wait()
		d.lastWords()
		d.locks.teller.wait()
		d.pool.Close()
	})
	return nil
}

// pgError makes an error of the server, or of the way to it, one of those that callers tell apart.
func pgError(err error) error {
	var e *pgconn.PgError
	var n net.Error
	switch {
	case err == nil, errors.Is(err, lokt.ErrUnavailable), errors.Is(err, lokt.ErrInvalid), errors.Is(err, lokt.ErrDamaged):
		return err
	case errors.As(err, &e) && strings.HasPrefix(e.Code, "XX"):
		return fmt.Errorf("%w: %w: %w", lokt.ErrUnavailable, lokt.ErrDamaged, err)
	case errors.As(err, &e), pgconn.SafeToRetry(err):
		return fmt.Errorf("%w: %w", lokt.ErrUnavailable, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.As(err, &n) && n.Timeout():
		return fmt.Errorf("%w: the database has not answered in time: %w", lokt.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: the database does not answer: %w", lokt.ErrUnavailable, err)
}

// again reports whether a transaction was undone because of others, and may go well the next time.
func again(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40001" || e.Code == "40P01")
}

// notices are what other processes are to be told of, together with what changes within notifyEvery. They are told after the
// change was stored, in a transaction of their own, because PostgreSQL lets only one transaction with a notification commit at a
// time. They are hints: who waits looks by itself.
type notices struct {
	poke chan struct{}

	mu     sync.Mutex
	names  map[string]struct{} // locks that changed
	events bool                // there are events, maybe of locks that did not change
	turns  bool                // jobs changed
}

const notifyEvery = 10 * time.Millisecond

// add adds locks that changed, whether there are events, and whether jobs changed.
func (n *notices) add(names []string, events, turns bool) {
	if len(names) == 0 && !events && !turns {
		return
	}
	n.mu.Lock()
	if n.names == nil {
		n.names = map[string]struct{}{}
	}
	for _, name := range names {
		n.names[name] = struct{}{}
	}
	n.events, n.turns = n.events || events, n.turns || turns
	n.mu.Unlock()
	select {
	case n.poke <- struct{}{}:
	default:
	}
}

// take returns what is to be told, in as many bytes as a notification has, and forgets it.
func (n *notices) take(origin string) (payloads []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.names) > 0 || n.events {
		var b strings.Builder
		b.WriteString(origin)
		for name := range n.names {
			b.WriteString(" " + name)
		}
		if payloads = []string{b.String()}; b.Len() > 7900 {
			payloads[0] = origin + " *"
		}
	}
	if n.turns {
		payloads = append(payloads, origin+" !")
	}
	n.names, n.events, n.turns = nil, false, false
	return payloads
}

// tell notifies the other processes, until the database is closed.
func (d *serverDB) tell(ctx context.Context) {
	for {
		select {
		case <-d.notice.poke:
		case <-ctx.Done():
			return
		}
		if payloads := d.notice.take(d.origin); len(payloads) > 0 {
			_ = d.lend(ctx, pgTimeout, func(ctx context.Context, c *pgx.Conn) error { return d.notify(ctx, c, payloads) })
		}
		select {
		case <-time.After(notifyEvery):
		case <-ctx.Done():
			return
		}
	}
}

// executor is a connection or a pool of them.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func (d *serverDB) notify(ctx context.Context, c executor, payloads []string) error {
	_, err := c.Exec(ctx, "SELECT pg_notify($1, p)::text FROM unnest($2::text[]) AS p", d.channel, payloads)
	return err
}

// lastWords tells what is left to tell, when the database is closed.
func (d *serverDB) lastWords() {
	if payloads := d.notice.take(d.origin); len(payloads) > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = d.notify(ctx, d.pool, payloads)
	}
}
