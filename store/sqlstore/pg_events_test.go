//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
)

// raise changes a lock's token, with an event that has it.
func raise(ctx context.Context, s lokt.Store, name string) error {
	return s.Update(ctx, name, func(s lokt.Snapshot) lokt.Change {
		s.Lock.Token++
		return lokt.Change{Lock: s.Lock, Events: []lokt.Event{{Time: s.Now, Type: lokt.EventRenew, Name: name, Token: s.Lock.Token}}}
	})
}

// session opens a connection of somebody else, which is closed with the test.
func session(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return c
}

// run runs statements over one connection.
func run(t *testing.T, c *pgx.Conn, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := c.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// follower reads events on and on, and checks their numbers and their order.
type follower struct {
	after  uint64
	tokens map[string]uint64
	n      int
}

func (f *follower) read(t *testing.T, log lokt.EventLog) {
	t.Helper()
	for {
		page, err := log.ReadEvents(t.Context(), lokt.EventQuery{After: f.after, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			if e.Seq != f.after+1 {
				t.Fatalf("event %d follows %d", e.Seq, f.after)
			}
			if e.Token != f.tokens[e.Name]+1 {
				t.Fatalf("event %d: change %d of lock %s follows %d", e.Seq, e.Token, e.Name, f.tokens[e.Name])
			}
			f.after, f.tokens[e.Name] = e.Seq, e.Token
			f.n++
		}
		if !page.More {
			return
		}
	}
}

// Promise S-120.
func TestNumbersOfEventsInPostgreSQLRiseInTheOrderOfTheChanges(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	all := []closingLocks{pgLocks(t, url, Options{}), pgLocks(t, url, Options{}), pgLocks(t, url, Options{})}
	const writers, names, each = 9, 4, 30
	f := &follower{tokens: map[string]uint64{}}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := raise(t.Context(), all[w%len(all)], fmt.Sprint("lock-", (w+i)%names)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() {
		wg.Wait()
		close(done)
	}()
	for over := false; !over; { // wherever it reads
		select {
		case <-done:
			over = true
		default:
		}
		f.read(t, all[f.n%len(all)])
	}
	if f.n != writers*each {
		t.Errorf("%d events were read of %d", f.n, writers*each)
	}
}

// Promise S-120.
func TestTransactionsThatLastHoldBackNoEvents(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	a, b := pgLocks(t, url, Options{}), pgLocks(t, url, Options{})
	backup, change, other := session(t, url), session(t, url), session(t, url)
	run(t, backup, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM locks")
	run(t, other, "BEGIN", "CREATE TABLE others (n BIGINT)")
	f := &follower{tokens: map[string]uint64{}}
	if err := raise(t.Context(), a, "slow"); err != nil {
		t.Fatal(err)
	}
	f.read(t, b)
	// A change that another process has begun, and does not end.
	run(t, change, "BEGIN", "SELECT 1 FROM locks WHERE name = 'slow' FOR UPDATE", "UPDATE locks SET token = token + 1 WHERE name = 'slow'",
		"INSERT INTO lock_events_new (type, lock, token) VALUES ('renew', 'slow', 2)")
	for i := range 5 {
		for _, s := range []lokt.Store{a, b} {
			if err := raise(t.Context(), s, "fast"); err != nil {
				t.Fatal(err)
			}
		}
		if f.read(t, b); f.tokens["fast"] != uint64(2*i+2) || f.tokens["slow"] != 1 {
			t.Fatalf("after %d changes events of %v are read", 2*i+2, f.tokens)
		}
	}
	run(t, change, "COMMIT")
	if err := raise(t.Context(), b, "slow"); err != nil {
		t.Fatal(err)
	}
	if f.read(t, a); f.tokens["slow"] != 3 {
		t.Errorf("events of %v are read", f.tokens)
	}
	run(t, change, "BEGIN", "INSERT INTO lock_events_new (type, lock, token) VALUES ('renew', 'slow', 4)", "ROLLBACK")
	run(t, other, "COMMIT")
	if f.read(t, a); f.n != 13 {
		t.Errorf("%d events are read", f.n)
	}
}

// Promise S-120: who looks for what has no number does not come by what was numbered, which a long transaction keeps in the table.
func TestNumberingLooksAtNothingThatHasANumber(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := pgLocks(t, url, Options{})
	c, backup := session(t, url), session(t, url)
	run(t, backup, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM locks")
	run(t, c, "INSERT INTO lock_events_new (type, lock, token) SELECT 'renew', 'x', n FROM generate_series(1, 20000) n")
	page, err := s.ReadEvents(t.Context(), lokt.EventQuery{Latest: true, Limit: 1})
	if err != nil || page.Newest != 20000 {
		t.Fatal(page.Newest, err)
	}
	var rows int
	if err := c.QueryRow(t.Context(), `SELECT count(*) FROM lock_events_new, state
		WHERE xid >= pg_snapshot_xmax(numbered) OR xid IN (SELECT pg_snapshot_xip(numbered))`).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows, %v", rows, err)
	}
	run(t, c, "SELECT has_new_lock_events()") // the first time the catalog is looked at, too
	plans, err := c.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) SELECT has_new_lock_events()")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(plans, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var hit, read int
	for _, l := range lines[:min(2, len(lines))] {
		_, _ = fmt.Sscanf(l, "  Buffers: shared hit=%d read=%d", &hit, &read)
	}
	var pages int
	if err := c.QueryRow(t.Context(), "SELECT pg_relation_size('lock_events_new') / 8192").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	t.Logf("of %d pages %d are looked at", pages, hit+read)
	if hit+read == 0 || pages < 100 || hit+read > pages/2 {
		t.Errorf("of %d pages %d are looked at: %q", pages, hit+read, lines)
	}
}

// Promise S-120: tables may be copied to another cluster, where transactions have other numbers.
func TestEventsAreNumberedInACopyOnAnotherCluster(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := pgLocks(t, url, Options{})
	f := &follower{tokens: map[string]uint64{}}
	for _, numbered := range []string{"4000000000000:4000000000000:", "3:4000000000000:17,19"} {
		sql(t, url, "UPDATE state SET numbered = '"+numbered+"'")
		for range 2 {
			n := f.n
			if err := raise(t.Context(), s, "x"); err != nil {
				t.Fatal(err)
			}
			if f.read(t, s); f.n != n+1 {
				t.Errorf("%d events are read after %d", f.n, n)
			}
		}
	}
	sql(t, url, "INSERT INTO lock_events_new (xid, type, lock, token) VALUES ('3', 'renew', 'x', 5)") // it was without a number when the copy was made
	again := pgLocks(t, url, Options{})
	if f.read(t, again); f.n != 5 {
		t.Errorf("%d events are read", f.n)
	}
}

// Promise S-120.
func TestEventsThatNobodyReadsAreNumbered(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := pgLocks(t, url, Options{})
	if err := raise(t.Context(), s, "x"); err != nil {
		t.Fatal(err)
	}
	c := session(t, url)
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var n int
		if err := c.QueryRow(t.Context(), "SELECT lock_event FROM state").Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the event has no number")
		}
	}
}

// Promise S-65.
func TestEventsInPostgreSQLBeyondTheNumberThatIsKeptAreForgotten(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{KeepEvents: 10})
	sql(t, url, "INSERT INTO lock_events_new (at, type, lock, token) SELECT extract(epoch FROM now())::bigint * 1000000000, 'renew', 'x', n FROM generate_series(1, 12345) n")
	s := db.backend.(*serverDB)
	if err := s.using(t.Context(), "trim", func(ctx context.Context, c *pgConn) error {
		return errors.Join(s.locks.numberNew(ctx, c), s.locks.trim(ctx, c))
	}); err != nil {
		t.Fatal(err)
	}
	page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
	if err != nil || len(page.Events) != 10 || page.Events[9].Token != 12345 || page.Oldest != 12336 {
		t.Errorf("there are %+v, %v", page, err)
	}
}

// Promise S-121: programs that know version 1 number the events of a change within it.
func TestProgramsOfVersionOneNumberEventsInTheOrderOfTheChanges(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := pgLocks(t, url, Options{})
	c := session(t, url)
	f := &follower{tokens: map[string]uint64{}}
	for i := range 6 {
		for range i % 3 { // nobody reads these before
			if err := raise(t.Context(), s, "x"); err != nil {
				t.Fatal(err)
			}
		}
		run(t, c, "BEGIN", "SELECT 1 FROM locks WHERE name = 'x' FOR UPDATE",
			"INSERT INTO locks VALUES ('x', 2, 2, 0) ON CONFLICT (name) DO UPDATE SET revision = locks.revision + 2, token = locks.token + 2",
			"UPDATE state SET lock_event = lock_event + 2, clock = greatest(clock, 0)",
			"INSERT INTO lock_events (seq, type, lock, token) VALUES ((SELECT lock_event FROM state) - 1, 'renew', 'x', (SELECT token FROM locks WHERE name = 'x') - 1)",
			"INSERT INTO lock_events (seq, type, lock, token) VALUES ((SELECT lock_event FROM state) - 0, 'renew', 'x', (SELECT token FROM locks WHERE name = 'x'))",
			"COMMIT")
		if i%2 == 1 {
			f.read(t, s)
		}
	}
	if f.read(t, s); f.n != 18 {
		t.Errorf("%d events are read", f.n)
	}
}

func TestEventsAreKeptThroughAPooler(t *testing.T) {
	t.Parallel()
	schema := pooler(t)
	lokttest.TestEventLog(t, func(t *testing.T) lokt.Store { return pgLocks(t, schema(t), Options{}) })
}
