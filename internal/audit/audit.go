// Package audit is the append-only log of what happened to locks, and the questions asked of it.
//
// A log is the file audit.log in a directory: one JSON object per line, oldest first. When it grows past a size it
// becomes audit.log.1, what was audit.log.1 becomes audit.log.2, and so on up to a bounded number; the oldest is
// deleted.
//
// Any number of processes append to and read one log without a daemon and without waiting for each other. What holds:
//
//   - An entry whose Append returned nil is in the log exactly once, whole and on a line of its own, until the file it
//     is in is the oldest and is deleted. It survives the death of the process, but nothing is flushed to the disk: a power failure
//     may take the newest entries.
//   - Entries that were appended one after another are read in that order, rotation or not. Those appended at the
//     same time are read in either order.
//   - A reader gets each entry once, whatever is rotated while it reads, and what it cannot read is reported, never
//     silently passed over. What is rotated out of existence between two looks is lost to a follower.
//
// This takes a file system with atomic appends and flock semantics, which local ones are and network ones may not be.
package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// MaxSize is how many bytes no file of the log exceeds, unless a single Append does.
const MaxSize = 10 << 20

const (
	fileName = "audit.log"
	lockName = "audit.lock" // held while rotating; made by the first rotation
)

// ErrNotRegular means that something other than a regular file with one name stands where a file of the log belongs.
// It is neither followed nor written.
var ErrNotRegular = errors.New("not a regular file")

// ErrNotRotated means that the log has outgrown its size and could not be rotated. The lines have been written all the
// same.
var ErrNotRotated = errors.New("audit log could not be rotated")

// Log is an audit log. It may be used by several goroutines at once, and keeps nothing open.
type Log struct {
	dir     string
	maxSize int64
	keep    int           // rotated files beside audit.log
	most    int64         // bytes of each file that are read: its last ones
	poll    time.Duration // how often a follower looks for new entries
}

// Open returns the log in the directory. It touches nothing: the directory (0700) and the log (0600) are made by the
// first Append, and reading a log that does not exist finds no entries.
func Open(dir string) *Log {
	return &Log{dir: dir, maxSize: MaxSize, keep: 5, most: maxRead, poll: 200 * time.Millisecond}
}

// Ends returns the log of which only so many bytes at the end of each file are read.
func (l Log) Ends(bytes int64) *Log {
	l.most = bytes
	return &l
}

// Path returns the path of the file that entries are appended to.
func (l *Log) Path() string { return l.path(0) }

// path returns the path of the i-th file, counted from the newest.
func (l *Log) path(i int) string {
	p := filepath.Join(l.dir, fileName)
	if i > 0 {
		p += "." + strconv.Itoa(i)
	}
	return p
}

// openRegular opens the file, which is ErrNotRegular if it is a link, a directory, a pipe or a device.
func openRegular(path string, flag int) (*os.File, fs.FileInfo, error) {
	f, err := openFile(path, flag)
	if err != nil {
		if fi, lerr := os.Lstat(path); lerr == nil && !fi.Mode().IsRegular() {
			err = fmt.Errorf("%s: %w", path, ErrNotRegular)
		}
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, ErrNotRegular)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}
