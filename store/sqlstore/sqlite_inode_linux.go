package sqlstore

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/gofrs/flock"

	"github.com/lokt-dev/lokt"
)

// lockFile takes a kernel lock on the database's file itself, so that a process that comes by another name of the
// file (a hard link, a bind mount) is turned away, too. It is of a kind that has nothing to do with those that SQLite
// takes. But closing a file ends SQLite's locks on it: what is returned must be closed after all connections.
func lockFile(path string) (*flock.Flock, error) {
	f, err := lockKernel(path)
	if errors.Is(err, errInUse) {
		return nil, fmt.Errorf("%w: database %s is in use, under another name, by %s", lokt.ErrUnavailable, path, holder(path))
	}
	return f, unavailable(err)
}

// holder says which process has a file locked, as far as the kernel tells.
func holder(path string) string {
	locks, _ := os.ReadFile("/proc/locks") // if it does not tell, it does not
	var stat syscall.Stat_t
	if err := syscall.Stat(path, &stat); err == nil {
		for line := range strings.Lines(string(locks)) {
			field := strings.Fields(line) // 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
			if len(field) >= 6 && field[1] == "FLOCK" && strings.HasSuffix(field[5], fmt.Sprint(":", stat.Ino)) {
				return "process " + field[4]
			}
		}
	}
	return "another process"
}
