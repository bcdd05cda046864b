package jobstest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
		{"every field of everything comes back as it was stored", fieldsComeBack},
		{"records, memos, statistics and frozen types are replaced", wholesAreReplaced},
		{"what is stored twice is there once", storedTwice},
		{"the turn is run once, and what it returns is stored or the error is told", turnRunsOnce},
		{"a turn that changes nothing leaves everything", emptyTurn},
		{"of a job's output the last pieces are kept", outputIsBounded},
		{"a job that ends is among the ended only", endedMoves},
		{"ended jobs are listed newest first, filtered, and page by page", endedIsListed},
		{"statistics come back from their hour on", historyComesBack},
		{"trimming forgets the oldest, by age and by number, in steps", trimForgets},
		{"memos are there until they expire", memosExpire},
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

// living loads what lives, in order.
func living(t *testing.T, s jobs.Store) jobs.Changes {
	t.Helper()
	l, err := s.Load(storeContext(t))
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	l.Now, l.TokenFloor = time.Time{}, 0
	slices.SortFunc(l.Jobs, func(a, b *jobs.Record) int { return cmp.Compare(a.Seq, b.Seq) })
	slices.SortFunc(l.Memos, func(a, b jobs.Memo) int { return cmp.Compare(a.ID, b.ID) })
	slices.Sort(l.Frozen)
	return l
}

// equal compares what came back with what was stored, as documents: every field of it, and empty and nil slices are the
// same.
func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	g, err := lokt.Marshal(got)
	w, err2 := lokt.Marshal(want)
	if err = errors.Join(err, err2); err != nil || !bytes.Equal(g, w) {
		t.Errorf("%s came back as\n%s\nnot as\n%s, %v", what, g, w, err)
	}
}

func emptyStore(t *testing.T, s jobs.Store) {
	equal(t, "an empty store", living(t, s), jobs.Changes{})
	if _, err := s.Ended(storeContext(t), "x"); !errors.Is(err, jobs.ErrJobNotFound) {
		t.Errorf("an unknown job: %v", err)
	}
	if all, err := s.ListEnded(storeContext(t), jobs.Filter{}, 0, 1<<63, 10); err != nil || len(all) != 0 {
		t.Errorf("listed are %+v, %v", all, err)
	}
	if all, err := s.History(storeContext(t), time.Time{}); err != nil || len(all) != 0 {
		t.Errorf("history is %+v, %v", all, err)
	}
	if n, err := s.Trim(storeContext(t), time.Now(), 0, 100); err != nil || n != 0 {
		t.Errorf("trimmed are %d, %v", n, err)
	}
}

// base is a moment that records are made at.
func base() time.Time { return time.Date(2031, 2, 3, 4, 5, 6, 789_000_000, time.UTC) }

// fullJob returns a job with every field set.
func fullJob(n int, state jobs.State) *jobs.Record {
	half := 0.25
	at := func(d time.Duration) time.Time { return base().Add(d + time.Duration(n)*time.Millisecond) }
	j := jobs.Job{
		Spec: jobs.Spec{
			Type: "type ü", Priority: jobs.Low, Units: 3, Unique: true, IdempotencyKey: fmt.Sprint("key ", n),
			Payload: jsontext.Value(`{ "n" : 123456789012345678901234567890.50, "s": "\u0000<", "n":[ ]}`),
			Tags:    []string{"a", "needs:b", "", "a"}, MaxRuntime: 90*time.Second + time.Millisecond, MaxAttempts: 7,
			RetryBackoff: 1500 * time.Millisecond, RunAt: at(-time.Hour), Locks: []string{"x", "y.z"},
			Extra: &jobs.Extra{Cron: "@hourly", Ticks: &jobs.Ticks{Schedule: "s", Tick: at(0), Next: at(1), Last: at(2), LastRun: "r", Skipped: n}},
		},
		ID: jobID(n), State: state, CreatedAt: at(0), UpdatedAt: at(time.Second), ReadyAt: at(2 * time.Second),
		StartedAt: at(3 * time.Second), Attempt: 2, Token: 1<<63 + 5, Code: "code", Cancel: true, Reason: "why 'not'",
		Output: &jobs.Report{
			Progress: &half, Message: "so\nfar", Metrics: jsontext.Value(`[1e400]`), Checkpoint: jsontext.Value(`null`),
			Result: jsontext.Value(`"r"`),
			Error:  jsontext.Value(`{ "e" : 1 }`), Printed: int64(n) << 40,
		},
		Seq: uint64(n), Ord: base().UnixMilli() + int64(n), Revision: uint64(1000 + n),
	}
	r := &jobs.Record{Job: j, Attempts: []jobs.Attempt{attempt(n, 1)}}
	if state.Ended() {
		r.EndedAt = at(4 * time.Second)
		r.Attempts = append(r.Attempts, attempt(n, 2))
	} else if state.Active() {
		lease := fullLease(n)
		r.LeaseID, r.Lease = lease.ID, &lease
	}
	return r
}

func jobID(n int) string { return fmt.Sprintf("job%04d", n) }

// plainJob returns a queued job with nothing that is optional.
func plainJob(n int) *jobs.Record {
	return &jobs.Record{Job: jobs.Job{
		Spec: jobs.NewSpec(), ID: jobID(n), State: jobs.Queued, CreatedAt: base(), UpdatedAt: base(), ReadyAt: base(),
		Seq: uint64(n), Ord: int64(n), Revision: uint64(1000 + n),
	}}
}

func fullLease(n int) jobs.Lease {
	at := base().Add(time.Duration(n) * time.Millisecond)
	return jobs.Lease{
		ID: fmt.Sprint("lease", n), JobID: jobID(n), WorkerID: "worker ü", RequestID: "r", Units: 3, Token: 5,
		Attempt:  2,
		IssuedAt: at, ExpiresAt: at.Add(time.Minute), LastHeartbeat: at.Add(time.Second),
		FirstHeartbeat: at.Add(2 * time.Second), RunUntil: at.Add(time.Hour),
		LockTokens: map[string]uint64{"lock a": 1, "lock-b": 1<<63 + uint64(n)},
	}
}

func attempt(job, n int) jobs.Attempt {
	at := base().Add(time.Duration(n) * time.Second)
	return jobs.Attempt{
		JobID: jobID(job), Number: n, Token: uint64(n), LeaseID: fmt.Sprintf("lease%d-%d", job, n), WorkerID: "w",
		Units: 3, State: jobs.Failed, Code: "failed",
		IssuedAt: at, FirstHeartbeat: at.Add(time.Millisecond), EndedAt: at.Add(time.Second), Error: jsontext.Value(`"e"`),
	}
}

// fullChanges are changes with everything that can be stored, every field set or none.
func fullChanges() jobs.Changes {
	var waits, runs jobs.Histogram
	waits.Observe(time.Hour + time.Nanosecond)
	for d := range 20 {
		runs.Observe(time.Duration(d*d) * 17 * time.Second)
	}
	lease, hour := fullLease(9), base().Truncate(time.Hour)
	return jobs.Changes{
		Jobs: []*jobs.Record{fullJob(1, jobs.Running), plainJob(2), fullJob(3, jobs.Cancelled)},
		Memos: []jobs.Memo{
			{ID: "key key 3", JobID: jobID(3), Print: "0102", State: jobs.Cancelled, Expires: base().Add(time.Hour)},
			{ID: `request "wörker" r`, JobID: jobID(9), Lease: &lease, Expires: base().Add(time.Minute)},
		},
		Output: []jobs.Piece{
			{JobID: jobID(1), Attempt: 1, Offset: 7, Text: "ü\n"}, {JobID: jobID(1), Attempt: 2, Offset: 1 << 40, Text: "\"'\x01"},
			{JobID: jobID(3), Attempt: 1, Text: "x"},
		},
		Events: []jobs.Event{
			{Seq: 1, Time: base(), Type: jobs.EventGrant, JobID: jobID(1), LeaseID: "lease1", WorkerID: "w",
				Attempt: 2, Token: 5, Code: "c", Reason: "r"},
			{Seq: 2, Time: base(), Type: jobs.EventFreeze},
		},
		Stats: []jobs.Statistic{
			{Hour: hour, Source: "s", Type: "type ü", Events: map[jobs.EventType]int64{jobs.EventFail: 3}, Waits: waits, Runs: runs},
			{Hour: hour, Source: "s", Tag: "a b", Events: map[jobs.EventType]int64{jobs.EventGrant: 1}},
			{Hour: hour, Source: "s", Events: map[jobs.EventType]int64{jobs.EventGrant: 2, jobs.EventSubmit: 1 << 40}},
		},
		Frozen:   []string{"", "type ü"},
		Counters: jobs.Counters{Seq: 3, Revision: 1003, Event: 2, Clock: base().UnixMilli()},
	}
}

// checkFull checks that fullChanges are all that is there.
func checkFull(t *testing.T, s jobs.Store, c jobs.Changes) {
	t.Helper()
	equal(t, "what lives", living(t, s), jobs.Changes{Jobs: c.Jobs[:2], Memos: c.Memos, Frozen: c.Frozen, Counters: c.Counters})
	hasEnded(t, s, c.Jobs[2])
	equal(t, "the statistics", history(t, s, time.Time{}), sorted(c.Stats))
	printed(t, s, 1, 0, c.Output[1:2]...) // the first is long before
	printed(t, s, 1, 1<<40+3)
	printed(t, s, 3, 0, c.Output[2])
}

// printed checks what is kept of a job's output beyond an offset.
func printed(t *testing.T, s jobs.Store, job int, from int64, want ...jobs.Piece) {
	t.Helper()
	all, err := s.Output(storeContext(t), jobID(job), from)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "the output", all, want)
}

func outputIsBounded(t *testing.T, s jobs.Store) {
	c := jobs.Changes{Jobs: []*jobs.Record{plainJob(1)}, Counters: jobs.Counters{Seq: 1}}
	all, at := []jobs.Piece(nil), int64(0)
	for _, add := range []struct{ n, size, kept int }{{9, jobs.KeptOutput / 4, 4}, {1, jobs.KeptOutput / 4, 4}, {1010, 1, jobs.KeptPieces}} {
		for range add.n {
			all = append(all, jobs.Piece{JobID: jobID(1), Attempt: len(all), Offset: at, Text: strings.Repeat("x", add.size)})
			at += int64(add.size)
		}
		c.Output = all[len(all)-add.n:]
		commit(t, s, c)
		printed(t, s, 1, 0, all[len(all)-add.kept:]...)
		printed(t, s, 1, at-1, all[len(all)-1])
	}
}

// hasEnded checks that a job is among those that ended.
func hasEnded(t *testing.T, s jobs.Store, want *jobs.Record) {
	t.Helper()
	r, err := s.Ended(storeContext(t), want.ID)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "an ended job", r, want)
}

// history returns the statistics in order.
func history(t *testing.T, s jobs.Store, from time.Time) []jobs.Statistic {
	t.Helper()
	all, err := s.History(storeContext(t), from)
	if err != nil {
		t.Fatal(err)
	}
	return sorted(all)
}

func sorted(all []jobs.Statistic) []jobs.Statistic {
	return slices.SortedFunc(slices.Values(all), func(a, b jobs.Statistic) int {
		return cmp.Or(a.Hour.Compare(b.Hour), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Tag, b.Tag))
	})
}

func fieldsComeBack(t *testing.T, s jobs.Store) {
	full := fullChanges()
	commit(t, s, full)
	checkFull(t, s, full)
}

func wholesAreReplaced(t *testing.T, s jobs.Store) {
	full := fullChanges()
	commit(t, s, full)
	a, b := fullJob(1, jobs.Queued), fullJob(2, jobs.Leased)
	a.Output, a.Revision, a.Lease, a.Attempts = nil, 2000, nil, append(a.Attempts, attempt(1, 2))
	b.Spec, b.CreatedAt, b.Seq, b.Ord, b.Revision = full.Jobs[1].Spec, base(), full.Jobs[1].Seq, full.Jobs[1].Ord, 2001
	lease := *b.Lease
	lease.RequestID, lease.FirstHeartbeat, lease.RunUntil, lease.LockTokens = "", time.Time{}, time.Time{}, nil
	b.Lease = &lease
	key, stat := full.Memos[0], full.Stats[0]
	key.JobID, key.Print, key.State = jobID(2), "ff", jobs.Failed
	stat.Events, stat.Runs = map[jobs.EventType]int64{jobs.EventComplete: 7}, jobs.Histogram{}
	other := stat
	other.Source = "another"
	c := jobs.Changes{
		Jobs: []*jobs.Record{a, b}, Memos: []jobs.Memo{key}, Stats: []jobs.Statistic{stat, other},
		Counters: jobs.Counters{Seq: 4, Revision: 2001, Event: 3, Clock: base().UnixMilli()},
	}
	commit(t, s, c)
	want := jobs.Changes{Jobs: []*jobs.Record{a, b}, Memos: []jobs.Memo{key, full.Memos[1]}, Counters: c.Counters}
	equal(t, "what was replaced", living(t, s), want)
	equal(t, "the statistics", history(t, s, time.Time{}), sorted([]jobs.Statistic{stat, other, full.Stats[1], full.Stats[2]}))
	beaten := lease
	beaten.FirstHeartbeat, beaten.ExpiresAt = base(), base().Add(time.Hour)
	b.Lease = &beaten // and with the same revision: a heartbeat changes no job
	commit(t, s, jobs.Changes{Jobs: []*jobs.Record{b}, Counters: c.Counters})
	equal(t, "after a heartbeat what lives", living(t, s), want)
}

func storedTwice(t *testing.T, s jobs.Store) {
	full := fullChanges()
	commit(t, s, full)
	again := full
	again.Events = nil
	commit(t, s, again)
	checkFull(t, s, full)
	if all, err := s.ListEnded(storeContext(t), jobs.Filter{}, 0, 1<<63, 10); err != nil || len(all) != 1 {
		t.Errorf("listed are %+v, %v", all, err)
	}
}

func turnRunsOnce(t *testing.T, s jobs.Store) {
	runs := 0
	if err := s.Update(storeContext(t), func(f jobs.Facts) jobs.Changes {
		runs++
		if f.Others != nil {
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
	commit(t, s, jobs.Changes{})
	checkFull(t, s, full)
}

func endedMoves(t *testing.T, s jobs.Store) {
	full := fullChanges()
	commit(t, s, full)
	ended := fullJob(1, jobs.Completed)
	ended.Revision = 3000
	first := fullJob(8, jobs.Cancelled)
	first.Attempts = nil
	commit(t, s, jobs.Changes{Jobs: []*jobs.Record{first, ended}, Counters: full.Counters})
	equal(t, "what lives", living(t, s).Jobs, full.Jobs[1:2])
	hasEnded(t, s, ended)
	hasEnded(t, s, first)
	if _, err := s.Ended(storeContext(t), jobID(2)); !errors.Is(err, jobs.ErrJobNotFound) {
		t.Errorf("a living job among the ended: %v", err)
	}
}

func endedIsListed(t *testing.T, s jobs.Store) {
	states := []jobs.State{jobs.Completed, jobs.Failed, jobs.Expired, jobs.Cancelled}
	var want []*jobs.Record
	for i := range 40 {
		j := fullJob(i, states[i%4])
		j.Type, j.Tags = []string{"a", "b"}[i/4%2], [][]string{nil, {"x"}, {"x", "y"}, {"100%", "x_"}, {"xy"}}[i%5]
		commit(t, s, jobs.Changes{Jobs: []*jobs.Record{j}})
		want = append([]*jobs.Record{j}, want...)
	}
	for _, f := range []jobs.Filter{
		{}, {State: jobs.Failed}, {Type: "b"}, {Tag: "x"}, {Tag: "%"}, {Tag: "100%"}, {Tag: "x_"}, {Type: "a",
			Tag: "y", State: jobs.Cancelled}, {Type: "c"},
	} {
		through := slices.DeleteFunc(slices.Clone(want), func(j *jobs.Record) bool { return !f.Matches(&j.Job) })
		if f.Tag == "" {
			if n, err := s.CountEnded(storeContext(t), f.State, f.Type); err != nil || n != len(through) {
				t.Errorf("%+v lets %d through, %v; %d are counted", f, len(through), err, n)
			}
		}
		from := uint64(0)
		if len(through) > 20 {
			from, through = through[20].Revision, through[:21]
		}
		for _, size := range []int{1, 7, 100} {
			var got []jobs.Record
			below := uint64(1<<64 - 1)
			for {
				page, err := s.ListEnded(storeContext(t), f, from, below, size)
				if err != nil || len(page) > size {
					t.Fatalf("a page of %d has %d: %v", size, len(page), err)
				}
				got = append(got, page...)
				if len(page) < size {
					break
				}
				below = page[len(page)-1].Revision
			}
			equal(t, fmt.Sprintf("list with %+v in pages of %d", f, size), got, through)
		}
	}
}

func historyComesBack(t *testing.T, s jobs.Store) {
	hour := func(n int) time.Time { return base().Truncate(time.Hour).Add(time.Duration(n) * time.Hour) }
	var want []jobs.Statistic
	for i := range 12 {
		n := jobs.Statistic{Hour: hour(i / 4), Source: string(rune('a' + i%2)), Tag: "x"}
		n.Events = map[jobs.EventType]int64{jobs.EventComplete: int64(i)}
		if i%4 < 2 {
			n.Type, n.Tag = "t", ""
			n.Runs.Observe(time.Duration(i+1) * time.Second)
		}
		want = append(want, n)
		commit(t, s, jobs.Changes{Stats: []jobs.Statistic{n}})
	}
	for skip := range 4 {
		equal(t, fmt.Sprintf("what there is from hour %d on", skip), history(t, s, hour(skip)), sorted(want[4*skip:]))
	}
}

func trimForgets(t *testing.T, s jobs.Store) {
	for i := range 30 {
		j := fullJob(i, jobs.Completed)
		j.EndedAt = base().Add(time.Duration(i) * time.Hour)
		commit(t, s, jobs.Changes{Jobs: []*jobs.Record{j}, Output: []jobs.Piece{{JobID: j.ID, Text: "x"}}})
	}
	printed(t, s, 1, 0, jobs.Piece{Text: "x"})
	commit(t, s, jobs.Changes{Jobs: []*jobs.Record{fullJob(100, jobs.Running)}})
	trim := func(before time.Time, keep, atMost, want, left int) {
		t.Helper()
		if n, err := s.Trim(storeContext(t), before, keep, atMost); err != nil || n != want {
			t.Errorf("trimming forgot %d, %v, not %d", n, err, want)
		}
		all, err := s.ListEnded(storeContext(t), jobs.Filter{}, 0, 1<<63, 100)
		if err != nil || len(all) != left || left > 0 && all[len(all)-1].ID != jobID(30-left) {
			t.Errorf("left are %d, %v, not the newest %d", len(all), err, left)
		}
	}
	trim(base(), -1, 100, 0, 30)
	trim(base().Add(5*time.Hour), -1, 3, 3, 27)
	trim(base().Add(5*time.Hour), -1, 3, 2, 25)
	trim(base(), 20, 100, 5, 20)
	trim(base().Add(12*time.Hour), 19, 100, 2, 18)
	trim(base(), 0, 10, 10, 8)
	trim(base().Add(1000*time.Hour), 5, 100, 8, 0)
	if _, err := s.Ended(storeContext(t), jobID(1)); !errors.Is(err, jobs.ErrJobNotFound) {
		t.Errorf("a forgotten job is %v", err)
	}
	printed(t, s, 1, 0)
	equal(t, "what lives", living(t, s).Jobs, []*jobs.Record{fullJob(100, jobs.Running)})
}

func memosExpire(t *testing.T, s jobs.Store) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	late := jobs.Memo{ID: "late", JobID: "j", Print: "00", State: jobs.Failed, Expires: now.Add(time.Hour)}
	early := late
	early.ID, early.Expires = "early", now.Add(-time.Hour)
	commit(t, s, jobs.Changes{Memos: []jobs.Memo{early, late}})
	equal(t, "of two memos", living(t, s).Memos, []jobs.Memo{late})
	if _, err := s.Trim(storeContext(t), now, -1, 100); err != nil {
		t.Fatal(err)
	}
	equal(t, "after trimming", living(t, s).Memos, []jobs.Memo{late})
}

func closedStore(t *testing.T, s jobs.Store) {
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := storeContext(t)
	_, err1 := s.Load(ctx)
	err2 := s.Update(ctx, func(jobs.Facts) jobs.Changes { return fullChanges() })
	_, err3 := s.Ended(ctx, "x")
	_, err4 := s.ListEnded(ctx, jobs.Filter{}, 0, 1, 1)
	_, err5 := s.History(ctx, base())
	_, err6 := s.Trim(ctx, base(), 0, 1)
	for i, err := range []error{err1, err2, err3, err4, err5, err6} {
		if !errors.Is(err, lokt.ErrUnavailable) {
			t.Errorf("call %d answered %v", i+1, err)
		}
	}
}
