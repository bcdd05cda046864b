package care

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/process"
)

func (d *doctor) checkFileSystem() {
	at := existing(d.root.Path)
	kind, local := process.LocalFS(at)
	switch {
	case !local:
		d.add(checkWarn, "filesystem", "%s is on %s, which other hosts or programs may have a say in: locks hold between processes of this host at most", at, kind).
			Fix = "keep the locks on a local disk with LOKT_ROOT, or use a server for several hosts; --prove tries this one from this host"
	case kind == "":
		d.add(checkOK, "filesystem", "of a kind that is not known")
	default:
		d.add(checkOK, "filesystem", "%s, which is local", kind)
	}
}

// Less than this is no room for locks: a record is small, but there are queues, logs and temporary files beside it.
const (
	leastBytes = 1 << 20
	leastFiles = 32
)

// checkSpace looks at whether the file system has room.
func (d *doctor) checkSpace() {
	at := existing(d.root.Path)
	bytes, files, err := space(at)
	const fix = "make room: on a full file system nobody gets a lock, for what cannot be recorded is not granted; or " + elsewhere
	switch {
	case err != nil:
		d.add(checkWarn, "space", "%s: %v", at, err)
	case bytes >= 0 && bytes < leastBytes:
		d.add(checkFail, "space", "%s has %d KiB left", at, bytes>>10).Fix = fix
	case files >= 0 && files < leastFiles:
		d.add(checkFail, "space", "%s has room for %d files more", at, files).Fix = fix
	case bytes >= 0:
		d.add(checkOK, "space", "%d MiB left", bytes>>20)
	}
}

// checkKernelLocks tries the locks that exclusion and proof of life rest on, on files that are there already.
func (d *doctor) checkKernelLocks() {
	const later = "not tried, for there is nothing to try them on yet; --prove does"
	guards, _ := filepath.Glob(filepath.Join(globQuote(d.root.Path), "guards", "[0-9a-f][0-9a-f]")) // the patterns are good ones
	lives, _ := filepath.Glob(filepath.Join(globQuote(d.root.Path), "live", "[0-9a-f]"))
	if len(guards) == 0 {
		d.add(checkOK, "kernel-locks", later)
		return
	}
	err := tryExclusion(guards[0])
	var closed *fs.PathError
	switch {
	case errors.As(err, &closed): // which other checks tell about
		d.add(checkWarn, "kernel-locks", "not tried: %v", err)
		return
	case err != nil:
		d.add(checkFail, "kernel-locks", "%s: %v: nothing keeps processes apart here", guards[0], err).Fix = "keep the locks on a local disk with LOKT_ROOT"
		return
	}
	switch {
	case !process.KernelLiveness:
		d.add(checkOK, "kernel-locks", "they exclude; that a process lives is told by its ID and start time on this system")
	case len(lives) == 0:
		d.add(checkOK, "kernel-locks", "they exclude")
	default:
		if err := tryLiveness(lives[0]); err != nil {
			d.add(checkWarn, "kernel-locks", "they exclude, but do not prove life (%v): process ID and start time have to do", err)
			return
		}
		d.add(checkOK, "kernel-locks", "they exclude, and prove whether a process lives")
	}
}

// tryLiveness locks a byte of the file through one descriptor and looks for that through another.
func tryLiveness(path string) error {
	one, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer one.Close()
	two, err := os.Open(path)
	if err != nil {
		return err
	}
	defer two.Close()
	at := rand.Int64N(1 << 62)
	if err := process.LockByte(one, at); err != nil {
		return err
	}
	locked, err := process.ByteLocked(two, at)
	if err == nil && !locked {
		err = errors.New("a lock on a file is not seen by others")
	}
	return err
}

func (d *doctor) checkClock() {
	now := time.Now()
	const fix = "set the clock; expiry of records written elsewhere is judged by it"
	newest, path := now, ""
	for _, f := range d.files() {
		if f.err == nil && f.info.ModTime().After(newest) {
			newest, path = f.info.ModTime(), f.path
		}
	}
	judged := "expiry is judged by it"
	if _, ok := process.Monotonic(); ok {
		judged = "expiry of locks taken since this host started is judged on its monotonic clock, which nobody can set"
	}
	switch {
	case now.Year() < 2025:
		d.add(checkFail, "clock", "it says %s, which is long ago", now.Format(time.RFC3339)).Fix = fix
	case newest.Sub(now) > time.Minute:
		d.add(checkWarn, "clock", "it says %s, but %s was changed %s later: it, or the file system's clock, is wrong", now.Format(time.RFC3339), path, app.Short(newest.Sub(now))).Fix = fix
	default:
		d.add(checkOK, "clock", "%s; %s", now.Format(time.RFC3339), judged)
	}
}

// knownVariables are the environment variables that mean something to lokt.
func knownVariables() []string {
	return []string{
		"LOKT_ROOT", "LOKT_OWNER", "LOKT_AGENT_ID", "LOKT_ON_LOST", "LOKT_SERVER", // read
		"LOKT_SERVER_TOKEN", "LOKT_TOKEN_FILE", "LOKT_CA_FILE", "LOKT_CERT_FILE", "LOKT_KEY_FILE",
		"LOKT_NAME", "LOKT_LEASE", "LOKT_TOKEN", "LOKT_HELD", // set for the command of a guard
	}
}

func (d *doctor) checkEnvironment() {
	n := len(d.found)
	for _, kv := range d.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "LOKT_") && value != "" && !slices.Contains(knownVariables(), name) && !strings.HasPrefix(name, "LOKT_SERVER_") {
			d.add(checkWarn, "environment", "%s means nothing to lokt", name).Fix = "those that do are " + strings.Join(knownVariables(), ", ")
		}
	}
	if env := d.Getenv("LOKT_ROOT"); env != "" && !filepath.IsAbs(env) && d.servers == nil {
		d.add(checkWarn, "environment", "LOKT_ROOT=%s is not absolute: each directory has its own locks", env).Fix = "export LOKT_ROOT=" + app.Quoted(d.root.Path)
	}
	if v := d.Getenv("LOKT_ON_LOST"); v != "" && v != locks.OnLostWarn && v != locks.OnLostStop {
		d.add(checkFail, "environment", "LOKT_ON_LOST=%s is neither warn nor stop: guard refuses it", v).Fix = "unset LOKT_ON_LOST"
	}
	var around []string
	for _, pair := range strings.Split(d.Getenv("LOKT_HELD"), ",") {
		if name, _, ok := strings.Cut(pair, "="); ok {
			around = append(around, name)
		}
	}
	switch {
	case len(d.found) > n:
	case len(around) > 0:
		d.add(checkOK, "environment", "inside a guard that holds %s", strings.Join(around, ", "))
	default:
		d.add(checkOK, "environment", "nothing odd")
	}
}

func (d *doctor) checkIdentity() {
	o := d.Asker()
	if err := (lokt.Claim{Name: "x", Owner: o}).Validate(); err != nil {
		d.add(checkFail, "identity", "%v: every claim is refused", err).Fix = "correct LOKT_OWNER and LOKT_AGENT_ID"
		return
	}
	switch {
	case o.AnySession:
		d.add(checkOK, "identity", "you are %s, from LOKT_OWNER, in every session", o)
	case d.Getenv("LOKT_AGENT_ID") != "":
		d.add(checkOK, "identity", "you are %s, from your user name, in session %s, from LOKT_AGENT_ID", o, o.Session)
	default:
		d.add(checkOK, "identity", "you are %s, from your user name, in session %s, that of the terminal or of whatever started this", o, o.Session).
			Fix = "programs that start each command in a new session must set LOKT_OWNER or LOKT_AGENT_ID to be one owner"
	}
}

// tryExclusion locks the file through one descriptor and sees whether another is refused. It does not wait: a file that
// somebody has locked shows that locks exclude.
func tryExclusion(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%w: not a regular file", fs.ErrInvalid)
	}
	one, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer one.Close()
	two, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer two.Close()
	if got, err := tryFlock(one); err != nil || !got {
		return err
	}
	got, err := tryFlock(two)
	if err == nil && got {
		err = errors.New("two can lock it at once")
	}
	return err
}
