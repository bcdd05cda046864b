//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/faultvfs"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// tight is a disk that has room for transactions of a few pages only, or for none.
type tight struct {
	mu    sync.Mutex
	limit int // writes to the log between two flushes; negative without limit
	n     int
}

// fewPages is what is written to the log for a row of a journal at most, in writes: two for each page.
const fewPages = 16

func (t *tight) set(limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit, t.n = limit, 0
}

func (t *tight) decide(op faultvfs.Op, path string) faultvfs.Outcome {
	if !strings.HasSuffix(path, "-wal") {
		return faultvfs.Pass
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case op == faultvfs.Sync:
		t.n = 0
	case op == faultvfs.Write && t.limit >= 0:
		if t.n++; t.n > t.limit {
			t.n = 0
			return faultvfs.Full
		}
	}
	return faultvfs.Pass
}

// crowd uses databases on such a disk.
func crowd(dir string) error {
	disk := &tight{limit: -1}
	fs, err := faultvfs.Install(disk.decide)
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(fs)
	for i, use := range []func(context.Context, *crowded) error{crowdLocks, crowdJobs, crowdBound, crowdClose} {
		c := &crowded{fs: fs, disk: disk, path: filepath.Join(dir, fmt.Sprint(i), "lokt.db")}
		if err := c.run(use); err != nil {
			return err
		}
	}
	fmt.Println("fine")
	return nil
}

// crowded is a database on such a disk.
type crowded struct {
	fs   *faultvfs.FS
	disk *tight
	path string
	db   *DB
	base *fileDB
}

func (c *crowded) run(use func(context.Context, *crowded) error) (err error) {
	ctx := context.Background()
	if c.db, err = Open(ctx, "sqlite:"+c.path, Options{KeepEvents: -1}); err != nil {
		return err
	}
	c.base = c.db.backend.(*fileDB)
	c.base.locks.foldAfter = time.Hour // the tables are written when the journals are long, and not before, however slow this is
	c.base.jobs.mu.Lock()
	c.base.jobs.timer = time.NewTimer(time.Hour)
	c.base.jobs.mu.Unlock()
	if err := use(ctx, c); err != nil {
		return err
	}
	c.disk.set(-1)
	if err := c.base.group.perform(ctx, &request{fold: true}); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	if len(c.base.jobs.unfolded()) > 0 || c.base.locks.unfolded() {
		return errors.New("with room again, there is something in a journal only")
	}
	return errors.Join(c.db.Ping(ctx), c.db.Check(ctx), c.db.Close())
}

// found has a look at what others find after this process was killed, and after the power failed.
func (c *crowded) found(ctx context.Context, look func(*DB) error) error {
	for i, copied := range []func(from, to string) error{c.fs.Copy, c.fs.Cut} {
		to := fmt.Sprint(c.path, ".", i, ".db")
		if err := copied(c.path, to); err != nil {
			return err
		}
		c.disk.set(-1)
		db, err := Open(ctx, "sqlite:"+to, Options{KeepEvents: -1})
		if err != nil {
			return err
		}
		if err := errors.Join(look(db), db.Check(ctx), db.Close()); err != nil {
			return fmt.Errorf("after a crash (%d): %w", i, err)
		}
		c.disk.set(fewPages)
	}
	return look(c.db)
}

// crowdLocks takes and releases locks until there is no room at all.
func crowdLocks(ctx context.Context, c *crowded) error {
	m := lokt.NewManager(c.db.Locks())
	claim := func(i int) lokt.Claim {
		return lokt.Claim{Name: fmt.Sprint("lock-", i%10), LeaseID: fmt.Sprint("lease-", i), Owner: lokt.Owner{ID: "o"}, TTL: time.Hour}
	}
	for i := range 10 {
		if _, err := m.Acquire(ctx, claim(i)); err != nil {
			return err
		}
	}
	c.disk.set(fewPages)
	held := map[string]string{}
	for i := range 10 {
		held[claim(i).Name] = claim(i).LeaseID
	}
	n, most := 0, 0
	for i := 10; n < 4*foldLocksSize; i++ {
		a := claim(i)
		if _, err := m.Release(ctx, lokt.Target{Name: a.Name, LeaseID: held[a.Name]}); err != nil {
			return fmt.Errorf("release, after %d changes: %w", n, err)
		}
		if _, err := m.Acquire(ctx, a); err != nil {
			return fmt.Errorf("claim, after %d changes: %w", n, err)
		}
		held[a.Name], n, most = a.LeaseID, n+2, max(most, c.base.locks.journal.size)
	}
	if most < 4*foldLocksSize {
		return fmt.Errorf("up to %d changes of locks were in the journal only", most)
	}
	if err := c.db.Ping(ctx); err != nil {
		return fmt.Errorf("ping with some room: %w", err)
	}
	c.disk.set(0)
	if _, err := m.Release(ctx, lokt.Target{Name: claim(0).Name, LeaseID: held[claim(0).Name]}); !errors.Is(err, lokt.ErrUnavailable) {
		return fmt.Errorf("release without any room: %w", err)
	}
	if err := c.db.Ping(ctx); !errors.Is(err, lokt.ErrUnavailable) {
		return fmt.Errorf("ping without any room: %w", err)
	}
	c.base.foldAgain = time.Time{} // so that the tables are tried before the journal alone is
	if _, err := m.Release(ctx, lokt.Target{Name: claim(1).Name, LeaseID: held[claim(1).Name]}); !errors.Is(err, lokt.ErrUnavailable) {
		return fmt.Errorf("release without any room, when the tables are due: %w", err)
	}
	if c.base.foldAgain.IsZero() {
		return errors.New("the tables were not tried")
	}
	if c.base.suspect != nil {
		return fmt.Errorf("it is not known what is stored: %w", c.base.suspect)
	}
	return c.found(ctx, func(db *DB) error {
		for name, lease := range held {
			snap, err := db.Locks().View(ctx, name)
			if err != nil {
				return err
			}
			has := ""
			for _, h := range snap.Lock.Holders {
				has += h.LeaseID
			}
			if has != lease {
				return fmt.Errorf("%s is held by %q, not %q", name, has, lease)
			}
		}
		seq := uint64(0)
		for {
			page, err := db.Locks().ReadEvents(ctx, lokt.EventQuery{After: seq})
			if err != nil {
				return err
			}
			for _, e := range page.Events {
				if seq++; e.Seq != seq {
					return fmt.Errorf("event %d is number %d", seq, e.Seq)
				}
			}
			if !page.More {
				break
			}
		}
		if int(seq) < n+10 {
			return fmt.Errorf("of %d changes there are %d events", n+10, seq)
		}
		return nil
	})
}

// crowdJobs completes jobs while others, which are too large, are refused.
func crowdJobs(ctx context.Context, c *crowded) error {
	m, err := manager.Open(ctx, c.db.Jobs(), manager.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	const many = 600
	specs := make([]jobs.Spec, many)
	for i := range specs {
		specs[i] = jobs.NewSpec()
	}
	if _, err := m.Submit(ctx, specs); err != nil {
		return err
	}
	c.disk.set(fewPages)
	large := jobs.NewSpec()
	large.Payload = []byte(`{"x":"` + strings.Repeat("x", 200<<10) + `"}`)
	// The manager pauses after each failure, and asks what is stored.
	persist := func(do func() error) error {
		for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if err := do(); !errors.Is(err, lokt.ErrUnavailable) || time.Now().After(end) {
				return err
			}
		}
	}
	completed, most := map[string]bool{}, 0
	for i := range many {
		if i%100 == 50 {
			if _, err := m.Submit(ctx, []jobs.Spec{large}); !errors.Is(err, lokt.ErrUnavailable) {
				return fmt.Errorf("a job for which there is no room: %w", err)
			}
		}
		var g jobs.Grant
		if err := persist(func() (err error) {
			g, err = m.Request(ctx, jobs.Request{WorkerID: "w", RequestID: fmt.Sprint(i)})
			return err
		}); err != nil || g.Denied != nil {
			return fmt.Errorf("job %d: %+v, %w", i, g.Denied, err)
		}
		if err := persist(func() error {
			_, err := m.Complete(ctx, jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w", Status: jobs.Completed})
			return err
		}); err != nil {
			return fmt.Errorf("completion %d: %w", i, err)
		}
		completed[g.Job.ID] = true
		size := 0
		for _, p := range c.base.jobs.unfolded() {
			size += sizeOf(p.Changes)
		}
		most = max(most, size)
	}
	if most < 2*foldSize {
		return fmt.Errorf("up to %d changes were in the journal only", most)
	}
	if len(completed) != many {
		return fmt.Errorf("%d of %d jobs were given out", len(completed), many)
	}
	return c.found(ctx, func(db *DB) error {
		for id := range completed {
			if j, attempts, err := db.Jobs().Ended(ctx, id); err != nil || j.State != jobs.Completed || len(attempts) != 1 {
				return fmt.Errorf("%s, which was completed: %+v, %+v, %w", id, j, attempts, err)
			}
		}
		rows, err := db.Jobs().Load(ctx)
		if err != nil || len(rows.Jobs) != 0 || len(rows.Leases) != 0 || rows.Counters.Seq != many {
			return fmt.Errorf("living: %+v, %w", rows, err)
		}
		return nil
	})
}

// crowdBound looks at what is loaded for want of room, and that the journals do not grow for ever.
func crowdBound(ctx context.Context, c *crowded) error {
	js := c.base.jobs
	turn := func(n uint64) error {
		return js.Update(ctx, func(jobs.Facts) jobs.Changes { return turnNumber(n) })
	}
	if err := errors.Join(turn(1), turn(2), c.base.group.perform(ctx, &request{fold: true})); err != nil {
		return err
	}
	c.disk.set(fewPages)
	if err := c.base.group.perform(ctx, &request{write: func(ctx context.Context, q querier) error {
		return q.exec(ctx, "UPDATE state SET clock = clock + length(zeroblob(0))")
	}}); err != nil {
		return fmt.Errorf("a small change: %w", err)
	}
	if err := c.base.group.perform(ctx, &request{write: func(ctx context.Context, q querier) error {
		for i := range 400 {
			if err := q.exec(ctx, "INSERT INTO job_journal (id, body) VALUES (?, zeroblob(4000))", 1<<40+i); err != nil {
				return err
			}
		}
		return nil
	}}); !isCramped(err) {
		return fmt.Errorf("a large change: %w", err)
	}
	c.base.foldAgain, c.base.foldError = time.Now().Add(time.Hour), cramped{lokt.ErrUnavailable}
	js.mu.Lock()
	js.size = foldSize
	js.mu.Unlock()
	if err := errors.Join(turn(3), turn(4)); err != nil {
		return err
	}
	if n := len(js.unfolded()); n != 2 {
		return fmt.Errorf("%d turns are in the journal only", n)
	}
	before := js.unfolded()
	js.mu.Lock()
	js.size = mostUnfolded
	js.mu.Unlock()
	if err := turn(5); !isCramped(err) {
		return fmt.Errorf("beyond the bound: %w", err)
	}
	js.mu.Lock()
	js.size = 0
	js.mu.Unlock()
	read, err := js.read(ctx)
	if err != nil {
		return err
	}
	if len(read.Jobs) != 1 || read.Jobs[0].Seq != 2 {
		return fmt.Errorf("in the tables is %+v", read.Jobs)
	}
	for range 2 { // once more, as if the tables had it
		amend(&read, changesOf(before))
		if len(read.Jobs) != 1 || read.Jobs[0].Seq != 4 || len(read.Leases) != 1 || read.Leases[0].ID != "lease-4" || read.Counters.Seq != 4 || len(read.Attempts) != 0 {
			return fmt.Errorf("with the journal it is %+v", read)
		}
	}
	c.base.foldAgain = time.Time{}
	return nil
}

// crowdClose closes a database while there is no room for anything.
func crowdClose(ctx context.Context, c *crowded) error {
	path := c.path + ".closed"
	open := func() (*DB, error) { return Open(ctx, "sqlite:"+path, Options{}) }
	db, err := open()
	if err != nil {
		return err
	}
	c.disk.set(fewPages)
	a := lokt.Claim{Name: "held", LeaseID: "lease", Owner: lokt.Owner{ID: "o"}, TTL: time.Hour}
	if _, err := lokt.NewManager(db.Locks()).Acquire(ctx, a); err != nil {
		return err
	}
	if err := db.Jobs().Update(ctx, func(jobs.Facts) jobs.Changes { return turnNumber(1) }); err != nil {
		return err
	}
	base := db.backend.(*fileDB)
	if len(base.jobs.unfolded()) == 0 || !base.locks.unfolded() {
		return errors.New("nothing is in the journals only")
	}
	c.disk.set(0)
	if err := db.Close(); err != nil {
		return fmt.Errorf("closed without any room: %w", err)
	}
	c.disk.set(-1)
	if db, err = open(); err != nil {
		return err
	}
	snap, err := db.Locks().View(ctx, a.Name)
	if err != nil || len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].LeaseID != a.LeaseID {
		return fmt.Errorf("the lock is %+v, %w", snap.Lock, err)
	}
	if rows, err := db.Jobs().Load(ctx); err != nil || len(rows.Jobs) != 1 || rows.Jobs[0].Seq != 1 {
		return fmt.Errorf("the jobs are %+v, %w", rows.Jobs, err)
	}
	return errors.Join(db.Check(ctx), db.Close())
}

// Promise S-144.
func TestOnAFullDiskReleasesAndCompletionsGoOnWhileAnythingFits(t *testing.T) {
	t.Parallel()
	c := spawn(t, "crowd", t.TempDir())
	if got := c.line(t); got != "fine" {
		t.Error(got)
	}
}
