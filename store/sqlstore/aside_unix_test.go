//go:build unix

package sqlstore

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/atomicfile"
	"github.com/lokt-dev/lokt/internal/testkit/faultfs"
	"github.com/lokt-dev/lokt/internal/vfs"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// torn returns a copy of a database as a kill leaves it, after something was done to it. Its journals have one row for each thing that
// use does.
func torn(t *testing.T, use func(db *bare), damage string) string {
	t.Helper()
	path := place(t)
	db := start(t, path, Options{})
	db.locks.foldAfter = time.Hour
	db.jobs.mu.Lock() // no timer is started while there is one
	db.jobs.timer = time.NewTimer(time.Hour)
	db.jobs.mu.Unlock()
	use(&bare{t, db})
	found := place(t)
	asKilled(t, path, found)
	c, err := dial(dsn(found))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.once(t.Context(), damage), c.close()); err != nil {
		t.Fatal(err)
	}
	return found
}

// bare is a database that is used without much ado.
type bare struct {
	t  *testing.T
	db *fileDB
}

func (b *bare) acquire(name, lease string) uint64 {
	b.t.Helper()
	h, err := lokt.NewManager(b.db.Locks()).Acquire(context.Background(), lokt.Claim{Name: name, LeaseID: lease, Owner: lokt.Owner{ID: lease}, TTL: time.Hour})
	if err != nil {
		b.t.Fatal(err)
	}
	return h.Token
}

func (b *bare) release(name, lease string) {
	b.t.Helper()
	if _, err := lokt.NewManager(b.db.Locks()).Release(context.Background(), lokt.Target{Name: name, LeaseID: lease}); err != nil {
		b.t.Fatal(err)
	}
}

func refused(t *testing.T, path, table string, row int) {
	t.Helper()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err = Open(t.Context(), "sqlite:"+path, Options{})
		if !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(err.Error(), fmt.Sprintf("row %d of table %s", row, table)) || !strings.Contains(err.Error(), "loktd repair") {
			t.Fatalf("open: %v", err)
		}
	}
	if after, err := os.ReadFile(path); err != nil || len(after) < len(before) {
		t.Errorf("%d bytes became %d, %v", len(before), len(after), err)
	}
}

func lines(t *testing.T, file string) (all []Aside) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var a Aside
		if err := json.Unmarshal(s.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	return all
}

func holders(t *testing.T, db *fileDB, name string) (all []string) {
	t.Helper()
	s, err := db.Locks().View(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range s.Lock.Holders {
		all = append(all, h.LeaseID)
	}
	return all
}

// Promise S-145.
func TestADamagedRowOfTheJournalOfLocksIsNamedAndCanBeSetAside(t *testing.T) {
	t.Parallel()
	var newest uint64
	path := torn(t, func(b *bare) {
		b.acquire("a", "a1")
		b.acquire("b", "b1")
		b.acquire("lost", "lost1") // row 3
		b.release("b", "b1")
		newest = b.acquire("b", "b2")
	}, "UPDATE lock_journal SET body = x'017fff' WHERE id = 3")
	refused(t, path, "lock_journal", 3)

	file := filepath.Join(t.TempDir(), "aside")
	all, err := SetAside(t.Context(), "sqlite:"+path, file, Options{})
	if err != nil || len(all) != 1 || all[0].Table != "lock_journal" || all[0].Row != 3 || !all[0].Damaged {
		t.Fatalf("set aside: %+v, %v", all, err)
	}
	if got := lines(t, file); len(got) != 1 || string(got[0].Body) != "\x01\x7f\xff" {
		t.Errorf("the file has %+v", got)
	}
	db := start(t, path, Options{})
	for name, want := range map[string][]string{"a": {"a1"}, "b": {"b2"}, "lost": nil} {
		if got := holders(t, db, name); !slices.Equal(got, want) {
			t.Errorf("%s is held by %q, not %q", name, got, want)
		}
	}
	b := &bare{t, db}
	for _, name := range []string{"lost", "new"} {
		if token := b.acquire(name, "later"); token <= newest+1<<31 {
			t.Errorf("token %d of %s is not far above %d", token, name, newest)
		}
	}
	b.release("a", "a1")
	if token := b.acquire("a", "a2"); token <= newest {
		t.Errorf("token %d of a comes after %d", token, newest)
	}
	page, err := db.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
	if err != nil || len(page.Events) < 5 {
		t.Fatalf("events: %+v, %v", page, err)
	}
	for i, e := range page.Events[1:] {
		if e.Seq <= page.Events[i].Seq || e.Name == "lost" && e.Seq < asideGap {
			t.Errorf("event %+v after %d", e, page.Events[i].Seq)
		}
	}
	if e := page.Events[len(page.Events)-1]; e.Seq <= asideGap {
		t.Errorf("event %d may have a number that was given before", e.Seq)
	}
	if err := db.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// Promise S-156.
func TestARowThatStillMakesSenseButIsNotWhatWasStoredIsDamaged(t *testing.T) {
	t.Parallel()
	path := torn(t, func(b *bare) {
		b.acquire("a", "lease-1")
		b.acquire("b", "lease-2")
	}, "UPDATE lock_journal SET body = unhex(replace(hex(body), hex('lease-2'), hex('lease-3'))) WHERE id = 2")
	refused(t, path, "lock_journal", 2)
	if _, err := Open(t.Context(), "sqlite:"+path, Options{}); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("open: %v", err)
	}
}

// Promise S-145.
func TestADamagedRowOfTheJournalOfJobsIsSetAsideWithThoseAfterIt(t *testing.T) {
	t.Parallel()
	path := torn(t, func(b *bare) {
		for n := uint64(1); n <= 5; n++ {
			if err := b.db.Jobs().Update(context.Background(), func(jobs.Facts) jobs.Changes { return turnNumber(n) }); err != nil {
				t.Fatal(err)
			}
		}
		b.acquire("a", "a1")
	}, "UPDATE job_journal SET body = substr(body, 1, length(body) - 3) WHERE id = 3")
	refused(t, path, "job_journal", 3)

	file := filepath.Join(t.TempDir(), "aside")
	if _, err := SetAside(t.Context(), "sqlite:"+path, filepath.Join(file, "nowhere"), Options{}); err == nil {
		t.Error("what could not be written to a file is set aside")
	}
	refused(t, path, "job_journal", 3)
	all, err := SetAside(t.Context(), "sqlite:"+path, file, Options{})
	if err != nil || len(all) != 3 {
		t.Fatalf("set aside: %+v, %v", all, err)
	}
	for i, a := range lines(t, file) {
		if a.Table != "job_journal" || a.Row != int64(3+i) || a.Damaged != (i == 0) {
			t.Errorf("line %d is %+v", i, a)
		}
		if id := fmt.Sprint("job-", 3+i); i > 0 && !slices.Equal(a.Submitted, []string{id}) {
			t.Errorf("line %d does not name %s: %+v", i, id, a)
		}
	}
	db := start(t, path, Options{})
	rows, err := db.Jobs().Load(t.Context())
	if err != nil || len(rows.Jobs) != 1 || rows.Jobs[0].ID != "job-2" || len(rows.Leases) != 1 {
		t.Fatalf("living: %+v, %v", rows, err)
	}
	if c := rows.Counters; c.Seq <= 5 || c.Event <= 5 || c.Revision <= 11 || rows.TokenFloor < 1<<32 {
		t.Errorf("numbers may be given again: %+v, tokens from %d", c, rows.TokenFloor)
	}
	if j, _, err := db.Jobs().Ended(t.Context(), "job-1"); err != nil || j.State != jobs.Completed {
		t.Errorf("%+v, %v", j, err)
	}
	if got := holders(t, db, "a"); !slices.Equal(got, []string{"a1"}) {
		t.Errorf("a is held by %q", got)
	}
	// It goes on.
	m, err := manager.Open(t.Context(), db.Jobs(), manager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if r, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil || len(r) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := m.Complete(t.Context(), jobs.Completion{LeaseID: "lease-2", WorkerID: "w", Status: jobs.Completed}); err != nil {
		t.Errorf("completion under the lease that is left: %v", err)
	}
}

func TestWithoutADamagedRowNothingIsSetAside(t *testing.T) {
	t.Parallel()
	path := torn(t, func(b *bare) { b.acquire("a", "a1") }, "UPDATE state SET clock = clock")
	file := filepath.Join(t.TempDir(), "aside")
	if all, err := SetAside(t.Context(), "sqlite:"+path, file, Options{}); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file: %v", err)
	}
	for url, is := range map[string]error{"postgres://x": lokt.ErrInvalid, "sqlite:" + path + ".none": lokt.ErrInvalid} {
		if _, err := SetAside(t.Context(), url, file, Options{}); !errors.Is(err, is) {
			t.Errorf("%s: %v", url, err)
		}
	}
	db := start(t, path, Options{})
	if got := holders(t, db, "a"); !slices.Equal(got, []string{"a1"}) {
		t.Errorf("a is held by %q", got)
	}
	if _, err := SetAside(t.Context(), "sqlite:"+path, file, Options{}); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("of a database in use: %v", err)
	}
	if token := (&bare{t, db}).acquire("c", "c1"); token > 1<<31 {
		t.Errorf("tokens were raised to %d", token)
	}
}

// Promise S-159.
func TestANameThatCannotBeFlushedIsNoSuccess(t *testing.T) {
	t.Parallel()
	db := start(t, place(t), Options{})
	dir := t.TempDir()
	copied, part, aside := filepath.Join(dir, "copy"), filepath.Join(dir, "part"), filepath.Join(dir, "aside")
	if err := db.Backup(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	f := faultfs.New(vfs.OS())
	f.FailAt(2, syscall.EIO) // after the renaming
	if err := finish(f, part, copied); !errors.Is(err, syscall.EIO) || !errors.Is(err, atomicfile.ErrInDoubt) {
		t.Errorf("of a backup: %v", err)
	}
	if _, err := os.Stat(copied); err != nil {
		t.Errorf("the copy is not left: %v", err)
	}
	f = faultfs.New(vfs.OS())
	f.FailAt(1, syscall.EIO)
	if err := writeAside(f, aside, []Aside{{Table: "lock_journal", Row: 1}}); !errors.Is(err, syscall.EIO) {
		t.Errorf("of a row: %v", err)
	}
	if _, err := os.Stat(aside); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that was not finished is left, so that another try is refused: %v", err)
	}
}
