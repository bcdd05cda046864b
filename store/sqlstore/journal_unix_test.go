//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// turnNumber is what a turn changed that submits and leases a job, and ends the one before it.
func turnNumber(n uint64) jobs.Changes {
	at := time.UnixMilli(1_700_000_000_000 + int64(n)).UTC()
	job := func(n uint64) jobs.Job {
		return jobs.Job{Spec: jobs.NewSpec(), ID: fmt.Sprint("job-", n), State: jobs.Queued, Seq: n, Revision: 2*n + 1, CreatedAt: at, UpdatedAt: at}
	}
	l := jobs.Lease{ID: fmt.Sprint("lease-", n), JobID: fmt.Sprint("job-", n), WorkerID: "w", Units: 1, Attempt: 1, IssuedAt: at}
	j := job(n)
	j.State, j.LeaseID, j.Attempt = jobs.Leased, l.ID, 1
	c := jobs.Changes{
		Time: at, Jobs: []jobs.JobChange{{Job: j, What: jobs.New | jobs.Moved | jobs.Reported}}, Leases: []jobs.Lease{l},
		Events:   []jobs.Event{{Seq: n, Time: at, Type: jobs.EventSubmit, JobID: j.ID}},
		Tallies:  []jobs.Tally{{Hour: at.Truncate(time.Hour), Type: "t", Completed: 1}},
		Counts:   []jobs.Count{{Hour: at.Truncate(time.Hour), Event: jobs.EventSubmit, N: 1}},
		Counters: jobs.Counters{Seq: n, Revision: 2*n + 1, Event: n, Clock: at.UnixMilli()},
	}
	if n > 1 {
		e := job(n - 1)
		e.State, e.EndedAt, e.Attempt, e.Revision = jobs.Completed, at, 1, 2*n
		e.Output = &jobs.Report{Result: []byte("1")}
		c.Ended, c.Unleased = []jobs.Job{e}, []string{fmt.Sprint("lease-", n-1)}
		c.Attempts = []jobs.Attempt{{JobID: e.ID, Number: 1, LeaseID: c.Unleased[0], WorkerID: "w", State: jobs.Completed}}
	}
	return c
}

func TestWhatACallerHandedInIsItsOwnAgainWhenTheCallReturns(t *testing.T) {
	db := start(t, place(t), Options{})
	m, err := manager.Open(t.Context(), db.Jobs(), manager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()})
	if err != nil {
		t.Fatal(err)
	}
	g, err := m.Request(t.Context(), jobs.Request{WorkerID: "w"})
	if err != nil || g.Denied != nil {
		t.Fatal(err, g)
	}
	buf := []byte("\"first\"")
	if ok, err := m.Complete(t.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed, Result: buf}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	copy(buf, "\"other\"")
	if err := db.group.perform(t.Context(), &request{fold: true}); err != nil {
		t.Fatal(err)
	}
	v, err := m.Get(t.Context(), r[0].JobID)
	if err != nil || string(v.Job.Output.Result) != "\"first\"" {
		t.Errorf("stored is %s, %v", v.Job.Output.Result, err)
	}
}

func TestAHoldThatEndedBeforeTheLastTurnIsNotRevivedByAKill(t *testing.T) {
	path := place(t)
	db := start(t, path, Options{})
	h := acquire(t, db, claim("gone", "a", 20*time.Millisecond))
	for now := view(t, db, "gone").Now; !now.After(h.ExpiresAt.Add(50 * time.Millisecond)); now = view(t, db, "gone").Now {
		time.Sleep(5 * time.Millisecond)
	}
	if err := db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes { return turnNumber(1) }); err != nil {
		t.Fatal(err)
	}
	if err := db.group.perform(t.Context(), &request{fold: true}); err != nil {
		t.Fatal(err)
	}
	found := place(t)
	asKilled(t, path, found)
	again := start(t, found, Options{})
	if hs := view(t, again, "gone").Lock.Holders; len(hs) == 1 && hs[0].ExpiresAt.After(h.ExpiresAt) {
		t.Errorf("a hold that ended at %v ends at %v", h.ExpiresAt, hs[0].ExpiresAt)
	}
}

func TestATurnAndATrimInOneTransactionCountEndedJobsOnce(t *testing.T) {
	db := start(t, place(t), Options{})
	for n := uint64(1); n < 3; n++ {
		if err := db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes { return turnNumber(n) }); err != nil {
			t.Fatal(err)
		}
	}
	trim := &request{fold: true, write: func(ctx context.Context, c querier) error {
		_, err := db.jobs.trim(ctx, c, time.Time{}, 10, 10)
		return err
	}}
	for _, err := range together(t, db, &request{turn: func(jobs.Facts) jobs.Changes { return turnNumber(3) }}, trim) {
		if err != nil {
			t.Fatal(err)
		}
	}
	n, err := db.jobs.Trim(t.Context(), time.Time{}, 2, 10)
	if err != nil || n != 0 {
		t.Errorf("of 2 ended jobs, 2 of which are kept, %d were forgotten, %v", n, err)
	}
}

// broken is a connection on which nothing can be read.
type broken struct{ querier }

func (broken) query(context.Context, string, []any, func(*row) error) error {
	return errors.New("disk I/O error")
}

func TestATurnThatIsTooLargeForTheJournalIsStoredAtOnce(t *testing.T) {
	db := start(t, place(t), Options{})
	for n := uint64(1); n < 4; n++ {
		if err := db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes {
			c := turnNumber(n)
			if n == 2 {
				c.Jobs[0].Payload = []byte(`{"x":"` + strings.Repeat("x", mostBody) + `"}`)
			}
			return c
		}); err != nil {
			t.Fatal(err)
		}
		if n == 2 && (len(db.jobs.unfolded()) != 0 || db.jobs.body != nil) {
			t.Error("it is in the journal")
		}
	}
	rows, err := db.jobs.Load(t.Context())
	if ended, e := db.jobs.ListEnded(t.Context(), jobs.Filter{}, 1<<62, 10); err != nil || e != nil || len(ended) != 2 || len(rows.Jobs) != 1 || rows.Counters.Seq != 3 {
		t.Errorf("%+v, %+v, %v, %v", rows, ended, err, e)
	}
}

func TestAJournalThatCannotBeReadNowIsNotDamaged(t *testing.T) {
	db := start(t, place(t), Options{})
	if err := db.jobs.replay(t.Context(), broken{}); errors.Is(err, lokt.ErrDamaged) {
		t.Errorf("an error of the disk is %v", err)
	}
}

func TestLocksThatNeedNoRoomGoOnWhileTurnsAreInTheJournalOfAFullDisk(t *testing.T) {
	db := start(t, place(t), Options{})
	pragma := func(s string) error {
		return db.group.perform(t.Context(), &request{write: func(ctx context.Context, q querier) error { return q.(*conn).once(ctx, s) }})
	}
	acquire(t, db, claim("x", "a", time.Minute))
	if err := pragma("PRAGMA max_page_count = 110"); err != nil {
		t.Fatal(err)
	}
	var err error
	n := uint64(1)
	for ; err == nil && n < 100000; n++ {
		err = db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes {
			c := turnNumber(n)
			c.Jobs[0].Payload = []byte(`{"x":"` + strings.Repeat("x", 3000) + `"}`)
			return c
		})
	}
	if !errors.Is(err, lokt.ErrUnavailable) || len(db.jobs.unfolded()) == 0 {
		t.Fatalf("after %d turns, %d of them in the journal: %v", n, len(db.jobs.unfolded()), err)
	}
	for range 3 {
		if _, err := lokt.NewManager(db.Locks()).Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: "lease of a"}); err != nil {
			t.Errorf("renew: %v", err)
		}
	}
	if _, err := lokt.NewManager(db.Locks()).Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"}); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := pragma("PRAGMA max_page_count = 1000000"); err != nil {
		t.Error("no way to heal in process: ", err)
	}
	n -= 2 // acknowledged
	ended, err := db.jobs.ListEnded(t.Context(), jobs.Filter{}, 1<<62, 1000)
	if err != nil || len(ended) != int(n)-1 {
		t.Errorf("%d ended after %d turns, %v", len(ended), n, err)
	}
	if err := db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes { return turnNumber(n + 1) }); err != nil {
		t.Error(err)
	}
	rows, err := db.jobs.Load(t.Context())
	if err != nil || rows.Counters.Seq != n+1 || db.jobs.behind {
		t.Errorf("%+v, %v", rows.Counters, err)
	}
}

func TestABackupThatIsMadeWhileTurnsAreInTheJournalIsWhole(t *testing.T) {
	path := place(t)
	db := start(t, path, Options{})
	for n := uint64(1); n < 8; n++ {
		if err := db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes { return turnNumber(n) }); err != nil {
			t.Fatal(err)
		}
	}
	copied := path + ".copy"
	if err := db.Backup(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d, err := Open(t.Context(), "sqlite:"+copied, Options{})
		if err != nil {
			t.Fatal(err)
		}
		tr := &trial{turns: []uint64{7}, kept: []string{""}}
		tr.compare(t.Context(), "copy", d, true)
		for _, err := range tr.errs {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadersBesideFoldsSeeEveryTurnOnce(t *testing.T) {
	path := place(t)
	d, err := Open(t.Context(), "sqlite:"+path, Options{KeepEvents: -1})
	if err != nil {
		t.Fatal(err)
	}
	db := d.backend.(*fileDB)
	var acknowledged, asked atomic.Uint64
	over := make(chan struct{})
	var wg sync.WaitGroup
	reads := atomic.Int64{}
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				least := acknowledged.Load()
				ended, err1 := db.jobs.ListEnded(t.Context(), jobs.Filter{}, 1<<62, 100000)
				events, err2 := db.jobs.Events(t.Context(), 0, 100000)
				tallies, counts, err3 := db.jobs.History(t.Context(), time.Time{})
				var one jobs.Job
				var attempts []jobs.Attempt
				var err4 error
				if least > 1 {
					one, attempts, err4 = db.jobs.Ended(t.Context(), fmt.Sprint("job-", least-1))
				}
				most := asked.Load()
				if err := errors.Join(err1, err2, err3, err4); err != nil {
					t.Error(err)
					return
				}
				var tally, count uint64
				for _, a := range tallies {
					tally += uint64(a.Completed)
				}
				for _, a := range counts {
					count += uint64(a.N)
				}
				for _, n := range []uint64{uint64(len(ended)) + 1, uint64(len(events)), tally, count} {
					if n < least || n > max(most, 1) {
						t.Errorf("%d is not from %d to %d", n, least, most)
					}
				}
				for i := range events {
					if events[i].Seq != uint64(i)+1 {
						t.Errorf("event %d is %d", i+1, events[i].Seq)
						return
					}
				}
				for i := range ended {
					if ended[i].Seq != uint64(len(ended)-i) {
						t.Errorf("ended %d is %d", i, ended[i].Seq)
						return
					}
				}
				if least > 1 && (one.Seq != least-1 || len(attempts) != 1) {
					t.Errorf("%+v %+v", one, attempts)
				}
				reads.Add(1)
			}
		})
	}
	for n := uint64(1); n <= 600; n++ {
		asked.Store(n)
		if err := db.jobs.Update(t.Context(), func(jobs.Facts) jobs.Changes { return turnNumber(n) }); err != nil {
			t.Fatal(err)
		}
		acknowledged.Store(n)
		if n%7 == 0 {
			_ = db.group.perform(t.Context(), &request{fold: true})
		}
	}
	close(over)
	wg.Wait()
	if reads.Load() == 0 {
		t.Error("nothing was read")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
