package jobstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// TestStore checks what jobs.Store promises. open returns a new, empty store; the suite closes it. Subtests run on real
// time.
func TestStore(t *testing.T, open func(t *testing.T) jobs.Store) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, s jobs.Store)
	}{
		{"an empty store has nothing", emptyStore},
		{"every field of every row comes back as it was stored", fieldsComeBack},
		{"rows are replaced and deleted, deletions first", rowsAreReplaced},
		{"the turn is run once, and what it returns is stored or the error is told", turnRunsOnce},
		{"a turn that changes nothing leaves everything", emptyTurn},
		{"an ended job moves, with all its attempts", endedMoves},
		{"ended jobs are listed newest first, filtered, and page by page", endedIsListed},
		{"tallies and counts add up", historyAddsUp},
		{"trimming forgets the oldest, by age and by number, in steps", trimForgets},
		{"what a manager does to it at random comes back", randomGame},
		{"a store that is closed says that it is unavailable", closedStore},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() { _ = s.Close() })
			test.run(t, s)
		})
	}
}

// TestReopen checks that what was stored is there when the store is opened again. open opens the store in a directory.
func TestReopen(t *testing.T, open func(t *testing.T, dir string) jobs.Store) {
	dir := t.TempDir()
	s := open(t, dir)
	full := fullChanges()
	commit(t, s, full)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	checkFull(t, s, full)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// storeContext bounds what a store is asked.
func storeContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// commit stores changes.
func commit(t *testing.T, s jobs.Store, c jobs.Changes) {
	t.Helper()
	if err := s.Update(storeContext(t), func(jobs.Facts) jobs.Changes { return c }); err != nil {
		t.Fatalf("update: %v", err)
	}
}

// rows loads what lives, in order.
func rows(t *testing.T, s jobs.Store) jobs.Rows {
	t.Helper()
	r, err := s.Load(storeContext(t))
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	r.Now = time.Time{}
	r.Sort()
	return r
}

// equal compares what came back with what was stored. Empty and nil slices are the same.
func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := words(got), words(want); g != w {
		t.Errorf("%s came back as\n%s\nnot as\n%s", what, g, w)
	}
}

// words writes a value with everything in it, following pointers; empty and nil slices are written alike, and times in
// UTC, whatever their location says.
func words(v any) string {
	b, err := json.Marshal(plain(reflect.ValueOf(v)))
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(b)
}

// plain turns a value into maps and slices.
func plain(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return plain(v.Elem())
	case reflect.Struct:
		if t, ok := v.Interface().(time.Time); ok {
			return t.UTC().Format(time.RFC3339Nano)
		}
		m := map[string]any{}
		for i := range v.NumField() {
			m[v.Type().Field(i).Name] = plain(v.Field(i))
		}
		return m
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
			return string(v.Bytes())
		}
		all := []any{}
		for i := range v.Len() {
			all = append(all, plain(v.Index(i)))
		}
		return all
	case reflect.Map:
		m := map[string]any{}
		for it := v.MapRange(); it.Next(); {
			m[fmt.Sprint(it.Key())] = plain(it.Value())
		}
		return m
	}
	return v.Interface()
}

func emptyStore(t *testing.T, s jobs.Store) {
	equal(t, "an empty store", rows(t, s), jobs.Rows{})
	if _, _, err := s.Ended(storeContext(t), "x"); !errors.Is(err, jobs.ErrJobNotFound) {
		t.Errorf("an unknown job: %v", err)
	}
	if all, err := s.ListEnded(storeContext(t), jobs.Filter{}, 1<<63, 10); err != nil || len(all) != 0 {
		t.Errorf("listed are %+v, %v", all, err)
	}
	if a, b, err := s.History(storeContext(t), time.Time{}); err != nil || len(a)+len(b) != 0 {
		t.Errorf("history is %+v, %+v, %v", a, b, err)
	}
	if n, err := s.Trim(storeContext(t), time.Now(), 0, 100); err != nil || n != 0 {
		t.Errorf("trimmed are %d, %v", n, err)
	}
}

// base is a moment that rows are made at.
func base() time.Time { return time.Date(2031, 2, 3, 4, 5, 6, 789_000_000, time.UTC) }

// fullJob returns a job with every field set.
func fullJob(n int, state jobs.State) jobs.Job {
	half := 0.25
	at := func(d time.Duration) time.Time { return base().Add(d + time.Duration(n)*time.Millisecond) }
	j := jobs.Job{
		Spec: jobs.Spec{
			Type: "type ü", Priority: jobs.Low, Units: 3, Unique: true, Payload: jsontext.Value(` {"n": 123456789012345678901234567890.50, "s": "\u0000<"}`),
			IdempotencyKey: fmt.Sprint("key ", n), Tags: []string{"a", "needs:b", "", "a"}, MaxRuntime: 90*time.Second + time.Millisecond, MaxAttempts: 7,
			RetryBackoff: 1500 * time.Millisecond, RunAt: at(-time.Hour), Locks: []string{"x", "y.z"},
		},
		ID: fmt.Sprintf("job%04d", n), State: state, LeaseID: fmt.Sprint("lease", n), CreatedAt: at(0), UpdatedAt: at(time.Second), ReadyAt: at(2 * time.Second),
		StartedAt: at(3 * time.Second), Attempt: 2, Token: 5, Code: "code", Cancel: true, Reason: "why 'not'",
		Output: &jobs.Report{
			Progress: &half, Message: "so\nfar", Metrics: jsontext.Value(`[1e400]`), Checkpoint: jsontext.Value(`null`), Result: jsontext.Value(`"r"`),
			Error: jsontext.Value(`{ "e" : 1 }`),
		},
		Seq: uint64(n), Ord: base().UnixMilli() + int64(n), Revision: uint64(1000 + n),
	}
	if state.Ended() {
		j.LeaseID, j.EndedAt = "", at(4*time.Second)
	}
	return j
}

// plainJob returns a queued job with nothing that is optional.
func plainJob(n int) jobs.Job {
	return jobs.Job{
		Spec: jobs.NewSpec(), ID: fmt.Sprintf("job%04d", n), State: jobs.Queued, CreatedAt: base(), UpdatedAt: base(), ReadyAt: base(),
		Seq: uint64(n), Ord: int64(n), Revision: uint64(1000 + n),
	}
}

func fullLease(n int) jobs.Lease {
	at := base().Add(time.Duration(n) * time.Millisecond)
	return jobs.Lease{
		ID: fmt.Sprint("lease", n), JobID: fmt.Sprintf("job%04d", n), WorkerID: "worker ü", RequestID: "r", Units: 3, Token: 5, Attempt: 2,
		IssuedAt: at, ExpiresAt: at.Add(time.Minute), LastHeartbeat: at.Add(time.Second), FirstHeartbeat: at.Add(2 * time.Second), RunUntil: at.Add(time.Hour),
		LockTokens: map[string]uint64{"lock a": 1, "lock-b": 1<<63 + uint64(n)},
	}
}

func attempt(job, n int) jobs.Attempt {
	at := base().Add(time.Duration(n) * time.Second)
	return jobs.Attempt{
		JobID: fmt.Sprintf("job%04d", job), Number: n, Token: uint64(n), LeaseID: fmt.Sprintf("lease%d-%d", job, n), WorkerID: "w", Units: 3, State: jobs.Failed, Code: "failed",
		IssuedAt: at, FirstBeat: at.Add(time.Millisecond), EndedAt: at.Add(time.Second), Error: jsontext.Value(` "e"`),
	}
}

// made says that a job is new.
func made(j jobs.Job) jobs.JobChange {
	return jobs.JobChange{Job: j, What: jobs.New | jobs.Moved | jobs.Reported}
}

// fullChanges are changes with every kind of row, and every field set or none.
func fullChanges() jobs.Changes {
	var tally jobs.Tally
	tally.Hour, tally.Type, tally.Completed, tally.Failed, tally.Expired, tally.Cancelled = base().Truncate(time.Hour), "t", 1, 2, 3, 4
	tally.Waits, tally.WaitSum = 9, time.Hour+time.Millisecond
	for d := range 20 {
		tally.Runs.Observe(time.Duration(d*d) * 17 * time.Second)
	}
	answered := jobs.Answered{WorkerID: "worker ü", RequestID: "old", Lease: fullLease(9), Expires: base().Add(time.Minute)}
	return jobs.Changes{
		Time:     base(),
		Jobs:     []jobs.JobChange{made(fullJob(1, jobs.Running)), made(plainJob(2))},
		Leases:   []jobs.Lease{fullLease(1)},
		Attempts: []jobs.Attempt{attempt(1, 1), {JobID: "job0003", Number: 1, Token: 1, LeaseID: "l", WorkerID: "w", Units: 1, State: jobs.Completed, IssuedAt: base(), EndedAt: base()}},
		Ended:    []jobs.Job{fullJob(3, jobs.Cancelled)},
		Keys: []jobs.Key{
			{Key: "key 1", Print: [32]byte{1, 0, 255}, JobID: "job0001"}, {Key: "key 3", Print: [32]byte{2}, JobID: "job0003", State: jobs.Cancelled, Expires: base().Add(time.Hour)},
		},
		Answered: []jobs.Answered{answered},
		Events: []jobs.Event{
			{Seq: 1, Time: base(), Type: jobs.EventGrant, JobID: "job0001", LeaseID: "lease1", WorkerID: "w", Attempt: 2, Token: 5, Code: "c", Reason: "r"},
			{Seq: 2, Time: base(), Type: jobs.EventFreeze},
		},
		Tallies:  []jobs.Tally{tally},
		Counts:   []jobs.Count{{Hour: tally.Hour, Event: jobs.EventGrant, N: 2}, {Hour: tally.Hour, Event: jobs.EventGrant, Tag: "a", N: 1}},
		Refrozen: true, Frozen: []string{"", "type ü"},
		Counters: jobs.Counters{Seq: 3, Revision: 1003, Event: 2, Clock: base().UnixMilli()},
	}
}

// checkFull checks that fullChanges are all that is there.
func checkFull(t *testing.T, s jobs.Store, c jobs.Changes) {
	t.Helper()
	want := jobs.Rows{
		Jobs: []jobs.Job{c.Jobs[0].Job, c.Jobs[1].Job}, Leases: c.Leases, Attempts: c.Attempts[:1], Keys: c.Keys, Answered: c.Answered,
		Frozen: c.Frozen, Counters: c.Counters,
	}
	got := rows(t, s)
	for _, part := range []struct {
		name      string
		got, want any
	}{
		{"jobs", got.Jobs, want.Jobs}, {"leases", got.Leases, want.Leases}, {"attempts", got.Attempts, want.Attempts}, {"keys", got.Keys, want.Keys},
		{"answered requests", got.Answered, want.Answered}, {"frozen types", got.Frozen, want.Frozen}, {"counters", got.Counters, want.Counters},
	} {
		equal(t, part.name, part.got, part.want)
	}
	j, attempts, err := s.Ended(storeContext(t), "job0003")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "an ended job", j, c.Ended[0])
	equal(t, "its attempts", attempts, c.Attempts[1:])
	tallies, counts, err := s.History(storeContext(t), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "a tally", tallies, c.Tallies)
	slices.SortFunc(counts, func(a, b jobs.Count) int { return len(a.Tag) - len(b.Tag) })
	equal(t, "counts", counts, c.Counts)
}

func fieldsComeBack(t *testing.T, s jobs.Store) {
	full := fullChanges()
	commit(t, s, full)
	checkFull(t, s, full)
}

func rowsAreReplaced(t *testing.T, s jobs.Store) {
	full := fullChanges()
	commit(t, s, full)
	a, b := fullJob(1, jobs.Queued), fullJob(2, jobs.Leased)
	a.LeaseID, a.Output, a.Tags, a.Revision = "", nil, nil, 2000
	b.LeaseID, b.Revision = "lease2", 2001
	a.Tags = full.Jobs[0].Tags // a spec does not change
	b.Spec = full.Jobs[1].Spec
	b.CreatedAt, b.Seq, b.Ord = full.Jobs[1].CreatedAt, full.Jobs[1].Seq, full.Jobs[1].Ord
	lease := fullLease(2)
	lease.RequestID, lease.FirstHeartbeat, lease.RunUntil, lease.LockTokens = "", time.Time{}, time.Time{}, nil
	key := jobs.Key{Key: "key 3", Print: [32]byte{7}, JobID: "job0002"}
	again := full.Answered[0]
	again.Lease.ID = "another"
	c := jobs.Changes{
		Jobs:   []jobs.JobChange{{Job: a, What: jobs.Moved | jobs.Reported}, {Job: b, What: jobs.Moved | jobs.Reported}},
		Leases: []jobs.Lease{lease}, Unleased: []string{"lease1", "never there"}, Attempts: []jobs.Attempt{attempt(1, 2)},
		Keys: []jobs.Key{key}, Dropped: []string{"key 1", "key 3", "never there"},
		Answered: []jobs.Answered{again}, Forgot: []jobs.Answered{full.Answered[0], {WorkerID: "never", RequestID: "there"}},
		Refrozen: true, Counters: jobs.Counters{Seq: 4, Revision: 2001, Event: 3, Clock: 9},
	}
	commit(t, s, c)
	equal(t, "what was replaced", rows(t, s), jobs.Rows{
		Jobs: []jobs.Job{a, b}, Leases: []jobs.Lease{lease}, Attempts: []jobs.Attempt{attempt(1, 1), attempt(1, 2)}, Keys: []jobs.Key{key},
		Answered: []jobs.Answered{again}, Counters: c.Counters,
	})
	moved := a
	moved.State, moved.LeaseID, moved.Revision = jobs.Leased, "lease9", 2002
	lease9, beaten := fullLease(1), lease
	lease9.ID = "lease9"
	beaten.FirstHeartbeat, beaten.ExpiresAt = base(), base().Add(time.Hour)
	commit(t, s, jobs.Changes{
		Jobs: []jobs.JobChange{{Job: moved, What: jobs.Moved}}, Leases: []jobs.Lease{lease9, beaten}, Counters: jobs.Counters{Seq: 4, Revision: 2002},
	})
	got := rows(t, s)
	equal(t, "a job that moved", got.Jobs, []jobs.Job{moved, b})
	equal(t, "a lease that was replaced", got.Leases, []jobs.Lease{beaten, lease9})
	equal(t, "the counters", got.Counters, jobs.Counters{Seq: 4, Revision: 2002})
}

func turnRunsOnce(t *testing.T, s jobs.Store) {
	runs := 0
	if err := s.Update(storeContext(t), func(f jobs.Facts) jobs.Changes {
		runs++
		if len(f.Others) != 0 {
			t.Errorf("somebody else stored %+v", f.Others)
		}
		return fullChanges()
	}); err != nil || runs != 1 {
		t.Errorf("the turn was run %d times: %v", runs, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Update(ctx, func(jobs.Facts) jobs.Changes { runs++; return jobs.Changes{} })
	if err == nil || runs > 2 {
		t.Errorf("an update whose context has ended ran %d turns: %v", runs-1, err)
	}
}

func emptyTurn(t *testing.T, s jobs.Store) {
	full := fullChanges()
	commit(t, s, full)
	commit(t, s, jobs.Changes{Time: base()})
	checkFull(t, s, full)
}

func endedMoves(t *testing.T, s jobs.Store) {
	full := fullChanges()
	commit(t, s, full)
	ended := fullJob(1, jobs.Completed)
	ended.Revision = 3000
	commit(t, s, jobs.Changes{Ended: []jobs.Job{ended, fullJob(8, jobs.Cancelled)}, Unleased: []string{"lease1"}, Attempts: []jobs.Attempt{attempt(1, 2)}})
	got := rows(t, s)
	equal(t, "what lives", got.Jobs, []jobs.Job{full.Jobs[1].Job})
	if len(got.Leases)+len(got.Attempts) != 0 {
		t.Errorf("there are leases %+v and attempts %+v", got.Leases, got.Attempts)
	}
	j, attempts, err := s.Ended(storeContext(t), "job0001")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "the ended job", j, ended)
	equal(t, "its attempts", attempts, []jobs.Attempt{attempt(1, 1), attempt(1, 2)})
	if j, attempts, err := s.Ended(storeContext(t), "job0008"); err != nil || j.State != jobs.Cancelled || len(attempts) != 0 {
		t.Errorf("a job that ended in its first turn is %+v, %+v, %v", j, attempts, err)
	}
	if _, _, err := s.Ended(storeContext(t), "job0002"); !errors.Is(err, jobs.ErrJobNotFound) {
		t.Errorf("a living job among the ended: %v", err)
	}
}

func closedStore(t *testing.T, s jobs.Store) {
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := storeContext(t)
	_, err1 := s.Load(ctx)
	err2 := s.Update(ctx, func(jobs.Facts) jobs.Changes { return fullChanges() })
	_, _, err3 := s.Ended(ctx, "x")
	_, err4 := s.ListEnded(ctx, jobs.Filter{}, 1, 1)
	_, _, err5 := s.History(ctx, base())
	_, err6 := s.Trim(ctx, base(), 0, 1)
	for i, err := range []error{err1, err2, err3, err4, err5, err6} {
		if !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("call %d answered %v", i+1, err)
		}
	}
}
