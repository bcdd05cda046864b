package sqlstore

// Room that is kept for when the disk is full: a file beside the database, which is given up then, so that what ends or frees something can
// still be stored, and the database be opened.

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// How large the reserve is, by how much it is given up at a time, how much room there must be beside it before it is made, and how often that
// is looked at.
const (
	reserveSize   = 1 << 20
	reserveStep   = 128 << 10
	reserveMargin = 1 << 20
	reserveAgain  = 2 * time.Second
)

// reserveSuffix is what its name has after that of the database.
const reserveSuffix = ".reserve"

// ErrFull is wrapped by the errors of a database of SQLite for which there is no room on the disk.
var ErrFull = errors.New("the disk is full: make room")

// errReserve says that the reserve is being used up.
var errReserve = fmt.Errorf("%w; the room that was kept for that is being used, and only what ends something can be relied on to be stored", ErrFull)

// reserve is the file. That it cannot be made is no error: then there is none.
type reserve struct {
	path   string
	size   int64     // of it
	given  bool      // some of it was given up
	looked time.Time // when it was seen to
	barred bool      // something else has its name
}

// reserveOf returns what there is of a database's reserve.
func reserveOf(path string) *reserve {
	r := &reserve{path: path + reserveSuffix}
	r.look()
	return r
}

// look finds out what there is of it: somebody may have removed it, or cut it off, or put something else there.
func (r *reserve) look() {
	info, err := os.Lstat(r.path)
	r.size, r.barred = 0, err == nil && !reserves(info)
	if err == nil && !r.barred {
		r.size = info.Size()
	}
}

// fill makes the reserve, or what is missing of it, if there is room for more than that. What is written is such that no file system keeps it in
// less room. It reports whether something was missing that is there now.
func (r *reserve) fill(opening bool) bool {
	r.look()
	r.looked = time.Now()
	missing := reserveSize - r.size
	if missing <= 0 || r.barred {
		return false
	}
	if free, known := space(filepath.Dir(r.path)); known && free < missing+reserveMargin || !known && !opening {
		return false
	}
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return false
	}
	noise := make([]byte, missing)
	_, _ = rand.Read(noise)
	if _, err = f.WriteAt(noise, r.size); err != nil {
		_ = f.Truncate(r.size)
	}
	if err = errors.Join(err, f.Close()); err == nil {
		r.size = reserveSize
	}
	return err == nil
}

// keep adds to the reserve so much as is missing of it, or as there is room for, but no more than that.
func (r *reserve) keep(bytes int64) {
	r.look()
	if bytes = min(bytes, reserveSize-r.size); bytes <= 0 || r.barred {
		return
	}
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return
	}
	noise := make([]byte, bytes)
	_, _ = rand.Read(noise)
	_, _ = f.WriteAt(noise, r.size)
	_ = f.Close()
}

// closing closes the connection that writes, which gives back the room of the log of transactions. What is missing of the reserve is taken from
// that, so that the database can be opened again though the disk stays full.
func (d *fileDB) closing() error {
	before, _ := space(filepath.Dir(d.path))
	err := d.writer.close()
	if after, known := space(filepath.Dir(d.path)); known && d.reserve != nil {
		d.reserve.keep(after - before)
	}
	return err
}

// give gives up so much of the reserve, and reports whether there was any.
func (r *reserve) give(bytes int64) bool {
	if r.look(); r.size == 0 {
		return false
	}
	r.size = max(r.size-bytes, 0)
	if os.Truncate(r.path, r.size) != nil {
		r.size = 0
		return os.Remove(r.path) == nil // it is somebody else's, who opened the database once
	}
	return true
}

// useReserve stores a batch for which there was no room in what the reserve gives up for it. What was not needed is taken back before others
// who fill the disk take it, or the log of transactions does.
func (d *fileDB) useReserve(ctx context.Context, b *batch, err error) error {
	given := int64(0)
	for isCramped(err) && !b.fold && !b.foldLocks && b.ends() && d.giveReserve(reserveStep) {
		given += reserveStep
		if e := d.move(ctx); d.failure != nil { // the log may start over now
			return e
		}
		err = d.storeAgain(ctx, b)
	}
	if given > 0 {
		d.reserve.keep(given)
	}
	return err
}

// refuses reports whether a batch must leave to others what the reserve gave up: it is of what is new, and on the disk there is no more than that.
func (d *fileDB) refuses(b *batch) bool {
	if !d.reserve.given || len(b.locks)+len(b.jobs)+len(b.told) == 0 || b.ends() {
		return false
	}
	free, known := space(filepath.Dir(d.path))
	return known && free < 2*reserveStep
}

// giveReserve gives up so much of the reserve, reports whether there was any, and tells of the first time.
func (d *fileDB) giveReserve(bytes int64) bool {
	if d.reserve == nil || !d.reserve.give(bytes) {
		return false
	}
	if !d.reserve.given {
		d.reserve.given = true
		d.observe("reserve", time.Now(), errReserve)
	}
	return true
}

// reserved implements backend.
func (d *fileDB) reserved() int64 {
	if info, err := os.Lstat(d.path + reserveSuffix); err == nil && reserves(info) {
		return info.Size()
	}
	return 0
}

// reserves reports whether a file is one in which room is kept.
func reserves(info os.FileInfo) bool {
	return info.Mode().IsRegular() && info.Size() <= reserveSize
}

// fillReserve makes the reserve again when there is room.
func (d *fileDB) fillReserve() {
	r := d.reserve
	if time.Since(r.looked) < reserveAgain {
		return
	}
	if made := r.fill(false); r.given && (made || r.spare()) {
		r.given = false
		d.observe("reserve", r.looked, nil)
	}
}

// spare reports whether nothing of the reserve is missing and there is room beside it. It may be so though some was given up: what was not
// needed of that is taken back at once.
func (r *reserve) spare() bool {
	free, known := space(filepath.Dir(r.path))
	return r.size >= reserveSize && known && free >= reserveMargin
}

// ends reports whether all that a batch changes ends, frees or keeps something.
func (b *batch) ends() bool {
	for name, e := range b.locks {
		is, was := &e.lock, &b.were[name].lock
		if len(is.Holders) > len(was.Holders) || len(is.Queue) > len(was.Queue) || is.Freeze != nil && was.Freeze == nil {
			return false
		}
	}
	for _, c := range b.jobs {
		if !endsJobs(c) {
			return false
		}
	}
	if len(b.locks)+len(b.jobs) > 0 {
		return len(b.writes) == 0
	}
	for _, told := range b.told { // who gives back what is not there any more, such as for the second time, is to be told so
		if slices.ContainsFunc(told, func(e lokt.Event) bool { return e.Type != lokt.EventMismatch && e.Type != lokt.EventRenewFail }) {
			return false
		}
	}
	return len(b.told) > 0 && len(b.writes) == 0
}

// endsJobs reports whether a turn ended something, or added and granted nothing.
func endsJobs(c *jobs.Changes) bool {
	if len(c.Ended)+len(c.Unleased) > 0 {
		return true
	}
	for i := range c.Events {
		if t := c.Events[i].Type; t == jobs.EventSubmit || t == jobs.EventGrant {
			return false
		}
	}
	return !c.Refrozen
}

// lacksRoom reports whether a database at the path may not have been opened because the disk is full. SQLite calls that by many names.
func lacksRoom(err error, path string) bool {
	if full(err) {
		return true // however much is free by now, after what there was room for was taken back
	}
	if free, known := space(filepath.Dir(path)); err == nil || known && free >= reserveMargin {
		return false
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return errors.Is(err, syscall.ENOSPC)
	}
	switch e.Code() {
	case sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC:
		return false
	}
	kind := e.Code() & 0xff
	return kind == sqlite3.SQLITE_CANTOPEN || kind == sqlite3.SQLITE_IOERR
}
