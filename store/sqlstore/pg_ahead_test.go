//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// store stores what a turn changed.
func store(t *testing.T, s *serverJobs, c jobs.Changes) {
	t.Helper()
	if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return c }); err != nil {
		t.Fatal(err)
	}
}

// eventOf is a turn that stored an event, of so many bytes.
func eventOf(seq uint64, bytes int) jobs.Changes {
	return jobs.Changes{
		Events:   []jobs.Event{{Seq: seq, Type: jobs.EventSubmit, Time: time.UnixMilli(int64(seq)), Reason: strings.Repeat("x", bytes)}},
		Counters: jobs.Counters{Event: seq, Seq: seq},
	}
}

// Promise S-153.
func TestATurnThatTakesLongToWriteKeepsNobodyWaitingAndIsWrittenInTheEnd(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	s.tables.patience = 150 * time.Millisecond
	sql(t, url, "CREATE FUNCTION slow() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.2); RETURN NEW; END $$",
		"CREATE TRIGGER slow BEFORE INSERT ON job_events FOR EACH ROW EXECUTE FUNCTION slow()")
	for i := range 4 { // as many as there may be ahead
		store(t, s, eventOf(uint64(i+1), mostBytes/4))
	}
	if _, err := s.fold(t.Context(), false); err == nil {
		t.Fatal("it was written at once")
	}
	begun := time.Now()
	err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return eventOf(5, 1) })
	if took := time.Since(begun); !errors.Is(err, errAhead) || !errors.Is(err, lokt.ErrUnavailable) || took > time.Second {
		t.Errorf("a turn that had to wait was told %v after %v", err, took)
	}
	for end := time.Now().Add(time.Minute); s.foldAll(t.Context()) != nil; {
		if time.Now().After(end) {
			t.Fatal("it is not written")
		}
	}
	store(t, s, eventOf(5, 1))
	if events, err := s.Events(t.Context(), 0, 10); err != nil || len(events) != 5 {
		t.Errorf("there are %d events, %v", len(events), err)
	}
}

// Promises S-152 and S-162.
func TestAServerThatIsStartedKnowsHowMuchTheTablesLack(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	sql(t, url, "CREATE FUNCTION never() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'never'; END $$",
		"CREATE TRIGGER never BEFORE INSERT ON job_events FOR EACH ROW EXECUTE FUNCTION never()")
	for i := range 4 {
		store(t, s, eventOf(uint64(i+1), mostBytes/4))
	}
	other := serverJobsOf(openPG(t, url, Options{}))
	if _, err := other.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if has, knows := s.tables.lag(), other.tables.lag(); knows.Turns != 4 || knows.Bytes != has.Bytes || knows.Bytes <= mostBytes {
		t.Errorf("it knows of %+v, and there are %+v", knows, has)
	}
	if err := other.Update(t.Context(), func(jobs.Facts) jobs.Changes { return eventOf(5, 1) }); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("one turn more was told %v", err)
	}
	sql(t, url, "DROP TRIGGER never ON job_events")
	for end := time.Now().Add(time.Minute); other.foldAll(t.Context()) != nil; {
		if time.Now().After(end) {
			t.Fatal("it is not written")
		}
	}
	store(t, other, eventOf(5, 1))
	if events, err := s.Events(t.Context(), 0, 10); err != nil || len(events) != 5 {
		t.Errorf("there are %d events, %v", len(events), err)
	}
	if l := other.tables.lag(); l.Turns > 1 || l.Bytes > 1<<10 {
		t.Errorf("in the end it knows of %+v", l)
	}
}

// Promise S-153.
func TestWhoReadsKeepsNobodyFromWritingTheTables(t *testing.T) {
	t.Parallel()
	s := serverJobsOf(openPG(t, schemaURL(t), Options{}))
	for range pgReaders {
		c := <-s.db.idle
		defer func() { s.db.idle <- c }()
	}
	store(t, s, eventOf(1, 1))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.foldAll(ctx); err != nil {
		t.Errorf("not written while others read: %v", err)
	}
}

// Promise S-151: also while others store as fast as the tables are written.
func TestWhoWantsTheTablesWrittenDoesNotWaitForWhatIsStoredMeanwhile(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s, other := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
	for _, s := range []*serverJobs{s, other} {
		store(t, s, jobs.Changes{Refrozen: true, Frozen: []string{"x"}})
	}
	sql(t, url, `CREATE FUNCTION another() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO job_changes SELECT NEW.changes + 1, origin, at, body FROM job_changes WHERE seq = NEW.changes;
			UPDATE job_state SET changes = NEW.changes + 1;
			RETURN NEW;
		END $$`,
		"CREATE TRIGGER another AFTER UPDATE ON job_folded FOR EACH ROW WHEN (NEW.changes >= 2) EXECUTE FUNCTION another()")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.Trim(ctx, time.Time{}, -1, 1); err != nil {
		t.Errorf("while others stored: %v", err)
	}
	var upTo, stored int
	if err := session(t, url).QueryRow(t.Context(), "SELECT f.changes, s.changes FROM job_folded f, job_state s").Scan(&upTo, &stored); err != nil || upTo != 2 || stored != 3 {
		t.Errorf("the tables are as far as turn %d of %d, %v", upTo, stored, err)
	}
}

// Promise S-153: nobody's turn is refused because of that.
func TestWhoDoesNotWaitForTheTablesHasNotFailedToWriteThem(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	store(t, s, eventOf(1, 1))
	tx, err := session(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT 1 FROM job_folded FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	for _, begin := range []func(context.Context) (context.Context, context.CancelFunc){
		func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 50*time.Millisecond)
		},
		func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, leave := context.WithCancel(ctx)
			time.AfterFunc(50*time.Millisecond, leave)
			return ctx, leave
		},
	} {
		ctx, leave := begin(t.Context())
		if _, err := s.Trim(ctx, time.Time{}, -1, 1); err == nil || !errors.Is(err, ctx.Err()) {
			t.Errorf("it ended with %v, not %v", err, ctx.Err())
		}
		leave()
		if err := s.tables.lastFailure(); err != nil || s.tables.fails != 0 {
			t.Errorf("it counts as a failure: %d, %v", s.tables.fails, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Promise S-154.
func TestChangesAreKeptForOthersUpToSoManyBytes(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s, other := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
	const keep, each = 1 << 20, 100 << 10
	s.tables.keep, s.tables.unweighed = keep, 0
	c := session(t, url)
	bytes, rows := 0, 0
	kept := func() {
		t.Helper()
		if err := c.QueryRow(t.Context(), "SELECT coalesce(sum(octet_length(body)), 0), count(*) FROM job_changes").Scan(&bytes, &rows); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		store(t, s, eventOf(uint64(i+1), each))
		if i == 3 {
			if rows, err := other.Load(t.Context()); err != nil || rows.Counters.Event != 4 {
				t.Fatalf("loaded %+v, %v", rows.Counters, err)
			}
		}
		if i < 20 {
			continue // nothing is forgotten that is not in the tables
		}
		if kept(); i == 20 && rows != 21 {
			t.Errorf("of 21 turns that are not in the tables %d are there", rows)
		}
		if err := s.foldAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if kept(); bytes > keep+each || bytes < keep/2 {
			t.Errorf("after %d turns %d with %d bytes are kept", i+1, rows, bytes)
		}
	}
	// Who was behind what is kept is told so, reads everything anew, and goes on.
	ran := false
	if err := other.Update(t.Context(), func(jobs.Facts) jobs.Changes { ran = true; return eventOf(41, 1) }); !ran || !errors.Is(err, errBehind) {
		t.Fatalf("who was behind was told %v", err)
	}
	if rows, err := other.Load(t.Context()); err != nil || rows.Counters.Event != 40 {
		t.Fatalf("loaded %+v, %v", rows.Counters, err)
	}
	store(t, other, eventOf(41, 1))
	if got, want := everything(t, other), everything(t, s); got != want {
		t.Errorf("it has\n%s\nnot\n%s", got, want)
	}
	var seq int
	if err := s.foldAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	store(t, s, jobs.Changes{Events: []jobs.Event{{Seq: 42, Type: jobs.EventSubmit}}}) // of a turn that has counted nothing
	if err := s.foldAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.QueryRow(t.Context(), "SELECT job_seq FROM job_folded").Scan(&seq); err != nil || seq != 41 {
		t.Errorf("the newest job that was made has number %d, %v", seq, err)
	}
}

// Promise S-154.
func TestAServerThatKnowsOfMoreThanThereIsReadsEverythingAnew(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	store(t, s, eventOf(1, 1))
	if err := s.foldAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	sql(t, url, "CREATE TABLE older AS SELECT * FROM job_state", "CREATE TABLE older_folded AS SELECT * FROM job_folded")
	store(t, s, eventOf(2, 1))
	store(t, s, eventOf(3, 1))
	if err := s.foldAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	sql(t, url, "DELETE FROM job_changes WHERE seq > 1", "DELETE FROM job_events WHERE seq > 1", "UPDATE job_state s SET job_event = o.job_event, changes = o.changes FROM older o",
		"UPDATE job_folded s SET job_seq = o.job_seq, changes = o.changes FROM older_folded o")
	if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return eventOf(4, 1) }); !errors.Is(err, errBehind) {
		t.Errorf("on an older state it stored %v", err)
	}
	if rows, err := s.Load(t.Context()); err != nil || rows.Counters.Event != 1 {
		t.Errorf("loaded %+v, %v", rows.Counters, err)
	}
	if s.tables.upTo != 1 {
		t.Errorf("the tables count as written up to turn %d", s.tables.upTo)
	}
	if l := s.tables.lag(); l != (Lag{}) {
		t.Errorf("the tables are behind by %+v", l)
	}
	store(t, s, eventOf(2, 1))
}

// Promise S-154.
func TestAServerThatKnowsOfOthersThanThereAreReadsEverythingAnew(t *testing.T) {
	t.Parallel()
	for _, more := range []uint64{0, 1, 2} { // than it knows
		url := schemaURL(t)
		s, idle := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
		store(t, s, eventOf(1, 1))
		sql(t, url, "CREATE TABLE older AS SELECT * FROM job_state")
		store(t, s, eventOf(2, 1))
		store(t, s, eventOf(3, 1))
		store(t, idle, jobs.Changes{}) // which is told, and stores nothing
		loaded := serverJobsOf(openPG(t, url, Options{}))
		if _, err := loaded.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		sql(t, url, "DELETE FROM job_changes WHERE seq > 1", "UPDATE job_state s SET job_event = o.job_event, changes = o.changes FROM older o")
		other := serverJobsOf(openPG(t, url, Options{}))
		if _, err := other.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n := range 2 + more {
			store(t, other, eventOf(2+n, 2))
		}
		for _, s := range []*serverJobs{s, idle, loaded} {
			if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return eventOf(9, 1) }); !errors.Is(err, errBehind) {
				t.Errorf("on a state of others, %d turns further, it stored %v", more, err)
			}
			if rows, err := s.Load(t.Context()); err != nil || rows.Counters.Event != 3+more {
				t.Errorf("loaded %+v, %v", rows.Counters, err)
			}
			store(t, s, jobs.Changes{})
		}
		store(t, s, eventOf(4+more, 1))
		store(t, idle, eventOf(5+more, 1))
		if err := idle.foldAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		sql(t, url, "DELETE FROM job_changes")
		if err := idle.Update(t.Context(), func(jobs.Facts) jobs.Changes { return eventOf(9, 1) }); !errors.Is(err, errBehind) {
			t.Errorf("without the turn that it knows of it stored %v", err)
		}
		if _, err := idle.Load(t.Context()); err != nil {
			t.Error(err)
		}
		store(t, idle, eventOf(6+more, 1))
	}
}

// Promise S-154: also if it was the same server that stored others, and the clock of what is there now is behind.
func TestAServerThatStoresAnewWhatWasLostIsNotTakenForTheOneThatItWas(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s, idle := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
	turn := func(seq uint64, reason string) {
		t.Helper()
		if err := s.Update(t.Context(), func(f jobs.Facts) jobs.Changes {
			c := eventOf(seq, 0)
			c.Time, c.Events[0].Reason = f.Now, reason
			return c
		}); err != nil {
			t.Fatal(err)
		}
	}
	turn(1, "first")
	sql(t, url, "CREATE TABLE older AS SELECT * FROM job_state")
	s.last = time.Now().Add(time.Minute)
	turn(2, "lost")
	store(t, idle, jobs.Changes{})
	sql(t, url, "DELETE FROM job_changes WHERE seq > 1", "UPDATE job_state s SET job_event = o.job_event, changes = o.changes FROM older o")
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	turn(2, "anew")
	if err := idle.foldAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if events, err := s.Events(t.Context(), 1, 2); err != nil || len(events) != 1 || events[0].Reason != "anew" {
		t.Errorf("there are %+v, %v", events, err)
	}
	if err := idle.Update(t.Context(), func(jobs.Facts) jobs.Changes { return eventOf(3, 1) }); !errors.Is(err, errBehind) {
		t.Errorf("who knew what was lost stored %v", err)
	}
}

// Promise S-155.
func TestARowThatCannotBeReadIsNamed(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	store(t, s, eventOf(1, 1))
	for body, want := range map[string]string{`\x05`: "a newer program", `\x04`: "cannot be read", `\x03`: "cannot be read", `\x`: "cannot be read"} {
		sql(t, url, "UPDATE job_changes SET body = '"+body+"'")
		_, folded := s.fold(t.Context(), true)
		_, loaded := s.Load(t.Context())
		for _, err := range []error{folded, loaded} {
			if !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(err.Error(), "row 1 of table job_changes") || !strings.Contains(err.Error(), want) {
				t.Errorf("of %s it is said: %v", body, err)
			}
		}
	}
}

// Promise S-158.
func TestADatabaseThatDoesNotTakeAllTextIsRefused(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	smile := jobs.Changes{Events: []jobs.Event{{Seq: 1, Type: jobs.EventSubmit, JobID: "\U0001F600 \u00e9 \u65e5"}}}
	for encoding, fits := range map[string]bool{"UTF8": true, "SQL_ASCII": true, "EUC_JP": false, "LATIN1": false} {
		name := "enc_" + strings.ToLower(encoding)
		sql(t, url, "CREATE DATABASE "+name+" ENCODING '"+encoding+"' TEMPLATE template0 LOCALE 'C'", "ALTER DATABASE "+name+" SET client_encoding = 'SQL_ASCII'")
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
		defer db.Close()
		s := serverJobsOf(db)
		store(t, s, smile)
		if err := s.foldAll(t.Context()); err != nil {
			t.Errorf("%s: %v", encoding, err)
		}
		if events, err := s.Events(t.Context(), 0, 1); err != nil || len(events) != 1 || events[0].JobID != smile.Events[0].JobID {
			t.Errorf("%s: there are %+v, %v", encoding, events, err)
		}
	}
}

// Promise S-153.
func TestStatisticsOfManyTypesAndTagsAreAddedUpInParts(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	const most = addUpAfter * addUpEach
	hour := time.Unix(0, 0).Add(time.Hour).UTC()
	var c jobs.Changes
	for i := range most / 2 {
		c.Counts = append(c.Counts, jobs.Count{Hour: hour, Event: jobs.EventSubmit, Tag: fmt.Sprint("tag", i), N: 1})
	}
	for i := range 1000 {
		c.Tallies = append(c.Tallies, jobs.Tally{Hour: hour, Type: fmt.Sprint("type", i), Completed: 1})
	}
	db := session(t, url)
	waiting := func() (rows int) {
		t.Helper()
		if err := s.foldAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := db.QueryRow(t.Context(), "SELECT count(*) FROM stats_new").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	times := int64(0)
	add := func() int {
		t.Helper()
		times++
		store(t, s, c)
		return waiting()
	}
	if first, second := add(), add(); first != 1 || second != 0 {
		t.Errorf("%d additions wait after one turn that adds much, %d after two", first, second)
	}
	add()
	run(t, db, "INSERT INTO stats_new (hour, body) SELECT hour, body FROM stats_new, generate_series(1, 5)") // that could not be added up before
	times += 5
	for before := 6; before > 0; {
		rows := add()
		if added := before + 1 - rows; added < 1 || added > 3 {
			t.Errorf("%d additions of %d were added up at once", added, before+1)
			break
		}
		before = rows
	}
	tallies, counts, err := s.History(t.Context(), time.Time{})
	if err != nil || len(tallies) != 1000 || len(counts) != most/2 {
		t.Fatalf("there are %d tallies and %d counts, %v", len(tallies), len(counts), err)
	}
	for _, n := range counts {
		if n.N != times {
			t.Fatalf("%s was counted %d times, not %d", n.Tag, n.N, times)
		}
	}
	for _, n := range tallies {
		if n.Completed != times {
			t.Fatalf("%s was counted %d times, not %d", n.Type, n.Completed, times)
		}
	}
}

// Promise S-155.
func TestAJobInTheTablesIsReadWithoutWhatIsAheadOfThem(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	at := time.UnixMilli(1000).UTC()
	job := func(seq uint64, id string) jobs.Changes {
		j := jobs.Job{Seq: seq, Revision: seq, ID: id, State: jobs.Failed, CreatedAt: at, UpdatedAt: at, EndedAt: at, Spec: jobs.NewSpec()}
		return jobs.Changes{Ended: []jobs.Job{j}, Attempts: []jobs.Attempt{{JobID: id, Number: 1, State: jobs.Failed, EndedAt: at}}, Counters: jobs.Counters{Seq: seq, Revision: seq}}
	}
	store(t, s, job(1, "first"))
	if err := s.foldAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	store(t, s, job(2, "second"))
	for _, id := range []string{"first", "second"} {
		if j, attempts, err := s.Ended(t.Context(), id); err != nil || j.ID != id || len(attempts) != 1 {
			t.Errorf("%s is %+v with %d attempts, %v", id, j, len(attempts), err)
		}
	}
	sql(t, url, "UPDATE job_changes SET body = '\\x03'")
	if j, attempts, err := s.Ended(t.Context(), "first"); err != nil || j.ID != "first" || len(attempts) != 1 {
		t.Errorf("with a damaged row ahead it is %+v with %d attempts, %v", j, len(attempts), err)
	}
	if _, _, err := s.Ended(t.Context(), "second"); !errors.Is(err, lokt.ErrDamaged) {
		t.Errorf("what is in the damaged row was answered with %v", err)
	}
}

// Promise S-161.
func TestAServerThatIsStoppedInTheMiddleOfATurnKeepsOthersWaitingForABoundedTime(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	stopped, other := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{}))
	stopped.idle = time.Second
	begun, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- stopped.Update(context.WithoutCancel(t.Context()), func(jobs.Facts) jobs.Changes {
			close(begun)
			<-goOn
			return eventOf(1, 1)
		})
	}()
	<-begun
	err := other.Update(t.Context(), func(jobs.Facts) jobs.Changes { return eventOf(1, 1) })
	close(goOn)
	if err != nil {
		t.Errorf("another server's turn: %v", err)
	}
	if err := <-ended; !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("when it went on, its turn ended with %v", err)
	}
	if events, err := other.Events(t.Context(), 0, 10); err != nil || len(events) != 1 {
		t.Errorf("there are %d events, %v", len(events), err)
	}
}
