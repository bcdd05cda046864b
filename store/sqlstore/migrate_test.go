package sqlstore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// schema describes the tables, indexes and views of a database that is closed.
func schema(t *testing.T, path string) string {
	t.Helper()
	c, err := dial(dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.close() }()
	var b strings.Builder
	if err := c.query(t.Context(), "SELECT type, name, coalesce(sql, '') FROM sqlite_master ORDER BY type, name", nil, func(r *row) error {
		fmt.Fprintf(&b, "%s %s: %s\n", r.text(), r.text(), r.text())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	version, err := one(t.Context(), c, "PRAGMA user_version")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("version %d\n%s", version, b.String())
}

func TestDatabasesOfEveryOlderVersionAreBroughtToThisOne(t *testing.T) {
	t.Parallel()
	fresh := place(t)
	shut(t, start(t, fresh, Options{}))
	want := schema(t, fresh)
	all, err := listMigrations("sqlite")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		script, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("version-%d.sql", m.version)))
		if err != nil {
			t.Fatalf("a database of version %d is needed: %v", m.version, err)
		}
		path := place(t)
		direct(t, path, string(script))
		db := start(t, path, Options{})
		h, ok := view(t, db, "held").Lock.Holder("lease of a")
		if l := view(t, db, "held").Lock; !ok || h.Token != 1 || h.TTL != time.Minute || h.Metadata["why"] != "because" || h.Process.PID != 7 ||
			h.Yield.To.ID != "z" || len(l.Queue) != 1 || l.Queue[0].Owner.ID != "w" || l.Freeze.Owner.ID != "freezer" {
			t.Errorf("version %d: the lock is %+v", m.version, l)
		}
		if l := view(t, db, "free").Lock; !l.Free() || l.Token != 1 {
			t.Errorf("version %d: the free lock is %+v", m.version, l)
		}
		page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
		if err != nil || len(page.Events) != 3 || page.Events[2].Extra[lokt.ExtraHeld] != "1" {
			t.Errorf("version %d: events are %+v, %v", m.version, page, err)
		}
		rows, err := db.Jobs().Load(t.Context())
		if err != nil || len(rows.Jobs) != 2 || len(rows.Leases) != 1 || rows.Jobs[0].State != jobs.Leased || rows.Jobs[1].Tags[0] != "nightly" ||
			len(rows.Keys) != 3 || len(rows.Answered) != 1 || rows.Answered[0].Lease.WorkerID != "w" || rows.Frozen[0] != "deploy" || rows.Counters.Seq != 3 {
			t.Errorf("version %d: living is %+v, %v", m.version, rows, err)
		} else if told := rows.Leases[0].LockTokens; m.version >= 3 && told["deploy"] != 4 || m.version < 3 && told != nil {
			t.Errorf("version %d: the tokens of the locks are %v", m.version, told)
		}
		ended, err := db.Jobs().ListEnded(t.Context(), jobs.Filter{}, 1<<63, 10)
		if err != nil || len(ended) != 1 || string(ended[0].Output.Result) != `"done"` || string(ended[0].Payload) != `{"n": 1}` {
			t.Errorf("version %d: ended are %+v, %v", m.version, ended, err)
		}
		tallies, counts, err := db.Jobs().History(t.Context(), time.Time{})
		if err != nil || len(tallies) != 1 || tallies[0].Runs.Min != 7*time.Millisecond || len(counts) == 0 {
			t.Errorf("version %d: history is %+v, %+v, %v", m.version, tallies, counts, err)
		}
		shut(t, db)
		if got := schema(t, path); got != want {
			t.Errorf("version %d became\n%s\nnot\n%s", m.version, got, want)
		}
	}
}

// The views are for people with sqlite3.
func TestPeopleCanReadTheViews(t *testing.T) {
	t.Parallel()
	path := place(t)
	script, err := os.ReadFile(filepath.Join("testdata", "version-1.sql"))
	if err != nil {
		t.Fatal(err)
	}
	direct(t, path, string(script))
	shut(t, start(t, path, Options{}))
	c, err := dial(dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.close() }()
	for view, want := range map[string][]string{
		"SELECT name, state, token FROM lock_list":                                         {"free free 1", "held frozen 1"},
		"SELECT lock, owner, ttl_ms FROM holder_list":                                      {"held a 60000"},
		"SELECT lock, owner, substr(since, 1, 20) FROM queue_list":                         {"held w 2026-11-21T17:31:30."},
		"SELECT type, lock, substr(at, 1, 20) FROM event_list WHERE seq = 1":               {"acquire held 2026-11-21T17:31:30."},
		"SELECT state, coalesce(worker, '-'), substr(created, 1, 20) || 'x' FROM job_list": {"leased w 2026-11-21T17:31:30.x", "queued - 2026-11-21T17:31:30.x"},
	} {
		var got []string
		if err := c.query(t.Context(), view, nil, func(r *row) error {
			got = append(got, fmt.Sprint(r.value(), " ", r.value(), " ", r.value()))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %q, not %q", view, got, want)
		}
	}
}
