//go:build unix

package filestore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/testkit/faultfs"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// openFaulty returns a store over files that fail on cue.
func openFaulty(t *testing.T, dir string) (*Store, *faultfs.Faulty) {
	t.Helper()
	f := faultfs.New(vfs.OS())
	s, err := Open(dir, Options{fs: f, noWatch: true})
	if err != nil {
		t.Fatal(err)
	}
	return s, f
}

func leaseOf(owner, id string) lokt.Claim {
	return lokt.Claim{Name: "x", LeaseID: id, Owner: lokt.Owner{ID: owner, AnySession: true, Host: "h"}}
}

// outcome tells which of two states a lock is in.
func outcome(l lokt.Lock) string {
	s := "frozen "
	if l.Freeze == nil {
		s = "open "
	}
	for _, h := range l.Holders {
		s += "holder " + h.LeaseID + " "
	}
	for _, w := range l.Queue {
		s += "waiter " + w.LeaseID + " "
	}
	return s
}

// logged counts the entries of the audit log by event and lease.
func logged(t *testing.T, s *Store) map[string]int {
	t.Helper()
	n := map[string]int{}
	for e, err := range s.log.Read(context.Background(), audit.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		n[e.Event+" "+e.LockID]++
	}
	return n
}

// Promises S-2, S-51, S-56.
func TestAChangeOfThreeFilesThatIsCutShortAnywhereIsMadeOrNot(t *testing.T) {
	ctx := context.Background()
	now := time.Now()
	holder := func(c lokt.Claim, token uint64) lokt.Holder {
		return lokt.Holder{Claim: c, Token: token, HeldSince: now, AcquiredAt: now}
	}
	before := func(snap lokt.Snapshot) lokt.Change {
		l := snap.Lock
		l.Token++
		l.Holders = []lokt.Holder{holder(leaseOf("a", "lease-a"), l.Token)}
		l.Queue = []*lokt.Waiter{{Claim: leaseOf("b", "lease-b"), Since: now, Until: now.Add(time.Hour)}}
		return lokt.Change{Lock: l}
	}
	after := func(snap lokt.Snapshot) lokt.Change {
		l := snap.Lock
		l.Token++
		l.Holders = []lokt.Holder{holder(leaseOf("b", "lease-b"), l.Token)}
		l.Queue = nil
		l.Freeze = &lokt.Freeze{ID: "freeze", Owner: lokt.Owner{ID: "c"}, At: now}
		event := func(e lokt.EventType, id string) lokt.Event {
			return lokt.Event{Time: now, Type: e, Name: "x", LeaseID: id, Owner: lokt.Owner{ID: "x"}}
		}
		return lokt.Change{Lock: l, Events: []lokt.Event{event(lokt.EventRelease, "lease-a"), event(lokt.EventAcquire, "lease-b")}}
	}
	const old, done = "open holder lease-a waiter lease-b ", "frozen holder lease-b "
	seen := map[string]int{}
	try := func(t *testing.T, fault *faultfs.Fault) (trace []string) {
		dir := filepath.Join(t.TempDir(), "root")
		s, f := openFaulty(t, dir)
		if err := s.Update(ctx, "x", before); err != nil {
			t.Fatal(err)
		}
		f.Reset()
		if fault != nil {
			f.Inject(*fault)
		}
		err := s.Update(ctx, "x", after)
		trace = f.Trace()
		f.Crash()
		_ = s.Close()

		s, err2 := Open(dir, Options{})
		if err2 != nil {
			t.Fatal(err2)
		}
		defer s.Close()
		snap, err2 := s.View(ctx, "x")
		if err2 != nil {
			t.Fatal(err2)
		}
		got := outcome(snap.Lock)
		seen[got]++
		if got != old && got != done || err == nil && got != done {
			t.Errorf("error %v, and the lock is %s", err, got)
		}
		if err := s.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change { return lokt.Change{Lock: snap.Lock} }); err != nil {
			t.Fatal(err)
		}
		if snap, err = s.View(ctx, "x"); err != nil || outcome(snap.Lock) != got {
			t.Errorf("seen as %s, and when somebody had looked after it as %s (%v)", got, outcome(snap.Lock), err)
		}
		want := 0
		if got == done {
			want = 1
		}
		if n := logged(t, s); n["release lease-a"] != want || n["acquire lease-b"] != want {
			t.Errorf("the lock is %s, and the log has %v", got, n)
		}
		return trace
	}
	trace := try(t, nil)
	for fault := range faultfs.Faults(len(trace)) {
		if errors.Is(fault.Err, syscall.EIO) {
			continue // as a full disk
		}
		op := trace[fault.Op-1]
		if fault.Err != nil && strings.HasSuffix(op, filepath.Join(dirQueue, "x.json")) && !strings.HasPrefix(op, "rename") {
			continue // a queue that cannot be read is left as it is: it keeps nobody out
		}
		t.Run(fault.String(), func(t *testing.T) { try(t, &fault) })
	}
	if seen[old] == 0 || seen[done] < 2 {
		t.Errorf("the outcomes were %v: the faults do not try enough", seen)
	}
}

// Promise S-52.
func TestWhatOutlivesTheLossOfPowerIsFlushedBeforeItIsReported(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "root")
	s, f := openFaulty(t, dir)
	defer s.Close()
	self, err := s.Self()
	if err != nil {
		t.Fatal(err)
	}
	m := lokt.NewManager(s)
	acquire := func(c lokt.Claim) func() error {
		return func() error { _, err := m.Acquire(ctx, c); return err }
	}
	release := func(c lokt.Claim) func() error {
		return func() error {
			_, err := m.Release(ctx, lokt.Target{Name: c.Name, LeaseID: c.LeaseID, Owner: c.Owner})
			return err
		}
	}
	lease := leaseOf("a", "lease-a")
	guard := leaseOf("a", "guard-a")
	guard.Process, guard.Strict, guard.Attended, guard.TTL = &self, true, true, time.Minute
	program := guard
	program.LeaseID, program.Strict = "program-a", false
	for _, step := range []struct {
		what string
		do   func() error
		want string // which of the directories had something flushed: a file in it, or itself
	}{
		{"the first token is reserved, and the lease is on the disk", acquire(lease), "file guards, directory guards, file locks, directory locks"},
		{"the end of a lease is on the disk", release(lease), "directory locks"},
		{"a lease out of the reserved block", acquire(lease), "file locks, directory locks"},
		{"its end", release(lease), "directory locks"},
		{"a guard's grant is not waited for", acquire(guard), ""},
		{"its renewal is flushed", func() error {
			_, err := m.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "guard-a"})
			return err
		}, "file locks"},
		{"its end is not waited for", release(guard), ""},
		{"neither is the grant of a program that is no guard", acquire(program), ""},
		{"nor its renewal", func() error {
			_, err := m.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "program-a"})
			return err
		}, ""},
		{"nor its end", release(program), ""},
		{"a freeze is on the disk", func() error {
			_, err := m.Freeze(ctx, "x", lokt.Freeze{Owner: lease.Owner, TTL: time.Minute})
			return err
		}, "file freezes, directory freezes"},
		{"and so is its end", func() error {
			_, err := m.Unfreeze(ctx, lokt.Target{Name: "x", Owner: lease.Owner})
			return err
		}, "directory freezes"},
	} {
		f.Reset()
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if got := flushed(dir, f.Trace()); got != step.want {
			t.Errorf("%s: flushed %q, not %q", step.what, got, step.want)
		}
	}
}

// flushed names, in order and once each, which of the store's directories the trace has flushed, or files in them. That the
// directories themselves were made is not what this is about.
func flushed(root string, trace []string) string {
	var all []string
	for _, op := range trace {
		kind, path, _ := strings.Cut(op, " ")
		rel, err := filepath.Rel(root, path)
		var what string
		switch dir, _ := filepath.Split(rel); {
		case err != nil || strings.HasPrefix(rel, "."):
			continue
		case kind == "syncdir":
			what = "directory " + rel
		case kind == "sync":
			what = "file " + filepath.Clean(dir)
		default:
			continue
		}
		if !slices.Contains(all, what) {
			all = append(all, what)
		}
	}
	return strings.Join(all, ", ")
}

// Promise S-54.
func TestAFullDiskRefusesWhatItCannotKeep(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "root")
	s, f := openFaulty(t, dir)
	defer s.Close()
	m := lokt.NewManager(s)
	f.Reset()
	if _, err := m.Acquire(ctx, leaseOf("a", "first")); err != nil {
		t.Fatal(err)
	}
	ops := len(f.Trace())
	if _, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: "first"}); err != nil {
		t.Fatal(err)
	}
	refused := 0
	for fault := range faultfs.Faults(ops) {
		if fault.Err == nil {
			continue
		}
		id := fmt.Sprintf("lease-%d", refused)
		f.Reset()
		f.Inject(fault)
		_, err := m.Acquire(ctx, leaseOf("a", id))
		f.Reset()
		snap, err2 := s.View(ctx, "x")
		if err2 != nil {
			t.Fatalf("%v: %v", fault, err2)
		}
		if _, in := snap.Lock.Holder(id); in != (err == nil) {
			t.Errorf("%v: the claim was answered %v, and that it holds the lock is %v", fault, err, in)
		}
		if err != nil {
			refused++
			continue
		}
		if _, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if refused == 0 {
		t.Error("no claim was refused: the faults do not try enough")
	}
}
