package audit

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// rotate moves audit.log out of the way of n more bytes, provided that it still is the file fi. It reports whether
// audit.log is another file now, whoever did it. If it is not and there is no error, somebody else is at it, or a
// writer still has the file open that would be deleted: a later Append will do.
func (l *Log) rotate(fi fs.FileInfo, n int64) (moved bool, err error) {
	lock, _, err := openRegular(filepath.Join(l.dir, lockName), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if mine, err := tryLock(lock, true); !mine {
		return false, err
	}
	switch now, err := os.Lstat(l.path(0)); {
	case errors.Is(err, fs.ErrNotExist):
		return true, nil
	case err != nil:
		return false, err
	case !os.SameFile(now, fi):
		return true, nil
	case now.Size()+n <= l.maxSize: // truncated
		return true, nil
	}
	// The files move up into the first gap, so that a rotation that was cut short costs none.
	gap := 1
	for gap < l.keep && exists(l.path(gap)) {
		gap++
	}
	unpin, idle := l.idle(gap)
	if !idle {
		return false, nil
	}
	defer unpin()
	for i := gap; i > 0; i-- {
		if err := os.Rename(l.path(i-1), l.path(i)); err != nil && (i == 1 || !errors.Is(err, fs.ErrNotExist)) {
			return false, err
		}
	}
	return true, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// idle reports whether no writer is about to write to the i-th file, and sees to it that none will be until the
// returned function is called: writers then find the file deleted and open the log again.
func (l *Log) idle(i int) (unpin func(), idle bool) {
	f, _, err := openRegular(l.path(i), os.O_RDWR)
	if err != nil {
		return func() {}, true // nothing there, or nothing that a writer could have open
	}
	if locked, err := tryLock(f, true); !locked && err == nil {
		f.Close()
		return nil, false
	}
	return func() { f.Close() }, true
}
