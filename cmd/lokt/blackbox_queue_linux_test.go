package main

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestSeveralNamesAreHeldTogetherOrNotAtAll(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("b")
	p.as("second").want(2, "guard", "a", "b", "c", "--", "touch", "ran")
	p.as("second").want(2, "guard", "a", "b", "c", "--wait", "--timeout", "100ms", "--", "touch", "ran")
	for _, name := range []string{"a", "c"} {
		if !p.absent(name) {
			t.Errorf("%s is held: %s", name, p.bytes(name))
		}
	}
	h.finish()
	h = p.as("second").hold("c", "a", "b", "a")
	for _, name := range []string{"a", "b", "c"} {
		p.held(name)
	}
	h.finish()
	for _, name := range []string{"a", "b", "c"} {
		p.free(name)
	}
	if _, err := os.Lstat(filepath.Join(p.dir, "ran")); err == nil {
		t.Error("a command ran")
	}
	h = p.as("second").start(p.lokt("guard", "b", "a", "--", "sh", "-c", `echo $$; echo "$LOKT_NAME|$LOKT_HELD|$LOKT_LEASE|$LOKT_TOKEN"; exec cat`)).running()
	a, b := p.record("a"), p.record("b")
	want := fmt.Sprintf("a,b|a=%[1]s,b=%[2]s|%[1]s,%[2]s|%[3]d,%[4]d", a.LockID, b.LockID, a.Token, b.Token)
	if line := h.line(); line != want {
		t.Errorf("the command is told %s, want %s", line, want)
	}
	h.finish()
}

func TestGuardsThatTakeTwoNamesInOppositeOrdersNeverWaitForEachOther(t *testing.T) {
	p := newPlace(t)
	turns := often(200)
	var working sync.WaitGroup
	for _, names := range [][]string{{"a", "b"}, {"b", "a"}} {
		working.Go(func() {
			for turn := range turns {
				r := p.as("owner-"+names[0]).run("guard", names[0], names[1], "--wait", "--timeout", "1m", "--", "true")
				if r.code != 0 {
					t.Errorf("turn %d: %v", turn, r)
					return
				}
			}
		})
	}
	working.Wait()
	if !p.absent("a") || !p.absent("b") {
		t.Error("something is left")
	}
}

func TestGuardsInsideGuardsThatWaitForEachOtherAreToldSo(t *testing.T) {
	t.Parallel()
	for what, owners := range map[string][2]string{"two owners": {"one", "two"}, "one owner": {"one", "one"}} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			lokt, err := program()
			check(t, err)
			var both [2]*holder
			for i, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
				q := p.as(owners[i])
				both[i] = q.start(q.lokt("guard", names[0], "--", "sh", "-c", `echo $$; read go; "$0" guard "$1" --wait -- echo in`, lokt, names[1])).running()
			}
			began := time.Now()
			for _, h := range both {
				h.say("go")
			}
			var codes []int
			var said string
			for _, h := range both {
				r := h.wait()
				codes = append(codes, r.code)
				said += r.stderr
			}
			slices.Sort(codes)
			if !slices.Equal(codes, []int{0, 2}) {
				t.Errorf("exit codes %v, want one 0 and one 2: %s", codes, said)
			}
			if d := time.Since(began); d > 30*time.Second {
				t.Errorf("it took %v", d)
			}
			contains(t, said, "would never be free", "take these locks in one order, or together")
			if !p.absent("a") || !p.absent("b") {
				t.Error("something is left")
			}
		})
	}
}

func TestAGuardInsideAGuardOfTheSameNamePassesThrough(t *testing.T) {
	p := newPlace(t)
	lokt, err := program()
	check(t, err)
	const inner = `echo $$; "$0" guard x -- "$0" guard x b -- "$0" guard b x -- sh -c 'echo "in $LOKT_TOKEN"'; exec cat`
	h := p.start(p.lokt("guard", "x", "--", "sh", "-c", inner, lokt)).running()
	line := h.line()
	if token := strconv.FormatUint(p.record("x").Token, 10); !strings.HasPrefix(line, "in ") || !slices.Contains(strings.Split(line[3:], ","), token) {
		t.Errorf("inside it says %q, and the token is %s", line, token)
	}
	p.eventually("b is given back", func() bool { return p.absent("b") }) // by a guard around what has just spoken
	p.held("x")                                                           // the inner ones did not give it back
	h.finish()
	p.free("x")
}

func TestWhoOnlySaysThatAGuardIsAroundItDoesNotPass(t *testing.T) {
	p := newPlace(t)
	old := p.as("first").hold("x")
	stale := "x=" + p.record("x").LockID
	p.as("first").with("LOKT_HELD="+stale).want(0, "guard", "x", "--", "true") // while it holds, this is how it is told
	old.finish()
	h := p.as("second").hold("x")
	for _, held := range []string{
		stale, "x=", "x", "=", ",,,", "x=0123456789abcdef0123456789abcdef", "x=" + h.record("x").LockID[:31], "../x=1", strings.Repeat("x=1,", 1000),
		"y=" + h.record("x").LockID,
	} {
		for _, who := range []string{"first", "second"} {
			r := p.as(who).with("LOKT_HELD="+held, "LOKT_NAME=x", "LOKT_TOKEN=1").run("guard", "x", "--", "true")
			if r.code != 2 {
				t.Errorf("LOKT_HELD=%.60s: %v", held, r)
			}
		}
	}
	// A guard that was forced out does not let those inside it pass.
	id := h.record("x").LockID
	p.want(0, "unlock", "x", "--force")
	p.as("third").want(0, "lock", "x")
	p.as("second").with("LOKT_HELD=x="+id).want(2, "guard", "x", "--", "true")
	h.end()
}

// queue lets somebody wait for x with a guard that says its name when it enters, and returns once it is in the queue.
func (p *place) waiter(who string, n int, args ...string) *holder {
	p.t.Helper()
	q := p.as(who)
	h := q.start(q.lokt(append(append([]string{"guard", "x", "--wait"}, args...), "--", "sh", "-c", `echo "$0" >>"$ENTERED"; `+loop, who)...))
	p.queued("x", n)
	return h
}

// entered returns who entered, in order.
func (p *place) entered() []string {
	data, err := os.ReadFile(filepath.Join(p.dir, "entered"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(data))
}

func TestWaitersEnterInTheOrderInWhichTheyCameWithinTheirPriority(t *testing.T) {
	p := newPlace(t)
	p = p.with("ENTERED=" + filepath.Join(p.dir, "entered"))
	h := p.as("first").hold("x")
	var all []*holder
	for i, who := range []string{"a", "b", "urgent", "c", "lazy", "d", "urgent2"} {
		args := map[string][]string{"urgent": {"--priority", "5"}, "urgent2": {"--priority", "5"}, "lazy": {"--priority", "-1"}}[who]
		all = append(all, p.waiter(who, i+1, args...))
	}
	for _, w := range all {
		check(t, w.in.Close()) // each ends as soon as it is in
	}
	h.finish()
	for _, w := range all {
		if r := w.wait(); r.code != 0 {
			t.Error(r)
		}
	}
	if got, want := strings.Join(p.entered(), " "), "urgent urgent2 a b c d lazy"; got != want {
		t.Errorf("entered: %s, want %s", got, want)
	}
}

func TestNobodyOvertakesTheQueueAndDeadWaitersLeaveIt(t *testing.T) {
	p := newPlace(t)
	p = p.with("ENTERED=" + filepath.Join(p.dir, "entered"))
	h := p.as("first").hold("x")
	var all []*holder
	for i := range 6 {
		all = append(all, p.waiter(fmt.Sprint("w", i), i+1))
	}
	for _, i := range []int{0, 2, 3} {
		all[i].kill(syscall.SIGKILL)
		all[i].died()
	}
	h.finish()
	all[1].running()
	p.as("newcomer").want(2, "lock", "x")
	all[4].kill(syscall.SIGKILL) // whose turn it is next
	all[4].died()
	all[1].finish()
	// Between the end of one and the entry of the next, the lock is not free for those who did not queue.
	all[5].running()
	p.as("newcomer").want(2, "lock", "x")
	all[5].finish()
	if got := strings.Join(p.entered(), " "); got != "w1 w5" {
		t.Errorf("entered: %s", got)
	}
	p.as("newcomer").want(0, "lock", "x")
}

func TestANewcomerIsNotServedBeforeThoseWhoWait(t *testing.T) {
	p := newPlace(t)
	p = p.with("ENTERED=" + filepath.Join(p.dir, "entered"))
	h := p.as("first").hold("x", "--slots", "2")
	w := p.waiter("exclusive", 1)
	r := p.as("newcomer").want(2, "guard", "x", "--slots", "2", "--", "true") // for which there would be room
	contains(t, r.stderr, "exclusive", "--wait")
	p.as("newcomer").want(0, "lock", "x", "--slots", "2", "--priority", "1")
	p.as("newcomer").want(0, "unlock", "x")
	h.finish()
	w.running().finish()
}

func TestSharedAndSlotsLetInAsManyAsAllOfThemAllow(t *testing.T) {
	p := newPlace(t)
	var readers []*holder
	for i := range 4 {
		readers = append(readers, p.as(fmt.Sprint("reader", i)).hold("r", "--shared"))
	}
	p.held("r")
	p.as("limited").want(2, "guard", "r", "--slots", "4", "--", "true")
	p.as("limited").want(0, "guard", "r", "--slots", "5", "--", "true")
	if n := len(p.record("r").Holders); n != 4 {
		t.Errorf("%d holders on record", n)
	}
	for _, h := range readers {
		h.finish()
	}
	w := p.hold("r")
	p.as("reader").want(2, "guard", "r", "--shared", "--", "true")
	w.finish()

	one := p.as("one").hold("s", "--slots", "2")
	same := p.as("one").hold("s", "--slots", "2")
	p.as("one").want(2, "guard", "s", "--slots", "2", "--", "true")
	p.as("three").want(2, "lock", "s", "--slots", "9")
	one.kill(syscall.SIGKILL)
	check(t, one.in.Close())
	one.wait()
	p.eventually("its slot is free", func() bool { return p.as("three").run("lock", "s", "--slots", "9").code == 0 }) // see comesFree
	p.as("three").want(0, "unlock", "s")
	same.finish()
	p.free("s")
}

func TestAGateOfSlotsNeverLetsInMore(t *testing.T) {
	p := newPlace(t)
	slots, workers, turns := 3, 8, often(24)
	dir := filepath.Join(p.dir, "in")
	check(t, os.Mkdir(dir, 0o700))
	var working sync.WaitGroup
	var mu sync.Mutex
	most := 0
	for i := range workers {
		working.Go(func() {
			for range turns {
				r := p.as(fmt.Sprint("w", i)).run("guard", "x", "--slots", strconv.Itoa(slots), "--wait", "--", "sh", "-c",
					`touch "$1/$$"; ls "$1" | wc -l; sleep 0.005; rm "$1/$$"`, "sh", dir)
				n, err := strconv.Atoi(strings.TrimSpace(r.out))
				if r.code != 0 || err != nil {
					t.Error(r)
					return
				}
				mu.Lock()
				most = max(most, n)
				mu.Unlock()
			}
		})
	}
	working.Wait()
	if most > slots || most < 2 {
		t.Errorf("at most %d were in together, of %d that may", most, slots)
	}
}

func TestAWriterIsNotStarvedByAStreamOfReaders(t *testing.T) {
	p := newPlace(t)
	p = p.with("ENTERED=" + filepath.Join(p.dir, "entered"))
	first := p.as("reader").hold("x", "--shared")
	writer := p.waiter("writer", 1)
	var readers []*holder
	for i := range 8 {
		p.as("hasty").want(2, "guard", "x", "--shared", "--", "true")
		readers = append(readers, p.waiter(fmt.Sprint("reader", i), i+2, "--shared"))
	}
	first.finish()
	writer.running()
	if got := p.entered(); len(got) != 1 || got[0] != "writer" {
		t.Errorf("entered: %v", got)
	}
	writer.finish()
	for _, r := range readers {
		r.running() // all of them together
	}
	for _, r := range readers {
		r.finish()
	}
}

func TestWaitingEndsAfterItsTime(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x")
	for _, args := range [][]string{{"lock", "x", "--wait", "--timeout", "1s"}, {"guard", "x", "--wait", "--timeout", "1s", "--", "true"}} {
		began := time.Now()
		r := p.as("second").want(2, args...)
		if d := time.Since(began); d < time.Second || d > 30*time.Second {
			t.Errorf("%v: it took %v", args, d)
		}
		contains(t, r.stderr, "gave up after ", "first")
		if len(p.queue("x")) != 0 {
			t.Errorf("%v: still in the queue", args)
		}
	}
	h.finish()
}

func TestAnExpiryLetsTheNextWaiterIn(t *testing.T) {
	p := newPlace(t)
	p.as("first").want(0, "lock", "x", "--ttl", "2s")
	began := time.Now()
	p.as("second").want(0, "lock", "x", "--wait")
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
	if got := p.audit("x", "takeover"); len(got) != 1 || !strings.HasPrefix(fmt.Sprint(got[0].Extra["displaced"]), "first") {
		t.Errorf("audited: %v", p.audit("x"))
	}
}

// token takes the lock once and returns the fencing token.
func (p *place) token(name string) uint64 {
	p.t.Helper()
	r := p.want(0, "guard", name, "--", "sh", "-c", `echo "$LOKT_TOKEN"`)
	n, err := strconv.ParseUint(strings.TrimSpace(r.out), 10, 64)
	check(p.t, err)
	if n == 0 {
		p.t.Error("the token is 0")
	}
	return n
}

func TestTokensRiseWhateverBecomesOfTheLockTheDirectoryAndTheMachine(t *testing.T) {
	p := newPlace(t)
	last := uint64(0)
	rises := func(after string) {
		t.Helper()
		for range 2 {
			n := p.token("x")
			if n <= last {
				t.Fatalf("after %s: token %d, and before it was %d", after, n, last)
			}
			last = n
		}
	}
	rises("nothing")
	p.as("second").want(0, "lock", "x", "--ttl", "1s")
	last = max(last, p.record("x").Token)
	p.comesFree("x")
	rises("an expiry")
	p.want(0, "lock", "x")
	check(t, os.Remove(p.lockPath("x")))
	rises("the deletion of the record")
	p.want(0, "lock", "x")
	p.want(0, "unlock", "x", "--force")
	rises("force")
	p.plant("locks/x.json", []byte("{corrupt"))
	rises("corruption")
	for range 3 {
		p.rebootOf("x")
		rises("a reboot")
	}
	files, err := os.ReadDir(p.path("guards"))
	check(t, err)
	guard := files[0].Name()
	backup := filepath.Join(p.dir, "backup")
	check(t, os.CopyFS(backup, os.DirFS(p.root)))
	for range 5 { // the copy may or may not get the inodes of the original
		for range often(16) {
			rises("use")
		}
		check(t, os.RemoveAll(p.root))
		check(t, os.CopyFS(p.root, os.DirFS(backup)))
		rises("a restored backup")
	}
	for range 5 { // made anew at once, a file gets the inode of the deleted one, on some file systems
		was := p.file(filepath.Join("guards", guard))
		rises("use")
		check(t, os.Remove(p.path("guards", guard)))
		check(t, os.WriteFile(p.path("guards", guard), was, 0o600))
		rises("a restored guard file")
	}
	for range 5 {
		check(t, os.RemoveAll(p.root))
		rises("rm -rf")
		check(t, os.RemoveAll(p.path("guards")))
		rises("rm -rf of the guard files")
	}
}

// rebootOf makes the guard files look as if they had last been used in another boot, in which the latest tokens did not
// reach the disk: see docs/protocol.md for their first line.
func (p *place) rebootOf(name string) {
	p.t.Helper()
	paths, err := filepath.Glob(p.path("guards", "*"))
	check(p.t, err)
	changed := 0
	for _, path := range paths {
		data, err := os.ReadFile(path)
		check(p.t, err)
		line, _, _ := strings.Cut(string(data), "\n")
		f := strings.Fields(line)
		if len(f) != 6 {
			continue
		}
		ceiling, err := strconv.ParseUint(f[4], 10, 64)
		check(p.t, err)
		f[1] = "01234567-89ab-cdef-0123-456789abcdef"
		f[3] = strconv.FormatUint(ceiling-4000, 10)
		line = strings.Join(f[:5], " ")
		line += fmt.Sprintf(" %d", crc32.ChecksumIEEE([]byte(line)))
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		check(p.t, err)
		_, err = file.WriteAt(fmt.Appendf(nil, "%-511s\n", line+"\n"), 0)
		check(p.t, err)
		check(p.t, file.Close())
		changed++
	}
	if changed == 0 {
		p.t.Fatal("no guard file was changed")
	}
}
