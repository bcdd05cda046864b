package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// serverDB is a database of PostgreSQL, which any number of processes share. The database is the truth, and so is its clock: nothing
// about a lock is kept in memory.
type serverDB struct {
	config  *pgx.ConnConfig
	options Options
	origin  string // tells this process's notifications from those of others
	channel string // of notifications
	words   dictionary
	losses  atomic.Int64 // how many connections were lost
	locks   *serverLocks
	jobs    *serverJobs

	known  int64       // the newest version of the database that this program knows
	unfit  atomic.Bool // the database says that this program is too old for it
	notice notices     // that other processes are to be sent

	group  *group
	writer *pgConn      // of the goroutine that commits changes of locks; nil if it must be opened
	idle   chan *pgConn // connections that nobody uses; nil for one that must be opened

	stop    context.CancelFunc
	tasks   sync.WaitGroup
	mu      sync.Mutex
	closed  bool
	readers sync.WaitGroup
	done    chan struct{}
	err     error
}

// How long the servers' database may go unused before everybody who lives by time gets a full time again, and how often it is
// used when there is nothing to do; how long a statement may take; after how long those who wait look again, although nobody woke them.
const (
	awayAfter   = 10 * time.Second
	presence    = 2 * time.Second
	pgTimeout   = 20 * time.Second
	lookAnyway  = 2 * time.Second
	pgReaders   = 7
	pgPrincipal = "lokt"     // what connections call themselves
	presenceOp  = "presence" // what this process does of its own accord, which is not observed
)

// openServer opens a database of PostgreSQL. Its tables are made in the first schema of the search path if there are none.
func openServer(ctx context.Context, url string, o Options) (*serverDB, error) {
	known, err := knownVersions()
	if err != nil {
		return nil, err
	}
	return openServerAs(ctx, url, o, known)
}

// openServerAs does so as a program does that knows these versions.
func openServerAs(ctx context.Context, url string, o Options, known versions) (_ *serverDB, err error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", lokt.ErrInvalid, err)
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = pgPrincipal
	}
	config.RuntimeParams["client_encoding"] = "UTF8" // whatever the role's settings say
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 10 * time.Second
	}
	d := &serverDB{config: config, options: o, origin: lokt.NewLeaseID(), idle: make(chan *pgConn, pgReaders), done: make(chan struct{})}
	d.notice.poke = make(chan struct{}, 1)
	for range pgReaders {
		d.idle <- nil
	}
	if d.writer, err = d.dial(ctx); err != nil {
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	d.stop = stop
	defer func() {
		if err != nil {
			stop()
			if d.locks != nil {
				d.locks.end()
			}
			d.release()
		}
	}()
	if err := d.prepare(ctx, known); err != nil {
		return nil, pgError(err)
	}
	d.locks, d.jobs = newServerLocks(d), newServerJobs(d)
	if err := d.arrive(ctx, d.writer); err != nil {
		return nil, pgError(err)
	}
	// Tables may have been copied from another cluster, whose transactions had other numbers.
	if _, err := one(ctx, d.writer, "SELECT number_lock_events(true)"); err != nil {
		return nil, pgError(err)
	}
	d.group = newGroup(d.commit)
	go d.group.loop()
	d.tasks.Go(func() { d.listen(background) })
	d.tasks.Go(func() { d.stay(background) })
	d.tasks.Go(func() { d.tell(background) })
	d.tasks.Go(func() { d.jobs.follow(background) })
	return d, nil
}

// dial opens a connection.
func (d *serverDB) dial(ctx context.Context) (*pgConn, error) {
	// A pooler passes on notifications that another connection asked for. Nobody would ever take them from here.
	return d.connect(ctx, func(string) {})
}

// connect opens a connection that passes the notifications that come to it to a function.
func (d *serverDB) connect(ctx context.Context, hear func(payload string)) (*pgConn, error) {
	config := d.config.Copy()
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { hear(n.Payload) }
	before := d.losses.Load()
	raw, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, pgError(err)
	}
	return &pgConn{Conn: raw, words: &d.words, losses: &d.losses, before: before}, nil
}

// pgNow selects the time, in microseconds.
const pgNow = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

// arrive says that somebody uses the database. If nobody did for a while, everybody who lives by time gets a full time from now.
func (d *serverDB) arrive(ctx context.Context, c *pgConn) error {
	if err := c.exec(ctx, "BEGIN"); err != nil {
		return err
	}
	if err := c.exec(ctx, "SELECT 1 FROM state FOR UPDATE"); err != nil {
		return err
	}
	var last, now time.Time
	if err := c.query(ctx, "SELECT clock, "+pgNow+" * 1000, oldest FROM state", nil, func(r *row) error {
		last, now = r.nanos(), r.nanos()
		return d.fits(r.number())
	}); err != nil {
		return err
	}
	if !last.IsZero() && now.Sub(last) > awayAfter {
		if err := startAgain(ctx, c, now, last, strings.NewReplacer()); err != nil {
			return err
		}
	}
	if err := c.exec(ctx, "UPDATE state SET clock = greatest(clock, ?)", now.UnixNano()); err != nil {
		return err
	}
	if err := c.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	return c.flush(ctx)
}

// stay keeps saying that somebody uses the database, looks at the jobs although nobody said that they have changed, and forgets the oldest
// events.
func (d *serverDB) stay(ctx context.Context) {
	tick := time.NewTicker(presence)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-d.locks.many:
			_ = d.using(ctx, presenceOp, d.locks.numberNew)
			continue
		case <-ctx.Done():
			return
		}
		d.jobs.look()
		d.jobs.tables.poke()
		_ = d.using(ctx, presenceOp, func(ctx context.Context, c *pgConn) error {
			if err := d.arrive(ctx, c); err != nil {
				return err
			}
			if err := d.locks.numberNew(ctx, c); err != nil || n%15 != 0 {
				return err
			}
			return d.locks.trim(ctx, c)
		})
	}
}

// listen wakes whom the changes of other processes concern.
func (d *serverDB) listen(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := d.connect(ctx, d.notified)
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

// notified takes a notification: who sent it, and what to look at.
func (d *serverDB) notified(payload string) {
	origin, what, _ := strings.Cut(payload, " ")
	if origin != d.origin {
		d.hear(what)
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
		d.locks.watch.wakeAll()
	default:
		for _, name := range strings.Fields(what) {
			d.locks.watch.wakeName(name)
		}
	}
	d.locks.events.wakeAll()
}

// using lends a connection, opened if need be. One on which something failed is not lent again.
func (d *serverDB) using(ctx context.Context, op string, use func(ctx context.Context, c *pgConn) error) error {
	return d.doing(op, func() error {
		var c *pgConn
		select {
		case c = <-d.idle:
		case <-ctx.Done():
			return ctx.Err()
		}
		defer func() { d.idle <- c }()
		return d.lend(ctx, &c, pgTimeout, use)
	})
}

// doing does something with the database, unless it is closed or this program is too old for it; Close waits.
func (d *serverDB) doing(op string, do func() error) (err error) {
	begin := time.Now()
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return errClosed
	}
	d.readers.Add(1)
	d.mu.Unlock()
	defer d.readers.Done()
	if op != presenceOp {
		if d.unfit.Load() {
			return d.tooOld()
		}
		defer func() { d.observe(op, begin, err) }()
	}
	return do()
}

// lend lends a connection for so long at most, opened if it is nil or gone; it is nil afterwards if something failed on it. What was begun goes on
// for a moment when ctx ends.
func (d *serverDB) lend(ctx context.Context, lent **pgConn, atMost time.Duration, use func(ctx context.Context, c *pgConn) error) (err error) {
	c, returned := *lent, true
	defer func() {
		if !returned && c != nil { // what was called has panicked, or ended its goroutine, within a transaction
			_ = c.Close(context.WithoutCancel(ctx))
			c = nil
		}
		*lent = c
	}()
	limited, cancel := outliving(ctx, atMost)
	defer cancel()
	if c != nil && c.gone() {
		_ = c.Close(limited)
		c = nil
	}
	if c == nil {
		if c, err = d.dial(limited); err != nil {
			return err
		}
	}
	returned = false
	err = use(limited, c)
	returned = true
	if err != nil && !c.abandon(limited) {
		_ = c.Close(context.WithoutCancel(ctx))
		c = nil
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return pgError(err)
}

// reading lends a connection that reads the database as it was at one moment.
func (d *serverDB) reading(ctx context.Context, op string, read func(q querier) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.using(ctx, op, func(ctx context.Context, c *pgConn) error {
		if err := c.exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
			return err
		}
		if err := read(lasting{ctx, c}); err != nil {
			return err
		}
		if err := c.exec(ctx, "COMMIT"); err != nil {
			return err
		}
		return c.flush(ctx)
	})
}

func (d *serverDB) observe(op string, begin time.Time, err error) {
	if d.options.Observe != nil {
		d.options.Observe(op, time.Since(begin), err)
	}
}

// Locks implements backend.
func (d *serverDB) Locks() LockStore { return d.locks }

// Jobs implements backend.
func (d *serverDB) Jobs() jobs.Store { return d.jobs }

// Path implements backend.
func (d *serverDB) Path() string { return d.config.Database }

// Ping implements backend.
func (d *serverDB) Ping(ctx context.Context) error {
	return d.using(ctx, "ping", func(ctx context.Context, c *pgConn) error {
		oldest, err := one(ctx, c, "SELECT oldest FROM state")
		if err != nil {
			return err
		}
		return d.fits(oldest)
	})
}

// Backup implements backend.
func (d *serverDB) Backup(context.Context, string) error {
	return fmt.Errorf("%w: a database of PostgreSQL is backed up with pg_dump or pg_basebackup", lokt.ErrInvalid)
}

// Check implements backend.
func (d *serverDB) Check(context.Context) error {
	return fmt.Errorf("%w: a database of PostgreSQL is checked with pg_amcheck", lokt.ErrInvalid)
}

// Contents implements backend.
func (d *serverDB) Contents(ctx context.Context) (c Contents, err error) {
	err = d.reading(ctx, "contents", func(q querier) error {
		return q.query(ctx, `SELECT (SELECT count(*) FROM (SELECT lock FROM holders UNION SELECT lock FROM waiters UNION SELECT lock FROM freezes) l),
			(SELECT count(*) FROM jobs)`, nil, func(r *row) error {
			c.Locks, c.Jobs = int(r.number()), int(r.number())
			return nil
		})
	})
	return c, err
}

// reserved implements backend.
func (d *serverDB) reserved() int64 { return 0 }

// Failed implements backend: a server is asked again and again.
func (d *serverDB) Failed() <-chan struct{} { return nil }

// Close implements backend.
func (d *serverDB) Close() error {
	d.jobs.finish()
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		<-d.done
		return d.err
	}
	d.closed = true
	d.mu.Unlock()
	d.group.close()
	d.stop()
	_ = d.jobs.Close()
	d.locks.end()
	d.tasks.Wait()
	d.readers.Wait()
	d.lastWords()
	d.release()
	close(d.done)
	return nil
}

// release closes connections.
func (d *serverDB) release() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for len(d.idle) > 0 {
		if c := <-d.idle; c != nil {
			_ = c.Close(ctx)
		}
	}
	if d.writer != nil {
		_ = d.writer.Close(ctx)
	}
	if d.jobs != nil {
		d.jobs.hangUp(ctx)
	}
}

// pgError makes an error of the server, or of the way to it, one of those that callers tell apart.
func pgError(err error) error {
	var e *pgconn.PgError
	var n net.Error
	switch {
	case err == nil, errors.Is(err, lokt.ErrUnavailable), errors.Is(err, lokt.ErrInvalid), errors.Is(err, jobs.ErrJobNotFound):
		return err
	case errors.As(err, &e) && strings.HasPrefix(e.Code, "XX"):
		return fmt.Errorf("%w: %w: %w", lokt.ErrUnavailable, lokt.ErrDamaged, err)
	case errors.As(err, &e), errors.As(err, &n), pgconn.SafeToRetry(err):
		return fmt.Errorf("%w: %w", lokt.ErrUnavailable, err)
	}
	return unavailable(err)
}

// again reports whether a transaction was undone because of others, and may go well the next time.
func again(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "40001" || e.Code == "40P01")
}
