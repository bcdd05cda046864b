//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// follower is lokt job logs -f while it runs.
type follower struct {
	s    *site
	cmd  *exec.Cmd
	out  string // the file that it writes to
	errs string // the other one
}

func (s *site) follow(id string) *follower {
	s.t.Helper()
	f := &follower{s: s, out: "followed", errs: "told"}
	to, err := os.Create(filepath.Join(s.dir, f.out))
	errs, err2 := os.Create(filepath.Join(s.dir, f.errs))
	if err := errors.Join(err, err2); err != nil {
		s.t.Fatal(err)
	}
	defer to.Close()
	defer errs.Close()
	f.cmd = exec.Command(filepath.Join(s.bin, "lokt"), "job", "logs", "-f", id)
	f.cmd.Env, f.cmd.Dir, f.cmd.Stdout, f.cmd.Stderr = s.environ(), s.dir, to, errs
	if err := f.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = f.cmd.Process.Kill() })
	return f
}

// shows waits until the follower has written a line.
func (f *follower) shows(line string) {
	f.s.t.Helper()
	f.s.until("the follower shows "+line, func() bool { return strings.Contains("\n"+strings.Join(f.s.lines(f.out), "\n")+"\n", "\n"+line+"\n") })
}

// Promise S-199.
func TestOutputIsFollowedWithoutAGapOrARepeatWhateverIsKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t, 20*time.Second)
	path := s.script("do.sh", `
i=0
while [ $i -lt 400 ]; do
	i=$((i + 1))
	echo "$LOKT_JOB_ATTEMPT $i"
	[ $i = 20 ] && [ ! -e go ] && until [ -e go ]; do sleep 0.05; done
	[ $LOKT_JOB_ATTEMPT = 2 ] && sleep 0.02
done
[ $LOKT_JOB_ATTEMPT = 2 ] || { touch full; sleep 1000; }
`)
	first := s.worker("--worker-id", "first", "--", path)
	id := s.submit("--max-attempts", "2", "--backoff", "0s")
	f := s.follow(id)
	f.shows("1 20")
	s.kill()
	if err := os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o600); err != nil { // and it prints while nobody takes it
		t.Fatal(err)
	}
	s.until("all is printed", func() bool { _, err := os.Stat(filepath.Join(s.dir, "full")); return err == nil })
	s.until("the follower misses the server", func() bool { return strings.Contains(fmt.Sprint(s.lines(f.errs)), "trying again") })
	s.start()
	f.shows("1 400")
	first.signal(syscall.SIGKILL)
	s.worker("--worker-id", "second", "--", path)
	f.shows("2 50")
	s.kill()
	s.start()
	if err := f.cmd.Wait(); err != nil {
		t.Fatal(err, s.lines(f.errs))
	}
	var want []string
	for attempt := range 2 {
		for i := range 400 {
			want = append(want, fmt.Sprintf("%d %d", attempt+1, i+1))
		}
	}
	if got := s.lines(f.out); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("followed were %d lines: %q", len(got), got)
	}
	if kept := s.must("job", "logs", id); kept != strings.Join(want, "\n") {
		t.Errorf("kept is %q", kept)
	}
	if said := s.lines(f.errs); said[len(said)-1] != "lokt: attempt 2" || strings.Contains(fmt.Sprint(said), "not kept") {
		t.Errorf("the follower says %q", said)
	}
}

// Promise S-199.
func TestOfAnOutputThatIsTooLongTheEndIsKept(t *testing.T) {
	t.Parallel()
	s := newSite(t, time.Minute)
	w := s.worker("--", s.script("do.sh", `
printf '\033[2J<script>\n'
head -c 1000000 /dev/zero | tr '\0' x
printf '\nthe end'
`))
	id := s.submit()
	s.becomes(id, "completed")
	code, out, errs := s.run("job", "logs", id)
	if code != 0 || len(out) > 128<<10 || !strings.HasSuffix(out, "xxx\nthe end\n") || !strings.Contains(errs, "bytes before this are not kept") {
		t.Errorf("exit %d, %d bytes: %.50q … %q", code, len(out), out, errs)
	}
	if own := s.lines(w.log); !strings.Contains(strings.Join(own, "\n"), "\x1b[2J<script>") {
		t.Error("the worker does not pass on what its command prints")
	}
	if code, _, errs := s.run("job", "logs", "nothing"); code == 0 || !strings.Contains(errs, "not known") {
		t.Error(code, errs)
	}
}
