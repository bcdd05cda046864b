package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// Damage is something in the store's directories that does not belong there or cannot be read.
type Damage struct {
	Path    string
	Name    string // of the lock, if it is about one
	Problem string
	Stays   bool // it is no leftover, which Check could remove, but keeps lokt from writing there
}

// Discard moves records of the lock that cannot be read into the directory of damaged ones, notes that in the audit log,
// and returns what it moved. It takes whatever stands at the lock's paths, but never what a link there points to.
func (s *Store) Discard(ctx context.Context, name string, by lokt.Owner) ([]Damage, error) {
	if err := lokt.ValidateName(name); err != nil {
		return nil, err
	}
	g, err := s.enter(ctx, name)
	if err != nil {
		return nil, unavailable(err)
	}
	defer g.leave()
	var moved []Damage
	for range files { // each load reports the first file that is in the way
		st, err := s.load(name, s.o.clock(), guardPage{seq: g.seq})
		d := Damage{Name: name}
		how, dir := lokt.EventCorruptBreak, dirFreezes
		switch {
		case errors.Is(err, lokt.ErrDamaged):
			dir, d.Problem = s.dirOf(err), err.Error()
		case err != nil:
			return moved, unavailable(err)
		case st.snap.Lock.Freeze != nil && st.snap.Lock.Freeze.Damaged != "":
			d.Problem = st.snap.Lock.Freeze.Damaged
		default:
			return moved, nil
		}
		if dir == dirFreezes {
			how = lokt.EventForceThaw
		}
		d.Path = s.path(dir, name)
		if err := s.quarantine(dir, name); err != nil {
			return moved, unavailable(err)
		}
		moved = append(moved, d)
		events := []lokt.Event{{
			Time: s.o.clock().Wall, Type: how, Name: name, Owner: by,
			Extra: map[string]string{lokt.ExtraReason: d.Problem, lokt.ExtraBy: by.String()},
		}}
		g.log(string(audit.Encode(events)))
		s.observe(events)
	}
	return moved, nil
}

// dirOf returns which of the lock's files a load failed on.
func (s *Store) dirOf(err error) string {
	if e, ok := errors.AsType[*fs.PathError](err); ok { // of Store.damaged
		return filepath.Base(filepath.Dir(e.Path))
	}
	return dirLocks
}

// quarantine moves one of the lock's files into the directory of damaged ones.
func (s *Store) quarantine(dir, name string) error {
	from := s.path(dir, name)
	if _, err := s.fs.Lstat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	to := filepath.Join(s.root, dirDamaged, fmt.Sprintf("%s-%s-%d%s", dir, name, time.Now().UnixNano(), ext))
	if err := s.fs.Mkdir(filepath.Join(s.root, dirDamaged), dirPerm); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.fs.Rename(from, to)
}

// Check looks for damaged records, what is in the way of a file or has a second name, and leftovers of crashed processes. With fix it removes
// leftovers; damaged records are left for Discard, by name.
func (s *Store) Check(ctx context.Context, fix bool) (found []Damage, fixed int, err error) {
	names, err := s.listed(lokt.Filter{})
	if err != nil {
		return nil, 0, unavailable(err)
	}
	queued := map[string]bool{}
	for _, name := range names {
		if ctx.Err() != nil {
			return found, 0, ctx.Err()
		}
		snap, err := s.View(ctx, name)
		d, l := Damage{Name: name}, snap.Lock
		switch {
		case err != nil:
			d.Path, d.Problem = s.path(s.dirOf(err), name), err.Error()
		case l.Corrupt != "":
			d.Path, d.Problem = s.path(dirLocks, name), l.Corrupt
		case l.Freeze != nil && l.Freeze.Damaged != "":
			d.Path, d.Problem = s.path(dirFreezes, name), l.Freeze.Damaged
		}
		if d.Problem != "" {
			found = append(found, d)
		}
		for _, w := range l.Queue {
			queued[filepath.Base(s.wakePath(w.LeaseID))] = true
		}
	}
	strays, fixed, err := s.strays(queued, fix)
	return append(found, strays...), fixed, unavailable(err)
}

// linked refuses a file that has another name, perhaps outside the store: what is written to it would be written there.
func linked(path string) error {
	return fmt.Errorf("%w: %s %s; lokt does not write to it", lokt.ErrDamaged, path, secondName)
}

const secondName = "has another name, a hard link: move it away"

// leftoverAge is how old a file of a crashed process must be to be told from one that is about to be used.
const leftoverAge = time.Minute

// strays returns files that have another name, what is no file where one has to be, and temporary and wake files that nobody uses, which it removes with fix.
func (s *Store) strays(queued map[string]bool, fix bool) (found []Damage, fixed int, err error) {
	for _, dir := range append([]string{""}, subdirs...) {
		entries, err := s.fs.ReadDir(filepath.Join(s.root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return found, fixed, err
		}
		for _, e := range entries {
			fi, err := e.Info()
			if err != nil || !fi.Mode().IsRegular() && dir != dirGuards && dir != dirLive {
				continue
			}
			d := Damage{Path: filepath.Join(s.root, dir, e.Name()), Stays: true}
			switch old := time.Since(fi.ModTime()) >= leftoverAge; {
			case !fi.Mode().IsRegular():
				d.Problem = "is not a regular file: move it away"
			case vfs.Links(fi) > 1:
				d.Problem = secondName
			case old && dir == dirWake && !queued[e.Name()]:
				d.Problem, d.Stays = "wake file of a process that waits no more", false
			case old && atomicfile.IsTemp(e.Name()):
				d.Problem, d.Stays = "temporary file of a crashed write", false
			default:
				continue
			}
			if fix && !d.Stays && s.fs.Remove(d.Path) == nil {
				fixed++
				continue
			}
			found = append(found, d)
		}
	}
	return found, fixed, nil
}

// SetChild notes a guard's command in the records of its leases: the guard's hold lasts while that lives, even if it
// closes the descriptor that it inherited. Leases that are gone are skipped.
func (s *Store) SetChild(ctx context.Context, leases map[string]string, pid int, start int64) error {
	var errs []error
	for name, leaseID := range leases {
		errs = append(errs, s.Update(ctx, name, func(snap lokt.Snapshot) lokt.Change {
			l := snap.Lock.Clone()
			for i := range l.Holders {
				if h := &l.Holders[i]; h.LeaseID == leaseID && h.Process != nil {
					p := *h.Process
					p.Child, p.ChildStart = pid, start
					h.Process = &p
				}
			}
			return lokt.Change{Lock: l}
		}))
	}
	return errors.Join(errs...)
}
