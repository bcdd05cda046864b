//go:build unix

package filestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/testkit/faultfs"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// An action is a change of the lock "x", and the state it starts from.
type action struct {
	name  string
	setup func(l *lokt.Lock, now time.Time) // nil for a directory that does not exist yet
	do    func(ctx context.Context, s *Store, m *lokt.Manager) error

	frozenIsOther bool // if there were a freeze the action would do something else
	rewritten     int  // how often the record was written again before
}

func actions() []action {
	claim := func(id string) lokt.Claim {
		return lokt.Claim{Name: "x", LeaseID: id, TTL: time.Hour, Owner: lokt.Owner{ID: "owner of " + id, Host: "elsewhere"}}
	}
	hold := func(ids ...string) func(l *lokt.Lock, now time.Time) {
		return func(l *lokt.Lock, now time.Time) {
			for _, id := range ids {
				l.Token++
				l.Holders = append(l.Holders, lokt.Holder{
					Claim: claim(id), Token: l.Token, HeldSince: now, AcquiredAt: now, ExpiresAt: now.Add(time.Hour),
				})
			}
		}
	}
	attend := func(l *lokt.Lock, _ time.Time) { // by a program, so that nothing waits for the disk
		for i := range l.Holders {
			l.Holders[i].Attended = true
		}
	}
	renew := func(ctx context.Context, _ *Store, m *lokt.Manager) error {
		_, err := m.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "a"})
		return err
	}
	queue := func(ids ...string) func(l *lokt.Lock, now time.Time) {
		return func(l *lokt.Lock, now time.Time) {
			for _, id := range ids {
				w := lokt.Waiter{Claim: claim(id), Since: now, Until: now.Add(time.Hour)}
				w.Wait = time.Hour
				l.Queue = append(l.Queue, &w)
			}
		}
	}
	freeze := func(l *lokt.Lock, now time.Time) {
		l.Freeze = &lokt.Freeze{ID: "freeze", Owner: lokt.Owner{ID: "freezer"}, At: now, TTL: time.Hour, ExpiresAt: now.Add(time.Hour)}
	}
	all := func(edits ...func(l *lokt.Lock, now time.Time)) func(l *lokt.Lock, now time.Time) {
		return func(l *lokt.Lock, now time.Time) {
			for _, edit := range edits {
				edit(l, now)
			}
		}
	}
	acquire := func(id string) func(ctx context.Context, s *Store, m *lokt.Manager) error {
		return func(ctx context.Context, _ *Store, m *lokt.Manager) error {
			_, err := m.Acquire(ctx, claim(id))
			return err
		}
	}
	release := func(id string) func(ctx context.Context, s *Store, m *lokt.Manager) error {
		return func(ctx context.Context, _ *Store, m *lokt.Manager) error {
			_, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: id})
			return err
		}
	}
	return []action{
		{name: "acquire in a new directory", do: acquire("a")},
		{name: "acquire", setup: all(), do: acquire("a")},
		{name: "renew", setup: hold("a"), do: renew},
		{name: "renew what a program holds", setup: all(hold("a"), attend), do: renew},
		{name: "renew it again", setup: all(hold("a"), attend), rewritten: 2, do: renew},
		{name: "release it", setup: all(hold("a"), attend), rewritten: 2, do: release("a")},
		{name: "release", setup: hold("a"), do: release("a")},
		{name: "release and pass on", setup: all(hold("a"), queue("b", "c")), do: release("a"), frozenIsOther: true},
		{name: "enqueue", setup: all(hold("a"), queue("b")), do: func(ctx context.Context, s *Store, _ *lokt.Manager) error {
			return s.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change {
				queue("c")(&snap.Lock, snap.Now)
				return lokt.Change{Lock: snap.Lock, Events: []lokt.Event{{
					Time: snap.Now, Type: lokt.EventWait, Name: "x", LeaseID: "c", Extra: map[string]string{lokt.ExtraOutcome: "started"},
				}}}
			})
		}},
		{name: "freeze", setup: hold("a"), do: func(ctx context.Context, _ *Store, m *lokt.Manager) error {
			_, err := m.Freeze(ctx, "x", lokt.Freeze{ID: "freeze", Owner: lokt.Owner{ID: "freezer"}, TTL: time.Hour})
			return err
		}},
		{name: "unfreeze and let in", setup: all(freeze, queue("b", "c")), do: func(ctx context.Context, _ *Store, m *lokt.Manager) error {
			_, err := m.Unfreeze(ctx, lokt.Target{Name: "x", Owner: lokt.Owner{ID: "freezer"}})
			return err
		}},
		{name: "take over", setup: func(l *lokt.Lock, now time.Time) {
			all(hold("a"), queue("b"))(l, now)
			l.Holders[0].ExpiresAt = now.Add(-time.Second)
			l.Queue[0].Until = now.Add(-time.Second)
		}, do: func(ctx context.Context, s *Store, _ *lokt.Manager) error {
			return s.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change {
				l := lokt.Lock{Name: "x", Token: snap.Lock.Token}
				hold("c")(&l, snap.Now)
				event := func(e lokt.EventType, id, outcome string) lokt.Event {
					return lokt.Event{Time: snap.Now, Type: e, Name: "x", LeaseID: id, Extra: map[string]string{lokt.ExtraOutcome: outcome}}
				}
				return lokt.Change{Lock: l, Events: []lokt.Event{
					event(lokt.EventAutoPrune, "a", ""), event(lokt.EventWait, "b", "died"), event(lokt.EventAcquire, "c", ""),
				}}
			})
		}},
	}
}

// standing is who holds, who waits and whether there is a freeze.
type standing struct {
	holders, queue, freeze map[string]bool
	renewals               int
}

func standingOf(l lokt.Lock) standing {
	s := standing{map[string]bool{}, map[string]bool{}, map[string]bool{}, 0}
	for _, h := range l.Holders {
		s.holders[h.LeaseID] = true
		s.renewals += h.Renewals
	}
	for _, w := range l.Queue {
		s.queue[w.LeaseID] = true
	}
	if l.Freeze != nil {
		s.freeze[l.Freeze.ID] = true
	}
	return s
}

func (s standing) String() string { return fmt.Sprint(s.holders, s.queue, s.freeze, s.renewals) }

// clone returns a copy that shares nothing with s.
func (s standing) clone() standing {
	return standing{maps.Clone(s.holders), maps.Clone(s.queue), maps.Clone(s.freeze), s.renewals}
}

// replay does to s what the audit log says, and reports what is there twice.
func (s standing) replay(t *testing.T, store *Store) standing {
	t.Helper()
	seen := map[string]bool{}
	for e, err := range store.log.Read(context.Background(), audit.Query{Name: "x"}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(e.Raw)] {
			t.Errorf("the audit log has twice: %s", e.Raw)
		}
		seen[string(e.Raw)] = true
		switch lokt.EventType(e.Event) {
		case lokt.EventAcquire:
			s.holders[e.LockID] = true
		case lokt.EventRenew:
			s.renewals++
		case lokt.EventRelease, lokt.EventAutoPrune:
			delete(s.holders, e.LockID)
		case lokt.EventFreeze:
			s.freeze[e.LockID] = true
		case lokt.EventUnfreeze:
			delete(s.freeze, e.LockID)
		case lokt.EventWait:
			if e.Extra[lokt.ExtraOutcome] == "started" {
				s.queue[e.LockID] = true
			} else {
				delete(s.queue, e.LockID)
			}
		}
	}
	return s
}

// neighbour returns a name whose changes the same guard file excludes.
func neighbour(name string) string {
	for i := 0; ; i++ {
		if other := fmt.Sprintf("other-%d", i); shardOf(other) == shardOf(name) {
			return other
		}
	}
}

// crashFaults yields what can happen to an action with the given operations.
func crashFaults(trace []string) iter.Seq[faultfs.Fault] {
	return func(yield func(faultfs.Fault) bool) {
		for i, op := range trace {
			faults := []faultfs.Fault{{Op: i + 1}, {Op: i + 1, Err: syscall.EIO}}
			switch kind, _, _ := strings.Cut(op, " "); kind {
			case "write":
				for _, err := range []error{syscall.ENOSPC, syscall.EDQUOT} {
					faults = append(faults, faultfs.Fault{Op: i + 1, Err: err}, faultfs.Fault{Op: i + 1, Err: err, Short: true})
				}
			case "open", "rename", "remove", "mkdir", "sync":
				for _, err := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EDQUOT} {
					faults = append(faults, faultfs.Fault{Op: i + 1, Err: err})
				}
			}
			for _, f := range faults {
				if !yield(f) {
					return
				}
			}
		}
	}
}

func TestAnActionThatIsCutShortAnywhereIsDoneOrNot(t *testing.T) {
	t.Parallel()
	for _, a := range actions() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			stepThrough(t, a, false)
		})
		t.Run(a.name+" while the audit log cannot be written", func(t *testing.T) {
			t.Parallel()
			stepThrough(t, a, true)
		})
	}
}

// stepThrough does the action again and again, each time with another fault.
func stepThrough(t *testing.T, a action, noLog bool) {
	root := memoryPlace(t)
	var before, after standing
	var trace []string
	run(t, a, filepath.Join(root, "dry"), noLog, nil, func(old, now standing, ops []string, err error) {
		if err != nil {
			t.Fatalf("without a fault: %v", err)
		}
		before, after, trace = old, now, ops
	})
	if before.String() == after.String() {
		t.Fatalf("the action changes nothing: %v", before)
	}
	outcomes := map[string]int{}
	n := 0
	for fault := range crashFaults(trace) {
		if noLog && fault.Short && strings.Contains(trace[fault.Op-1], dirGuards) {
			continue // the journal is all that these lines are in
		}
		if fault.Err != nil && strings.HasSuffix(trace[fault.Op-1], filepath.Join(dirFreezes, "x.json")) && a.frozenIsOther {
			continue // what may be a freeze lets nobody in: done, but otherwise
		}
		n++
		run(t, a, filepath.Join(root, fmt.Sprint(n)), noLog, &fault, func(_, now standing, ops []string, err error) {
			what := fmt.Sprintf("%v (%s), answered %v", fault, trace[fault.Op-1], err)
			switch got := now.String(); {
			case got != before.String() && got != after.String():
				t.Errorf("%s: neither %v nor %v but %v", what, before, after, got)
			case err == nil && got != after.String():
				t.Errorf("%s: not done", what)
			default:
				outcomes[got]++
			}
			if t.Failed() {
				t.Fatalf("operations:\n%s", strings.Join(ops, "\n"))
			}
		})
	}
	if outcomes[before.String()] == 0 || outcomes[after.String()] == 0 {
		t.Errorf("the outcomes of %d faults were %v: they try too little", n, outcomes)
	}
}

// run does the action once, in the directory, and passes on how the lock stood before and after.
func run(t *testing.T, a action, root string, noLog bool, fault *faultfs.Fault, check func(before, after standing, ops []string, err error)) {
	ctx := context.Background()
	f := faultfs.New(vfs.OS())
	warned := 0
	s, err := Open(root, Options{fs: f, noWatch: true, LockTimeout: time.Second, Warn: func(error) { warned++ }})
	if err != nil {
		t.Fatal(err)
	}
	other := neighbour("x")
	touch := func(s *Store, name string) error { // a change, whichever
		return s.Update(ctx, name, func(snap lokt.Snapshot) lokt.Change { return lokt.Change{Lock: snap.Lock} })
	}
	token := uint64(0)
	before := standingOf(lokt.Lock{})
	if a.setup != nil {
		if err := s.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change {
			a.setup(&snap.Lock, snap.Now)
			if before = standingOf(snap.Lock); len(snap.Lock.Holders) > 0 {
				token = snap.Lock.Token
			}
			return lokt.Change{Lock: snap.Lock}
		}); err != nil {
			t.Fatal(err)
		}
	}
	for range a.rewritten {
		if err := s.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change {
			for i := range snap.Lock.Holders {
				snap.Lock.Holders[i].AcquiredAt = snap.Now
			}
			return lokt.Change{Lock: snap.Lock}
		}); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(root, "audit.log")
	if noLog {
		if err := os.MkdirAll(log, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f.Reset()
	if fault != nil {
		f.Inject(*fault)
	}
	err = a.do(ctx, s, lokt.NewManager(s))
	ops := f.Trace()
	f.Crash() // so that nothing of this store is done any more
	_ = s.Close()

	fresh := open(t, root, Options{noWatch: true, Warn: func(error) { warned++ }})
	seen, verr := fresh.View(ctx, "x")
	if verr != nil {
		t.Fatalf("%v: view: %v", fault, verr)
	}
	if noLog {
		if warned == 0 && err == nil {
			t.Errorf("%v: nobody was told of the audit log", fault)
		}
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
	}
	// Whoever changes any lock of the shard next finishes what was begun.
	if err := touch(fresh, other); err != nil {
		t.Fatalf("%v: the next change: %v", fault, err)
	}
	mended, verr := fresh.View(ctx, "x")
	if verr != nil {
		t.Fatal(verr)
	}
	if got, want := standingOf(mended.Lock), standingOf(seen.Lock); got.String() != want.String() {
		t.Errorf("%v: seen as %v, and mended to %v", fault, want, got)
	}
	if mended.Lock.Token < seen.Lock.Token || mended.Lock.Token < token {
		t.Errorf("%v: tokens fell from %d to %d to %d", fault, token, seen.Lock.Token, mended.Lock.Token)
	}
	if got := standingOf(mended.Lock); before.clone().replay(t, fresh).String() != got.String() {
		data, _ := os.ReadFile(log)
		t.Errorf("%v: the lock stands as %v, but the audit log says otherwise:\n%s", fault, got, data)
	}
	check(before, standingOf(mended.Lock), ops, err)
	again(t, fresh, max(mended.Lock.Token, token))
}

// again checks that the lock can be had, with a higher token.
func again(t *testing.T, s *Store, token uint64) {
	t.Helper()
	ctx := context.Background()
	m := lokt.NewManager(s)
	by := lokt.Owner{ID: "z"}
	if err := s.Update(ctx, "x", func(snap lokt.Snapshot) lokt.Change {
		return lokt.Change{Lock: lokt.Lock{Name: "x", Token: snap.Lock.Token}}
	}); err != nil {
		t.Fatalf("empty the lock: %v", err)
	}
	h, err := m.Acquire(ctx, lokt.Claim{Name: "x", Owner: by})
	if err != nil {
		t.Fatalf("acquire again: %v", err)
	}
	if h.Token <= token {
		t.Errorf("the next token is %d, after %d", h.Token, token)
	}
	for _, dir := range fileDirs {
		entries, err := os.ReadDir(filepath.Join(s.root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "x.json" && !strings.HasPrefix(e.Name(), ".x.json.tmp-") {
				t.Errorf("%s has %s", dir, e.Name())
			}
		}
	}
}

func TestAChangeThatWasNotMadeIsNotLogged(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	root := place(t)
	f := faultfs.New(vfs.OS())
	s, err := Open(root, Options{fs: f, noWatch: true})
	if err != nil {
		t.Fatal(err)
	}
	m := lokt.NewManager(s)
	for range 2 {
		f.Reset()
		if _, err := m.Acquire(ctx, lokt.Claim{Name: "x", LeaseID: "a", Owner: lokt.Owner{ID: "o"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	rename := 0
	for i, op := range f.Trace() {
		if strings.HasPrefix(op, "rename") {
			rename = i + 1
			break
		}
	}
	if rename == 0 {
		t.Fatalf("nothing was renamed: %v", f.Trace())
	}
	f.Reset()
	f.Inject(faultfs.Fault{Op: rename})
	if _, err := m.Acquire(ctx, lokt.Claim{Name: "x", LeaseID: "b", Owner: lokt.Owner{ID: "o"}}); !errors.Is(err, lokt.ErrUnavailable) {
		t.Fatalf("a crash: %v", err)
	}
	data, err := os.ReadFile(s.guardPath(shardOf("x")))
	if err != nil || !bytes.Contains(data, []byte(`\"lock_id\":\"b\"`)) {
		t.Fatalf("the journal does not announce the change (%v): this test shows nothing", err)
	}
	fresh := open(t, root, Options{})
	if err := fresh.Update(ctx, neighbour("x"), func(snap lokt.Snapshot) lokt.Change { return lokt.Change{Lock: snap.Lock} }); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(root, "audit.log")); err != nil || bytes.Contains(data, []byte(`"lock_id":"b"`)) {
		t.Errorf("the audit log (%v) tells of what never happened: %s", err, data)
	}
}

func TestLinesForALogThatCannotBeWrittenAreKeptInOrder(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	root := place(t)
	var warnings []error
	s := open(t, root, Options{Warn: func(err error) { warnings = append(warnings, err) }})
	log := filepath.Join(root, "audit.log")
	if err := os.MkdirAll(log, 0o700); err != nil {
		t.Fatal(err)
	}
	m := lokt.NewManager(s)
	names := []string{"x", neighbour("x")}
	want := []string{}
	for i := range 20 {
		name := names[i%2]
		if _, err := m.Acquire(ctx, lokt.Claim{Name: name, LeaseID: fmt.Sprint("lease-", i), Owner: lokt.Owner{ID: "a"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Acquire(ctx, lokt.Claim{Name: name, LeaseID: "none", Owner: lokt.Owner{ID: "b"}}); !errors.Is(err, lokt.ErrHeld) {
			t.Fatal(err)
		}
		if _, err := m.Release(ctx, lokt.Target{Name: name, LeaseID: fmt.Sprint("lease-", i)}); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprint("acquire lease-", i), "deny none", fmt.Sprint("release lease-", i))
	}
	if len(warnings) != len(want) {
		t.Errorf("%d warnings of %d changes", len(warnings), len(want))
	}
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Prune(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for e, err := range s.log.Read(ctx, audit.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Event+" "+e.LockID)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("logged:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestWhoeverKeepsTheLogIsToldOnceThatEntriesAreDropped(t *testing.T) {
	t.Parallel()
	root := place(t)
	dropped := 0
	s := open(t, root, Options{Warn: func(err error) {
		if errors.Is(err, errDropped) {
			dropped++
		}
	}})
	log := filepath.Join(root, "audit.log")
	note := func() {
		t.Helper()
		if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
			return lokt.Change{Lock: snap.Lock, Events: []lokt.Event{{
				Time: snap.Now, Type: lokt.EventDeny, Name: "x", Extra: map[string]string{lokt.ExtraReason: strings.Repeat("why ", maxCarry/16)},
			}}}
		}); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 2 {
		if err := os.MkdirAll(log, 0o700); err != nil { // in the place of the log
			t.Fatal(err)
		}
		for i := range 8 {
			if note(); dropped != n && i < 3 || dropped != n+1 && i > 3 {
				t.Fatalf("%d warnings after %d entries, %d times", dropped, i+1, n)
			}
		}
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
		note()
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
	}
}
