package sim

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/kernel"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/lockfile"
	"github.com/lokt-dev/lokt/store/filestore"
)

// host is a machine with lock files: its disk, its processes, its kernel's locks and its clocks.
type host struct {
	w *world

	mu      sync.Mutex
	names   map[string]*node   // by path
	past    map[string][]*node // what stood at a path since its directory was flushed last, oldest first
	open    map[*file]bool
	watches map[string][]watcher // by path
	inodes  uint64
	version int // changes with what can be seen

	booted   time.Duration
	wall     time.Duration // of its wall clock, ahead of the world's
	most     time.Duration // that this ever was
	stepped  bool          // it was set
	back     bool          // and back
	deleted  bool          // files were: tokens rise from there on only if it is not set back
	running  map[int]int64 // process IDs, and when each started, in nanoseconds since the boot
	used     map[int]bool  // process IDs
	liveness bool          // the kernel has locks that tell who lives
	lines    []string      // of the audit log

	oracle  *filestore.Store // sees all, and disturbs nothing
	seen    map[string]lokt.Snapshot
	at      map[string]int       // version in which it was
	tokens  map[string]uint64    // by lock, the highest
	granted map[grant]bool       // that were seen
	since   map[string]time.Time // by lease: who waits
	lost    map[string]bool      // leases whose records others have touched
}

// grant is what the files never give twice.
type grant struct {
	lease string
	token uint64
}

func newHost(w *world, r *rand.Rand) *host {
	return &host{
		w: w, names: map[string]*node{}, past: map[string][]*node{}, open: map[*file]bool{}, watches: map[string][]watcher{}, running: map[int]int64{}, used: map[int]bool{},
		liveness: r.IntN(3) > 0, seen: map[string]lokt.Snapshot{}, at: map[string]int{}, tokens: map[string]uint64{}, granted: map[grant]bool{}, since: map[string]time.Time{}, lost: map[string]bool{},
	}
}

// system returns the host as a process sees it, which begins then. Without one it is the world that looks.
func (h *host) system(a *actor) kernel.System {
	boot, booted, me := fmt.Sprint("boot", h.w.boot), h.booted, lokt.Process{}
	if a != nil {
		me = lokt.Process{PID: h.start(a), Boot: boot}
		me.Start = h.running[me.PID]
	}
	d := &disk{host: h, a: a}
	return kernel.System{
		FS: d, Log: d, Host: "host", Flock: d.flock, LockByte: d.lockByte, ByteLocked: d.byteLocked,
		Boot:  func() string { return boot },
		Self:  func() lokt.Process { return me },
		Watch: func(gone func(string)) (kernel.Watcher, error) { return watcher{d, gone}, nil },
		Clock: func() lockfile.Now {
			now := time.Now().Round(0)
			if a != nil {
				now = now.Add(h.wall)
			}
			return lockfile.Now{Wall: now, Monotonic: h.w.now() - booted, BootID: boot}
		},
		Check: func(p lokt.Process, sameHost bool) process.State {
			h.mu.Lock()
			defer h.mu.Unlock()
			return process.CheckOn(boot, func(pid int) (int64, bool) { start, ok := h.running[pid]; return start, ok }, p, sameHost)
		},
	}
}

// start gives the process the lowest ID that none has.
func (h *host) start(a *actor) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	pid := 100
	for h.running[pid] != 0 {
		pid++
	}
	if h.used[pid] {
		h.w.count("a process ID is used again")
	}
	h.used[pid], h.running[pid] = true, int64(h.w.now()-h.booted)+1
	a.bury = func() { // what the kernel takes when it ends
		h.mu.Lock()
		defer h.mu.Unlock()
		a.bury = nil
		for f := range h.open {
			f.leave(a)
		}
		delete(h.running, pid)
		h.version++
	}
	return pid
}

func (d *disk) flock(f process.Descriptor, lock bool) (got bool, err error) {
	of, p := f.(*file), pointNone
	if d.mu.Lock(); lock && of.locker == nil {
		p = pointLock
	}
	d.mu.Unlock()
	return got, d.do(p, "lock", of.path, func(fault) error {
		if got = of.locker == nil || of.locker == of; got {
			if of.locker = nil; lock {
				of.locker = of
			}
		}
		return nil
	})
}

func (d *disk) lockByte(f process.Descriptor, off int64) error {
	return d.do(pointNone, "lock", "a byte", func(fault) error {
		if !d.liveness {
			return syscall.EINVAL
		}
		f.(*file).bytes[off] = f.(*file)
		return nil
	})
}

func (d *disk) byteLocked(f process.Descriptor, off int64) (locked bool, err error) {
	return locked, d.do(pointNone, "look at", "a byte", func(fault) error { locked = f.(*file).bytes[off] != nil; return nil })
}

// watcher is a process's kernel.Watcher.
type watcher struct {
	*disk
	gone func(string)
}

// Add implements kernel.Watcher.
func (w watcher) Add(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.w.allowed[blind] && w.a.index%3 == 0 {
		w.w.count(blind)
		w.hush = true
		return syscall.ENOSPC
	}
	w.watches[path] = append(w.watches[path], w)
	return nil
}

func (w watcher) Remove(string) error { return nil }
func (w watcher) Close() error        { return nil }

// Append implements kernel.Log.
func (d *disk) Append(lines []byte) error {
	return d.do(pointLog, "append", "audit.log", func(f fault) (err error) {
		all := slices.Collect(strings.Lines(string(lines)))
		if f == cut {
			all, err = all[:len(all)/2], syscall.ENOSPC
		}
		for _, line := range all {
			if slices.Contains(d.lines, line) {
				d.w.broke("audit log", "it has twice: %s", line)
			}
			d.lines = append(d.lines, line)
		}
		return err
	})
}

// Read implements kernel.Log.
func (d *disk) Read(context.Context, lokt.EventQuery) iter.Seq2[audit.Entry, error] {
	return func(yield func(audit.Entry, error) bool) {
		for _, line := range d.lines {
			if !yield(audit.Entry{Raw: []byte(strings.TrimSuffix(line, "\n"))}, nil) {
				return
			}
		}
	}
}

// changes counts those of the files, for who looks while processes go on.
func (h *host) changes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.version
}

// look returns a lock as it is.
func (w *world) look(name string) lokt.Snapshot {
	h := w.host
	if h == nil {
		return w.db.look(name)
	}
	if h.oracle == nil {
		h.oracle, _ = filestore.OpenOn(h.system(nil), "/", filestore.Options{})
	}
	before, had := h.seen[name]
	if before.Now = time.Now(); had && h.at[name] == h.changes() {
		return before
	}
	snap, err := h.oracle.View(context.Background(), name)
	if h.seen[name], h.at[name] = snap, h.changes(); had && err == nil {
		h.changed(before, snap.Lock)
	}
	return snap
}

// changed looks at a change of a lock.
func (h *host) changed(before lokt.Snapshot, after lokt.Lock) {
	c, highest := lokt.Change{Lock: after}, h.tokens[after.Name]
	before.Lock.Token, before.Lock.Holders = highest, slices.Clone(before.Lock.Holders)
	for _, q := range after.Queue {
		if h.since[q.LeaseID] != q.Since { // who has its place back is not new
			h.since[q.LeaseID] = q.Since
			c.Events = append(c.Events, lokt.Event{Type: lokt.EventWait, LeaseID: q.LeaseID, Extra: map[string]string{lokt.ExtraOutcome: "started"}})
		}
	}
	for _, n := range after.Holders {
		if n.Token == 0 { // an empty record
			return
		}
		if h.granted[grant{n.LeaseID, n.Token}] { // whose record was lost, or replaced by a change that was taken back
			before.Lock.Holders = append(slices.DeleteFunc(before.Lock.Holders, func(o lokt.Holder) bool { return o.LeaseID == n.LeaseID }), n)
		}
		h.granted[grant{n.LeaseID, n.Token}], highest = true, max(highest, n.Token)
	}
	h.tokens[after.Name], c.Lock.Token = highest, highest
	h.w.changed(before, c)
}
