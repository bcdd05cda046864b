package sqlstore

// The log of SQLite (-wal): whether it is whole, and whether it is of the file beside it.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// mixed reports whether a database's file, without its log, is not the one that the log is of: another database's, less than was
// moved into it, more than the log has, or less than there was when the log began. What is still being moved into it says no less
// than before.
func (d *fileDB) mixed(ctx context.Context, s *state, mark markText) bool {
	file, err := d.peek(ctx, withoutLog)
	if file == nil {
		file = &state{Backup: true} // all is in the log
	}
	return err == nil && (file.Database != s.Database && !file.Backup || mark.Database == s.Database && file.Commits < mark.Moved ||
		file.Commits > s.Commits || firstCommit(d.path+"-wal", s.Database) > file.Commits+1)
}

// firstCommit returns the lowest number of a commit of the database that is in the pages of a log's first transaction: its own, or one
// before it of which a page has remains; 0 if there is none. It looks for the document of a state, which nobody else's text is like.
func firstCommit(path, database string) (first uint64) {
	log, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = log.Close() }()
	header, page := make([]byte, logHeader), make([]byte, logFrame)
	_, err = log.ReadAt(header, 0)
	for at := int64(logHeader); err == nil && binary.BigEndian.Uint32(page[4:]) == 0; at += logFrame {
		if _, err = log.ReadAt(page, at); err != nil || !ofLog(header, page) {
			break
		}
		for _, text := range bytes.Split(page, fmt.Appendf(nil, `{"database":%q,"commits":`, database))[1:] {
			var n uint64
			if _, e := fmt.Sscanf(string(text[:min(len(text), 20)]), "%d", &n); e == nil && (first == 0 || n < first) {
				first = n
			}
		}
	}
	return first
}

// errCut is the failure of a database whose log was cut off.
var errCut = errors.New("its log was cut off while it was open, so nothing is stored: restore a backup")

// cut reports whether the log is shorter than its index says. https://sqlite.org/walformat.html has that at 16, as this machine writes numbers.
func (d *fileDB) cut() bool {
	frames := make([]byte, 4)
	_, err := d.index.ReadAt(frames, 16)
	now, e := os.Stat(d.path + "-wal")
	return err == nil && e == nil && now.Size() < int64(binary.NativeEndian.Uint32(frames))*logFrame
}

// endsEarly reports whether a log of SQLite goes on behind its end, which is after so many pages: there are others of the same
// log that end a transaction. Such pages are left by a damaged log; but also by a loss of power, when the end of a
// transaction that nobody was told of came to the disk before its beginning. It looks no further than a log is left long.
func endsEarly(path string, pages int) bool {
	log, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = log.Close() }()
	header, frame := make([]byte, logHeader), make([]byte, 24)
	_, err = log.ReadAt(header, 0)
	begin := logHeader + int64(pages)*logFrame
	for at := begin; err == nil && at < begin+16*logLimit; at += logFrame {
		_, err = log.ReadAt(frame, at)
		if err == nil && ofLog(header, frame) && binary.BigEndian.Uint32(frame[4:]) != 0 {
			return true
		}
	}
	return false
}

// ofLog reports whether a page in a log is of the log that has the header, and none that was left by an earlier one.
func ofLog(header, frame []byte) bool { return bytes.Equal(frame[8:16], header[16:24]) }

// How long the log's header is, and a page in the log with what the log says about it, and to what it is cut off when it begins
// anew. https://www.sqlite.org/fileformat2.html#the_write_ahead_log
const (
	logHeader = 32
	logFrame  = 4096 + 24
	logLimit  = 64 << 20
)

// rewriteLog writes a log, if there is one, with what it has, and flushes it. What an earlier process wrote and a
// system could not flush is read from memory by who comes next as if it were on the disk, and is not flushed by
// flushing: only what is written again is. What is behind the log's end, however long that is, is of no use to anybody.
func rewriteLog(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	header, pages := make([]byte, logHeader), make([]byte, 256*logFrame)
	if _, err = f.ReadAt(header, 0); err == nil {
		_, err = f.WriteAt(header, 0)
	}
	for at, whole := int64(logHeader), true; err == nil && whole; at += int64(len(pages)) {
		var n, end int
		for n, err = f.ReadAt(pages, at); end+logFrame <= n && ofLog(header, pages[end:]); {
			end += logFrame
		}
		_, e := f.WriteAt(pages[:end], at)
		whole, err = end == len(pages), cmp.Or(e, err)
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
