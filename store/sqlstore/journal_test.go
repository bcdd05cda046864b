package sqlstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// filler gives every field of a value something of its own.
type filler struct{ n int64 }

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.UnixMilli(1_700_000_000_000 + f.n).UTC()))
		return
	case jobs.What:
		v.SetUint(uint64(jobs.New | jobs.Moved | jobs.Reported))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.fill(v.Index(0))
		f.fill(v.Index(1))
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 3 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key)
			f.fill(value)
			v.SetMapIndex(key, value)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.String:
		v.SetString(fmt.Sprint("text ", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(float64(f.n) / 7)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(uint64(f.n % 256))
	default:
		v.SetInt(-f.n)
	}
}

// A field that is added to what turns change, and forgotten by the journal, fails this test.
func TestTheJournalKeepsEveryField(t *testing.T) {
	t.Parallel()
	var want jobs.Changes
	new(filler).fill(reflect.ValueOf(&want).Elem())
	for i := range want.Jobs {
		want.Jobs[i].EndedAt = time.Time{} // they have not ended
	}
	for i := range want.Forgot { // their keys will do
		want.Forgot[i] = jobs.Answered{WorkerID: want.Forgot[i].WorkerID, RequestID: want.Forgot[i].RequestID}
	}
	packed := packChanges(nil, &want, 0)
	got, err := unpackChanges(packed)
	if err != nil {
		t.Fatal(err)
	}
	want.Time = time.Time{} // nobody asks for it
	if !reflect.DeepEqual(*got, want) {
		t.Errorf("got\n%+v\nof\n%+v", *got, want)
	}
	for n := range packed {
		if c, err := unpackChanges(packed[:n]); err == nil {
			t.Fatalf("%d of %d bytes were read as %+v", n, len(packed), c)
		}
	}
	if _, err := unpackChanges(append(bytes.Clone(packed), 0)); err == nil {
		t.Error("a byte too many was read")
	}
	for i := range want.Jobs {
		want.Jobs[i].What = jobs.Moved
	}
	if got, err := unpackChanges(packWhole(nil, &want, map[string]int{})); err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("got\n%+v, %v\nof whole\n%+v", got, err, want)
	}
}

func TestJournalsOfVersionsBeforeAreRead(t *testing.T) {
	t.Parallel()
	c := jobs.Changes{Leases: []jobs.Lease{{ID: "l", Token: 7}, {ID: "m", Token: 8}}, Frozen: []string{"t"}}
	for version, p := range map[byte]*packer{
		1: {first: true}, journalVersion: {}, journalWrittenOut: {whole: true}, journalWhole: {whole: true, brief: true, places: map[string]int{}},
	} {
		p.b = []byte{version} // and no checksum
		p.changes(&c, 0)
		got, err := unpackChanges(p.b)
		if err != nil || !reflect.DeepEqual(*got, c) {
			t.Errorf("version %d: got %+v, %v", version, got, err)
		}
	}
	e := filledEntry()
	p := &packer{b: []byte{lockJournalVersion}}
	p.lockEntry(&e)
	if got, err := unpackLocks(p.b); err != nil || !reflect.DeepEqual(*got, e) {
		t.Errorf("of locks: got %+v, %v", got, err)
	}
}

func TestWhatIsSaidAgainInAnEntryIsReferredTo(t *testing.T) {
	t.Parallel()
	at := func(ms int64) time.Time { return time.UnixMilli(1_700_000_000_000 + ms).UTC() }
	long := strings.Repeat("a long name ", 40)
	c := jobs.Changes{Unleased: []string{"l", "", "l", "m"}, Dropped: []string{long, "m", ""}}
	for i, when := range []time.Time{at(0), at(5), at(5), {}, at(-1 << 40), at(1 << 40), {}, time.UnixMilli(0).UTC(), time.UnixMilli(-1).UTC(), at(7)} {
		c.Events = append(c.Events, jobs.Event{Seq: uint64(i), Time: when, JobID: long, WorkerID: []string{"l", "w", ""}[i%3], Reason: long})
	}
	places := map[string]int{"of an entry before": 0}
	packed := packWhole(nil, &c, places)
	if got, err := unpackChanges(packed); err != nil || !reflect.DeepEqual(*got, c) {
		t.Errorf("got\n%+v, %v\nof\n%+v", got, err, c)
	}
	if n := bytes.Count(packed, []byte(long)); n != 1 {
		t.Errorf("a name is written %d times", n)
	}
	if len(packed) > len(long)+300 {
		t.Errorf("%d bytes, of which a name takes %d", len(packed), len(long))
	}
	for _, content := range [][]byte{{1}, {3}, {2, 'a', 3}} { // to what there is none of yet: -1 and -2, as varints
		p := &packer{b: content, reads: true, brief: true}
		var s string
		for p.text(&s); !p.failed && len(p.b) > 0; {
			p.text(&s)
		}
		if !p.failed {
			t.Errorf("%v was read as %q", content, s)
		}
	}
}

func TestEntriesOfAnotherVersionAreNotRead(t *testing.T) {
	t.Parallel()
	for _, version := range []byte{0, summed, journalWhole + 1, (journalWhole + 1) | summed} {
		b := []byte{version}
		if version&summed != 0 {
			b = seal(b, 0)
		}
		if _, err := unpackChanges(b); !errors.Is(err, errVersion) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

// Promise S-156.
func TestEveryBitThatChangedInAnEntryIsNoticed(t *testing.T) {
	t.Parallel()
	var c jobs.Changes
	new(filler).fill(reflect.ValueOf(&c).Elem())
	e := filledEntry()
	ofJobs := func(b []byte) error { _, err := unpackChanges(b); return err }
	ofLocks := func(b []byte) error { _, err := unpackLocks(b); return err }
	for _, entry := range []struct {
		name   string
		packed []byte
		read   func([]byte) error
	}{
		{"a turn", packChanges(nil, &c, 0), ofJobs},
		{"a whole turn", packWhole([]byte("before"), &c, map[string]int{})[len("before"):], ofJobs},
		{"locks", packLocks(nil, &e), ofLocks},
	} {
		if err := entry.read(entry.packed); err != nil {
			t.Errorf("%s: %v", entry.name, err)
		}
		for bit := range 8 * len(entry.packed) {
			entry.packed[bit/8] ^= 1 << (bit % 8)
			if err := entry.read(entry.packed); !errors.Is(err, errJournal) {
				t.Errorf("%s with bit %d changed was read: %v", entry.name, bit, err)
			}
			entry.packed[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func FuzzEntriesOfTheJournal(f *testing.F) {
	var c jobs.Changes
	new(filler).fill(reflect.ValueOf(&c).Elem())
	f.Add(packChanges(nil, &c, 0))
	f.Add(packChanges(nil, &jobs.Changes{}, 0))
	f.Add(packWhole(nil, &c, map[string]int{}))
	f.Add([]byte{journalVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := unpackChanges(b)
		if err != nil {
			return
		}
		known := uint64(0)
		again, err := unpackChanges(packChanges(nil, c, known))
		if err != nil {
			t.Fatalf("what was read of %x cannot be read again: %v", b, err)
		}
		if len(again.Jobs) != len(c.Jobs) || len(again.Events) != len(c.Events) || again.Counters != c.Counters {
			t.Fatalf("%+v became %+v", c, again)
		}
	})
}

// dump describes what the tables for jobs have in them.
func dump(t testing.TB, path string) string {
	t.Helper()
	c, err := dial(dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.close() }()
	var lines []string
	for _, table := range []string{
		"jobs", "specs", "outputs", "leases", "attempts", "ended", "idempotency_keys", "answered", "frozen_types", "job_events", "job_state", "job_journal",
	} {
		if err := c.query(t.Context(), "SELECT * FROM "+table, nil, func(r *row) error {
			lines = append(lines, fmt.Sprintf("%s: %q", table, r.values))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// turnsOf returns turns as the rules make them, of few jobs to which much happens.
func turnsOf(random *rand.Rand) []*jobs.Changes {
	type life struct {
		job   jobs.Job
		lease *jobs.Lease
	}
	var (
		all    []*jobs.Changes
		count  jobs.Counters
		living []*life
		at     = time.UnixMilli(1_700_000_000_000).UTC()
	)
	draw := func(most int) int { return random.IntN(most + 1) }
	for range 1 + draw(9) {
		c := &jobs.Changes{Time: at}
		touched := map[*life]jobs.What{}
		for range draw(6) {
			at = at.Add(time.Millisecond)
			count.Revision++
			count.Event++
			c.Events = append(c.Events, jobs.Event{Seq: count.Event, Time: at, Type: jobs.EventGrant})
			if len(living) == 0 || draw(3) == 0 {
				count.Seq++
				l := &life{job: jobs.Job{Spec: jobs.NewSpec(), ID: fmt.Sprintf("job-%03d", count.Seq), State: jobs.Queued, Seq: count.Seq, Revision: count.Revision, CreatedAt: at}}
				living = append(living, l)
				touched[l] = jobs.New | jobs.Moved | jobs.Reported
				continue
			}
			i := draw(len(living) - 1)
			l := living[i]
			l.job.Revision, l.job.UpdatedAt = count.Revision, at
			switch what := draw(4); {
			case what == 0 && l.lease == nil:
				l.job.Attempt++
				l.job.State, l.job.LeaseID = jobs.Leased, fmt.Sprint("lease ", count.Event)
				l.lease = &jobs.Lease{ID: l.job.LeaseID, JobID: l.job.ID, WorkerID: "w", Attempt: l.job.Attempt, IssuedAt: at}
				c.Leases = append(c.Leases, *l.lease)
				touched[l] |= jobs.Moved
			case what == 1 && l.lease != nil && !containsLease(c.Leases, l.lease.ID): // it expires: again
				c.Unleased = append(c.Unleased, l.lease.ID)
				c.Attempts = append(c.Attempts, jobs.Attempt{JobID: l.job.ID, Number: l.job.Attempt, LeaseID: l.lease.ID, WorkerID: "w", State: jobs.Expired})
				l.lease, l.job.State, l.job.LeaseID = nil, jobs.Queued, ""
				touched[l] |= jobs.Moved
			case what == 2:
				l.job.Output = &jobs.Report{Message: fmt.Sprint("at ", count.Event)}
				touched[l] |= jobs.Reported
			case what == 3 && (l.lease == nil || !containsLease(c.Leases, l.lease.ID)):
				if l.lease != nil {
					c.Unleased = append(c.Unleased, l.lease.ID)
				}
				l.job.State, l.job.EndedAt, l.job.LeaseID = jobs.Completed, at, ""
				c.Ended = append(c.Ended, l.job)
				delete(touched, l)
				living = append(living[:i], living[i+1:]...)
			default:
				touched[l] |= jobs.Moved
			}
		}
		for l, what := range touched {
			c.Jobs = append(c.Jobs, jobs.JobChange{Job: l.job, What: what})
		}
		if key := draw(4); key == 0 {
			c.Keys = append(c.Keys, jobs.Key{Key: fmt.Sprint("k", draw(2)), JobID: "x", Expires: at})
		} else if key == 1 {
			c.Dropped = append(c.Dropped, fmt.Sprint("k", draw(2)))
		}
		if answer := draw(4); answer == 0 {
			c.Answered = append(c.Answered, jobs.Answered{WorkerID: "w", RequestID: fmt.Sprint("r", draw(2)), Expires: at})
		} else if answer == 1 {
			c.Forgot = append(c.Forgot, jobs.Answered{WorkerID: "w", RequestID: fmt.Sprint("r", draw(2))})
		}
		c.Tallies = []jobs.Tally{{Hour: at.Truncate(time.Hour), Type: "t", Completed: 1, Runs: jobs.Histogram{Buckets: map[int]int64{draw(3): 1}, Min: 1, Max: 2}}}
		c.Counts = []jobs.Count{{Hour: at.Truncate(time.Hour), Event: jobs.EventGrant, N: 1}}
		count.Clock = at.UnixMilli()
		c.Counters = count
		all = append(all, c)
	}
	return all
}

func containsLease(all []jobs.Lease, id string) bool {
	for i := range all {
		if all[i].ID == id {
			return true
		}
	}
	return false
}

// What turns changed is the same in the end whether the rows are written turn by turn, for all turns at once, or by a program that finds
// them in the journal of one that was killed; and readers see all of it at any time.
func TestTheJournalChangesNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			testJournal(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func testJournal(t *testing.T, random *rand.Rand) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	update := func(d *fileDB, c *jobs.Changes) {
		if err := d.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes { return *c }); err != nil {
			t.Fatal(err)
		}
	}
	fold := func(d *fileDB) {
		if err := d.group.perform(t.Context(), &request{fold: true}); err != nil {
			t.Fatal(err)
		}
	}
	each, once, killed := start(t, path("each"), Options{}), start(t, path("once"), Options{}), start(t, path("killed"), Options{})
	ended := 0
	for _, c := range turnsOf(random) {
		update(each, c)
		fold(each)
		update(once, c)
		update(killed, c)
		if random.IntN(4) == 0 {
			fold(killed)
		}
		ended += len(c.Ended)
		a, errA := each.jobs.ListEnded(t.Context(), jobs.Filter{}, 1<<62, 1000)
		b, errB := once.jobs.ListEnded(t.Context(), jobs.Filter{}, 1<<62, 1000)
		if errA != nil || errB != nil || len(a) != ended || !reflect.DeepEqual(a, b) {
			t.Fatalf("ended are %+v, %v beside %+v, %v", a, errA, b, errB)
		}
		for i := range a {
			j, attempts, err := each.jobs.Ended(t.Context(), a[i].ID)
			j2, attempts2, err2 := once.jobs.Ended(t.Context(), a[i].ID)
			if err != nil || err2 != nil || !reflect.DeepEqual(j, j2) || !reflect.DeepEqual(attempts, attempts2) {
				t.Fatalf("%s is %+v, %+v, %v beside %+v, %+v, %v", a[i].ID, j, attempts, err, j2, attempts2, err2)
			}
		}
		t1, c1, err1 := each.jobs.History(t.Context(), time.Time{})
		t2, c2, err2 := once.jobs.History(t.Context(), time.Time{})
		if err1 != nil || err2 != nil || !reflect.DeepEqual(t1, t2) || !reflect.DeepEqual(c1, c2) {
			t.Fatalf("history is %+v, %+v, %v beside %+v, %+v, %v", t1, c1, err1, t2, c2, err2)
		}
		e1, err1 := each.jobs.Events(t.Context(), 0, 1000)
		e2, err2 := once.jobs.Events(t.Context(), 0, 1000)
		if err1 != nil || err2 != nil || !reflect.DeepEqual(e1, e2) {
			t.Fatalf("events are %+v, %v beside %+v, %v", e1, err1, e2, err2)
		}
	}
	asKilled(t, path("killed"), path("found"))
	shut(t, each)
	shut(t, once)
	shut(t, start(t, path("found"), Options{}))
	want := dump(t, path("each"))
	for _, name := range []string{"once", "found"} {
		if got := dump(t, path(name)); got != want {
			t.Errorf("%s:\n%s\nnot\n%s", name, got, want)
		}
	}
}

// Nobody has to ask for anything, and what is in the journal is flushed already.
func TestTheTablesFollowTheJournalByThemselves(t *testing.T) {
	t.Parallel()
	db := start(t, place(t), Options{})
	flushed := false
	turns := uint64(0)
	for ; !flushed && turns < 1000; turns++ { // the tables may be written before one looks
		if err := db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes {
			return jobs.Changes{Events: []jobs.Event{{Seq: turns + 1, Type: jobs.EventSubmit}}, Counters: jobs.Counters{Event: turns + 1}}
		}); err != nil {
			t.Fatal(err)
		}
		flushed = db.isSynced(t)
	}
	if !flushed {
		t.Error("turns are not flushed")
	}
	for deadline := time.Now().Add(time.Minute); len(db.jobs.unfolded()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is still in the journal only")
		}
	}
	if db.isSynced(t) {
		t.Error("what was flushed in the journal was flushed again")
	}
	var events, entries int64
	if err := db.reading(t.Context(), "look", func(q querier) (err error) {
		if events, err = one(t.Context(), q, "SELECT count(*) FROM job_events"); err == nil {
			entries, err = one(t.Context(), q, "SELECT count(*) FROM job_journal")
		}
		return err
	}); err != nil || events != int64(turns) || entries != 0 {
		t.Errorf("%d events are in the tables, and %d turns in the journal, %v", events, entries, err)
	}
}
