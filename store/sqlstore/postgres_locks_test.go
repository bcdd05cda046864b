//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
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

// Nobody's own clock decides.
func TestChangesAreJudgedByTheDatabasesTime(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := openPG(t, url, Options{}).Locks()
	c := session(t, url)
	now := func() time.Time {
		t.Helper()
		var at time.Time
		if err := c.QueryRow(t.Context(), "SELECT date_trunc('milliseconds', clock_timestamp())").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for range 3 {
		before := now()
		var judged time.Time
		if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
			judged = snap.Now
			return raised(snap, "x")
		}); err != nil {
			t.Fatal(err)
		}
		if after := now().Add(time.Millisecond); judged.After(after) || judged.Before(before) {
			t.Errorf("judged at %v, between %v and %v", judged, before, after)
		}
	}
	run(t, c, "UPDATE locks SET changed = "+fmt.Sprint(now().Add(time.Hour).UnixNano()))
	if snap, err := s.View(t.Context(), "x"); err != nil || snap.Now.Before(now().Add(59*time.Minute)) {
		t.Errorf("a lock that was changed at a later time is judged by %v, %v", snap.Now, err)
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

// Promise S-120: a change of a lock whose row somebody has locked waits for that, and no other change does.
func TestAChangeWaitsForNoOtherLock(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	s := db.Locks()
	for n := range 10 {
		if err := raise(t.Context(), s, fmt.Sprint("x", n)); err != nil {
			t.Fatal(err)
		}
	}
	other := session(t, url)
	run(t, other, "BEGIN", "SELECT 1 FROM locks WHERE name = 'x0' FOR UPDATE")
	locked := make(chan error)
	go func() { locked <- raise(context.WithoutCancel(t.Context()), s, "x0") }()
	for waits := 0; waits == 0; {
		const waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NULL AND pid <> pg_backend_pid() AND transactionid = pg_current_xact_id_if_assigned()::xid"
		if err := other.QueryRow(t.Context(), waiting).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-locked:
			t.Fatalf("while another had the lock's row: %v", err)
		default:
		}
	}
	for n := 1; n < 10; n++ {
		if err := raise(t.Context(), s, fmt.Sprint("x", n)); err != nil {
			t.Error(err)
		}
	}
	select {
	case err := <-locked:
		t.Errorf("while another had the lock's row: %v", err)
	default:
	}
	run(t, other, "COMMIT")
	if err := <-locked; err != nil {
		t.Error(err)
	}
	if snap, err := s.View(t.Context(), "x0"); err != nil || snap.Lock.Token != 2 {
		t.Errorf("there is %+v, %v", snap.Lock, err)
	}
}

// A lock that nobody else has changed is not read again with all who wait for it.
func TestALockThatIsKnownIsNotReadAgain(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	m := lokt.NewManager(openPG(t, url, Options{}).Locks())
	var err error
	for n := range 3 { // a server forgets what it knew when it begins to listen
		h, queued := acquireQueued(t, m, fmt.Sprint("x", n))
		runSQL(t, url, "UPDATE waiters SET sum = sum + 1")
		if _, err = m.Renew(t.Context(), lokt.Renewal{Name: h.Name, LeaseID: h.LeaseID}); err == nil {
			if _, err := lokt.NewManager(openPG(t, url, Options{}).Locks()).Get(t.Context(), h.Name); !errors.Is(err, lokt.ErrDamaged) {
				t.Errorf("who reads that %s waits: %v", queued, err)
			}
			return
		}
	}
	t.Errorf("a lock that was known: %v", err)
}

// acquireQueued has a lock held, and somebody wait for it.
func acquireQueued(t *testing.T, m *lokt.Manager, name string) (h lokt.Holder, queued string) {
	t.Helper()
	held, err := m.Acquire(t.Context(), claim(name, "a", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	c := claim(name, "b", time.Hour)
	c.Wait = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := m.Poll(ctx, c); ctx.Err() == nil {
		t.Fatal(err)
	}
	return held, c.LeaseID
}
