package filestore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/lockfile"
)

// emptyAge is how old an empty record must be to count as damaged: an older program may be about to write it.
const emptyAge = 2 * time.Second

// state is what the files say about a lock, and how they say it.
type state struct {
	name       string
	now        lockfile.Now
	snap       lokt.Snapshot
	data       [files][]byte      // contents of the lock, queue and freeze files; nil if absent or unreadable
	unreadable [files]bool        // there is something, but it cannot be read
	info       fs.FileInfo        // of the lock file; nil if absent
	record     *lockfile.Record   // the lock file, decoded; nil if absent or damaged
	freeze     *lockfile.Record   // the freeze file, decoded
	holders    []*lockfile.Record // those of its holders, in their order
}

// The files of a lock, in the order in which a change publishes them.
const (
	fileLock = iota
	fileQueue
	fileFreeze
	files
)

var fileDirs = [files]string{dirLocks, dirQueue, dirFreezes}

// load reads what is known about the named lock, and what it means. page is what its guard file says.
func (s *Store) load(name string, now lockfile.Now, page guardPage) (*state, error) {
	st, err := s.read(name, now, page)
	if err == nil {
		err = st.decode(s)
	}
	return st, err
}

// read reads the lock's files.
func (s *Store) read(name string, now lockfile.Now, page guardPage) (*state, error) {
	st := &state{name: name, now: now}
	var failed [files]error
	for f := range fileDirs {
		var fi fs.FileInfo
		st.data[f], fi, failed[f] = s.readFile(f, name)
		if errors.Is(failed[f], fs.ErrNotExist) {
			failed[f] = nil
		}
		st.unreadable[f] = failed[f] != nil
		if f == fileLock {
			st.info = fi
		}
	}
	if page.entry != nil && page.entry.Name == name {
		st.overlay(page.entry, s.sys.Boot(), &failed)
	}
	for f, err := range failed {
		switch {
		case err == nil:
		case busy(err):
			return nil, unavailable(err)
		case f == fileFreeze: // whatever it is, it keeps everybody out
			st.snap.Lock.Freeze = &lokt.Freeze{Damaged: err.Error()}
		case f == fileQueue && foreign(err): // it keeps nobody out
		default:
			return nil, s.damaged(name, fileDirs[f], err)
		}
	}
	st.snap.Now = now.Wall
	st.snap.Lock.Name = name
	st.snap.Lock.Token = page.issued(s.sys.Boot())
	st.snap.Lock.Revision = st.revision(page.seq)
	return st, nil
}

// decode finds out what the files say, and who of those that they name is dead. Of a long queue that takes much longer than to
// read them.
func (st *state) decode(s *Store) error {
	if err := st.decodeLock(s); err != nil {
		return err
	}
	if err := st.decodeQueue(s); err != nil {
		return err
	}
	st.decodeFreeze()
	return nil
}

// readFile returns the contents of one of the lock's files, which are not nil if there is one.
func (s *Store) readFile(file int, name string) ([]byte, fs.FileInfo, error) {
	path := s.path(fileDirs[file], name)
	data, fi, err := atomicfile.ReadRegular(s.fs, path, lockfile.MaxSize)
	if err == nil && data == nil {
		data = []byte{}
	}
	return data, fi, err
}

// busy reports whether the error is about this process or the machine, not about the file.
func busy(err error) bool {
	return slices.ContainsFunc(transient, func(e error) bool { return errors.Is(err, e) })
}

// foreign reports whether the error is that something stands in the file's place which the store did not put there.
func foreign(err error) bool {
	return errors.Is(err, atomicfile.ErrNotRegular) || errors.Is(err, atomicfile.ErrTooLarge) || errors.Is(err, fs.ErrPermission)
}

// overlay puts the contents that the journal announces in place of those that they replace.
func (st *state) overlay(e *entry, boot string, failed *[files]error) {
	for _, f := range e.Files {
		if f.Redo && e.binding(boot) && contentOf(st.data[f.File], failed[f.File]) == f.Before {
			st.data[f.File], failed[f.File], st.unreadable[f.File] = f.after(), nil, false
		}
	}
}

// damaged reports a record that cannot be read: unlike a corrupt one, it may well say that somebody holds the lock.
func (s *Store) damaged(name, dir string, err error) error {
	if _, folds := s.fs.Lstat(filepath.Join(s.root, strings.ToUpper(dirLocks))); folds == nil && errors.Is(err, lockfile.ErrName) {
		return fmt.Errorf("%w: lock %q: %w: this file system takes upper case for lower: write the name as that is written", lokt.ErrInvalid, name, err)
	}
	return fmt.Errorf("lock %q: %w: %w", name, lokt.ErrDamaged, &fs.PathError{Op: "read", Path: s.path(dir, name), Err: err})
}

// revision identifies the state by its contents and by which change of its shard was the last: the same contents may
// come again.
func (st *state) revision(seq uint64) uint64 {
	all := binary.LittleEndian.AppendUint64(nil, seq)
	for _, data := range st.data {
		all = binary.LittleEndian.AppendUint64(all, contentOf(data, nil))
	}
	return contentOf(all, nil)
}

func (st *state) decodeLock(s *Store) error {
	data, fi := st.data[fileLock], st.info
	if data == nil {
		return nil
	}
	l := &st.snap.Lock
	r, err := lockfile.Decode(st.name, data)
	switch {
	case err == nil:
	case len(data) == 0 && fi != nil && st.now.Wall.Sub(fi.ModTime()).Abs() < emptyAge:
		l.Holders = []lokt.Holder{{
			Claim:      lokt.Claim{Name: st.name, LeaseID: "(none)", Owner: lokt.Owner{ID: "(a program that is about to write its record)"}},
			AcquiredAt: fi.ModTime(), HeldSince: fi.ModTime(), ExpiresAt: fi.ModTime().Add(emptyAge),
		}}
		return nil
	case errors.Is(err, lockfile.ErrCorrupt):
		l.Corrupt = err.Error()
		return nil
	default:
		return s.damaged(st.name, dirLocks, err)
	}
	st.record = r
	st.holders = r.All()
	for _, one := range st.holders {
		h := one.Holder(st.now)
		l.Holders = append(l.Holders, h)
		l.Token = max(l.Token, h.Token)
		if s.state(h) == process.Dead {
			st.markDead(h.LeaseID)
		}
	}
	return nil
}

func (st *state) markDead(leaseID string) {
	if st.snap.Dead == nil {
		st.snap.Dead = map[string]bool{}
	}
	st.snap.Dead[leaseID] = true
}

// queueRead is a queue that was read from data. It is not changed.
type queueRead struct {
	*lockfile.Queue
	data []byte
}

// decodeQueue reads the waiters. A queue that cannot be understood keeps nobody out: its waiters ask again.
func (st *state) decodeQueue(s *Store) error {
	data := st.data[fileQueue]
	if data == nil {
		return nil
	}
	q := s.queue.Load()
	if q == nil || q.Name != st.name || !bytes.Equal(q.data, data) {
		read, err := lockfile.DecodeQueue(st.name, data)
		if errors.Is(err, lockfile.ErrVersion) {
			return s.damaged(st.name, dirQueue, err)
		}
		if err != nil {
			return nil
		}
		q = &queueRead{read, data}
		s.queue.Store(q)
	}
	files := openLive{}
	defer files.close()
	for _, r := range q.Waiters {
		w := r.Waiter(st.now)
		if s.judgeBy(files, w.Owner.Process, w.Owner.Host) == process.Dead {
			st.markDead(w.LeaseID)
		}
		st.snap.Lock.Queue = append(st.snap.Lock.Queue, &w)
	}
	return nil
}

func (st *state) decodeFreeze() {
	data := st.data[fileFreeze]
	if data == nil {
		return
	}
	r, err := lockfile.Decode(st.name, data)
	if err != nil {
		st.snap.Lock.Freeze = &lokt.Freeze{Damaged: err.Error()}
		return
	}
	st.freeze = r
	f := r.Freeze(st.now)
	st.snap.Lock.Freeze = &f
}

// Alive tells whether the process that a holder depends on lives, and whether that is known. For a grant that nobody has
// taken up that is the waiter's process.
func (s *Store) Alive(h lokt.Holder) (alive, known bool) {
	state := s.state(h)
	return state == process.Alive, state != process.Unknown
}

func (s *Store) state(h lokt.Holder) process.State {
	p := h.Process
	if p == nil && !h.Pending.IsZero() {
		p = &h.Owner.Process
	}
	if p == nil {
		return process.Unknown
	}
	return s.judge(*p, h.Owner.Host)
}

func (s *Store) judge(p lokt.Process, host string) process.State {
	files := openLive{}
	defer files.close()
	return s.judgeBy(files, p, host)
}

// judgeBy tells whether a process of the named host lives: by its kernel lock, whose absence says something only where this kernel
// would know of it; by what the process table says otherwise.
func (s *Store) judgeBy(files openLive, p lokt.Process, host string) process.State {
	boot := s.sys.Boot()
	sameHost := host == s.host && (p.Boot == "" || p.Boot == boot || s.isLocal())
	state := process.Unknown
	if p.Boot == "" || boot == "" || p.Boot == boot { // of another boot's record somebody else may have the byte now
		if alive, known := s.self.alive(s, files, p.Liveness); known && alive {
			return process.Alive
		} else if known && p.Boot != "" && p.Boot == boot { // who sees no /proc knows no boot
			state = process.Dead
		}
	}
	if state == process.Unknown {
		state = s.sys.Check(p, sameHost)
	}
	if state == process.Dead && s.childAlive(p, sameHost) {
		return process.Alive
	}
	return state
}

// childAlive reports whether the command of a dead process lives on, having closed the descriptor of the kernel lock.
func (s *Store) childAlive(p lokt.Process, sameHost bool) bool {
	if p.Child == 0 || p.Boot != s.sys.Boot() {
		return false
	}
	child := lokt.Process{PID: p.Child, Start: p.ChildStart, Boot: p.Boot, Namespace: p.Namespace}
	return s.sys.Check(child, sameHost) == process.Alive
}

// publish stores what a change made of the state: what it is about to do, then each file that differs, then the events.
func (s *Store) publish(g *guard, st *state, c lokt.Change) error {
	next, err := st.encode(c.Lock)
	if err != nil {
		return err
	}
	e := &entry{Name: st.name, Carry: g.carry, Lines: string(audit.Encode(c.Events))}
	for f := range next {
		before := contentOf(st.data[f], nil)
		if st.unreadable[f] {
			if f == fileQueue && next[f] == nil || f == fileFreeze && c.Lock.Freeze != nil && c.Lock.Freeze.Damaged != "" {
				continue
			}
			before = contentUnreadable
		}
		if after := contentOf(next[f], nil); after != before || string(next[f]) != string(st.data[f]) {
			e.Files = append(e.Files, entryFile{File: f, Before: before, Gone: next[f] == nil, Data: next[f], How: durability(f, st.snap.Lock, c)})
		}
	}
	if len(e.Files) == 0 && c.Lock.Token <= g.token {
		g.log(e.Lines)
		return nil
	}
	return s.apply(g, st, e, c.Lock)
}

// apply makes the change that the entry describes. When it fails, everything was changed or nothing.
func (s *Store) apply(g *guard, st *state, e *entry, l lokt.Lock) error {
	announced := e
	switch {
	case len(e.Files) == 1:
		announced = &entry{Name: e.Name, Files: []entryFile{{File: e.Files[0].File, Before: e.Files[0].Before}}, Carry: e.Carry, Lines: e.Lines}
	case len(e.Files) > 1:
		for i := range e.Files {
			e.Files[i].Redo, e.Boot = true, g.boot
		}
	}
	if len(e.Files) < 2 && e.Lines == "" && e.Carry == "" {
		announced = nil
	}
	if err := g.prepare(l.Token, announced); err != nil {
		return err
	}
	var doubt error
	for i, f := range e.Files {
		err := s.replace(f.File, e.Name, f.after(), f.How, f.Before)
		switch {
		case err == nil:
		case errors.Is(err, atomicfile.ErrInDoubt):
			doubt = errors.Join(doubt, err)
		default:
			if i == 0 { // nothing was changed yet; if that cannot be noted, all of it will be
				g.carry = e.Carry
				g.abandon()
			}
			return err
		}
	}
	s.wakeLeft(st.snap.Lock.Queue, l.Queue)
	s.forgetHolders(l.Holders)
	g.log(e.Lines)
	if e.durable() { // what comes next may end what it stored
		return errors.Join(doubt, g.f.Sync())
	}
	return doubt
}

// replace publishes one file's new contents, or removes it if data is nil. before is the contentOf the file as it is;
// what cannot be read is moved away first.
func (s *Store) replace(file int, name string, data []byte, d durable, before uint64) error {
	dir := fileDirs[file]
	if before == contentUnreadable {
		if err := s.quarantine(dir, name); err != nil {
			return err
		}
	}
	path := s.path(dir, name)
	if data == nil {
		return atomicfile.Remove(s.fs, path, d == durableDir)
	}
	o := atomicfile.Options{Perm: filePerm, Sync: d != volatile, Durable: d == durableDir}
	return s.inDirs(func() error { return atomicfile.Replace(s.fs, path, data, o) })
}

// encode returns the contents of the three files for the lock. What did not change keeps its very bytes.
func (st *state) encode(l lokt.Lock) (next [files][]byte, err error) {
	next = st.data
	was := st.snap.Lock
	if !reflect.DeepEqual(l.Holders, was.Holders) || l.Corrupt != was.Corrupt {
		if next[fileLock], err = st.encodeHolders(l); err != nil {
			return next, err
		}
	}
	if !reflect.DeepEqual(l.Queue, was.Queue) {
		if next[fileQueue], err = st.encodeQueue(l); err != nil {
			return next, err
		}
	}
	if !reflect.DeepEqual(l.Freeze, was.Freeze) {
		next[fileFreeze] = nil
		if l.Freeze != nil {
			if next[fileFreeze], err = lockfile.FromFreeze(st.name, *l.Freeze, st.now).Encode(st.freeze); err != nil {
				return next, err
			}
		}
	}
	return next, nil
}

func (st *state) encodeHolders(l lokt.Lock) ([]byte, error) {
	if len(l.Holders) == 0 {
		return nil, nil
	}
	records := make([]*lockfile.Record, len(l.Holders))
	for i, h := range l.Holders {
		was := slices.IndexFunc(st.snap.Lock.Holders, func(w lokt.Holder) bool { return w.LeaseID == h.LeaseID })
		if was >= 0 && was < len(st.holders) && reflect.DeepEqual(h, st.snap.Lock.Holders[was]) {
			one := *st.holders[was]
			one.Holders = nil
			records[i] = &one
			continue
		}
		records[i] = lockfile.FromHolder(h, st.now)
	}
	r := records[0]
	if len(records) > 1 {
		first := *r
		first.Holders = records
		r = &first
	}
	return r.Encode(st.record)
}

func (st *state) encodeQueue(l lokt.Lock) ([]byte, error) {
	if len(l.Queue) == 0 {
		return nil, nil
	}
	q := &lockfile.Queue{Name: st.name, Waiters: make([]*lockfile.Record, len(l.Queue))}
	for i, w := range l.Queue {
		q.Waiters[i] = lockfile.FromWaiter(*w, st.now)
	}
	return q.Encode()
}

// durable says how much of a change must survive the loss of power.
type durable int

const (
	volatile    durable = iota // whoever it concerns does not survive it either
	durableFile                // the contents, if the name does
	durableDir                 // contents and name
)

// durability returns what the change of a file needs. Freezes, and holds that no program stands behind, outlive the loss
// of power; holds of running programs end with it. Renewals of guards are flushed all the same (S-52).
func durability(file int, was lokt.Lock, c lokt.Change) durable {
	switch file {
	case fileQueue:
		return volatile
	case fileFreeze:
		return durableDir
	}
	d := volatile
	consider := func(holders []lokt.Holder, other lokt.Lock) {
		for _, h := range holders {
			before, had := other.Holder(h.LeaseID)
			switch {
			case had && reflect.DeepEqual(before, h):
				if h.Process == nil && !h.Attended { // what is on record for good stays so when its file is written anew
					d = max(d, durableFile)
				}
			case h.Process == nil && !h.Attended:
				d = durableDir
			case h.Strict && h.Process != nil && had && before.Renewals != h.Renewals:
				d = max(d, durableFile)
			}
		}
	}
	consider(c.Lock.Holders, was)
	for _, h := range was.Holders {
		if _, still := c.Lock.Holder(h.LeaseID); !still && h.Process == nil && !h.Attended {
			d = durableDir
		}
	}
	return d
}
