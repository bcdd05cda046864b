package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/vfs"
)

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
	part := path + ".part"
	_ = os.Remove(part)
	if err := touch(part, os.O_CREATE|os.O_EXCL); err != nil {
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

// CheckFile does what DB.Check does for a database of SQLite that another process may have open, and changes nothing.
func CheckFile(ctx context.Context, path string) (err error) {
	if path, err = resolve(path); err != nil {
		return unavailable(err)
	}
	var said []error
	d := &fileDB{path: path, ctx: ctx, options: Options{Warn: func(err error) { said = append(said, err) }}}
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
	err = d.Check(ctx)
	return errors.Join(append(said, err, d.read.Close())...)
}

// Check implements backend: SQLite's own check, which compares tables and indexes, and then every document's
// checksum.
func (d *fileDB) Check(ctx context.Context) error {
	var wrong wrongs
	return wrong.err(d.path, d.reading(ctx, "check", func(read look) error {
		if err := read(fmt.Sprintf("PRAGMA integrity_check(%d)", mostWrong), nil, func(from row) error {
			wrong.note(intact(from))
			return nil
		}); err != nil {
			return err
		}
		const job = "SELECT 'job ' || j.id, " + fileJobDocument
		return wrong.check(ctx, read,
			"SELECT 'what the database says about itself', '"+stateKey+"', doc, '', sum FROM state",
			"SELECT 'lock ' || name, name || ' ' || waiting || ' false', doc, '', sum FROM locks",
			"SELECT 'events of locks' || locks || 'from number ' || first, CAST(first AS TEXT), doc, '', sum FROM lock_events",
			job+" FROM living j", job+" FROM ended j")
	}))
}
