//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
)

// raise changes a lock's token, with an event that has it.
func raise(ctx context.Context, s lokt.Store, name string) error {
	return s.Update(ctx, name, func(s lokt.Snapshot) lokt.Change { return raised(s, name) })
}

func raised(s lokt.Snapshot, name string) lokt.Change {
	s.Lock.Token++
	return lokt.Change{Lock: s.Lock, Events: []lokt.Event{{Time: s.Now, Type: lokt.EventRenew, Name: name, Token: s.Lock.Token}}}
}

// storeEvent returns the statement that stores an event, as another process does that has the lock's row locked.
func storeEvent(t *testing.T, name string, token uint64) string {
	t.Helper()
	e := []lokt.Event{{Time: time.Now(), Type: lokt.EventRenew, Name: name, Token: token}}
	d, err := seal(name, e)
	if err != nil {
		t.Fatal(err)
	}
	since, until := span(e)
	return fmt.Sprintf("INSERT INTO lock_events_new (n, since, until, lock, doc, sum) VALUES (1, %d, %d, '%s', '%s', %d)", since, until, name, d.text, d.sum)
}

// manyEvents returns the statement that stores the same event so many times.
func manyEvents(t *testing.T, name string, n int) string {
	t.Helper()
	one := strings.TrimSuffix(strings.Replace(storeEvent(t, name, 1), "VALUES (", "SELECT ", 1), ")")
	return fmt.Sprintf("%s FROM generate_series(1, %d)", one, n)
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
	all := []closingLocks{locksOfPG(t, url, Options{}), locksOfPG(t, url, Options{}), locksOfPG(t, url, Options{})}
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
	a, b := locksOfPG(t, url, Options{}), locksOfPG(t, url, Options{})
	backup, other := session(t, url), session(t, url)
	run(t, backup, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM locks")
	run(t, other, "BEGIN", "CREATE TABLE others (n BIGINT)")
	f := &follower{tokens: map[string]uint64{}}
	if err := raise(t.Context(), a, "slow"); err != nil {
		t.Fatal(err)
	}
	f.read(t, b)
	// A change that another process has begun, and does not end.
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		once := sync.OnceFunc(func() { close(begun) })
		ended <- locksOfPG(t, url, Options{}).Update(context.WithoutCancel(t.Context()), "slow", func(s lokt.Snapshot) lokt.Change {
			once()
			<-goOn
			return raised(s, "slow")
		})
	}()
	<-begun
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
	close(goOn)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := raise(t.Context(), b, "slow"); err != nil {
		t.Fatal(err)
	}
	if f.read(t, a); f.tokens["slow"] != 3 {
		t.Errorf("events of %v are read", f.tokens)
	}
	run(t, other, "COMMIT", "BEGIN", storeEvent(t, "slow", 4), "ROLLBACK")
	if f.read(t, a); f.n != 13 {
		t.Errorf("%d events are read", f.n)
	}
}

// Promise S-120: who looks for what has no number does not come by what was numbered, which a long transaction keeps in the table.
func TestNumberingLooksAtNothingThatHasANumber(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := locksOfPG(t, url, Options{})
	c, backup := session(t, url), session(t, url)
	run(t, backup, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM locks")
	run(t, c, manyEvents(t, "x", 20000))
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
	s := locksOfPG(t, url, Options{})
	f := &follower{tokens: map[string]uint64{}}
	for _, numbered := range []string{"4000000000000:4000000000000:", "3:4000000000000:17,19"} {
		runSQL(t, url, "UPDATE state SET numbered = '"+numbered+"'")
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
	runSQL(t, url, strings.NewReplacer("(n,", "(xid, n,", "VALUES (", "VALUES ('3', ").Replace(storeEvent(t, "x", 5))) // it was without a number when the copy was made
	again := locksOfPG(t, url, Options{})
	if f.read(t, again); f.n != 5 {
		t.Errorf("%d events are read", f.n)
	}
}

// Promise S-120.
func TestEventsThatNobodyReadsAreNumbered(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := locksOfPG(t, url, Options{})
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
	runSQL(t, url, manyEvents(t, "x", 12345))
	s := db.backend.(*serverDB)
	if err := s.using(t.Context(), "trim", func(ctx context.Context, c *pgx.Conn) error {
		return errors.Join(s.locks.number(ctx, c), s.trimming(ctx, s.options.forgetLockEvents))
	}); err != nil {
		t.Fatal(err)
	}
	page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
	if err != nil || len(page.Events) != 10 || page.Events[9].Seq != 12345 || page.Oldest != 12336 {
		t.Errorf("there are %+v, %v", page, err)
	}
}

func TestEventsAreKeptThroughAPooler(t *testing.T) {
	t.Parallel()
	schema := pooler(t)
	lokttest.TestEventLog(t, func(t *testing.T) lokt.Store { return locksOfPG(t, schema(t), Options{}) })
}
