package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/filestore"
)

// playPart plays the part of a process that some test needs.
func playPart(part string) int {
	switch part {
	case "contender":
		return contend()
	case "signal-counter":
		return countSignals()
	}
	fmt.Fprintln(os.Stderr, "no such part:", part)
	return 1
}

// Promise S-1.
func TestOfTenGuardsThatStartTogetherOneRuns(t *testing.T) {
	t.Parallel()
	for what, who := range map[string]func(p *place, i int) *exec.Cmd{
		"distinct owners":             func(p *place, i int) *exec.Cmd { return p.as(fmt.Sprint("owner-", i)).lokt() },
		"one owner":                   func(p *place, _ int) *exec.Cmd { return p.as("owner").lokt() },
		"no owner, several sessions":  func(p *place, _ int) *exec.Cmd { return inSession(p.lokt()) },
		"no owner, one session":       func(p *place, _ int) *exec.Cmd { return p.lokt() },
		"one owner, several sessions": func(p *place, _ int) *exec.Cmd { return inSession(p.as("owner").lokt()) },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			const n = 10
			g := newGate(t)
			in := make(chan *holder, n)
			denied := make(chan result, n)
			for i := range n {
				like := who(p, i)
				like.Args = append(like.Args, "guard", "x", "--", "sh", "-c", loop)
				cmd := g.behind(p, like)
				cmd.SysProcAttr = like.SysProcAttr
				h := p.start(cmd)
				go func() {
					if _, err := h.out.ReadString('\n'); err == nil {
						in <- h
						return
					}
					<-h.heard
					<-h.waited
					denied <- result{h.code, "", h.stderr.String()}
				}()
			}
			g.open()
			var winner *holder
			for range n {
				select {
				case h := <-in:
					if winner != nil {
						t.Fatal("two of them run")
					}
					winner = h
				case r := <-denied:
					if r.code != 2 {
						t.Errorf("one that does not run: %v", r)
					}
					contains(t, r.stderr, `"x" is held by`)
				case <-time.After(atMost):
					t.Fatal("some neither run nor end")
				}
			}
			if winner == nil {
				t.Fatal("none of them runs")
			}
			winner.finish()
			p.free("x")
		})
	}
}

func inSession(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd
}

// The commands of the storm write their guards' tokens to a log while they hold the lock. Tokens rise with every grant, so
// if any command wrote anything after the next one had entered, the log would not be in order: nothing that lokt says
// about itself is believed.
//
// Promise S-35.
func TestGuardsThatAreKilledAtRandomNeverRunTwoCommandsAtOnce(t *testing.T) {
	p := newPlace(t)
	workers, turns := 8, often(60)
	const script = `for i in 1 2 3; do echo "$LOKT_TOKEN $$" >>"$LOG"; [ $i = 3 ] || sleep 0.001; done`
	path := p.dir + "/log"
	p = p.with("LOG=" + path)
	var mu sync.Mutex
	entered := map[string]bool{} // tokens of guards that nobody killed
	killed := 0
	var working sync.WaitGroup
	for i := range workers {
		working.Go(func() {
			p := p.as(fmt.Sprint("worker-", i))
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			for turn := range turns {
				cmd := p.lokt("guard", "x", "--wait", "--", "sh", "-c", script+`; echo "$LOKT_TOKEN"`)
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				out, err := os.Create(fmt.Sprintf("%s/out-%d", p.dir, i))
				if err != nil {
					t.Error(err)
					return
				}
				defer out.Close()
				cmd.Stdout = out
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				if rnd.IntN(10) < 3 {
					time.Sleep(time.Duration(rnd.ExpFloat64() * float64(20*time.Millisecond)))
					target := cmd.Process.Pid
					if rnd.IntN(2) == 0 {
						target = -target // the guard, and its command with it
					}
					_ = syscall.Kill(target, syscall.SIGKILL) // it may have ended before
				}
				err = cmd.Wait()
				code := cmd.ProcessState.ExitCode()
				mu.Lock()
				switch {
				case code == 0:
					token, err := os.ReadFile(out.Name())
					if err != nil {
						t.Error(err)
					}
					entered[strings.TrimSpace(string(token))] = true
				case code == -1:
					killed++
				default:
					t.Errorf("worker %d, turn %d: %v", i, turn, err)
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	p.comesFree("x") // the last command of a killed guard may still run
	data, err := os.ReadFile(path)
	check(t, err)
	var last uint64
	who := map[uint64]string{}
	lines := map[string]int{}
	for line := range strings.Lines(string(data)) {
		token, pid, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(token, 10, 64)
		if err != nil {
			t.Fatalf("in the log: %q", line)
		}
		if n < last {
			t.Fatalf("a command under token %d was still at work when the one under token %d had begun", n, last)
		}
		if who[n] != "" && who[n] != pid {
			t.Fatalf("token %d was given to two", n)
		}
		last, who[n] = n, pid
		lines[token]++
	}
	for token := range entered {
		if lines[token] != 3 {
			t.Errorf("the command under token %s did %d of 3 things", token, lines[token])
		}
	}
	if killed < workers*turns/24 || len(entered) < workers*turns/2 {
		t.Errorf("%d guards were killed and %d were not: this proves little", killed, len(entered))
	}
	if q := p.queue("x"); len(q) != 0 {
		t.Errorf("left in the queue: %v", q)
	}
}

// Rounds of TestOfFourThatFindAStaleRecordOneGetsIn: through the program, and through the store in long-lived processes,
// which come closer to each other.
var (
	programRounds = often(32)
	storeRounds   = often(400)
)

// Promise S-3.
func TestOfFourThatFindAStaleRecordOneGetsIn(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"dead", "killed", "expired", "corrupt"} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t)
			stale := p.staleRecord(kind)
			g := p.contenders(4)
			for i := range programRounds + storeRounds {
				name, how := fmt.Sprint("x", i), "store"
				if i < programRounds {
					how = []string{"lock", "guard"}[i%2]
				}
				p.plant("locks/"+name+".json", stale(name))
				if won := g.round(how, name); won != 1 {
					t.Fatalf("round %d (%s): %d got in", i, how, won)
				}
			}
			if n := strings.Count(p.auditLog(), `"event":"acquire","name":"x`); n != programRounds+storeRounds {
				t.Errorf("%d acquisitions are in the audit log of %d rounds", n, programRounds+storeRounds)
			}
		})
	}
}

// staleRecord returns a maker of records that hold nothing any more.
func (p *place) staleRecord(kind string) func(name string) []byte {
	p.t.Helper()
	host, err := os.Hostname()
	check(p.t, err)
	switch kind {
	case "dead":
		pid := p.deadPID()
		return func(name string) []byte {
			return fmt.Appendf(nil, `{"version":1,"name":%q,"owner":"ghost","host":%q,"pid":%d,"pid_start_ns":1,"acquired_ts":%q}`,
				name, host, pid, time.Now().Format(time.RFC3339Nano))
		}
	case "killed":
		h := p.as("ghost").hold("template")
		h.noted("template")
		data := p.bytes("template")
		h.kill(syscall.SIGKILL)
		check(p.t, h.in.Close())
		h.wait()
		p.eventually("it is dead", func() bool { return p.run("exists", "template").code == 3 }) // see comesFree
		return func(name string) []byte {
			return bytes.ReplaceAll(data, []byte(`"template"`), []byte(strconv.Quote(name)))
		}
	case "expired":
		return func(name string) []byte {
			return fmt.Appendf(nil, `{"version":1,"name":%q,"owner":"ghost","host":"elsewhere","pid":1,"acquired_ts":%q,"ttl_sec":60,"expires_at":%q}`,
				name, time.Now().Add(-time.Hour).Format(time.RFC3339Nano), time.Now().Add(-59*time.Minute).Format(time.RFC3339Nano))
		}
	}
	return func(name string) []byte { return []byte(`{"version":1,"name":"` + name) }
}

// deadPID returns the ID of a process that has ended.
func (p *place) deadPID() int {
	p.t.Helper()
	cmd := p.command("true")
	check(p.t, cmd.Run())
	return cmd.Process.Pid
}

// contenders are processes that try to get locks at the same moment.
type contenders struct {
	t       *testing.T
	signal  *os.File // one byte lets one of them go on
	orders  []io.Writer
	answers []*bufio.Reader
}

func (p *place) contenders(n int) *contenders {
	p.t.Helper()
	path, err := program()
	check(p.t, err)
	g := newGate(p.t)
	c := &contenders{t: p.t, signal: g.w}
	for i := range n {
		cmd := p.as(fmt.Sprint("contender-", i)).part("contender", path, p.root)
		cmd.ExtraFiles = []*os.File{g.r}
		cmd.Stderr = os.Stderr
		orders, err := cmd.StdinPipe()
		check(p.t, err)
		answers, err := cmd.StdoutPipe()
		check(p.t, err)
		check(p.t, cmd.Start())
		p.t.Cleanup(func() {
			orders.Close()
			if err := cmd.Wait(); err != nil {
				p.t.Errorf("contender: %v", err)
			}
		})
		c.orders, c.answers = append(c.orders, orders), append(c.answers, bufio.NewReader(answers))
	}
	return c
}

// round lets all of them try to get the lock, in the way that how says, and returns how many did. Then all let go.
func (c *contenders) round(how, name string) (won int) {
	c.t.Helper()
	for _, answer := range []string{"ready", "tried", "done"} {
		switch answer {
		case "ready":
			c.order(how + " " + name)
		case "tried":
			_, err := c.signal.Write(make([]byte, len(c.orders)))
			check(c.t, err)
		case "done":
			c.order("let go")
		}
		for _, r := range c.answers {
			line, err := r.ReadString('\n')
			check(c.t, err)
			if line == "won\n" {
				won++
			} else if line != answer+"\n" {
				c.t.Fatalf("a contender for %s says %s", name, line)
			}
		}
	}
	return won
}

func (c *contenders) order(line string) {
	c.t.Helper()
	for _, w := range c.orders {
		_, err := io.WriteString(w, line+"\n")
		check(c.t, err)
	}
}

// contend plays a contender: its arguments are the program and the root.
func contend() int {
	path, root := os.Args[1], os.Args[2]
	signal := os.NewFile(3, "signal")
	store, err := filestore.Open(root, filestore.Options{})
	if err != nil {
		return complain(err)
	}
	self, err := store.Self()
	if err != nil {
		return complain(err)
	}
	manager := lokt.NewManager(store)
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		how, name, _ := strings.Cut(orders.Text(), " ")
		fmt.Println("ready")
		if _, err := signal.Read(make([]byte, 1)); err != nil {
			return complain(err)
		}
		var won bool
		letGo := func() error { return nil }
		switch how {
		case "store":
			c := lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Strict: true, Process: &self}
			c.Owner = lokt.Owner{ID: os.Getenv("LOKT_OWNER"), AnySession: true, Process: self}
			if _, err = manager.Acquire(context.Background(), c); err == nil {
				won = true
				letGo = func() error {
					_, err := manager.Release(context.Background(), lokt.Target{Name: name, LeaseID: c.LeaseID, Owner: c.Owner})
					return err
				}
			} else if errors.Is(err, lokt.ErrHeld) {
				err = nil
			}
		case "lock":
			won, err = wonBy(exec.Command(path, "lock", name).Run())
		case "guard":
			won, letGo, err = tryGuard(exec.Command(path, "guard", name, "--", "sh", "-c", loop))
		}
		if err != nil {
			return complain(err)
		}
		fmt.Println(map[bool]string{true: "won", false: "tried"}[won])
		if !orders.Scan() {
			return complain(io.ErrUnexpectedEOF)
		}
		if err := letGo(); err != nil {
			return complain(err)
		}
		fmt.Println("done")
	}
	return 0
}

// wonBy tells from how lokt ended whether it got the lock.
func wonBy(err error) (bool, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		return false, nil
	}
	return err == nil, err
}

// tryGuard starts a guard and returns once its command runs or it has ended.
func tryGuard(cmd *exec.Cmd) (won bool, letGo func() error, err error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return false, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, nil, err
	}
	if err := cmd.Start(); err != nil {
		return false, nil, err
	}
	if _, err := out.Read(make([]byte, 64)); err == nil {
		return true, func() error { return errors.Join(in.Close(), cmd.Wait()) }, nil
	}
	_, err = wonBy(cmd.Wait())
	return false, func() error { return nil }, err
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// Whatever the runtime cannot do without, its exit code must be none that scripts read as an answer.
func TestWithoutDescriptorsTheExitCodeIsNoAnswer(t *testing.T) {
	p := newPlace(t)
	lokt := p.lokt().Path
	for n := 4; n <= 16; n++ {
		r := p.sh(`ulimit -n "$1"; exec "$2" guard a -- true`, strconv.Itoa(n), lokt)
		if r.code != 0 && (r.code != 1 || !strings.Contains(r.stderr, "open files")) {
			t.Errorf("with %d descriptors: %v", n, r)
		}
	}
}

// Containers and jails may be as bare: no /dev/null, and no /proc.
func TestLocksWorkInARootWithoutDev(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may change the root")
	}
	can := exec.Command("/bin/true")
	can.SysProcAttr = &syscall.SysProcAttr{Chroot: "/"}
	if err := can.Run(); errors.Is(err, syscall.EPERM) {
		t.Skip(err)
	}
	p := newPlace(t)
	program, err := os.ReadFile(p.lokt().Path)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(p.dir, "lokt"), program, 0o755)) //nolint:gosec // it is run
	for _, args := range [][]string{{"lock", "a"}, {"guard", "b", "--", "/lokt", "status", "a"}, {"unlock", "a"}} {
		cmd := p.with("LOKT_ROOT=/root", "LOKT_OWNER=ana").command("/lokt", args...)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: p.dir}
		if r := p.finish(cmd); r.code != 0 {
			t.Errorf("%v: %v", args, r)
		}
	}
}
