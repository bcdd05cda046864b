package jobserver

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/programs"
	"github.com/lokt-dev/lokt/store/filestore"
)

// patience is how long something that must happen may take.
const patience = time.Minute

// site is a directory with a makefile, and a place of its own for the tokens.
type site struct {
	*testing.T
	dir, bin string
}

// jobs is a makefile of jobs that write when they begin and end.
const jobs = `
N = 1 2 3 4 5 6
all: $(addprefix job,$(N))
job%:
	@echo + >> log; $(DO); echo - >> log
DO = sleep $(LAST)
LAST = 0.05
sub:
	+@$(MAKE) --no-print-directory all
fork:
	-+@$(MAKE) --no-print-directory all
.PHONY: all sub fork
`

// untilGo is for a build whose jobs end when [site.letGo] says so, however slowly they begin.
const untilGo = "DO=until test -e go; do sleep 0.05; done"

// letGo lets those jobs end.
func (s *site) letGo() {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o644); err != nil {
		s.Fatal(err)
	}
}

func newSite(t *testing.T) *site {
	t.Helper()
	t.Parallel()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("there is no make")
	}
	bin, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t, t.TempDir(), bin}
	if err := os.WriteFile(filepath.Join(s.dir, "Makefile"), []byte(jobs), 0o644); err != nil {
		t.Fatal(err)
	}
	return s
}

// build starts a build with so many tokens on the machine.
func (s *site) build(tokens int, args ...string) (*exec.Cmd, *bytes.Buffer) {
	s.Helper()
	args = append([]string{"jobserver", "--root", filepath.Join(s.dir, "locks"), "--tokens", strconv.Itoa(tokens)}, args...)
	c := exec.CommandContext(s.Context(), filepath.Join(s.bin, "lokt"), args...)
	var out bytes.Buffer
	c.Dir, c.Stdout, c.Stderr = s.dir, &out, &out
	c.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "MAKE") || strings.HasPrefix(kv, "MFLAGS=") })
	c.WaitDelay = patience
	if err := c.Start(); err != nil {
		s.Fatal(err)
	}
	return c, &out
}

// most returns how many jobs ran at once, and how many ran in all.
func (s *site) most() (most, all int) {
	s.Helper()
	log, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		s.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(log)) {
		if strings.HasPrefix(line, "+") {
			n, all = n+1, all+1
		} else {
			n--
		}
		most = max(most, n)
	}
	return most, all
}

// taken returns how many tokens are out.
func (s *site) taken() int {
	s.Helper()
	store, err := filestore.Open(filepath.Join(s.dir, "locks"), filestore.Options{})
	if err != nil {
		s.Fatal(err)
	}
	at, err := lokt.NewManager(store).Get(context.Background(), lockName)
	if err != nil {
		s.Fatal(err)
	}
	return len(at.Live())
}

func (s *site) await(what string, done func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("after %v it is not so that %s", patience, what)
		}
	}
}

// Promise S-205.
func TestAllBuildsTogetherRunAsManyJobsAsThereAreTokens(t *testing.T) {
	s := newSite(t)
	var builds []*exec.Cmd
	var outs []*bytes.Buffer
	for _, target := range []string{"all", "sub", "all"} {
		c, out := s.build(3, "--", "make", "-j", target, "LAST=0.3")
		builds, outs = append(builds, c), append(outs, out)
	}
	for i, c := range builds {
		if err := c.Wait(); err != nil {
			t.Errorf("build %d: %v\n%s", i, err, outs[i])
		}
		if strings.Contains(outs[i].String(), "jobserver") {
			t.Errorf("make complained:\n%s", outs[i])
		}
	}
	if most, all := s.most(); most > 3 || most < 2 || all != 18 {
		t.Errorf("%d jobs ran, %d at once, with 3 tokens", all, most)
	}
	if n := s.taken(); n != 0 {
		t.Errorf("%d tokens are out when all builds have ended", n)
	}
}

func TestOneBuildHasAllTokensThatNobodyElseWants(t *testing.T) {
	s := newSite(t)
	c, out := s.build(4, "--", "make", "-j", "all", untilGo)
	s.await("four jobs run", func() bool { most, _ := s.soFar(); return most == 4 })
	s.letGo()
	if err := c.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c, out = s.build(4, "--", "make", "-j2", "all")
	if err := os.Remove(filepath.Join(s.dir, "log")); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if most, _ := s.most(); most > 2 {
		t.Errorf("with -j2 %d jobs ran at once", most)
	}
}

// soFar is most before there may be a log.
func (s *site) soFar() (most, all int) {
	if _, err := os.Stat(filepath.Join(s.dir, "log")); err != nil {
		return 0, 0
	}
	return s.most()
}

// Promise S-206.
func TestNoTokenIsLostWhenBuildsAreKilled(t *testing.T) {
	s := newSite(t)
	rounds := 25
	if os.Getenv("LOKT_SOAK") != "" {
		rounds = 100
	}
	for i := range rounds {
		c, _ := s.build(3, "--", "make", "-j", "sub", "LAST=0.02")
		s.await("a job has begun", func() bool { _, all := s.soFar(); return all > 0 })
		time.Sleep(time.Duration(i%10) * time.Millisecond) // at any moment
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if err := os.Remove(filepath.Join(s.dir, "log")); err != nil {
			t.Fatal(err)
		}
	}
	s.await("all tokens are back", func() bool { return s.taken() == 0 })
	c, out := s.build(3, "--", "make", "-j", "all", untilGo)
	s.await("three jobs run", func() bool { most, _ := s.soFar(); return most == 3 })
	s.letGo()
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Promise S-206.
func TestTokensOfAClientThatIsKilledComeBackWhileTheBuildGoesOn(t *testing.T) {
	s := newSite(t)
	if err := os.WriteFile(filepath.Join(s.dir, "client"), []byte(`#!/bin/sh
echo $$ > pid
exec make --no-print-directory all LAST=8
`), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "Makefile"), []byte(jobs+`
whole:
	-+@./client
	@echo waiting; while ! test -e go; do sleep 0.02; done
`), 0o644); err != nil {
		t.Fatal(err)
	}
	c, out := s.build(4, "--", "make", "-j", "whole")
	s.await("four jobs run", func() bool { most, _ := s.soFar(); return most == 4 })
	pid, err := os.ReadFile(filepath.Join(s.dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.await("the tokens of the dead client are back", func() bool { return s.taken() <= 2 }) // the first job's, and one that is offered
	s.letGo()
	if err := c.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// Promise S-205. It is the protocol, for a client that is no make.
func TestTokensAreTakenFromOneDescriptorAndGivenToAnother(t *testing.T) {
	s := newSite(t)
	c, out := s.build(3, "--", "bash", "-c", `
		auth=${MAKEFLAGS##*--jobserver-auth=}; take=${auth%,*}; give=${auth#*,}
		dd bs=1 count=1 status=none <&$take; dd bs=1 count=1 status=none <&$take
		touch took; while ! test -e go; do sleep 0.02; done
		printf ++ >&$give`)
	s.await("both tokens are taken", func() bool {
		_, err := os.Stat(filepath.Join(s.dir, "took"))
		return err == nil
	})
	if n := s.taken(); n != 3 {
		t.Errorf("%d tokens are out, and with the first there are 3", n)
	}
	s.letGo()
	if err := c.Wait(); err != nil || out.String() != "++" {
		t.Errorf("the client read %q: %v", out, err)
	}
	if n := s.taken(); n != 0 {
		t.Errorf("%d tokens are out when the build has ended", n)
	}
}

// Promise S-205.
func TestABuildInsideABuildUsesItsTokensWhateverItsOwnNumber(t *testing.T) {
	s := newSite(t)
	if err := os.WriteFile(filepath.Join(s.dir, "Makefile"), []byte(jobs+"\nnest:\n\t+@"+filepath.Join(s.bin, "lokt")+
		" jobserver -- make --no-print-directory -kj6 all\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, out := s.build(2, "--", "make", "-sj6", "nest", "LAST=0.2")
	if err := c.Wait(); err != nil || strings.Contains(out.String(), "jobserver") {
		t.Errorf("%v\n%s", err, out)
	}
	if most, all := s.most(); most > 2 || all != 6 {
		t.Errorf("%d jobs ran, %d at once, with 2 tokens", all, most)
	}
}

func TestFlagsOfWhatOnlyEndsWithMakeStayItsOwn(t *testing.T) {
	for _, build := range [][]string{{"cmake", "--build", ".", "-j", "8"}, {"/usr/bin/qmake", "-j8"}, {"cargo", "-j8"}} {
		if rest, most := withoutJobs(build); !slices.Equal(rest, build) || most != lokt.Shared {
			t.Errorf("%v became %v, with %d jobs", build, rest, most)
		}
	}
	for _, program := range []string{"make", "/usr/local/bin/gmake", "remake"} {
		if rest, most := withoutJobs([]string{program, "-j", "8", "all"}); !slices.Equal(rest, []string{program, "all"}) || most != 8 {
			t.Errorf("%s: %v, %d jobs", program, rest, most)
		}
	}
	for _, c := range []struct {
		args, rest string
		most       int
	}{
		{"make -kj8 all", "make -k all", 8},
		{"make -ksj 8 all", "make -ks all", 8},
		{"make -kj all", "make -k all", lokt.Shared},
		{"make --jobs=8 all", "make all", 8},
		{"make -fj8 -Cj all", "make -fj8 -Cj all", lokt.Shared},
	} {
		if rest, most := withoutJobs(strings.Fields(c.args)); strings.Join(rest, " ") != c.rest || most != c.most {
			t.Errorf("%s became %v, with %d jobs", c.args, rest, most)
		}
	}
}
