package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// filledEntry returns an entry of the journal in which every field of what locks have is something of its own.
func filledEntry() lockEntry {
	f := new(filler)
	fill := func(v any) { f.fill(reflect.ValueOf(v).Elem()) }
	e := lockEntry{at: time.Unix(0, 1_700_000_000_123_456_789).UTC(), first: 77, events: make([]lokt.Event, 2)}
	fill(&e.events[0])
	fill(&e.events[1])
	for i := range 2 {
		c := lockChange{
			name: fmt.Sprint("lock-", i), revision: 5, token: 6, frozen: true, freeze: &lokt.Freeze{}, holders: make([]placed[lokt.Holder], 2),
			released: []string{"r", "s"}, waiters: []placed[*lokt.Waiter]{{one: &lokt.Waiter{}}, {one: &lokt.Waiter{}}}, left: []string{"l"},
		}
		fill(c.freeze)
		for i := range 2 {
			fill(&c.holders[i].one)
			fill(c.waiters[i].one)
			c.holders[i].place, c.waiters[i].place = int64(i), int64(10*i)
			c.holders[i].one.Name, c.waiters[i].one.Name = c.name, c.name
		}
		e.locks = append(e.locks, c)
	}
	return e
}

// A field that is added to what locks have, and forgotten by the journal, fails this test.
func TestTheJournalOfLocksKeepsEveryField(t *testing.T) {
	t.Parallel()
	want := filledEntry()
	packed := packLocks(nil, &want)
	got, err := unpackLocks(packed)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got\n%+v\nof\n%+v", *got, want)
	}
	for n := range packed {
		if e, err := unpackLocks(packed[:n]); err == nil {
			t.Fatalf("%d of %d bytes were read as %+v", n, len(packed), e)
		}
	}
	if _, err := unpackLocks(append(bytes.Clone(packed), 0)); err == nil {
		t.Error("a byte too many was read")
	}
}

func FuzzEntriesOfTheJournalOfLocks(f *testing.F) {
	e := filledEntry()
	f.Add(packLocks(nil, &e))
	f.Add(packLocks(nil, &lockEntry{}))
	f.Add([]byte{lockJournalVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := unpackLocks(b)
		if err != nil {
			return
		}
		again, err := unpackLocks(packLocks(nil, e))
		if err != nil {
			t.Fatalf("what was read of %x cannot be read again: %v", b, err)
		}
		if len(again.locks) != len(e.locks) || len(again.events) != len(e.events) || again.first != e.first || !again.at.Equal(e.at) {
			t.Fatalf("%+v became %+v", e, again)
		}
	})
}

// long ago, so that opening a database does not move it.
var longAgo = time.Unix(1_600_000_000, 123).UTC()

// gamble returns what is done to some lock.
func gamble(random *rand.Rand, n int) (name string, change func(lokt.Snapshot) lokt.Change) {
	name = fmt.Sprint("lock-", random.IntN(4))
	what, where, at := random.IntN(8), random.IntN(100), longAgo.Add(time.Duration(n)*time.Second)
	c := claim(name, fmt.Sprint("owner-", n), 0)
	c.LeaseID = fmt.Sprint("lease-", n)
	if n%3 == 0 {
		c.Metadata, c.Process, c.Within = map[string]string{"n": fmt.Sprint(n)}, &lokt.Process{PID: n}, []string{"w"}
	}
	return name, func(s lokt.Snapshot) lokt.Change {
		l := s.Lock
		e := lokt.Event{Time: at, Type: lokt.EventAcquire, Name: name, LeaseID: c.LeaseID, Owner: c.Owner}
		switch {
		case what < 2:
			l.Token++
			l.Holders = slices.Insert(l.Holders, where%(len(l.Holders)+1), lokt.Holder{Claim: c, Token: l.Token, HeldSince: at, AcquiredAt: at})
		case what < 4:
			l.Queue = slices.Insert(l.Queue, where%(len(l.Queue)+1), &lokt.Waiter{Claim: c, Since: at, Until: at})
		case what == 4 && len(l.Holders) > 0:
			l.Holders = slices.Delete(l.Holders, where%len(l.Holders), where%len(l.Holders)+1)
			e.Type, e.Extra = lokt.EventRelease, map[string]string{"n": fmt.Sprint(n)}
		case what == 5 && len(l.Queue) > 0:
			l.Queue = slices.Delete(l.Queue, where%len(l.Queue), where%len(l.Queue)+1)
		case what == 6 && len(l.Holders) > 0:
			h := &l.Holders[where%len(l.Holders)]
			h.AcquiredAt, h.Renewals = at, h.Renewals+1
			return lokt.Change{Lock: l} // no event
		case where < 50:
			l.Freeze = &lokt.Freeze{ID: fmt.Sprint(n), Owner: c.Owner, Reason: "r", At: at}
		default:
			l.Freeze, l.Holders, l.Queue = nil, nil, nil
			return lokt.Change{Lock: l, Events: []lokt.Event{e, {Time: at, Type: lokt.EventRelease, Name: name}}}
		}
		return lokt.Change{Lock: l, Events: []lokt.Event{e}}
	}
}

// dumpLocks describes what the tables for locks have in them, but for when it was written.
func dumpLocks(t testing.TB, path string) string {
	t.Helper()
	c, err := dial(dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.close() }()
	var lines []string
	for _, table := range []string{
		"name, revision, token FROM locks", "* FROM holders", "* FROM waiters", "* FROM freezes", "* FROM lock_events", "lock_event, token_floor FROM state", "* FROM lock_journal",
	} {
		if err := c.query(t.Context(), "SELECT "+table, nil, func(r *row) error {
			lines = append(lines, fmt.Sprintf("%s: %q", table, r.values))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(lines, "\n")
}

// asKilled copies a database as a process that is killed leaves it.
func asKilled(t *testing.T, from, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(from + suffix)
		if err == nil {
			err = os.WriteFile(to+suffix, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What became of locks is the same whether their rows are written change by change, for all changes at once, or by a program that finds
// them in the journal of one that was killed; and readers see all of it at any time.
func TestTheJournalOfLocksChangesNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			testLockJournal(t, rand.New(rand.NewPCG(seed, 2)))
		})
	}
}

func testLockJournal(t *testing.T, random *rand.Rand) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	fold := func(d *fileDB) {
		if err := d.group.perform(t.Context(), &request{fold: true}); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"each", "once", "killed", "reloaded"}
	var all []*fileDB
	for _, name := range names {
		all = append(all, start(t, path(name), Options{KeepEventsFor: -1}))
	}
	each, once, killed, reloaded := all[0], all[1], all[2], all[3]
	once.locks.mostFree = 1 // what is free is forgotten if it can be
	for n := range 80 {
		name, change := gamble(random, n)
		for _, d := range all {
			if err := d.locks.Update(t.Context(), name, change); err != nil {
				t.Fatal(err)
			}
		}
		fold(each)
		if random.IntN(10) == 0 {
			fold(killed)
		}
		if random.IntN(5) == 0 { // as after a failure
			if err := reloaded.group.perform(t.Context(), &request{write: func(ctx context.Context, q querier) error { return reloaded.locks.load(ctx, q) }}); err != nil {
				t.Fatal(err)
			}
		}
		want := view(t, each, name).Lock
		seq := uint64(random.IntN(n + 1))
		queries := []lokt.EventQuery{
			{}, {Latest: true, Limit: 3}, {Limit: int(seq) + 1}, {After: seq}, {Before: seq, Latest: true, Limit: 5}, {Name: name}, {Prefix: "lock-", Owner: fmt.Sprint("owner-", seq)},
			{Types: []lokt.EventType{lokt.EventRelease}}, {Since: longAgo.Add(time.Duration(seq) * time.Second), Until: longAgo.Add(time.Duration(n) * time.Second)},
		}
		for i, d := range all[1:] {
			if got := view(t, d, name).Lock; !same(&got, &want) || got.Revision != want.Revision {
				t.Fatalf("%s: after %d %s is\n%+v\nnot\n%+v", names[i+1], n, name, got, want)
			}
			for _, q := range []lokt.EventQuery{queries[random.IntN(len(queries))], queries[random.IntN(len(queries))]} {
				a, err1 := each.locks.ReadEvents(t.Context(), q)
				b, err2 := d.locks.ReadEvents(t.Context(), q)
				if err1 != nil || err2 != nil || !reflect.DeepEqual(a, b) {
					t.Fatalf("%s: %+v finds\n%+v, %v\nnot\n%+v, %v", names[i+1], q, b, err2, a, err1)
				}
			}
		}
	}
	asKilled(t, path("killed"), path("found"))
	for _, d := range all {
		shut(t, d)
	}
	for _, name := range names {
		if name != "killed" { // as often as the one that was
			shut(t, start(t, path(name), Options{KeepEventsFor: -1}))
		}
	}
	shut(t, start(t, path("found"), Options{KeepEventsFor: -1}))
	want := dumpLocks(t, path("each"))
	for _, name := range []string{"once", "reloaded", "found"} {
		if got := dumpLocks(t, path(name)); got != want {
			t.Errorf("%s:\n%s\nnot\n%s", name, got, want)
		}
	}
}

// Who finds a journal makes every lock anew once, however often it was changed: the whole service waits for that after a failure.
func TestManyChangesOfALargeLockAreReadAsOne(t *testing.T) { // not parallel: it looks at what is allocated
	db := start(t, place(t), Options{})
	db.locks.mu.Lock()
	db.locks.foldAfter = time.Hour
	db.locks.mu.Unlock()
	edit(t, db, "x", func(l *lokt.Lock, now time.Time) {
		for i := range 1000 {
			l.Queue = append(l.Queue, &lokt.Waiter{Claim: claim("x", fmt.Sprint(i), 0), Since: now, Until: now})
		}
	})
	cost := func() uint64 {
		var before, after runtime.MemStats
		if err := db.group.perform(t.Context(), &request{write: func(ctx context.Context, q querier) error {
			runtime.ReadMemStats(&before)
			defer runtime.ReadMemStats(&after)
			return db.locks.load(ctx, q)
		}}); err != nil {
			t.Fatal(err)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	few := cost()
	for i := range 200 {
		edit(t, db, "x", func(l *lokt.Lock, now time.Time) { l.Queue[i].Until = now.Add(time.Hour) })
	}
	if many := cost(); many > 5*few {
		t.Errorf("%d bytes for one change, %d for 201", few, many)
	}
}

// Nobody has to ask for anything.
func TestTheTablesFollowTheJournalOfLocksByThemselves(t *testing.T) {
	t.Parallel()
	db := start(t, place(t), Options{})
	acquire(t, db, claim("x", "a", time.Minute))
	rows := func() (holders, events, entries int64) {
		if err := db.reading(t.Context(), "look", func(q querier) error {
			return q.query(t.Context(), "SELECT (SELECT count(*) FROM holders), (SELECT count(*) FROM lock_events), (SELECT count(*) FROM lock_journal)", nil, func(r *row) error {
				holders, events, entries = r.number(), r.number(), r.number()
				return nil
			})
		}); err != nil {
			t.Fatal(err)
		}
		return holders, events, entries
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		holders, events, entries := rows()
		if holders == 1 && events == 1 && entries == 0 {
			break
		}
		if holders != 0 || events != 0 || entries != 1 || time.Now().After(deadline) {
			t.Fatalf("there are %d holders, %d events, %d entries of the journal", holders, events, entries)
		}
	}
}

func TestAChangeThatIsTooLargeForTheJournalOfLocksIsStoredAtOnce(t *testing.T) {
	t.Parallel()
	db := start(t, place(t), Options{})
	acquire(t, db, claim("x", "a", time.Minute))
	edit(t, db, "y", func(l *lokt.Lock, now time.Time) {
		c := claim("y", "a", 0)
		c.Metadata = map[string]string{"x": strings.Repeat("x", mostBody)}
		l.Holders = []lokt.Holder{{Claim: c, HeldSince: now}}
	})
	var entries int64
	if err := db.reading(t.Context(), "look", func(q querier) (err error) {
		entries, err = one(t.Context(), q, "SELECT count(*) FROM lock_journal")
		return err
	}); err != nil || entries != 0 {
		t.Errorf("%d entries are in the journal, %v", entries, err)
	}
	if l := view(t, db, "y").Lock; len(l.Holders) != 1 || len(l.Holders[0].Metadata["x"]) != mostBody {
		t.Error("it is not stored")
	}
}

// Promise S-66.
func TestWhatIsInTheJournalOfLocksIsThereWhenTheDiskIsFull(t *testing.T) {
	t.Parallel()
	path := place(t)
	db := start(t, path, Options{})
	pragma := func(s string) error {
		return db.group.perform(t.Context(), &request{write: func(ctx context.Context, q querier) error { return q.(*conn).once(ctx, s) }})
	}
	if err := pragma("PRAGMA max_page_count = 1"); err != nil { // as many as there are
		t.Fatal(err)
	}
	m := lokt.NewManager(db.Locks())
	var err error
	n := 0
	for ; err == nil && n < 10000; n++ {
		c := claim(fmt.Sprint("lock-", n), "a", time.Hour)
		c.Metadata = map[string]string{"k": strings.Repeat("v", 1000)}
		_, err = m.Acquire(t.Context(), c)
	}
	n-- // was refused
	if !errors.Is(err, lokt.ErrUnavailable) || n == 0 {
		t.Fatalf("after %d: %v", n, err)
	}
	there := func(db *fileDB) {
		t.Helper()
		for i := range n {
			if l := view(t, db, fmt.Sprint("lock-", i)).Lock; len(l.Holders) != 1 || l.Token != 1 {
				t.Errorf("%d is %+v", i, l)
			}
		}
		if page, err := db.locks.ReadEvents(t.Context(), lokt.EventQuery{}); err != nil || len(page.Events) != n {
			t.Errorf("%d acquired, %d events, %v", n, len(page.Events), err)
		}
	}
	there(db)
	if err := pragma("PRAGMA max_page_count = 1000000"); err != nil {
		t.Error(err)
	}
	there(db)
	asKilled(t, path, path+".found")
	there(start(t, path+".found", Options{}))
	if _, err := m.Acquire(t.Context(), claim("more", "a", time.Hour)); err != nil {
		t.Error(err)
	}
	shut(t, db)
	n++
	again := start(t, path, Options{})
	if page, err := again.locks.ReadEvents(t.Context(), lokt.EventQuery{}); err != nil || len(page.Events) != n {
		t.Errorf("%d acquired, %d events, %v", n, len(page.Events), err)
	}
}

func TestReadersBesideFoldsSeeEveryEventOnce(t *testing.T) {
	t.Parallel()
	db := start(t, place(t), Options{KeepEvents: -1})
	db.locks.mostFree = 0
	var acknowledged, asked atomic.Uint64
	over := make(chan struct{})
	var reads atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				least := acknowledged.Load()
				page, err := db.locks.ReadEvents(t.Context(), lokt.EventQuery{After: least - min(least, 50)})
				snap, err2 := db.locks.View(t.Context(), "x")
				most := asked.Load()
				if err := errors.Join(err, err2); err != nil {
					t.Error(err)
					return
				}
				for i := range page.Events {
					if e := page.Events[i]; e.Seq != least-min(least, 50)+uint64(i)+1 || e.Token != e.Seq {
						t.Errorf("event %d after %d is %+v", i, least, e)
						return
					}
				}
				if n := page.Newest; n < least || n > most || n != least-min(least, 50)+uint64(len(page.Events)) || snap.Lock.Token < least || snap.Lock.Token > most {
					t.Errorf("newest %d, token %d are not from %d to %d", n, snap.Lock.Token, least, most)
				}
				reads.Add(1)
			}
		})
	}
	for n := uint64(1); n <= 600; n++ {
		asked.Store(n)
		if err := db.group.perform(t.Context(), rise("x")); err != nil {
			t.Fatal(err)
		}
		acknowledged.Store(n)
		if n%7 == 0 {
			_ = db.group.perform(t.Context(), &request{fold: true})
		}
	}
	close(over)
	wg.Wait()
	if reads.Load() == 0 {
		t.Error("nothing was read")
	}
}
