//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// outdated returns what puts back what a server knows of a lock now: it has not heard of what others did meanwhile.
func outdated(db *DB, name string) (again func()) {
	s := db.backend.(*serverDB).locks
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.get(name).pgLock
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.get(name).pgLock = l
	}
}

func TestNobodyIsRefusedOrGrantedByWhatIsKnownNoMore(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	a, b := openPG(t, url, Options{}), openPG(t, url, Options{})
	ma, mb := lokt.NewManager(a.Locks()), lokt.NewManager(b.Locks())
	free := claim("x", "a", time.Hour)
	for range 20 {
		h, err := ma.Acquire(t.Context(), free)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mb.Acquire(t.Context(), claim("x", "b", time.Hour)); !errors.Is(err, lokt.ErrHeld) {
			t.Fatalf("a lock that is held: %v", err)
		}
		held := outdated(b, "x")
		if _, err := ma.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		held()
		other, err := mb.Acquire(t.Context(), claim("x", "b", time.Hour))
		if err != nil {
			t.Fatalf("a lock that was free again: %v", err)
		}
		if _, err := mb.Release(t.Context(), lokt.Target{Name: "x", LeaseID: other.LeaseID}); err != nil {
			t.Fatal(err)
		}
		vacant := outdated(b, "x")
		if h, err = ma.Acquire(t.Context(), free); err != nil {
			t.Fatal(err)
		}
		vacant()
		if _, err := mb.Acquire(t.Context(), claim("x", "b", time.Hour)); !errors.Is(err, lokt.ErrHeld) {
			t.Fatalf("a lock that was held again: %v", err)
		}
		if _, err := ma.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
	}
}

// A server that reckons the database's time wrongly does not judge by it.
func TestChangesAreJudgedByTheDatabasesTime(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	s := db.backend.(*serverDB).locks
	c := session(t, url)
	now := func() time.Time {
		t.Helper()
		var at time.Time
		if err := c.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for _, off := range []time.Duration{0, 30 * time.Millisecond, 10 * time.Minute, -10 * time.Minute, -3 * time.Second} {
		if err := raise(t.Context(), s, "x"); err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		s.zero, s.zeroed = s.zero.Add(off), time.Now()
		s.mu.Unlock()
		before := now()
		var judged time.Time
		if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
			judged = snap.Now // at last
			return raised(snap, "x")
		}); err != nil {
			t.Fatal(err)
		}
		if after := now(); judged.After(after) || before.Sub(judged) > time.Second {
			t.Errorf("%v off: judged at %v, between %v and %v", off, judged, before, after)
		}
	}
}

// Promise S-63: also for a lock that a server knows.
func TestTheFloorOfTokensHoldsForWhatIsKnown(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	m := lokt.NewManager(openPG(t, url, Options{}).Locks())
	raise := raiseFloor(t)
	for n := range uint64(3) {
		h, err := m.Acquire(t.Context(), claim("x", "a", time.Hour))
		if err != nil || h.Token <= n<<32 {
			t.Fatalf("token %d, %v", h.Token, err)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		runSQL(t, url, raise)
	}
}

// A change that others keep getting in the way of is made while the lock's row is locked.
func TestAChangeComesThroughAmongThoseOfOthers(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := openPG(t, url, Options{}).Locks()
	if err := raise(t.Context(), s, "x"); err != nil {
		t.Fatal(err)
	}
	other := session(t, url)
	run(t, other, "SET lock_timeout = 100")
	tried := 0
	if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
		tried++
		_, err := other.Exec(context.WithoutCancel(t.Context()), "UPDATE locks SET revision = revision WHERE name = 'x'")
		if locked := err != nil; locked != (tried > pgAttempts) {
			t.Errorf("attempt %d: the other's change: %v", tried, err)
		}
		return raised(snap, "x")
	}); err != nil {
		t.Fatal(err)
	}
	snap, err := s.View(t.Context(), "x")
	if err != nil || tried != pgAttempts+1 || snap.Lock.Token != 2 {
		t.Errorf("after %d attempts there is %+v, %v", tried, snap.Lock, err)
	}
}

// Who would read the queue of a lock, as everybody does who reads the lock, would wait here.
func TestALockThatIsKnownIsNotReadAgain(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	s, m := db.backend.(*serverDB).locks, lokt.NewManager(db.Locks())
	round := func() {
		t.Helper()
		h, err := m.Acquire(t.Context(), claim("x", "a", time.Hour))
		if err == nil {
			_, err = m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID})
		}
		if err == nil {
			_, err = m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID})
		}
		if err != nil {
			t.Error(err)
		}
	}
	listens := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.heard.IsZero() // when it begins to listen, it forgets what it knew
	}
	for end := time.Now().Add(2 * time.Minute); !listens() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	round()
	run(t, session(t, url), "BEGIN", "LOCK TABLE waiters")
	round()
}

// All were judged anew three times, because they took longer than what was judged may be old, and then one by one: with a thousand holders
// nobody could keep up with that.
//
// Promises S-38, S-101.
func TestACrowdIsGrantedInPartsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	inParts(t, openPG(t, schemaURL(t), Options{}).Locks())
}
