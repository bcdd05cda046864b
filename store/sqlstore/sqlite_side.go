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

// sideFile is the kernel lock that a process has on a database: on a file beside it, which says whose it is. The file stays
// when the lock is given back. Nobody removes it, because whoever did could lock another file than who comes next.
type sideFile struct{ lock *flock.Flock }

// patience is how long a second process waits for the first to end.
const patience = 500 * time.Millisecond

// lockBeside takes the kernel lock for the database. The error, if another process has it, wraps lokt.ErrUnavailable and
// says which.
func lockBeside(path, describe string) (*sideFile, error) {
	side := path + ".lock"
	lock := flock.New(side, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600))
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		got, err := lock.TryLock()
		if err != nil {
			return nil, fmt.Errorf("%w: lock %s: %w", lokt.ErrUnavailable, side, err)
		}
		if got {
			break
		}
		if time.Now().After(end) {
			_ = lock.Close()
			return nil, fmt.Errorf("%w: database %s is in use by %s", lokt.ErrUnavailable, path, inscription(side))
		}
	}
	s := &sideFile{lock: lock}
	if err := s.inscribe(fmt.Sprintf("process %d %s", os.Getpid(), describe)); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", lokt.ErrUnavailable, err), s.close())
	}
	return s, nil
}

// inscribe writes whose the database is. The first byte of the file says nothing: where locks are mandatory, others cannot
// read it.
func (s *sideFile) inscribe(who string) error {
	f, err := os.OpenFile(s.lock.Path(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	text := strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, who)) + "\n"
	_, err = f.WriteAt([]byte(text), 1)
	if err == nil {
		err = f.Truncate(int64(1 + len(text)))
	}
	return errors.Join(err, f.Close())
}

// inscription reads who has a database.
func inscription(side string) string {
	f, err := os.Open(side)
	if err != nil {
		return "another process"
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 1024)
	n, _ := f.ReadAt(b, 1)
	if who := strings.TrimSpace(string(b[:n])); who != "" {
		return who
	}
	return "another process"
}

func (s *sideFile) close() error {
	// Whose it was is of no use to the next who reads it.
	err := s.inscribe("")
	return errors.Join(err, s.lock.Close())
}

// resolve returns the path of the file that a path names in the end, whether that exists or not, so that the same database
// has the same side file whatever it is called by.
func resolve(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range 40 { // as many as kernels follow
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if errors.Is(err, fs.ErrNotExist) {
			return path, nil // its directory is yet to be made
		} else if err != nil {
			return "", err
		}
		path = filepath.Join(dir, filepath.Base(path))
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		path = to
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}
