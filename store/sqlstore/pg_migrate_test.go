//go:build unix

package sqlstore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// columns describes the tables, views, indexes, functions and triggers of a schema.
func columns(t *testing.T, url string) string {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	rows, err := c.Query(t.Context(), `SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(collation_name, '')
			FROM information_schema.columns WHERE table_schema = current_schema()
		UNION ALL SELECT regexp_replace(indexdef, current_schema() || '\.', '') FROM pg_indexes WHERE schemaname = current_schema()
		UNION ALL SELECT relname || ' ' || array_to_string(reloptions, ',') FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND reloptions IS NOT NULL
		UNION ALL SELECT c.relname || '.' || a.attname || ' ' || a.attstorage::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
			WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND a.attnum > 0
		UNION ALL SELECT proname || ' ' || provolatile::text || coalesce(array_to_string(proconfig, ','), '') || prosrc FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
		UNION ALL SELECT regexp_replace(pg_get_triggerdef(t.oid), current_schema() || '\.', '', 'g') FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
			WHERE c.relnamespace = current_schema()::regnamespace
		UNION ALL SELECT 'version ' || max(version) FROM schema_version ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

func TestDatabasesOfPostgreSQLOfEveryOlderVersionAreBroughtToThisOne(t *testing.T) {
	t.Parallel()
	fresh := schemaURL(t)
	if err := openPG(t, fresh, Options{}).Close(); err != nil {
		t.Fatal(err)
	}
	want := columns(t, fresh)
	all, err := listMigrations("postgres")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		script, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("postgres-version-%d.sql", m.version)))
		if err != nil {
			t.Fatalf("a database of version %d is needed: %v", m.version, err)
		}
		url := schemaURL(t)
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.PgConn().Exec(t.Context(), string(script)).ReadAll(); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		db := openPG(t, url, Options{})
		held, err := db.Locks().View(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		h, ok := held.Lock.Holder("lease of a")
		if l := held.Lock; !ok || h.Token != 1 || h.TTL != time.Minute || h.Metadata["why"] != "because" || h.Process.PID != 7 ||
			h.Yield.To.ID != "z" || len(l.Queue) != 1 || l.Queue[0].Owner.ID != "w" || l.Freeze.Owner.ID != "freezer" {
			t.Errorf("version %d: the lock is %+v", m.version, l)
		}
		if free, err := db.Locks().View(t.Context(), "free"); err != nil || !free.Lock.Free() || free.Lock.Token != 1 {
			t.Errorf("version %d: the free lock is %+v, %v", m.version, free, err)
		}
		page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
		if err != nil || len(page.Events) != 3 || page.Events[2].Extra[lokt.ExtraHeld] == "" {
			t.Errorf("version %d: events are %+v, %v", m.version, page, err)
		} else if page.Events[2].Seq != 3 || page.Newest != 3 {
			t.Errorf("version %d: the last event has number %d, the newest is %d", m.version, page.Events[2].Seq, page.Newest)
		}
		rows, err := db.Jobs().Load(t.Context())
		if err != nil || len(rows.Jobs) != 2 || len(rows.Leases) != 1 || rows.Jobs[0].State != jobs.Leased || rows.Jobs[1].Tags[0] != "nightly" ||
			len(rows.Keys) != 3 || len(rows.Answered) != 1 || rows.Answered[0].Lease.WorkerID != "w" || rows.Frozen[0] != "deploy" || rows.Counters.Seq != 3 {
			t.Errorf("version %d: living is %+v, %v", m.version, rows, err)
		} else if told := rows.Leases[0].LockTokens; m.version >= 3 && told["deploy"] != 4 || m.version < 3 && told != nil {
			t.Errorf("version %d: the tokens of the locks are %v", m.version, told)
		}
		ended, err := db.Jobs().ListEnded(t.Context(), jobs.Filter{Tag: "nightly"}, 1<<63, 10)
		if err != nil || len(ended) != 1 || string(ended[0].Output.Result) != `"done"` || string(ended[0].Payload) != `{"n": 1}` {
			t.Errorf("version %d: ended are %+v, %v", m.version, ended, err)
		}
		tallies, counts, err := db.Jobs().History(t.Context(), time.Time{})
		if err != nil || len(tallies) != 1 || tallies[0].Completed != 1 || len(counts) == 0 {
			t.Errorf("version %d: history is %+v, %+v, %v", m.version, tallies, counts, err)
		}
		if got := columns(t, url); got != want {
			t.Errorf("version %d became\n%s\nnot\n%s", m.version, got, want)
		}
	}
}
