package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// maxReaders is how many goroutines read at the same time.
const maxReaders = 4

// dsn returns the driver's name for a file, in which no character of the path means anything else.
func dsn(path, mode string, pragmas ...string) string {
	if path = filepath.ToSlash(path); path[0] != '/' {
		path = "/" + path // a drive
	}
	q := url.Values{"mode": {mode}, "_pragma": append([]string{"busy_timeout(1000)"}, pragmas...)}
	if mode == withoutLog {
		q["mode"], q["immutable"] = []string{"ro"}, []string{"1"}
	}
	return (&url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}).String()
}

// withoutLog is the mode in which nothing is seen but what the database's file itself has.
const withoutLog = "withoutLog"

// writer is the one connection that writes, for one goroutine at a time. It keeps its statements prepared.
type writer struct {
	db    *sql.DB
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	err   error // of the first thing in a transaction that failed: nothing more is written then

	changed int64 // rows, ever
}

func openWriter(ctx context.Context, path, mode string, pragmas ...string) (*writer, error) {
	db, err := sql.Open("sqlite", dsn(path, mode, pragmas...))
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &writer{db: db, conn: conn, stmts: map[string]*sql.Stmt{}}, nil
}

func (w *writer) prepare(statement string) (*sql.Stmt, error) {
	if s := w.stmts[statement]; s != nil {
		return s, nil
	}
	s, err := w.conn.PrepareContext(context.Background(), statement)
	if err == nil {
		w.stmts[statement] = s
	}
	return s, err
}

// exec runs a statement that is worth keeping: an execute.
func (w *writer) exec(statement string, args ...any) (int64, error) {
	s, err := w.prepare(statement) //nolint:sqlclosecheck // it is kept
	if err != nil {
		return 0, err
	}
	done, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	n, err := done.RowsAffected()
	w.changed += n
	return n, err
}

// do runs a statement of a transaction unless an earlier one has failed.
func (w *writer) do(statement string, args ...any) {
	if w.err == nil {
		_, w.err = w.exec(statement, args...)
	}
}

// put inserts or replaces a row.
func (w *writer) put(table, columns string, values ...any) {
	w.do("INSERT OR REPLACE INTO "+table+" ("+columns+") VALUES (?"+strings.Repeat(", ?", len(values)-1)+")", values...)
}

// document is a putter.
func (w *writer) document(into table, key string, v any, columns ...any) {
	d, err := seal(key, v)
	if w.err = cmp.Or(w.err, err); w.err == nil {
		w.put(into.name, into.columns, append(columns, d.text, d.sum)...)
	}
}

// script runs statements that are not.
func (w *writer) script(statements string) error {
	_, err := w.conn.ExecContext(context.Background(), statements)
	return err
}

// query is a look over the connection.
func (w *writer) query(statement string, args []any, scan func(row) error) error {
	s, err := w.prepare(statement) //nolint:sqlclosecheck // it is kept
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(context.Background(), args...) //nolint:rowserrcheck // each looks
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	return each(rows, scan)
}

// checkpoint moves what the log has into the database's file. It returns how many pages that is, and whether it was all.
func (w *writer) checkpoint(mode string) (pages int, whole bool, err error) {
	var busy, moved int
	err = w.query("PRAGMA wal_checkpoint("+mode+")", nil, func(from row) error { return from.Scan(&busy, &pages, &moved) })
	return pages, busy == 0 && moved == pages, err
}

// written returns how many pages the connection has ever written to the log.
func (w *writer) written() (pages int) {
	_ = w.conn.Raw(func(raw any) error {
		if s, ok := raw.(sqlite.DBStatus); ok {
			pages, _, _ = s.Status(sqlite.DBStatusCacheWrite, false)
		}
		return nil
	})
	return pages
}

// Close closes the connection. The last one on a database moves what the log has into the file.
func (w *writer) Close() error {
	for _, s := range w.stmts {
		_ = s.Close()
	}
	_ = w.conn.Close() // it goes back to the pool
	return w.db.Close()
}

// unavailable wraps an error that is not among those that callers tell apart.
func unavailable(err error) error {
	switch {
	case err == nil || errors.Is(err, lokt.ErrUnavailable):
		return err
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: %w: %w", lokt.ErrUnavailable, ErrFull, err)
	}
	return fmt.Errorf("%w: %w", lokt.ErrUnavailable, err)
}

// code returns SQLite's own code of an error, or 0.
func code(err error) int {
	if e, ok := errors.AsType[*sqlite.Error](err); ok {
		return e.Code()
	}
	return 0
}

// translate makes an error of the database one of those that callers tell apart.
func translate(err error) error {
	c := code(err)
	if c == 0 || errors.Is(err, lokt.ErrUnavailable) {
		return err
	}
	switch {
	case c&0xff == sqlite3.SQLITE_CORRUPT, c&0xff == sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: %w: %w; restore a backup", lokt.ErrUnavailable, lokt.ErrDamaged, err)
	case full(err), c == sqlite3.SQLITE_IOERR_SHMSIZE:
		return fmt.Errorf("%w: %w: %w", lokt.ErrUnavailable, ErrFull, err)
	}
	return unavailable(err)
}

// full reports whether an error is that there is no room.
func full(err error) bool { return code(err)&0xff == sqlite3.SQLITE_FULL }

// single reports whether an error is about what one request wanted to store, rather than about the database.
func single(err error) bool {
	if p, ok := errors.AsType[*pgconn.PgError](err); ok { // data exception, integrity constraint violation
		return strings.HasPrefix(p.Code, "22") || strings.HasPrefix(p.Code, "23")
	}
	switch code(err) & 0xff {
	case 0:
		return !errors.Is(err, lokt.ErrUnavailable)
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE:
		return true
	}
	return false
}

// Backup implements backend.
func (d *fileDB) Backup(ctx context.Context, path string) (err error) {
	begin := time.Now()
	defer func() { d.options.observe("backup", begin, err) }()
	if d.ctx.Err() != nil {
		return errClosed
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%w: %s: %w", lokt.ErrInvalid, path, fs.ErrExist)
	}
	path, err = filepath.Abs(path)
	part := path + ".part"
	_ = os.Remove(part)
	if err == nil {
		err = touch(part, os.O_CREATE|os.O_EXCL)
	}
	if err != nil {
		return unavailable(err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	if _, err = d.read.ExecContext(ctx, "VACUUM INTO ?", part); err == nil {
		err = unavailable(finishBackup(ctx, vfs.OS(), part, path))
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	} else if err != nil {
		return translate(fmt.Errorf("backup to %s: %w", path, err))
	}
	return nil
}

// finishBackup marks a copy as such, and gives it its name when it is on the disk. If only the name may not be, the
// copy is left there.
func finishBackup(ctx context.Context, fsys vfs.FS, part, path string) error {
	w, err := openWriter(ctx, part, "rw", "journal_mode(DELETE)", "synchronous(FULL)")
	if err != nil {
		return err
	}
	s, err := readState(w.query)
	if err == nil {
		s.Backup = true
		s.write(w)
	}
	if err := errors.Join(err, w.err, w.Close()); err != nil { // its commit flushed all of the file
		return err
	}
	return atomicfile.Publish(fsys, part, path)
}

// othersLog reports whether the log beside a database's file is not its own: the file is not in the state in which there may be one, as copies are
// until they are opened for the first time.
func othersLog(ctx context.Context, path string) (is bool, err error) {
	w, err := openWriter(ctx, path, withoutLog)
	if err != nil {
		return false, err
	}
	err = w.query("SELECT substr(data, 19, 2) = x'0101' FROM sqlite_dbpage WHERE pgno = 1", nil, func(from row) error { return from.Scan(&is) })
	return is, errors.Join(err, w.Close())
}

// CheckFile reads all of a database of SQLite, which another process may have open, and returns an error that names everything that is
// wrong with it. It takes a while with a large one, and changes nothing.
func CheckFile(ctx context.Context, path string) (err error) {
	if path, err = resolve(path); err != nil {
		return unavailable(err)
	}
	defer func() {
		if c := code(err) & 0xff; c == sqlite3.SQLITE_CANTOPEN || c == sqlite3.SQLITE_READONLY {
			err = fmt.Errorf("%w: SQLite keeps its -wal and -shm beside it, also to read it: check a copy elsewhere if %s is read-only", err, filepath.Dir(path))
		}
	}()
	var said []error
	d := &fileDB{path: path, ctx: ctx, options: Options{Warn: func(err error) {
		if !errors.Is(err, errNoMark) { // copies are checked, too
			said = append(said, err)
		}
	}}}
	mark, err := readMark(path)
	if err == nil {
		_, err = d.look(ctx, true, mark)
	}
	if err != nil {
		return fmt.Errorf("database %s: %w", path, translate(err))
	}
	if d.read, err = sql.Open("sqlite", dsn(path, "ro")); err != nil {
		return err
	}
	err = d.check(ctx)
	return errors.Join(append(said, err, d.read.Close())...)
}

// mostWrong is how much damage is named.
const mostWrong = 100

// check names everything that is wrong with the database: by SQLite's own check, which compares tables and indexes, and then by every
// document's checksum. Everything goes on meanwhile.
func (d *fileDB) check(ctx context.Context) error {
	var wrong []error
	note := func(err error) {
		if err != nil && len(wrong) < mostWrong {
			wrong = append(wrong, fmt.Errorf("%w: %w", lokt.ErrDamaged, err))
		}
	}
	err := d.reading(ctx, "check", func(read look) error {
		if err := read(fmt.Sprintf("PRAGMA integrity_check(%d)", mostWrong), nil, func(from row) error {
			note(intact(from))
			return nil
		}); err != nil {
			return err
		}
		const job = "SELECT 'job ' || j.id, " + fileJobDocument
		for _, statement := range []string{ // what it is, the key of its row, its text, payload and sum
			"SELECT 'what the database says about itself', '" + stateKey + "', doc, '', sum FROM state",
			"SELECT 'lock ' || name, name || ' ' || waiting || ' false', doc, '', sum FROM locks",
			"SELECT 'who waits for lock ' || lock, lock || ' ' || lease_id, doc, '', sum FROM waiters",
			`SELECT 'queue of lock ' || name || ', where some are missing', '', '', '', -1 FROM locks l
				WHERE waiting <> (SELECT count(*) FROM waiters w WHERE w.lock = l.name)`,
			"SELECT 'events of locks' || locks || 'from number ' || first, CAST(first AS TEXT), doc, '', sum FROM lock_events",
			job + " FROM living j", job + " FROM ended j",
			"SELECT 'output of job ' || job, job || ' ' || until, doc, '', sum FROM output",
			"SELECT 'memo ' || id, id, doc, '', sum FROM memos",
			"SELECT 'a statistic', hour || ' ' || source || ' ' || type || ' ' || tag, doc, '', sum FROM statistics",
			"SELECT 'events of jobs from number ' || first, CAST(first AS TEXT), doc, '', sum FROM job_events",
		} {
			err := read(statement, nil, func(from row) error {
				var what, key string
				var d document
				err := from.Scan(&what, &key, &d.text, &d.payload, &d.sum)
				if err == nil && d.sum != checksum([]byte(key), []byte(d.text), []byte(d.payload)) {
					note(fmt.Errorf("%s: %w", strings.ToValidUTF8(what, "?"), errChecksum))
				}
				return err
			})
			if err != nil && (ctx.Err() != nil || code(err) == 0) {
				return err
			}
			note(err) // SQLite cannot read it
		}
		return nil
	})
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("database %s: %w", d.path, errors.Join(wrong...))
	}
	return err
}
