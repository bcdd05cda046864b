//go:build unix

package sqlstore

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// looked returns how many rows of a table a session has looked at in its transaction, and perhaps before.
func looked(t *testing.T, c *pgx.Conn, table string) (n int) {
	t.Helper()
	err := c.QueryRow(t.Context(), "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables WHERE relid = $1::regclass", table).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestFewEndedJobsAreFoundWithoutLookingAtAll(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	runSQL(t, url, `INSERT INTO jobs SELECT 'j' || n, n, n, CASE WHEN n <= 12 THEN 'failed' ELSE 'completed' END, 't' || n % 4, 1, '', 0, '{}'
		FROM generate_series(1, 30000) n`)
	for _, analyzed := range []string{"RESET plan_cache_mode", "ANALYZE jobs"} {
		c := session(t, url)
		run(t, c, analyzed, "SET plan_cache_mode = force_generic_plan") // as any statement may be planned that was prepared
		k := &keptJobs{ranges: s.ranges, document: s.document, reading: func(ctx context.Context, _ string, read func(look) error) error {
			return read(lookWith(ctx, c))
		}}
		for _, f := range []struct {
			jobs.Filter
			there, found int
		}{
			{jobs.Filter{State: jobs.Failed}, 12, 10},
			{jobs.Filter{State: jobs.Failed, Type: "t1"}, 3, 3},
			{jobs.Filter{State: jobs.Completed, Type: "t1"}, 7497, 10},
			{jobs.Filter{State: jobs.Completed}, 29988, 10},
			{jobs.Filter{State: jobs.Cancelled}, 0, 0},
			{jobs.Filter{Type: "none"}, 0, 0},
		} {
			run(t, c, "BEGIN")
			before := looked(t, c, "jobs")
			all, err := k.ListEnded(t.Context(), f.Filter, 0, 1<<63, 10)
			read := looked(t, c, "jobs") - before
			if err != nil || len(all) != f.found || read > 30 {
				t.Errorf("%+v: %d are found among %d, %v", f.Filter, len(all), read, err)
			}
			if n, err := k.CountEnded(t.Context(), f.State, f.Type); err != nil || n != f.there {
				t.Errorf("%+v: there are %d, %v", f.Filter, n, err)
			}
			run(t, c, "ROLLBACK")
		}
	}
}

func TestOnlyEventsThatMayBeWantedAreOpened(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	server, file := openPG(t, url, Options{}).Locks(), start(t, spot(t), Options{})
	owners := []string{"a", "a%", "a_", "!", `"`, `\`, "<&>", "\u00e9\u2028", "A"}
	for _, s := range []LockStore{server, file.Locks()} {
		for i := range 50 {
			e := lokt.Event{Time: time.Unix(int64(i), 0), Type: lokt.EventRenew, Name: "l", Owner: lokt.Owner{ID: "others"}}
			if i < len(owners) {
				e.Type, e.Owner.ID = lokt.EventAcquire, owners[i]
			}
			if err := s.Update(t.Context(), "l", func(is lokt.Snapshot) lokt.Change { return lokt.Change{Lock: is.Lock, Events: []lokt.Event{e}} }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := server.ReadEvents(t.Context(), lokt.EventQuery{}); err != nil { // which numbers them
		t.Fatal(err)
	}
	check := func(in eventRows) func(look) error {
		return func(read look) error {
			found := func(q lokt.EventQuery) (events, opened int) {
				page, err := readEvents(func(statement string, args []any, scan func(row) error) error {
					return read(statement, args, func(from row) error { opened++; return scan(from) })
				}, in, q)
				if err != nil {
					t.Fatal(err)
				}
				return len(page.Events), opened
			}
			for _, o := range owners {
				if events, opened := found(lokt.EventQuery{Owner: o}); events != 1 || opened > 5 {
					t.Errorf("%s, owner %q: %d events, and %d rows were read", in.locks, o, events, opened)
				}
			}
			if events, opened := found(lokt.EventQuery{Types: []lokt.EventType{lokt.EventFreeze, lokt.EventAcquire}}); events != len(owners) || opened > len(owners)+1 {
				t.Errorf("%s: %d events of two types, and %d rows were read", in.locks, events, opened)
			}
			return nil
		}
	}
	if err := check(serverEvents)(lookWith(t.Context(), session(t, url))); err != nil {
		t.Error(err)
	}
	if err := file.reading(t.Context(), "events", check(fileEvents)); err != nil {
		t.Error(err)
	}
}

// Promise S-281.
func TestADatabaseThatIsNoLongerReadOnlyStoresAgain(t *testing.T) {
	t.Parallel()
	db := openPG(t, schemaURL(t), Options{})
	d := db.backend.(*serverDB)
	for pool, n := range map[*pgxpool.Pool]int{d.readers: pgReaders, d.writers: pgWriters} {
		var all []*pgxpool.Conn
		for range n {
			c, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			run(t, c.Conn(), "SET default_transaction_read_only = on") // as if the role had been set so when they began
			all = append(all, c)
		}
		for _, c := range all {
			c.Release()
		}
	}
	var ready, stored error
	for range 2 * pgReaders {
		ready = db.Ping(t.Context()) // which is of no help to those who store
	}
	for range 2 * pgWriters {
		if stored = serverJobsOf(db).Update(t.Context(), func(jobs.Facts) jobs.Changes { return submitted(1, "a") }); stored == nil {
			break
		}
	}
	if ready != nil || stored != nil {
		t.Error(ready, stored)
	}
}

func TestNoPlanIsCompiledWhateverTheDatabasesSettings(t *testing.T) {
	t.Parallel()
	d := openPG(t, schemaURL(t)+"&jit=on", Options{}).backend.(*serverDB)
	for _, pool := range []*pgxpool.Pool{d.readers, d.writers} {
		err := d.lend(t.Context(), pool, time.Minute, func(ctx context.Context, c *pgx.Conn) error {
			var jit string
			err := c.QueryRow(ctx, "SHOW jit").Scan(&jit)
			if jit != "off" {
				t.Errorf("jit is %q", jit)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}
