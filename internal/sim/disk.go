package sim

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// The points of a disk and its kernel, and faults that only these have.
const (
	pointOpen  point = 100 + iota // something is looked at
	pointWrite                    // a file is about to be written
	pointName                     // a name is about to be made, changed or removed
	pointSync                     // something is about to be flushed
	pointLock                     // the kernel is asked for a lock
	pointLog                      // the audit log is about to be written
	pointNone                     // nothing waits here

	cut   fault = 100 + iota // half is done
	split                    // others see half of it done
)

// sector is what a disk writes whole or not at all, in bytes.
const sector = 512

// node is a file or a directory, whatever its names.
type node struct {
	number uint64
	dir    bool
	data   []byte // as processes see it
	safe   []byte // what was on the disk when everything was
	writes []write
	at     time.Time
	locker *file           // who has locked it
	bytes  map[int64]*file // who has locked a byte
}

// write is one that may not be on the disk.
type write struct {
	off  int64
	data []byte
	is   flushed
}

type flushed int

const (
	pending flushed = iota
	sure            // it is on the disk
	doomed          // the fsync that was to flush it failed: later ones do not
)

func (w write) onto(data []byte) []byte {
	data = append(data, make([]byte, max(0, int(w.off)+len(w.data)-len(data)))...)
	copy(data[w.off:], w.data)
	return data
}

// crash leaves of each write that was not flushed all, some sectors, or nothing.
func (n *node) crash(r *rand.Rand, kept float64) {
	for _, w := range n.writes {
		torn := r.Float64() < 0.2
		for at, end := 0, 0; at < len(w.data); at = end {
			if end = len(w.data); torn {
				end = min(end, at+sector-int(w.off+int64(at))%sector)
			}
			if w.is == sure || r.Float64() < kept {
				n.safe = write{off: w.off + int64(at), data: w.data[at:end]}.onto(n.safe)
			}
		}
	}
	n.data, n.writes, n.locker, n.bytes = slices.Clone(n.safe), nil, nil, map[int64]*file{}
}

// crash leaves of names and contents that were not flushed old ones or new.
func (h *host) crash(r *rand.Rand) {
	kept := [...]float64{0, 0.5, 1}[r.IntN(3)]
	for _, path := range slices.Sorted(maps.Keys(h.past)) {
		all := h.past[path]
		h.names[path] = all[int(kept)*(len(all)-1)]
		if at := r.IntN(len(all)); kept == 0.5 {
			h.names[path] = all[at]
		}
	}
	done := map[*node]bool{nil: true}
	for _, path := range slices.Sorted(maps.Keys(h.names)) {
		n, dir := h.names[path], filepath.Dir(path)
		if n == nil || dir != "/" && h.names[dir] == nil || atomicfile.IsTemp(filepath.Base(path)) {
			delete(h.names, path)
		} else if !done[n] {
			done[n] = true
			n.crash(r, kept)
		}
	}
	clear(h.past)
	clear(h.open)
	clear(h.watches)
	h.version++
}

// file is an open file description, which a child shares.
type file struct {
	*node
	d      *disk
	path   string
	off    int64
	owners []*actor
}

// disk is a host's as one process sees it. Without a process nothing waits, and nothing fails.
type disk struct {
	*host
	a    *actor
	hush bool // the next removal is part of another step
}

var errDead = errors.New("this process is dead")

// do does a step when it may.
func (d *disk) do(p point, op, path string, act func(f fault) error) (err error) {
	f := fine
	if d.a != nil && p == pointNone && d.a.died {
		f = dead
	} else if d.a != nil && p != pointNone {
		shown := path
		if atomicfile.IsTemp(filepath.Base(path)) {
			shown = filepath.Dir(path) + "/(temporary)"
		}
		f = d.a.pass(d.a.ctx, p, op+" "+shown)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case f == fine, f == cut, f == split:
		err = act(f)
	case f != refused:
		err = errDead
	case p == pointWrite:
		err = syscall.ENOSPC
	default:
		err = syscall.EIO
	}
	if err != nil && err != io.EOF { //nolint:errorlint // as it was made
		err = &fs.PathError{Op: op, Path: path, Err: err}
	}
	return err
}

// OpenFile implements vfs.FS. A published file does not change, so that it is read in the same step.
func (d *disk) OpenFile(path string, flag int, _ fs.FileMode) (vfs.File, error) {
	p, op, f := pointOpen, "open", &file{d: d, path: path, owners: []*actor{d.a}}
	if filepath.Dir(path) == "/wake" { // while others of the process may wait for a mutex
		p = pointNone
	} else if flag&os.O_CREATE != 0 {
		p, op = pointName, "create"
	}
	err := d.do(p, op, path, func(fault) error {
		switch f.node = d.names[path]; {
		case f.node != nil && flag&os.O_EXCL != 0:
			return fs.ErrExist
		case f.node == nil && (flag&os.O_CREATE == 0 || d.names[filepath.Dir(path)] == nil):
			return fs.ErrNotExist
		case f.node == nil:
			f.node = d.newNode(false)
			d.name(path, f.node)
		}
		if d.a != nil {
			d.open[f] = true
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (h *host) newNode(dir bool) *node {
	h.inodes++
	return &node{number: h.inodes, dir: dir, at: time.Now().Add(h.wall), bytes: map[int64]*file{}}
}

// name makes the node, or nothing, what stands at the path.
func (h *host) name(path string, n *node) {
	was := h.names[path]
	if h.past[path] == nil {
		h.past[path] = []*node{was}
	}
	h.past[path] = append(h.past[path], n)
	if h.names[path] = n; n == nil {
		delete(h.names, path)
	}
	for _, who := range h.watches[path] {
		h.w.running.Go(func() {
			if who.a.pass(who.a.ctx, pointWork, "hears that it may look at its lock") == fine {
				who.gone(path)
			}
		})
	}
	delete(h.watches, path)
	h.version++
}

// Rename implements vfs.FS.
func (d *disk) Rename(from, to string) error {
	return d.do(pointName, "rename", to, func(fault) error {
		if d.names[from] == nil {
			return fs.ErrNotExist
		}
		d.name(to, d.names[from])
		d.name(from, nil)
		return nil
	})
}

// Remove implements vfs.FS.
func (d *disk) Remove(path string) error {
	p := pointName
	if d.hush {
		p, d.hush = pointNone, false
	}
	return d.do(p, "remove", path, func(fault) error {
		if d.names[path] == nil {
			return fs.ErrNotExist
		}
		d.name(path, nil)
		return nil
	})
}

// Mkdir implements vfs.FS.
func (d *disk) Mkdir(path string, _ fs.FileMode) error {
	return d.do(pointNone, "mkdir", path, func(fault) error {
		if d.names[path] != nil {
			return fs.ErrExist
		}
		d.name(path, d.newNode(true))
		return nil
	})
}

// SyncDir implements vfs.FS.
func (d *disk) SyncDir(dir string) error {
	p := pointSync
	if dir == "/" { // made with what lies in it
		p = pointNone
	}
	return d.do(p, "fsync", dir, func(fault) error {
		maps.DeleteFunc(d.past, func(path string, _ []*node) bool { return filepath.Dir(path) == dir })
		return nil
	})
}

// Lstat implements vfs.FS. Who waits for a kernel lock looks often whether that is still the file, and waits for nobody.
func (d *disk) Lstat(path string) (i fs.FileInfo, err error) {
	p := pointNone
	d.mu.Lock()
	if n := d.names[path]; n != nil && n.locker != nil && n.locker.d == d {
		p = pointOpen
	}
	d.mu.Unlock()
	return i, d.do(p, "lstat", path, func(fault) error {
		if d.names[path] == nil {
			return fs.ErrNotExist
		}
		i = d.info(path, d.names[path])
		return nil
	})
}

// ReadDir implements vfs.FS: in the order of names.
func (d *disk) ReadDir(dir string) (all []fs.DirEntry, err error) {
	err = d.do(pointOpen, "list", dir, func(fault) error {
		for _, path := range slices.Sorted(maps.Keys(d.names)) {
			if filepath.Dir(path) == dir {
				all = append(all, fs.FileInfoToDirEntry(d.info(path, d.names[path])))
			}
		}
		return nil
	})
	return all, err
}

// info is an fs.FileInfo.
type info struct {
	node
	path  string
	links int
}

func (h *host) info(path string, n *node) info {
	i := info{node: *n, path: path}
	for _, o := range h.names {
		if o == n {
			i.links++
		}
	}
	return i
}

func (i info) Name() string       { return filepath.Base(i.path) }
func (i info) Size() int64        { return int64(len(i.data)) }
func (i info) ModTime() time.Time { return i.at }
func (i info) IsDir() bool        { return i.dir }
func (i info) Sys() any           { return sysInfo(i.number, i.links) }
func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir
	}
	return 0
}

func (f *file) Name() string { return f.path }
func (f *file) Fd() uintptr  { return ^uintptr(0) }

func (f *file) Stat() (i fs.FileInfo, err error) {
	return i, f.d.do(pointNone, "stat", f.path, func(fault) error { i = f.d.info(f.path, f.node); return nil })
}

func (f *file) Read(b []byte) (n int, err error) {
	err = f.d.do(pointNone, "read", f.path, func(fault) error { n, err = f.read(b, f.off); return err })
	f.off += int64(n)
	return n, err
}

// ReadAt implements vfs.File. The number of a change alone is looked at without leave.
func (f *file) ReadAt(b []byte, off int64) (n int, err error) {
	p := pointOpen
	if len(b) == 8 {
		p = pointNone
	}
	return n, f.d.do(p, "read", f.path, func(fault) error { n, err = f.read(b, off); return err })
}

func (f *file) read(b []byte, off int64) (int, error) {
	n := copy(b, f.data[min(off, int64(len(f.data))):])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) Write(b []byte) (int, error) {
	n, err := f.WriteAt(b, f.off)
	f.off += int64(n)
	return n, err
}

// WriteAt implements vfs.File. A write may be done in two parts: over what was there already, sector by sector.
func (f *file) WriteAt(b []byte, off int64) (n int, err error) {
	add := func(to int) {
		w := write{off: off + int64(n), data: bytes.Clone(b[n:to])}
		f.writes, f.data, f.at, n = append(f.writes, w), w.onto(f.data), time.Now().Add(f.d.wall), to
		f.d.version++
	}
	err = f.d.do(pointWrite, "write", f.path, func(what fault) error {
		part := len(b)
		if what != fine {
			if part /= 2; off+int64(part) < int64(len(f.data)) {
				part -= min(part, int(off+int64(part))%sector)
			}
		}
		if add(part); what == cut {
			return syscall.ENOSPC
		}
		return nil
	})
	if err == nil && n < len(b) {
		err = f.d.do(pointWork, "write the rest of", f.path, func(fault) error { add(len(b)); return nil })
	}
	return n, err
}

// Sync implements vfs.File.
func (f *file) Sync() error {
	mark := func(is flushed) {
		for i := range f.writes {
			if f.writes[i].is == pending {
				f.writes[i].is = is
			}
		}
	}
	err := f.d.do(pointSync, "fsync", f.path, func(fault) error { mark(sure); return nil })
	if errors.Is(err, syscall.EIO) {
		mark(doomed)
	}
	if !slices.ContainsFunc(f.writes, func(w write) bool { return w.is != sure }) {
		f.safe, f.writes = slices.Clone(f.data), nil
	}
	return err
}

// Close implements vfs.File.
func (f *file) Close() error {
	return f.d.do(pointNone, "close", f.path, func(fault) error { f.leave(f.d.a); return nil })
}

// leave ends what the process has of the description, and with the last one its locks.
func (f *file) leave(a *actor) {
	if f.owners = slices.DeleteFunc(f.owners, func(o *actor) bool { return o == a }); len(f.owners) > 0 {
		return
	}
	delete(f.d.open, f)
	if f.locker == f {
		f.locker = nil
	}
	maps.DeleteFunc(f.bytes, func(_ int64, o *file) bool { return o == f })
	f.d.version++
}
