//go:build unix

package filestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/go-json-experiment/json"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/vfs"
)

// by returns a claim on "x" that needs no flushing.
func by(owner string) lokt.Claim {
	return lokt.Claim{
		Name: "x", LeaseID: "lease of " + owner, TTL: time.Hour, Attended: true, Owner: lokt.Owner{ID: owner, AnySession: true, Host: "elsewhere"},
	}
}

// put makes the content the file of "x" in one of the store's directories.
func put(t *testing.T, s *Store, dir string, content []byte) string {
	t.Helper()
	if err := s.makeDirs(); err != nil {
		t.Fatal(err)
	}
	path := s.path(dir, "x")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// holders returns who holds "x".
func holders(t *testing.T, s *Store) []string {
	t.Helper()
	snap, err := s.View(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, h := range snap.Live() {
		ids = append(ids, h.Owner.ID)
	}
	return ids
}

// recordOf returns the bytes of a record of "x" that is held by the claim.
func recordOf(t *testing.T, s *Store, c lokt.Claim) []byte {
	t.Helper()
	if _, err := lokt.NewManager(s).Acquire(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(s.path(dirLocks, "x"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Promises S-46, S-47.
func TestADamagedRecordNeverLetsTwoIn(t *testing.T) {
	t.Parallel()
	s := open(t, memoryPlace(t), Options{noWatch: true})
	m := lokt.NewManager(s)
	good := recordOf(t, s, by("a"))
	outcomes := map[string]int{}
	token := uint64(0)
	try := func(what string, data []byte) {
		put(t, s, dirLocks, data)
		snap, err := s.View(t.Context(), "x")
		read := "decoded"
		switch {
		case errors.Is(err, lokt.ErrDamaged):
			read = "unreadable"
		case err != nil:
			t.Fatalf("%s: %v", what, err)
		case snap.Lock.Corrupt != "":
			read = "corrupt"
		case len(snap.Lock.Holders) != 1:
			t.Fatalf("%s: held by %+v", what, snap.Lock.Holders)
		}
		token = max(token, snap.Lock.Token)
		in := 0
		for _, owner := range []string{"second", "third"} {
			h, err := m.Acquire(t.Context(), by(owner))
			switch {
			case err == nil:
				if in++; h.Token <= token {
					t.Fatalf("%s: token %d after %d", what, h.Token, token)
				}
				token = h.Token
			case errors.Is(err, lokt.ErrHeld):
			case errors.Is(err, lokt.ErrDamaged) && read == "unreadable":
				if now, err := os.ReadFile(s.path(dirLocks, "x")); err != nil || string(now) != string(data) {
					t.Fatalf("%s: an unreadable record was changed (%v) to %s", what, err, now)
				}
			default:
				t.Fatalf("%s, %s: %v", what, read, err)
			}
		}
		switch {
		case in > 1:
			t.Fatalf("%s: %d were let in", what, in)
		case read == "corrupt" && in != 1:
			t.Fatalf("%s: nobody was let in", what)
		case read == "unreadable" && in != 0:
			t.Fatalf("%s: somebody was let in", what)
		}
		outcomes[read+fmt.Sprint(in)]++
		if read != "unreadable" {
			if got := holders(t, s); len(got) != 1 {
				t.Fatalf("%s: held by %v", what, got)
			}
		}
	}
	for n := 1; n < len(good); n++ { // none at all is another matter
		try(fmt.Sprintf("the first %d bytes", n), good[:n])
	}
	flips := []byte{0x02, 0x20, 0x01, 0x80}[:max(2, often(4))]
	for i := range good {
		for _, bits := range flips {
			bad := []byte(string(good))
			bad[i] ^= bits
			try(fmt.Sprintf("byte %d ^ %#x: %s", i, bits, bad), bad)
		}
	}
	for _, must := range []string{"decoded0", "corrupt1", "unreadable0"} {
		if outcomes[must] == 0 {
			t.Errorf("no damage was %s: %v", must, outcomes)
		}
	}
}

func TestAnEmptyRecordIsHeldForAMoment(t *testing.T) {
	t.Parallel()
	for age, held := range map[time.Duration]bool{0: true, time.Second: true, 5 * time.Second: false, time.Hour: false, -time.Hour: false} {
		s := open(t, place(t), Options{})
		if err := s.makeDirs(); err != nil {
			t.Fatal(err)
		}
		path := put(t, s, dirLocks, nil)
		written := time.Now().Add(-age)
		if err := os.Chtimes(path, written, written); err != nil {
			t.Fatal(err)
		}
		_, err := lokt.NewManager(s).Acquire(t.Context(), by("a"))
		if held && time.Since(written) >= emptyAge {
			continue // this machine is too slow to tell
		}
		if held != errors.Is(err, lokt.ErrHeld) || !held && err != nil {
			t.Errorf("an empty record of age %v: %v", age, err)
		}
		if data, err := os.ReadFile(path); err != nil || (len(data) == 0) != held {
			t.Errorf("an empty record of age %v became %q, %v", age, data, err)
		}
	}
}

func TestWhoWaitsForAnEmptyRecordIsLetIn(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{})
	put(t, s, dirLocks, nil)
	c := by("a")
	c.Wait = time.Minute
	begun := time.Now()
	if _, err := lokt.NewManager(s).Acquire(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(begun); waited < emptyAge-100*time.Millisecond {
		t.Errorf("let in after %v", waited)
	}
}

// Promises S-47, S-49.
func TestARecordOfANewerVersionIsRefusedUntouched(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{dirLocks, dirQueue, dirFreezes} {
		t.Run(dir, func(t *testing.T) {
			s := open(t, place(t), Options{})
			m := lokt.NewManager(s)
			data := []byte(`{"version":2,"name":"x","owner":["a","list"],"holders":{"7":true}}`)
			path := put(t, s, dir, data)
			ctx := t.Context()
			waiting := by("w")
			waiting.Wait = time.Millisecond
			refused := func(what string, err error) {
				t.Helper()
				if dir == dirFreezes && errors.Is(err, lokt.ErrFrozen) || dir != dirFreezes && errors.Is(err, lokt.ErrDamaged) {
					if !strings.Contains(err.Error(), "newer version") {
						t.Errorf("%s: %v", what, err)
					}
					return
				}
				t.Errorf("%s: %v", what, err)
			}
			_, err := m.Acquire(ctx, by("a"))
			refused("acquire", err)
			_, err = m.Acquire(ctx, waiting)
			refused("wait", err)
			_, err = m.Freeze(ctx, "x", lokt.Freeze{Owner: lokt.Owner{ID: "a"}})
			refused("freeze", err)
			_, err = m.Unfreeze(ctx, lokt.Target{Name: "x", Owner: lokt.Owner{ID: "a"}})
			refused("unfreeze", err)
			if dir != dirFreezes {
				_, err = m.Renew(ctx, lokt.Renewal{Name: "x", LeaseID: "1"})
				refused("renew", err)
				_, err = m.Release(ctx, lokt.Target{Name: "x", Force: true})
				refused("release by force", err)
				_, err = m.Prune(ctx, "x")
				refused("prune", err)
				_, err = m.Get(ctx, "x")
				refused("get", err)
				n := 0
				for snap, err := range m.List(ctx, lokt.Filter{}) {
					n++
					refused("list", err)
					if snap.Lock.Name != "x" {
						t.Errorf("the error is about %q", snap.Lock.Name)
					}
				}
				if n != 1 {
					t.Errorf("%d locks are listed", n)
				}
			}
			if now, err := os.ReadFile(path); err != nil || string(now) != string(data) {
				t.Fatalf("it was changed (%v) to %s", err, now)
			}
			discard(t, s, dir, data)
		})
	}
}

// discard moves the file of "x" away, which is then to be found, and checks that the lock can be had.
func discard(t *testing.T, s *Store, dir string, data []byte) {
	t.Helper()
	moved, err := s.Discard(t.Context(), "x", lokt.Owner{ID: "operator"})
	if err != nil || len(moved) != 1 || moved[0].Path != s.path(dir, "x") || moved[0].Problem == "" {
		t.Fatalf("discarded %+v, %v", moved, err)
	}
	if again, err := s.Discard(t.Context(), "x", lokt.Owner{ID: "operator"}); err != nil || len(again) != 0 {
		t.Errorf("discarded %+v, %v once more", again, err)
	}
	kept, err := filepath.Glob(filepath.Join(s.root, dirDamaged, "*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%v: kept %q", err, kept)
	}
	if data != nil {
		if have, err := os.ReadFile(kept[0]); err != nil || string(have) != string(data) {
			t.Errorf("kept %q, %v", have, err)
		}
	}
	if _, err := lokt.NewManager(s).Acquire(t.Context(), by("z")); err != nil {
		t.Errorf("then: %v", err)
	}
}

func TestWhatCanBeReadIsNotDiscarded(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{})
	want := recordOf(t, s, by("a"))
	moved, err := s.Discard(t.Context(), "x", lokt.Owner{ID: "operator"})
	if err != nil || len(moved) != 0 {
		t.Errorf("discarded %+v, %v", moved, err)
	}
	if got, err := os.ReadFile(s.path(dirLocks, "x")); err != nil || string(got) != string(want) {
		t.Errorf("the record became %s, %v", got, err)
	}
	if _, err := s.Discard(t.Context(), "../x", lokt.Owner{ID: "operator"}); !errors.Is(err, lokt.ErrInvalid) {
		t.Errorf("a name that is none: %v", err)
	}
}

// Promise S-49.
func TestUnknownKeysStayWithAHoldAcrossRenewals(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{})
	m := lokt.NewManager(s)
	data := recordOf(t, s, by("a"))
	path := put(t, s, dirLocks, append([]byte(`{"x_ticket":[{"id":7}],`), data[1:]...))
	for range 3 {
		if _, err := m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: "lease of a"}); err != nil {
			t.Fatal(err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !strings.Contains(string(now), `"x_ticket":[{"id":7}]`) || !strings.Contains(string(now), `"renewals":3`) {
		t.Errorf("renewed to %s, %v", now, err)
	}
	if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"}); err != nil {
		t.Fatal(err)
	}
	if now := recordOf(t, s, by("b")); strings.Contains(string(now), "x_ticket") {
		t.Errorf("the next holder has them: %s", now)
	}
}

func TestRecordsOfOtherProgramsCount(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	at := func(d time.Duration) string { return now.Add(d).Format(time.RFC3339Nano) }
	const alive, dead = 1, 0x7ffffff0
	record := func(format string, args ...any) string {
		return `{"name":"x","owner":"other",` + fmt.Sprintf(format, args...) + `}`
	}
	host, _ := os.Hostname()
	for _, test := range []struct {
		what, record string
		held         bool
	}{
		{"no version, no expiry", record(`"host":"elsewhere","pid":7,"acquired_ts":%q`, at(-time.Hour)), true},
		{"version 0", record(`"version":0,"host":"elsewhere","pid":7,"acquired_ts":%q`, at(-time.Hour)), true},
		{"ttl_sec without expires_at, not over", record(`"host":"elsewhere","pid":7,"acquired_ts":%q,"ttl_sec":120`, at(-time.Minute)), true},
		{"ttl_sec without expires_at, over", record(`"host":"elsewhere","pid":7,"acquired_ts":%q,"ttl_sec":50`, at(-time.Minute)), false},
		{"expires_at goes before ttl_sec", record(`"host":"elsewhere","pid":7,"acquired_ts":%q,"ttl_sec":50,"expires_at":%q`, at(-time.Minute), at(time.Minute)), true},
		{"expires_at over", record(`"host":"elsewhere","pid":7,"acquired_ts":%q,"expires_at":%q`, at(-time.Minute), at(-time.Second)), false},
		{"a process of this host that lives", record(`"host":%q,"pid":%d,"acquired_ts":%q`, host, alive, at(-time.Hour)), true},
		{"a process of this host that is gone", record(`"host":%q,"pid":%d,"acquired_ts":%q`, host, dead, at(-time.Hour)), false},
		{"a process of another host that is gone here", record(`"host":"elsewhere","pid":%d,"acquired_ts":%q`, dead, at(-time.Hour)), true},
		{"a process ID that was used again", record(`"host":%q,"pid":%d,"pid_start_ns":1,"acquired_ts":%q`, host, os.Getpid(), at(-time.Hour)), false},
		{"a lease, whose process does not matter", record(`"kind":"lease","host":%q,"pid":%d,"acquired_ts":%q`, host, dead, at(-time.Hour)), true},
		{"no process", record(`"host":%q,"acquired_ts":%q`, host, at(-time.Hour)), true},
	} {
		s := open(t, place(t), Options{})
		put(t, s, dirLocks, []byte(test.record))
		_, err := lokt.NewManager(s).Acquire(t.Context(), by("a"))
		if test.held != errors.Is(err, lokt.ErrHeld) || !test.held && err != nil {
			t.Errorf("%s: %v", test.what, err)
		}
	}
}

func TestAnEditedExpiryIsBelieved(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		to   time.Duration
		held bool
	}{"sooner": {-time.Second, false}, "later": {2 * time.Hour, true}} {
		s := open(t, place(t), Options{})
		m := lokt.NewManager(s)
		data := recordOf(t, s, by("a"))
		snap, err := s.View(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		was := snap.Lock.Holders[0].ExpiresAt.Format(time.RFC3339Nano)
		is := time.Now().Add(test.to).UTC()
		edited := strings.Replace(string(data), `"expires_at":"`+was+`"`, `"expires_at":"`+is.Format(time.RFC3339Nano)+`"`, 1)
		if edited == string(data) {
			t.Fatalf("%s is not in %s", was, data)
		}
		put(t, s, dirLocks, []byte(edited))
		if snap, err = s.View(t.Context(), "x"); err != nil || !snap.Lock.Holders[0].ExpiresAt.Equal(is) {
			t.Errorf("%s: expires at %v, %v, not at %v", what, snap.Lock.Holders[0].ExpiresAt, err, is)
		}
		if _, err := m.Acquire(t.Context(), by("b")); test.held != errors.Is(err, lokt.ErrHeld) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestARecordAboutAnotherLockKeepsEverybodyOut(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{})
	data := recordOf(t, s, by("a"))
	bad := []byte(strings.ReplaceAll(string(data), `"name":"x"`, `"name":"X"`))
	put(t, s, dirLocks, bad)
	if _, err := lokt.NewManager(s).Acquire(t.Context(), by("b")); !errors.Is(err, lokt.ErrDamaged) {
		t.Errorf("acquire: %v", err)
	}
	discard(t, s, dirLocks, bad)
}

// foldFS is a file system that does not tell upper from lower case below the root.
type foldFS struct {
	vfs.FS
	root string
}

func (f foldFS) fold(name string) string {
	if rest, below := strings.CutPrefix(name, f.root); below {
		return f.root + strings.ToLower(rest)
	}
	return name
}

func (f foldFS) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	return f.FS.OpenFile(f.fold(name), flag, perm)
}
func (f foldFS) Rename(a, b string) error               { return f.FS.Rename(f.fold(a), f.fold(b)) }
func (f foldFS) Remove(name string) error               { return f.FS.Remove(f.fold(name)) }
func (f foldFS) Lstat(name string) (fs.FileInfo, error) { return f.FS.Lstat(f.fold(name)) }

func TestNamesThatAFileSystemTakesForOneExcludeEachOther(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		root := memoryPlace(t)
		names := []string{"build", "Build", "BUILD", "buiLd"}
		granted := make(chan string, len(names))
		failed := make(chan error, len(names))
		start := make(chan struct{})
		for _, name := range names {
			s := open(t, root, Options{fs: foldFS{vfs.OS(), root}})
			go func() {
				<-start
				c := by(name)
				c.Name = name
				if _, err := lokt.NewManager(s).Acquire(context.Background(), c); err != nil {
					failed <- err
				} else {
					granted <- name
				}
			}()
		}
		close(start)
		var in []string
		for range names {
			select {
			case name := <-granted:
				in = append(in, name)
			case err := <-failed:
				if !errors.Is(err, lokt.ErrInvalid) {
					t.Fatalf("round %d: %v", round, err)
				}
			}
		}
		if len(in) != 1 {
			t.Fatalf("round %d: %v of %v were let in", round, in, names)
		}
		s := open(t, root, Options{fs: foldFS{vfs.OS(), root}})
		for _, name := range names { // an operator takes the other's record for one that cannot be read
			if moved, err := s.Discard(t.Context(), name, lokt.Owner{ID: "op"}); len(moved) > 0 || name != in[0] && !errors.Is(err, lokt.ErrInvalid) {
				t.Errorf("the record of %s was moved away as that of %s: %v, error %v", in[0], name, moved, err)
			}
		}
		if snap, err := s.View(t.Context(), in[0]); err != nil || len(snap.Live()) != 1 {
			t.Errorf("%s is on record as %+v, error %v", in[0], snap.Lock, err)
		}
	}
}

// A thing is something that does not belong where a file of the store does.
type thing struct {
	name string
	make func(path, outside string) error
}

func things() []thing {
	return []thing{
		{"a link to a file elsewhere", func(path, outside string) error { return os.Symlink(outside, path) }},
		{"a link to nothing", func(path, outside string) error { return os.Symlink(outside+".none", path) }},
		{"a link to itself", func(path, _ string) error { return os.Symlink(path, path) }},
		{"an empty directory", func(path, _ string) error { return os.Mkdir(path, 0o700) }},
		{"a directory", func(path, _ string) error { return os.MkdirAll(filepath.Join(path, "full"), 0o700) }},
		{"a pipe", func(path, _ string) error { return unix.Mkfifo(path, 0o600) }},
		{"a socket", func(path, _ string) error {
			if len(path) > 100 { // too long for an address
				return unix.Mknod(path, unix.S_IFSOCK|0o600, 0)
			}
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		}},
	}
}

// outside makes a file that nobody has any business with, and returns a check that it is as it was.
func outside(t *testing.T) (path string, check func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "outside")
	const content = `{"version":1,"name":"x","owner":"outside","host":"elsewhere","pid":1,"acquired_ts":"2026-01-01T00:00:00Z"}`
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
	was, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, func() {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil || string(data) != content {
			t.Errorf("a file elsewhere became %q, %v", data, err)
		}
		if is, err := os.Stat(path); err != nil || is.Mode() != was.Mode() || !is.ModTime().Equal(was.ModTime()) || !os.SameFile(is, was) {
			t.Errorf("a file elsewhere became %v, %v", is, err)
		}
		if _, err := os.Lstat(path + ".none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a link was followed: %v", err)
		}
	}
}

// Promises S-47, S-48.
func TestWhatIsNoFileIsNeitherFollowedNorWaitedFor(t *testing.T) {
	t.Parallel()
	for _, thing := range things() {
		t.Run(thing.name, func(t *testing.T) {
			t.Parallel()
			elsewhere, check := outside(t)
			t.Run("as a lock", func(t *testing.T) {
				s := open(t, place(t), Options{})
				m := lokt.NewManager(s)
				if err := errors.Join(s.makeDirs(), thing.make(s.path(dirLocks, "x"), elsewhere)); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Acquire(t.Context(), by("a")); !errors.Is(err, lokt.ErrDamaged) || !strings.Contains(err.Error(), s.path(dirLocks, "x")) {
					t.Errorf("acquire: %v", err)
				}
				if _, err := m.Get(t.Context(), "x"); !errors.Is(err, lokt.ErrDamaged) {
					t.Errorf("get: %v", err)
				}
				discard(t, s, dirLocks, nil)
			})
			t.Run("as a queue", func(t *testing.T) {
				s := open(t, place(t), Options{})
				m := lokt.NewManager(s)
				if err := errors.Join(s.makeDirs(), thing.make(s.path(dirQueue, "x"), elsewhere)); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Acquire(t.Context(), by("a")); err != nil {
					t.Errorf("acquire: %v", err)
				}
				handOver(t, m)
			})
			t.Run("as a freeze", func(t *testing.T) {
				s := open(t, place(t), Options{})
				m := lokt.NewManager(s)
				if err := errors.Join(s.makeDirs(), thing.make(s.path(dirFreezes, "x"), elsewhere)); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Acquire(t.Context(), by("a")); !errors.Is(err, lokt.ErrFrozen) {
					t.Errorf("acquire: %v", err)
				}
				if _, err := m.Unfreeze(t.Context(), lokt.Target{Name: "x", Owner: lokt.Owner{ID: "a"}}); !errors.Is(err, lokt.ErrFrozen) {
					t.Errorf("unfreeze: %v", err)
				}
				if _, err := m.Unfreeze(t.Context(), lokt.Target{Name: "x", Owner: lokt.Owner{ID: "a"}, Force: true}); err != nil {
					t.Errorf("unfreeze by force: %v", err)
				}
				if _, err := m.Acquire(t.Context(), by("a")); err != nil {
					t.Errorf("then: %v", err)
				}
			})
			t.Run("as a guard file", func(t *testing.T) {
				s := open(t, place(t), Options{LockTimeout: time.Second})
				m := lokt.NewManager(s)
				path := s.guardPath(shardOf("x"))
				if err := errors.Join(s.makeDirs(), thing.make(path, elsewhere)); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Acquire(t.Context(), by("a")); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), path) {
					t.Errorf("acquire: %v", err)
				}
				if snap, err := m.Get(t.Context(), "x"); err != nil || !snap.Lock.Free() {
					t.Errorf("get: %+v, %v", snap, err)
				}
			})
			t.Run("as the audit log", func(t *testing.T) {
				warned := ""
				s := open(t, place(t), Options{Warn: func(err error) { warned += err.Error() }})
				m := lokt.NewManager(s)
				path := filepath.Join(s.root, "audit.log")
				if err := errors.Join(s.makeDirs(), thing.make(path, elsewhere)); err != nil {
					t.Fatal(err)
				}
				if _, err := m.Acquire(t.Context(), by("a")); err != nil {
					t.Errorf("acquire: %v", err)
				}
				if _, err := m.Acquire(t.Context(), by("b")); !errors.Is(err, lokt.ErrHeld) {
					t.Errorf("acquire what is held: %v", err)
				}
				if !strings.Contains(warned, path) {
					t.Errorf("nobody was told: %q", warned)
				}
			})
			if process.KernelLiveness {
				t.Run("as a liveness file", func(t *testing.T) {
					s := open(t, place(t), Options{})
					if err := s.makeDirs(); err != nil {
						t.Fatal(err)
					}
					for i := range liveFiles {
						if err := thing.make(filepath.Join(s.root, dirLive, fmt.Sprintf("%x", i)), elsewhere); err != nil {
							t.Fatal(err)
						}
					}
					if p, err := s.Self(); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), dirLive) {
						t.Errorf("self: %+v, %v", p, err)
					}
					p := process.Self()
					p.Liveness = "7:1234:5678"
					if state := s.judge(p, s.host); state != process.Alive {
						t.Errorf("who lives is %v", state)
					}
				})
			}
			check()
		})
	}
}

// handOver lets somebody wait for the lock that "a" holds, and have it.
func handOver(t *testing.T, m *lokt.Manager) {
	t.Helper()
	c := by("waiter")
	c.Wait = time.Minute
	done := make(chan error, 1)
	go func() {
		_, err := m.Acquire(context.Background(), c)
		done <- err
	}()
	for {
		snap, err := m.Get(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if len(snap.Lock.Queue) == 1 {
			break
		}
		select {
		case err := <-done:
			t.Fatalf("did not wait: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("who waited: %v", err)
	}
}

func TestAQueueThatMakesNoSenseKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "garbage", `{"name":"y"}`, `{"name":"x","waiters":[{}]}`, `{"name":"x","waiters":[{"owner":"o","lock_id":"1"`} {
		s := open(t, place(t), Options{})
		m := lokt.NewManager(s)
		put(t, s, dirQueue, []byte(content))
		if _, err := m.Acquire(t.Context(), by("a")); err != nil {
			t.Errorf("%q: %v", content, err)
		}
		handOver(t, m)
	}
}

// Promise S-47.
func TestAFreezeThatMakesNoSenseKeepsEverybodyOut(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "garbage", `{"name":"y","owner":"o"}`, `{"version":7}`, `{"name":"x"}`} {
		for _, how := range []string{"unfreeze", "discard"} {
			s := open(t, place(t), Options{})
			m := lokt.NewManager(s)
			path := put(t, s, dirFreezes, []byte(content))
			c := by("a")
			for _, c.Wait = range []time.Duration{0, 5 * time.Millisecond} {
				if _, err := m.Acquire(t.Context(), c); !errors.Is(err, lokt.ErrFrozen) {
					t.Errorf("%q: acquire: %v", content, err)
				}
			}
			if _, err := m.Prune(t.Context(), "x"); err != nil {
				t.Errorf("%q: prune: %v", content, err)
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != content {
				t.Errorf("%q became %q, %v", content, data, err)
			}
			if how == "discard" {
				discard(t, s, dirFreezes, []byte(content))
				continue
			}
			if _, err := m.Unfreeze(t.Context(), lokt.Target{Name: "x", Owner: lokt.Owner{ID: "op"}, Force: true}); err != nil {
				t.Errorf("%q: unfreeze: %v", content, err)
			}
			if _, err := m.Acquire(t.Context(), by("a")); err != nil {
				t.Errorf("%q: then: %v", content, err)
			}
		}
	}
}

// Promise S-48.
func TestDirectoriesThatAreLinksAreRefused(t *testing.T) {
	t.Parallel()
	elsewhere := t.TempDir()
	for _, dir := range subdirs {
		root := place(t)
		if err := errors.Join(os.MkdirAll(root, 0o700), os.Symlink(elsewhere, filepath.Join(root, dir))); err != nil {
			t.Fatal(err)
		}
		if s, err := Open(root, Options{}); err == nil || !strings.Contains(err.Error(), filepath.Join(root, dir)) {
			t.Errorf("%s: opened %v, %v", dir, s, err)
		}
	}
	// One that becomes a link while the store makes the others.
	root := place(t)
	s := open(t, root, Options{})
	if err := errors.Join(os.MkdirAll(root, 0o700), os.Symlink(elsewhere, filepath.Join(root, dirLocks))); err != nil {
		t.Fatal(err)
	}
	if _, err := lokt.NewManager(s).Acquire(t.Context(), by("a")); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("acquire: %v", err)
	}
	if left, err := os.ReadDir(elsewhere); err != nil || len(left) != 0 {
		t.Errorf("elsewhere there are %v, %v", left, err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nowhere := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(elsewhere, "none"), nowhere); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{file, filepath.Join(file, "below"), nowhere} {
		if _, err := Open(root, Options{}); err == nil || !strings.Contains(err.Error(), file) && !strings.Contains(err.Error(), nowhere) {
			t.Errorf("opened %s: %v", root, err)
		}
	}
}

// Promises S-4, S-5.
func TestTokensRiseThoughTheDirectoryIsDeletedAgainAndAgain(t *testing.T) {
	t.Parallel()
	root := memoryPlace(t)
	s := open(t, root, Options{})
	m := lokt.NewManager(s)
	token, deleted := uint64(0), 0
	for round := range 300 {
		h, err := m.Acquire(t.Context(), by("a"))
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if h.Token <= token {
			t.Fatalf("round %d: token %d after %d", round, h.Token, token)
		}
		token = h.Token
		if round%3 == 0 {
			deleted++
			if err := os.RemoveAll(root); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	// An older copy of the directory does not bring back older tokens either.
	old := filepath.Join(t.TempDir(), "old")
	if err := os.CopyFS(old, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		h, err := m.Acquire(t.Context(), by("a"))
		if err != nil {
			t.Fatal(err)
		}
		token = h.Token
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.RemoveAll(root), os.CopyFS(root, os.DirFS(old))); err != nil {
		t.Fatal(err)
	}
	if h, err := m.Acquire(t.Context(), by("a")); err != nil || h.Token <= token {
		t.Errorf("from a copy: token %d after %d, %v", h.Token, token, err)
	}
}

func TestTheDirectoryMayBeDeletedAtAnyMoment(t *testing.T) {
	t.Parallel()
	root := memoryPlace(t)
	s := open(t, root, Options{})
	m := lokt.NewManager(s)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(500 * time.Microsecond):
				_ = os.RemoveAll(root) // fails if something is made meanwhile
			}
		}
	}()
	token, granted := uint64(0), 0
	for begun := time.Now(); granted < 300 && time.Since(begun) < 10*time.Second; {
		h, err := m.Acquire(t.Context(), by("a"))
		switch {
		case err == nil:
			if granted++; h.Token <= token {
				t.Fatalf("token %d after %d", h.Token, token)
			}
			token = h.Token
			switch _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); {
			case errors.Is(err, lokt.ErrUnavailable):
				token-- // it may hold the lock as before
			case err != nil && !errors.Is(err, lokt.ErrNotFound):
				t.Fatal(err)
			}
		case !errors.Is(err, lokt.ErrUnavailable):
			t.Fatal(err)
		}
	}
	close(stop)
	<-stopped
	if h, err := m.Acquire(t.Context(), by("a")); err != nil || h.Token <= token || granted == 0 {
		t.Errorf("after %d grants: token %d after %d, %v", granted, h.Token, token, err)
	}
}

func TestOneDirectoryThatIsDeletedIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, dir := range subdirs {
		s := open(t, place(t), Options{})
		m := lokt.NewManager(s)
		if err := s.makeDirs(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(s.root, dir)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Self(); err != nil {
			t.Errorf("without %s: self: %v", dir, err)
		}
		if _, err := m.Acquire(t.Context(), by("a")); err != nil {
			t.Errorf("without %s: %v", dir, err)
		}
		if err := os.RemoveAll(filepath.Join(s.root, dir)); err != nil {
			t.Fatal(err)
		}
		if dir != dirLocks { // whose hold went with it
			handOver(t, m)
		}
		if _, err := m.Freeze(t.Context(), "x", lokt.Freeze{Owner: lokt.Owner{ID: "a"}}); err != nil {
			t.Errorf("without %s: freeze: %v", dir, err)
		}
	}
}

// Promises S-4, S-5.
func TestADamagedGuardFileNeitherBlocksNorRepeatsATokens(t *testing.T) {
	t.Parallel()
	s := open(t, memoryPlace(t), Options{})
	m := lokt.NewManager(s)
	token := uint64(0)
	path := s.guardPath(shardOf("x"))
	turn := func(what string) {
		t.Helper()
		if _, err := s.View(t.Context(), "x"); err != nil {
			t.Fatalf("%s: view: %v", what, err)
		}
		h, err := m.Acquire(t.Context(), by("a"))
		if err != nil || h.Token <= token {
			t.Fatalf("%s: token %d after %d, %v", what, h.Token, token, err)
		}
		token = h.Token
		if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	turn("at first")
	for n := range headerSize + 4*journalHead {
		if err := os.Truncate(path, int64(n)); err != nil {
			t.Fatal(err)
		}
		turn(fmt.Sprintf("cut to %d bytes", n))
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	used := len(strings.TrimRight(string(good[:headerSize]), "\x00\n "))
	overwrite := func(data []byte) {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(data, 0)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range good[:headerSize+2*journalHead] {
		if i > used+2 && i < headerSize-2 {
			continue
		}
		if good, err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
		good[i] ^= 0x11
		overwrite(good)
		turn(fmt.Sprintf("byte %d flipped", i))
	}
	for _, garbage := range []string{strings.Repeat("\xff", 5000), strings.Repeat("lokt-guard-1 ", 400), strings.Repeat("\x00", 5000)} {
		overwrite([]byte(garbage))
		turn(fmt.Sprintf("%.20q", garbage))
	}
}

func TestJournalEntriesOfAnyShapeAreReadOrIgnored(t *testing.T) {
	t.Parallel()
	e := &entry{
		Name: "x", Carry: "1\n", Lines: "2\n3\n",
		Files: []entryFile{
			{File: 0, Before: 1<<64 - 1, Redo: true, Data: []byte("new"), How: durableDir}, {File: 1, Before: 9, Redo: true, Gone: true}, {File: 2, Before: 1},
		},
	}
	data, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	back := decodeEntry(data)
	if back == nil || fmt.Sprintf("%+v", *back) != fmt.Sprintf("%+v", *e) {
		t.Fatalf("came back as %+v", back)
	}
	for n := range len(data) {
		decodeEntry(data[:n])
		bad := []byte(string(data))
		bad[n] ^= 0xff
		decodeEntry(bad)
	}
}

func TestCheckFindsDamageAndClearsWhatCrashesLeave(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{noWatch: true})
	m := lokt.NewManager(s)
	named := func(name string) string { return s.path(dirLocks, name) }
	if err := s.makeDirs(); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		named("corrupt"): "garbage", named("newer"): `{"version":9}`, s.path(dirFreezes, "freeze"): "garbage",
		filepath.Join(s.root, dirLocks, ".x.json.tmp-0123456789abc"): "half", filepath.Join(s.root, dirQueue, ".x.json.tmp-00000000000zz"): "",
		filepath.Join(s.root, dirLocks, ".y.json.tmp-0123456789abc"): "just being written",
		s.wakePath("gone"): "", s.wakePath("lease of waiter"): "", filepath.Join(s.root, dirLocks, "README"): "not ours",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(content, "just") {
			if err := os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := m.Acquire(t.Context(), by("a")); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
		snap.Lock.Queue = []*lokt.Waiter{{Claim: by("waiter"), Since: snap.Now, Until: snap.Now.Add(time.Hour)}}
		return lokt.Change{Lock: snap.Lock}
	}); err != nil {
		t.Fatal(err)
	}
	damaged := map[string]string{"corrupt": named("corrupt"), "newer": named("newer"), "freeze": s.path(dirFreezes, "freeze")}
	check := func(fix bool, leftovers, removed int) {
		t.Helper()
		found, fixed, err := s.Check(t.Context(), fix)
		if err != nil || fixed != removed {
			t.Errorf("removed %d, %v", fixed, err)
		}
		names, left := map[string]string{}, 0
		for _, d := range found {
			if d.Problem == "" {
				t.Errorf("%+v says nothing", d)
			}
			if d.Name == "" {
				left++
			} else {
				names[d.Name] = d.Path
			}
		}
		if !maps.Equal(names, damaged) || left != leftovers {
			t.Errorf("damaged: %v, and %d leftovers", names, left)
		}
	}
	check(false, 3, 0)
	check(true, 0, 3)
	check(true, 0, 0)
	if _, err := os.Stat(s.wakePath("lease of waiter")); err != nil {
		t.Errorf("who waits can no longer be woken: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(s.root, dirLocks, "README")); err != nil || string(data) != "not ours" {
		t.Errorf("what is not ours became %q, %v", data, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Check(ctx, true); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzDecodeEntry(f *testing.F) {
	seed, err := json.Marshal(&entry{Name: "x", Lines: "1\n", Files: []entryFile{{File: 1, Before: 9, Redo: true, Gone: true}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		e := decodeEntry(data)
		if e == nil {
			return
		}
		again, err := json.Marshal(e)
		if back := decodeEntry(again); err != nil || back == nil || fmt.Sprintf("%+v", *back) != fmt.Sprintf("%+v", *e) {
			t.Errorf("%+v became %+v", e, back)
		}
	})
}

// Promise S-33. Records as other programs write them, of a process that is known to be dead.
func TestARecordOfADeadProcessKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	s := open(t, memoryPlace(t), Options{})
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	self := process.Self()
	for what, how := range map[string]string{
		"a guard":                 fmt.Sprintf(`"kind":"guard","pid":%d,"boot_id":%q`, dead.Process.Pid, self.Boot),
		"a guard without a boot":  fmt.Sprintf(`"kind":"guard","pid":%d`, dead.Process.Pid),
		"a guard of another boot": fmt.Sprintf(`"kind":"guard","pid":%d,"boot_id":"another"`, self.PID),
		"a bound lease":           fmt.Sprintf(`"kind":"lease","pid_bound":true,"pid":%d`, dead.Process.Pid),
		"no kind":                 fmt.Sprintf(`"pid":%d`, dead.Process.Pid),
	} {
		put(t, s, dirLocks, fmt.Appendf(nil, `{"version":1,"name":"x","lock_id":"1","owner":"a","host":%q,"acquired_ts":"2026-01-01T00:00:00Z",%s}`, s.host, how))
		snap, err := s.View(t.Context(), "x")
		if err != nil || len(snap.Lock.Holders) != 1 || !snap.Dead["1"] {
			t.Errorf("%s: %v, dead %v", what, err, snap.Dead)
		}
		if _, err := lokt.NewManager(s).Acquire(t.Context(), by("b")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	put(t, s, dirLocks, fmt.Appendf(nil, `{"version":1,"name":"x","lock_id":"1","owner":"a","host":%q,"acquired_ts":"2026-01-01T00:00:00Z","kind":"lease","pid":%d}`, s.host, dead.Process.Pid))
	if snap, err := s.View(t.Context(), "x"); err != nil || snap.Dead["1"] {
		t.Errorf("a lease that outlives its process: %v, dead %v", err, snap.Dead)
	}
}

// Promise S-48.
func TestWhatIsInTheWayOfAKernelLockIsNamed(t *testing.T) {
	t.Parallel()
	root := place(t)
	s := open(t, root, Options{})
	if err := s.makeDirs(); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{s.guardPath(shardOf("x")): true, filepath.Join(root, dirLive, "3"): true}
	for path := range want {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := lokt.NewManager(s).Acquire(t.Context(), by("a")); err == nil {
		t.Error("it is not in the way")
	}
	found, fixed, err := s.Check(t.Context(), true)
	if err != nil || fixed != 0 || len(found) != len(want) {
		t.Errorf("found %+v, fixed %d, %v", found, fixed, err)
	}
	for _, d := range found {
		if !want[d.Path] || !d.Stays || !strings.Contains(d.Problem, "not a regular file") {
			t.Errorf("found %+v", d)
		}
	}
}

// What the store writes in place is written nowhere else.
//
// Promise S-48.
func TestAFileWithASecondNameIsNotWritten(t *testing.T) {
	t.Parallel()
	for _, file := range []string{filepath.Join(dirGuards, "x"), filepath.Join(dirLive, "x"), "audit.log"} {
		root := memoryPlace(t)
		s := open(t, root, Options{})
		if err := s.makeDirs(); err != nil {
			t.Fatal(err)
		}
		victim := filepath.Join(filepath.Dir(root), "victim of "+filepath.Base(file))
		if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(victim)
		path := filepath.Join(root, file)
		var paths []string
		switch filepath.Dir(file) {
		case dirGuards:
			paths = []string{s.guardPath(shardOf("x"))}
		case dirLive:
			for i := range liveFiles {
				paths = append(paths, filepath.Join(root, dirLive, fmt.Sprintf("%x", i)))
			}
		default:
			paths = []string{path}
		}
		for _, p := range paths {
			if err := os.Link(victim, p); err != nil {
				t.Fatal(err)
			}
		}
		_, selfErr := s.Self()
		_, err := lokt.NewManager(s).Acquire(t.Context(), by("a"))
		if refused := err != nil || selfErr != nil; refused != (file != "audit.log") {
			t.Errorf("%s: %v, %v", file, err, selfErr)
		}
		if got, err := os.ReadFile(victim); string(got) != "precious" {
			t.Errorf("%s: the file outside has %q, %v", file, got, err)
		}
		found, _, err := s.Check(t.Context(), false)
		if err != nil || len(found) < len(paths) {
			t.Errorf("%s: the check found %v, %v", file, found, err)
		}
	}
}
