package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/vfs"
	"github.com/lokt-dev/lokt/jobs"
)

// fileDB is an open database of SQLite.
type fileDB struct {
	path    string
	options Options
	mark    *mark
	file    os.FileInfo // of path, when it was opened
	header  *os.File    // of path: closed after all connections, because that ends SQLite's locks
	index   *os.File    // of the log, likewise
	logged  os.FileInfo // of its log
	clock   *clock
	locks   *fileLocks
	jobs    *fileJobs
	read    *sql.DB
	opened  []io.Closer // what is closed with the database, last first

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
	state        state     // as it is stored
	failure      error     // why nothing can be stored any more
	suspect      error     // why it is not known what is stored
	checkpointAt int       // pages in the log, when they are moved
	noRoom       bool      // the last transaction failed because there was none
	full         bool      // transactions are flushed to the disk
	moved        int       // pages written to the log when all of them were in the database's file
	checkpointed time.Time // when that was
}

// openFile opens a database of SQLite, which there must be if it is said to be old.
func openFile(ctx context.Context, path string, old bool, o Options) (_ *fileDB, err error) {
	if _, err := os.Stat(path); old && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: there is none, and none is made: %w", lokt.ErrInvalid, err)
	}
	err = os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = touch(path, os.O_CREATE)
	}
	if err == nil {
		path, err = resolve(path)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	d := &fileDB{
		path: path, options: o, stored: make(chan struct{}, 1), failed: make(chan struct{}), full: true,
		checkpointAt: checkpointPages,
	}
	if d.mark, err = openMark(path, &o); err != nil {
		return nil, err
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.group, d.locks = newGroup(d.commit), &fileLocks{db: d, all: map[string]*entry{}}
	d.jobs = &fileJobs{db: d, keptJobs: keptJobs{
		options: &d.options, reading: d.reading, trimming: d.trimming, document: fileJobDocument,
	}}
	unclean, err := d.start(ctx, old)
	if err != nil {
		return nil, errors.Join(translate(err), d.release(false))
	}
	go d.group.loop()
	d.tending.Go(d.tend)
	if unclean {
		d.tending.Go(func() { // damage may have come with the end
			select {
			case <-d.ctx.Done():
				return
			case <-time.After(10 * time.Second): // those who start with what there is come first
			}
			if err := d.check(d.ctx); err != nil && d.ctx.Err() == nil {
				o.warn(err)
			}
		})
	}
	return d, nil
}

// touch makes a file for its user alone. SQLite gives the files beside a database the same permissions.
func touch(path string, flags int) error {
	f, err := os.OpenFile(path, flags|os.O_RDWR, 0o600)
	if err == nil {
		err = f.Close()
	}
	return err
}

// resolve returns the path of the file that a path names in the end, so that the same database has the same mark whatever it
// is called by.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	return path, err
}

// start opens the connections and reads what there is. It reports whether the database had not been closed.
func (d *fileDB) start(ctx context.Context, old bool) (unclean bool, err error) {
	was, err := d.look(ctx, old, d.mark.text)
	if err != nil {
		return false, err
	}
	if inode, err := lockFile(d.path); err != nil {
		return false, err
	} else if inode != nil {
		d.opened = append(d.opened, inode)
	}
	if d.header, err = os.Open(d.path); err != nil {
		return false, err
	}
	d.opened = append(d.opened, d.header)
	if d.file, err = d.header.Stat(); err != nil {
		return false, err
	}
	if n := vfs.Links(d.file); n > 1 {
		return false, fmt.Errorf("%w: database %s has %d names (hard links), and what was stored last is found by one of them "+
			"only: leave it one", lokt.ErrInvalid, d.path, n)
	}
	if err := rewriteLog(d.path + "-wal"); err != nil {
		return false, unavailable(err)
	}
	// The first has no effect on a database that has tables; the driver runs them in the order of the alphabet.
	if d.write, err = openWriter(ctx, d.path, "rw", "auto_vacuum(INCREMENTAL)", "journal_mode(WAL)", "synchronous(FULL)",
		"cache_size(-8192)", "temp_store(MEMORY)", "trusted_schema(OFF)", "wal_autocheckpoint(0)",
		fmt.Sprintf("journal_size_limit(%d)", logLimit)); err != nil {
		return false, err
	}
	d.opened = append(d.opened, d.write)
	if was.state == nil {
		if err := d.create(); err != nil {
			return false, err
		}
	} else {
		d.state = *was.state
	}
	pages, whole, err := d.write.checkpoint("PASSIVE")
	if err != nil {
		return false, err
	}
	if d.mark.text.Moved = 0; whole {
		d.mark.text.Moved = d.state.Commits
	}
	if d.logged, err = os.Stat(d.path + "-wal"); err != nil {
		return false, err
	}
	if d.index, err = os.Open(d.path + "-shm"); err != nil {
		return false, err
	}
	d.opened = slices.Insert(d.opened, 0, io.Closer(d.index))
	if was.unclean && endsEarly(d.path+"-wal", pages) {
		d.options.warn(errors.New("the log of the database ended early: more of it follows behind its end. After a loss of " +
			"power this is what had not been acknowledged; otherwise the log is damaged"))
	}
	if err := d.begin(was); err != nil {
		return false, err
	}
	return was.unclean, d.openReaders(ctx)
}

// openReaders opens all of them at once, so that none opens another file that has come to the place of this one
// since.
func (d *fileDB) openReaders(ctx context.Context) (err error) {
	if d.read, err = sql.Open("sqlite", dsn(d.path, "rw", "cache_size(-8192)", "temp_store(MEMORY)", "trusted_schema(OFF)")); err != nil {
		return err
	}
	d.opened = append(d.opened, d.read)
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
	unclean bool   // it was not closed, or has been elsewhere: what was not flushed may be missing
	loss    bool   // so may be what was
}

// look looks at a database without changing it, and refuses what is none of lokt, of another version, or less than what was
// acknowledged.
func (d *fileDB) look(ctx context.Context, old bool, mark markText) (f found, err error) {
	log, err := os.Stat(d.path + "-wal")
	logged := err == nil && log.Size() > 0
	if logged {
		if others, _ := othersLog(ctx, d.path); others { // what is wrong with the file, who reads it all will say
			return f, fmt.Errorf("%w: %s is a copy, and beside it is the log of the database that was there before, with which it "+
				"would be mixed: move all files whose names begin so away, and put the copy there again", lokt.ErrInvalid, d.path)
		}
	}
	if f.state, err = d.peek(ctx, "ro"); err != nil {
		return f, err
	}
	if logged && f.state != nil && d.mixed(ctx, f.state, mark) {
		return f, fmt.Errorf("%w: %s and the log beside it are not of one moment, or not of one database, and would be mixed: move the log "+
			"(-wal) away if the file is the one to keep, or else all files whose names begin so, and put one there again that was saved, alone", lokt.ErrInvalid, d.path)
	}
	var lost error
	switch s := f.state; {
	case s == nil && old:
		return f, fmt.Errorf("%w: it is empty, and is not filled", lokt.ErrInvalid)
	case s == nil && (logged || mark.Commits > 0):
		lost = errors.New("the database's file is missing or empty, but not what is beside it: if a new database is " +
			"wanted, remove all files whose names begin as its own")
	case s == nil:
	case s.Backup:
		f.loss = true
	case mark.Database == "":
		d.options.warn(errNoMark)
		f.loss = true
	case mark.Database != s.Database:
		d.options.warn(errors.New("the database is another than the one that was here last: tokens jump"))
		f.loss = true
	case mark.Commits > s.Commits:
		lost = fmt.Errorf("%d changes were acknowledged, and only %d are there: its log was damaged or taken away",
			mark.Commits, s.Commits)
	case !mark.Clean && !logged:
		d.options.warn(errors.New("the log of the database is not there any more; nothing is missing that was in it"))
	}
	if lost != nil && !d.options.AcceptLoss {
		return f, fmt.Errorf("%w: %w; restore a backup, or accept the loss (--accept-loss), and tokens go on far above any "+
			"that were given", lokt.ErrDamaged, lost)
	} else if lost != nil {
		d.options.warn(fmt.Errorf("opened with a loss that was accepted: %w", lost))
	}
	f.unclean = lost != nil || f.state != nil && !mark.Clean
	f.loss = f.loss || d.options.AcceptLoss
	return f, nil
}

// errNoMark is what there is to say about a database without a mark, as copies are.
var errNoMark = errors.New("it has no mark (-mark), so it cannot be told whether something is missing that was acknowledged: tokens jump")

// peek reads what a database says about itself; nil if there is none.
func (d *fileDB) peek(ctx context.Context, access string) (s *state, err error) {
	if info, err := os.Stat(d.path); err != nil {
		return nil, unavailable(err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: it is no regular file", lokt.ErrInvalid)
	} else if info.Size() == 0 {
		return nil, nil
	}
	w, err := openWriter(ctx, d.path, access)
	if err == nil {
		s, err = identify(w)
		err = errors.Join(err, w.Close())
	}
	if code(err)&0xff == sqlite3.SQLITE_READONLY && access == "ro" { // it was being made, which has to be rolled back
		return d.peek(ctx, "rw")
	}
	return s, err
}

func identify(w *writer) (*state, error) {
	var mark, version, tables int64
	if err := w.query("SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "+
		"FROM pragma_application_id, pragma_user_version", nil, func(from row) error {
		return from.Scan(&mark, &version, &tables)
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
		d.state.raise(d.mark.text.highest, map[bool]uint64{false: jumpUnclean, true: jumpLoss}[was.loss])
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
	return unavailable(d.mark.flush())
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
func intact(from row) error {
	var says string
	if err := from.Scan(&says); err != nil || says == "ok" {
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
	return errors.Join(translate(err), d.release(d.suspect == nil && err == nil && present == nil))
}

// release closes what is open, connections first, and gives the kernel locks back.
func (d *fileDB) release(clean bool) (err error) {
	for _, c := range slices.Backward(d.opened) {
		err = errors.Join(err, c.Close())
	}
	d.mark.text.Clean = d.mark.text.Clean || clean && err == nil
	return errors.Join(err, d.mark.close())
}

// reading lends what reads the database as it is at one moment.
func (d *fileDB) reading(ctx context.Context, op string, read func(look) error) (err error) {
	defer func(begin time.Time) { d.options.observe(op, begin, err) }(time.Now())
	if d.ctx.Err() != nil {
		return errClosed
	}
	tx, err := d.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err == nil {
		err = read(func(statement string, args []any, scan func(row) error) error {
			rows, err := tx.QueryContext(ctx, statement, args...) //nolint:rowserrcheck // each looks
			if err != nil {
				return err
			}
			defer func() { _ = rows.Close() }()
			return each(rows, scan)
		})
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

// trimming has something forgotten, and gives some of the file's free pages back.
func (d *fileDB) trimming(ctx context.Context, forget func(execute, time.Time) error) (err error) {
	defer func(begin time.Time) { d.options.observe("trim", begin, err) }(time.Now())
	return d.group.perform(ctx, &request{write: func() error {
		was := d.write.changed
		if err := forget(d.write.exec, d.clock.now()); err != nil || d.write.changed == was {
			return err
		}
		return d.write.script("PRAGMA incremental_vacuum(64)")
	}})
}

// Ping implements backend.
func (d *fileDB) Ping(ctx context.Context) error {
	if err := d.reading(ctx, "ping", func(read look) error {
		return read("SELECT id FROM state", nil, func(row) error { return nil })
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

// tend flushes the mark, has the log moved and the oldest events forgotten, after transactions and until the database is
// closed.
func (d *fileDB) tend() {
	ctx, checkpointed := context.Background(), time.Now()
	for {
		if !d.unmoved.Load() {
			select {
			case <-d.ctx.Done():
				return
			case <-d.stored:
			}
		}
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(markEvery):
		}
		if err := d.mark.flush(); err != nil {
			_ = d.group.perform(ctx, &request{write: func() error { return d.unflushed(err) }})
		}
		if time.Since(checkpointed) >= checkpointEvery {
			checkpointed = time.Now()
			_ = d.trimming(ctx, d.options.forgetLockEvents)
		}
	}
}

// present reports whether the database's file and its log are still where they were opened. What is stored in one
// that was removed or moved away while it is open is lost with the process, or to whoever opens the file that is
// there now.
func (d *fileDB) present() error {
	for path, was := range map[string]os.FileInfo{d.path: d.file, d.path + "-wal": d.logged} {
		now, err := os.Stat(path)
		what := "was replaced"
		switch {
		case errors.Is(err, fs.ErrNotExist):
			what = "is not there any more"
		case err != nil || os.SameFile(now, was): // what else there is to say, reading and writing the file will
			continue
		}
		return fmt.Errorf("%w: %s of database %s %s, so nothing is stored: move it back, or save what it had (loktd backup) "+
			"and restore that", lokt.ErrUnavailable, filepath.Base(path), d.path, what)
	}
	return nil
}

// errCopied is the failure of a database whose file a copy was written over. The log must not be moved into that.
var errCopied = errors.New("something else was written over its file, so nothing is stored: to put a copy in its place, stop the daemon, " +
	"move all files whose names begin so away, and put the copy there again")

// copied reports whether a copy was written over the database's file: it is not in the state in which there is a log, as copies are.
func (d *fileDB) copied() bool {
	state := make([]byte, 2)
	_, err := d.header.ReadAt(state, 18) // https://sqlite.org/fileformat.html: the versions to write and read with
	return errors.Is(err, io.EOF) || err == nil && string(state) == "\x01\x01"
}

// fail makes the database one in which this process stores nothing any more.
func (d *fileDB) fail(err error) error {
	if d.failure == nil {
		d.failure = fmt.Errorf("%w: database %s: %w", lokt.ErrUnavailable, d.path, err)
		close(d.failed)
	}
	return d.failure
}

// unflushed is the failure of a database that could not be flushed.
func (d *fileDB) unflushed(err error) error {
	return d.fail(fmt.Errorf("it could not be flushed to the disk, so nothing is stored until another process has opened it: "+
		"look after the disk, and restart: %w", err))
}

// flushed looks at how something ended that may have flushed a file. After a flush that failed, what was written
// before it may be on the disk or not, and no later flush tells: systems forget what they could not write. SQLite's
// memory of what it has moved into the database's file cannot be relied on any more then, so the connections must not
// even be closed, which would move the rest and remove the log. Only the log itself has everything that was
// acknowledged, and a process that opens it without such a memory moves all of it once more.
func (d *fileDB) flushed(err error) {
	if code(err) == sqlite3.SQLITE_IOERR_FSYNC {
		_ = d.unflushed(err)
	}
}
