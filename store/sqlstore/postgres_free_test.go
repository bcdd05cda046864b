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
)

// rowsOfLocks returns how many rows of locks there are.
func rowsOfLocks(t *testing.T, url string) (n int) {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err == nil {
		defer func() { _ = c.Close(context.Background()) }()
		err = c.QueryRow(t.Context(), "SELECT count(*) FROM locks").Scan(&n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Promise S-392.
func TestLocksThatAreFreeForLongLeaveNoRowsInPostgreSQL(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	a, b := openPG(t, url, Options{}), openPG(t, url, Options{})
	ma, mb := lokt.NewManager(a.Locks()), lokt.NewManager(b.Locks())
	forget := func(age time.Duration, least int) (done int64) {
		t.Helper()
		if err := a.backend.(*serverDB).trimming(t.Context(), forgetFree(age, least, &done)); err != nil {
			t.Fatal(err)
		}
		return done
	}
	last := uint64(0)
	use := func(m *lokt.Manager, name string) {
		t.Helper()
		h, err := m.Acquire(t.Context(), claim(name, "a", time.Hour))
		if err != nil || h.Token <= last && strings.HasPrefix(name, "x") {
			t.Fatalf("%s: token %d after %d, %v", name, h.Token, last, err)
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: name, LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "x") {
			last = h.Token
		}
	}
	for range 30 {
		use(ma, "x")
	}
	for i := range 20 {
		use(mb, fmt.Sprint("other-", i))
	}
	held, err := mb.Acquire(t.Context(), claim("held", "a", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	waits := claim("held", "b", time.Hour)
	waits.Wait = time.Minute
	got := make(chan error, 1)
	go func() {
		_, err := ma.Acquire(t.Context(), waits)
		got <- err
	}()
	if n := forget(time.Hour, 1) + forget(0, 22); n != 0 || rowsOfLocks(t, url) != 22 {
		t.Fatalf("locks that were just used, or few, are forgotten: %d rows are left", rowsOfLocks(t, url))
	}
	if n := forget(0, 21); n != 1 || rowsOfLocks(t, url) != 1 {
		t.Fatalf("%d rows are left", rowsOfLocks(t, url))
	}
	use(mb, "x")
	use(ma, "x")
	if _, err := mb.Renew(t.Context(), lokt.Renewal{Name: "held", LeaseID: held.LeaseID}); err != nil {
		t.Error(err)
	}
	if _, err := mb.Release(t.Context(), lokt.Target{Name: "held", LeaseID: held.LeaseID}); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// Promise S-392. Tokens rise, and nobody is refused, while locks are forgotten all the time.
func TestTokensRiseWhileLocksAreForgottenInPostgreSQL(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	ctx, stop := context.WithCancel(t.Context())
	forgotten := int64(0)
	var sweeping, all sync.WaitGroup
	sweeping.Go(func() {
		for ctx.Err() == nil {
			var done int64
			if err := db.backend.(*serverDB).trimming(ctx, forgetFree(0, 1, &done)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			forgotten += done
			time.Sleep(20 * time.Millisecond)
		}
	})
	var mu sync.Mutex
	last := map[string]uint64{}
	for g := range 6 {
		m := lokt.NewManager(openPG(t, url, Options{}).Locks())
		all.Go(func() {
			for i := range 60 {
				name := fmt.Sprint("x", i%7)
				c := claim(name, fmt.Sprint("owner-", g), time.Hour)
				c.LeaseID, c.Wait = lokt.NewLeaseID(), time.Minute
				h, err := m.Acquire(t.Context(), c)
				for errors.Is(err, lokt.ErrUnavailable) { // the floors have risen at each attempt
					h, err = m.Acquire(t.Context(), c)
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				mu.Lock()
				if h.Token <= last[name] {
					t.Errorf("%s: token %d after %d", name, h.Token, last[name])
				}
				last[name] = h.Token
				mu.Unlock()
				_, err = m.Release(t.Context(), lokt.Target{Name: name, LeaseID: h.LeaseID})
				for errors.Is(err, lokt.ErrUnavailable) {
					_, err = m.Release(t.Context(), lokt.Target{Name: name, LeaseID: h.LeaseID})
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
	all.Wait()
	stop()
	sweeping.Wait()
	if forgotten == 0 {
		t.Error("nothing was forgotten meanwhile")
	}
}
