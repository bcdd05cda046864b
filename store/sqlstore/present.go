package sqlstore

import (
	"errors"
	"fmt"
	"os"

	"github.com/lokt-dev/lokt"
)

// present reports whether the database's file is still where it was opened. What is stored in one that was removed or moved
// away while it is open is lost with the process, or to whoever opens the file that is there now.
func (d *fileDB) present() error {
	now, err := os.Stat(d.path)
	what := "was replaced"
	switch {
	case errors.Is(err, os.ErrNotExist):
		what = "is not there any more"
	case err != nil || os.SameFile(now, d.file): // what else there is to say of the file, reading and writing it will
		return nil
	}
	return fmt.Errorf("%w: database %s %s, so nothing is stored: move it back, or save what it had (loktd backup) and restore that",
		lokt.ErrUnavailable, d.path, what)
}
