//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/process"
)

// marks is a command that writes its token and process ID into a file, again and again, until it is ended.
const marks = `while :; do echo "$LOKT_JOB_TOKEN $$" >> marks; sleep 0.1; done`

// pids returns the process IDs that marks wrote under a token, or under any but the first if it is 0, and fails if any line of an older token follows a newer's.
func (s *site) pids(token int) []int {
	s.t.Helper()
	newest := 0
	var pids []int
	for _, line := range s.lines("marks") {
		var tok, pid int
		if _, err := fmt.Sscan(line, &tok, &pid); err != nil {
			continue // being written
		}
		if tok < newest {
			s.t.Fatalf("attempt %d wrote after attempt %d", tok, newest)
		}
		newest = max(newest, tok)
		if (tok == token || token == 0 && tok > 1) && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// marked waits until an attempt has written, or any but the first for 0, and returns who did.
func (s *site) marked(token int) int {
	s.t.Helper()
	s.until(fmt.Sprintf("attempt %d writes", token), func() bool { return len(s.pids(token)) > 0 })
	return s.pids(token)[0]
}

// gone waits until a process is.
func (s *site) gone(pid int) {
	s.t.Helper()
	s.until(fmt.Sprintf("process %d has ended", pid), func() bool { return syscall.Kill(pid, 0) != nil })
}

// Promise S-90.
func TestACommandsEndIsItsJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	path := s.script("do.sh", `
payload=$(cat)
case $LOKT_JOB_TYPE in
good) printf '::lokt result %s\n' "$payload" ;;
plain) echo "::lokt result done"; echo "for people" ;;
bad) echo first >&2; echo "no such thing" >&2; exit 7 ;;
killed) kill -KILL $$ ;;
told) echo "$LOKT_JOB_ID $LOKT_JOB_ATTEMPT/$LOKT_JOB_MAX_ATTEMPTS $LOKT_JOB_TOKEN $LOKT_JOB_UNITS $LOKT_JOB_PRIORITY $LOKT_JOB_TAGS $LOKT_JOB_WORKER" > told ;;
esac
`)
	s.worker("--worker-id", "w1", "--", path)
	payload := `{"large": 12345678901234567890123, "text": "ä\n"}`
	for name, want := range map[string]struct {
		state  string
		code   int
		result string
	}{
		"good":   {"completed", 0, payload},
		"plain":  {"completed", 0, `"done"`},
		"bad":    {"failed", 7, "null"},
		"killed": {"failed", 137, "null"},
		"told":   {"completed", 0, "null"},
	} {
		code, out, errs := s.run("job", "submit", "--type", name, "--payload", payload, "--units", "3", "--tag", "a", "--tag", "b", "--priority", "low", "--wait", "--json")
		var id string
		if _, rest, ok := strings.Cut(out, `"job_id":"`); ok {
			id, _, _ = strings.Cut(rest, `"`)
		} else {
			t.Fatalf("%s: exit %d: %s%s", name, code, out, errs)
		}
		v := s.see(id)
		if v.State != want.state || code != want.code || string(v.Result) != want.result || v.failure().Code != want.code {
			t.Errorf("%s: exit %d, the job is %+v, its result %s", name, code, v, v.Result)
		}
		if name == "bad" && (v.failure().Stderr != "first\nno such thing" || v.failure().Message != "exit status 7") {
			t.Errorf("its error is %s", v.Error)
		}
		if told := s.lines("told"); name == "told" && (len(told) != 1 || told[0] != id+" 1/1 1 3 low a,b w1") {
			t.Errorf("the command was told %q", told)
		}
	}
	if code, out, _ := s.run("job", "submit", "--type", "good", "--payload", payload, "--wait"); code != 0 || out != payload+"\n" {
		t.Errorf("exit %d: %s", code, out)
	}
	if code, _, errs := s.run("job", "submit", "--type", "bad", "--wait"); code != 7 || !strings.Contains(errs, "no such thing") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// Promise S-91.
func TestACommandTellsWhatItIsAt(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	path := s.script("do.sh", `
echo "::lokt progress 25% a quarter"
echo "::lokt metrics {\"rows\": 12}"
echo "::lokt progress many"
if [ -z "$LOKT_JOB_CHECKPOINT" ]; then
	echo "::lokt checkpoint {\"row\": 12}"
	until [ -e go ]; do sleep 0.1; done
	exit 1
fi
echo "::lokt result $LOKT_JOB_CHECKPOINT"
`)
	w := s.worker("--", path)
	id := s.submit("--max-attempts", "2", "--backoff", "0s")
	s.until("its progress is known", func() bool {
		v := s.see(id)
		return v.Progress != nil && *v.Progress == 0.25 && v.Message == "a quarter"
	})
	if list := s.must("job", "list"); !strings.Contains(list, "25% a quarter") {
		t.Errorf("listed is %s", list)
	}
	w.says("progress is a number")
	if err := os.WriteFile(s.dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if v := s.becomes(id, "completed"); string(v.Result) != `{"row": 12}` || len(v.Attempts) != 2 {
		t.Errorf("the job is %+v, its result %s", v, v.Result)
	}
}

// Promise S-92.
func TestAWorkerThatIsKilledTakesItsCommandAlong(t *testing.T) {
	t.Parallel()
	s := newSite(t, 6*time.Second)
	path := s.script("do.sh", marks)
	first := s.worker("--worker-id", "first", "--", path)
	id := s.submit("--max-attempts", "100", "--backoff", "0s")
	pid := s.marked(1)
	s.worker("--worker-id", "second", "--", path)
	first.signal(syscall.SIGKILL)
	s.marked(0)
	s.gone(pid)
	s.until("the second works", func() bool { // the first may have made two attempts, on a machine that stood still
		v := s.see(id)
		if len(v.Attempts) == 0 || v.Attempts[0].State != "expired" {
			t.Fatalf("the job is %+v", v)
		}
		return v.Attempts[len(v.Attempts)-1].WorkerID == "second"
	})
	s.must("job", "cancel", id)
	s.becomes(id, "cancelled")
}

// Promise S-92.
func TestAWorkerThatIsStoppedDoesNotLetItsCommandOutliveTheLease(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("what a command starts can be found on Linux only")
	}
	s := newSite(t, 6*time.Second)
	path := s.script("do.sh", "trap '' TERM\n(setsid sh -c '"+marks+"' &)\n"+marks)
	first := s.worker("--worker-id", "first", "--", path)
	id := s.submit("--max-attempts", "100", "--backoff", "0s")
	s.marked(1)
	s.until("both write", func() bool { return len(s.pids(1)) == 2 })
	old := s.pids(1)
	first.signal(syscall.SIGSTOP)
	s.worker("--worker-id", "second", "--", path)
	s.marked(0)
	for _, pid := range old {
		s.gone(pid)
	}
	first.signal(syscall.SIGCONT)
	first.says("counts for nothing")
	s.must("job", "cancel", id)
	s.becomes(id, "cancelled")
	s.until("what the command started has ended", func() bool {
		n := len(s.lines("marks"))
		time.Sleep(500 * time.Millisecond)
		return len(s.lines("marks")) == n
	})
	s.pids(1)
	next := s.submit("--type", "next") // the worker that was stopped goes on
	s.until("the next job runs", func() bool { return s.see(next).State == "running" })
}

// Promise S-92.
func TestACommandDoesNotOutliveItsMaximumRuntime(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	path := s.script("do.sh", "trap '' TERM\n"+marks)
	s.worker("--worker-id", "first", "--", path)
	s.worker("--worker-id", "second", "--", path)
	id := s.submit("--max-runtime", "10s", "--max-attempts", "2", "--backoff", "0s", "--lock", "db")
	pid := s.marked(1)
	s.marked(2)
	s.gone(pid)
	s.gone(s.pids(2)[0])
	s.pids(1)
	for _, a := range s.becomes(id, "failed").Attempts {
		if a.Code != "max_runtime_exceeded" {
			t.Errorf("an attempt ended with the code %q", a.Code)
		}
	}
}

// Promise S-92.
func TestACommandWhoseRunnerIsKilledEndsToo(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the kernel ends it on Linux only")
	}
	s := newSite(t, time.Minute)
	s.worker("--", s.script("do.sh", marks))
	id := s.submit()
	pid := s.marked(1)
	runner := parent(t, pid)
	if err := syscall.Kill(runner, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	v := s.becomes(id, "failed")
	s.gone(pid)
	if !strings.Contains(v.failure().Message, "killed") {
		t.Errorf("the job is %+v", v)
	}
}

// parent returns the process that started another.
func parent(t *testing.T, pid int) int {
	t.Helper()
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ppid, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

// Promise S-92.
func TestACommandWhoseRunnerIsStoppedEndsToo(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the kernel ends it on Linux only")
	}
	s := newSite(t, 8*time.Second)
	s.worker("--grace", "1s", "--", s.script("do.sh", "(setsid sh -c 'echo begun; exec sleep 600' >>detached &)\n"+marks))
	id := s.submit()
	pid := s.marked(1)
	runner := parent(t, pid)
	s.until("what has detached itself has begun", func() bool { return len(s.lines("detached")) == 1 })
	all := process.Descendants(runner)
	if err := syscall.Kill(runner, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.must("job", "cancel", id)
	for _, pid := range append(all, pid) {
		s.gone(pid)
	}
	s.becomes(id, "cancelled")

	if err := os.Remove(s.dir + "/marks"); err != nil {
		t.Fatal(err)
	}
	s.submit()
	pid = s.marked(1)
	if err := syscall.Kill(parent(t, pid), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.kill()
	s.gone(pid)
}

// Promises S-93, S-94.
func TestAWorkerSurvivesTheDeathOfItsServer(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	w := s.worker("--concurrency", "2", "--", s.script("do.sh", `echo "$LOKT_JOB_ID" >> began; until [ -e "$LOKT_JOB_TYPE" ]; do sleep 0.1; done`))
	running, ending := s.submit("--type", "a", "--key", "k"), s.submit("--type", "b")
	waits := make(chan int, 1) // the exit code of who waits for the same job meanwhile
	go func() {
		code, _, _ := s.run("job", "submit", "--type", "a", "--key", "k", "--wait")
		waits <- code
	}()
	s.until("both run", func() bool { return len(s.lines("began")) == 2 })
	s.until("three submissions were answered", func() bool {
		return strings.Contains(s.metrics(), `lokt_http_requests_total{route="POST /api/system/scheduler/jobs",status="200"} 3`)
	})
	s.kill()
	if err := os.WriteFile(s.dir+"/b", nil, 0o600); err != nil { // it ends while nobody can be told
		t.Fatal(err)
	}
	w.says("trying again")
	s.start()
	v := s.becomes(ending, "completed")
	s.becomes(running, "running")
	s.kill()
	s.start()
	if err := os.WriteFile(s.dir+"/a", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if v.Attempt != 1 || s.becomes(running, "completed").Attempt != 1 || len(s.lines("began")) != 2 {
		t.Errorf("began: %q", s.lines("began"))
	}
	if code := <-waits; code != 0 {
		t.Errorf("waiting for it ended with %d", code)
	}
	s.must("job", "submit", "--type", "a", "--wait")
}

// Promise S-92.
func TestAWorkerSaysThatItsCommandIsEndedBecauseItsServerIsAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, 6*time.Second)
	w := s.worker("--", s.script("do.sh", marks))
	s.submit()
	pid := s.marked(1)
	s.kill()
	w.says("is stopped: ")
	s.gone(pid)
}

// Promise S-228. The server is killed between any two steps.
func TestJobsRunAfterOthersThoughTheServerIsKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	restart := func() { s.kill(); s.start() }
	build := s.submit("--type", "build")
	test := s.submit("--type", "test", "--after", build)
	ship := s.submit("--type", "ship", "--priority", "high", "--after", test, "--after", build)
	report := s.submit("--type", "report", "--after", ship, "--after-any")
	restart()
	if out := s.must("job", "list", "--type", "test"); !strings.Contains(out, "waits for job "+build+" (queued since ") {
		t.Errorf("the list is %s", out)
	}
	s.worker("--concurrency", "3", "--", s.script("do.sh", `echo "$LOKT_JOB_TYPE" >> began; until [ -e "$LOKT_JOB_TYPE" ]; do sleep 0.1; done; [ "$LOKT_JOB_TYPE" != test ]`))
	s.becomes(build, "running")
	restart()
	if out := s.must("job", "show", test); !strings.Contains(out, "after:"+build) {
		t.Errorf("the job is %s", out)
	}
	if err := os.WriteFile(s.dir+"/build", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.becomes(test, "running")
	restart()
	if err := os.WriteFile(s.dir+"/test", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.becomes(test, "failed")
	restart()
	if v := s.becomes(ship, "cancelled"); v.Code != "after_failed" || !strings.Contains(v.Reason, test+", which is failed") {
		t.Errorf("the job is %+v", v)
	}
	s.becomes(report, "running")
	if began := s.lines("began"); !slices.Equal(began, []string{"build", "test", "report"}) {
		t.Errorf("began: %q", began)
	}
	if code, _, errs := s.run("job", "submit", "--after", "nobody"); code != 64 || !strings.Contains(errs, "--after: there is no such job") {
		t.Errorf("exit %d: %s", code, errs)
	}
}

// Promise S-229. A program holds a slot, too, and the server is killed meanwhile.
func TestJobsKeepTheLimitsOfTheirLocksThoughTheServerIsKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	s.worker("--concurrency", "9", "--", s.script("do.sh",
		`echo "$LOKT_JOB_TYPE $(date +%s%N)" >> began; until [ -e "$LOKT_JOB_TYPE" ]; do sleep 0.1; done`))
	s.must("lock", "db", "--slots", "3", "--ttl", "10m")
	ids := []string{}
	for range 4 {
		ids = append(ids, s.submit("--type", "slot", "--limit", "db=3"))
	}
	s.until("two hold a slot", func() bool { return len(s.lines("began")) == 2 })
	s.kill()
	s.start()
	s.until("it is told", func() bool { return strings.Contains(s.must("job", "list"), "waits for lock db, held by") })
	if err := os.WriteFile(s.dir+"/slot", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		s.becomes(id, "completed")
	}
	if began := s.lines("began"); len(began) != 4 {
		t.Errorf("began: %q", began)
	}
	rated := []string{s.submit("--type", "rate", "--limit", "api=9,30/min"), s.submit("--type", "rate", "--limit", "api=9,30/min")}
	s.becomes(rated[0], "running")
	s.kill()
	s.start()
	s.becomes(rated[1], "running")
	var at []time.Time
	for _, id := range rated {
		at = append(at, s.see(id).Started)
	}
	if d := at[1].Sub(at[0]); d < 2*time.Second-time.Millisecond {
		t.Errorf("they began %v apart", d)
	}
	for _, wrong := range []string{"db", "db=", "db=0", "db=3/year", "db=3,x", "db=9999"} {
		if code, _, errs := s.run("job", "submit", "--limit", wrong); code != 64 || !strings.Contains(errs, "--limit ") && !strings.Contains(errs, "--limit: ") {
			t.Errorf("%s: exit %d: %s", wrong, code, errs)
		}
	}
}

// Promise S-93.
func TestAWorkerEndsAsItIsTold(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	path := s.script("do.sh", `echo "$$" > pid; until [ -e go ]; do sleep 0.1; done`)
	w := s.worker("--", path)
	id := s.submit()
	s.until("it runs", func() bool { return len(s.lines("pid")) == 1 })
	w.signal(syscall.SIGTERM)
	w.says("taking no more jobs")
	later := s.submit()
	if err := os.WriteFile(s.dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := w.ends(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if a, b := s.see(id), s.see(later); a.State != "completed" || b.State != "queued" || b.Waiting != "no_worker" {
		t.Errorf("the jobs are %+v and %+v", a, b)
	}
	if list := s.must("job", "list", "--state", "queued"); !strings.Contains(list, "waits for a worker that takes it") {
		t.Errorf("listed is %s", list)
	}

	if err := os.Remove(s.dir + "/go"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.dir + "/pid"); err != nil {
		t.Fatal(err)
	}
	w = s.worker("--", path)
	s.until("it runs", func() bool { return len(s.lines("pid")) == 1 })
	pid, err := strconv.Atoi(s.lines("pid")[0])
	if err != nil {
		t.Fatal(err)
	}
	w.signal(syscall.SIGTERM)
	w.says("taking no more jobs")
	w.signal(syscall.SIGTERM)
	if code := w.ends(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("it ended with %d", code)
	}
	s.gone(pid)
	if v := s.see(later); v.State != "failed" || !strings.Contains(v.failure().Message, "stopped") {
		t.Errorf("the job is %+v", v)
	}
}

// Promise S-93.
func TestAWorkerWhoseOutputNobodyReadsDoesItsJobsAndEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	path := s.script("do.sh", `echo "$$" > pid; for i in 1 2 3; do echo line $i; done; head -c ${LOKT_JOB_TYPE} /dev/zero | tr '\0' x; echo; [ $LOKT_JOB_TYPE = 10 ] || sleep 100`)
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stuck := s.workerTo(out, "--type", "300000", "--", path)
	id := s.submit("--type", "300000")
	s.until("it runs", func() bool { return len(s.lines("pid")) == 1 })
	pid, err := strconv.Atoi(s.lines("pid")[0])
	if err != nil {
		t.Fatal(err)
	}
	go func() { // again and again, because two that come together are one
		for range 100 {
			select {
			case <-stuck.done:
				return
			case <-time.After(200 * time.Millisecond):
				_ = stuck.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			}
		}
	}()
	if code := stuck.ends(); code != 128+int(syscall.SIGTERM) {
		t.Errorf("it ended with %d", code)
	}
	s.gone(pid)
	if v := s.becomes(id, "failed"); !strings.Contains(v.failure().Message, "stopped") {
		t.Errorf("the job is %+v", v)
	}

	deaf, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	deaf.Close()
	w := s.workerTo(out, "--type", "10", "--", path)
	id = s.submit("--type", "10")
	s.becomes(id, "completed")
	w.signal(syscall.SIGTERM)
	if code := w.ends(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
}

// Promise S-93.
func TestWhoDoesNotReadTheOutputKeepsNoJobFromItsEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	path := s.script("do.sh", `yes line | head -c $LOKT_JOB_TYPE; echo "::lokt result 5"; echo done`)
	for size, end := range map[string]string{"110000": "completed", "1000000": "cancelled"} { // what is printed last is in pipes, or the command waits
		r, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		s.workerTo(out, "--type", size, "--", path)
		id := s.submit("--type", size, "--lock", "db")
		if end == "cancelled" {
			s.becomes(id, "running")
			s.must("job", "cancel", id)
		}
		if v := s.becomes(id, end); end == "completed" && string(v.Result) != "5" {
			t.Errorf("its result is %s", v.Result)
		}
	}
}

// Promise S-93.
func TestACancelledJobsCommandIsEndedAtOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	s.worker("--", s.script("do.sh", marks))
	for try := 1; ; try++ { // because a machine that is slow makes it late once, and what is wrong each time
		id := s.submit("--max-attempts", "3")
		pid := s.marked(1)
		begin := time.Now()
		s.must("job", "cancel", id, "--reason", "not needed")
		v := s.becomes(id, "cancelled")
		s.gone(pid)
		took := time.Since(begin)
		if out := s.must("job", "show", id); len(v.Attempts) != 1 || !strings.Contains(out, "not needed") {
			t.Errorf("the job is %s", out)
		}
		if err := os.Remove(s.dir + "/marks"); err != nil {
			t.Fatal(err)
		}
		if took < 11*time.Second { // heartbeats come every 15 s, more or less
			break
		}
		if try == 3 {
			t.Fatalf("it took %v", took)
		}
	}

	id := s.submit("--max-runtime", "8s")
	s.marked(1)
	if v := s.becomes(id, "failed"); v.Code != "max_runtime_exceeded" {
		t.Errorf("the job is %+v", v)
	}
}

// Promise S-94.
func TestSubmittingSaysWhatIsWrongAndWhatToDo(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"submit", "--units", "101"}, 64, "--units"},
		{[]string{"submit", "--payload", "[1]"}, 64, "no JSON object"},
		{[]string{"submit", "--payload", "@none.json"}, 1, "none.json"},
		{[]string{"submit", "--priority", "urgent"}, 64, "--priority"},
		{[]string{"submit", "--run-at", "soon"}, 64, "--run-at"},
		{[]string{"submit", "--lock", "a b"}, 64, "--lock"},
		{[]string{"show", "none"}, 3, "lokt job list"},
		{[]string{"cancel", "none"}, 3, "none"},
		{[]string{"list", "--state", "lost"}, 64, "--state: input should be 'scheduled', 'queued', 'leased', "},
		{[]string{"stop"}, 64, "submit, list, show, logs, cancel, retry"},
	} {
		if code, out, errs := s.run(append([]string{"job"}, c.args...)...); code != c.code || !strings.Contains(errs, c.says) || out != "" {
			t.Errorf("lokt job %s: exit %d: %s%s", strings.Join(c.args, " "), code, out, errs)
		}
	}
	first := s.submit("--key", "k", "--units", "2")
	if again := s.submit("--key", "k", "--units", "2"); again != first {
		t.Errorf("the same job is %s and %s", first, again)
	}
	if code, _, errs := s.run("job", "submit", "--key", "k"); code != 1 || !strings.Contains(errs, "--key") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if code, _, errs := s.run("job", "submit", "--wait", "--timeout", "100ms"); code != 2 || !strings.Contains(errs, "goes on") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0); err == nil { // there is none on some systems
		cmd := exec.Command(filepath.Join(s.bin, "lokt"), "job", "submit", "--type", "full")
		var errs strings.Builder
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = s.environ(), s.dir, full, &errs
		err := cmd.Run()
		if err == nil || !strings.Contains(errs.String(), " is submitted: ") {
			t.Fatalf("%v: %s", err, &errs)
		}
		_ = full.Close()
		s.must("job", "cancel", strings.Fields(errs.String())[2])
	}
	later := s.submit("--run-at", "1h")
	if out := s.must("job", "show", later); !strings.Contains(out, "waiting_for:   run_at") {
		t.Errorf("the job is %s", out)
	}
	if out := s.must("job", "stats"); !strings.Contains(out, "0 of 100 units") || !strings.Contains(out, "queued:   3") {
		t.Errorf("stats are %s", out)
	}
}

// Promises S-92, S-93. Workers and server are killed and stopped at random; what is written under an older token never comes
// after what is written under a newer one, every job is completed, and all of the trouble has been there.
func TestNothingIsDoneTwiceAtATimeWhateverIsKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, 4*time.Second)
	path := s.script("do.sh", `i=0; while [ $i -lt 8 ]; do echo "$LOKT_JOB_TOKEN" >> "$LOKT_JOB_ID.log"; sleep 0.05; i=$((i+1)); done`)
	var ids []string
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	var hands []*hand
	for range 3 {
		hands = append(hands, s.worker("--quiet", "--concurrency", "3", "--", path))
	}
	killed, stopped, restarted := 0, 0, 0
	several := regexp.MustCompile(`"attempt": ?([2-9]|[1-9][0-9])`) // attempts at one of the jobs
	for killed < 3 || stopped < 2 || restarted < 2 || len(ids) < 300 && !several.MatchString(s.must("job", "list", "--all", "--json")) {
		for range 3 {
			ids = append(ids, s.submit("--max-attempts", "100", "--backoff", "10ms"))
		}
		time.Sleep(time.Duration(100+rng.IntN(400)) * time.Millisecond)
		i := rng.IntN(len(hands))
		switch rng.IntN(4) {
		case 0:
			hands[i].signal(syscall.SIGKILL)
			hands[i].ends()
			hands[i] = s.worker("--quiet", "--concurrency", "3", "--", path)
			killed++
		case 1:
			hands[i].signal(syscall.SIGSTOP)
			time.Sleep(time.Duration(rng.IntN(6000)) * time.Millisecond)
			hands[i].signal(syscall.SIGCONT)
			stopped++
		case 2:
			s.kill()
			time.Sleep(time.Duration(rng.IntN(500)) * time.Millisecond)
			s.start()
			restarted++
		}
	}
	again := 0
	for _, id := range ids {
		v := s.becomes(id, "completed")
		newest := 0
		for _, line := range s.lines(id + ".log") {
			token, err := strconv.Atoi(line)
			if err != nil || token < newest {
				t.Fatalf("job %s: %q follows %d", id, line, newest)
			}
			newest = token
		}
		if v.Attempt > 1 {
			again++
		}
	}
	t.Logf("%d workers were killed, %d stopped, the server %d times; %d of %d jobs took several attempts", killed, stopped, restarted, again, len(ids))
	if killed == 0 || stopped == 0 || restarted == 0 || again == 0 {
		t.Error("there was too little trouble")
	}
}

// Promise S-91.
func TestAReportThatIsTooLongFailsTheJob(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	w := s.worker("--quiet", "--worker-id", strings.Repeat("w", 200), "--", s.script("do.sh", `
echo before
printf '::lokt result "'
head -c "$(cat)" /dev/zero | tr '\0' a
echo '"'
`))
	id := s.submit("--payload", "{}") // which head takes for a mistake, and writes nothing
	if v := s.becomes(id, "completed"); string(v.Result) != `""` {
		t.Errorf("the result is %s", v.Result)
	}
	s.script("do.sh", `printf '::lokt result "'; head -c 1200000 /dev/zero | tr '\0' a; echo '"'`)
	if v := s.becomes(s.submit(), "failed"); !strings.Contains(v.failure().Message, "bytes") {
		t.Errorf("the job is %s", v.Error)
	}
	s.script("do.sh", `printf '::lokt result "'; head -c 1048500 /dev/zero | tr '\0' a; echo '"'`) // no room for anything else in a request
	if v := s.becomes(s.submit(), "failed"); !strings.Contains(string(v.Error), "refused") {
		t.Errorf("the job is %s", v.Error)
	}
	w.says("before")
}

// Promise S-140.
func TestCommandsAreToldTheTokensOfTheirLocks(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	s.worker("--", s.script("do.sh", `echo "::lokt result \"$LOKT_JOB_LOCKS $LOKT_JOB_LOCK_TOKENS\""`))
	lastA, lastB := 0, 0
	for i := range 4 {
		if i == 2 { // a person comes in between, and the server is killed
			s.must("guard", "b", "--", "true")
			lastB++
			s.kill()
			s.start()
		}
		var names string
		var b, a int
		if _, err := fmt.Sscanf(s.must("job", "submit", "--lock", "b", "--lock", "a", "--wait"), `"%s %d,%d"`, &names, &b, &a); err != nil {
			t.Fatal(err)
		}
		if names != "b,a" || b <= lastB || a <= lastA || i < 2 && (a != i+1 || b != i+1) {
			t.Errorf("the command was told of %s %d and %d after %d and %d", names, b, a, lastB, lastA)
		}
		lastA, lastB = a, b
	}
	if out := s.must("job", "submit", "--wait"); out != `" "` {
		t.Errorf("a job without locks was told %s", out)
	}
}

// Promise S-140.
func TestTokensOfLocksAreTheSameAfterAKill(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	type lease struct {
		ID     string         `json:"lease_id"`
		Tokens map[string]int `json:"lock_tokens"`
	}
	ask := func(request string) lease {
		t.Helper()
		var g struct{ Lease lease }
		s.post("/api/system/scheduler/leases/request", `{"worker_id":"w","wait_ms":30000,"request_id":"`+request+`"}`, &g)
		if g.Lease.ID == "" {
			t.Fatal("nothing was granted")
		}
		return g.Lease
	}
	last := 0
	for i := range 3 {
		id := s.submit("--lock", "x", "--lock", "y")
		request := fmt.Sprint("r", i)
		first := ask(request)
		if len(first.Tokens) != 2 || first.Tokens["x"] <= last {
			t.Fatalf("told are %v after %d", first.Tokens, last)
		}
		last = first.Tokens["x"]
		for name, token := range first.Tokens {
			var l struct {
				Token   int
				Holders []struct {
					Token   int
					OwnerID string `json:"owner_id"`
				}
			}
			s.get("/v1/locks/"+name, &l)
			if l.Token != token || len(l.Holders) != 1 || l.Holders[0].Token != token {
				t.Errorf("of %s is told %d, and it is %+v", name, token, l)
			}
		}
		same := func(when string) {
			t.Helper()
			if again := ask(request); again.ID != first.ID || !maps.Equal(again.Tokens, first.Tokens) {
				t.Errorf("%s told are %v, not %v", when, again, first)
			}
		}
		if out := s.must("job", "show", id); !strings.Contains(out, fmt.Sprintf("lease.lock_tokens.x: %d\nlease.lock_tokens.y: %d\n", first.Tokens["x"], first.Tokens["y"])) {
			t.Errorf("shown is %s", out)
		}
		same("again")
		s.kill()
		s.start()
		same("after a kill")
		s.post("/api/system/scheduler/leases/"+first.ID+"/complete", `{"worker_id":"w","status":"completed"}`, &struct{}{})
		same("after its end")
		s.kill()
		s.start()
		same("after its end and a kill")
	}
}

// Promise S-146.
func TestACommandIsEndedWhenALockOfItsJobIsBroken(t *testing.T) {
	t.Parallel()
	s := newSite(t, 6*time.Second)
	s.worker("--", s.script("do.sh", `trap 'exit 0' TERM; `+marks))
	id := s.submit("--lock", "deploy", "--lock", "other", "--max-attempts", "2")
	pid := s.marked(1)
	s.must("unlock", "deploy", "--force")
	s.must("lock", "deploy", "--ttl", "1h", "--wait")
	s.gone(pid)
	s.until("the first attempt has failed", func() bool {
		all := s.see(id).Attempts
		return len(all) > 0 && all[0].State != "running"
	})
	a := s.see(id).Attempts[0]
	var failure struct {
		Code    string
		Message string
		Lost    []string `json:"lost_locks"`
	}
	if err := json.Unmarshal(a.Error, &failure); err != nil || a.State != "failed" || failure.Code != "lost_locks" || !slices.Equal(failure.Lost, []string{"deploy"}) ||
		!strings.Contains(failure.Message, "lost the lock deploy") {
		t.Errorf("the attempt is %+v, %s, %v", a, a.Error, err)
	}
	// Another attempt has the lock when the one who broke it has given it back.
	s.must("unlock", "deploy")
	second := s.marked(2)
	s.must("job", "cancel", id)
	s.gone(second)
}
