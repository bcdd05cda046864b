package sqlstore

// What the log of transactions has is moved into the database's file here, and what is done when the system says that it could
// not flush one of them.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/lokt-dev/lokt"
)

// Bounds on the log, in pages of it that were written since the last time that all of it was in the database's file.
const (
	checkpointPages = 4000
	checkpointAgain = 1000 // pages more, after somebody who reads was in the way
)

// written returns how many pages the connection has ever written to the log.
func (c *conn) written() int {
	s, ok := c.raw.(sqlite.DBStatus)
	if !ok {
		return 0
	}
	n, _, err := s.Status(sqlite.DBStatusCacheWrite, false)
	if err != nil {
		return 0
	}
	return n
}

// checkpoint moves what the log has into the database's file when it is long. SQLite would do that by itself, and keep quiet
// about what fails.
func (d *fileDB) checkpoint(ctx context.Context) {
	if d.writer.written()-d.moved >= d.checkpointAt {
		_ = d.move(ctx) // it is tried again
	}
}

// move moves what the log has into the database's file.
func (d *fileDB) move(ctx context.Context) error {
	written := d.writer.written()
	begin := time.Now()
	var busy, pages, moved int64
	err := d.writer.query(ctx, "PRAGMA wal_checkpoint(PASSIVE)", nil, func(r *row) error {
		busy, pages, moved = r.number(), r.number(), r.number()
		return nil
	})
	d.observe("checkpoint", begin, err)
	d.flushed(err)
	d.moved = written
	if err != nil || busy != 0 || moved < pages {
		d.moved -= max(d.checkpointAt-checkpointAgain, d.checkpointAt/2)
	}
	return err
}

// extendBy is by how much the log is made longer when it has grown, and extendTo up to which size: where it starts over.
const (
	extendBy = 512 << 10
	extendTo = checkpointPages * (4096 + 24)
)

// extend makes the log longer, by zeros, when a transaction has made it longer. To flush a file that has become longer takes twice as long as
// one in which something was overwritten, so one transaction in many shall do that. To SQLite, whose log keeps its length when it
// starts over, zeros at its end are as good as nothing: they are no frame, and are written over.
func (d *fileDB) extend() {
	if d.log == nil {
		var err error
		if d.log, err = os.OpenFile(d.path+"-wal", os.O_RDWR, 0); err != nil {
			d.log = nil // then it is as long as it is
			return
		}
	}
	// Not with Stat: systems note a time anew with every write to a file after somebody asked for its times, which one more write to the
	// disk is needed for when it is flushed (Linux since 6.13: Documentation/filesystems/multigrain-ts.rst).
	size, err := d.log.Seek(0, io.SeekEnd)
	if err != nil || size == d.extended {
		return
	}
	d.extended = size
	if d.extended == 0 || d.extended >= extendTo {
		return
	}
	n, _ := d.log.WriteAt(make([]byte, extendBy), d.extended) // if there is no room for it, there may be for what is needed
	d.extended += int64(n)
}

// flushed looks at how something ended that may have flushed a file. After a flush that failed, what was written before it may be on
// the disk or not, and no later flush tells: systems forget what they could not write. SQLite's memory of what it has moved
// into the database's file cannot be relied on any more then, so the connections must not even be closed, which would move
// the rest and remove the log. Only the log itself has everything that was acknowledged, and a process that opens it without such a memory
// moves all of it once more. So nothing is stored any more.
func (d *fileDB) flushed(err error) {
	var e *sqlite.Error
	if d.failure != nil || !errors.As(err, &e) || e.Code() != sqlite3.SQLITE_IOERR_FSYNC {
		return
	}
	d.failure = fmt.Errorf("%w: database %s could not be flushed to the disk, so nothing is stored until another process has opened it: "+
		"look after the disk, and restart: %w", lokt.ErrUnavailable, d.path, err)
	close(d.failed)
}

// rewriteFile writes a file, if there is one, with what it has, and flushes it. What an earlier process wrote and a system could not flush
// is read from memory by who comes next as if it were on the disk, and is not flushed by flushing: only what is written again is.
func rewriteFile(path string) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		n, err := f.ReadAt(buf, at)
		if n == 0 && errors.Is(err, io.EOF) {
			break
		} else if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if _, err := f.WriteAt(buf[:n], at); err != nil {
			return err
		}
		at += int64(n)
	}
	return f.Sync()
}
