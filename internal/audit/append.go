package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
)

// Append adds the lines to the log in one write, so that neither readers nor other writers come between them. If it fails,
// some of the lines, the first ones, may be in the log; unless the error is ErrNotRotated, which means that all of them are.
// It waits for nobody.
func (l *Log) Append(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if lines[len(lines)-1] != '\n' {
		lines = append(slices.Clip(lines), '\n')
	}
	for attempt := range maxAttempts {
		f, size, err := l.take()
		if err != nil {
			return err
		}
		var notRotated error
		if size > 0 && size+int64(len(lines)) > l.opts.MaxSize && attempt < maxAttempts-1 {
			var moved bool
			moved, notRotated = l.rotate(f.is, int64(len(lines)))
			if moved {
				f.Close()
				continue
			}
		}
		if f.end, err = write(f.File, size, f.end, lines, writeOnce); err != nil {
			f.Close()
		} else {
			err = l.put(f)
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

// take returns the log, open for one write, and its size: the file that the last Append has left open, if it is still the log,
// or else one that is opened. Until it is put back or closed, the file will not be deleted by rotation.
func (l *Log) take() (f *keptFile, size int64, err error) {
	if f := l.kept.Swap(nil); f != nil {
		if locked, err := tryLock(f.File, false); err == nil && locked {
			if size, same := stillAt(l.path(0), f.is); same {
				return f, size, nil
			}
		}
		f.Close()
	}
	opened, fi, err := l.openAppend()
	if err != nil {
		return nil, 0, err
	}
	return &keptFile{opened, fi, 0}, fi.Size(), nil
}

// put lets rotation delete the file again, and keeps it open for the next Append where that can be done.
func (l *Log) put(f *keptFile) error {
	if !keepsOpen || unlock(f.File) != nil || !l.kept.CompareAndSwap(nil, f) {
		return f.Close()
	}
	if l.closed.Load() {
		return l.Close()
	}
	return nil
}

// Close closes the file that Append has left open for the next one. Appending to a closed log opens and closes it each time.
func (l *Log) Close() error {
	l.closed.Store(true)
	if f := l.kept.Swap(nil); f != nil {
		return f.Close()
	}
	return nil
}

// openAppend opens the log for one write. Until it is closed, the file will not be deleted by rotation.
func (l *Log) openAppend() (*os.File, fs.FileInfo, error) {
	const flags = os.O_RDWR | os.O_APPEND | os.O_CREATE
	for attempt := 1; ; attempt++ {
		f, err := openAny(l.path(0), flags)
		if errors.Is(err, fs.ErrNotExist) && attempt == 1 {
			if err = os.MkdirAll(l.dir, 0o700); err == nil {
				continue
			}
		}
		if err != nil {
			return nil, nil, err
		}
		// A foreign program may lock the file for as long as it likes, so this does not go on for ever.
		fi, pinned, err := pin(f)
		if err == nil && !fi.Mode().IsRegular() {
			err = notRegular(l.path(0), fi)
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

// pin keeps rotation from deleting the open file until it is closed. It reports false if that has happened or is about to.
func pin(f *os.File) (fs.FileInfo, bool, error) {
	locked, lockErr := tryLock(f, false)
	fi, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	return fi, (locked || lockErr != nil) && !unlinked(f, fi), nil // a file system without locks has to do without
}

// write adds the lines to the file, which had the size when it was opened, and returns where they end, or 0 if that is not
// known. If a crashed writer has left a line without end there, that line gets its end first, unless what ends at the size is
// known to be whole. The function once is writeOnce.
func write(f *os.File, size, whole int64, lines []byte, once func(*os.File, []byte) (int, error)) (end int64, err error) {
	torn := false
	if size != whole {
		if torn, err = tornAt(f, size); err != nil {
			return 0, err
		}
	}
	for range 3 {
		b := lines
		if torn {
			b = slices.Concat([]byte{'\n'}, lines)
		}
		n, err := once(f, b)
		if err != nil {
			return 0, err
		}
		if n < len(b) { // begin again with the line that was cut
			done := max(n-(len(b)-len(lines)), 0)
			if lines[done] != '\n' { // or else only its end is missing, which comes first now
				done = bytes.LastIndexByte(lines[:done], '\n')
			}
			lines, torn = lines[done+1:], true
			continue
		}
		if torn || !appendMovesOffset {
			return 0, nil
		}
		end, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return 0, nil
		}
		if end-int64(len(b)) == size {
			return end, nil
		}
		// Others have written since size was read. If the last of them crashed halfway, it took the first line with it.
		if torn, err = tornAt(f, end-int64(len(b))); err != nil || !torn {
			return end, nil
		}
		lines = lines[:bytes.IndexByte(lines, '\n')+1]
	}
	return 0, &fs.PathError{Op: "write", Path: f.Name(), Err: io.ErrShortWrite}
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
