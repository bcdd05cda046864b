package atomicfile

import (
	"errors"
	"io"
	"io/fs"

	"github.com/lokt-dev/lokt/internal/faultfs"
)

// overwriteSpare writes the new version into the spare file and has it and the file at path change places. It reports
// whether that was done, and if not whether there is no spare file; the file at path is then what it was.
//
// The spare was published once, and who opened it then may still be reading it: it is only used if nobody has it open.
func overwriteSpare(fsys faultfs.FS, path string, data []byte, o Options) (done, absent bool) {
	pair := o.Pair
	if pair == nil {
		pair = &Pair{}
	}
	h, fi, err := pair.openSpare(fsys, o.Spare)
	if err == nil {
		err = fillSpare(h, fi, data, o.Perm)
		if err == nil { // before it has the name that others open; to close it does not do, if a child is just being forked
			err = share(h)
		}
		if err != nil || o.Pair == nil {
			if e := h.Close(); err == nil {
				err = e
			}
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
	done = fsys.Exchange(o.Spare, path) == nil
	switch {
	case o.Pair == nil:
	case done:
		pair.at, pair.spare = h, pair.at
	default:
		_ = h.Close()
	}
	return done, false
}

// What is wrong with a spare file.
var (
	errBusy  = errors.New("somebody may have it open")
	errSpare = errors.New("not a spare file")
)

func fillSpare(f faultfs.File, fi fs.FileInfo, data []byte, perm fs.FileMode) error {
	switch {
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
