package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// fileDB is an open database of SQLite.
type fileDB struct {
	path    string
	file    os.FileInfo // of path, when it was opened
	options Options
	side    *sideFile
	inode   *os.File // has the kernel lock on the file itself; may be nil
	clock   *clock
	locks   *fileLocks
	jobs    *fileJobs

	contents Contents // when it was opened

	group   *group
	writer  *conn      // of the goroutine that commits
	idle    chan *conn // readers that nobody uses
	readers sync.WaitGroup

	mu     sync.Mutex
	closed bool          // no more readers
	done   chan struct{} // closed when the database has been
	err    error         // of closing; to be read after done

	failed chan struct{} // closed when the database cannot be relied on any more in this process

	// For the goroutine that commits only.
	failure error // why it cannot
	suspect error // why it is not known what is stored
	moved   int   // pages written to the log when all of them were in the database's file

	foldAgain time.Time // there was no room for the rows of the tables: not before then
	foldError error     // what was said about it
	noRoom    bool      // the last transaction failed because there was no room

	checkpointAt int  // pages more, until they are moved
	synced       bool // transactions are flushed to the disk

	log      *os.File // of transactions, to be made longer; nil if it has not been yet
	extended int64    // to which length
	reserve  *reserve // nil if nothing is stored but what sets rows aside
}

// maxReaders is how many goroutines read at the same time.
const maxReaders = 4

// openFile opens a database of SQLite, which there must be if it is said to be old.
func openFile(ctx context.Context, path string, old bool, o Options) (*fileDB, error) {
	if old {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%w: there is none, and none is made: %w", lokt.ErrInvalid, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, unavailable(err)
	}
	path, err := resolve(path)
	if err != nil {
		return nil, unavailable(err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, unavailable(err)
	}
	d := &fileDB{path: path, options: o, reserve: reserveOf(path)}
	opened, err := d.open(ctx, old)
	if lacksRoom(err, path) && d.giveReserve(reserveSize) {
		opened, err = d.open(ctx, old)
	}
	if _, known := space(filepath.Dir(path)); lacksRoom(err, path) && (known || full(err)) && !errors.Is(err, ErrFull) {
		err = fmt.Errorf("%w: %w", ErrFull, err)
	}
	return opened, err
}

// open opens the database at the path of a fileDB, which has nothing else.
func (d *fileDB) open(ctx context.Context, old bool) (_ *fileDB, err error) {
	path, o := d.path, d.options
	side, err := lockBeside(path, o.Describe)
	if err != nil {
		return nil, err
	}
	d = &fileDB{
		path: path, options: o, reserve: d.reserve, side: side, idle: make(chan *conn, maxReaders), done: make(chan struct{}), synced: true,
		failed: make(chan struct{}), checkpointAt: checkpointPages,
	}
	d.group = newGroup(d.commit)
	defer func() {
		if err != nil {
			if d.locks != nil {
				d.locks.end()
			}
			err = errors.Join(err, d.release())
		}
	}()
	if d.writer, err = d.start(ctx, old); err != nil {
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
	living, err := one(ctx, d.writer, "SELECT count(*) FROM jobs")
	if err != nil {
		return nil, translate(err)
	}
	d.contents.Jobs, d.contents.Locks = int(living), len(d.locks.cache)
	if free, known := space(filepath.Dir(path)); !d.reserve.given {
		d.reserve.fill(true)
	} else if known {
		d.reserve.keep(free - reserveStep) // what was not needed, before others take it
	}
	go d.group.loop()
	return d, nil
}

// start opens the connection that writes, and brings the database to this version.
func (d *fileDB) start(ctx context.Context, old bool) (*conn, error) {
	if err := touch(d.path); err != nil {
		return nil, err
	}
	var err error
	if d.inode, err = lockFile(d.path); err != nil {
		return nil, err
	}
	if err := rewriteFile(d.path + "-wal"); err != nil {
		return nil, unavailable(err)
	}
	if d.file, err = os.Stat(d.path); err != nil {
		return nil, err
	}
	c, err := dial(dsn(d.path))
	if err != nil {
		return nil, err
	}
	version, err := identify(ctx, c)
	d.contents.Created = version == 0
	if err == nil && old && version == 0 {
		err = fmt.Errorf("%w: it is empty, and is not filled", lokt.ErrInvalid)
	}
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
func (d *fileDB) begin(ctx context.Context) error {
	left, err := one(ctx, d.writer, "SELECT count(*) FROM lock_journal")
	if err != nil {
		return err
	}
	if left > 0 {
		if err := d.locks.load(ctx, d.writer); err != nil {
			return err
		}
		if err := d.locks.finish(ctx, d.writer); err != nil {
			return err
		}
	}
	clock, err := one(ctx, d.writer, "SELECT clock FROM state")
	if err != nil {
		return err
	}
	last := time.Unix(0, clock).UTC()
	d.clock = newClock(last)
	if err := atomically(ctx, d.writer, func() error { return rearm(ctx, d.writer, d.clock.now(), last) }); err != nil {
		return err
	}
	return d.reload(ctx)
}

// reload replaces what is in memory by what is stored.
func (d *fileDB) reload(ctx context.Context) error {
	if err := d.locks.load(ctx, d.writer); err != nil {
		return err
	}
	return d.jobs.load(ctx, d.writer)
}

// Locks implements backend.
func (d *fileDB) Locks() LockStore { return d.locks }

// Jobs implements backend.
func (d *fileDB) Jobs() jobs.Store { return d.jobs }

// Path implements backend.
func (d *fileDB) Path() string { return d.path }

// Contents implements backend.
func (d *fileDB) Contents(context.Context) (Contents, error) { return d.contents, nil }

// Failed implements backend.
func (d *fileDB) Failed() <-chan struct{} { return d.failed }

// Close implements backend: it stores what was asked for before, closes the database, and lets another process have it.
func (d *fileDB) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		<-d.done
		return d.err
	}
	d.closed = true
	d.mu.Unlock()
	d.group.close()
	d.locks.end()
	d.readers.Wait()
	if d.suspect == nil && d.failure == nil { // what has ended by now is not to be revived
		d.err = d.finish(context.Background())
		d.flushed(d.err)
	}
	if d.failure != nil {
		d.err = d.failure // and everything stays open, and nobody else's, until the process ends
	} else {
		d.err = errors.Join(translate(d.err), d.release())
	}
	close(d.done)
	return d.err
}

// finish stores what is left when nobody else uses the database. If there is no room for that, nothing that was acknowledged is lost: it is in the
// journals, and whoever opens the database next does it.
func (d *fileDB) finish(ctx context.Context) error {
	var errs []error
	for _, step := range []func(context.Context, querier) error{d.locks.finish, d.jobs.finish, func(ctx context.Context, q querier) error {
		return q.exec(ctx, "UPDATE state SET clock = ?", d.clock.now().UnixNano())
	}} {
		if err := step(ctx, d.writer); !full(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// release closes connections and gives the kernel locks back.
func (d *fileDB) release() error {
	var errs []error
	for len(d.idle) > 0 {
		errs = append(errs, (<-d.idle).close())
	}
	if d.log != nil {
		errs = append(errs, d.log.Close())
	}
	if d.writer != nil {
		errs = append(errs, d.closing())
	}
	if d.inode != nil {
		errs = append(errs, d.inode.Close())
	}
	return errors.Join(append(errs, d.side.close())...)
}

// reading lends a connection that reads. What read calls sees the database as it was at one moment.
func (d *fileDB) reading(ctx context.Context, op string, read func(q querier) error) (err error) {
	begin := time.Now()
	defer func() { d.observe(op, begin, err) }()
	c, err := d.borrow(ctx)
	if err != nil {
		return err
	}
	defer d.giveBack(c)
	if err := c.exec(context.WithoutCancel(ctx), "BEGIN"); err != nil { // at once; were it cancelled, it could have begun all the same
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

func (d *fileDB) borrow(ctx context.Context) (*conn, error) {
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

func (d *fileDB) giveBack(c *conn) {
	d.idle <- c
	d.readers.Done()
}

// observe tells how something went.
func (d *fileDB) observe(op string, begin time.Time, err error) {
	if d.options.Observe != nil {
		d.options.Observe(op, time.Since(begin), err)
	}
}

// Ping implements backend.
func (d *fileDB) Ping(ctx context.Context) error {
	if err := d.reading(ctx, "ping", func(q querier) error {
		_, err := one(ctx, q, "SELECT clock FROM state")
		return err
	}); err != nil {
		return err
	}
	return d.group.perform(ctx, &request{})
}
