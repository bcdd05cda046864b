package sqlstore

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt"
)

// lockFile takes a kernel lock on the database's file itself, so that a process that comes by another name of the
// file (a hard link, a bind mount) is turned away, too. It is of a kind that has nothing to do with those that SQLite
// takes. But closing a file ends SQLite's locks on it: what is returned must be closed after all connections.
func lockFile(path string) (_ *os.File, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	var stat syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &stat); err != nil {
		return nil, err
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		} else if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%w: database %s is in use, under another name, by %s",
				lokt.ErrUnavailable, path, holder(stat.Ino))
		}
	}
	if stat.Nlink > 1 {
		return nil, fmt.Errorf("%w: database %s has %d names (hard links), and what was stored last is found by one of them "+
			"only: leave it one", lokt.ErrInvalid, path, stat.Nlink)
	}
	return f, nil
}

// holder says which process has a file locked, as far as the kernel tells.
func holder(inode uint64) string {
	locks, _ := os.ReadFile("/proc/locks") // if it does not tell, it does not
	for line := range strings.Lines(string(locks)) {
		field := strings.Fields(line) // 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
		if len(field) >= 6 && field[1] == "FLOCK" && strings.HasSuffix(field[5], fmt.Sprint(":", inode)) {
			return "process " + field[4]
		}
	}
	return "another process"
}
