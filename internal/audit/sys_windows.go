package audit

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// appendMovesOffset: after a write to the end of a file, the file's offset is not known to be where that write ended.
const appendMovesOffset = false

// deletesOpenFiles: renaming over a file that a process has open fails.
const deletesOpenFiles = false

// openFile opens the file without following a link, and so that it can be renamed and deleted while it is open.
func openFile(path string, flag int) (*os.File, error) {
	name, err := syscall.UTF16PtrFromString(path)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	access := uint32(syscall.GENERIC_READ)
	switch {
	case flag&os.O_APPEND != 0:
		access |= syscall.FILE_APPEND_DATA | syscall.SYNCHRONIZE
	case flag&os.O_RDWR != 0:
		access |= syscall.GENERIC_WRITE
	}
	mode := uint32(syscall.OPEN_EXISTING)
	if flag&os.O_CREATE != 0 {
		mode = syscall.OPEN_ALWAYS
	}
	const share = syscall.FILE_SHARE_READ | syscall.FILE_SHARE_WRITE | syscall.FILE_SHARE_DELETE
	h, err := syscall.CreateFile(name, access, share, nil, mode, syscall.FILE_ATTRIBUTE_NORMAL|syscall.FILE_FLAG_OPEN_REPARSE_POINT, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(h), path), nil
}

// tryLock locks the file until it is closed, shared or exclusively. It reports false if another lock is in the way.
// Locks of bytes keep others from reading and writing these bytes, so it takes one that no log reaches.
func tryLock(f *os.File, exclusive bool) (bool, error) {
	flags := uint32(windows.LOCKFILE_FAIL_IMMEDIATELY)
	if exclusive {
		flags |= windows.LOCKFILE_EXCLUSIVE_LOCK
	}
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{OffsetHigh: 1 << 30})
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING) {
		return false, nil
	}
	return err == nil, err
}

// unlinked reports whether the open file is deleted.
func unlinked(f *os.File, _ fs.FileInfo) bool {
	var info syscall.ByHandleFileInformation
	err := syscall.GetFileInformationByHandle(syscall.Handle(f.Fd()), &info)
	return err == nil && info.NumberOfLinks == 0
}

// writeOnce is one write.
func writeOnce(f *os.File, b []byte) (int, error) { return f.Write(b) }
