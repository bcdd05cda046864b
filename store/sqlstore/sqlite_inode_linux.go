package sqlstore

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt"
)

// lockFile takes a kernel lock on the database's file itself, so that a process that comes by another name of the file (a hard link, a
// bind mount) is turned away, too. It is of a kind that has nothing to do with those that SQLite takes. But closing a file
// ends SQLite's locks on it: what is returned must be closed after all connections.
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
	info, err := f.Stat()
	if err != nil {
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
			return nil, fmt.Errorf("%w: database %s is in use, under another name, by %s", lokt.ErrUnavailable, path, holder(info))
		}
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Nlink > 1 {
		return nil, fmt.Errorf("%w: database %s has %d names (hard links), and what was stored last is found by one of them only: leave it one",
			lokt.ErrInvalid, path, stat.Nlink)
	}
	return f, nil
}

// holder says which process has a file locked, as far as the kernel tells.
func holder(info os.FileInfo) string {
	const unknown = "another process"
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return unknown
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return unknown
	}
	defer f.Close()
	inode := fmt.Sprint(":", stat.Ino)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
		field := strings.Fields(lines.Text())
		if len(field) >= 6 && field[1] == "FLOCK" && strings.HasSuffix(field[5], inode) {
			return "process " + field[4]
		}
	}
	return unknown
}
