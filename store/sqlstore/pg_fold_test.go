//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
)

// serverJobsOf returns the jobs of a database, whose tables nobody writes by himself.
func serverJobsOf(db *DB) *serverJobs {
	s := db.Jobs().(*serverJobs)
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	s.tables.late = 24 * time.Hour
	return s
}

// lateJobs are jobs that are never in the tables but by finish.
type lateJobs struct{ *serverJobs }

func (s lateJobs) Close() error { return s.db.Close() }

func lateJobsAt(t *testing.T, url string) jobs.Store {
	return lateJobs{serverJobsOf(openPG(t, url, Options{}))}
}

// awaitTables waits until the tables have what turns changed.
func awaitTables(t *testing.T, url string) {
	t.Helper()
	c := session(t, url)
	for behind := true; behind; time.Sleep(time.Millisecond) {
		if err := c.QueryRow(t.Context(), "SELECT f.changes < s.changes FROM job_folded f, job_state s").Scan(&behind); err != nil {
			t.Fatal(err)
		}
	}
}

// Promise S-61.
func TestJobsThatAreNotInTheTablesYetAreKeptAsStoresPromise(t *testing.T) {
	t.Parallel()
	jobstest.TestStore(t, func(t *testing.T) jobs.Store { return lateJobsAt(t, schemaURL(t)) })
}

func TestJobsThatAreNotInTheTablesYetOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	urls := map[string]string{}
	jobstest.TestReopen(t, func(t *testing.T, dir string) jobs.Store {
		if urls[dir] == "" {
			urls[dir] = schemaURL(t)
		}
		return lateJobsAt(t, urls[dir])
	})
}

// everything describes what a store answers about its jobs.
func everything(t *testing.T, s *serverJobs) string {
	t.Helper()
	ctx := t.Context()
	rows, err := s.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	rows.Now = time.Time{}
	rows.Sort()
	var lines []string
	add := func(v any) { lines = append(lines, fmt.Sprintf("%+v", v)) }
	for _, j := range rows.Jobs {
		add(told(j))
	}
	for _, part := range []any{rows.Leases, rows.Attempts, rows.Keys, rows.Answered, rows.Frozen, rows.Counters} {
		add(part)
	}
	ended, err := s.ListEnded(ctx, jobs.Filter{}, 1<<63, 1000)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range ended {
		one, attempts, err := s.Ended(ctx, j.ID)
		if err != nil || !reflect.DeepEqual(one, j) {
			t.Errorf("listed is %+v, and there is %+v, %v", j, one, err)
		}
		add(told(j))
		add(attempts)
	}
	events, err := s.Events(ctx, 0, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	add(events)
	tallies, counts, err := s.History(ctx, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	sums := newSums()
	for _, tally := range tallies {
		sums.tally(tally)
	}
	for _, c := range counts {
		sums.counts[countKey{c.Hour.UnixMilli(), string(c.Event), c.Tag}] += c.N
	}
	for k, v := range sums.tallies {
		lines = append(lines, fmt.Sprintf("%v %+v", k, v))
	}
	for k, v := range sums.counts {
		lines = append(lines, fmt.Sprintf("%v %d", k, v))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// told describes a job with what was reported about it.
func told(j jobs.Job) string {
	output := j.Output
	j.Output = nil
	return fmt.Sprintf("%+v %+v", j, output)
}

// Promises S-61, S-151.
func TestWhatIsReadOfJobsIsTheSameWhereverTheTablesAre(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			url, plain := schemaURL(t), schemaURL(t)
			late, other, atOnce := serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, url, Options{})), serverJobsOf(openPG(t, plain, Options{}))
			random := rand.New(rand.NewPCG(seed, 1))
			fold := func(s *serverJobs) {
				t.Helper()
				if _, err := s.fold(t.Context(), random.IntN(2) == 0); err != nil {
					t.Fatal(err)
				}
			}
			store := func(s *serverJobs, c *jobs.Changes) {
				t.Helper()
				if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return *c }); err != nil {
					t.Fatal(err)
				}
			}
			turns := turnsOf(random)
			for i, c := range turns {
				store([]*serverJobs{late, other}[random.IntN(2)], c)
				store(atOnce, c)
				fold(atOnce)
				if random.IntN(8) == 0 {
					fold([]*serverJobs{late, other}[random.IntN(2)])
				}
				if random.IntN(len(turns)) < 6 || i == len(turns)-1 {
					if got, want := everything(t, late), everything(t, atOnce); got != want {
						t.Fatalf("after %d turns it is\n%s\nnot\n%s", i+1, got, want)
					}
				}
			}
			fold(other)
			if got, want := everything(t, late), everything(t, atOnce); got != want {
				t.Errorf("in the end it is\n%s\nnot\n%s", got, want)
			}
			c := session(t, url)
			for _, table := range []string{"jobs", "specs", "outputs", "leases", "attempts", "ended", "idempotency_keys", "answered", "frozen_types", "job_events"} {
				var differ int
				own, theirs := schemaOf(t, url), schemaOf(t, plain)
				if err := c.QueryRow(t.Context(), fmt.Sprintf(`SELECT count(*) FROM ((TABLE %[2]s.%[1]s EXCEPT TABLE %[3]s.%[1]s) UNION ALL
					(TABLE %[3]s.%[1]s EXCEPT TABLE %[2]s.%[1]s)) d`, table, own, theirs)).Scan(&differ); err != nil || differ != 0 {
					t.Errorf("%d rows of %s differ, %v", differ, table, err)
				}
			}
		})
	}
}

func schemaOf(t *testing.T, url string) (name string) {
	t.Helper()
	if err := session(t, url).QueryRow(t.Context(), "SELECT current_schema()").Scan(&name); err != nil {
		t.Fatal(err)
	}
	return name
}

// Promise S-151.
func TestTurnsAreNotFarAheadOfTheTables(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	turn := func(c jobs.Changes) {
		t.Helper()
		if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return c }); err != nil {
			t.Fatal(err)
		}
	}
	c := session(t, url)
	behind := func() (n int) {
		t.Helper()
		if err := c.QueryRow(t.Context(), "SELECT s.changes - f.changes FROM job_folded f, job_state s").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	most := 0
	for i := range mostAhead + 10 {
		turn(jobs.Changes{Events: []jobs.Event{{Seq: uint64(i + 1), Type: jobs.EventSubmit, Time: time.UnixMilli(int64(i))}}})
		most = max(most, behind())
	}
	if most < mostAhead || most > mostAhead+1 {
		t.Errorf("%d turns were ahead", most)
	}
	if err := s.foldAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	large := jobs.Changes{Events: []jobs.Event{{Seq: 1 << 30, Type: jobs.EventSubmit, Reason: strings.Repeat("x", mostBytes/4)}}}
	for range 8 {
		turn(large)
		if n := behind(); n > 5 {
			t.Errorf("%d large turns are ahead", n)
		}
	}
}

// Promise S-61: what was lost is not passed over.
func TestTablesAreNotWrittenPastWhatIsMissing(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	for i := range 3 {
		if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes {
			return jobs.Changes{Events: []jobs.Event{{Seq: uint64(i + 1), Type: jobs.EventSubmit}}}
		}); err != nil {
			t.Fatal(err)
		}
	}
	sql(t, url, "DELETE FROM job_changes WHERE seq = 2")
	if _, err := s.fold(t.Context(), true); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("folded past it: %v", err)
	}
	if _, err := s.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("read past it: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.fold(ctx, true); err == nil {
		t.Error("folded although it was over")
	}
}

// Promise S-155.
func TestTheNewestTurnIsMissedAsWell(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	for i := range uint64(2) {
		store(t, s, eventOf(i+1, 1))
	}
	sql(t, url, "DELETE FROM job_changes WHERE seq = 2")
	other := serverJobsOf(openPG(t, url, Options{}))
	_, loaded := other.Load(t.Context())
	_, read := other.Events(t.Context(), 0, 10)
	for what, err := range map[string]error{"load": loaded, "events": read, "fold": errors.Join(other.foldAll(t.Context()), other.foldAll(t.Context()))} {
		if !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(err.Error(), "row 2 of table job_changes") || !strings.Contains(err.Error(), "missing") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Promise S-156.
func TestADamagedRowOfWhatTurnsChangedIsNamedAndNeverUsed(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	for _, c := range turnsOf(rand.New(rand.NewPCG(1, 1)))[:3] {
		if err := s.Update(t.Context(), func(jobs.Facts) jobs.Changes { return *c }); err != nil {
			t.Fatal(err)
		}
	}
	run(t, session(t, url), "UPDATE job_changes SET body = set_byte(body, 9, get_byte(body, 9) # 1) WHERE seq = 2")
	other := openPG(t, url, Options{}).Jobs().(*serverJobs)
	_, loaded := other.Load(t.Context())
	_, folded := other.fold(t.Context(), true)
	for what, err := range map[string]error{"load": loaded, "fold": folded} {
		if !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(err.Error(), "row 2 of table job_changes") || !strings.Contains(err.Error(), "checksum") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.fold(t.Context(), true); err != nil { // it knows what the row said
		t.Error(err)
	}
	var most int64
	if err := session(t, url).QueryRow(t.Context(), "SELECT changes FROM job_folded").Scan(&most); err != nil || most != 3 {
		t.Errorf("the tables are as far as turn %d, %v", most, err)
	}
}

// What a server knows of a turn is not written if the database says something else about it, as after an older state was put in its place.
func TestWhatTheDatabaseSaysOfATurnCounts(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	for i := range uint64(3) {
		store(t, s, eventOf(i+1, 10))
	}
	theirs := eventOf(2, 10)
	theirs.Events[0].Reason = strings.Repeat("y", 10) // just as long
	run(t, session(t, url), fmt.Sprintf(`UPDATE job_changes SET origin = 'another', body = '\x%x' WHERE seq = 2`, packWhole(nil, &theirs, map[string]int{})))
	if err := s.foldAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	var reasons string
	if err := session(t, url).QueryRow(t.Context(), "SELECT string_agg(left(reason, 1), '' ORDER BY seq) FROM job_events").Scan(&reasons); err != nil || reasons != "xyx" {
		t.Errorf("the tables have %q, %v", reasons, err)
	}
}

func TestRowsThatAreThereAlreadyAreLeftAlone(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	run(t, session(t, url), "INSERT INTO job_events (seq, type, job) VALUES (2, 'submit', 'first')")
	for i := range uint64(3) {
		store(t, s, eventOf(i+1, 10))
	}
	if _, err := s.fold(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	var job string
	if err := session(t, url).QueryRow(t.Context(), "SELECT string_agg(coalesce(job, '-'), ' ' ORDER BY seq) FROM job_events").Scan(&job); err != nil || job != "- first -" {
		t.Errorf("the tables have %q, %v", job, err)
	}
	if err := s.tables.lastFailure(); err != nil {
		t.Errorf("it counts as a failure: %v", err)
	}
}

// Rows are copied once: those that were copied before would be there already, and everything be done twice.
func TestRowsAreCopiedOnce(t *testing.T) {
	t.Parallel()
	s := serverJobsOf(openPG(t, schemaURL(t), Options{}))
	for i, bytes := range []int{1, 2 * keptRows} {
		store(t, s, eventOf(uint64(i+1), bytes))
		if err := s.foldAll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(s.tables.conn.copies); n != 1 {
			t.Fatalf("of %d tables rows were copied", n)
		}
		if rows := s.tables.conn.copies[0].rows; len(rows) != 0 || cap(rows) > keptRows {
			t.Errorf("%d bytes of rows are left, and room for %d", len(rows), cap(rows))
		}
	}
}

// Promise S-153: less is written at once, also of turns that are known.
func TestOfTurnsThatAreKnownNoMoreAreTakenThanAreWanted(t *testing.T) {
	t.Parallel()
	s := pgTables{behind: make(chan struct{}, 1)}
	for seq := range int64(10) {
		s.grow(pgTurn{seq: seq + 1 + seq/8, bytes: 100})
	}
	for _, c := range []struct {
		after         int64
		atMost, bytes int
		want          int
	}{{0, 100, 1000, 8}, {0, 3, 1000, 3}, {0, 100, 201, 3}, {5, 100, 1000, 3}, {8, 100, 1000, 0}, {9, 100, 1000, 2}, {0, 100, 0, 0}} {
		all := s.after(c.after, c.atMost, c.bytes)
		if len(all) != c.want || len(all) > 0 && all[0].seq != c.after+1 {
			t.Errorf("after %d, %d turns and %d bytes at most, there are %d", c.after, c.atMost, c.bytes, len(all))
		}
	}
	s.reached(4)
	s.grow(pgTurn{seq: 3, bytes: 100})
	if len(s.turns) != 6 || s.bytes != 600 {
		t.Errorf("%d turns are known, of %d bytes", len(s.turns), s.bytes)
	}
}

func TestTextOfAnyKindGetsIntoTheTablesAsItIs(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	s := serverJobsOf(openPG(t, url, Options{}))
	odd := []string{`\N`, `\`, `\\`, "a\tb\nc\rd\\", `\.`, "\\.\n", "\x00", "\xff", "\u2028\U0001F600", `"',;$1`, " ", "\b\f\v\x1b\x7f", strings.Repeat("\\\n", 5000)}
	c := jobs.Changes{Counters: jobs.Counters{Seq: 1, Revision: 1}}
	for i, text := range odd {
		c.Events = append(c.Events, jobs.Event{Seq: uint64(i + 1), Type: jobs.EventSubmit, JobID: text, LeaseID: text, Reason: text})
		c.Attempts = append(c.Attempts, jobs.Attempt{JobID: "job", Number: i + 1, WorkerID: text, State: jobs.Failed, Code: text, Error: []byte(fmt.Sprint(i))})
	}
	store(t, s, c)
	if _, err := s.fold(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	events, err := openPG(t, url, Options{}).Jobs().(*serverJobs).Events(t.Context(), 0, 100)
	if err != nil || len(events) != len(odd) {
		t.Fatalf("%d events, %v", len(events), err)
	}
	for i, text := range odd {
		if e, want := events[i], clean(text); e.JobID != want || e.LeaseID != want || e.Reason != want || e.WorkerID != "" || !e.Time.IsZero() {
			t.Errorf("of %q it has %+v", text, e)
		}
	}
	rows, err := session(t, url).Query(t.Context(), "SELECT worker, code, error FROM attempts ORDER BY number")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for i := 0; rows.Next(); i++ {
		var worker, code, failure string
		if err := rows.Scan(&worker, &code, &failure); err != nil || worker != clean(odd[i]) || code != clean(odd[i]) || failure != fmt.Sprint(i) {
			t.Errorf("of %q there is %q, %q, %s, %v", odd[i], worker, code, failure, err)
		}
	}
}
