//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/lokttest"
)

// either is a service whose requests go to one of several in turn.
type either struct {
	lokt.Service
	n   atomic.Int64
	all []lokt.Service
}

func (e *either) next() lokt.Service { return e.all[int(e.n.Add(1))%len(e.all)] }

func (e *either) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	return e.next().Acquire(ctx, c)
}

func (e *either) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	return e.next().Renew(ctx, r)
}

func (e *either) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	return e.next().Release(ctx, t)
}

func TestTheRulesHoldOverSeveralServersOnPostgreSQL(t *testing.T) {
	t.Parallel()
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service {
		url := schemaURL(t)
		e := &either{}
		for range 2 {
			e.all = append(e.all, lokt.NewManager(locksOfPG(t, url, Options{})))
		}
		e.Service = e.all[0]
		return e
	})
}

func TestServersOnPostgreSQLWakeEachOther(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	a, b := locksOfPG(t, url, Options{}), locksOfPG(t, url, Options{})
	ma, mb := lokt.NewManager(a), lokt.NewManager(b)
	h, err := ma.Acquire(t.Context(), claim("x", "a", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	waits := claim("x", "b", time.Hour)
	waits.Wait = time.Minute
	go func() {
		_, err := mb.Acquire(t.Context(), waits)
		got <- err
	}()
	newest := uint64(0)
	for {
		snap, err := a.View(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if len(snap.Lock.Queue) == 1 {
			break
		}
		if err := a.Wait(t.Context(), lokt.Watch{Name: "x", Seen: snap.Lock.Revision}); err != nil {
			t.Fatal(err)
		}
		page, err := a.ReadEvents(t.Context(), lokt.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		newest = page.Newest
	}
	if _, err := ma.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	for newest < 4 { // granted, queued, released, granted
		if err := a.WaitEvents(t.Context(), newest); err != nil {
			t.Fatal(err)
		}
		page, err := b.ReadEvents(t.Context(), lokt.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		newest = page.Newest
	}
}

func TestNotificationsArriveWithoutLooking(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	a, b := openPG(t, url, Options{}), openPG(t, url, Options{})
	s := b.backend.(*serverDB).locks
	if _, err := b.Locks().View(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // each is heard long before anybody looks anyway
		s.mu.Lock()
		me := s.get("x").watchers.Watch(&lokt.Lock{Name: "x"}, lokt.Watch{Name: "x"})
		s.mu.Unlock()
		deadline := time.After(2 * time.Minute)
		for heard := false; !heard; {
			if err := a.Locks().Update(t.Context(), "x", func(s lokt.Snapshot) lokt.Change {
				s.Lock.Token++
				return lokt.Change{Lock: s.Lock}
			}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-me.Changed:
				heard = true
			case <-time.After(200 * time.Millisecond): // it may not have begun to listen
			case <-deadline:
				t.Fatalf("notification %d was not heard", i)
			}
		}
	}
}

// Promise S-62.
func TestNothingEndsBecauseNobodyUsedPostgreSQL(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	m := lokt.NewManager(db.Locks())
	if _, err := m.Acquire(t.Context(), claim("x", "a", 10*time.Minute)); err != nil {
		t.Fatal(err)
	}
	bounded := claim("y", "a", 10*time.Minute)
	bounded.MaxHold = 15 * time.Minute
	if _, err := m.Acquire(t.Context(), bounded); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	const n = 13 * time.Minute // it was in use until then
	age(t, url, n, func(h *lokt.Holder) {
		h.HeldSince, h.AcquiredAt, h.ExpiresAt = h.HeldSince.Add(-n), h.AcquiredAt.Add(-n), h.ExpiresAt.Add(-n)
	})
	db = openPG(t, url, Options{})
	for name, want := range map[string]time.Duration{"x": 10 * time.Minute, "y": 2 * time.Minute} {
		snap, err := db.Locks().View(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if left := snap.Lock.Holders[0].ExpiresAt.Sub(snap.Now); left < want-time.Minute || left > want {
			t.Errorf("%s: %v are left, not %v", name, left, want)
		}
	}
	// The same while it is open, if nobody could reach the database: whoever comes first sees to it before judging.
	age(t, url, n, func(h *lokt.Holder) {
		if h.Name == "x" {
			h.ExpiresAt = h.ExpiresAt.Add(-n)
		}
	})
	if _, err := lokt.NewManager(db.Locks()).Acquire(t.Context(), claim("x", "b", time.Minute)); !errors.Is(err, lokt.ErrHeld) {
		t.Errorf("somebody else got the lock: %v", err)
	}
}

// age makes the database look as if it had been used so long ago, with holders that are changed.
func age(t *testing.T, url string, by time.Duration, change func(h *lokt.Holder)) {
	t.Helper()
	c := session(t, url)
	run(t, c, fmt.Sprintf("UPDATE state SET clock = clock - %d", by), fmt.Sprintf("UPDATE locks SET changed = changed - %d", by))
	rows, err := c.Query(t.Context(), "SELECT name, doc, sum FROM locks WHERE NOT free")
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		name string
		document
	}
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (one row, err error) {
		err = r.Scan(&one.name, &one.text, &one.sum)
		return one, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		l, err := r.openLock(r.name, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		for i := range l.Holders {
			change(&l.Holders[i])
		}
		d, err := sealLock(&l)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Exec(t.Context(), "UPDATE locks SET doc = $2, sum = $3 WHERE name = $1", r.name, d.text, d.sum); err != nil {
			t.Fatal(err)
		}
	}
}

// manager opens a manager over a database of its own.
func openManager(t *testing.T, url string, total int) *manager.Manager {
	t.Helper()
	m, err := manager.Open(t.Context(), jobsOfPG(t, url), manager.Options{Config: jobs.Config{Total: total, Shared: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Promise S-140.
func TestEveryReplicaTellsTheSameTokensOfAJobsLocks(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	open := func() *manager.Manager {
		m, err := manager.Open(t.Context(), jobsOfPG(t, url), manager.Options{Config: jobs.Config{Shared: true}, Locks: lokt.NewManager(locksOfPG(t, url, Options{})), OneStore: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	a, b := open(), open()
	ask := func(m *manager.Manager, request string) jobs.Lease {
		t.Helper()
		g, err := m.Request(ctx, jobs.Request{WorkerID: "w", RequestID: request, Wait: jobs.MaxWait})
		if err != nil || g.Denied != nil {
			t.Fatalf("not granted: %+v, %v", g.Denied, err)
		}
		return g.Lease
	}
	spec := jobs.NewSpec()
	spec.Locks = []string{"x", "y"}
	last := uint64(0)
	for i := range 4 {
		if _, err := b.Submit(ctx, []jobs.Spec{spec}); err != nil {
			t.Fatal(err)
		}
		request := fmt.Sprint("r", i)
		first := ask(a, request)
		if len(first.LockTokens) != 2 || first.LockTokens["x"] <= last {
			t.Fatalf("told are %v after %d", first.LockTokens, last)
		}
		last = first.LockTokens["x"]
		if _, err := b.Heartbeat(ctx, jobs.Heartbeat{LeaseID: first.ID, WorkerID: "w"}); err != nil {
			t.Fatal(err)
		}
		for n := range 2 { // while the lease is active, and when it has ended
			for who, m := range map[string]*manager.Manager{"the same replica": a, "another": b, "a third, which was started later,": open()} {
				if again := ask(m, request); again.ID != first.ID || !maps.Equal(again.LockTokens, first.LockTokens) {
					t.Errorf("%s tells %v, not %v", who, again.LockTokens, first.LockTokens)
				}
			}
			if n == 0 {
				if _, err := b.Complete(ctx, jobs.Completion{LeaseID: first.ID, WorkerID: "w", Status: jobs.Completed}); err != nil {
					t.Fatal(err)
				}
			}
		}
		a, b = b, a
	}
}

func TestSchedulersOnPostgreSQLShareJobsAndCapacity(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	const total, count = 4, 120
	managers := []*manager.Manager{openManager(t, url, total), openManager(t, url, total), openManager(t, url, total)}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var held, done atomic.Int64
	var full atomic.Bool
	seen := sync.Map{}
	var wg sync.WaitGroup
	for w := range 9 {
		m := managers[w%len(managers)]
		wg.Go(func() {
			worker := fmt.Sprint("w", w)
			for ctx.Err() == nil && done.Load() < count {
				g, err := m.Request(ctx, jobs.Request{WorkerID: worker, Wait: 200 * time.Millisecond})
				if err != nil || g.Denied != nil {
					continue
				}
				if _, twice := seen.LoadOrStore(g.Job.ID, true); twice {
					t.Errorf("job %s was granted twice", g.Job.ID)
				}
				if n := held.Add(1); n > total {
					t.Errorf("%d units are held of %d", n, total)
				} else if n == total {
					full.Store(true)
				}
				for !full.Load() && ctx.Err() == nil { // all that there is is leased at once at some time
					time.Sleep(time.Millisecond)
				}
				held.Add(-1)
				other := managers[(w+1)%len(managers)] // a lease is everybody's
				if ended, err := other.Complete(ctx, jobs.Completion{LeaseID: g.Lease.ID, WorkerID: worker, Status: jobs.Completed}); err != nil || !ended {
					t.Errorf("completion elsewhere: %v, %v", ended, err)
				}
				done.Add(1)
			}
		})
	}
	for i := range count {
		spec := jobs.NewSpec()
		spec.Payload = []byte(fmt.Sprintf(`{ "n" :  %d }`, i))
		spec.IdempotencyKey = fmt.Sprint("key ", i)
		for _, m := range managers[:1+i%3] { // some of them more than once
			if _, err := m.Submit(ctx, []jobs.Spec{spec}); err != nil {
				t.Error(err)
			}
		}
	}
	wg.Wait()
	if done.Load() != count || !full.Load() {
		t.Errorf("%d jobs were done of %d; all units were leased at once: %t", done.Load(), count, full.Load())
	}
	for i, m := range managers {
		s, err := m.Status(ctx)
		if err != nil || s.Queue.Sum() != 0 || s.Leased != 0 || s.ActiveLeases != 0 {
			t.Errorf("manager %d: status is %+v, %v", i, s, err)
		}
	}
}

func TestASchedulerOnPostgreSQLThatCannotFollowReadsEverythingAnew(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	a, b := openManager(t, url, 10), openManager(t, url, 10)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	submit := func(m *manager.Manager) string {
		t.Helper()
		spec := jobs.NewSpec()
		spec.Payload = []byte(`{"a":  [1,   2]}`)
		for { // it may be told to ask again
			r, err := m.Submit(ctx, []jobs.Spec{spec})
			if err == nil {
				return r[0].JobID
			}
			if !errors.Is(err, lokt.ErrUnavailable) || ctx.Err() != nil {
				t.Fatal(err)
			}
		}
	}
	first := submit(a)
	for _, forget := range []string{"DELETE FROM turns WHERE turn < (SELECT max(turn) FROM turns)", "UPDATE turns SET jobs = '{another}'", "UPDATE turns SET writer = 'another'"} {
		id := submit(a)
		runSQL(t, url, forget)
		submit(b)
		for _, m := range []*manager.Manager{a, b} {
			for {
				v, err := m.Get(ctx, id)
				if err == nil {
					if string(v.Job.Payload) != `{"a":  [1,   2]}` {
						t.Errorf("the payload is %s", v.Job.Payload)
					}
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("after %s: %v", forget, err)
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	if g, err := b.Request(ctx, jobs.Request{WorkerID: "w"}); err != nil || g.Denied != nil || g.Job.ID != first {
		t.Errorf("granted was %+v, %v", g, err)
	}
}

// Promise S-281.
func TestAServerThatStoresNothingIsNotReady(t *testing.T) {
	t.Parallel()
	own := servers.NeedPostgres(t, "fsync=off")
	url := own.URL(own.Addr, "public")
	db := openPG(t, url, Options{})
	for _, stores := range []bool{false, true} { // one that reads only answers like a standby
		runSQL(t, url, fmt.Sprintf("ALTER SYSTEM SET default_transaction_read_only = %t", !stores), "SELECT pg_reload_conf()")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for (db.Ping(ctx) == nil) != stores {
			if ctx.Err() != nil {
				t.Fatalf("it stores: %t, and the answer is %v", stores, db.Ping(t.Context()))
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// Promise S-61.
func TestWhatIsAcknowledgedSurvivesTheCrashOfPostgreSQL(t *testing.T) {
	t.Parallel()
	own := servers.NeedPostgres(t, "fsync=off")
	url := own.URL(own.Addr, "public")
	db := openPG(t, url, Options{})
	m := lokt.NewManager(db.Locks())
	js, err := manager.Open(t.Context(), db.Jobs(), manager.Options{Config: jobs.Config{Shared: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = js.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	if _, err := m.Acquire(ctx, claim("kept", "a", 5*time.Minute)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		stop, ended := make(chan struct{}), make(chan struct{})
		var token uint64
		var ids []string
		failed := 0
		go func() { // until it fails, and works again
			defer close(ended)
			for recovered := false; !recovered && ctx.Err() == nil; {
				c := claim("x", "a", time.Minute)
				c.LeaseID = "" // another hold each time
				h, err := m.Acquire(ctx, c)
				if err == nil {
					if h.Token <= token {
						t.Errorf("token %d follows %d", h.Token, token)
					}
					token = h.Token
					_, err = m.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID})
				}
				if err != nil && !errors.Is(err, lokt.ErrUnavailable) && !errors.Is(err, lokt.ErrNotFound) {
					t.Errorf("a lock: %v", err)
				}
				r, err2 := js.Submit(ctx, []jobs.Spec{jobs.NewSpec()})
				if err2 == nil {
					ids = append(ids, r[0].JobID)
				} else if !errors.Is(err2, lokt.ErrUnavailable) {
					t.Errorf("a job: %v", err2)
				}
				if err != nil || err2 != nil {
					failed++
					time.Sleep(time.Millisecond)
				}
				select {
				case <-stop:
					recovered = err == nil && err2 == nil
				default:
				}
			}
		}()
		for db.Ping(ctx) != nil && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if err := own.Crash(); err != nil {
			t.Fatal(err)
		}
		close(stop)
		<-ended
		if ctx.Err() != nil {
			t.Fatal("it did not work again")
		}
		if failed == 0 {
			t.Error("nobody noticed the crash")
		}
		for _, id := range ids {
			if _, err := js.Get(ctx, id); err != nil {
				t.Errorf("job %s was acknowledged: %v", id, err)
			}
		}
		snap, err := db.Locks().View(ctx, "kept")
		if err != nil || len(snap.Live()) != 1 {
			t.Errorf("a hold that was acknowledged is %+v, %v", snap, err)
		}
	}
}

// Promise S-121.
func TestDatabasesOfPostgreSQLThatCannotBeUsedAreRefused(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	newer := openPG(t, url, Options{})
	if err := newer.Close(); err != nil {
		t.Fatal(err)
	}
	runSQL(t, url, "UPDATE lokt_schema SET version = 999")
	others, closed := schemaURL(t), schemaURL(t)
	runSQL(t, others, "CREATE TABLE locks (door TEXT)")
	role := "nobody_" + strings.ToLower(lokt.NewLeaseID())
	runSQL(t, closed, "CREATE ROLE "+role+" LOGIN", "DO $$ BEGIN EXECUTE 'GRANT USAGE ON SCHEMA ' || current_schema() || ' TO "+role+"'; END $$")
	for what, c := range map[string]struct {
		url, says string
		want      error
	}{
		"newer":     {url, "999", lokt.ErrInvalid},
		"no schema": {server.url("nowhere"), "search path", lokt.ErrInvalid},
		"another's": {others, "AUTHORIZATION", lokt.ErrInvalid},
		"no right":  {strings.Replace(closed, "lokt@", role+"@", 1), "AUTHORIZATION \"" + role, lokt.ErrInvalid},
		"isolation": {schemaURL(t) + "&default_transaction_isolation=serializable", "SET default_transaction_isolation", lokt.ErrInvalid},
		"no server": {"postgres:///postgres?host=" + t.TempDir() + "&user=lokt", "connect", lokt.ErrUnavailable},
		"no URL":    {"postgres://%zz", "parse", lokt.ErrInvalid},
	} {
		if _, err := Open(t.Context(), c.url, Options{}); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Promise S-121.
func TestServersThatStartTogetherMakeTheTablesOnce(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			db, err := Open(t.Context(), url, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(db.Ping(t.Context()), db.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(t.Context()) }()
	for _, view := range []string{"lock_list", "holder_list", "queue_list", "event_list", "job_list"} {
		if _, err := c.Exec(t.Context(), "SELECT * FROM "+view); err != nil {
			t.Error(err)
		}
	}
	var versions int
	if err := c.QueryRow(t.Context(), "SELECT count(*) FROM lokt_schema").Scan(&versions); err != nil || versions != 1 {
		t.Errorf("%d versions, %v", versions, err)
	}
}

func TestTextThatPostgreSQLDoesNotTakeComesBack(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	freeze := func(reason string) error {
		return db.Locks().Update(t.Context(), "x", func(s lokt.Snapshot) lokt.Change {
			s.Lock.Freeze = &lokt.Freeze{ID: "f", Owner: lokt.Owner{ID: "o"}, Reason: reason}
			return lokt.Change{Lock: s.Lock, Events: []lokt.Event{{Name: "x", Extra: map[string]string{"reason": reason}}}}
		})
	}
	if err := freeze("a\x00b"); err != nil {
		t.Fatal(err)
	}
	if err := freeze("\xff"); !errors.Is(err, lokt.ErrInvalid) {
		t.Errorf("text that is not UTF-8: %v", err)
	}
	snap, err := db.Locks().View(t.Context(), "x")
	if err != nil || snap.Lock.Freeze.Reason != "a\x00b" {
		t.Errorf("got %+v, %v", snap.Lock.Freeze, err)
	}
	job := submitted(1, "a")
	job.Jobs[0].Tags = []string{"a\x00b"}
	store(t, serverJobsOf(db), job)
	for _, view := range []string{"lock_list", "holder_list", "queue_list", "event_list", "job_list"} {
		runSQL(t, url, "SELECT number_lock_events(true)", "SELECT * FROM "+view)
	}
}

// raiseFloor returns the statement that docs/operations.md gives to those who restored a dump.
func raiseFloor(t *testing.T) string { return advised(t, "psql \"$URL\" -c '", "'\n") }

// advised returns a statement that is between two texts in docs/operations.md.
func advised(t *testing.T, before, after string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), before)
	statement, _, ok := strings.Cut(rest, after)
	if !ok {
		t.Fatalf("docs/operations.md says nothing after %s", before)
	}
	return statement
}

// Promise S-63.
func TestTheFloorOfTokensHoldsForEveryName(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	db := openPG(t, url, Options{})
	m := lokt.NewManager(db.Locks())
	raise := raiseFloor(t)
	runSQL(t, url, raise) // there is no lock yet
	if _, err := m.Acquire(t.Context(), claim("held", "a", time.Minute)); err != nil {
		t.Fatal(err)
	}
	lockNow := func() lokt.Lock {
		t.Helper()
		snap, err := db.Locks().View(t.Context(), "held")
		if err != nil {
			t.Fatal(err)
		}
		return snap.Lock
	}
	floor, revision := uint64(1<<32), lockNow().Revision
	for range 2 {
		runSQL(t, url, raise)
		if is := lockNow(); is.Revision <= revision+1<<31 {
			t.Errorf("revision %d follows %d", is.Revision, revision)
		}
		floor += 1 << 32
		for _, name := range []string{"held", "new"} {
			if snap, err := db.Locks().View(t.Context(), name); err != nil || snap.Lock.Token <= floor-1 {
				t.Errorf("%s: %+v, %v", name, snap, err)
			}
			if _, err := m.Release(t.Context(), lokt.Target{Name: name, Force: true}); err != nil && !errors.Is(err, lokt.ErrNotFound) {
				t.Fatal(err)
			}
			if h, err := m.Acquire(t.Context(), claim(name, "b", time.Minute)); err != nil || h.Token <= floor {
				t.Errorf("%s: %+v, %v", name, h, err)
			}
		}
		revision = lockNow().Revision
	}
	j := openManager(t, url, 1) // it has been started since
	if _, err := j.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil {
		t.Fatal(err)
	}
	if g, err := j.Request(t.Context(), jobs.Request{WorkerID: "w"}); err != nil || g.Lease.Token <= floor {
		t.Errorf("token %d of a job, denied %v, %v", g.Lease.Token, g.Denied, err)
	}
}
