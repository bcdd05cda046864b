package foreign_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/foreign"
)

// A test runs this very program as one that locks a file: HOLD says how, in a mode of fcntl or as flock. It says that it has the lock,
// and keeps it until its standard input ends.
func TestMain(m *testing.M) {
	how, path := os.Getenv("HOLD"), os.Getenv("HOLD_FILE")
	if how == "" {
		os.Exit(m.Run())
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	whole := &unix.Flock_t{Type: unix.F_WRLCK}
	switch how {
	case "fcntl":
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, whole)
	case "ofd":
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, whole)
	case "flock":
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	case "shared":
		err = unix.Flock(int(f.Fd()), unix.LOCK_SH)
	}
	if err != nil {
		panic(err)
	}
	_, _ = os.Stdout.WriteString("held\n")
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// hold starts a command that writes a line when it is ready, and lives until stop.
func hold(t *testing.T, dir string, env []string, argv ...string) (pid int, stop func()) {
	t.Helper()
	c := exec.Command(argv[0], argv[1:]...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if !ended {
			ended = true
			_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
			_, _ = in.Write(nil)
			_ = c.Wait()
		}
	}
	t.Cleanup(stop)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%v: %q, %v", argv, line, err)
	}
	return c.Process.Pid, stop
}

func look(t *testing.T, path string) foreign.Report {
	t.Helper()
	r, err := foreign.Look(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func file(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Promise S-196.
func TestTheProcessThatHasAKernelLockIsFoundUntilItIsKilled(t *testing.T) {
	for how, lock := range map[string]string{"flock": "flock", "shared": "flock", "fcntl": "fcntl", "ofd": "fcntl (OFD)"} {
		t.Run(how, func(t *testing.T) {
			path := file(t, filepath.Join(t.TempDir(), "a file"), "")
			bystander, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer bystander.Close()
			if r := look(t, path); r.Status != foreign.Free || !strings.Contains(r.Detail, "no process has it locked") {
				t.Fatalf("before: %v", r)
			}
			pid, stop := hold(t, "", []string{"HOLD=" + how, "HOLD_FILE=" + path}, os.Args[0])
			r := look(t, path)
			var found []foreign.Process
			for _, p := range r.Processes {
				if p.PID != os.Getpid() {
					found = append(found, p)
				}
			}
			if r.Status != foreign.Held || len(found) != 1 {
				t.Fatalf("held: %v", r)
			}
			p := found[0]
			if p.PID != pid || p.Lock != lock || p.Shared != (how == "shared") || p.User == "" || !strings.HasPrefix(p.Command, os.Args[0][:20]) || p.Since.IsZero() {
				t.Errorf("found %+v, want pid %d and a lock of %s", p, pid, lock)
			}
			if stop(); look(t, path).Status != foreign.Free {
				t.Errorf("after kill -9: %v", look(t, path))
			}
		})
	}
}

// flock(1) takes the lock, and its command, which inherits it, has it when flock is dead.
func TestALockThatACommandInheritedIsTheCommandsWhenItsTakerIsDead(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil {
		t.Skip("there is no flock")
	}
	path := file(t, filepath.Join(t.TempDir(), "f"), "")
	pid, _ := hold(t, "", nil, "flock", path, "sh", "-c", "echo held; read x; exit 0")
	taker, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := taker.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := taker.Wait(); err != nil {
		t.Fatal(err)
	}
	r := look(t, path)
	if r.Status != foreign.Held || len(r.Processes) != 1 || r.Processes[0].PID == pid || !strings.HasPrefix(r.Processes[0].Command, "sh -c echo held") {
		t.Errorf("%v", r)
	}
}

// While the editor of git commit -a is open, git has index.lock closed, and is found by where it runs.
func TestALockOfGitIsHeldWhileGitRunsAndStaleWhenItIsKilled(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git")
	}
	top := t.TempDir()
	repo, tree, link := filepath.Join(top, "repo"), filepath.Join(top, "tree"), filepath.Join(top, "link")
	env := []string{
		"GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org",
		"GIT_EDITOR=sh -c 'echo held >&3; read x' editor",
	}
	git := func(dir string, args ...string) {
		t.Helper()
		c := exec.Command("git", args...)
		c.Dir, c.Env = dir, append(os.Environ(), env...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git(top, "init", "-q", repo)
	file(t, filepath.Join(repo, "a"), "1")
	git(repo, "add", "a")
	git(repo, "commit", "-q", "-m", "1")
	git(repo, "worktree", "add", "-q", tree)
	if err := os.Symlink(repo, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ at, lock, from, call string }{
		{repo, link + "/.git/index.lock", repo, "git commit -a"},
		{tree, repo + "/.git/worktrees/tree/index.lock", tree, "git commit -a"},
		{repo, repo + "/.git/index.lock", top, "git --git-dir=" + repo + "/.git --work-tree=" + repo + " commit -a"},
	} {
		if r := look(t, c.lock); r.Kind != "git" || r.Status != foreign.Free {
			t.Fatalf("before: %v", r)
		}
		file(t, filepath.Join(c.at, "a"), c.call+c.at)
		pid, stop := hold(t, c.from, env, "sh", "-c", "exec 3>&1; exec "+c.call+" >&2")
		r := look(t, c.lock)
		if r.Status != foreign.Held || len(r.Suggestions) > 0 || len(r.Processes) == 0 || r.Processes[0].PID != pid {
			t.Errorf("%s, while git %d runs: %v", c.lock, pid, r)
		}
		stop()
		r = look(t, c.lock)
		if r.Status != foreign.Stale || len(r.Processes) > 0 || len(r.Suggestions) != 1 || r.Suggestions[0] != "rm "+c.lock {
			t.Fatalf("%s, after kill -9: %v", c.lock, r)
		}
		if err := os.Remove(c.lock); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFilesOfOtherProgramsAreKnown(t *testing.T) {
	dir := t.TempDir()
	const info = `{"ID":"0b1f","Operation":"OperationTypeApply","Info":"","Who":"ana@box","Version":"1.9.5","Created":"2026-11-25T09:00:00Z","Path":"terraform.tfstate"}`
	file(t, dir+"/tf/.terraform.tfstate.lock.info", info)
	file(t, dir+"/bazel/server/server.pid.txt", "4711")
	for _, c := range []struct {
		path, text, locked, kind, detail, line string
	}{
		{"target/debug/.cargo-lock", "", "", "cargo", "target directory", "cargo build --target-dir OTHER_DIRECTORY"},
		{".cargo/.package-cache", "", "", "cargo", "target directory", "cargo build --target-dir OTHER_DIRECTORY"},
		{"bazel/lock", "pid=12\nowner=client\n", "", "bazel", "pid=12 owner=client server=4711", "bazel --output_base=" + dir + "/bazel shutdown"},
		{"tf/terraform.tfstate", "{}", "", "terraform", "OperationTypeApply by ana@box since 2026-11-25T09:00:00Z, lock ID 0b1f", "terraform plan -lock-timeout=10m"},
		{"tf/.terraform.tfstate.lock.info", info, "tf/terraform.tfstate", "terraform", "by ana@box", "terraform plan -lock-timeout=10m"},
	} {
		path := file(t, filepath.Join(dir, c.path), c.text)
		of := path
		if c.locked != "" {
			of = filepath.Join(dir, c.locked)
		}
		_, stop := hold(t, "", []string{"HOLD=fcntl", "HOLD_FILE=" + of}, os.Args[0])
		r := look(t, path)
		if r.Kind != c.kind || r.Status != foreign.Held || !strings.Contains(r.Detail, c.detail) || len(r.Suggestions) == 0 || r.Suggestions[0] != c.line {
			t.Errorf("%s: %+v", c.path, r)
		}
		if stop(); look(t, path).Status != foreign.Free {
			t.Errorf("%s, when its process is dead: %v", c.path, look(t, path))
		}
	}
	left := dir + "/tf/.terraform.tfstate.lock.info"
	if r := look(t, left); !strings.Contains(r.Detail, "keeps nobody out; ") || r.Suggestions[0] != "rm "+left {
		t.Errorf("%+v", r)
	}
	if r := look(t, file(t, dir+"/s3/default.tflock", info)); r.Status != foreign.Stale || r.Suggestions[0] != "terraform force-unlock 0b1f" {
		t.Errorf("%+v", r)
	}
	if r := look(t, "/var/lib/dpkg/no-such-file"); r.Kind != "dpkg" || r.Status != foreign.Free || r.Detail != "there is no such file" {
		t.Errorf("%+v", r)
	}
	if r := look(t, dir); r.Kind != "file" || r.Status != foreign.Free {
		t.Errorf("%+v", r)
	}
}
