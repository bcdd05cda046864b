package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTheCommandHasTheGuardsStreamsDirectoryAndEnvironment(t *testing.T) {
	p := newPlace(t)
	cmd := p.with("MINE=with spaces\nand a line", "LOKT_LEASE=old", "LOKT_OWNER=me").lokt("guard", "x", "--", "sh", "-c",
		`cat; echo "err" >&2; pwd; printf "%s|%s|%s\n" "$MINE" "$LOKT_OWNER" "$LOKT_NAME"; printf "%s\n" "$@"; env | grep -c ^LOKT_LEASE=`,
		"sh", "a b", "", "-x", "--", "*", "$HOME")
	cmd.Stdin = strings.NewReader("input\x00with\xffbytes\n")
	r := p.finish(cmd)
	want := "input\x00with\xffbytes\n" + p.dir + "\nwith spaces\nand a line|me|x\na b\n\n-x\n--\n*\n$HOME\n1\n"
	if r.code != 0 || r.out != want || r.stderr != "err\n" {
		t.Errorf("got %q, want %q: %v", r.out, want, r)
	}

	// Much of it, both ways.
	big := bytes.Repeat([]byte("0123456789abcde\n"), 1<<17)
	cmd = p.lokt("guard", "x", "--ttl", "10s", "--", "cat")
	cmd.Stdin = bytes.NewReader(big)
	if r := p.finish(cmd); r.code != 0 || r.out != string(big) {
		t.Errorf("exit %d, and %d bytes of %d came through", r.code, len(r.out), len(big))
	}

	// Further descriptors, such as those of make's job server, come through under their numbers; there is one more, which
	// keeps the lock.
	const count = `for f in /proc/$$/fd/*; do n=$((n+1)); done; echo $n`
	r1, w1, err := os.Pipe()
	check(t, err)
	defer r1.Close()
	cmd = p.lokt("guard", "x", "--", "sh", "-c", `echo three >&3; echo four >&4; `+count)
	cmd.ExtraFiles = []*os.File{w1, w1}
	with := p.finish(cmd)
	check(t, w1.Close())
	through, err := io.ReadAll(r1)
	check(t, err)
	cmd = p.command("sh", "-c", count)
	without := p.finish(cmd)
	if string(through) != "three\nfour\n" || number(t, with.out) != number(t, without.out)+3 {
		t.Errorf("through the descriptors came %q; without lokt the command has %s of them, and with it %s", through, without.out, with.out)
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(s))
	check(t, err)
	return n
}

func TestAProgramWithoutStreamsWorks(t *testing.T) {
	p := newPlace(t)
	lokt, err := program()
	check(t, err)
	for _, closed := range []string{">&-", "<&-", "2>&-", "<&- >&- 2>&-"} {
		if r := p.sh(`"$1" lock x `+closed+` && "$1" unlock x `+closed, lokt); r.code != 0 {
			t.Errorf("%s: %v", closed, r)
		}
		p.run("unlock", "x", "--force")
		r := p.sh(`"$1" guard x --ttl 5s -- sh -c 'echo; echo >&2; touch ran; exit 7' `+closed, lokt)
		if _, err := os.Lstat(filepath.Join(p.dir, "ran")); err != nil || r.code != 7 {
			t.Errorf("%s: the command did not run: %v", closed, r)
		}
		check(t, os.Remove(filepath.Join(p.dir, "ran")))
		p.free("x")
	}
	// A record is never taken for a stream.
	for _, closed := range []string{">&-", "2>&-", "<&- >&- 2>&-"} {
		p.sh(`"$1" lock y `+closed, lokt)
		p.as("other").want(2, "lock", "y")
		if r := p.record("y"); r.Version != 1 || r.Name != "y" {
			t.Errorf("%s: %s", closed, p.bytes("y"))
		}
		p.want(0, "unlock", "y")
	}
}

func TestAReaderThatGoesAwayDoesNotWedgeAnything(t *testing.T) {
	p := newPlace(t)
	p.want(0, "lock", "some", "--meta", "k="+strings.Repeat("v", 3000))
	lokt, err := program()
	check(t, err)
	for _, args := range []string{"status", "status --json", "why some", "audit", "guard x -- yes", "guard x -- sh -c 'while :; do echo y || exit 7; done'"} {
		if r := p.sh(`"$0" `+args+` | head -c 1; exit 0`, lokt); r.code != 0 {
			t.Errorf("%s: %v", args, r)
		}
	}
	p.comesFree("x")

	// Standard output and error that nobody empties do not keep a guard from its work.
	r, w, err := os.Pipe()
	check(t, err)
	defer r.Close()
	full(t, w)
	cmd := p.lokt("guard", "x", "--ttl", "8s", "--", "sh", "-c", `echo $$ >"$1"; cat`, "sh", p.dir+"/pid")
	cmd.Stderr = w
	h := p.start(cmd)
	h.follow(p.dir + "/pid")
	renewals := func() int { return p.record("x").Renewals }
	h.eventually("it is renewed", func() bool { return renewals() > 1 })
	h.finish()
}

// full writes to a pipe until no more goes in.
func full(t *testing.T, w *os.File) {
	t.Helper()
	fd := int(w.Fd())
	check(t, syscall.SetNonblock(fd, true))
	for {
		if _, err := syscall.Write(fd, make([]byte, 4096)); err != nil {
			break
		}
	}
	check(t, syscall.SetNonblock(fd, false))
}

// Promise S-342.
func TestAGuardGoesOnWhereNobodyReadsWhatItTells(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(*testing.T, *os.File, *os.File){
		"a reader that has gone":     func(t *testing.T, r, _ *os.File) { check(t, r.Close()) },
		"a reader that stands still": func(t *testing.T, _, w *os.File) { full(t, w) },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			r, w, err := os.Pipe()
			check(t, err)
			defer w.Close()
			defer r.Close()
			prepare(t, r, w)
			cmd := p.lokt("guard", "x", "--ttl", "8s", "--", "sh", "-c", `echo $$ >"$1"; cat; exit 7`, "sh", p.dir+"/pid")
			cmd.Stderr = w
			h := p.start(cmd)
			h.follow(p.dir + "/pid")
			h.noted("x")
			p.as("other").want(0, "ask", "x", "are you there?")
			h.eventually("it is renewed after it has told that", func() bool { return p.record("x").Renewals > 1 })
			p.want(0, "unlock", "x", "--force")
			h.eventually("the loss is audited", func() bool { return len(p.audit("x", "lost")) == 1 })
			if !h.childLives() {
				t.Error("the command was stopped")
			}
			check(t, h.in.Close())
			h.eventually("it has ended, or waits to be read until a signal comes", func() bool {
				if !h.childLives() {
					h.kill(syscall.SIGTERM)
				}
				select {
				case <-h.waited:
					return true
				default:
					return false
				}
			})
			if h.code != 7 && what == "a reader that has gone" {
				t.Errorf("exit %d", h.code)
			}
		})
	}
}

func TestOnLostStopEndsTheCommandEvenIfNobodyReadsTheWarning(t *testing.T) {
	p := newPlace(t)
	r, w, err := os.Pipe()
	check(t, err)
	full(t, w)
	log := filepath.Join(p.dir, "log")
	q := p.with("LOG="+log, "IGNORE=TERM")
	cmd := q.lokt("guard", "x", "--max-hold", "4s", "--on-lost", "stop", "--", "sh", "-c", family)
	cmd.Stderr = w
	h := q.start(cmd).running()
	p.eventually("the command has ended", func() bool { return !h.childLives() })
	p.eventually("all that it started has ended", func() bool {
		before, err := os.ReadFile(log)
		check(t, err)
		time.Sleep(100 * time.Millisecond)
		after, err := os.ReadFile(log)
		check(t, err)
		return string(before) == string(after)
	})
	check(t, r.Close())
	check(t, w.Close())
	if code := h.died(); code != 5 {
		t.Errorf("exit %d", code)
	}
	p.free("x")
}

// mounted mounts a small file system for the test.
func mounted(t *testing.T, dir, options string) {
	t.Helper()
	check(t, os.MkdirAll(dir, 0o700))
	if err := syscall.Mount("none", dir, "tmpfs", 0, options); err != nil {
		t.Skipf("this machine permits no mounts: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestAFullDiskGrantsNothingAndSaysSo(t *testing.T) {
	p := newPlace(t)
	mounted(t, p.root, "size=64k")
	p.want(0, "lock", "before")
	p.want(0, "lock", "held")
	fill := filepath.Join(p.root, "fill")
	if err := exec.Command("dd", "if=/dev/zero", "of="+fill, "bs=4k").Run(); err == nil {
		t.Fatal("the disk is not full")
	}
	before := tree(t, p.path("locks"))
	for _, args := range [][]string{
		{"lock", "x"}, {"guard", "x", "--", "touch", p.dir + "/ran"}, {"guard", "x", "--wait", "--timeout", "1s", "--", "touch", p.dir + "/ran"}, {"freeze", "x", "--ttl", "1m"},
	} {
		r := p.run(args...)
		if r.code != 1 {
			t.Errorf("%v: %v", args, r)
		}
		contains(t, r.stderr, "no space left on device")
	}
	if _, err := os.Lstat(p.dir + "/ran"); err == nil {
		t.Error("the command ran")
	}
	if !p.absent("x") {
		t.Errorf("the lock is held: %s", p.bytes("x"))
	}
	sameTree(t, "locks", before, tree(t, p.path("locks")))
	p.as("other").want(2, "why", "held")
	p.want(0, "status")
	check(t, os.Remove(fill))
	p.free("x")
	p.want(0, "unlock", "before")
	p.as("other").want(2, "lock", "held")
}

func TestADirectoryThatCannotBeWrittenGrantsNothingAndSaysSo(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, p *place, user *syscall.Credential, because string) {
		t.Helper()
		before := tree(t, p.root)
		for _, args := range [][]string{
			{"lock", "x"}, {"guard", "x", "--", "touch", p.dir + "/ran"}, {"guard", "x", "--wait", "--timeout", "1s", "--", "touch", p.dir + "/ran"},
			{"unlock", "held"}, {"freeze", "x", "--ttl", "1m"},
		} {
			cmd := p.lokt(args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
			r := p.finish(cmd)
			if r.code != 1 {
				t.Errorf("%v: %v", args, r)
			}
			contains(t, r.stderr, because)
		}
		for _, args := range [][]string{{"status"}, {"exists", "held"}} {
			cmd := p.lokt(args...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
			if r := p.finish(cmd); r.code != 0 {
				t.Errorf("%v: %v", args, r)
			}
		}
		if _, err := os.Lstat(p.dir + "/ran"); err == nil {
			t.Error("the command ran")
		}
		sameTree(t, "the directory", before, tree(t, p.root))
	}
	t.Run("because of its permissions", func(t *testing.T) {
		p := newPlace(t)
		p = p.as("me")
		p.want(0, "lock", "held")
		var user *syscall.Credential
		if os.Getuid() == 0 { // whom permissions do not stop
			user = &syscall.Credential{Uid: 65534, Gid: 65534}
			check(t, os.Chmod(filepath.Dir(filepath.Dir(p.root)), 0o755)) // the test's own directory
			check(t, os.Chmod(filepath.Dir(p.root), 0o755))
			for path := range tree(t, p.root) {
				check(t, os.Chown(path, 65534, 65534))
			}
		}
		for path, was := range tree(t, p.root) {
			if strings.HasPrefix(was, "d") {
				check(t, os.Chmod(path, 0o500))
				t.Cleanup(func() { check(t, os.Chmod(path, 0o700)) })
			} else {
				check(t, os.Chmod(path, 0o400))
			}
		}
		refused(t, p, user, "permission denied")
	})
	t.Run("because the file system is read-only", func(t *testing.T) {
		p := newPlace(t)
		p = p.as("me")
		mounted(t, p.root, "size=1m")
		p.want(0, "lock", "held")
		check(t, syscall.Mount("none", p.root, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
		refused(t, p, nil, "read-only file system")
	})
}
