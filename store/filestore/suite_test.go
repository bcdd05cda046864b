package filestore

import (
	"path/filepath"
	"testing"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
)

func TestTheStoreKeepsWhatStoresPromise(t *testing.T) {
	lokttest.TestStore(t, func(t *testing.T) lokt.Store {
		s, err := Open(filepath.Join(t.TempDir(), "root"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}
