package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

func acquire(t *testing.T, db *fileDB, c lokt.Claim) lokt.Holder {
	t.Helper()
	h, err := lokt.NewManager(db.Locks()).Acquire(t.Context(), c)
	if err != nil {
		t.Fatalf("acquire %+v: %v", c, err)
	}
	return h
}

func view(t *testing.T, db *fileDB, name string) lokt.Snapshot {
	t.Helper()
	snap, err := db.Locks().View(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// edit stores what a function makes of a lock.
func edit(t *testing.T, db *fileDB, name string, change func(l *lokt.Lock, now time.Time)) {
	t.Helper()
	if err := db.Locks().Update(t.Context(), name, func(s lokt.Snapshot) lokt.Change {
		change(&s.Lock, s.Now)
		return lokt.Change{Lock: s.Lock}
	}); err != nil {
		t.Fatal(err)
	}
}

func shut(t *testing.T, db *fileDB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// direct runs statements on a database that is closed.
func direct(t *testing.T, path string, statements ...string) {
	t.Helper()
	outside(t, path, func(w *writer) error { return w.script(strings.Join(statements, "; ")) })
}

// outside lends a connection to a database that is closed.
func outside(t *testing.T, path string, use func(w *writer) error) {
	t.Helper()
	w, err := openWriter(t.Context(), path, "rwc")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(use(w), w.Close()); err != nil {
		t.Fatal(err)
	}
}

// restate changes what a closed database says about itself.
func restate(t *testing.T, path string, change func(*state)) {
	t.Helper()
	outside(t, path, func(w *writer) error {
		s, err := readState(w.query)
		if err == nil {
			change(&s)
			s.write(w)
		}
		return errors.Join(err, w.err)
	})
}

// asKilled copies a database as a process that is killed leaves it.
func asKilled(t *testing.T, path, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", "-mark"} {
		b, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(to+suffix, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// away moves the last time at which the database was changed, and every time in it, into the past, as if it had been closed since.
func away(t *testing.T, path string, d time.Duration) {
	t.Helper()
	restate(t, path, func(s *state) { s.Clock = s.Clock.Add(-d) })
	back := func(times ...*time.Time) {
		for _, at := range times {
			if !at.IsZero() {
				*at = at.Add(-d)
			}
		}
	}
	db := &fileDB{options: Options{}}
	db.locks = &fileLocks{db: db}
	outside(t, path, func(w *writer) (err error) {
		db.write = w
		if err := db.locks.load(); err != nil {
			return err
		}
		b := &batch{locks: map[string]*change{}}
		for name, e := range db.locks.all {
			l := e.lock.Clone()
			for i := range l.Holders {
				h := &l.Holders[i]
				back(&h.HeldSince, &h.AcquiredAt, &h.ExpiresAt, &h.Pending)
			}
			for i := range l.Queue {
				w := *l.Queue[i]
				back(&w.Since, &w.Until)
				l.Queue[i] = &w
			}
			if l.Freeze != nil {
				back(&l.Freeze.At, &l.Freeze.ExpiresAt)
			}
			b.locks[name] = &change{e, l}
		}
		next := state{}
		db.locks.write(b, &next)
		return w.err
	})
}

// Promise S-62.
func TestNothingEndsBecauseTheDatabaseWasClosed(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	acquire(t, db, claim("plain", "a", 10*time.Minute))
	bounded := claim("bounded", "a", 10*time.Minute)
	bounded.MaxHold = 15 * time.Minute
	acquire(t, db, bounded)
	acquire(t, db, claim("forever", "a", 0))
	gone := claim("gone", "a", time.Millisecond)
	ended := acquire(t, db, gone)
	for now := view(t, db, "gone").Now; !now.After(ended.ExpiresAt.Add(time.Millisecond)); now = view(t, db, "gone").Now {
		time.Sleep(time.Millisecond)
	}
	edit(t, db, "plain", func(l *lokt.Lock, now time.Time) {
		l.Queue = append(l.Queue, &lokt.Waiter{Claim: claim("plain", "w", time.Minute), Place: 1, Since: now, Until: now.Add(lokt.PresenceTTL + lokt.QueueTTL)},
			&lokt.Waiter{Claim: claim("plain", "hung up", time.Minute), Place: 2, Since: now, Until: now.Add(lokt.AwayTTL)})
		l.Freeze = &lokt.Freeze{ID: "f", Owner: lokt.Owner{ID: "f"}, At: now, TTL: time.Hour, ExpiresAt: now.Add(time.Hour)}
	})
	edit(t, db, "granted", func(l *lokt.Lock, now time.Time) {
		l.Token++
		l.Holders = []lokt.Holder{{Claim: claim("granted", "p", time.Minute), Token: l.Token, HeldSince: now, AcquiredAt: now, ExpiresAt: now.Add(time.Minute), Pending: now.Add(lokt.OfferTTL)}}
	})
	edit(t, db, "wanted", func(l *lokt.Lock, now time.Time) {
		l.Token++
		h := lokt.Holder{Claim: claim("wanted", "y", 10*time.Minute), Token: l.Token, HeldSince: now, AcquiredAt: now, ExpiresAt: now.Add(10 * time.Minute)}
		h.Yield = &lokt.Yield{To: lokt.Owner{ID: "z"}, AskedAt: now, Grace: 10 * time.Minute, Deadline: now.Add(10 * time.Minute)}
		l.Holders = []lokt.Holder{h}
	})
	before := map[string]lokt.Lock{}
	for snap, err := range db.Locks().List(t.Context(), lokt.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		before[snap.Lock.Name] = snap.Lock
	}
	shut(t, db)
	away(t, path, 13*time.Minute)
	db = start(t, path, Options{})
	left := func(name string, end func(l lokt.Lock) time.Time, least, most time.Duration) {
		t.Helper()
		snap := view(t, db, name)
		if d := end(snap.Lock).Sub(snap.Now); d < least-25*time.Second || d > most {
			t.Errorf("%s: %v are left, not %v to %v", name, d, least, most)
		}
		if snap.Lock.Revision == before[name].Revision {
			t.Errorf("%s: the revision is the same", name)
		}
	}
	holder := func(l lokt.Lock) time.Time { return l.Holders[0].ExpiresAt }
	left("plain", holder, 10*time.Minute, 10*time.Minute)
	left("plain", func(l lokt.Lock) time.Time { return l.Queue[0].Until }, lokt.ReturnTimeout+lokt.QueueTTL, lokt.ReturnTimeout+lokt.QueueTTL)
	left("plain", func(l lokt.Lock) time.Time { return l.Queue[1].Until }, lokt.AwayTTL, lokt.AwayTTL)
	left("plain", func(l lokt.Lock) time.Time { return l.Freeze.ExpiresAt }, time.Hour, time.Hour)
	left("bounded", holder, 2*time.Minute, 2*time.Minute)
	left("granted", func(l lokt.Lock) time.Time { return l.Holders[0].Pending }, lokt.OfferTTL, lokt.OfferTTL)
	left("wanted", holder, 10*time.Minute, 10*time.Minute)
	left("wanted", func(l lokt.Lock) time.Time { return l.Holders[0].Yield.Deadline }, 10*time.Minute, 10*time.Minute)
	if h := view(t, db, "forever").Lock.Holders[0]; !h.ExpiresAt.IsZero() {
		t.Errorf("a hold without end ends at %v", h.ExpiresAt)
	}
	if snap := view(t, db, "gone"); len(snap.Live()) != 0 {
		t.Errorf("a hold that had ended lives: %+v", snap)
	}
}

// What is lost here is what the loss of power may lose: a group that was not flushed to the disk.
//
// Promises S-61, S-62.
func TestRenewalsThatAreLostWithThePowerHarmNobody(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	m := lokt.NewManager(db.Locks())
	acquire(t, db, claim("x", "a", time.Minute))
	if !db.isFlushed(t) {
		t.Error("a grant was not flushed to the disk")
	}
	flushed, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	var renewed lokt.Holder
	for range 3 {
		if renewed, err = m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: "lease of a"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Acquire(t.Context(), claim("x", "b", time.Minute)); !errors.Is(err, lokt.ErrHeld) {
		t.Fatal(err)
	}
	if db.isFlushed(t) {
		t.Error("renewals and refusals were flushed to the disk")
	}
	was := view(t, db, "x").Lock
	lost := filepath.Join(filepath.Dir(path), "lost.db")
	for _, suffix := range []string{"", "-wal", "-mark"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if suffix == "-wal" {
			b = flushed
		}
		if err := os.WriteFile(lost+suffix, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	after := start(t, lost, Options{})
	snap := view(t, after, "x")
	h, ok := snap.Lock.Holder("lease of a")
	if !ok || h.Renewals != 0 || h.Token != renewed.Token {
		t.Fatalf("afterwards there is %+v", snap.Lock)
	}
	if h.ExpiresAt.Before(renewed.ExpiresAt) {
		t.Errorf("the hold was renewed until %v, and lasts until %v", renewed.ExpiresAt, h.ExpiresAt)
	}
	if snap.Lock.Revision <= was.Revision {
		t.Errorf("revision %d follows %d, which somebody may have seen", snap.Lock.Revision, was.Revision)
	}
	if _, err := lokt.NewManager(after.Locks()).Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: "lease of a"}); err != nil {
		t.Error(err)
	}
	if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"}); err != nil || !db.isFlushed(t) {
		t.Errorf("a release was not flushed to the disk, or %v", err)
	}
}

// isFlushed reports whether the last transaction was flushed to the disk, as SQLite was told to do.
func (d *fileDB) isFlushed(t *testing.T) (flushed bool) {
	t.Helper()
	var mode int
	err := d.group.perform(t.Context(), &request{name: "look", change: func(s lokt.Snapshot) lokt.Change {
		flushed = d.full
		_ = d.write.query("PRAGMA synchronous", nil, func(from row) error { return from.Scan(&mode) })
		return lokt.Change{Lock: s.Lock}
	}})
	const normal, full = 1, 2 // https://www.sqlite.org/pragma.html#pragma_synchronous
	if want := map[bool]int{false: normal, true: full}[flushed]; err != nil || mode != want {
		t.Fatalf("synchronous is %d, not %d; %v", mode, want, err)
	}
	return flushed
}

// Promise S-62.
func TestTheClockDoesNotGoBackAcrossRestarts(t *testing.T) {
	t.Parallel()
	path := spot(t)
	shut(t, start(t, path, Options{}))
	ahead := time.Now().Add(48 * time.Hour)
	restate(t, path, func(s *state) { s.Clock = ahead })
	for range 2 {
		db := start(t, path, Options{})
		now := view(t, db, "x").Now
		if now.Before(ahead) {
			t.Errorf("the clock went back from %v to %v", ahead, now)
		}
		shut(t, db)
		ahead = now
	}
}

// Promise S-63.
func TestTokensRiseWhenABackupTakesThePlaceOfItsDatabase(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	acquire(t, db, claim("held", "a", time.Minute))
	copied := filepath.Join(filepath.Dir(path), "copy.db")
	if err := db.Backup(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	if err := db.Backup(t.Context(), copied); !errors.Is(err, os.ErrExist) {
		t.Errorf("a second backup to the same file: %v", err)
	}
	if info, err := os.Stat(copied); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup is %v, %v", info, err)
	}
	m := lokt.NewManager(db.Locks())
	last := map[string]uint64{}
	for range 5 {
		for _, name := range []string{"held", "later"} {
			if _, err := m.Release(t.Context(), lokt.Target{Name: name, Force: true}); err != nil && !errors.Is(err, lokt.ErrNotFound) {
				t.Fatal(err)
			}
			last[name] = acquire(t, db, claim(name, "b", time.Minute)).Token
		}
	}
	shut(t, db)
	for range 2 { // opening it again changes nothing more
		db = start(t, copied, Options{})
		if h, ok := view(t, db, "held").Lock.Holder("lease of a"); !ok || h.Token != 1 {
			t.Errorf("the backup has %+v", view(t, db, "held").Lock)
		}
		if view(t, db, "held").Lock.Token <= last["held"] || view(t, db, "later").Lock.Token <= last["later"] {
			t.Errorf("tokens are %d and %d after %v", view(t, db, "held").Lock.Token, view(t, db, "later").Lock.Token, last)
		}
		if token := view(t, db, "never").Lock.Token; token > 1<<33 {
			t.Errorf("the token jumped to %d", token)
		}
		shut(t, db)
	}
	db = start(t, copied, Options{})
	if h := acquire(t, db, claim("later", "c", time.Minute)); h.Token <= last["later"] {
		t.Errorf("token %d follows %d", h.Token, last["later"])
	}
}

// Promise S-63. What was granted after the backup was made is not known when it takes the place of the database.
func TestTokensOfJobsRiseWhenABackupTakesThePlaceOfItsDatabase(t *testing.T) {
	t.Parallel()
	path := spot(t)
	copied := filepath.Join(filepath.Dir(path), "copy.db")
	var last uint64
	rounds := func(path string, backup bool) {
		db := start(t, path, Options{})
		defer shut(t, db)
		m, err := manager.Open(t.Context(), db.Jobs(), manager.Options{Config: jobs.Config{Total: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m.Close() }()
		if backup {
			s := jobs.NewSpec()
			s.MaxAttempts, s.RetryBackoff = 100, time.Millisecond
			if _, err := m.Submit(t.Context(), []jobs.Spec{s}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 5 {
			g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w", Wait: 20 * time.Second})
			if err != nil || g.Denied != nil || g.Lease.Token <= last {
				t.Fatalf("token %d follows %d: denied %v, %v", g.Lease.Token, last, g.Denied, err)
			}
			last = g.Lease.Token
			if _, err := m.Complete(t.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Failed}); err != nil {
				t.Fatal(err)
			}
			if backup && i == 1 {
				if err := db.Backup(t.Context(), copied); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	rounds(path, true)
	rounds(copied, false)
	rounds(copied, false) // opening it again changes nothing more
	if last > 1<<33 {
		t.Errorf("the token jumped to %d", last)
	}
}

func TestABackupIsWholeWhileEverythingGoesOn(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() { // both locks always have the same token
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			for _, name := range []string{"one", "two"} {
				if err := db.Locks().Update(context.Background(), name, func(s lokt.Snapshot) lokt.Change {
					s.Lock.Token++
					return lokt.Change{Lock: s.Lock}
				}); err != nil {
					ended <- err
					return
				}
			}
		}
	}()
	for i := range 3 {
		copied := fmt.Sprintf("%s.%d", path, i)
		if err := db.Backup(t.Context(), copied); err != nil {
			t.Fatal(err)
		}
		copy := start(t, copied, Options{})
		if one, two := view(t, copy, "one").Lock.Token, view(t, copy, "two").Lock.Token; one != two && one != two+1 {
			t.Errorf("tokens are %d and %d", one, two)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := db.check(t.Context()); err != nil {
		t.Error(err)
	}
}

// grouped has requests in one group: it stops the goroutine that commits until all are waiting.
func grouped(t *testing.T, db *fileDB, all ...*request) []error {
	t.Helper()
	stopped, goOn := make(chan struct{}), make(chan struct{})
	blocked := make(chan error, 1)
	go func() {
		blocked <- db.group.perform(t.Context(), &request{name: "stop", change: func(s lokt.Snapshot) lokt.Change {
			close(stopped)
			<-goOn
			return lokt.Change{Lock: s.Lock}
		}})
	}()
	<-stopped
	errs := make([]error, len(all))
	finished := make(chan struct{})
	for i, r := range all {
		go func() {
			defer func() {
				if p := recover(); p != nil {
					errs[i] = fmt.Errorf("panic: %v", p)
				}
				finished <- struct{}{}
			}()
			errs[i] = db.group.perform(t.Context(), r)
		}()
		for { // in this order
			db.group.mu.Lock()
			n := len(db.group.queue)
			db.group.mu.Unlock()
			if n == i+1 {
				break
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	close(goOn)
	for range all {
		<-finished
	}
	if err := <-blocked; err != nil {
		t.Fatal(err)
	}
	return errs
}

func rise(name string) *request {
	return &request{name: name, change: func(s lokt.Snapshot) lokt.Change {
		s.Lock.Token++
		return lokt.Change{Lock: s.Lock, Events: []lokt.Event{{Time: s.Now, Type: lokt.EventAcquire, Name: name, Token: s.Lock.Token}}}
	}}
}

func TestARequestThatFailsTakesNobodyWithIt(t *testing.T) {
	t.Parallel()
	db := start(t, spot(t), Options{})
	bad := func() *request {
		return &request{name: "y", change: func(s lokt.Snapshot) lokt.Change {
			s.Lock.Holders = []lokt.Holder{{Claim: lokt.Claim{Name: "y", LeaseID: "\xff"}}}
			return lokt.Change{Lock: s.Lock}
		}}
	}
	turns := 0
	turn := &request{turn: func(jobs.Facts) jobs.Changes {
		turns++
		return jobs.Changes{Memos: []jobs.Memo{{ID: "m"}}}
	}}
	panics := &request{name: "x", change: func(lokt.Snapshot) lokt.Change { panic("no") }}
	errs := grouped(t, db, rise("x"), bad(), panics, rise("x"), rise("y"))
	for i, want := range []string{"", "UTF-8", "panic: no", "", ""} {
		if got := fmt.Sprint(errs[i]); (want == "") != (errs[i] == nil) || !strings.Contains(got, want) {
			t.Errorf("request %d: %v, want %q", i, errs[i], want)
		}
	}
	if x, y := view(t, db, "x").Lock, view(t, db, "y").Lock; x.Token != 3 || y.Token != 3 || len(y.Holders) != 0 {
		t.Errorf("stored are %+v and %+v", x, y)
	}
	page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
	if err != nil || len(page.Events) != 3 || page.Newest != 3 {
		t.Errorf("there are events %+v, %v", page, err)
	}
	if errs := grouped(t, db, turn, bad()); errs[0] == nil || turns != 1 { // the manager reads everything anew
		t.Errorf("a turn was run %d times: %v", turns, errs)
	}
	if living, err := db.Jobs().Load(t.Context()); err != nil || len(living.Memos) != 0 {
		t.Errorf("stored is %+v, %v", living, err)
	}
}

func TestARequestWhoseCallerGaveUpBeforeItsTurnIsDropped(t *testing.T) {
	t.Parallel()
	db := start(t, spot(t), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	errs := grouped(t, db, &request{name: "first", change: func(s lokt.Snapshot) lokt.Change {
		cancel()
		return lokt.Change{Lock: s.Lock}
	}})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	if err := db.group.perform(ctx, rise("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if view(t, db, "x").Lock.Token != 0 {
		t.Error("it was stored")
	}
}

// Promise S-66.
func TestAFullDatabaseRefusesAndGoesOnWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	db := start(t, spot(t), Options{})
	pragma := func(s string) error {
		return db.group.perform(t.Context(), &request{name: "pragma", change: func(snap lokt.Snapshot) lokt.Change {
			_ = db.write.script(s)
			return lokt.Change{Lock: snap.Lock}
		}})
	}
	acquire(t, db, claim("x", "a", time.Minute))
	if err := pragma("PRAGMA max_page_count = 1"); err != nil { // as many as there are
		t.Fatal(err)
	}
	m := lokt.NewManager(db.Locks())
	stored := map[string]bool{"x": true}
	refused := 0
	for i := 0; refused < 5; i++ {
		if i == 1000 {
			t.Fatal("it never gets full")
		}
		c := claim(fmt.Sprint("n", i), "b", time.Minute)
		c.Metadata = map[string]string{"k": strings.Repeat("v", 3000)}
		if _, err := m.Acquire(t.Context(), c); err == nil {
			stored[c.Name] = true
		} else if refused++; !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "full") {
			t.Fatal(err)
		}
	}
	db2 := 0
	for snap, err := range db.Locks().List(t.Context(), lokt.Filter{}) {
		if err != nil || !stored[snap.Lock.Name] {
			t.Errorf("%s is there: %v", snap.Lock.Name, err)
		}
		db2++
	}
	if db2 != len(stored) {
		t.Errorf("%d locks are there of %d", db2, len(stored))
	}
	if err := pragma("PRAGMA max_page_count = 1000000"); err != nil {
		t.Fatal(err)
	}
	acquire(t, db, claim("again", "b", time.Minute))
}

// Promise S-66.
func TestWhatIsNoDatabaseOfLoktIsRefusedAndLeftAsItIs(t *testing.T) {
	t.Parallel()
	refused := func(path string, want error, says string) {
		t.Helper()
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Open(t.Context(), "sqlite:"+path, Options{})
		if !errors.Is(err, want) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s was changed: %v", path, err)
		}
	}
	other := spot(t)
	direct(t, other, "CREATE TABLE recipes (name TEXT)")
	refused(other, lokt.ErrInvalid, "another program")
	newer := spot(t)
	shut(t, start(t, newer, Options{}))
	direct(t, newer, "PRAGMA journal_mode = DELETE; PRAGMA user_version = 999")
	refused(newer, lokt.ErrInvalid, "999")
	text := spot(t)
	if err := os.WriteFile(text, bytes.Repeat([]byte("no database\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(text, lokt.ErrDamaged, "restore a backup")
	for _, url := range []string{"", "sqlite:", "mysql://x", "/tmp/x"} {
		if _, err := Open(t.Context(), url, Options{}); !errors.Is(err, lokt.ErrInvalid) {
			t.Errorf("open of %q: %v", url, err)
		}
	}
}

// Promise S-66.
func TestDamagedPagesAreFound(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	for i := range 300 {
		acquire(t, db, claim(fmt.Sprint("n", i), "a", time.Minute))
	}
	shut(t, db)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for at := int64(4096); at < info.Size(); at += 4096 {
		if _, err := f.WriteAt(bytes.Repeat([]byte{0x5a}, 64), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), "sqlite:"+path, Options{}); !errors.Is(err, lokt.ErrDamaged) || !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestFilesAreForTheirUserAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a", "b", "ü ?#%25 .db")
	db := start(t, path, Options{})
	acquire(t, db, claim("x", "a", time.Minute))
	for name, mode := range map[string]os.FileMode{path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600, path + "-mark": 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		if info, err := os.Stat(name); err != nil || info.Mode() != mode {
			t.Errorf("%s is %v, %v", name, info, err)
		}
	}
}

// Promise S-65.
func TestOldEventsAreForgottenByNumberAndByAge(t *testing.T) {
	t.Parallel()
	db := start(t, spot(t), Options{KeepEvents: 100, KeepEventsFor: time.Hour})
	happen := func(at time.Duration, n int) {
		if err := db.Locks().Update(t.Context(), "x", func(s lokt.Snapshot) lokt.Change {
			return lokt.Change{Lock: s.Lock, Events: slices.Repeat([]lokt.Event{{Time: s.Now.Add(at), Type: lokt.EventRenew, Name: "x"}}, n)}
		}); err != nil {
			t.Fatal(err)
		}
	}
	kept := func() (n uint64) {
		page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{Limit: 1})
		if err != nil {
			t.Fatal(err)
		}
		if page.Oldest == 0 {
			return 0
		}
		return page.Newest - page.Oldest + 1
	}
	trim := func() {
		if err := db.trimming(t.Context(), db.options.forgetLockEvents); err != nil {
			t.Fatal(err)
		}
	}
	happen(0, 60)
	trim()
	if n := kept(); n != 60 {
		t.Errorf("%d events are kept of 60", n)
	}
	for range 50 {
		happen(0, 3)
	}
	trim()
	if n := kept(); n != 102 { // three share a row
		t.Errorf("%d events are kept", n)
	}
	db = start(t, spot(t), Options{KeepEventsFor: time.Hour})
	happen(-2*time.Hour, 300)
	happen(-time.Minute, 300)
	trim()
	if n := kept(); n != 300 {
		t.Errorf("%d events are kept", n)
	}
}

// Promise S-27.
func TestWhatLastsForCenturiesOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	m := lokt.NewManager(db.Locks())
	last := time.Unix(0, math.MaxInt64)
	lives := map[string]lokt.Claim{"ever": {TTL: math.MaxInt64}, "held": {MaxHold: math.MaxInt64}, "both": {TTL: math.MaxInt64, MaxHold: math.MaxInt64}, "almost": {TTL: time.Until(last) - time.Millisecond}}
	for name, c := range lives {
		c.Name, c.Owner, c.LeaseID = name, lokt.Owner{ID: "a"}, name
		if _, err := m.Acquire(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Freeze(t.Context(), "frozen-"+name, lokt.Freeze{Owner: c.Owner, TTL: c.TTL}); err != nil {
			t.Fatal(err)
		}
	}
	asKilled(t, path, path+".found")
	there := func(path string) {
		t.Helper()
		db := start(t, path, Options{})
		m := lokt.NewManager(db.Locks())
		for name := range lives {
			if _, err := m.Acquire(t.Context(), claim(name, "b", time.Minute)); !errors.Is(err, lokt.ErrHeld) {
				t.Errorf("%s is %+v: %v", name, view(t, db, name).Lock, err)
			}
			if _, err := m.Acquire(t.Context(), claim("frozen-"+name, "b", time.Minute)); !errors.Is(err, lokt.ErrFrozen) {
				t.Errorf("frozen-%s is %+v: %v", name, view(t, db, "frozen-"+name).Lock, err)
			}
		}
		shut(t, db)
	}
	there(path + ".found")
	shut(t, db)
	for range 2 {
		there(path)
	}
}

// TestOnlyRenewalsAreRenewals sets every field of a lock, one after another, to something else: only those of a renewal may be lost with the power.
func TestOnlyRenewalsAreRenewals(t *testing.T) {
	now := time.Now()
	full := func() lokt.Lock {
		c := claim("x", "a", time.Minute)
		c.Process, c.Metadata, c.Paths, c.Within = &lokt.Process{PID: 1}, map[string]string{"k": "v"}, []string{"p"}, []string{"w"}
		y := &lokt.Yield{To: lokt.Owner{ID: "o"}, AskedAt: now, Deadline: now}
		said := func() []lokt.Message {
			passed := c
			return []lokt.Message{{ID: "m", At: now, Pass: &passed}}
		}
		return lokt.Lock{
			Token: 1, Holders: []lokt.Holder{{Claim: c, HeldSince: now, AcquiredAt: now, ExpiresAt: now, Pending: now, Yield: y, Messages: said()}},
			Queue: []*lokt.Waiter{{Claim: c, Since: now, Until: now, Messages: said()}}, Freeze: &lokt.Freeze{At: now, ExpiresAt: now},
		}
	}
	base := full()
	var fields int
	var visit func(path string, get func(l *lokt.Lock) reflect.Value)
	visit = func(path string, get func(l *lokt.Lock) reflect.Value) {
		l := full()
		v := get(&l)
		if v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]() {
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					visit(path+"."+f.Name, func(l *lokt.Lock) reflect.Value { return get(l).Field(i) })
				}
			}
			return
		}
		switch v.Kind() {
		case reflect.Pointer:
			visit(path, func(l *lokt.Lock) reflect.Value { return get(l).Elem() })
			if strings.HasSuffix(path, "]") {
				return // a queue has no nil in it
			}
			v.Set(reflect.Zero(v.Type()))
		case reflect.Slice:
			if k := v.Type().Elem().Kind(); k == reflect.Struct || k == reflect.Pointer {
				visit(path+"[0]", func(l *lokt.Lock) reflect.Value { return get(l).Index(0) })
			}
			v.Set(reflect.Zero(v.Type()))
		case reflect.Map:
			v.Set(reflect.ValueOf(map[string]string{"k": "w"}))
		case reflect.Struct:
			v.Set(reflect.ValueOf(now.Add(1)))
		case reflect.String:
			v.SetString(v.String() + "other")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Uint64:
			v.SetUint(v.Uint() + 1)
		default:
			v.SetInt(v.Int() + 1)
		}
		fields++
		if strings.HasSuffix(path, ".Name") && strings.Count(path, ".") == 1 || path == ".Revision" {
			return // they say which lock it is, and which state of it
		}
		renewal := slices.Contains([]string{".Holders[0].AcquiredAt", ".Holders[0].ExpiresAt", ".Holders[0].Renewals", ".Queue[0].Until"}, path)
		if onlyRenewed(&base, &l) != renewal {
			t.Errorf("a change of %s is taken for a renewal, or a renewal is not", path)
		}
	}
	visit("", func(l *lokt.Lock) reflect.Value { return reflect.ValueOf(l).Elem() })
	again := full()
	if !onlyRenewed(&base, &again) || fields < 80 {
		t.Errorf("looked at %d fields; equal locks are equal: %v", fields, onlyRenewed(&base, &again))
	}
}

func TestStoreLatenciesAreObserved(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 100)
	db := start(t, spot(t), Options{Observe: func(op string, took time.Duration, err error) {
		if took >= 0 && err == nil {
			seen <- op
		}
	}})
	acquire(t, db, claim("x", "a", time.Minute))
	if err := db.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, err := range db.Locks().List(t.Context(), lokt.Filter{}) {
		if err != nil {
			t.Error(err)
		}
	}
	var got []string
	for len(seen) > 0 {
		got = append(got, <-seen)
	}
	for _, want := range []string{"commit", "ping", "list"} {
		if !slices.Contains(got, want) {
			t.Errorf("observed were %v, not %s", got, want)
		}
	}
}

// turnNumber is a turn that submits the nth job, and ends the one before it.
func turnNumber(n uint64) jobs.Changes {
	now := time.Unix(1_700_000_000+int64(n), 0).UTC()
	job := func(n uint64) *jobs.Record {
		r := &jobs.Record{Job: jobs.Job{Spec: jobs.NewSpec(), ID: fmt.Sprint("job-", n), State: jobs.Queued, CreatedAt: now, UpdatedAt: now, Seq: n, Revision: 2 * n}}
		if r.Payload = []byte(`{"n":1}`); n%3 == 0 {
			r.Payload = []byte(`"` + strings.Repeat("x", 3*largePayload) + `"`)
		}
		return r
	}
	c := jobs.Changes{
		Counters: jobs.Counters{Seq: n, Revision: 2 * n, Event: n}, Frozen: []string{"f"},
		Events: []jobs.Event{{Seq: n, Time: now, Type: jobs.EventSubmit, JobID: fmt.Sprint("job-", n)}},
		Stats:  []jobs.Statistic{{Hour: now.Truncate(time.Hour), Source: "s", Events: map[jobs.EventType]int64{jobs.EventSubmit: int64(n)}}},
		Memos:  []jobs.Memo{{ID: "last", JobID: fmt.Sprint("job-", n), Expires: time.Now().Add(time.Hour)}},
	}
	if n > 1 {
		was := job(n - 1)
		was.State, was.EndedAt, was.Revision = jobs.Completed, now, 2*n-1
		c.Jobs = append(c.Jobs, was)
	}
	c.Jobs = append(c.Jobs, job(n))
	return c
}

func TestLargePayloadsAreForgottenWithTheirJobs(t *testing.T) {
	t.Parallel()
	db := start(t, spot(t), Options{})
	for n := range uint64(7) { // the last goes on, and those of the third and the sixth are large
		if err := db.Jobs().Update(t.Context(), func(jobs.Facts) jobs.Changes { return turnNumber(n + 1) }); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []struct{ keep, gone, payloads int }{{-1, 0, 2}, {3, 3, 1}, {0, 3, 0}} {
		gone, err := db.Jobs().Trim(t.Context(), time.Time{}, want.keep, 100)
		var payloads int
		if e := db.read.QueryRow("SELECT count(*) FROM payloads").Scan(&payloads); e != nil {
			err = e
		}
		if err != nil || gone != want.gone || payloads != want.payloads {
			t.Errorf("keeping %d, %d are gone, and %d payloads are left, %v", want.keep, gone, payloads, err)
		}
	}
}

func TestEventsOfJobsAreForgottenThoughFewJobsAre(t *testing.T) {
	t.Parallel()
	const kept = 10
	db := start(t, spot(t), Options{KeepEvents: kept})
	c := jobs.Changes{Jobs: turnNumber(1).Jobs}
	for range 3000 {
		c.Counters.Event++
		c.Events = []jobs.Event{{Seq: c.Counters.Event, Type: jobs.EventSubmit, Time: time.Now()}}
		if err := db.Jobs().Update(t.Context(), func(jobs.Facts) jobs.Changes { return c }); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := db.Jobs().Trim(t.Context(), time.Time{}, -1, 1); err != nil || n != 0 {
		t.Errorf("%d jobs are gone, %v", n, err)
	}
	var n, last int
	if err := db.read.QueryRow("SELECT count(*), max(last) FROM job_events").Scan(&n, &last); err != nil || n != kept || last != 3000 {
		t.Errorf("%d events are kept, the last is number %d, %v", n, last, err)
	}
}

func TestPeopleSeeWhatThereIsAtOnce(t *testing.T) {
	t.Parallel()
	path := spot(t)
	db := start(t, path, Options{})
	acquire(t, db, claim("x", "a", time.Hour))
	edit(t, db, "x", func(l *lokt.Lock, now time.Time) {
		l.Queue = []*lokt.Waiter{{Claim: claim("x", "w", time.Minute), Place: 1, Since: now, Until: now.Add(time.Hour)}}
	})
	for n := range uint64(3) {
		if err := db.Jobs().Update(t.Context(), func(jobs.Facts) jobs.Changes { return turnNumber(n + 1) }); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]string{
		"SELECT name || state || holders || waiters FROM lock_list":                                           "xheld11",
		"SELECT lock || owner || lease_id || ttl_ms FROM holder_list":                                         "xalease of a3600000",
		"SELECT lock || owner || priority FROM queue_list":                                                    "xw0",
		"SELECT seq || type || lock || owner FROM event_list":                                                 "1acquirexa",
		"SELECT group_concat(id || state || length(payload), ' ') FROM (SELECT * FROM job_list ORDER BY seq)": "job-1completed7 job-2completed7 job-3queued3074",
		"SELECT group_concat(seq || type || job, ' ') FROM (SELECT * FROM job_event_list ORDER BY seq)":       "1submittedjob-1 2submittedjob-2 3submittedjob-3",
	} {
		outside(t, path, func(w *writer) error {
			return w.query(query, nil, func(from row) error {
				var got string
				if err := from.Scan(&got); err != nil || got != want {
					t.Errorf("%s: %q, %v, not %q", query, got, err, want)
				}
				return nil
			})
		})
	}
}
