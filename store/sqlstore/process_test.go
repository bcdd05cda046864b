//go:build unix

package sqlstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/parallel"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// helperEnv names what a process that runs this test binary is to do instead of testing.
const helperEnv = "LOKT_SQLSTORE_HELPER"

func TestMain(m *testing.M) {
	name := os.Getenv(helperEnv)
	if name == "" {
		code := parallel.Run(m, 4)
		server.Stop()
		os.Exit(code)
	}
	helper, known := map[string]func(path string) error{"hold": hold, "work": work, "limited": limited, "fail": fail}[name]
	if !known {
		fmt.Fprintf(os.Stderr, "no helper %q\n", name)
		os.Exit(2)
	}
	if err := helper(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is a process that runs a helper.
type child struct {
	*exec.Cmd
	out *bufio.Reader
	err *strings.Builder
}

// spawn starts a helper on a database. It is killed when the test ends.
func spawn(t *testing.T, name, path string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: exec.Command(exe, path), err: &strings.Builder{}}
	c.Env = append(os.Environ(), helperEnv+"="+name)
	c.Stderr = c.err
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.Process.Kill()
	_ = c.Wait()
}

// line reads what the helper says next.
func (c *child) line(t *testing.T) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("helper ended: %v; it said: %s", err, c.err)
	}
	return strings.TrimSpace(s)
}

// hold opens a database and keeps it.
func hold(path string) error {
	db, err := Open(context.Background(), "sqlite:"+path, Options{Describe: "at http://127.0.0.1:7117"})
	if err != nil {
		return err
	}
	if _, err := lokt.NewManager(db.Locks()).Acquire(context.Background(), lokt.Claim{Name: "kept", Owner: lokt.Owner{ID: "holder"}, TTL: time.Hour}); err != nil {
		return err
	}
	fmt.Println("ready")
	select {}
}

// Promise S-64.
func TestASecondProcessIsRefusedAndToldWhoIsFirst(t *testing.T) {
	t.Parallel()
	path := spot(t)
	first := spawn(t, "hold", path)
	first.line(t)
	dir := t.TempDir()
	byDir, byFile, relative := filepath.Join(dir, "d"), filepath.Join(dir, "f.db"), filepath.Join(dir, "r.db")
	for link, to := range map[string]string{byDir: filepath.Dir(path), byFile: path, relative: "f.db"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for _, way := range []string{path, filepath.Join(byDir, filepath.Base(path)), byFile, relative} {
		begin := time.Now()
		_, err := Open(t.Context(), "sqlite:"+way, Options{})
		if took := time.Since(begin); took > 30*time.Second { // patience is half a second; the machine may be busy
			t.Errorf("it took %v", took)
		}
		if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), fmt.Sprintf("process %d at http://127.0.0.1:7117", first.Process.Pid)) {
			t.Errorf("open of %s: %v", way, err)
		}
	}
	first.kill()
	db := start(t, byFile, Options{})
	snap, err := db.Locks().View(t.Context(), "kept")
	if err != nil || len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].Owner.ID != "holder" {
		t.Errorf("afterwards there is %+v, %v", snap, err)
	}
	if _, err := Open(t.Context(), "sqlite:"+path, Options{}); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("open again in the same process: %v", err)
	}
}

// Promise S-64.
func TestASecondProcessIsRefusedByWhateverNameItCallsTheFile(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the kernel lock on the file itself is Linux's")
	}
	path := spot(t)
	first := spawn(t, "hold", path)
	first.line(t)
	link := path + ".other"
	if err := os.Link(path, link); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), "sqlite:"+link, Options{})
	if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", first.Process.Pid)) {
		t.Errorf("open by a hard link: %v", err)
	}
	// SQLite's own locks are as they were.
	if out, err := exec.CommandContext(t.Context(), "grep", "-c", fmt.Sprintf("POSIX.* %d ", first.Process.Pid), "/proc/locks").Output(); err != nil {
		t.Errorf("the first has no locks: %s, %v", out, err)
	}
	first.kill()
	if _, err := Open(t.Context(), "sqlite:"+link, Options{}); !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), "hard links") {
		t.Errorf("what the first stored last is not found by the link, but it is opened: %v", err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if s := view(t, start(t, path, Options{}), "kept"); len(s.Lock.Holders) != 1 {
		t.Errorf("afterwards there is %+v", s.Lock)
	}
}

func TestOneOfManyProcessesHasTheDatabase(t *testing.T) {
	t.Parallel()
	path := spot(t)
	var all []*child
	for range 6 {
		all = append(all, spawn(t, "hold", path))
	}
	ready := make(chan bool, len(all))
	for _, c := range all {
		go func() {
			s, err := c.out.ReadString('\n')
			ready <- err == nil && s == "ready\n"
		}()
	}
	winners, losers := 0, 0
	for range all {
		if <-ready {
			winners++
		} else {
			losers++
		}
	}
	if winners != 1 || losers != len(all)-1 {
		t.Errorf("%d have the database, %d were refused", winners, losers)
	}
}

// work takes and gives back locks and lets jobs run, and says what was acknowledged, until it is killed.
func work(path string) error {
	ctx := context.Background()
	db, err := Open(ctx, "sqlite:"+path, Options{})
	if err != nil {
		return err
	}
	js, err := manager.Open(ctx, db.Jobs(), manager.Options{})
	if err != nil {
		return err
	}
	m := lokt.NewManager(db.Locks())
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = os.Stdout.WriteString(fmt.Sprintf(format, args...) + "\n")
	}
	say("ready")
	failed := make(chan error)
	for g := range 6 {
		go func() {
			for i := 0; ; i++ {
				name := fmt.Sprint("lock-", g%3)
				h, err := m.Acquire(ctx, lokt.Claim{Name: name, Owner: lokt.Owner{ID: fmt.Sprint("o", g)}, TTL: time.Minute, Wait: time.Minute})
				if err != nil {
					failed <- err
					return
				}
				say("token %s %d", name, h.Token)
				if i%3 == 0 {
					if _, err := m.Renew(ctx, lokt.Renewal{Name: name, LeaseID: h.LeaseID}); err != nil {
						failed <- err
						return
					}
					say("renewed %s %d %s", name, h.Token, h.LeaseID)
				}
				if _, err := m.Release(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID}); err != nil {
					failed <- err
					return
				}
				say("released %s %d", name, h.Token)
			}
		}()
	}
	for g := range 2 {
		go func() {
			worker := fmt.Sprint("w", g)
			for i := 0; ; i++ {
				r, err := js.Submit(ctx, []jobs.Spec{jobs.NewSpec()})
				if err != nil {
					failed <- err
					return
				}
				say("submitted %s", r[0].JobID)
				grant, err := js.Request(ctx, jobs.Request{WorkerID: worker})
				if err != nil || grant.Denied != nil {
					failed <- fmt.Errorf("%w %v", err, grant.Denied)
					return
				}
				say("leased %s %d", grant.Job.ID, grant.Lease.Token)
				if _, err := js.Complete(ctx, jobs.Completion{LeaseID: grant.Lease.ID, WorkerID: worker, Status: jobs.Completed}); err != nil {
					failed <- err
					return
				}
				say("completed %s", grant.Job.ID)
			}
		}()
	}
	return <-failed
}

// heard is what a helper has said, of all rounds.
type heard struct {
	tokens    map[string]uint64 // the last that was acknowledged
	released  map[string]bool   // by lock and token
	jobs      map[string]uint64 // token of the last lease; 0 before
	completed map[string]bool
	lines     int
}

// hear listens to a helper until it ends, and calls after for every line.
func (h *heard) hear(t *testing.T, out io.Reader, after func()) {
	for s := bufio.NewScanner(out); s.Scan(); after() {
		f := strings.Fields(s.Text())
		h.lines++
		switch f[0] {
		case "token":
			n, _ := strconv.ParseUint(f[2], 10, 64)
			if n <= h.tokens[f[1]] {
				t.Errorf("token %d of %s follows %d", n, f[1], h.tokens[f[1]])
			}
			h.tokens[f[1]] = n
		case "released":
			h.released[f[1]+" "+f[2]] = true
		case "submitted":
			h.jobs[f[1]] = max(h.jobs[f[1]], 0)
		case "leased":
			h.jobs[f[1]], _ = strconv.ParseUint(f[2], 10, 64)
		case "completed":
			h.completed[f[1]] = true
		}
	}
}

// check compares what is stored with what was acknowledged.
func (h *heard) check(t *testing.T, path string) {
	t.Helper()
	db, err := Open(t.Context(), "sqlite:"+path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := db.backend.(*fileDB).check(t.Context()); err != nil {
		t.Error(err)
	}
	for name, token := range h.tokens {
		snap, err := db.Locks().View(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if snap.Lock.Token < token {
			t.Errorf("the token of %s is %d, %d was acknowledged", name, snap.Lock.Token, token)
		}
		for _, holder := range snap.Lock.Holders {
			if h.released[fmt.Sprint(name, " ", holder.Token)] {
				t.Errorf("%s is held with token %d, whose release was acknowledged", name, holder.Token)
			}
			if left := holder.ExpiresAt.Sub(snap.Now); left < 30*time.Second && holder.Pending.IsZero() {
				t.Errorf("a hold of %s has %v left", name, left)
			}
		}
	}
	rows, err := db.Jobs().Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	living := map[string]jobs.Record{}
	for _, j := range rows.Jobs {
		living[j.ID] = *j
	}
	for id, token := range h.jobs {
		j, alive := living[id]
		if !alive {
			if j, err = db.Jobs().Ended(t.Context(), id); err != nil {
				t.Errorf("job %s was acknowledged: %v", id, err)
				continue
			}
		} else if h.completed[id] {
			t.Errorf("the end of job %s was acknowledged, but it is %s", id, j.State)
		}
		if j.Token < token {
			t.Errorf("the token of job %s is %d, %d was acknowledged", id, j.Token, token)
		}
	}
}

// Promises S-61, S-62, S-63.
func TestWhatIsAcknowledgedSurvivesKills(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lokt.db")
	h := &heard{tokens: map[string]uint64{}, released: map[string]bool{}, jobs: map[string]uint64{}, completed: map[string]bool{}}
	for range 8 {
		c := spawn(t, "work", path)
		if got := c.line(t); got != "ready" {
			t.Fatal(got)
		}
		enough := h.lines + 15 + rand.IntN(100)
		kill := sync.OnceFunc(func() {
			time.AfterFunc(time.Duration(rand.IntN(10_000))*time.Microsecond, func() { _ = c.Process.Kill() })
		})
		h.hear(t, c.out, func() {
			if h.lines >= enough {
				kill()
			}
		})
		_ = c.Wait()
		if c.err.Len() > 0 {
			t.Fatalf("helper said: %s", c.err)
		}
		h.check(t, path)
	}
	if h.lines < 100 || len(h.completed) == 0 {
		t.Errorf("only %d changes were acknowledged", h.lines)
	}
}
