//go:build unix

package sqlstore

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/testkit/faultfs"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// Promise S-159.
func TestANameThatCannotBeFlushedIsNoSuccess(t *testing.T) {
	t.Parallel()
	db := start(t, spot(t), Options{})
	dir := t.TempDir()
	copied, part := filepath.Join(dir, "copy"), filepath.Join(dir, "part")
	if err := db.Backup(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	f := faultfs.New(vfs.OS())
	f.Inject(faultfs.Fault{Op: 2, Err: syscall.EIO}) // after the renaming
	if err := finishBackup(t.Context(), f, part, copied); !errors.Is(err, syscall.EIO) || !errors.Is(err, atomicfile.ErrInDoubt) {
		t.Errorf("of a backup: %v", err)
	}
	if _, err := os.Stat(copied); err != nil {
		t.Errorf("the copy is not left: %v", err)
	}
}
