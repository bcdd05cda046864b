//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
	"github.com/lokt-dev/lokt/jobs"
)

// endBackends ends all connections of daemons to the schema, and returns when they have ended.
func endBackends(t *testing.T, url, name string) {
	t.Helper()
	c := session(t, url)
	var all []int32
	err := c.QueryRow(t.Context(), "SELECT array_agg(pid) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity"+
		" WHERE application_name = $1 AND pid <> pg_backend_pid()", name).Scan(&all)
	for left := len(all); err == nil && left > 0; time.Sleep(5 * time.Millisecond) {
		err = c.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1)", all).Scan(&left)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestNobodyListensForLongToAServerThatIsDeadWithoutAWord(t *testing.T) {
	t.Parallel()
	schema := server.Schema(t)
	proxy := servers.NewProxy(t, server.Addr)
	openPG(t, server.URL(proxy.Addr()+","+server.Addr, schema)+"&application_name="+schema, Options{})
	c := session(t, server.url(schema))
	listen := func(connections int) {
		t.Helper()
		n := 0
		for end := time.Now().Add(time.Minute); n != connections; time.Sleep(50 * time.Millisecond) {
			err := c.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = current_schema() AND query LIKE 'LISTEN%'").Scan(&n)
			if err != nil || time.Now().After(end) {
				t.Fatalf("%d connections listen, not %d, %v", n, connections, err)
			}
		}
	}
	listen(1)
	proxy.Hole()
	listen(2) // of which the first hears nothing
	proxy.Refuse()
}

// Promise S-445.
func TestTokensGoOnFarAboveThoseThatAStandbyMayNotHaveHad(t *testing.T) {
	t.Parallel()
	p := servers.NeedPostgres(t, "fsync=off")
	db := openPG(t, p.URL(p.Addr, "public"), Options{})
	m := lokt.NewManager(db.Locks())
	before, err := m.Acquire(t.Context(), claim("x", "a", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	signal := filepath.Join(p.Dir, "data", "standby.signal")
	if err := errors.Join(os.WriteFile(signal, nil, 0o600), p.Own(signal), p.Crash(), p.Exec("SELECT pg_promote()")); err != nil {
		t.Fatal(err)
	}
	var s lokt.Snapshot
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // connections of before may be dead, each in its turn
		after, err := m.Acquire(t.Context(), claim("y", "b", time.Hour))
		if err == nil && after.Token < 1<<32 {
			t.Errorf("token %d", after.Token)
		}
		if err == nil || errors.Is(err, lokt.ErrHeld) {
			s, err = m.Get(t.Context(), "x")
		}
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if h, held := s.Lock.Holder(before.LeaseID); !held || !h.ExpiresAt.After(before.ExpiresAt) || h.Token != before.Token || s.Lock.Token < 1<<32 {
		t.Errorf("%+v", s)
	}
}

// The floors are raised, as after restoring a dump, while a lock is held and nobody uses the database. Promises S-4, S-5.
func TestTheTokensOfALockThatWasHeldThroughAnOutageGoOnFromTheFloor(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	h, err := lokt.NewManager(openPG(t, url, Options{}).Locks()).Acquire(t.Context(), claim("x", "a", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	runSQL(t, url, raiseFloor(t)+"; UPDATE state SET clock = clock - 60000000000")
	m := lokt.NewManager(openPG(t, url, Options{}).Locks())
	if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID, Owner: h.Owner}); err != nil {
		t.Fatal(err)
	}
	if again, err := m.Acquire(t.Context(), claim("x", "b", time.Hour)); err != nil || again.Token <= 1<<32 {
		t.Errorf("token %d, %v", again.Token, err)
	}
}

// Promise S-445.
func TestTokensGoOnFarAboveThoseThatAServerHasForgotten(t *testing.T) {
	t.Parallel()
	db := openPG(t, schemaURL(t), Options{})
	d := serverJobsOf(db).db
	d.meeting.Lock()
	d.end = math.MaxInt64
	d.meeting.Unlock()
	m := lokt.NewManager(db.Locks())
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		h, err := m.Acquire(t.Context(), claim("x", "a", time.Hour))
		if err == nil && h.Token >= 1<<32 {
			return
		}
		if time.Now().After(end) {
			t.Fatal(h, err)
		}
		_, _ = m.Release(t.Context(), lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: h.Owner})
	}
}

// Promise S-237: connections may be lost before a turn, and while it decides.
func TestAConnectionThatIsLostCostsNoTurn(t *testing.T) {
	t.Parallel()
	url := schemaURL(t) + "&application_name=lost"
	s := serverJobsOf(openPG(t, url, Options{}))
	for seq := uint64(1); seq < 20; seq++ {
		if seq%3 == 0 {
			endBackends(t, url, "lost")
		}
		runs := 0
		if err := s.Update(t.Context(), func(f jobs.Facts) jobs.Changes {
			runs++
			if f.Others != nil {
				t.Errorf("turn %d is told of others: %+v", seq, f.Others)
			}
			if _, err := f.Locks.Acquire(claim(fmt.Sprint("lock", seq%2), "job", time.Hour)); err != nil {
				t.Error(err)
			}
			if seq%5 == 0 {
				endBackends(t, url, "lost")
			}
			return submitted(seq, "a")
		}); err != nil || runs != 1 {
			t.Fatalf("turn %d was run %d times: %v", seq, runs, err)
		}
	}
	all, err := s.Load(t.Context())
	if err != nil || len(all.Jobs) != 19 || all.Counters.Seq != 19 {
		t.Errorf("there are %d jobs, %+v, %v", len(all.Jobs), all.Counters, err)
	}
}

// A turn of which it is not known whether it is stored, because the connection was lost in the middle of it or after it,
// is stored once, or not at all if others have stored something in its place. Promise S-237.
func TestATurnWhoseEndIsNotKnownIsStoredOnce(t *testing.T) {
	t.Parallel()
	for _, commits := range []bool{false, true} {
		for _, others := range []bool{false, true} {
			t.Run(fmt.Sprintf("stored %v, others %v", commits, others), func(t *testing.T) {
				t.Parallel()
				url := schemaURL(t)
				db := openPG(t, url, Options{})
				s, other := serverJobsOf(db), serverJobsOf(openPG(t, url, Options{}))
				store(t, s, submitted(1, "a"))
				step := &pgStep{}
				attempt := func(end func(*pgx.Conn)) error {
					return s.db.lend(t.Context(), s.db.writers, pgTimeout, func(ctx context.Context, c *pgx.Conn) error {
						return s.run(ctx, c, func(f jobs.Facts) jobs.Changes {
							if _, err := f.Locks.Acquire(claim("x", "job", time.Hour)); err != nil {
								t.Error(err)
							}
							end(c)
							return submitted(2, "a")
						}, step)
					})
				}
				if _, err := lokt.NewManager(db.Locks()).Acquire(t.Context(), claim("x", "first", time.Millisecond)); err != nil {
					t.Fatal(err) // so that the row of the lock is there
				}
				time.Sleep(10 * time.Millisecond)
				if err := attempt(func(c *pgx.Conn) {
					if !commits {
						_ = c.Close(t.Context())
					}
				}); (err == nil) != commits {
					t.Fatal(err)
				}
				if others {
					n := uint64(2)
					if commits {
						n = 3
					}
					store(t, other, submitted(n, "b"))
				}
				err := attempt(func(*pgx.Conn) { t.Error("the turn is run again") })
				if lost := others && !commits; (err != nil) != lost || lost && !errors.Is(err, lokt.ErrUnavailable) {
					t.Fatalf("it ends with %v", err)
				}
				all, err := other.Load(t.Context())
				want := 2
				if others && commits {
					want = 3
				}
				if err != nil || len(all.Jobs) != want || all.Counters.Seq != uint64(want) {
					t.Errorf("there are %d jobs, %+v, %v", len(all.Jobs), all.Counters, err)
				}
				snap, err := db.Locks().View(t.Context(), "x")
				if _, held := snap.Lock.Holder("lease of job"); err != nil || held == (others && !commits) {
					t.Errorf("the lock is %+v, %v", snap.Lock, err)
				}
				if others && !commits {
					return
				}
				if err := s.Update(t.Context(), func(f jobs.Facts) jobs.Changes {
					if (f.Others != nil) != others {
						t.Errorf("it is told of %+v", f.Others)
					}
					return submitted(uint64(want+1), "a")
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
