package sqlstore

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

//go:embed schema/postgres.sql
var postgresSchema string

// serverDB is a database of PostgreSQL, which any number of processes share. The database is the truth, and
// so is its clock.
type serverDB struct {
	readers *pgxpool.Pool // those who read a lot keep nobody from storing
	writers *pgxpool.Pool
	options Options
	origin  string // tells this process's notifications from those of others
	channel string // of notifications
	locks   *serverLocks
	jobs    *serverJobs
	words   chan string // for others to be told

	stop    context.CancelFunc
	tasks   sync.WaitGroup
	closing sync.Once
	closed  atomic.Bool

	meeting  sync.Mutex // guards the two below
	timeline string     // of the server that was met last
	end      int64      // of its log, in bytes
}

const (
	// For how long nobody may use the database before everybody who lives by time gets a full time again, and
	// how long one exchange with it may take on the way to a commit: a caller may have to wait for two.
	awayAfter  = 10 * time.Second
	pgExchange = 3800 * time.Millisecond

	presence    = 2 * time.Second // how often a process says that the database is in use, and those who wait look again
	pgTimeout   = 8 * time.Second // how long somebody waits for the database who reads
	pgLonger    = time.Second     // how much longer what was begun may take that nobody waits for any more
	pgLoading   = 5 * time.Minute // how long it may take to read everything, or to start times again
	notifyEvery = 10 * time.Millisecond
	pgReaders   = 6
	pgWriters   = 2*pgLanes + 2 // and a turn of the scheduler, and what this process does of its own accord
)

// pgBegin begins a transaction, which the server ends when it hears nothing: a process that is stopped or cut off in the
// middle of one keeps others waiting that long. A setting of the session would not do, because poolers lend sessions.
func pgBegin(b *pgx.Batch) {
	b.Queue("BEGIN")
	b.Queue("SET LOCAL idle_in_transaction_session_timeout = 10000")
	b.Queue("SET LOCAL lock_timeout = 10000")
}

// pgNow selects the time, in microseconds.
const pgNow = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

// openServer opens a database of PostgreSQL. Its tables are made in the first schema of the search path if
// there are none.
func openServer(ctx context.Context, url string, o Options) (_ *serverDB, err error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", lokt.ErrInvalid, err)
	}
	c := config.ConnConfig
	c.RuntimeParams["application_name"] = cmp.Or(c.RuntimeParams["application_name"], "lokt")
	c.RuntimeParams["client_encoding"] = "UTF8" // whatever the role's settings say
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, pgExchange/time.Duration(countServers(c)))
	renew := renewing(url, c)
	d := &serverDB{options: o, origin: lokt.NewLeaseID(), words: make(chan string, 10_000)}
	for pool, most := range map[**pgxpool.Pool]int32{&d.readers: pgReaders, &d.writers: pgWriters} {
		config := config.Copy()
		config.MaxConns, config.MinConns = most, 0
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			if renew(c); pool == &d.writers {
				uncancelled(c)
			}
			return nil
		}
		config.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
			if err := interpreted(ctx, c); err != nil || pool == &d.readers {
				return err
			}
			return d.meet(ctx, c)
		}
		if *pool, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), config); err != nil {
			return nil, pgError(err)
		}
	}
	background, stop := context.WithCancel(context.Background())
	d.stop = stop
	d.locks, d.jobs = newServerLocks(d), newServerJobs(d)
	if err = d.makeTables(ctx); err == nil {
		err = d.lend(ctx, d.writers, pgLoading, d.locks.arrive)
	}
	if err == nil { // tables may have been copied from another cluster, whose transactions had other numbers
		_, err = d.writers.Exec(ctx, "SELECT number_lock_events(true)")
	}
	if err != nil {
		_ = d.Close()
		return nil, pgError(err)
	}
	for _, task := range []func(context.Context){d.listen, d.stay, d.tell, d.locks.look} {
		d.tasks.Go(func() { task(background) })
	}
	return d, nil
}

// makeTables makes the tables if there are none. Processes that start at the same time do so one after another.
func (d *serverDB) makeTables(ctx context.Context) error {
	return pgx.BeginFunc(ctx, d.writers, func(tx pgx.Tx) error {
		var schema, encoding, isolation, role string
		var there bool
		var number int // of its version
		err := tx.QueryRow(ctx, "SELECT coalesce(current_schema(), ''), current_setting('server_encoding'),"+
			" current_setting('default_transaction_isolation'), current_user, current_setting('server_version_num')::int").
			Scan(&schema, &encoding, &isolation, &role, &number)
		switch {
		case err != nil:
			return err
		case number < 130000:
			return fmt.Errorf("%w: the server is PostgreSQL %d: it has to be 13 or newer", lokt.ErrInvalid, number/10000)
		case schema == "":
			return fmt.Errorf("%w: the search path names no schema that is there", lokt.ErrInvalid)
		case encoding != "UTF8" && encoding != "SQL_ASCII": // what clients send would not get into the tables
			return fmt.Errorf("%w: the database's encoding is %s: use one that was made with ENCODING 'UTF8' TEMPLATE template0",
				lokt.ErrInvalid, encoding)
		case isolation != "read committed": // a change of what another has changed just before would fail
			return fmt.Errorf("%w: transactions are %q unless they say otherwise: ALTER ROLE %s SET default_transaction_isolation = 'read committed'",
				lokt.ErrInvalid, isolation, pgx.Identifier{role}.Sanitize())
		}
		d.channel = "lokt_" + schema
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", d.channel); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, "SELECT to_regclass(quote_ident($1) || '.lokt_schema') IS NOT NULL", schema).Scan(&there)
		if err == nil && !there {
			_, err = tx.Conn().PgConn().Exec(ctx, postgresSchema).ReadAll()
			if e := (*pgconn.PgError)(nil); errors.As(err, &e) && (e.Code == "42501" || e.Code == "42P07") { // no right to make tables, or another program's are there
				err = fmt.Errorf("%w: %w: make a schema of its own, CREATE SCHEMA lokt AUTHORIZATION %s, and give the URL search_path=lokt",
					lokt.ErrInvalid, err, pgx.Identifier{role}.Sanitize())
			}
		}
		var version int64
		if err == nil {
			err = tx.QueryRow(ctx, "SELECT version FROM lokt_schema").Scan(&version)
		}
		if err == nil && version != schemaVersion {
			err = fmt.Errorf("%w: the tables in schema %s are of version %d, and this program knows only version %d",
				lokt.ErrInvalid, schema, version, schemaVersion)
		}
		return err
	})
}

// stay looks how far the server is, and keeps saying that the database is in use. It lets those who wait look for what others did although
// nobody said so. It gives events their numbers, and forgets the oldest, and locks that nobody has used for long.
func (d *serverDB) stay(ctx context.Context) {
	tick := time.NewTicker(presence)
	defer tick.Stop()
	for looked := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		poke(d.jobs.changed)
		d.locks.lookAnyway()
		_ = d.lend(ctx, d.writers, pgTimeout, d.meet)
		_ = d.lend(ctx, d.writers, pgLoading, d.locks.arrive)
		_ = d.lend(ctx, d.writers, pgTimeout, d.locks.number)
		_ = d.trimming(ctx, d.options.forgetLockEvents)
		if time.Since(looked) > forgetEvery {
			var more int64
			_ = d.trimming(ctx, forgetFree(keptFree, manyFree, &more))
			if looked = time.Now(); more > 0 {
				looked = time.Time{}
			}
		}
	}
}

// useConn is what a connection is lent for.
type useConn = func(ctx context.Context, c *pgx.Conn) error

// using lends a connection to somebody who reads, and tells the observer what was done.
func (d *serverDB) using(ctx context.Context, op string, use useConn) (err error) {
	defer func(begin time.Time) { d.options.observe(op, begin, err) }(time.Now())
	return d.lend(ctx, d.readers, pgTimeout, use)
}

// lend lends a connection for so long at most. One on which a transaction was left open is not lent again. To
// call a statement back costs the connection, because it is not known how far the server is, and a pooler may
// not survive it; nearly all end by themselves within the moment that they have after ctx.
func (d *serverDB) lend(ctx context.Context, pool *pgxpool.Pool, atMost time.Duration, use useConn) error {
	if d.closed.Load() {
		return errClosed
	}
	timed, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	soon, cancel := context.WithTimeout(timed, pgExchange)
	defer cancel()
	c, err := pool.Acquire(soon)
	if err == nil {
		defer c.Release() // which closes it if use has panicked within a transaction
		longer, end := context.WithCancel(context.WithoutCancel(timed))
		defer end()
		defer context.AfterFunc(timed, func() { time.AfterFunc(pgLonger, end) })()
		if err = use(longer, c.Conn()); err != nil && longer.Err() != nil { // whoever asked has cancelled nothing
			err = context.DeadlineExceeded
		}
		e := (*pgconn.PgError)(nil)
		reads := errors.Is(err, errReadOnly) || errors.As(err, &e) && e.Code == "25006"
		if reads {
			_ = c.Conn().Close(longer) // sessions were to be so when it began, which may be over
		}
		switch closed := c.Conn().IsClosed(); {
		case reads:
		case closed && longer.Err() == nil: // nobody here closed it: the others are likely to be gone, too
			d.readers.Reset()
			d.writers.Reset()
			d.locks.stale("*")
		case err != nil && !closed:
			_, _ = c.Exec(longer, "ROLLBACK")
		}
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return pgError(err)
}

// exchange sends statements together, for whose answers it waits so long at most.
func exchange(ctx context.Context, c *pgx.Conn, b *pgx.Batch, atMost time.Duration) error {
	if b.Len() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	return c.SendBatch(ctx, b).Close()
}

// atOneMoment reads the database as it is at one moment.
func atOneMoment(read useConn) useConn {
	return func(ctx context.Context, c *pgx.Conn) error {
		var b pgx.Batch
		b.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
		// A server that is stalled is not waited for as long as a long read.
		if err := exchange(ctx, c, &b, pgExchange); err != nil {
			return err
		}
		if err := read(ctx, c); err != nil {
			return err
		}
		_, err := c.Exec(ctx, "COMMIT")
		return err
	}
}

func (d *serverDB) Locks() LockStore        { return d.locks }
func (d *serverDB) Jobs() jobs.Store        { return d.jobs }
func (d *serverDB) Path() string            { return d.readers.Config().ConnConfig.Database }
func (d *serverDB) Failed() <-chan struct{} { return nil } // a server is asked again and again

var errReadOnly = fmt.Errorf("%w: PostgreSQL stores nothing: it is a standby, or set to be read only", lokt.ErrUnavailable)

// Ping implements backend.
func (d *serverDB) Ping(ctx context.Context) error {
	return d.using(ctx, "ping", func(ctx context.Context, c *pgx.Conn) error {
		var reads bool
		err := c.QueryRow(ctx, "SELECT current_setting('transaction_read_only')::boolean FROM state").Scan(&reads)
		if reads {
			err = errReadOnly
		}
		return err
	})
}

// Backup implements backend.
func (d *serverDB) Backup(context.Context, string) error {
	return fmt.Errorf("%w: a database of PostgreSQL is backed up with pg_dump or pg_basebackup", lokt.ErrInvalid)
}

// Contents implements backend.
func (d *serverDB) Contents(ctx context.Context) (found Contents, err error) {
	err = d.using(ctx, "contents", func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT count(*) FROM locks WHERE NOT free").Scan(&found.Locks)
	})
	return found, err
}

// Close implements backend.
func (d *serverDB) Close() error {
	d.closing.Do(func() {
		_ = d.locks.Close() // what was asked for before is stored
		_ = d.jobs.Close()
		d.stop()
		d.tasks.Wait()
		d.closed.Store(true)
		d.readers.Close() // which waits for those who use it
		d.writers.Close()
	})
	return nil
}

// pgError makes an error of the server, or of the way to it, one of those that callers tell apart.
func pgError(err error) error {
	var e *pgconn.PgError
	switch {
	case errors.Is(err, lokt.ErrInvalid), errors.Is(err, lokt.ErrDamaged):
		return err
	case errors.As(err, &e) && strings.HasPrefix(e.Code, "XX"):
		return fmt.Errorf("%w: %w: %w", lokt.ErrUnavailable, lokt.ErrDamaged, err)
	case e != nil && (e.Code == "26000" || e.Code == "42P05"): // what was prepared on another connection
		return fmt.Errorf("%w: with a pooler in between the URL has to end with ?default_query_exec_mode=exec: %w", lokt.ErrUnavailable, err)
	}
	return unavailable(err)
}

// lookWith reads over a connection.
func lookWith(ctx context.Context, c *pgx.Conn) look {
	return func(statement string, args []any, scan func(row) error) error {
		for i, a := range args {
			if text, ok := a.(string); ok { // what PostgreSQL does not take in text, no valid name has
				args[i] = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
			}
		}
		rows, _ := c.Query(ctx, numbered(statement, len(args)), args...)
		defer rows.Close()
		return each(rows, scan)
	}
}

// numbered has PostgreSQL's own marks for each of n arguments.
func numbered(statement string, n int) string {
	for i := range n {
		statement = strings.Replace(statement, "?", "$"+strconv.Itoa(i+1), 1)
	}
	return statement
}

// trimming has something forgotten, unless another process is at it.
func (d *serverDB) trimming(ctx context.Context, forget func(execute, time.Time) error) error {
	return d.using(ctx, "trim", func(ctx context.Context, c *pgx.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			var mine bool
			var now int64
			err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock(hashtextextended($1, 1)), "+pgNow, d.channel).Scan(&mine, &now)
			if err != nil || !mine {
				return err
			}
			return forget(func(statement string, args ...any) (int64, error) {
				done, err := tx.Exec(ctx, numbered(statement, len(args)), args...)
				return done.RowsAffected(), err
			}, time.UnixMicro(now))
		})
	})
}

// pgRows are rows to be written by one statement, whose first arguments are lists of what is in their columns: text, numbers that
// may be missing, or whether something is true.
type pgRows [][]any

// queue adds the statement to a batch, if there are rows.
func (rows pgRows) queue(b *pgx.Batch, statement string) {
	if len(rows) > 0 {
		b.Queue(statement, rows.lists()...)
	}
}

func (rows pgRows) lists() []any {
	lists := make([]any, len(rows[0]))
	for i, v := range rows[0] {
		switch v.(type) {
		case string:
			lists[i] = list[string](rows, i)
		case bool:
			lists[i] = list[bool](rows, i)
		default:
			numbers := make([]pgtype.Int8, len(rows))
			for n, row := range rows {
				numbers[n].Int64, numbers[n].Valid = row[i].(int64)
			}
			lists[i] = numbers
		}
	}
	return lists
}

func list[T any](rows pgRows, i int) []T {
	all := make([]T, len(rows))
	for n, row := range rows {
		all[n] = row[i].(T)
	}
	return all
}

// pgTables are rows to be put into tables of documents.
type pgTables struct {
	rows map[table]pgRows
	err  error // of the first document that cannot be stored
}

func newTables() *pgTables { return &pgTables{rows: map[table]pgRows{}} }

// put is a putter.
func (p *pgTables) put(into table, key string, v any, columns ...any) {
	d, err := seal(key, v)
	p.err = cmp.Or(p.err, err)
	p.rows[into] = append(p.rows[into], append(columns, d.text, d.sum))
}

// queue adds the statements to a batch. They put only those rows u that are joined.
func (p *pgTables) queue(b *pgx.Batch, join string) {
	for into, rows := range p.rows {
		rows.queue(b, "INSERT INTO "+into.name+" ("+into.columns+") SELECT u.* FROM unnest("+into.lists+") AS u ("+into.columns+")"+join+
			" ON CONFLICT ("+into.key+") DO UPDATE SET ("+into.columns+") = ROW (excluded.*)")
	}
}

// poke sends to a channel that has room for one, unless that is taken.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
