package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/lokt-dev/lokt/internal/vfs"
)

// Append adds the lines to the log in one write, so that neither readers nor other writers come between them. If it
// fails, some of the lines, the first ones, may be in the log; unless the error is ErrNotRotated, which means that all
// of them are. It waits for nobody.
func (l *Log) Append(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if lines[len(lines)-1] != '\n' {
		lines = append(slices.Clip(lines), '\n')
	}
	for attempt := range maxAttempts {
		f, fi, err := l.openAppend()
		if err != nil {
			return err
		}
		var notRotated error
		if fi.Size() > 0 && fi.Size()+int64(len(lines)) > l.maxSize && attempt < maxAttempts-1 {
			var moved bool
			moved, notRotated = l.rotate(fi, int64(len(lines)))
			if moved {
				f.Close()
				continue
			}
		}
		err = write(f, lines, writeOnce)
		if e := f.Close(); err == nil {
			err = e
		}
		switch {
		case err != nil:
			return err
		case notRotated != nil:
			return fmt.Errorf("%w: %w", ErrNotRotated, notRotated)
		}
		return nil
	}
	panic("unreachable: the last attempt does not rotate")
}

// maxAttempts bounds how often one Append opens the log, each time to find it rotated by others.
const maxAttempts = 20

// openAppend opens the log for one write. Until it is closed, the file will not be deleted by rotation.
func (l *Log) openAppend() (*os.File, fs.FileInfo, error) {
	const flags = os.O_RDWR | os.O_APPEND | os.O_CREATE
	for attempt := 1; ; attempt++ {
		f, _, err := openRegular(l.path(0), flags)
		if errors.Is(err, fs.ErrNotExist) && attempt == 1 {
			if err = vfs.MkdirAll(l.dir, 0o700); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, nil, err
		}
		// A foreign program may lock the file for as long as it likes, so this does not go on for ever.
		fi, pinned, err := pin(f)
		if err == nil && vfs.Links(fi) > 1 { // what is appended would show under the other name, wherever that is
			err = fmt.Errorf("%s has another name, a hard link: %w", l.path(0), ErrNotRegular)
		}
		if err == nil && (pinned || attempt >= maxAttempts) {
			return f, fi, nil
		}
		f.Close()
		if err != nil {
			return nil, nil, err
		}
	}
}

// pin keeps rotation from deleting the open file until it is closed. It reports false if that has happened or is about
// to.
func pin(f *os.File) (fs.FileInfo, bool, error) {
	locked, lockErr := tryLock(f, false)
	fi, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	return fi, (locked || lockErr != nil) && !unlinked(fi), nil // a file system without locks has to do without
}

// write adds the lines to the end of the file. The function once is writeOnce.
//
// A crashed writer may have left a line without end there, which takes the first of these lines with it: that one is
// then written again. Whether it is so can be told only afterwards, when the system has let this write follow all that
// were under way: what was there before may have been half of another's.
func write(f *os.File, lines []byte, once func(*os.File, []byte) (int, error)) error {
	cut := false // this write left a line without end itself
	for range 4 {
		b := lines
		if cut {
			b = slices.Concat([]byte{'\n'}, lines)
		}
		n, err := once(f, b)
		if err != nil {
			return err
		}
		if n < len(b) { // begin again with the line that was cut
			done := max(n-(len(b)-len(lines)), 0)
			if lines[done] != '\n' { // or else only its end is missing, which comes first now
				done = bytes.LastIndexByte(lines[:done], '\n')
			}
			lines, cut = lines[done+1:], true
			continue
		}
		if cut {
			return nil
		}
		end, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil
		}
		if torn, err := tornAt(f, end-int64(len(b))); err != nil || !torn {
			return nil
		}
		lines = lines[:bytes.IndexByte(lines, '\n')+1]
	}
	return &fs.PathError{Op: "write", Path: f.Name(), Err: io.ErrShortWrite}
}

// tornAt reports whether what ends at the offset is not a whole line.
func tornAt(f *os.File, off int64) (bool, error) {
	if off == 0 {
		return false, nil
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], off-1); err != nil {
		if errors.Is(err, io.EOF) { // truncated meanwhile
			return false, nil
		}
		return false, err
	}
	return b[0] != '\n', nil
}
