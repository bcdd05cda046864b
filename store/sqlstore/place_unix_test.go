//go:build unix

package sqlstore

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokt-dev/lokt/store/place"
)

// statuses returns how the conditions came out, by name.
func statuses(t *testing.T, db *DB) map[string]place.Status {
	t.Helper()
	all := map[string]place.Status{}
	for _, c := range db.Conditions(t.Context()) {
		all[c.Name] = c.Status
	}
	return all
}

// Promise S-226.
func TestAServersDatabaseSaysHowItIsSet(t *testing.T) {
	url := schemaURL(t) // of a server without fsync
	db := openPG(t, url, Options{})
	if got := statuses(t, db); got["database-disk"] != place.Warn || got["commit"] != place.OK || got["standbys"] != place.OK {
		t.Errorf("by default: %v", got)
	}
	early := openPG(t, url+"&synchronous_commit=off", Options{})
	if got := statuses(t, early); got["commit"] != place.Warn {
		t.Errorf("with commits that do not wait: %v", got)
	}
	standby, err := pgconn.Connect(t.Context(), "postgres://lokt@"+server.Addr+"/?sslmode=disable&replication=true")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = standby.Close(context.WithoutCancel(t.Context())) }()
	for end := time.Now().Add(30 * time.Second); statuses(t, db)["standbys"] != place.Warn; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a standby that no commit waits for is not told: %v", db.Conditions(t.Context()))
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if got := statuses(t, db); got["database-disk"] != place.Unknown {
		t.Errorf("closed: %v", got)
	}
}

func TestADatabaseInAFileSaysWhereItIs(t *testing.T) {
	db, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "x.db"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if got := statuses(t, db); got["database-file"] == "" || got["database-disk"] == "" {
		t.Errorf("%v", got)
	}
}
