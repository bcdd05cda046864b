package sqlstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/lokt-dev/lokt"
)

// sideFile is the kernel lock that a process has on a database: on a file beside it, which says whose it is. The file
// stays when the lock is given back. Nobody removes it, because whoever did could lock another file than who comes
// next.
type sideFile struct{ lock *flock.Flock }

// patience is how long a second process waits for the first to end.
const patience = 500 * time.Millisecond

// lockBeside takes the kernel lock for the database. If another process has it, the error wraps lokt.ErrUnavailable
// and says which.
func lockBeside(path, describe string) (*sideFile, error) {
	side := path + ".lock"
	s := &sideFile{flock.New(side, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600))}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if got, err := s.lock.TryLock(); err != nil {
			return nil, fmt.Errorf("%w: lock %s: %w", lokt.ErrUnavailable, side, err)
		} else if got {
			break
		}
		if time.Now().After(end) {
			_ = s.lock.Close()
			return nil, fmt.Errorf("%w: database %s is in use by %s", lokt.ErrUnavailable, path, inscription(side))
		}
	}
	who := strings.Map(func(r rune) rune { return max(r, ' ') }, fmt.Sprintf("process %d %s", os.Getpid(), describe))
	if err := s.inscribe(strings.TrimSpace(who)); err != nil {
		return nil, errors.Join(unavailable(err), s.close())
	}
	return s, nil
}

// inscribe writes whose the database is. The first byte of the file says nothing: where locks are mandatory, others
// cannot read it.
func (s *sideFile) inscribe(who string) error {
	return os.WriteFile(s.lock.Path(), []byte(" "+who+"\n"), 0o600)
}

// inscription reads who has a database.
func inscription(side string) string {
	b := make([]byte, 1024)
	if f, err := os.Open(side); err == nil {
		n, _ := f.ReadAt(b, 1)
		b = b[:n]
		_ = f.Close()
	}
	if who := strings.Trim(string(b), "\x00\n "); who != "" {
		return who
	}
	return "another process"
}

func (s *sideFile) close() error {
	return errors.Join(s.inscribe(""), s.lock.Close()) // whose it was is of no use to the next who reads it
}

// resolve returns the path of the file that a path names in the end, whether that exists or not, so that the same
// database has the same side file whatever it is called by.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	for range 40 { // as many links as kernels follow
		if err != nil {
			return "", err
		}
		if real, err := filepath.EvalSymlinks(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return real, err
		}
		dir, base := filepath.Split(path)
		if dir, err = filepath.EvalSymlinks(dir); errors.Is(err, fs.ErrNotExist) {
			return path, nil // its directory is yet to be made
		}
		path = filepath.Join(dir, base)
		to, e := os.Readlink(path)
		if e != nil {
			return path, err
		}
		if path = to; !filepath.IsAbs(to) {
			path = filepath.Join(dir, to)
		}
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}
