//go:build unix

package history

import (
	"path/filepath"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/servers"
	"github.com/lokt-dev/lokt/store/sqlstore"
)

// Promise S-227.
func TestWhatHappenedOnDatabasesIsRight(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		onDatabase(t, "sqlite:"+filepath.Join(t.TempDir(), "x.db"))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		p := servers.NeedPostgres(t, "fsync=off")
		onDatabase(t, p.URL(p.Addr, "public"))
	})
}

func onDatabase(t *testing.T, url string) {
	t.Helper()
	db, err := sqlstore.Open(t.Context(), url, sqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	right(t, contend(t, db.Locks(), 1, 6, 15))
}
