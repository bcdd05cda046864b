//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/jobs/manager"
)

func TestTheSchedulersRulesHoldOverPostgreSQL(t *testing.T) {
	t.Parallel()
	jobstest.TestServiceInRealTime(t, func(t *testing.T, c jobs.Config) jobs.Service {
		c.Shared = true
		m, err := manager.Open(t.Context(), jobsOfPG(t, schemaURL(t)), manager.Options{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	})
}

func serverJobsOf(db *DB) *serverJobs { return db.backend.(*serverDB).jobs }

// submitted returns a turn that submits a job, whose ID says whose it is.
func submitted(seq uint64, by string) jobs.Changes {
	r := &jobs.Record{Job: jobs.Job{Spec: jobs.NewSpec(), ID: fmt.Sprint(by, seq), State: jobs.Queued, Seq: seq, Revision: seq}}
	return jobs.Changes{
		Jobs: []*jobs.Record{r}, Events: []jobs.Event{{Seq: seq, Type: jobs.EventSubmit, JobID: r.ID}}, Counters: jobs.Counters{Seq: seq, Revision: seq, Event: seq},
	}
}

func store(t *testing.T, s jobs.Store, c jobs.Changes) {
	t.Helper()
	if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return c }); err != nil {
		t.Fatal(err)
	}
}

// rewind puts the state of an older time in the place of what is there: the first turn.
func rewind(t *testing.T, url string) {
	t.Helper()
	runSQL(t, url, "DELETE FROM turns WHERE turn > 1", "DELETE FROM job_events WHERE first > 1", "DELETE FROM jobs WHERE seq > 1")
}

// Promise S-62. What happens in a turn is dated by it, and comes after the full time that everybody gets whom the database forgot meanwhile.
func TestATurnThatWasHeldUpGoesByTheTimeAtWhichItIsRun(t *testing.T) {
	t.Parallel()
	for _, unused := range []time.Duration{0, time.Minute} {
		url := schemaURL(t)
		db, other := openPG(t, url, Options{}), serverJobsOf(openPG(t, url, Options{}))
		store(t, serverJobsOf(db), submitted(1, "a"))
		held, err := lokt.NewManager(db.Locks()).Acquire(t.Context(), claim("x", "a", time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		tx, err := session(t, url).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "LOCK TABLE memos"); err != nil { // which is read to follow the others, after the clock
			t.Fatal(err)
		}
		type said struct {
			now time.Time
			err error
		}
		told, ended := make(chan said, 1), make(chan error, 1)
		go func() {
			ended <- other.Update(t.Context(), func(f jobs.Facts) jobs.Changes {
				_, err := f.Locks.Acquire(claim("x", "b", time.Hour))
				told <- said{f.Now, err}
				return jobs.Changes{}
			})
		}()
		for waiting := false; !waiting; time.Sleep(time.Millisecond) {
			if err := tx.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'memos'::regclass AND NOT granted)").Scan(&waiting); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				t.Fatal("it was not held up: ", err)
			default:
			}
		}
		var now time.Time
		if err := tx.QueryRow(t.Context(), "UPDATE state SET clock = clock - $1 RETURNING clock_timestamp()", unused.Nanoseconds()).Scan(&now); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * lateTurn)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		in := <-told
		if in.now.Before(now) {
			t.Errorf("it was held up until after %v, and goes by %v", now, in.now)
		}
		blocked, ok := errors.AsType[*lokt.BlockedError](in.err)
		if !ok || blocked.Holders[0].LeaseID != held.LeaseID || unused > awayAfter && !blocked.Holders[0].ExpiresAt.After(held.ExpiresAt) {
			t.Errorf("after %v the hold is %+v, %v", unused, blocked, in.err)
		}
	}
}

// Promise S-154.
func TestAServerThatKnowsOfOthersThanThereAreReadsEverythingAnew(t *testing.T) {
	t.Parallel()
	for more := range uint64(4) { // than there were when the older state was made
		url := schemaURL(t)
		s, idle, other := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
		store(t, s, submitted(1, "a"))
		store(t, s, submitted(2, "a"))
		store(t, s, submitted(3, "a"))
		store(t, idle, jobs.Changes{}) // which is told, and stores nothing
		loaded := serverJobsOf(openPG(t, url, Options{}))
		if _, err := loaded.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		rewind(t, url)
		if _, err := other.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range more {
			store(t, other, submitted(2+n, "b"))
		}
		for _, s := range []*serverJobs{s, idle, loaded} {
			if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return submitted(9, "a") }); !errors.Is(err, errBehind) {
				t.Errorf("on a state of others, with %d other turns, it stored %v", more, err)
			}
			if l, err := s.Load(t.Context()); err != nil || l.Counters.Event != 1+more || len(l.Jobs) != int(1+more) {
				t.Errorf("loaded %+v, %v", l, err)
			}
			store(t, s, jobs.Changes{})
		}
		store(t, s, submitted(2+more, "a"))
	}
}

// Promise S-154: also if it was the same server that stored others.
func TestAServerThatStoresAnewWhatWasLostIsNotTakenForTheOneThatItWas(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s, idle := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
	store(t, s, submitted(1, "a"))
	store(t, s, submitted(2, "a"))
	store(t, idle, jobs.Changes{})
	rewind(t, url)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	store(t, s, submitted(2, "a"))
	if err := idle.Update(t.Context(), func(jobs.Facts) jobs.Changes { return submitted(3, "b") }); !errors.Is(err, errBehind) {
		t.Errorf("who knew what was lost stored %v", err)
	}
}

// Promise S-154.
func TestTurnsAreKeptForOthersUpToANumber(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	runSQL(t, url, fmt.Sprintf("INSERT INTO turns (turn, writer, jobs, memos) SELECT n, 'w', '{}', '{}' FROM generate_series(1, %d) n", keptTurns))
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(10) {
		store(t, s, submitted(1+i, "a"))
	}
	var n int64
	if err := session(t, url).QueryRow(t.Context(), "SELECT count(*) FROM turns").Scan(&n); err != nil || n != keptTurns {
		t.Errorf("%d turns are kept, %v", n, err)
	}
}

// A turn that changes a job which is not there is not stored.
func TestAJobThatWasTakenAwayIsNotPassedOver(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	c := submitted(1, "a")
	store(t, s, c)
	runSQL(t, url, "DELETE FROM jobs")
	c.Jobs[0].State, c.Counters.Revision = jobs.Leased, 2
	if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return c }); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("a change of a job that is not there: %v", err)
	}
	if l, err := s.Load(t.Context()); err != nil || l.Counters.Revision != 1 {
		t.Errorf("stored were %+v, %v", l, err)
	}
}

// Promise S-156.
func TestWhatIsDamagedInPostgreSQLIsNamedAndTheRestGoesOn(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	var warned []error
	db := openPG(t, url, Options{Warn: func(err error) { warned = append(warned, err) }})
	m := lokt.NewManager(db.Locks())
	for _, name := range []string{"bad", "good", "queue"} {
		if _, err := m.Acquire(t.Context(), claim(name, "a", time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	s := serverJobsOf(db)
	store(t, s, submitted(1, "bad"))
	store(t, s, submitted(2, "good"))
	ended := submitted(3, "ended")
	ended.Jobs[0].State, ended.Jobs[0].EndedAt = jobs.Completed, time.Now()
	store(t, s, ended)
	if _, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{}); err != nil { // which numbers them
		t.Fatal(err)
	}
	runSQL(t, url, "UPDATE locks SET doc = replace(doc, '\"id\":\"a\"', '\"id\":\"b\"'), revision = revision + 1 WHERE name = 'bad'",
		"UPDATE locks SET waiting = 1 WHERE name = 'queue'", "UPDATE jobs SET payload = '{ }' WHERE id = 'bad1'", "UPDATE jobs SET doc = replace(doc, 'generic', 'Generic') WHERE id = 'ended3'",
		"UPDATE lock_events SET sum = sum + 1 WHERE lock = 'bad'")
	damaged := func(what string, err error, name string) {
		t.Helper()
		if !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, name := range []string{"bad", "queue"} {
		_, err := db.Locks().View(t.Context(), name)
		damaged("view", err, name)
		_, err = m.Acquire(t.Context(), claim(name, "c", time.Hour))
		damaged("acquire", err, name)
	}
	if _, err := m.Renew(t.Context(), lokt.Renewal{Name: "good", LeaseID: "lease of a"}); err != nil {
		t.Error(err)
	}
	found := map[string]error{}
	for snap, err := range db.Locks().List(t.Context(), lokt.Filter{}) {
		found[snap.Lock.Name] = err
	}
	if len(found) != 3 || found["good"] != nil || !errors.Is(found["bad"], lokt.ErrDamaged) {
		t.Errorf("listed are %v", found)
	}
	page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
	if err != nil || len(page.Events) < 3 || page.Events[0].Type != "damaged" || page.Events[0].Name != "bad" {
		t.Errorf("there are %+v, %v", page, err)
	}
	l, err := s.Load(t.Context())
	if err != nil || len(l.Jobs) != 1 || l.Jobs[0].ID != "good2" || len(warned) != 1 {
		t.Errorf("loaded are %+v, warned of %v, %v", l.Jobs, warned, err)
	}
	for _, id := range []string{"bad1", "ended3"} {
		_, err = s.Ended(t.Context(), id)
		damaged("job", err, id)
	}
	if all, err := s.ListEnded(t.Context(), jobs.Filter{}, 0, 1<<63, 10); err != nil || len(all) != 1 || !strings.Contains(all[0].Reason, "ended3") {
		t.Errorf("listed are %+v, %v", all, err)
	}
}

// Promise S-158.
func TestADatabaseThatDoesNotTakeAllTextIsRefused(t *testing.T) {
	t.Parallel()
	schema := server.Schema(t)
	url := server.url(schema)
	smile := submitted(1, "a")
	smile.Jobs[0].Type = "\U0001F600 \u00e9 \u65e5"
	for encoding, fits := range map[string]bool{"UTF8": true, "SQL_ASCII": true, "EUC_JP": false, "LATIN1": false} {
		name := schema + "_" + strings.ToLower(encoding)
		runSQL(t, url, "CREATE DATABASE "+name+" ENCODING '"+encoding+"' TEMPLATE template0 LOCALE 'C'", "ALTER DATABASE "+name+" SET client_encoding = 'SQL_ASCII'")
		db, err := Open(t.Context(), strings.Replace(server.url("public"), "/postgres?", "/"+name+"?", 1), Options{})
		if !fits {
			if !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), encoding) {
				t.Errorf("%s: %v", encoding, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		s := serverJobsOf(db)
		store(t, s, smile)
		if l, err := s.Load(t.Context()); err != nil || len(l.Jobs) != 1 || l.Jobs[0].Type != smile.Jobs[0].Type {
			t.Errorf("%s: there are %+v, %v", encoding, l, err)
		}
	}
}

// Promise S-199.
func TestAPieceOfOutputCostsTheSameHoweverManyAreKept(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	c := submitted(1, "a")
	for i := range jobs.KeptPieces {
		c.Output = append(c.Output, jobs.Piece{JobID: "a1", Offset: int64(i), Text: "x"})
	}
	store(t, serverJobsOf(openPG(t, url, Options{})), c)
	tx, err := session(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "INSERT INTO output VALUES ('a1', $1, '', 0)", jobs.KeptPieces+1); err != nil {
		t.Fatal(err)
	}
	var scans, kept int
	err = tx.QueryRow(t.Context(), "SELECT seq_scan + idx_scan, (SELECT count(*) FROM output) FROM pg_stat_xact_user_tables WHERE relid = 'output'::regclass").
		Scan(&scans, &kept)
	if err != nil || scans > 10 || kept != jobs.KeptPieces {
		t.Errorf("the table was looked through %d times, and %d pieces are kept, %v", scans, kept, err)
	}
}

func TestAServerFollowsTheOthersWithoutReadingAllThatIsKept(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s, other := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
	store(t, s, submitted(1, "a"))
	runSQL(t, url, "INSERT INTO jobs SELECT 'b' || n, n, NULL, '', '', NULL, '', 0, '{}' FROM generate_series(10, 30000) n",
		"INSERT INTO memos SELECT n, NULL, '', 0 FROM generate_series(10, 30000) n",
		"INSERT INTO turns SELECT -n, '', ARRAY['b' || n], ARRAY[n] FROM generate_series(10, 10000) n", "ANALYZE jobs, memos, turns")
	c := submitted(2, "a")
	c.Memos = []jobs.Memo{{ID: "m", JobID: "a2"}}
	store(t, other, c)
	conn := session(t, url)
	run(t, conn, "SET plan_cache_mode = force_generic_plan", "BEGIN") // as any statement may be planned that was prepared
	var now pgLast
	var b pgx.Batch
	now.ask(&b, &pgState{})
	if err := exchange(t.Context(), conn, &b, time.Minute); err != nil {
		t.Fatal(err)
	}
	if all, err := s.follow(t.Context(), conn, &now); err != nil || len(all.Jobs) != 1 || len(all.Memos) != 1 {
		t.Fatalf("it is told of %+v, %v", all, err)
	}
	var read int
	err := conn.QueryRow(t.Context(), "SELECT sum(seq_tup_read) FROM pg_stat_xact_user_tables"+
		" WHERE relid = ANY ('{jobs, memos, turns}'::regclass[])").Scan(&read)
	if err != nil || read > 100 {
		t.Errorf("%d rows were looked through, %v", read, err)
	}
}

func TestAServerThatIsTooOldIsRefused(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	runSQL(t, url, "CREATE FUNCTION current_setting(what text) RETURNS text LANGUAGE sql AS"+
		" $$SELECT CASE what WHEN 'server_version_num' THEN '120022' ELSE pg_catalog.current_setting(what) END$$")
	_, err := Open(t.Context(), url+",pg_catalog", Options{})
	if !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), "PostgreSQL 12: it has to be 13 or newer") {
		t.Error(err)
	}
}

// Promise S-161.
func TestAServerThatIsStoppedInTheMiddleOfATurnKeepsOthersWaitingForABoundedTime(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	stopped, other := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- stopped.Update(context.WithoutCancel(t.Context()), func(jobs.Facts) jobs.Changes {
			close(begun)
			<-goOn
			return submitted(1, "a")
		})
	}()
	<-begun
	start := time.Now()
	var err error
	for time.Since(start) < 40*time.Second { // a caller waits for 10 seconds at most, and then asks again
		asked := time.Now()
		if err = other.Update(t.Context(), func(jobs.Facts) jobs.Changes { return submitted(1, "b") }); err == nil {
			break
		}
		if took := time.Since(asked); took > 20*time.Second {
			t.Errorf("another server's turn failed after %v", took)
		}
	}
	close(goOn)
	if err != nil {
		t.Errorf("another server's turn: %v", err)
	}
	if err := <-ended; !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("when it went on, its turn ended with %v", err)
	}
	if l, err := other.Load(t.Context()); err != nil || len(l.Jobs) != 1 || l.Jobs[0].ID != "b1" {
		t.Errorf("there are %+v, %v", l.Jobs, err)
	}
}
