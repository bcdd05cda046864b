package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
)

// Options are what a database may be told. The zero Options are good.
type Options struct {
	// Describe says where the process that opens the database is to be found, such as the address it serves: another
	// process that wants the database is told so.
	Describe string

	// Observe, if set, is called after everything the database was asked to do: with what it was, how long it took, and how it
	// ended. Operations are "commit", "recover", "ping", "view", "list", "events", "load", "read", "backup" and "check". It may be called by several
	// goroutines at once, and must not wait for the database.
	Observe func(op string, took time.Duration, err error)

	// Events, if set, is called with the events of locks after they were stored: in the order of the changes, one call at a
	// time. It may use the database.
	Events func([]lokt.Event)

	// KeepEvents is how many events are kept, of locks and of jobs each; 0 means 1,000,000, negative no limit. KeepEventsFor is
	// how long those of locks are; 0 means 90 days, negative no limit. Events of jobs go with the jobs.
	KeepEvents    int
	KeepEventsFor time.Duration
}

// DB is an open database. Its methods may be called by any number of goroutines.
type DB struct {
	path    string
	options Options
	side    *sideFile
	clock   *clock
	locks   *Locks
	jobs    *Jobs

	writer  *conn      // of the goroutine that commits
	idle    chan *conn // readers that nobody uses
	readers sync.WaitGroup

	mu     sync.Mutex
	queue  []*request
	closed bool
	poke   chan struct{} // there is something in the queue
	ended  chan struct{} // the goroutine that commits has returned
	done   chan struct{} // closed when the database has been
	err    error         // of closing; to be read after done

	// For the goroutine that commits only.
	suspect error // why it is not known what is stored
	synced  bool  // transactions are flushed to the disk
}

// maxReaders is how many goroutines read at the same time.
const maxReaders = 4

// Open opens a database, and makes it if it does not exist. Its URL is sqlite: and the path of a file. Directories that are
// missing are made, for the user alone; so is the file. Every hold, place in the queue and freeze that ends with time gets
// its full time from now, but no more than its maximum hold.
//
// Errors wrap lokt.ErrInvalid for what is no such URL, no such database or one of a newer version, lokt.ErrUnavailable if
// another process has the database, which the error names, or it cannot be read, and lokt.ErrDamaged if its contents make no sense.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	path, ok := strings.CutPrefix(url, "sqlite:")
	if path = strings.TrimPrefix(path, "//"); !ok || path == "" {
		return nil, fmt.Errorf("%w: %q is not sqlite: and a path", lokt.ErrInvalid, url)
	}
	d, err := open(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	return d, nil
}

func open(ctx context.Context, path string, o Options) (_ *DB, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, unavailable(err)
	}
	path, err = resolve(path)
	if err != nil {
		return nil, unavailable(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, unavailable(err)
	}
	side, err := lockBeside(path, o.Describe)
	if err != nil {
		return nil, err
	}
	if o.KeepEvents == 0 {
		o.KeepEvents = 1_000_000
	}
	if o.KeepEventsFor == 0 {
		o.KeepEventsFor = 90 * 24 * time.Hour
	}
	d := &DB{
		path: path, options: o, side: side, idle: make(chan *conn, maxReaders), poke: make(chan struct{}, 1), ended: make(chan struct{}),
		done: make(chan struct{}), synced: true,
	}
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	if d.writer, err = d.start(ctx); err != nil {
		return nil, translate(err)
	}
	for range maxReaders {
		c, err := dial(dsn(d.path), readerSetup()...)
		if err != nil {
			return nil, translate(err)
		}
		d.idle <- c
	}
	d.locks, d.jobs = newLocks(d), newJobs(d)
	if err := d.begin(ctx); err != nil {
		return nil, translate(err)
	}
	go d.loop()
	return d, nil
}

// start opens the connection that writes, and brings the database to this version.
func (d *DB) start(ctx context.Context) (*conn, error) {
	if err := touch(d.path); err != nil {
		return nil, err
	}
	c, err := dial(dsn(d.path))
	if err != nil {
		return nil, err
	}
	version, err := identify(ctx, c)
	if err == nil {
		err = c.setUp(writerSetup())
	}
	if err == nil {
		err = migrate(ctx, c, version)
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// begin reads what is there, gives everybody who lives by time its full time, and starts the clock.
func (d *DB) begin(ctx context.Context) error {
	clock, err := one(ctx, d.writer, "SELECT clock FROM state")
	if err != nil {
		return err
	}
	last := time.Unix(0, clock).UTC()
	d.clock = newClock(last)
	if err := d.writer.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := rearm(ctx, d.writer, d.clock.now(), last); err != nil {
		_ = d.writer.exec(ctx, "ROLLBACK")
		return err
	}
	if err := d.writer.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	return d.reload(ctx)
}

// reload replaces what is in memory by what is stored.
func (d *DB) reload(ctx context.Context) error {
	if err := d.locks.load(ctx, d.writer); err != nil {
		return err
	}
	return d.jobs.load(ctx, d.writer)
}

// Locks returns the locks in the database. It ends with the database; closing it closes nothing else.
func (d *DB) Locks() *Locks { return d.locks }

// Jobs returns the jobs in the database. It ends with the database; closing it closes nothing else.
func (d *DB) Jobs() *Jobs { return d.jobs }

// Path returns the path of the database's file, free of symbolic links.
func (d *DB) Path() string { return d.path }

// Close stores what was asked for before, closes the database, and lets another process have it. Later calls fail, and
// waits return.
func (d *DB) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		<-d.done
		return d.err
	}
	d.closed = true
	d.mu.Unlock()
	d.wake()
	<-d.ended
	d.locks.end()
	d.readers.Wait()
	if d.suspect == nil { // what has ended by now is not to be revived
		d.err = d.writer.exec(context.Background(), "UPDATE state SET clock = ?", d.clock.now().UnixNano())
	}
	d.err = errors.Join(translate(d.err), d.release())
	close(d.done)
	return d.err
}

// release closes connections and gives the kernel lock back.
func (d *DB) release() error {
	var errs []error
	for len(d.idle) > 0 {
		errs = append(errs, (<-d.idle).close())
	}
	if d.writer != nil {
		errs = append(errs, d.writer.close())
	}
	return errors.Join(append(errs, d.side.close())...)
}

// reading lends a connection that reads. What read calls sees the database as it was at one moment.
func (d *DB) reading(ctx context.Context, op string, read func(c *conn) error) (err error) {
	begin := time.Now()
	defer func() { d.observe(op, begin, err) }()
	c, err := d.borrow(ctx)
	if err != nil {
		return err
	}
	defer d.giveBack(c)
	if err := c.exec(ctx, "BEGIN"); err != nil {
		return translate(err)
	}
	err = read(c)
	if e := c.exec(context.WithoutCancel(ctx), "ROLLBACK"); err == nil {
		err = e
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return translate(err)
}

func (d *DB) borrow(ctx context.Context) (*conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, errClosed
	}
	d.readers.Add(1)
	d.mu.Unlock()
	select {
	case c := <-d.idle:
		return c, nil
	case <-ctx.Done():
		d.readers.Done()
		return nil, ctx.Err()
	}
}

func (d *DB) giveBack(c *conn) {
	d.idle <- c
	d.readers.Done()
}

// observe tells how something went.
func (d *DB) observe(op string, begin time.Time, err error) {
	if d.options.Observe != nil {
		d.options.Observe(op, time.Since(begin), err)
	}
}

// Ping returns nil if the database can be read and is not known to be unable to store.
func (d *DB) Ping(ctx context.Context) error {
	if err := d.reading(ctx, "ping", func(c *conn) error {
		_, err := one(ctx, c, "SELECT clock FROM state")
		return err
	}); err != nil {
		return err
	}
	return d.perform(ctx, &request{})
}
