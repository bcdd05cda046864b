package care

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/lockfile"
)

// survey is what a look at the root, its directories and the files in them found. Other files in the root are nobody's
// business, but for the audit log.
type survey struct {
	links, foreign, open, closed, repaired, failed []string

	strangers []string // among records, and no records
	proofs    []string // directories of a --prove that was killed
	newest    time.Time
	youngest  string // the file that was changed then
}

// survey looks at all files of the store, without following links, and with --fix sets permissions right on its way:
// what is in a closed directory is seen then.
func (d *doctor) survey() {
	top, err := filepath.EvalSymlinks(d.root.Path)
	if err != nil || !d.see(top) {
		return
	}
	entries, _ := os.ReadDir(top) // without them, the directories are looked at all the same
	for _, e := range entries {
		path := filepath.Join(top, e.Name())
		if strings.HasPrefix(e.Name(), "audit.") {
			d.see(path)
		}
		fi, err := e.Info()
		if err == nil && fi.IsDir() && strings.HasPrefix(e.Name(), proofPrefix) && time.Since(fi.ModTime()) > time.Minute {
			d.files.proofs = append(d.files.proofs, path)
		}
	}
	const ofRecords = 3
	for i, dir := range []string{"locks", "freezes", "queue", "guards", "live", "wake", "damaged"} {
		dir = filepath.Join(top, dir)
		if !d.see(dir) {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil && len(d.files.closed) == 0 {
			d.files.failed = append(d.files.failed, err.Error())
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			d.see(path)
			name, json := strings.CutSuffix(e.Name(), ".json")
			if i < ofRecords && !atomicfile.IsTemp(e.Name()) && (!json || lokt.ValidateName(name) != nil) {
				d.files.strangers = append(d.files.strangers, path)
			}
		}
	}
}

// see looks at one file and reports whether it is a directory.
func (d *doctor) see(path string) bool {
	s := &d.files
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		s.failed = append(s.failed, err.Error())
		return false
	case fi.Mode()&fs.ModeSymlink != 0:
		s.links = append(s.links, path)
		return false
	}
	if fi.ModTime().After(s.newest) {
		s.newest, s.youngest = fi.ModTime(), path
	}
	perm, want := fi.Mode().Perm(), fs.FileMode(0o600)
	if fi.IsDir() {
		want = 0o700
	}
	if uid, known := fileOwner(fi); known && uid != os.Geteuid() {
		s.foreign = append(s.foreign, fmt.Sprintf("%s (user %d)", path, uid))
	}
	sound := perm&0o022 == 0 && perm&want == want
	if !sound && d.fix {
		err = chmod(path, fi, want)
	}
	what := fmt.Sprintf("%s (%#o)", path, perm)
	switch {
	case sound:
	case err != nil:
		s.failed = append(s.failed, fmt.Sprintf("%s: %v", what, err))
	case d.fix:
		s.repaired = append(s.repaired, what)
	case perm&want != want:
		s.closed = append(s.closed, what)
	default:
		s.open = append(s.open, what)
	}
	return fi.IsDir()
}

func (d *doctor) tellSurvey() {
	s := &d.files
	for _, one := range []struct {
		files                   []string
		name, status, says, fix string
	}{
		{s.failed, "permissions", checkFail, "cannot be read or repaired", ""},
		{s.closed, "permissions", checkFail, "closed to their owner", d.CommandLine("doctor", "", "--fix")},
		{s.open, "permissions", checkWarn, "other users can write", d.CommandLine("doctor", "", "--fix")},
		{
			s.foreign, "permissions", checkWarn, "owned by another user than you",
			"run lokt as one user, or give each user a LOKT_ROOT: files of one cannot be changed by the other",
		},
		{s.repaired, "permissions", checkOK, "repaired", ""},
		{s.links, "symlinks", checkFail, "symbolic links, which lokt does not follow", "remove them"},
		{s.strangers, "records", checkWarn, "not lokt's", "move them away: they are ignored"},
	} {
		if len(one.files) > 0 {
			d.add(one.name, one.status, one.fix, one.says+": %s", []any{some(one.files)})
		}
	}
	if len(s.failed)+len(s.closed)+len(s.open)+len(s.foreign)+len(s.repaired) == 0 {
		d.ok("permissions", "yours alone to write")
	}
	if to, err := os.Readlink(d.root.Path); err == nil {
		d.warn("symlinks", "who changes the link moves the locks away from those who hold them: name the directory itself",
			"%s is a symbolic link to %s", d.root.Path, to)
	}
}

// some lists the first few of many things.
func some(things []string) string {
	const most = 5
	if n := len(things) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(things[:most], ", "), n)
	}
	return strings.Join(things, ", ")
}

func (d *doctor) checkRecords(ctx context.Context) {
	found, fixed, err := d.store.Check(ctx, d.fix)
	if err != nil {
		d.fail("records", "", "%v", err)
		return
	}
	var left []string
	bad := false
	for _, f := range found {
		if f.Name == "" {
			left = append(left, fmt.Sprintf("%s (%s)", f.Path, f.Problem))
			continue
		}
		bad = true
		s, err := d.store.View(ctx, f.Name)
		switch {
		case errors.Is(err, lokt.ErrDamaged):
			d.fail("records", d.CommandLine("unlock", f.Name, "--force"), "%s keeps everybody out of %s: %v", f.Path, f.Name, err)
		case err != nil:
			d.fail("records", "", "%s: %v", f.Path, err)
		case s.Lock.Corrupt != "":
			d.warn("records", d.CommandLine("unlock", f.Name, "--force"), "%s is damaged (%s): the next claim takes %s over", f.Path, f.Problem, f.Name)
		default:
			d.fail("records", d.CommandLine("unfreeze", f.Name, "--force"), "%s keeps everybody out of %s: %s", f.Path, f.Name, f.Problem)
		}
	}
	if !bad {
		d.ok("records", "%s", d.census(ctx))
	}
	for _, dir := range d.files.proofs {
		if d.fix && os.RemoveAll(dir) == nil {
			fixed++
			continue
		}
		left = append(left, dir+" (of a doctor --prove that was killed)")
	}
	switch {
	case len(left) > 0:
		d.warn("leftovers", d.CommandLine("doctor", "", "--fix"), "do not belong there: %s", some(left))
	case fixed > 0:
		d.ok("leftovers", "removed: %d", fixed)
	default:
		d.ok("leftovers", "none")
	}
	d.ok("protocol", "version %d: programs with the same one can share these locks", lockfile.Version)
}

// census counts the locks on record.
func (d *doctor) census(ctx context.Context) string {
	m, err := measure(ctx, d.Opened, 0)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("all can be read; names: %d, holds: %d, stale: %d, waiting: %d, frozen: %d", m.names, m.Holds, m.StaleHolds, m.Waiting, m.Frozen)
}

// auditLarge is a size that a log which is rotated does not reach.
const auditLarge = 2 * audit.DefaultMaxSize

func (d *doctor) checkAudit(ctx context.Context) {
	log := audit.Open(d.store.Root(), audit.Options{})
	fi, err := os.Lstat(log.Path())
	if err == nil {
		err = writable(log.Path())
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.ok("audit", "no log yet")
		return
	case err == nil && !fi.Mode().IsRegular():
		d.fail("audit", "move it away", "%s is not a regular file: nothing is recorded", log.Path())
		return
	case err != nil:
		d.fail("audit", writableAgain(err), "%s cannot be written: %v", log.Path(), err)
		return
	}
	junk := 0
	for _, err := range log.Read(ctx, audit.Query{Limit: 1}) {
		var garbage *audit.GarbageError
		if errors.As(err, &garbage) {
			junk++
		} else if err != nil {
			d.fail("audit", "", "%v", err)
			return
		}
	}
	size := fmt.Sprintf("%s can be written and has %d KiB", log.Path(), (fi.Size()+1023)/1024)
	switch {
	case fi.Size() > auditLarge:
		d.warn("audit", "look at the permissions of "+d.root.Path, "%s: it is not rotated as it should be", size)
	case junk > 0:
		d.warn("audit", "they are skipped when the log is read, and go with the file that they are in", "%s; lines that are no entries: %d", size, junk)
	default:
		d.ok("audit", "%s", size)
	}
}

func (d *doctor) checkClock() {
	const fix = "set the clock; expiry of records written elsewhere is judged by it"
	now := time.Now()
	switch ahead := d.files.newest.Sub(now); {
	case now.Year() < 2025:
		d.fail("clock", fix, "it says %s, which is long ago", now.Format(time.RFC3339))
	case ahead > time.Minute:
		d.warn("clock", fix, "it says %s, but %s was changed %s later: it, or the file system's clock, is wrong",
			now.Format(time.RFC3339), d.files.youngest, app.Short(ahead))
	default:
		d.ok("clock", "%s; expiry of locks taken since this host started is judged by a clock that nobody can set, if the system has one",
			now.Format(time.RFC3339))
	}
}
