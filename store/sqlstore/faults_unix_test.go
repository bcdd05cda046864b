//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/faultvfs"
	"github.com/lokt-dev/lokt/jobs"
)

// cue says which operation fails: the nth of its kind on a file, and if it persists, all after it.
type cue struct {
	op      faultvfs.Op
	suffix  string // of the file
	outcome faultvfs.Outcome
	persist bool

	mu    sync.Mutex
	n     int // how many are still to pass
	armed bool
	hits  int
}

func (c *cue) String() string {
	return fmt.Sprintf("%s of database%s fails (%d, persisting: %v)", c.op, c.suffix, c.outcome, c.persist)
}

func (c *cue) decide(op faultvfs.Op, path string) faultvfs.Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.armed || op != c.op || !strings.HasSuffix(path, ".db"+c.suffix) {
		return faultvfs.Pass
	}
	if c.n--; c.n > 0 || c.n < 0 && !c.persist {
		return faultvfs.Pass
	}
	c.hits++
	return c.outcome
}

func (c *cue) hit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hits > 0
}

// disarm lets everything pass, and returns how often something did not.
func (c *cue) disarm() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
	return c.hits
}

// trial uses a database while something fails, and knows what it may have.
type trial struct {
	fs   *faultvfs.FS
	path string
	cue  *cue
	db   *DB
	base *fileDB

	allowed map[string][]string // leases that may hold a lock, "" for none
	turns   []uint64            // how many turns there may have been
	serial  int
	crashes int
	errs    []error
}

func (t *trial) errorf(format string, args ...any) {
	t.errs = append(t.errs, fmt.Errorf(format, args...))
}

func (t *trial) open(ctx context.Context) error {
	db, err := Open(ctx, "sqlite:"+t.path, Options{})
	if err != nil {
		return err
	}
	t.db, t.base = db, db.backend.(*fileDB)
	_ = t.base.group.perform(ctx, &request{name: "a", change: func(s lokt.Snapshot) lokt.Change {
		t.base.checkpointAt = 12
		return lokt.Change{Lock: s.Lock}
	}})
	return nil
}

// outcome checks how an operation ended, which leaves one of the states.
func outcome[T comparable](t *trial, have []T, want T, err error) []T {
	if err == nil {
		return []T{want}
	}
	if !errors.Is(err, lokt.ErrUnavailable) {
		t.errorf("it fails with %w", err)
	}
	if slices.Contains(have, want) {
		return have
	}
	return append(slices.Clone(have), want)
}

func (t *trial) acquire(ctx context.Context, name string) {
	t.serial++
	lease := fmt.Sprint("lease-", t.serial)
	_, err := lokt.NewManager(t.db.Locks()).Acquire(ctx, lokt.Claim{Name: name, LeaseID: lease, Owner: lokt.Owner{ID: lease}, TTL: time.Hour})
	if errors.Is(err, lokt.ErrHeld) && !slices.Equal(t.allowed[name], []string{""}) {
		return // it may well be
	}
	t.allowed[name] = outcome(t, t.allowed[name], lease, err)
}

func (t *trial) release(ctx context.Context, name string) {
	for _, lease := range t.allowed[name] {
		if lease == "" {
			continue
		}
		_, err := lokt.NewManager(t.db.Locks()).Release(ctx, lokt.Target{Name: name, LeaseID: lease})
		if errors.Is(err, lokt.ErrNotFound) || errors.Is(err, lokt.ErrNotOwner) {
			if len(t.allowed[name]) == 1 {
				t.errorf("%s is not held by %s: %w", name, lease, err)
			}
			continue
		}
		t.allowed[name] = outcome(t, t.allowed[name], "", err)
		return
	}
}

func (t *trial) renew(ctx context.Context, name string) {
	if len(t.allowed[name]) != 1 || t.allowed[name][0] == "" {
		return
	}
	_, err := lokt.NewManager(t.db.Locks()).Renew(ctx, lokt.Renewal{Name: name, LeaseID: t.allowed[name][0]})
	if err != nil && !errors.Is(err, lokt.ErrUnavailable) {
		t.errorf("renewal of %s: %w", name, err)
	}
}

// turn submits a job, and ends the one before it.
func (t *trial) turn(ctx context.Context) {
	if len(t.turns) != 1 {
		rows, err := t.db.Jobs().Load(ctx)
		if err != nil {
			if !errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, lokt.ErrDamaged) {
				t.errorf("load: %w", err)
			}
			return
		}
		if !slices.Contains(t.turns, rows.Counters.Seq) {
			t.errorf("after a failure there are %d turns, not %d", rows.Counters.Seq, t.turns)
		}
		t.turns = []uint64{rows.Counters.Seq}
	}
	n := t.turns[0]
	t.turns = outcome(t, t.turns, n+1, t.db.Jobs().Update(ctx, func(jobs.Facts) jobs.Changes { return turnNumber(n + 1) }))
	if len(t.turns) == 1 { // what was acknowledged can be read
		ended, err := t.db.Jobs().ListEnded(ctx, jobs.Filter{}, 0, 1<<62, 1000)
		if err == nil && len(ended) != int(n) {
			t.errorf("after turn %d, %d ended", n+1, len(ended))
		} else if err != nil && !errors.Is(err, lokt.ErrUnavailable) {
			t.errorf("list: %w", err)
		}
	}
}

// turned checks how many turns there were, and that each is there whole and once.
func (t *trial) turned(ctx context.Context, what string, db *DB, n uint64) {
	if !slices.Contains(t.turns, n) {
		t.errorf("%s: there are %d turns, not %d", what, n, t.turns)
	}
	js := db.Jobs()
	ended, err := js.ListEnded(ctx, jobs.Filter{}, 0, 1<<62, 1000)
	stats, err2 := js.History(ctx, time.Time{})
	living, err3 := js.Load(ctx)
	if err := errors.Join(err, err2, err3); err != nil {
		t.errorf("%s: %w", what, err)
		return
	}
	sum := int64(0)
	for _, a := range stats {
		sum = max(sum, a.Events[jobs.EventSubmit])
	}
	if len(ended) != int(n-min(n, 1)) || sum != int64(n) || n > 0 && (len(living.Jobs) != 1 || living.Jobs[0].Seq != n || len(living.Memos) != 1 ||
		living.Memos[0].JobID != fmt.Sprint("job-", n)) {
		t.errorf("%s: of %d turns there are %d ended, count %d, living %+v", what, n, len(ended), sum, living)
	}
	for i, j := range ended {
		want := turnNumber(n - 1 - uint64(i)).Jobs
		if last := want[len(want)-1]; j.Seq != last.Seq || j.ID != last.ID || j.Type != "generic" || string(j.Payload) != string(last.Payload) {
			t.errorf("%s: ended %d is %+v", what, i, j)
		}
		if r, err := js.Ended(ctx, j.ID); i < 3 && (err != nil || r.ID != j.ID || r.Payload == nil) {
			t.errorf("%s: %s is %+v, %w", what, j.ID, r, err)
		}
	}
}

// look reads through the connections that read, and moves what is in memory out of their way.
func (t *trial) look(ctx context.Context) {
	if _, err := t.db.Locks().View(ctx, "nobody had this"); err != nil && !errors.Is(err, lokt.ErrUnavailable) {
		t.errorf("view: %w", err)
	}
	if _, err := t.db.Jobs().Ended(ctx, "none"); err != nil && !errors.Is(err, lokt.ErrUnavailable) && !errors.Is(err, jobs.ErrJobNotFound) {
		t.errorf("a job: %w", err)
	}
}

// compare checks that a database has what it may have. With settle, that is all that it may have from now on.
func (t *trial) compare(ctx context.Context, what string, db *DB, settle bool) {
	for name, allowed := range t.allowed {
		snap, err := db.Locks().View(ctx, name)
		if err != nil {
			t.errorf("%s: view of %s: %w", what, name, err)
			continue
		}
		has := ""
		for _, h := range snap.Lock.Holders {
			has += h.LeaseID
		}
		if !slices.Contains(allowed, has) || snap.Lock.Freeze != nil {
			t.errorf("%s: %s is held by %q, not one of %q", what, name, has, allowed)
		}
		if settle {
			t.allowed[name] = []string{has}
		}
	}
	if page, err := db.Locks().ReadEvents(ctx, lokt.EventQuery{}); err != nil || len(page.Events) != int(page.Newest) {
		t.errorf("%s: %d of %d events of locks: %w", what, len(page.Events), page.Newest, err)
	} else {
		for i, e := range page.Events {
			if e.Seq != uint64(i)+1 {
				t.errorf("%s: event %d of locks is %+v", what, i+1, e)
			}
		}
	}
	rows, err := db.Jobs().Load(ctx)
	if err != nil {
		t.errorf("%s: jobs: %w", what, err)
		return
	}
	t.turned(ctx, what, db, rows.Counters.Seq)
	if settle {
		t.turns = []uint64{rows.Counters.Seq}
	}
}

// reopened checks what another process finds, and that what it stores is there when the power fails.
func (t *trial) reopened(ctx context.Context, what, path string, again bool) {
	db, err := Open(ctx, "sqlite:"+path, Options{})
	if err != nil {
		t.errorf("%s: %w", what, err)
		return
	}
	if err := db.backend.(*fileDB).check(ctx); err != nil {
		t.errorf("%s: %w", what, err)
	}
	t.compare(ctx, what, db, false)
	if again {
		next := &trial{fs: t.fs, path: path, cue: t.cue, db: db, allowed: maps.Clone(t.allowed), turns: slices.Clone(t.turns), serial: t.serial + 1000}
		next.allowed["next"] = []string{""}
		next.acquire(ctx, "next")
		next.turn(ctx)
		next.turn(ctx)
		next.compare(ctx, what+", next", db, true)
		next.after(ctx, what+", next, without power", t.fs.Cut, false)
		t.errs = append(t.errs, next.errs...)
	}
	if err := db.Close(); err != nil {
		t.errorf("%s: %w", what, err)
	}
}

// run uses the database. A reader keeps what it sees from being moved for a while, if there is one.
func (t *trial) run(ctx context.Context, reader bool) {
	names := []string{"a", "b", "c"}
	for _, name := range names {
		t.allowed[name] = []string{""}
	}
	t.turns = []uint64{0}
	t.cue.armed = true
	if err := t.open(ctx); err != nil {
		if t.cue.disarm() == 0 {
			t.errorf("open: %w", err)
			return
		}
		if err := t.open(ctx); err != nil {
			t.errorf("open again: %w", err)
			return
		}
	}
	end := func() {}
	use := func() {
		for i := range 4 {
			t.acquire(ctx, "a")
			t.turn(ctx)
			t.acquire(ctx, "b")
			t.turn(ctx)
			t.renew(ctx, "a")
			t.turn(ctx)
			t.acquire(ctx, "c")
			if t.cue.hit() {
				end() // nothing can be recovered while somebody reads
			}
			t.release(ctx, "b")
			t.renew(ctx, "c")
			t.look(ctx)
			t.turn(ctx)
			t.release(ctx, "a")
			t.turn(ctx)
			t.release(ctx, "c")
			if i == 1 {
				t.acquire(ctx, "a")
			}
		}
	}
	if reader {
		end = t.reader(ctx)
	}
	use()
	end()
	use()
	if t.cue.hit() && t.cue.persist {
		if err := t.db.Ping(ctx); err != nil && !errors.Is(err, lokt.ErrUnavailable) {
			t.errorf("ping: %w", err)
		}
	}
	if t.cue.disarm(); t.cue.persist {
		t.crash(ctx, "while it fails", true)
	}
	select {
	case <-t.db.Failed():
		t.given(ctx)
		return
	default:
	}
	if err := t.db.Ping(ctx); err != nil {
		t.errorf("it does not heal: %w", err)
	}
	t.compare(ctx, "afterwards", t.db, true)
	t.crash(ctx, "healed", true)
	use()
	t.compare(ctx, "in use again", t.db, true)
	t.crash(ctx, "in use again", false)
	if err := t.db.Close(); err != nil {
		t.errorf("close: %w", err)
	}
	t.reopened(ctx, "closed", t.path, false)
}

// given looks at a database that was given up.
func (t *trial) given(ctx context.Context) {
	if t.cue.op != faultvfs.Sync {
		t.errorf("it is given up")
	}
	for _, err := range []error{t.db.Ping(ctx), t.db.Locks().Update(ctx, "a", func(s lokt.Snapshot) lokt.Change { return lokt.Change{Lock: s.Lock} })} {
		if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "could not be flushed") {
			t.errorf("given up, it answers %w", err)
		}
	}
	if _, err := t.db.Locks().View(ctx, "a"); err != nil {
		t.errorf("given up, it cannot be read: %w", err)
	}
	t.crash(ctx, "given up", true)
	if err := t.db.Close(); !errors.Is(err, lokt.ErrUnavailable) {
		t.errorf("given up, it is closed: %w", err)
	}
	if _, err := Open(ctx, "sqlite:"+t.path, Options{}); !errors.Is(err, lokt.ErrUnavailable) {
		t.errorf("given up, it is opened again: %w", err)
	}
	t.crash(ctx, "given up and closed", true)
	if err := t.base.release(false); err != nil { // the process ends
		t.errorf("release: %w", err)
	}
}

// reader reads what is there now until it is told to end.
func (t *trial) reader(ctx context.Context) (end func()) {
	over, reads, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		_ = t.base.reading(ctx, "test", func(read look) error {
			err := read("SELECT id FROM state", nil, func(from row) error { return from.Scan(new(int)) })
			close(reads)
			<-over
			return err
		})
	}()
	select {
	case <-reads:
	case <-ended:
	}
	return sync.OnceFunc(func() {
		close(over)
		<-ended
	})
}

// crash looks at what is left if the process is killed now, or the power fails: at one of both, unless there is time.
func (t *trial) crash(ctx context.Context, when string, again bool) {
	t.crashes++
	if t.crashes%2 == 0 || os.Getenv(everyFaultEnv) != "" {
		t.after(ctx, when+", killed", t.fs.Copy, again)
	}
	if t.crashes%2 != 0 || os.Getenv(everyFaultEnv) != "" {
		t.after(ctx, when+", without power", t.fs.Cut, again)
	}
}

// after looks at what is left.
func (t *trial) after(ctx context.Context, what string, save func(from, to string) error, again bool) {
	dir, err := os.MkdirTemp(filepath.Dir(t.path), "crash")
	if err != nil {
		t.errorf("%w", err)
		return
	}
	to := filepath.Join(dir, "copy.DB")
	if err := save(t.path, to); err != nil {
		t.errorf("%s: %w", what, err)
		return
	}
	t.reopened(ctx, what, to, again)
}

// everyFaultEnv, if it is set, has every operation fail, in every way, or every one of a kind that it names. That takes long.
const everyFaultEnv = "LOKT_SQLSTORE_FAULTS"

// ways are in which operations fail.
func ways() []*cue {
	var all []*cue
	for _, kind := range []struct {
		op       faultvfs.Op
		suffixes []string
		outcomes []faultvfs.Outcome
	}{
		{faultvfs.Sync, []string{"", "-wal"}, []faultvfs.Outcome{faultvfs.Fail}},
		{faultvfs.Write, []string{"", "-wal"}, []faultvfs.Outcome{faultvfs.Fail, faultvfs.Half, faultvfs.Full}},
		{faultvfs.Truncate, []string{""}, []faultvfs.Outcome{faultvfs.Fail}},
		{faultvfs.Read, []string{"", "-wal"}, []faultvfs.Outcome{faultvfs.Fail}},
		{faultvfs.Size, []string{"", "-wal"}, []faultvfs.Outcome{faultvfs.Fail}},
		{faultvfs.Map, []string{"-shm"}, []faultvfs.Outcome{faultvfs.Fail}},
		{faultvfs.Open, []string{"", "-wal"}, []faultvfs.Outcome{faultvfs.Fail}},
	} {
		for _, suffix := range kind.suffixes {
			for _, o := range kind.outcomes {
				for _, persist := range []bool{false, true} {
					all = append(all, &cue{op: kind.op, suffix: suffix, outcome: o, persist: persist})
				}
			}
		}
	}
	return all
}

// fail lets operations fail, each in a trial of its own, and says what went wrong.
func fail(dir string) error {
	var now atomic.Pointer[cue]
	fs, err := faultvfs.Install(func(op faultvfs.Op, path string) faultvfs.Outcome {
		if c := now.Load(); c != nil {
			return c.decide(op, path)
		}
		return faultvfs.Pass
	})
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(fs)
	trials, hits := 0, 0
	try := func(way *cue, n int, reader bool) (hit bool) {
		c := &cue{op: way.op, suffix: way.suffix, outcome: way.outcome, persist: way.persist, n: n}
		now.Store(c)
		trials++
		t := &trial{fs: fs, path: filepath.Join(dir, fmt.Sprint(trials), "lokt.db"), cue: c, allowed: map[string][]string{}, crashes: trials}
		t.run(context.Background(), reader)
		if len(t.errs) > 0 {
			fmt.Printf("number %d: %v, reader: %v: %q\n", n, c, reader, errors.Join(t.errs...))
		} else {
			_ = os.RemoveAll(filepath.Dir(t.path))
		}
		if c.hits > 0 {
			hits++
		}
		return c.hits > 0
	}
	every := os.Getenv(everyFaultEnv)
	for i, way := range ways() {
		if every == "" {
			if way.persist == (i%4 < 2) {
				try(way, 2+i%5, i%4 < 2)
			}
			if way.op == faultvfs.Sync && !way.persist {
				try(way, 3, true)
			}
			continue
		}
		for _, reader := range []bool{false, true} {
			for n := 1; (every == "all" || every == string(way.op)) && try(way, n, reader); n++ {
			}
		}
	}
	fmt.Println("fine", trials, hits)
	return nil
}

// Promises S-66, S-135, S-136.
func TestWhateverFailsNothingAcknowledgedIsLostAndNothingIsMadeUp(t *testing.T) {
	t.Parallel()
	c := spawn(t, "fail", t.TempDir())
	for {
		s := c.line(t)
		var trials, hits int
		if n, _ := fmt.Sscanf(s, "fine %d %d", &trials, &hits); n == 2 {
			t.Logf("%d trials, in %d of them something failed", trials, hits)
			if hits < 12 {
				t.Error("that is too few")
			}
			break
		}
		t.Error(s)
	}
}
