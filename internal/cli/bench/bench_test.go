//go:build unix

package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// lab runs the built programs in a directory of its own.
type lab struct {
	*testing.T
	dir, bin string
	env      []string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	bin, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "LOKT") })
	dir := t.TempDir()
	return &lab{t, dir, bin, append(env, "LOKT_ROOT="+filepath.Join(dir, "locks"))}
}

func (l *lab) command(program string, args ...string) (c *exec.Cmd, errs *bytes.Buffer) {
	c, errs = exec.CommandContext(l.Context(), filepath.Join(l.bin, program), args...), &bytes.Buffer{}
	c.Dir, c.Env, c.Stderr, c.WaitDelay = l.dir, l.env, errs, time.Minute
	return c, errs
}

// run returns what a command line writes, and how it ends.
func (l *lab) run(program string, args ...string) (out, errs string, code int) {
	l.Helper()
	c, said := l.command(program, args...)
	b, err := c.Output()
	if err != nil && c.ProcessState == nil {
		l.Fatal(err)
	}
	return string(b), said.String(), c.ProcessState.ExitCode()
}

// serve starts loktd and returns its address.
func (l *lab) serve(args ...string) string {
	l.Helper()
	c, errs := l.command("loktd", append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	_, url, found := strings.Cut(strings.TrimSpace(line), "listening on ")
	if !found {
		l.Fatalf("loktd says %q, %s", line, errs)
	}
	return url
}

// told is the JSON of lokt bench.
type told struct {
	Place    string
	Verdicts []string
	Measured []struct {
		Name      string
		AtOnce    int     `json:"at_once"`
		PerSecond float64 `json:"per_second"`
		Median    float64 `json:"median_ms"`
		P99       float64 `json:"p99_ms"`
		Slowest   float64 `json:"slowest_ms"`
	}
}

// bench measures for a fifth of a second and checks that what must be there is.
func (l *lab) bench(names string, verdicts string, args ...string) (errs string) {
	l.Helper()
	out, errs, code := l.run("lokt", append([]string{"bench", "--time", "200ms", "--json"}, args...)...)
	var r told
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
		l.Fatalf("exit %d: %v: %s%s", code, err, out, errs)
	}
	var has, says []string
	for _, m := range r.Measured {
		has = append(has, m.Name)
		if m.PerSecond <= 0 || m.Median <= 0 || m.P99 < m.Median || m.Slowest < m.P99 || (m.AtOnce > 1) != strings.HasSuffix(m.Name, "s") {
			l.Errorf("%+v", m)
		}
	}
	for _, v := range r.Verdicts {
		about, _, _ := strings.Cut(v, ":")
		says = append(says, about)
	}
	if got := strings.Join(has, " "); got != names {
		l.Errorf("measured: %s", got)
	}
	if got := strings.Join(says, " "); got != verdicts {
		l.Errorf("verdicts about: %s", got)
	}
	return errs
}

const (
	programsOf = " command guard hand-off"
	onServer   = "round-trip round-trips lock locks heartbeat heartbeats"
)

func TestBenchOfFilesLeavesNothing(t *testing.T) {
	l := newLab(t)
	l.bench("fsync lease leases lock locks heartbeat heartbeats"+programsOf, "disk locks heartbeats guard hand-off")
	if left, err := os.ReadDir(l.dir); err != nil || len(left) != 0 {
		t.Errorf("beside a root that was not there: %v, %v", left, err)
	}
	if _, errs, code := l.run("lokt", "lock", "mine", "--ttl", "1h"); code != 0 {
		t.Fatal(errs)
	}
	before, _ := os.ReadDir(filepath.Join(l.dir, "locks"))
	l.bench("fsync lease leases lock locks heartbeat heartbeats"+programsOf, "disk locks heartbeats guard hand-off")
	if after, err := os.ReadDir(filepath.Join(l.dir, "locks")); err != nil || len(after) != len(before) {
		t.Errorf("%v became %v, %v", before, after, err)
	}
	if out, _, _ := l.run("lokt", "audit", "--json"); strings.Contains(out, "lokt-bench") {
		t.Error("the user's log has", out)
	}
}

func TestBenchWithoutTimeIsRefused(t *testing.T) {
	l := newLab(t)
	if _, errs, code := l.run("lokt", "bench", "--time", "0s"); code != 64 || !strings.Contains(errs, "no time to measure") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// empty checks that a server has no locks and no job that would go on.
func (l *lab) empty(url string) {
	l.Helper()
	out, errs, code := l.run("lokt", "status", "--json", "--server", url)
	if code != 0 || strings.Contains(out, "bench") {
		l.Errorf("exit %d, locks: %s%s", code, out, errs)
	}
	for _, state := range []string{"queued", "leased", "running"} {
		if out, errs, _ := l.run("lokt", "job", "list", "--state", state, "--server", url); out != "" || !strings.Contains(errs, "no such jobs") {
			l.Errorf("%s jobs: %s%s", state, out, errs)
		}
	}
}

func TestBenchOfServersLeavesNoLockAndNoJobThatWouldGoOn(t *testing.T) {
	for _, store := range []string{"memory:", "sqlite:x.db"} {
		t.Run(store, func(t *testing.T) {
			l := newLab(t)
			url := l.serve("--store", store, "--capacity", "2")
			l.bench(onServer+" job jobs"+programsOf, "locks jobs heartbeats guard hand-off", "--server", url)
			l.empty(url)
		})
	}
}

// A run that a signal ends ends as other programs do, and cleans up.
func TestInterruptedBenchLeavesNothing(t *testing.T) {
	l := newLab(t)
	url := l.serve("--store", "memory:")
	for _, place := range []string{"", url} {
		c, _ := l.command("lokt", "bench", "--time", "1h", "--server", place)
		c.Stderr = nil
		said, err := c.StderrPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(said).ReadString('\n'); err != nil {
			t.Fatal(line, err)
		}
		if err := c.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if _ = c.Wait(); c.ProcessState.ExitCode() != 130 {
			t.Errorf("%q: %v", place, c.ProcessState)
		}
	}
	l.empty(url)
	if left, err := os.ReadDir(l.dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}

func TestBenchWithoutRightsIsRefused(t *testing.T) {
	l := newLab(t)
	tokens := filepath.Join(l.dir, "tokens")
	token := func(name string, scopes ...string) string {
		out, errs, code := l.run("loktd", append([]string{"token", "create", name, "--tokens", tokens, "--scopes"}, scopes...)...)
		if code != 0 {
			t.Fatal(errs)
		}
		return "LOKT_SERVER_TOKEN=" + strings.TrimSpace(out)
	}
	reader, locker := token("reader", "read"), token("locker", "read,lock", "--prefix", "ci.")
	url := l.serve("--store", "memory:", "--tokens", tokens)
	env := l.env
	for _, c := range []struct{ token, says string }{{"LOKT_SERVER_TOKEN=", "LOKT_SERVER_TOKEN"}, {reader, `scope "lock"`}, {locker, "lokt-bench"}} {
		l.env = append(slices.Clone(env), c.token)
		if out, errs, code := l.run("lokt", "bench", "--server", url); code != 1 || out != "" || !strings.Contains(errs, c.says) {
			t.Errorf("exit %d: %s%s", code, out, errs)
		}
	}
	if errs := l.bench(onServer+programsOf, "locks heartbeats guard hand-off", "--server", url, "--name", "ci.bench"); !strings.Contains(errs, "jobs are not measured") {
		t.Error(errs)
	}
}
