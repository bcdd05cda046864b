package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// fileDB is an open database of SQLite.
type fileDB struct {
	path    string
	options Options
	side    *sideFile
	inode   *os.File    // has the kernel lock on the file itself; may be nil
	file    os.FileInfo // of path, when it was opened
	log     *os.File    // its log, to be made longer
	logged  os.FileInfo // of that
	clock   *clock
	locks   *fileLocks
	jobs    *fileJobs
	read    *sql.DB

	contents Contents // when it was opened

	group   *group
	ctx     context.Context // ends when the database is being closed
	cancel  context.CancelFunc
	stored  chan struct{} // something was
	unmoved atomic.Bool   // the log has what is not in the database's file
	tending sync.WaitGroup

	closing sync.Once
	err     error         // of closing
	failed  chan struct{} // closed when the database cannot be relied on any more in this process

	// For the goroutine that commits only.
	write        *writer
	mark         *mark
	state        state     // as it is stored
	failure      error     // why nothing can be stored any more
	suspect      error     // why it is not known what is stored
	checkpointAt int       // pages in the log, when they are moved
	noRoom       bool      // the last transaction failed because there was none
	full         bool      // transactions are flushed to the disk
	moved        int       // pages written to the log when all of them were in the database's file
	checkpointed time.Time // when that was
	extended     int64     // to which length the log was made longer
	trimmed      time.Time // when the oldest events were looked at
	untrimmed    int       // events since
}

// openFile opens a database of SQLite, which there must be if it is said to be old.
func openFile(ctx context.Context, path string, old bool, o Options) (_ *fileDB, err error) {
	if old {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: there is none, and none is made: %w", lokt.ErrInvalid, err)
		}
	}
	err = os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		path, err = resolve(path)
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	d := &fileDB{
		path: path, options: o, stored: make(chan struct{}, 1), failed: make(chan struct{}), full: true,
		checkpointAt: checkpointPages,
	}
	if d.side, err = lockBeside(path, o.Describe); err != nil {
		return nil, err
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.group, d.locks, d.jobs = newGroup(d.commit), newLocks(d), newFileJobs(d)
	unclean, err := d.start(ctx, old)
	if err != nil {
		return nil, errors.Join(translate(err), d.release())
	}
	go d.group.loop()
	d.tending.Go(d.tend)
	if unclean {
		d.tending.Go(func() { // damage may have come with the end
			if err := d.Check(d.ctx); err != nil && d.ctx.Err() == nil {
				o.warn(err)
			}
		})
	}
	return d, nil
}

// start opens the connections and reads what there is. It reports whether the database had not been closed.
func (d *fileDB) start(ctx context.Context, old bool) (unclean bool, err error) {
	was, err := d.look(ctx, old)
	if err != nil {
		return false, err
	}
	if err := touch(d.path, os.O_CREATE); err != nil {
		return false, unavailable(err)
	}
	if d.inode, err = lockFile(d.path); err != nil {
		return false, err
	}
	if err := rewriteFile(d.path + "-wal"); err != nil {
		return false, unavailable(err)
	}
	// The first has no effect on a database that has tables; the driver runs them in the order of the alphabet.
	if d.write, err = openWriter(ctx, d.path, "rw", "auto_vacuum(INCREMENTAL)", "journal_mode(WAL)", "synchronous(FULL)",
		"cache_size(-8192)", "temp_store(MEMORY)", "trusted_schema(OFF)", "wal_autocheckpoint(0)",
		"journal_size_limit(67108864)"); err != nil {
		return false, err
	}
	if was.state == nil {
		err = d.create()
	} else {
		d.state, err = readState(d.write.query)
	}
	if err == nil {
		d.mark, err = openMark(d.path, was.mark)
	}
	if err == nil {
		err = d.begin(was)
	}
	if err == nil {
		d.file, err = os.Stat(d.path)
	}
	if err == nil {
		d.log, err = os.OpenFile(d.path+"-wal", os.O_RDWR, 0)
	}
	if err == nil {
		d.logged, err = d.log.Stat()
	}
	if err == nil {
		err = d.openReaders(ctx)
	}
	return was.unclean, err
}

// touch makes a file for its user alone. SQLite gives the files beside a database the same permissions.
func touch(path string, flags int) error {
	f, err := os.OpenFile(path, flags|os.O_RDWR, 0o600)
	if err == nil {
		err = f.Close()
	}
	return err
}

// openReaders opens all of them at once, so that none opens another file that has come to the place of this one
// since.
func (d *fileDB) openReaders(ctx context.Context) (err error) {
	if d.read, err = sql.Open("sqlite", dsn(d.path, "rw", "query_only(ON)", "cache_size(-8192)", "temp_store(MEMORY)",
		"trusted_schema(OFF)")); err != nil {
		return err
	}
	d.read.SetMaxOpenConns(maxReaders)
	d.read.SetMaxIdleConns(maxReaders)
	for range maxReaders {
		c, err := d.read.Conn(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }() // it goes back to the pool
	}
	return nil
}

// found is what there was when a database was opened.
type found struct {
	state   *state // nil if there is no database
	mark    markText
	unclean bool // it was not closed, or has been elsewhere: what was not flushed may be missing
	loss    bool // so may be what was
}

// look looks at the files without changing them, and refuses what is no database of lokt, of another version, or less
// than what was acknowledged.
func (d *fileDB) look(ctx context.Context, old bool) (f found, err error) {
	mark, marked, err := readMark(d.path)
	if errors.Is(err, lokt.ErrDamaged) {
		d.options.warn(err)
	} else if err != nil {
		return f, err
	}
	f.mark, f.unclean = mark, !marked || !mark.Clean
	early, err := scanLog(d.path + "-wal")
	if err != nil {
		return f, err
	}
	if f.state, err = d.peek(ctx, "ro"); err != nil {
		return f, err
	}
	if f.state == nil && old {
		return f, fmt.Errorf("%w: it is empty, and is not filled", lokt.ErrInvalid)
	}
	log, err := os.Stat(d.path + "-wal")
	logged := err == nil && log.Size() > 0
	var lost error
	switch {
	case f.state == nil && (logged || marked && mark.Commits > 0):
		lost = errors.New("the database's file is missing or empty, but not what is beside it: if a new database is " +
			"wanted, remove all files whose names begin as its own")
	case f.state == nil:
		f.unclean = false
	case f.state.Backup:
		f.loss = true
	case marked && mark.Database != f.state.Database:
		d.options.warn(errors.New("the database is another than the one that was here last: tokens jump"))
		f.loss = true
	case marked && mark.Commits > f.state.Commits:
		lost = fmt.Errorf("%d changes were acknowledged, and only %d are there: its log was damaged or taken away",
			mark.Commits, f.state.Commits)
	case marked && !mark.Clean && !logged:
		d.options.warn(errors.New("the log of the database is not there any more; nothing is missing that was in it"))
	}
	if lost != nil && !d.options.AcceptLoss {
		return f, fmt.Errorf("%w: %w; restore a backup, or accept the loss (--accept-loss), and tokens go on far above any "+
			"that were given", lokt.ErrDamaged, lost)
	} else if lost != nil {
		d.options.warn(fmt.Errorf("opened with a loss that was accepted: %w", lost))
		f.unclean = true
	}
	f.loss = f.loss || d.options.AcceptLoss
	if early {
		d.options.warn(errors.New("the log of the database ended early: more of it follows behind its end. After a loss of " +
			"power this is what had not been acknowledged; otherwise the log is damaged"))
	}
	return f, nil
}

// peek reads what a database says about itself; nil if there is none.
func (d *fileDB) peek(ctx context.Context, access string) (s *state, err error) {
	if info, err := os.Stat(d.path); errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return nil, nil
	} else if err != nil {
		return nil, unavailable(err)
	}
	w, err := openWriter(ctx, d.path, access)
	if err == nil {
		s, err = identify(w)
		err = errors.Join(err, w.close())
	}
	if code(err)&0xff == sqlite3.SQLITE_READONLY && access == "ro" { // it was being made, which has to be rolled back
		return d.peek(ctx, "rw")
	}
	return s, err
}

func identify(w *writer) (*state, error) {
	var mark, version, tables int64
	if err := w.query("SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "+
		"FROM pragma_application_id, pragma_user_version", nil, func(rows *sql.Rows) error {
		return rows.Scan(&mark, &version, &tables)
	}); err != nil {
		return nil, err
	}
	switch {
	case mark == 0 && version == 0 && tables == 0:
		return nil, nil
	case mark != applicationID:
		return nil, fmt.Errorf("%w: it is the database of another program", lokt.ErrInvalid)
	case version != schemaVersion:
		return nil, fmt.Errorf("%w: its version is %d, and this program knows version %d only",
			lokt.ErrInvalid, version, schemaVersion)
	}
	s, err := readState(w.query)
	return &s, err
}

// create makes the tables.
func (d *fileDB) create() error {
	d.contents.Created = true
	d.state = state{Database: lokt.NewLeaseID()}
	d.write.err = d.write.script(fmt.Sprintf("BEGIN IMMEDIATE;\n%s\nPRAGMA application_id = %d;\nPRAGMA user_version = %d",
		sqliteSchema, applicationID, schemaVersion))
	d.state.write(d.write)
	d.write.do("COMMIT")
	return d.write.err
}

// begin reads the locks, gives everybody who lives by time its full time, and starts the clock.
func (d *fileDB) begin(was found) error {
	if err := d.checkLiving(); err != nil {
		return err
	}
	last := d.state.Clock
	d.clock = newClock(last)
	d.checkpointed = d.clock.now()
	lowest := uint64(0) // token of any lock
	if was.loss || was.unclean {
		d.state.raise(was.mark.highest, map[bool]uint64{false: jumpUnclean, true: jumpLoss}[was.loss])
		lowest = d.state.Token
	}
	if was.state != nil && was.state.Backup {
		d.state.Database, d.state.Backup = lokt.NewLeaseID(), false
	}
	if err := d.locks.load(); err != nil {
		return err
	}
	b := d.newBatch()
	b.flush = true
	for name, e := range d.locks.all {
		c := &change{e, e.lock}
		if e.damaged == nil && restart(&c.lock, b.now, last) {
			c.lock.Token = max(c.lock.Token, lowest)
			b.locks[name] = c
		}
	}
	if err := d.store(b); err != nil {
		return err
	}
	d.locks.publish(b)
	d.contents.Locks = len(d.locks.all)
	living, err := d.write.number("SELECT count(*) FROM living")
	d.contents.Jobs = int(living)
	return errors.Join(err, unavailable(d.mark.flush()))
}

// checkLiving looks for damage, in the tables that are read as a whole when the database is opened, that makes rows
// disappear.
func (d *fileDB) checkLiving() error {
	for _, table := range []string{"state", "locks", "waiters", "living", "memos"} {
		if err := d.write.query("PRAGMA quick_check('"+table+"')", nil, intact); err != nil {
			return fmt.Errorf("%w: %w; restore a backup", lokt.ErrDamaged, err)
		}
	}
	return nil
}

// intact reads a row of SQLite's own check.
func intact(rows *sql.Rows) error {
	var says string
	if err := rows.Scan(&says); err != nil || says == "ok" {
		return err
	}
	return errors.New(says)
}

func (d *fileDB) Locks() LockStore                           { return d.locks }
func (d *fileDB) Jobs() jobs.Store                           { return d.jobs }
func (d *fileDB) Path() string                               { return d.path }
func (d *fileDB) Contents(context.Context) (Contents, error) { return d.contents, nil }
func (d *fileDB) Failed() <-chan struct{}                    { return d.failed }

// Close implements backend: it stores what was asked for before, closes the database, and lets another process have
// it.
func (d *fileDB) Close() error {
	d.closing.Do(func() {
		d.cancel()
		d.tending.Wait()
		d.group.close()
		_ = d.locks.Close()
		d.locks.events.wait()
		d.err = d.finish()
	})
	return d.err
}

// finish closes the database when nobody else uses it.
func (d *fileDB) finish() error {
	present := d.present()
	var err error
	if d.failure == nil && d.suspect == nil && present == nil {
		b := d.newBatch()
		b.flush = true // the clock
		err = d.store(b)
		d.flushed(err)
	}
	if d.failure != nil {
		return d.failure // and everything stays open, and nobody else's, until the process ends
	}
	clean := d.suspect == nil && err == nil && present == nil
	err = errors.Join(translate(err), d.read.Close(), d.write.close())
	if d.write = nil; clean && err == nil {
		err = errors.Join(d.mark.write(&d.state, true), d.mark.flush())
	}
	return errors.Join(err, d.release())
}

// release closes what is open and gives the kernel locks back.
func (d *fileDB) release() error {
	var errs []error
	if d.read != nil {
		errs = append(errs, d.read.Close())
	}
	if d.write != nil {
		errs = append(errs, d.write.close())
	}
	if d.mark != nil {
		errs = append(errs, d.mark.file.Close())
	}
	if d.log != nil {
		errs = append(errs, d.log.Close())
	}
	if d.inode != nil {
		errs = append(errs, d.inode.Close())
	}
	return errors.Join(append(errs, d.side.close())...)
}

// reading lends what reads the database as it is at one moment.
func (d *fileDB) reading(ctx context.Context, op string, read func(tx *sql.Tx) error) (err error) {
	begin := time.Now()
	defer func() { d.options.observe(op, begin, err) }()
	if d.ctx.Err() != nil {
		return errClosed
	}
	tx, err := d.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err == nil {
		err = read(tx)
		_ = tx.Rollback()
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && d.ctx.Err() != nil {
		return errClosed
	}
	return translate(err)
}

// query runs a statement and has scan read each row.
type query = func(statement string, args []any, scan func(*sql.Rows) error) error

// reader runs queries in a transaction.
func reader(ctx context.Context, tx *sql.Tx) query {
	return func(statement string, args []any, scan func(*sql.Rows) error) error {
		rows, err := tx.QueryContext(ctx, statement, args...)
		return each(rows, err, scan)
	}
}

// Ping implements backend.
func (d *fileDB) Ping(ctx context.Context) error {
	if err := d.reading(ctx, "ping", func(tx *sql.Tx) error {
		return tx.QueryRowContext(ctx, "SELECT id FROM state").Scan(new(int))
	}); err != nil {
		return err
	}
	return d.group.perform(ctx, &request{})
}

// How often the mark is flushed, and after how long what the log has is moved into the database's file.
const (
	markEvery       = 100 * time.Millisecond
	checkpointEvery = 3 * time.Second
)

// tend flushes the mark, and has the log moved when the time has come, after transactions and until the database is
// closed.
func (d *fileDB) tend() {
	ctx, checkpointed := context.Background(), time.Now()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-d.stored:
		}
		for more := true; more; more = d.unmoved.Load() {
			select {
			case <-d.ctx.Done():
				return
			case <-time.After(markEvery):
			}
			if err := d.mark.flush(); err != nil {
				_ = d.group.perform(ctx, &request{write: func() error { return d.fail(err) }})
			}
			if time.Since(checkpointed) >= checkpointEvery {
				checkpointed = time.Now()
				_ = d.group.perform(ctx, &request{})
			}
		}
	}
}

// present reports whether the database's file and its log are still where they were opened. What is stored in one
// that was removed or moved away while it is open is lost with the process, or to whoever opens the file that is
// there now.
func (d *fileDB) present() error {
	for _, f := range []struct {
		path string
		was  os.FileInfo
	}{{d.path, d.file}, {d.path + "-wal", d.logged}} {
		if f.was == nil {
			continue
		}
		now, err := os.Stat(f.path)
		what := "was replaced"
		switch {
		case errors.Is(err, fs.ErrNotExist):
			what = "is not there any more"
		case err != nil || os.SameFile(now, f.was): // what else there is to say, reading and writing the file will
			continue
		}
		return fmt.Errorf("%w: %s of database %s %s, so nothing is stored: move it back, or save what it had (loktd backup) "+
			"and restore that", lokt.ErrUnavailable, filepath.Base(f.path), d.path, what)
	}
	return nil
}

// fail makes the database one in which this process stores nothing any more.
func (d *fileDB) fail(err error) error {
	if d.failure == nil {
		d.failure = fmt.Errorf("%w: database %s could not be flushed to the disk, so nothing is stored until another process "+
			"has opened it: look after the disk, and restart: %w", lokt.ErrUnavailable, d.path, err)
		close(d.failed)
	}
	return d.failure
}

// flushed looks at how something ended that may have flushed a file. After a flush that failed, what was written
// before it may be on the disk or not, and no later flush tells: systems forget what they could not write. SQLite's
// memory of what it has moved into the database's file cannot be relied on any more then, so the connections must not
// even be closed, which would move the rest and remove the log. Only the log itself has everything that was
// acknowledged, and a process that opens it without such a memory moves all of it once more.
func (d *fileDB) flushed(err error) {
	if code(err) == sqlite3.SQLITE_IOERR_FSYNC {
		_ = d.fail(err)
	}
}

// rewriteFile writes a file, if there is one, with what it has, and flushes it. What an earlier process wrote and a
// system could not flush is read from memory by who comes next as if it were on the disk, and is not flushed by
// flushing: only what is written again is.
func rewriteFile(path string) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
