// Package programs builds lokt and what is beside it for tests: once for each state of the source, whichever package's tests ask
// first.
package programs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// commands are what is built.
const commands = "github.com/lokt-dev/lokt/cmd/..."

// Dir returns the directory with them, built as users get them. Other users may enter it. It is kept for the
// next tests, and removed a day after it was made.
var Dir = sync.OnceValues(func() (string, error) {
	all := filepath.Join(os.TempDir(), fmt.Sprint("lokt-programs-", os.Getuid()))
	if err := own(all); err != nil {
		return "", err
	}
	turn := flock.New(filepath.Join(all, "lock")) // the packages that are tested at the same time wait for one build
	if err := turn.Lock(); err != nil {
		return "", err
	}
	defer func() { _ = turn.Close() }()
	key, err := run("list", "-deps", "-export", "-f", "{{.BuildID}}", commands)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(all, fmt.Sprintf("%x", sha256.Sum256(key)))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	old, _ := os.ReadDir(all)
	for _, e := range old {
		if info, err := e.Info(); err == nil && e.IsDir() && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.RemoveAll(filepath.Join(all, e.Name())) // the next tests try again
		}
	}
	part, err := os.MkdirTemp(all, "building-")
	if err != nil {
		return "", err
	}
	if _, err := run("build", "-ldflags=-s -w", "-o", part+string(filepath.Separator), commands); err != nil {
		return "", errors.Join(err, os.RemoveAll(part))
	}
	return dir, errors.Join(os.Chmod(part, 0o755), os.Rename(part, dir))
})

// own makes a directory in which nobody else can put programs, or finds out that it is one.
func own(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner := reflect.Indirect(reflect.ValueOf(fi.Sys())).FieldByName("Uid") // that of a syscall.Stat_t, where there are owners
	if !fi.IsDir() || owner.IsValid() && (owner.Uint() != uint64(os.Getuid()) || fi.Mode().Perm()&0o022 != 0) {
		return fmt.Errorf("%s is not a directory of this user's alone: remove it", dir)
	}
	return nil
}

func run(verb string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", append([]string{verb, "-buildvcs=false"}, args...)...) //nolint:noctx // ends by itself
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stderr = nil
	out, err := cmd.Output()
	if e := new(exec.ExitError); errors.As(err, &e) {
		err = fmt.Errorf("go %s: %w\n%s", verb, err, e.Stderr)
	}
	return out, err
}
