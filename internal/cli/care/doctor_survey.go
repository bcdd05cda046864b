package care

import (
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
	"github.com/lokt-dev/lokt/store/place"
)

// survey is what a look at the root, its directories and the files in them found. Other files in the root are nobody's
// business, but for the audit log.
type survey struct {
	owner    int                 // who has to be the owner of all: this user, or of root's the directory's
	odd      map[string][]string // by what is odd about them
	proofs   []string            // directories of a --prove that was killed
	newest   time.Time
	youngest string // the file that was changed then
}

// What can be odd about files.
const (
	failed   = "cannot be read or repaired"
	closed   = "closed to their owner"
	open     = "other users can write"
	foreign  = "owned by another user than you"
	repaired = "repaired"
	linked   = "symbolic links, which lokt does not follow"
	stranger = "not lokt's" // among records
)

// survey looks at all files of the store, without following links, and with --fix sets permissions right on its way:
// what is in a closed directory is seen then.
func (d *doctor) survey() *survey {
	s := &survey{odd: map[string][]string{}, owner: os.Geteuid()}
	top, err := filepath.EvalSymlinks(d.root.Path)
	if fi, err := os.Stat(top); err == nil && s.owner == 0 {
		s.owner, _ = fileOwner(fi) // root leaves all to it
	}
	if err != nil || !s.see(top, d.fix) {
		return s
	}
	entries, _ := os.ReadDir(top) // without them, the directories are looked at all the same
	for _, e := range entries {
		path := filepath.Join(top, e.Name())
		if strings.HasPrefix(e.Name(), "audit.") {
			s.see(path, d.fix)
		}
		fi, err := e.Info()
		if err == nil && fi.IsDir() && strings.HasPrefix(e.Name(), proofPrefix) && time.Since(fi.ModTime()) > time.Minute {
			s.proofs = append(s.proofs, path)
		}
	}
	const ofRecords = 3
	for i, dir := range []string{"locks", "freezes", "queue", "guards", "live", "wake", "damaged"} {
		dir = filepath.Join(top, dir)
		if !s.see(dir, d.fix) {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil && len(s.odd[closed]) == 0 {
			s.note(failed, err.Error())
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			s.see(path, d.fix)
			name, json := strings.CutSuffix(e.Name(), ".json")
			if i < ofRecords && !atomicfile.IsTemp(e.Name()) && (!json || lokt.ValidateName(name) != nil) {
				s.note(stranger, path)
			}
		}
	}
	return s
}

func (s *survey) note(what, file string) { s.odd[what] = append(s.odd[what], file) }

// see looks at one file and reports whether it is a directory.
func (s *survey) see(path string, fix bool) bool {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		s.note(failed, err.Error())
		return false
	case fi.Mode()&fs.ModeSymlink != 0:
		s.note(linked, path)
		return false
	}
	if fi.ModTime().After(s.newest) {
		s.newest, s.youngest = fi.ModTime(), path
	}
	if uid, known := fileOwner(fi); known && uid != s.owner {
		s.note(foreign, fmt.Sprintf("%s (user %d)", path, uid))
	}
	perm, want := fi.Mode().Perm(), fs.FileMode(0o600)
	if fi.IsDir() {
		want = 0o700
	}
	what := fmt.Sprintf("%s (%#o)", path, perm)
	switch {
	case perm&0o022 == 0 && perm&want == want:
	case fix:
		if err := chmod(path, fi, want); err != nil {
			s.note(failed, fmt.Sprintf("%s: %v", what, err))
		} else {
			s.note(repaired, what)
		}
	case perm&want != want:
		s.note(closed, what)
	default:
		s.note(open, what)
	}
	return fi.IsDir()
}

func (d *doctor) tellSurvey(s *survey) {
	fix := d.CommandLine("doctor", "", "--fix")
	for _, one := range []struct {
		what, name string
		status     place.Status
		fix        string
	}{
		{failed, "permissions", place.Fail, ""},
		{closed, "permissions", place.Fail, fix},
		{open, "permissions", place.Warn, fix},
		{foreign, "permissions", place.Warn, "give each user a LOKT_ROOT, or run lokt as one; files of another's in your directory: sudo chown -R USER DIRECTORY"},
		{repaired, "permissions", place.OK, ""},
		{linked, "symlinks", place.Fail, "remove them"},
		{stranger, "records", place.Warn, "move them away: they are ignored"},
	} {
		if files := s.odd[one.what]; len(files) > 0 {
			d.add(one.name, one.status, one.fix, one.what+": %s", []any{some(files)})
		}
	}
	if !slices.ContainsFunc(d.found, func(c place.Condition) bool { return c.Name == "permissions" }) {
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
