//go:build unix

package sqlstore

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// steppedURL is a schema in which the database's clock can be set.
func steppedURL(t *testing.T) (url string, step func(by time.Duration)) {
	t.Helper()
	url = schemaURL(t)
	setup := []string{"CREATE TABLE stepped (by interval NOT NULL)", "INSERT INTO stepped VALUES ('0')"}
	for name, kind := range map[string]string{"clock_timestamp": "VOLATILE", "statement_timestamp": "STABLE"} {
		setup = append(setup, fmt.Sprintf("CREATE FUNCTION %[1]s() RETURNS timestamptz LANGUAGE sql %[2]s AS 'SELECT pg_catalog.%[1]s() + by FROM stepped'", name, kind))
	}
	runSQL(t, url, setup...)
	return url + ",pg_catalog", func(by time.Duration) {
		t.Helper()
		runSQL(t, url, fmt.Sprintf("UPDATE stepped SET by = by + '%f seconds'", by.Seconds()))
	}
}

// Promise S-62.
func TestNoStepOfPostgreSQLsClockEndsAHold(t *testing.T) {
	t.Parallel()
	url, step := steppedURL(t)
	a, b := lokt.NewManager(openPG(t, url, Options{}).Locks()), lokt.NewManager(openPG(t, url, Options{}).Locks())
	for i, steps := range [][2]time.Duration{
		{-time.Hour, time.Hour}, {-time.Hour, time.Hour + 11*time.Second}, {-time.Hour, 2 * time.Hour}, {-3 * time.Second, 20 * time.Minute},
		{time.Hour, -time.Hour}, {time.Hour, time.Hour},
	} {
		name := fmt.Sprint("x", i)
		step(steps[0])
		h, err := a.Acquire(t.Context(), claim(name, "a", 10*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		step(steps[1])
		if _, err := b.Acquire(t.Context(), claim(name, "b", time.Minute)); !errors.Is(err, lokt.ErrHeld) {
			t.Errorf("%v: another got the lock: %v", steps, err)
		}
		if _, err := a.Renew(t.Context(), lokt.Renewal{Name: name, LeaseID: h.LeaseID}); err != nil {
			t.Errorf("%v: %v", steps, err)
		}
	}
}

// Promise S-62.
func TestNoStepOfPostgreSQLsClockKeepsALock(t *testing.T) {
	t.Parallel()
	url, step := steppedURL(t)
	a, b := lokt.NewManager(openPG(t, url, Options{}).Locks()), lokt.NewManager(openPG(t, url, Options{}).Locks())
	take := func(m *lokt.Manager, name, owner string, ttl time.Duration) {
		t.Helper()
		c := claim(name, owner, ttl)
		c.Wait = time.Minute
		if _, err := m.Acquire(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	take(a, "held", "a", time.Second)
	take(a, "free", "a", time.Hour)
	if _, err := a.Release(t.Context(), lokt.Target{Name: "free", LeaseID: "lease of a"}); err != nil {
		t.Fatal(err)
	}
	step(-time.Hour)
	take(b, "free", "c", time.Second)
	take(b, "held", "b", time.Hour) // nobody renews the other
	take(a, "free", "b", time.Hour)
}

// Promise S-62: it is not known for sure what had ended, because the clock may have been set back a little.
func TestWhatEndedJustBeforeIsWaitedFor(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	last := now.Add(-time.Hour)
	for left, want := range map[time.Duration]time.Duration{
		time.Second: time.Minute, 0: time.Minute, -clockBack / 2: clockBack, -2 * clockBack: -time.Hour - 2*clockBack,
	} {
		l := lokt.Lock{Holders: []lokt.Holder{{Claim: lokt.Claim{TTL: time.Minute}, ExpiresAt: last.Add(left)}}}
		restart(&l, now, last)
		if got := l.Holders[0].ExpiresAt.Sub(now); got != want {
			t.Errorf("%v before the end: %v are left, not %v", left, got, want)
		}
	}
	l := lokt.Lock{
		Holders: []lokt.Holder{{Claim: lokt.Claim{TTL: time.Minute}, ExpiresAt: now.Add(-2 * clockBack)}},
		Freeze:  &lokt.Freeze{TTL: time.Minute, ExpiresAt: now.Add(-2 * clockBack)},
	}
	back := now.Add(-2 * time.Hour)
	restart(&l, back, now)
	if s := (lokt.Snapshot{Lock: l, Now: back}); len(s.Live()) > 0 || s.Frozen() != nil {
		t.Errorf("what had ended when the clock was set back lasts until %v", l.Holders[0].ExpiresAt.Sub(back))
	}
}

// Promise S-284: a replica that was started after the clock was set back has a job's deadline by the same clock as the others.
func TestAJobIsLeasedOnceThoughPostgreSQLsClockIsSetBack(t *testing.T) {
	t.Parallel()
	url, step := steppedURL(t)
	a := openManager(t, url, 10)
	submit := func(m *manager.Manager) {
		t.Helper()
		if _, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil {
			t.Fatal(err)
		}
	}
	submit(a)
	step(-time.Hour)
	b := openManager(t, url, 10)
	submit(b)
	g, err := b.Request(t.Context(), jobs.Request{WorkerID: "w", Wait: jobs.MaxWait})
	if err != nil || g.Denied != nil {
		t.Fatalf("%+v, %v", g.Denied, err)
	}
	for range 10 { // each a turn of the other one
		submit(a)
	}
	if v, err := a.Get(t.Context(), g.Job.ID); err != nil || v.Lease == nil || v.Lease.ID != g.Lease.ID {
		t.Errorf("it is %+v now, %v", v, err)
	}
}
