package faultfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rawFile is an open file without what os.File has beside its descriptor, which a file that is open for microseconds need
// not have. It must not be closed while it is used.
type rawFile struct {
	fd   atomic.Int64 // -1 when it is closed
	name string
}

func openRaw(name string, flag int, perm fs.FileMode) (File, error) {
	fd, err := openFD(name, flag, perm)
	if err != nil {
		return nil, err
	}
	f := &rawFile{name: name}
	f.fd.Store(int64(fd))
	return f, nil
}

// do calls the function with the descriptor until no signal interrupts it.
func (f *rawFile) do(op string, call func(fd int) (int, error)) (int, error) {
	fd := int(f.fd.Load())
	if fd < 0 {
		return 0, &fs.PathError{Op: op, Path: f.name, Err: os.ErrClosed}
	}
	for {
		n, err := call(fd)
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, unix.EINTR):
			return 0, &fs.PathError{Op: op, Path: f.name, Err: err}
		}
	}
}

// fill calls the function until it has dealt with all bytes; stop is the error if it deals with none.
func (f *rawFile) fill(op string, b []byte, stop error, call func(fd int, rest []byte, done int) (int, error)) (done int, err error) {
	for done < len(b) {
		n, err := f.do(op, func(fd int) (int, error) { return call(fd, b[done:], done) })
		if err != nil {
			return done, err
		}
		if n == 0 {
			return done, stop
		}
		done += n
	}
	return done, nil
}

func (f *rawFile) Read(b []byte) (int, error) {
	n, err := f.do("read", func(fd int) (int, error) { return unix.Read(fd, b) })
	if err == nil && n == 0 && len(b) > 0 {
		err = io.EOF
	}
	return n, err
}

func (f *rawFile) ReadAt(b []byte, off int64) (int, error) {
	return f.fill("read", b, io.EOF, func(fd int, rest []byte, done int) (int, error) { return unix.Pread(fd, rest, off+int64(done)) })
}

func (f *rawFile) Write(b []byte) (int, error) {
	return f.fill("write", b, io.ErrUnexpectedEOF, func(fd int, rest []byte, _ int) (int, error) { return unix.Write(fd, rest) })
}

func (f *rawFile) WriteAt(b []byte, off int64) (int, error) {
	return f.fill("write", b, io.ErrUnexpectedEOF, func(fd int, rest []byte, done int) (int, error) { return unix.Pwrite(fd, rest, off+int64(done)) })
}

func (f *rawFile) Sync() error {
	_, err := f.do("sync", func(fd int) (int, error) { return 0, unix.Fsync(fd) })
	return err
}

func (f *rawFile) Truncate(size int64) error {
	_, err := f.do("truncate", func(fd int) (int, error) { return 0, unix.Ftruncate(fd, size) })
	return err
}

func (f *rawFile) Close() error {
	fd := int(f.fd.Swap(-1))
	if fd < 0 {
		return &fs.PathError{Op: "close", Path: f.name, Err: os.ErrClosed}
	}
	if err := unix.Close(fd); err != nil && !errors.Is(err, unix.EINTR) { // interrupted or not, it is closed
		return &fs.PathError{Op: "close", Path: f.name, Err: err}
	}
	return nil
}

func (f *rawFile) Fd() uintptr  { return uintptr(f.fd.Load()) }
func (f *rawFile) Name() string { return f.name }

func (f *rawFile) Stat() (fs.FileInfo, error) {
	fi := &rawInfo{name: f.name}
	_, err := f.do("stat", func(fd int) (int, error) { return 0, syscall.Fstat(fd, &fi.st) })
	if err != nil {
		return nil, err
	}
	return fi, nil
}

// lstat is os.Lstat, at less cost if there is nothing.
func lstat(name string) (fs.FileInfo, error) {
	var st syscall.Stat_t
	for {
		switch err := syscall.Lstat(name, &st); {
		case err == nil:
			return &rawInfo{name, st}, nil
		case !errors.Is(err, unix.EINTR):
			return nil, &fs.PathError{Op: "lstat", Path: name, Err: err}
		}
	}
}

// rawInfo is what os.File.Stat would return.
type rawInfo struct {
	name string
	st   syscall.Stat_t
}

func (fi *rawInfo) Name() string       { return filepath.Base(fi.name) }
func (fi *rawInfo) Size() int64        { return fi.st.Size }
func (fi *rawInfo) ModTime() time.Time { return time.Unix(fi.st.Mtim.Unix()) }
func (fi *rawInfo) IsDir() bool        { return fi.Mode().IsDir() }
func (fi *rawInfo) Sys() any           { return &fi.st }

func (fi *rawInfo) Mode() fs.FileMode {
	mode := fs.FileMode(fi.st.Mode & 0o777)
	switch fi.st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
	case syscall.S_IFDIR:
		mode |= fs.ModeDir
	case syscall.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case syscall.S_IFSOCK:
		mode |= fs.ModeSocket
	case syscall.S_IFLNK:
		mode |= fs.ModeSymlink
	case syscall.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	default:
		mode |= fs.ModeDevice
	}
	return mode
}

// OSFile returns f as an *os.File, for a child process to inherit, or nil if it is not a file of OS. f must not be used any
// more if it is.
func OSFile(f File) *os.File {
	raw, ok := f.(*rawFile)
	if !ok {
		return nil
	}
	fd := int(raw.fd.Swap(-1))
	if fd < 0 {
		return nil
	}
	return os.NewFile(uintptr(fd), raw.name)
}
