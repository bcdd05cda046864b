// Package faultvfs puts a layer between SQLite and its files, for tests: operations fail on cue, with the codes that
// SQLite gives them when the system fails, and it is followed what a disk has of each file, so that the power can be
// cut.
//
// A flush that fails behaves as those of Linux do: some of what was written since the last one is on the disk, the
// rest is not and never will be, because the next flush knows nothing of it and succeeds. Only what is written again
// can be flushed again. Nothing is flushed in truth, which takes long and would change nothing of this.
package faultvfs

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// Op is an operation on a file.
type Op string

// The operations that can fail.
const (
	Open     Op = "open"
	Delete   Op = "delete"
	Size     Op = "size"
	Read     Op = "read"
	Write    Op = "write"
	Truncate Op = "truncate"
	Sync     Op = "sync"
	Map      Op = "map" // of the memory that connections share, the file PATH-shm
)

// Outcome is what becomes of an operation.
type Outcome int

// The outcomes. Half is for writes: half of the bytes are written before it fails. Full is Fail for want of space.
const (
	Pass Outcome = iota
	Fail
	Half
	Full
)

// FS is the layer. Keep it as long as the process opens databases.
type FS struct {
	decide func(op Op, path string) Outcome
	inner  uintptr // the VFS below
	keep   []any   // what SQLite has pointers to

	mu    sync.Mutex
	own   map[uintptr]uintptr  // methods of files, by those below
	files map[uintptr]openFile // by address
	disks map[string]*disk     // by path
}

// openFile is a file that SQLite has open.
type openFile struct {
	path string
	call sqlite3.Tsqlite3_io_methods // below
}

// Install makes all databases that this process opens from now on go through a layer. decide is called before every
// operation, by any goroutine, with the path of the file: of the database, or with -wal or -shm after it.
func Install(decide func(op Op, path string) Outcome) (*FS, error) {
	f := &FS{decide: decide, own: map[uintptr]uintptr{}, files: map[uintptr]openFile{}, disks: map[string]*disk{}}
	tls := libc.NewTLS()
	defer tls.Close()
	if f.inner = sqlite3.Xsqlite3_vfs_find(tls, 0); f.inner == 0 {
		return nil, errors.New("faultvfs: SQLite has no VFS")
	}
	name, err := libc.CString("fault")
	if err != nil {
		return nil, err
	}
	p := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_vfs{})))
	if p == 0 {
		return nil, errors.New("faultvfs: out of memory")
	}
	vfs := at[sqlite3.Tsqlite3_vfs](p)
	*vfs = *at[sqlite3.Tsqlite3_vfs](f.inner)
	vfs.FzName, vfs.FpNext = name, 0
	vfs.FxOpen, vfs.FxDelete = pointer(f, f.open), pointer(f, f.remove)
	if rc := sqlite3.Xsqlite3_vfs_register(tls, p, 1); rc != sqlite3.SQLITE_OK {
		return nil, fmt.Errorf("faultvfs: SQLite answers %d", rc)
	}
	return f, nil
}

// at is what is at an address of SQLite's memory.
func at[T any](p uintptr) *T { return *(**T)(unsafe.Pointer(&p)) }

// pointer is a function as SQLite calls it.
func pointer[F any](f *FS, fn F) uintptr {
	f.keep = append(f.keep, fn)
	return *(*uintptr)(unsafe.Pointer(&fn))
}

// function is a function of SQLite's.
func function[F any](p uintptr) F { return *(*F)(unsafe.Pointer(&p)) }

type (
	openFunc  = func(tls *libc.TLS, vfs, path, file uintptr, flags int32, out uintptr) int32
	pathFunc  = func(tls *libc.TLS, vfs, path uintptr, arg int32) int32
	bytesFunc = func(tls *libc.TLS, file, buf uintptr, n int32, offset int64) int32
	sizeFunc  = func(tls *libc.TLS, file uintptr, size int64) int32
	outFunc   = func(tls *libc.TLS, file, out uintptr) int32
	fileFunc  = func(tls *libc.TLS, file uintptr) int32
	mapFunc   = func(tls *libc.TLS, file uintptr, region, size, extend int32, out uintptr) int32
)

func (f *FS) open(tls *libc.TLS, _, path, file uintptr, flags int32, out uintptr) int32 {
	name := ""
	if path != 0 {
		name = libc.GoString(path)
		if f.decide(Open, name) != Pass {
			at[sqlite3.Tsqlite3_file](file).FpMethods = 0
			return sqlite3.SQLITE_CANTOPEN
		}
	}
	rc := function[openFunc](at[sqlite3.Tsqlite3_vfs](f.inner).FxOpen)(tls, f.inner, path, file, flags, out)
	if rc != sqlite3.SQLITE_OK || name == "" {
		return rc
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	head := at[sqlite3.Tsqlite3_file](file)
	f.files[file] = openFile{name, *at[sqlite3.Tsqlite3_io_methods](head.FpMethods)}
	head.FpMethods = f.wrap(tls, head.FpMethods)
	d := f.disks[name]
	if d != nil && !d.left.IsZero() {
		if info, err := os.Stat(name); err != nil || !info.ModTime().Equal(d.left) {
			d = nil // others have written it, and flushed
		}
	}
	if d == nil {
		d = &disk{blocks: map[int64][]byte{}, dirty: map[int64]bool{}}
		f.disks[name] = d
		d.soil(0, f.length(tls, file))
		f.settle(tls, file, d)
	}
	return rc
}

// wrap returns methods of files that call others.
func (f *FS) wrap(tls *libc.TLS, methods uintptr) uintptr {
	if own := f.own[methods]; own != 0 {
		return own
	}
	own := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(sqlite3.Tsqlite3_io_methods{})))
	m := at[sqlite3.Tsqlite3_io_methods](own)
	*m = *at[sqlite3.Tsqlite3_io_methods](methods)
	m.FxClose, m.FxSync, m.FxWrite = pointer(f, f.close), pointer(f, f.sync), pointer(f, f.write)
	m.FxFileSize = gate[outFunc](f, Size, "", sqlite3.SQLITE_IOERR_FSTAT, m.FxFileSize)
	m.FxRead = gate[bytesFunc](f, Read, "", sqlite3.SQLITE_IOERR_READ, m.FxRead)
	m.FxTruncate = gate[sizeFunc](f, Truncate, "", sqlite3.SQLITE_IOERR_TRUNCATE, m.FxTruncate)
	if m.FxShmMap != 0 {
		m.FxShmMap = gate[mapFunc](f, Map, "-shm", sqlite3.SQLITE_IOERR_SHMMAP, m.FxShmMap)
	}
	m.FiVersion = min(m.FiVersion, 2) // no files in memory
	f.own[methods] = own
	return own
}

// gate returns a method of files, whose second argument says which, that fails with a code on cue, or else calls the one
// below.
func gate[F any](f *FS, op Op, suffix string, failed int32, below uintptr) uintptr {
	call := reflect.ValueOf(function[F](below))
	return pointer(f, reflect.MakeFunc(call.Type(), func(args []reflect.Value) []reflect.Value {
		if f.decide(op, f.of(uintptr(args[1].Uint())).path+suffix) != Pass {
			return []reflect.Value{reflect.ValueOf(failed)}
		}
		return call.Call(args)
	}).Interface().(F))
}

// of returns an open file.
func (f *FS) of(file uintptr) openFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.files[file]
}

func (f *FS) remove(tls *libc.TLS, _, path uintptr, sync int32) int32 {
	name := libc.GoString(path)
	if f.decide(Delete, name) != Pass {
		return sqlite3.SQLITE_IOERR_DELETE
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.disks, name)
	return function[pathFunc](at[sqlite3.Tsqlite3_vfs](f.inner).FxDelete)(tls, f.inner, path, sync)
}

func (f *FS) close(tls *libc.TLS, file uintptr) int32 {
	f.mu.Lock()
	call := f.files[file].call
	delete(f.files, file)
	f.mu.Unlock()
	return function[fileFunc](call.FxClose)(tls, file)
}

func (f *FS) write(tls *libc.TLS, file, buf uintptr, n int32, offset int64) int32 {
	o := f.of(file)
	failed := int32(sqlite3.SQLITE_OK)
	switch f.decide(Write, o.path) {
	case Fail:
		return sqlite3.SQLITE_IOERR_WRITE
	case Full:
		return sqlite3.SQLITE_FULL
	case Half:
		n, failed = n/2, sqlite3.SQLITE_IOERR_WRITE
	case Pass:
	}
	f.mu.Lock()
	f.disks[o.path].soil(offset, int64(n))
	f.disks[o.path].left = time.Time{}
	f.mu.Unlock()
	if rc := function[bytesFunc](o.call.FxWrite)(tls, file, buf, n, offset); rc != sqlite3.SQLITE_OK {
		return rc
	}
	return failed
}

func (f *FS) sync(tls *libc.TLS, file uintptr, _ int32) int32 {
	o := f.of(file)
	failed := f.decide(Sync, o.path) != Pass
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.disks[o.path]
	if failed {
		for block := range d.dirty {
			if rand.IntN(2) == 0 {
				delete(d.dirty, block) // and nobody remembers
			}
		}
	}
	f.settle(tls, file, d)
	if failed {
		return sqlite3.SQLITE_IOERR_FSYNC
	}
	return sqlite3.SQLITE_OK
}

// blockSize is what a disk keeps or loses as one.
const blockSize = 4096

// disk is what a disk has of a file.
type disk struct {
	blocks map[int64][]byte // by number
	size   int64
	dirty  map[int64]bool // blocks that were written and not flushed
	left   time.Time      // when it was written last, if nobody has written it here since it was copied
}

// soil notes that a part of the file was written.
func (d *disk) soil(offset, n int64) {
	for b := offset / blockSize; b*blockSize < offset+n; b++ {
		d.dirty[b] = true
	}
}

// settle moves what is dirty to the disk.
func (f *FS) settle(tls *libc.TLS, file uintptr, d *disk) {
	d.size = f.length(tls, file)
	for b := range d.dirty {
		d.blocks[b] = f.block(tls, file, b)
	}
	clear(d.dirty)
}

func (f *FS) length(tls *libc.TLS, file uintptr) int64 {
	p := tls.Alloc(8)
	defer tls.Free(8)
	if rc := function[outFunc](f.files[file].call.FxFileSize)(tls, file, p); rc != sqlite3.SQLITE_OK {
		return 0
	}
	return *at[int64](p)
}

// block reads a block of a file, with zeros after its end.
func (f *FS) block(tls *libc.TLS, file uintptr, b int64) []byte {
	p := tls.Alloc(blockSize)
	defer tls.Free(blockSize)
	clear(unsafe.Slice(at[byte](p), blockSize))
	function[bytesFunc](f.files[file].call.FxRead)(tls, file, p, blockSize, b*blockSize)
	return append([]byte(nil), unsafe.Slice(at[byte](p), blockSize)...)
}

// Copy writes the database at a path, as it is at this moment, to another path: what a process finds that is started
// after this one was killed. What the disk does not have it still does not have.
func (f *FS) Copy(from, to string) error { return f.save(from, to, false) }

// Cut writes the database at a path to another path as the disk has it: what is found after the power failed. Whatever
// was written and not flushed may be there or not; what a flush that failed has lost, is not.
func (f *FS) Cut(from, to string) error { return f.save(from, to, true) }

func (f *FS) save(from, to string, cut bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	for _, suffix := range []string{"", "-wal"} {
		d := f.disks[from+suffix]
		if d == nil {
			continue
		}
		content, err := f.content(from+suffix, d, cut)
		if err != nil {
			return err
		}
		if err := os.WriteFile(to+suffix, content, 0o600); err != nil {
			return err
		}
		if cut {
			continue
		}
		left := time.Unix(1_000_000_000, 0)
		if err := os.Chtimes(to+suffix, left, left); err != nil {
			return err
		}
		f.disks[to+suffix] = &disk{maps.Clone(d.blocks), d.size, maps.Clone(d.dirty), left}
	}
	return nil
}

// content returns what a file has, or the disk has of it.
func (f *FS) content(path string, d *disk, cut bool) ([]byte, error) {
	tls := libc.NewTLS()
	defer tls.Close()
	var file uintptr
	for open, o := range f.files {
		if o.path == path {
			file = open
		}
	}
	if file == 0 { // nobody has it open, so reading it ends no lock
		whole, err := os.ReadFile(path)
		if err != nil || !cut {
			return whole, err
		}
		return nil, fmt.Errorf("faultvfs: %s is not open", path)
	}
	if !cut {
		var all []byte
		size := f.length(tls, file)
		for b := int64(0); b*blockSize < size; b++ {
			all = append(all, f.block(tls, file, b)...)
		}
		return all[:size], nil
	}
	size := d.size
	blocks := maps.Clone(d.blocks)
	for b := range d.dirty {
		if rand.IntN(2) == 0 {
			blocks[b] = f.block(tls, file, b)
			size = max(size, min((b+1)*blockSize, f.length(tls, file)))
		}
	}
	all := make([]byte, 0, size)
	for b := int64(0); b*blockSize < size; b++ {
		content := blocks[b]
		if content == nil {
			content = make([]byte, blockSize)
		}
		all = append(all, content...)
	}
	return all[:size], nil
}
