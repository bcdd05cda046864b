package sqlstore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt"
)

// Promises S-61, S-66.
func TestNothingIsStoredInADatabaseThatIsNotThereAnyMore(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	m := lokt.NewManager(db.Locks())
	take := func(name string) error {
		_, err := m.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "a"}})
		return err
	}
	if err := take("before"); err != nil {
		t.Fatal(err)
	}
	aside := filepath.Join(t.TempDir(), "aside.db")
	if err := os.Rename(path, aside); err != nil {
		t.Skip("this system does not let an open file be moved: ", err)
	}
	refused := func(why string) {
		t.Helper()
		for _, err := range []error{take("meanwhile"), db.Ping(t.Context())} {
			if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), why) {
				t.Errorf("the error is %v", err)
			}
		}
	}
	refused("is not there any more")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("was replaced")
	if s := view(t, db, "before"); len(s.Lock.Holders) != 1 {
		t.Errorf("what was there before is read as %+v", s.Lock)
	}
	copied := filepath.Join(t.TempDir(), "copy.db")
	if err := db.Backup(t.Context(), copied); err != nil {
		t.Errorf("no backup is made: %v", err)
	}
	if err := os.Rename(aside, path); err != nil {
		t.Fatal(err)
	}
	if err := take("afterwards"); err != nil {
		t.Error(err)
	}
	shut(t, db)
}
