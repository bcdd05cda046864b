package filestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"reflect"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/lockfile"
)

// emptyAge is how old an empty record must be to count as damaged: an older program may be about to write it.
const emptyAge = 2 * time.Second

// state is what the files say about a lock, and how they say it.
type state struct {
	name   string
	now    lockfile.Now
	snap   lokt.Snapshot
	data   [3][]byte                   // contents of the lock, queue and freeze files; nil if absent
	record *lockfile.Record            // the lock file, decoded; nil if absent or damaged
	byID   map[string]*lockfile.Record // its holders by lease ID
}

// The files of a lock, in the order in which a change publishes them.
const (
	fileLock = iota
	fileQueue
	fileFreeze
	files
)

var fileDirs = [files]string{dirLocks, dirQueue, dirFreezes}

// load reads what is known about the named lock.
func (s *Store) load(name string, now lockfile.Now) (*state, error) {
	return s.loadFiles(name, now, allFiles)
}

// loadFiles is load without the files that are known to be absent.
func (s *Store) loadFiles(name string, now lockfile.Now, present fileSet) (*state, error) {
	st := &state{name: name, now: now}
	var lockInfo fs.FileInfo
	for f, dir := range fileDirs {
		if !present.has(f) {
			continue
		}
		data, fi, err := atomicfile.ReadRegular(s.fs, s.path(dir, name), lockfile.MaxSize)
		switch {
		case err == nil:
			if data == nil {
				data = []byte{}
			}
			st.data[f] = data
			if f == fileLock {
				lockInfo = fi
			}
		case errors.Is(err, fs.ErrNotExist):
		case f == fileFreeze: // whatever it is, it keeps everybody out
			st.snap.Lock.Freeze = &lokt.Freeze{Damaged: err.Error()}
		default:
			return nil, s.damaged(name, dir, err)
		}
	}
	st.snap.Now = now.Wall
	st.snap.Lock.Name = name
	st.snap.Lock.Revision = st.hash()
	if err := st.decodeLock(s, lockInfo); err != nil {
		return nil, err
	}
	if err := st.decodeQueue(s); err != nil {
		return nil, err
	}
	st.decodeFreeze()
	return st, nil
}

// damaged reports a record that cannot be read: unlike a corrupt one, it may well say that somebody holds the lock.
func (s *Store) damaged(name, dir string, err error) error {
	return &unreadableError{dir, fmt.Errorf("lock %q: %w: %s: %w", name, lokt.ErrDamaged, s.path(dir, name), err)}
}

// hash identifies the state by its contents.
func (st *state) hash() uint64 {
	h := fnv.New64a()
	var n [8]byte
	for _, data := range st.data {
		binary.LittleEndian.PutUint64(n[:], uint64(len(data)))
		if data == nil {
			n[7] = 0xff
		}
		_, _ = h.Write(n[:])
		_, _ = h.Write(data)
	}
	return h.Sum64()
}

func (st *state) decodeLock(s *Store, fi fs.FileInfo) error {
	data := st.data[fileLock]
	if data == nil {
		return nil
	}
	l := &st.snap.Lock
	r, err := lockfile.Decode(st.name, data)
	switch {
	case err == nil:
	case len(data) == 0 && st.now.Wall.Sub(fi.ModTime()) < emptyAge:
		l.Holders = []lokt.Holder{{
			Claim:      lokt.Claim{Name: st.name, Owner: lokt.Owner{ID: "(a program that is about to write its record)"}},
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
	st.byID = make(map[string]*lockfile.Record, max(len(r.Holders), 1))
	for _, one := range r.All() {
		h := one.Holder(st.now)
		if h.LeaseID == "" { // hand-made
			h.LeaseID = fmt.Sprintf("unnamed-%016x-%d", l.Revision, len(l.Holders))
		}
		st.byID[h.LeaseID] = one
		l.Holders = append(l.Holders, h)
		l.Token = max(l.Token, h.Token)
		if s.State(h) == process.Dead {
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

// decodeQueue reads the waiters. A queue that cannot be understood keeps nobody out: its waiters ask again.
func (st *state) decodeQueue(s *Store) error {
	data := st.data[fileQueue]
	if data == nil {
		return nil
	}
	q, err := lockfile.DecodeQueue(st.name, data)
	if errors.Is(err, lockfile.ErrVersion) {
		return s.damaged(st.name, dirQueue, err)
	}
	if err != nil {
		return nil
	}
	for _, r := range q.Waiters {
		w := r.Waiter(st.now)
		if s.dead(w.Owner.Process, w.Owner.Host) {
			st.markDead(w.LeaseID)
		}
		st.snap.Lock.Queue = append(st.snap.Lock.Queue, w)
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
	f := r.Freeze(st.now)
	st.snap.Lock.Freeze = &f
}

// State tells whether the process that a holder depends on lives: the one whose death frees the lock, or for a grant that
// nobody has taken up yet the waiter's. A holder that depends on none is Unknown.
func (s *Store) State(h lokt.Holder) process.State {
	p := h.Process
	if p == nil && !h.Pending.IsZero() {
		p = &h.Owner.Process
	}
	if p == nil {
		return process.Unknown
	}
	return s.judge(*p, h.Owner.Host)
}

func (s *Store) dead(p lokt.Process, host string) bool { return s.judge(p, host) == process.Dead }

// judge tells whether a process of the named host lives: by its kernel lock, if this kernel would know of it; by what the
// process table says otherwise.
func (s *Store) judge(p lokt.Process, host string) process.State {
	boot := process.Self().Boot
	sameHost := host == s.host && (p.Boot == "" || p.Boot == boot || s.isLocal())
	state := process.Unknown
	if p.Liveness != "" && p.Boot != "" && p.Boot == boot {
		if alive, known := s.self.alive(s, p.Liveness); known && alive {
			return process.Alive
		} else if known {
			state = process.Dead
		}
	}
	if state == process.Unknown {
		state = process.Check(p, sameHost)
	}
	if state == process.Dead && childAlive(p, sameHost) {
		return process.Alive
	}
	return state
}

// childAlive reports whether the command that a dead process ran may live on without the process's kernel lock, having
// closed the descriptor that carried it.
func childAlive(p lokt.Process, sameHost bool) bool {
	if p.Child == 0 || p.Boot != process.Self().Boot {
		return false
	}
	child := lokt.Process{PID: p.Child, Start: p.ChildStart, Boot: p.Boot, Namespace: p.Namespace}
	return process.Check(child, sameHost) == process.Alive
}

// publish stores what a change made of the state: the token first, then each file that differs, then the events.
func (s *Store) publish(g *guard, st *state, c lokt.Change) error {
	next, err := st.encode(c.Lock)
	if err != nil {
		return err
	}
	var changed [files]bool
	any := false
	for f := range next {
		changed[f] = (next[f] == nil) != (st.data[f] == nil) || string(next[f]) != string(st.data[f])
		any = any || changed[f]
	}
	if freeze := st.snap.Lock.Freeze; freeze != nil && freeze.Damaged != "" && st.data[fileFreeze] == nil {
		changed[fileFreeze] = c.Lock.Freeze == nil || c.Lock.Freeze.Damaged == ""
		any = any || changed[fileFreeze]
	}
	lines := encodeEvents(c.Events)
	if !any {
		return s.appendAudit(lines)
	}
	if err := g.prepare(c.Lock.Token, st.snap.Lock.Revision, lines); err != nil {
		return err
	}
	for f, dir := range fileDirs {
		if !changed[f] {
			continue
		}
		if err := s.replace(dir, st, next[f], durability(f, st.snap.Lock, c)); err != nil {
			return err
		}
	}
	s.wakeLeft(st.snap.Lock.Queue, c.Lock.Queue)
	if err := s.appendAudit(lines); err != nil {
		s.o.Warn(fmt.Errorf("audit log: %w", err))
		return nil // the journal keeps the lines for whoever changes a lock of this shard next
	}
	return g.settle()
}

// replace publishes one file's new contents, or removes it if data is nil.
func (s *Store) replace(dir string, st *state, data []byte, d durable) error {
	path := s.path(dir, st.name)
	if data == nil {
		if fi, err := s.fs.Lstat(path); err == nil && !fi.Mode().IsRegular() {
			return s.quarantine(dir, st.name)
		}
		return atomicfile.Remove(s.fs, path, d == durableDir)
	}
	return atomicfile.Replace(s.fs, path, data, atomicfile.Options{Perm: filePerm, Sync: d != volatile, Durable: d == durableDir})
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
			if next[fileFreeze], err = lockfile.FromFreeze(st.name, *l.Freeze, st.now).Encode(nil); err != nil {
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
		old := st.byID[h.LeaseID]
		if was, ok := st.snap.Lock.Holder(h.LeaseID); ok && old != nil && reflect.DeepEqual(h, was) {
			one := *old
			one.Holders = nil
			records[i] = &one
			continue
		}
		records[i] = lockfile.FromHolder(h, st.now)
	}
	first := *records[0]
	if len(records) > 1 {
		first.Holders = records
	}
	return first.Encode(st.record)
}

func (st *state) encodeQueue(l lokt.Lock) ([]byte, error) {
	if len(l.Queue) == 0 {
		return nil, nil
	}
	q := lockfile.Queue{Name: st.name}
	for _, w := range l.Queue {
		q.Waiters = append(q.Waiters, lockfile.FromWaiter(w, st.now))
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

// durability returns what the change of a file needs. Holds without a program behind them, and freezes, are promises that
// outlive everything; those of running programs end with the power anyway; and what a program renewed is written as
// carefully as a renewal can be.
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
			case h.Process == nil && !h.Attended:
				d = durableDir
			case h.Process == nil || had && before.Renewals != h.Renewals:
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
