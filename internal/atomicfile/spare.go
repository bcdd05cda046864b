package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/lokt-dev/lokt/internal/faultfs"
)

// overwriteSpare writes the new version into the spare file and has it and the file at path change places. It reports
// whether that was done, and if not whether there is no spare file; the file at path is then what it was.
//
// The spare was published once, and who opened it then may still be reading it: it is only used if nobody has it open.
func overwriteSpare(fsys faultfs.FS, path string, data []byte, o Options) (done, absent bool) {
	f, err := fsys.OpenFile(o.Spare, os.O_RDWR|noFollow, 0) // a FIFO opened for both does not block
	if err == nil {
		err = fillSpare(f, data, o.Perm)
		if e := f.Close(); err == nil {
			err = e
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, true
	case errors.Is(err, errBusy):
		return false, false
	case err != nil:
		return false, fsys.Remove(o.Spare) == nil
	}
	return fsys.Exchange(o.Spare, path) == nil, false
}

// What is wrong with a spare file.
var (
	errBusy  = errors.New("somebody may have it open")
	errSpare = errors.New("not a spare file")
)

func fillSpare(f faultfs.File, data []byte, perm fs.FileMode) error {
	fi, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !fi.Mode().IsRegular() || fi.Mode().Perm() != perm || !ownAlone(fi):
		return errSpare
	case !unshared(f):
		return errBusy
	}
	if fi.Size() > int64(len(data)) {
		if err := f.Truncate(int64(len(data))); err != nil {
			return err
		}
	}
	n, err := f.WriteAt(data, 0)
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	return err
}

// setAside makes the old version, which is at tmp now, the spare file if there is none, or else removes it.
func setAside(fsys faultfs.FS, tmp string, o Options) {
	if o.Spare == "" || fsys.Rename(tmp, o.Spare) != nil {
		_ = fsys.Remove(tmp)
	}
}
