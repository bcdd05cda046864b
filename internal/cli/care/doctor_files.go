package care

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/lockfile"
)

// storeFile is something that stands in the root or in one of its directories.
type storeFile struct {
	path string
	info fs.FileInfo // links are not followed
	err  error       // why there is no info
}

// storeDirs are the directories in the root, those of records first.
func storeDirs() (all []string, records int) {
	return []string{"locks", "freezes", "queue", "guards", "live", "wake", "damaged"}, 3
}

// files returns the root, its directories, and what is in them. What else stands in the root is nobody's business but
// for the audit log.
func (d *doctor) files() []storeFile {
	var all []storeFile
	add := func(path string) (isDir bool) {
		fi, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
		all = append(all, storeFile{path, fi, err})
		return err == nil && fi.IsDir()
	}
	top, err := filepath.EvalSymlinks(d.root.Path)
	if err != nil {
		return nil
	}
	add(top)
	logs, _ := filepath.Glob(filepath.Join(globQuote(top), "audit.*")) // the pattern is a good one
	for _, path := range logs {
		add(path)
	}
	dirs, _ := storeDirs()
	for _, dir := range dirs {
		path := filepath.Join(top, dir)
		if !add(path) {
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			all[len(all)-1].err = err
		}
		for _, e := range entries {
			add(filepath.Join(path, e.Name()))
		}
	}
	return all
}

// globQuote returns a pattern that only the path itself matches.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func (d *doctor) checkSymlinks() {
	if fi, err := os.Lstat(d.root.Path); err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		to, _ := os.Readlink(d.root.Path)
		d.add(checkWarn, "symlinks", "%s is a symbolic link to %s", d.root.Path, to).
			Fix = "who changes the link moves the locks away from those who hold them: name the directory itself"
	}
	if !d.exists {
		return
	}
	var links []string
	for _, f := range d.files() {
		if f.err == nil && f.info.Mode()&fs.ModeSymlink != 0 {
			links = append(links, f.path)
		}
	}
	if len(links) > 0 {
		d.add(checkFail, "symlinks", "symbolic links, which lokt does not follow: %s", some(links)).Fix = "remove them: rm " + app.Quoted(links[0])
		return
	}
	d.add(checkOK, "symlinks", "none in the root")
}

// some lists the first few of many things.
func some(things []string) string {
	const most = 5
	if n := len(things) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(things[:most], ", "), n)
	}
	return strings.Join(things, ", ")
}

// fixLine returns the line to type to have repaired what can be.
func (d *doctor) fixLine() string {
	if d.RootFlag != "" {
		return "lokt doctor --fix --root " + app.Quoted(d.RootFlag)
	}
	return "lokt doctor --fix"
}

// openDirs opens the directories that are closed to their owner, and returns which.
func (d *doctor) openDirs() (opened []string) {
	dirs, _ := storeDirs()
	for _, dir := range append([]string{"."}, dirs...) {
		path := filepath.Join(d.root.Path, dir)
		fi, err := os.Lstat(path)
		if err != nil || !fi.IsDir() || fi.Mode().Perm()&0o700 == 0o700 {
			continue
		}
		if chmod(path, fi, 0o700) == nil {
			opened = append(opened, fmt.Sprintf("%s (%#o)", path, fi.Mode().Perm()))
		}
	}
	return opened
}

func (d *doctor) checkPermissions() {
	var open, closed, foreign, fixed, unfixed []string
	if d.fix {
		fixed = d.openDirs() // or what is in them could not be looked at
	}
	for _, f := range d.files() {
		if f.err != nil && !(f.info != nil && f.info.IsDir() && f.info.Mode().Perm()&0o700 != 0o700) {
			unfixed = append(unfixed, f.err.Error())
			continue
		}
		if f.info.Mode()&fs.ModeSymlink != 0 {
			continue // told already
		}
		perm, want := f.info.Mode().Perm(), fs.FileMode(0o600)
		if f.info.IsDir() {
			want = 0o700
		}
		if uid, known := fileOwner(f.info); known && uid != os.Geteuid() {
			foreign = append(foreign, fmt.Sprintf("%s (user %d)", f.path, uid))
		}
		what := fmt.Sprintf("%s (%#o)", f.path, perm)
		switch {
		case perm&0o022 == 0 && perm&want == want:
			continue
		case d.fix:
			if err := chmod(f.path, f.info, want); err != nil {
				unfixed = append(unfixed, fmt.Sprintf("%s: %v", what, err))
			} else {
				fixed = append(fixed, what)
			}
		case perm&want != want:
			closed = append(closed, what)
		default:
			open = append(open, what)
		}
	}
	fix := d.fixLine()
	if len(unfixed) > 0 {
		d.add(checkFail, "permissions", "cannot be read or repaired: %s", some(unfixed))
	}
	if len(closed) > 0 {
		d.add(checkFail, "permissions", "closed to their owner: %s", some(closed)).Fix = fix
	}
	if len(open) > 0 {
		d.add(checkWarn, "permissions", "other users can write: %s", some(open)).Fix = fix
	}
	if len(foreign) > 0 {
		d.add(checkWarn, "permissions", "owned by another user than you: %s", some(foreign)).
			Fix = "run lokt as one user, or give each user a LOKT_ROOT: files of one cannot be changed by the other"
	}
	switch {
	case len(fixed) > 0:
		d.add(checkOK, "permissions", "repaired: %s", some(fixed))
	case len(unfixed)+len(closed)+len(open)+len(foreign) == 0:
		d.add(checkOK, "permissions", "yours alone to write")
	}
}

func (d *doctor) checkRecords(ctx context.Context) {
	found, fixed, err := d.store.Check(ctx, d.fix)
	if err != nil {
		d.add(checkFail, "records", "%v", err)
		return
	}
	bad, left := 0, []string{}
	for _, f := range found {
		if f.Name == "" {
			left = append(left, fmt.Sprintf("%s (%s)", f.Path, f.Problem))
			continue
		}
		bad++
		s, err := d.store.View(ctx, f.Name)
		switch {
		case errors.Is(err, lokt.ErrDamaged):
			d.add(checkFail, "records", "%s keeps everybody out of %s: %v", f.Path, f.Name, err).Fix = d.CommandLine("unlock", f.Name, "--force")
		case err != nil:
			d.add(checkFail, "records", "%s: %v", f.Path, err)
		case s.Lock.Corrupt != "":
			d.add(checkWarn, "records", "%s is damaged (%s): the next claim takes %s over", f.Path, s.Lock.Corrupt, f.Name).
				Fix = d.CommandLine("unlock", f.Name, "--force")
		case s.Lock.Freeze != nil && s.Lock.Freeze.Damaged != "":
			d.add(checkFail, "records", "%s keeps everybody out of %s: %s", f.Path, f.Name, s.Lock.Freeze.Damaged).
				Fix = d.CommandLine("unfreeze", f.Name, "--force")
		}
	}
	if foreign := d.foreignFiles(); len(foreign) > 0 {
		bad++
		d.add(checkWarn, "records", "not lokt's: %s", some(foreign)).Fix = "move them away: they are ignored"
	}
	if bad == 0 {
		d.add(checkOK, "records", "%s", d.census(ctx))
	}
	proofs, removed := d.oldProofs()
	left, fixed = append(left, proofs...), fixed+removed
	switch {
	case len(left) > 0:
		d.add(checkWarn, "leftovers", "of crashed processes: %s", some(left)).Fix = d.fixLine()
	case fixed > 0:
		d.add(checkOK, "leftovers", "removed: %d", fixed)
	default:
		d.add(checkOK, "leftovers", "none")
	}
	d.add(checkOK, "protocol", "version %d: programs with the same one can share these locks", lockfile.Version)
}

// foreignFiles returns what stands among records and is neither one nor about to be.
func (d *doctor) foreignFiles() []string {
	var foreign []string
	dirs, records := storeDirs()
	for _, f := range d.files() {
		if !slices.Contains(dirs[:records], filepath.Base(filepath.Dir(f.path))) || f.err != nil || f.info.Mode()&fs.ModeSymlink != 0 {
			continue
		}
		base := filepath.Base(f.path)
		name, json := strings.CutSuffix(base, ".json")
		if !atomicfile.IsTemp(base) && (!json || lokt.ValidateName(name) != nil) {
			foreign = append(foreign, f.path)
		}
	}
	return foreign
}

// oldProofs finds, and with --fix removes, what a --prove that was killed left.
func (d *doctor) oldProofs() (left []string, removed int) {
	dirs, _ := filepath.Glob(filepath.Join(globQuote(d.root.Path), proofPrefix+"*")) // the pattern is a good one
	for _, dir := range dirs {
		fi, err := os.Lstat(dir)
		if err != nil || !fi.IsDir() || time.Since(fi.ModTime()) < time.Minute {
			continue
		}
		if d.fix && os.RemoveAll(dir) == nil {
			removed++
			continue
		}
		left = append(left, dir+" (of a doctor --prove that was killed)")
	}
	return left, removed
}

// census counts the locks on record.
func (d *doctor) census(ctx context.Context) string {
	var total, held, stale, frozen, waiting int
	for s, err := range d.store.List(ctx, lokt.Filter{}) {
		if err != nil {
			continue // told already
		}
		live := len(s.Live())
		total++
		held += live
		stale += len(s.Lock.Holders) - live
		waiting += len(s.Lock.Queue)
		if s.Frozen() != nil {
			frozen++
		}
	}
	return fmt.Sprintf("all can be read; names: %d, holds: %d, stale: %d, waiting: %d, frozen: %d", total, held, stale, waiting, frozen)
}

// auditLarge is a size that a log which is rotated does not reach.
const auditLarge = 2 * audit.DefaultMaxSize

func (d *doctor) checkAudit(ctx context.Context) {
	path := audit.Open(d.store.Root(), audit.Options{}).Path()
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.add(checkOK, "audit", "no log yet")
		return
	case err != nil:
		d.add(checkFail, "audit", "%v", err)
		return
	case !fi.Mode().IsRegular():
		d.add(checkFail, "audit", "%s is not a regular file: nothing is recorded", path).Fix = "move it away"
		return
	case writable(path) != nil:
		d.add(checkFail, "audit", "%s cannot be written: %v", path, writable(path)).Fix = writableAgain(writable(path), "repair its permissions")
		return
	}
	junk := 0
	for _, err := range audit.Open(d.store.Root(), audit.Options{}).Read(ctx, audit.Query{Limit: 1}) {
		var garbage *audit.GarbageError
		if errors.As(err, &garbage) {
			junk++
		} else if err != nil {
			d.add(checkFail, "audit", "%v", err)
			return
		}
	}
	size := fmt.Sprintf("%s can be written and has %d KiB", path, (fi.Size()+1023)/1024)
	switch {
	case fi.Size() > auditLarge:
		d.add(checkWarn, "audit", "%s: it is not rotated as it should be", size).Fix = "look at the permissions of " + d.root.Path
	case junk > 0:
		d.add(checkWarn, "audit", "%s; lines that are no entries: %d", size, junk).Fix = "they are skipped when the log is read, and go with the file that they are in"
	default:
		d.add(checkOK, "audit", "%s", size)
	}
}
