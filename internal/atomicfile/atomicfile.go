// Package atomicfile publishes and reads small files so that no reader ever sees a half-written one: a new version is
// written beside the old one and renamed over it.
package atomicfile

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"github.com/lokt-dev/lokt/internal/vfs"
)

// The errors that callers tell apart, with errors.Is.
var (
	ErrNotRegular = errors.New("not a regular file")
	ErrTooLarge   = errors.New("file is too large")

	// ErrInDoubt means that the change is visible, but nobody knows whether it survives a power failure. Whoever
	// promised durability may neither report success nor treat the change as not having happened.
	ErrInDoubt = errors.New("changed, but perhaps not durably")
)

// Error says at which step a change failed. Unless it is ErrInDoubt, the file at Path is what it was.
type Error struct {
	Step    string // "create", "write", "sync", "close", "rename", "remove" or "sync directory"
	Path    string // the file to be changed, not the temporary one
	Err     error
	InDoubt bool // the change was made, and then the directory could not be synced
}

func (e *Error) Error() string {
	s := e.Step + " for " + e.Path + ": " + e.Err.Error()
	if e.InDoubt {
		s += " (" + ErrInDoubt.Error() + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes the error ErrInDoubt if it is.
func (e *Error) Is(target error) bool { return target == ErrInDoubt && e.InDoubt }

// Options says how to write. The zero value writes mode 0600 and waits for no disk: after a power failure, not after a
// mere crash of the process, the file may then be the old one, the new one, or empty.
type Options struct {
	Perm    fs.FileMode // of the new file, before the umask; 0 means 0600
	Sync    bool        // sync the file before it is published: a power failure leaves the old one or the new one
	Durable bool        // sync the directory too: a power failure after the return leaves the new one
}

const (
	tmpMark  = ".tmp-"
	tries    = 8   // names to try for the temporary file
	maxName  = 255 // bytes in a file name, on the file systems in use
	tmpExtra = 1 + len(tmpMark) + 13
)

// IsTemp reports whether a file name in a directory is that of a temporary file of Replace, left behind by a process
// that died. Such names begin with a dot and end neither in ".json" nor in any other suffix of a published file.
func IsTemp(name string) bool {
	if len(name) < tmpExtra || name[0] != '.' {
		return false
	}
	tail := name[len(name)-len(tmpMark)-13:]
	if tail[:len(tmpMark)] != tmpMark {
		return false
	}
	_, err := strconv.ParseUint(tail[len(tmpMark):], 36, 64)
	return err == nil
}

// tempName returns a new name for a temporary file beside path: ".NAME.tmp-RANDOM". Names too long for that are cut.
func tempName(path string) string {
	dir, base := filepath.Split(path)
	if len(base) > maxName-tmpExtra {
		base = base[:maxName-tmpExtra]
	}
	const zeros = "0000000000000"
	random := strconv.FormatUint(rand.Uint64(), 36)
	return dir + "." + base + tmpMark + zeros[len(random):] + random
}

// Replace makes data the content of the file at path, whether or not there was one, in one step for every reader. A
// symbolic link at path is replaced, not followed. The directory must exist. When Replace fails, no temporary file is
// left unless the process died or the file system refuses the removal too; the error is an *Error.
func Replace(fsys vfs.FS, path string, data []byte, o Options) error {
	o.Sync = o.Sync || o.Durable
	if o.Perm == 0 {
		o.Perm = 0o600
	}
	tmp, step, err := writeTemp(fsys, path, data, o)
	if err != nil {
		return &Error{Step: step, Path: path, Err: err}
	}
	if err := fsys.Rename(tmp, path); err != nil {
		_ = fsys.Remove(tmp)
		return &Error{Step: "rename", Path: path, Err: err}
	}
	if o.Durable {
		return syncDir(fsys, path)
	}
	return nil
}

// writeTemp leaves a temporary file only if it returns no error.
func writeTemp(fsys vfs.FS, path string, data []byte, o Options) (tmp, step string, err error) {
	var f vfs.File
	for range tries {
		tmp = tempName(path)
		f, err = fsys.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|noFollow, o.Perm)
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return "", "create", err
	}
	step = "write"
	_, err = f.Write(data)
	if err == nil && o.Sync {
		step, err = "sync", f.Sync()
	}
	if e := f.Close(); err == nil && e != nil {
		step, err = "close", e
	}
	if err != nil {
		_ = fsys.Remove(tmp)
	}
	return tmp, step, err
}

// Remove removes the file at path. That there is none is no error, so that a removal in doubt can be repeated; if
// durable, the directory is synced even then. The error is an *Error.
func Remove(fsys vfs.FS, path string, durable bool) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &Error{Step: "remove", Path: path, Err: err}
	}
	if durable {
		return syncDir(fsys, path)
	}
	return nil
}

// Publish gives a file that is on the disk already the name path, in the same directory, for which there may be a file.
// When it returns nil the name survives a power failure. The error is an *Error.
func Publish(fsys vfs.FS, file, path string) error {
	if err := fsys.Rename(file, path); err != nil {
		return &Error{Step: "rename", Path: path, Err: err}
	}
	return syncDir(fsys, path)
}

func syncDir(fsys vfs.FS, path string) error {
	if err := fsys.SyncDir(filepath.Dir(path)); err != nil {
		return &Error{Step: "sync directory", Path: path, Err: err, InDoubt: true}
	}
	return nil
}

// ReadRegular returns the content of the regular file at path, and what it was when it was opened. It follows no
// symbolic link and never blocks on a FIFO or device: for everything that is not a regular file the error is
// ErrNotRegular. If the file has more than limit bytes, the error is ErrTooLarge. If there is no file it is
// fs.ErrNotExist.
func ReadRegular(fsys vfs.FS, path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, err := openRegular(fsys, path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, notRegular(path)
	}
	if info.Size() > limit {
		return nil, nil, &fs.PathError{Op: "read", Path: path, Err: ErrTooLarge}
	}
	var data bytes.Buffer
	data.Grow(int(info.Size()) + bytes.MinRead) // so that two calls of Read do
	_, err = data.ReadFrom(io.LimitReader(f, limit+1))
	if err == nil && int64(data.Len()) > limit { // it has grown since
		err = &fs.PathError{Op: "read", Path: path, Err: ErrTooLarge}
	}
	if err != nil {
		return nil, nil, err
	}
	return data.Bytes(), info, nil
}

func notRegular(path string) error {
	return &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
}
