package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// Backup implements backend.
func (d *fileDB) Backup(ctx context.Context, path string) (err error) {
	begin := time.Now()
	defer func() { d.observe("backup", begin, err) }()
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%w: %s: %w", lokt.ErrInvalid, path, fs.ErrExist)
	}
	part := path + ".part"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unavailable(err)
	}
	if err := touch(part); err != nil {
		return unavailable(err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	c, err := d.borrow(ctx)
	if err != nil {
		return err
	}
	err = c.once(ctx, "PRAGMA query_only = OFF")
	if err == nil {
		err = c.once(ctx, "VACUUM INTO ?", part)
	}
	err = errors.Join(err, c.once(context.WithoutCancel(ctx), "PRAGMA query_only = ON"))
	d.giveBack(c)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return translate(fmt.Errorf("backup to %s: %w", path, err))
	}
	if err := finish(vfs.OS(), part, path); err != nil {
		return translate(unavailable(fmt.Errorf("backup to %s: %w", path, err)))
	}
	return nil
}

// finish marks a copy as such, and gives it its name when it is on the disk. If only the name may not be, the copy is left there.
func finish(fsys vfs.FS, part, path string) error {
	full, err := filepath.Abs(part)
	if err != nil {
		return err
	}
	c, err := dial(dsn(full), "PRAGMA journal_mode = DELETE", "PRAGMA synchronous = FULL", "UPDATE state SET backup = 1")
	if err != nil {
		return err
	}
	if err := c.close(); err != nil {
		return err
	}
	f, err := os.Open(part)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return atomicfile.Publish(fsys, part, path)
}

// Check implements backend.
func (d *fileDB) Check(ctx context.Context) error {
	return d.reading(ctx, "check", func(q querier) error {
		return q.query(ctx, "PRAGMA integrity_check(10)", nil, func(r *row) error {
			if s := r.text(); s != "ok" {
				return fmt.Errorf("%w: database %s: %s", lokt.ErrDamaged, d.path, s)
			}
			return nil
		})
	})
}

// dsn returns the driver's name for a file, in which no character of the path means anything else.
func dsn(path string) string {
	if path = filepath.ToSlash(path); path[0] != '/' {
		path = "/" + path // a drive
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}
