package bulk_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/dashboard"
	"github.com/lokt-dev/lokt/internal/cli/job"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
	"github.com/lokt-dev/lokt/internal/testkit/programs"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// place is a server with jobs, where what is done begins after a moment.
func place(t *testing.T, undo time.Duration) (d clitest.Desk, m *manager.Manager, url string) {
	locks := lokt.NewManager(memstore.New())
	m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{Locks: locks})
	if err != nil {
		t.Fatal(err)
	}
	stop, end := context.WithCancel(context.Background())
	s := httptest.NewServer(dashboard.New(dashboard.Config{Locks: locks, Jobs: m, Undo: undo, Stop: stop}))
	t.Cleanup(func() {
		end()
		s.Close()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range 5 {
		spec := jobs.NewSpec()
		spec.Type, spec.Payload = []string{"thumb", "mail"}[i%2], jsontext.Value(fmt.Sprintf(`{"n":%d}`, i))
		if _, err := m.Submit(t.Context(), []jobs.Spec{spec}); err != nil {
			t.Fatal(err)
		}
	}
	return clitest.New(t, "ann", job.Commands()).With("LOKT_ROOT=", "LOKT_SERVER="+s.URL), m, s.URL
}

// states returns how many jobs are in each state.
func states(t *testing.T, m *manager.Manager) string {
	t.Helper()
	n := map[jobs.State]int{}
	p, err := m.List(t.Context(), jobs.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range p.Jobs {
		n[j.Job.State]++
	}
	return fmt.Sprint(n)
}

func TestAllJobsThatMatchAreCancelledAndSubmittedAgain(t *testing.T) {
	t.Parallel()
	d, m, _ := place(t, 10*time.Millisecond)
	code, out, errs := d.Lokt("job", "cancel", "--type", "thumb", "--count", "3", "--reason", "not needed")
	if code != 0 || out != "cancel: 3 of 3 jobs\n" || states(t, m) != "map[cancelled:3 queued:2]" {
		t.Error(code, out, errs, states(t, m))
	}
	p, err := m.List(t.Context(), jobs.Filter{State: jobs.Cancelled})
	if err != nil || p.Jobs[0].Job.Reason != "not needed (by somebody)" {
		t.Errorf("%+v, %v", p.Jobs, err)
	}
	var told struct{ Count, Done int }
	if code := d.JSON(&told, "job", "retry", "--state", "cancelled", "--text", `"n":2`, "--count", "1"); code != 0 || told.Done != 1 || states(t, m) != "map[cancelled:3 queued:3]" {
		t.Error(code, told, states(t, m))
	}
}

func TestSchedulesAreNotMeantUnlessTheyAreNamed(t *testing.T) {
	t.Parallel()
	d, m, _ := place(t, 10*time.Millisecond)
	spec := jobs.NewSpec()
	spec.Type, spec.Extra = "thumb", &jobs.Extra{Cron: "@every 1h"}
	if _, err := m.Submit(t.Context(), []jobs.Spec{spec}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"cancel --type thumb --count 3", 0, "3 of 3"},
		{"cancel --type thumb --state scheduled --count 1", 0, "1 of 1"},
		{"retry --type thumb --count 4", 1, "3 of 4 jobs were done, and 1 failed: "},
	} {
		if code, out, errs := d.Lokt(append([]string{"job"}, strings.Fields(c.args)...)...); code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%s: %d, %s%s", c.args, code, out, errs)
		}
	}
	if got := states(t, m); got != "map[cancelled:4 queued:5]" {
		t.Error(got)
	}
}

// gap is a way to a server that answers nothing from its third request on, so many times.
type gap struct {
	to   http.Handler
	n    atomic.Int64
	last int64
}

func (g *gap) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if n := g.n.Add(1); n >= 4 && n < 4+g.last {
		panic(http.ErrAbortHandler)
	}
	g.to.ServeHTTP(w, r)
}

func TestAServerThatIsAwayForAWhileIsAskedAgainWhatCameOfIt(t *testing.T) {
	t.Parallel()
	d, m, url := place(t, 2*time.Second)
	to, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(&gap{to: httputil.NewSingleHostReverseProxy(to), last: 2})
	t.Cleanup(proxy.Close)
	code, out, errs := d.With("LOKT_SERVER="+proxy.URL).Lokt("job", "cancel", "--type", "thumb", "--count", "3")
	if code != 0 || out != "cancel: 3 of 3 jobs\n" || strings.Count(errs, "trying again") != 1 || !strings.Contains(errs, "Ctrl-C undoes it") || states(t, m) != "map[cancelled:3 queued:2]" {
		t.Error(code, out, errs, states(t, m))
	}
}

func TestNothingIsDoneUnlessTheNumberIsRight(t *testing.T) {
	d, m, _ := place(t, 10*time.Millisecond)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"cancel --type thumb", 64, "this would cancel 3 jobs (type thumb): confirm it with --count 3"},
		{"cancel --type thumb --count 2", 1, "it would now be for 3 jobs"},
		{"cancel --type thumb --json", 64, "--count 3"},
		{"cancel JOB --type thumb --count 3", 64, "leave out IDs"},
		{"retry --state failed --payload {} --count 3", 64, "leave out IDs and payload"},
		{"cancel --state lost --count 3", 1, "no state of a job"},
		{"cancel --since soon --count 3", 1, "no duration"},
		{"cancel --type none --count 3", 0, "no job that this can be done to"},
		{"cancel --count 3", 64, "give the ID of a job"},
	} {
		code, out, errs := d.Lokt(append([]string{"job"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%s: %d, %s%s", c.args, code, out, errs)
		}
	}
	if got := states(t, m); got != "map[queued:5]" {
		t.Error(got)
	}
	if code, out, errs := d.With("LOKT_SERVER=http://127.0.0.1:1").Lokt("job", "cancel", "--type", "a", "--count", "1"); code != 1 || !strings.Contains(errs, "is loktd running there") {
		t.Error(code, out, errs)
	}
}

// signalled returns where the programs are, for a test that sends one a signal.
func signalled(t *testing.T) (bin string) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no signals")
	}
	bin, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func TestCtrlCUndoesIt(t *testing.T) {
	t.Parallel()
	bin := signalled(t)
	_, m, url := place(t, time.Hour)
	nobody := exec.Command(filepath.Join(bin, "lokt"), "job", "cancel", "--type", "thumb") // its input is the null device
	nobody.Env = append(os.Environ(), "LOKT_SERVER="+url)
	if out, _ := nobody.CombinedOutput(); nobody.ProcessState.ExitCode() != 64 || !strings.Contains(string(out), "confirm it with --count 3") {
		t.Errorf("%v: %s", nobody.ProcessState, out)
	}
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		undone(t, exec.Command(filepath.Join(bin, "lokt"), "job", "cancel", "--type", "thumb", "--count", "3"), url, sig, code)
	}
	if got := states(t, m); got != "map[queued:5]" {
		t.Error(got)
	}
}

// A server that stands still, and then stumbles, does not keep a signal from undoing what it was told.
func TestCtrlCUndoesItThoughTheServerStandsStill(t *testing.T) {
	t.Parallel()
	bin := signalled(t)
	_, m, url := place(t, time.Hour)
	to, err := neturl.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(to)
	var looks, undos atomic.Int64
	stands := make(chan struct{})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/runs/") && r.Method == http.MethodGet && looks.Add(1) == 2:
			close(stands)
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/undo") && undos.Add(1) < 3:
			panic(http.ErrAbortHandler)
		default:
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(proxy.Close)
	c := exec.Command(filepath.Join(bin, "lokt"), "job", "cancel", "--type", "thumb", "--count", "3")
	c.Env = append(os.Environ(), "LOKT_SERVER="+proxy.URL)
	var said strings.Builder
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	<-stands
	begun := time.Now()
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if _ = c.Wait(); c.ProcessState.ExitCode() != 130 || !strings.Contains(said.String(), "undone: nothing was changed") || time.Since(begun) > 30*time.Second {
		t.Errorf("%v after %v: %s", c.ProcessState, time.Since(begun), &said)
	}
	if got := states(t, m); got != "map[queued:5]" {
		t.Error(got)
	}
}

// undone runs an action, and sends it a signal that undoes it and ends it with a code.
func undone(t *testing.T, c *exec.Cmd, url string, sig syscall.Signal, code int) {
	t.Helper()
	c.Env = append(os.Environ(), "LOKT_SERVER=http://127.0.0.1:1,"+url) // the first does not answer
	said, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(said)
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "it begins in 1h") {
		t.Fatal(line, err)
	}
	if err := c.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "undone: nothing was changed") {
		t.Error(line, err)
	}
	if _ = c.Wait(); c.ProcessState.ExitCode() != code {
		t.Error(c.ProcessState)
	}
}
