//go:build unix

package sqlstore

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// A commit that waits for a standby is not called back: PostgreSQL would show it to all, and a standby that takes over would
// not have it.
//
// Promise S-239.
func TestWhatNoStandbyHasIsShownToNobody(t *testing.T) {
	t.Parallel()
	pg := servers.NeedPostgres(t, "fsync=off")
	url := pg.URL(pg.Addr, "public")
	m := lokt.NewManager(openPG(t, url, Options{}).Locks())
	set := func(sql string) { // in a session whose own commits do not wait
		t.Helper()
		runSQL(t, url, "SET synchronous_commit = local", sql, "SELECT pg_reload_conf()")
	}
	other, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(t.Context()) }()
	revision := func() (n int) {
		t.Helper()
		if err := other.QueryRow(t.Context(), "SELECT revision FROM locks WHERE name = 'x'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	c := claim("x", "a", time.Hour)
	ask := func() error { _, err := m.Poll(t.Context(), &c); return err } // each starts the time to live anew
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	set("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	before := 0
	for n := 0; err == nil && n < 10_000; n++ { // until the setting counts
		before = revision()
		err = ask()
	}
	if !errors.Is(err, lokt.ErrUnavailable) {
		t.Fatalf("without a standby: %v", err)
	}
	time.Sleep(pgLonger + time.Second) // for what is done about the statement
	if now := revision(); now != before {
		t.Errorf("a change that no standby has is shown: revision %d after %d", now, before)
	}
	set("ALTER SYSTEM RESET synchronous_standby_names")
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if err := ask(); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
