//go:build unix

package replicas_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// lockTTL is the time to live of the locks that contenders fight for.
const lockTTL = 3 * time.Second

// hostTime reads the clock that all processes of this host share, and that nobody sets.
func hostTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// contend is a process that takes one of the locks, uses it and gives it back, until its standard input ends. It writes
// a line for all it does: "asked NAME AT", "got NAME LEASE TOKEN AT", "valid LEASE AT" before each use, "lost LEASE",
// "late LEASE" for a use after the loss, and "left LEASE AT". Times are the host's, in nanoseconds.
func contend(urls string, names []string) error {
	client, err := httpapi.New(urls, httpapi.ClientOptions{Attempt: 3 * time.Second})
	if err != nil {
		return err
	}
	k, err := lokt.NewLocker(client, lokt.Owner{ID: fmt.Sprint("contender-", os.Getpid())}, lokt.LockerOptions{})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		stop()
	}()
	for ctx.Err() == nil {
		if err := use(ctx, k, names[rand.IntN(len(names))]); err != nil {
			if errors.Is(err, lokt.ErrInvalid) {
				return err
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(rand.IntN(100)) * time.Millisecond):
			}
		}
	}
	return nil
}

// use takes the lock once.
func use(ctx context.Context, k *lokt.Locker, name string) error {
	fmt.Printf("asked %s %d\n", name, hostTime())
	l, err := k.Acquire(ctx, name, lokt.Options{TTL: lockTTL, Interval: lockTTL / 4, Wait: 20 * time.Second, Strict: true})
	if err != nil {
		return err
	}
	fmt.Printf("got %s %s %d %d\n", name, l.ID(), l.Token(), hostTime())
	for end := time.Now().Add(time.Duration(rand.IntN(int(lockTTL / 4)))); ; {
		at := hostTime()
		if l.Err() != nil {
			fmt.Printf("lost %s\n", l.ID())
			fmt.Printf("late %s\n", l.ID())
			break
		}
		// The lease was good at that moment; this process may stand still before it says so.
		fmt.Printf("valid %s %d\n", l.ID(), at)
		if ctx.Err() != nil || time.Now().After(end) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockTTL)
	defer cancel()
	err = l.Release(release)
	fmt.Printf("left %s %d\n", l.ID(), hostTime())
	return err
}

// believed is what one contender says about one lease.
type believed struct {
	who         string
	name, lease string
	left        bool
	token       uint64
	asked       time.Duration // when it asked
	got         time.Duration // when it was granted, as it saw it
	valid       time.Duration // when it last found the lease good; it may have stood still before it could say that it got it
}

// detector judges what contenders say. It stands apart from all of lokt's code: it knows leases, tokens and times only.
type detector struct {
	mu      sync.Mutex
	asked   map[string]time.Duration // by contender and name
	leases  map[string]*believed
	all     []*believed
	highest map[string]uint64 // token of the last use that the resource behind each name accepted
	uses    int
	lost    int
	fenced  int
	trouble []string
}

func newDetector() *detector {
	return &detector{asked: map[string]time.Duration{}, leases: map[string]*believed{}, highest: map[string]uint64{}}
}

// hear takes in a line of a contender.
func (d *detector) hear(who, line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := strings.Fields(line)
	at := func(i int) time.Duration {
		n, err := strconv.ParseInt(w[i], 10, 64)
		if err != nil {
			d.trouble = append(d.trouble, fmt.Sprintf("%s said %q", who, line))
		}
		return time.Duration(n)
	}
	switch {
	case len(w) == 3 && w[0] == "asked":
		d.asked[who+w[1]] = at(2)
	case len(w) == 5 && w[0] == "got":
		b := &believed{who: who, name: w[1], lease: w[2], token: uint64(at(3)), asked: d.asked[who+w[1]], got: at(4)}
		d.leases[b.lease] = b
		d.all = append(d.all, b)
	case len(w) == 3 && w[0] == "valid" && d.leases[w[1]] != nil:
		b := d.leases[w[1]]
		b.valid = at(2)
		d.access(b)
	case len(w) == 2 && w[0] == "lost":
		d.lost++
	case len(w) == 2 && w[0] == "late" && d.leases[w[1]] != nil:
		d.access(d.leases[w[1]])
	case len(w) == 3 && w[0] == "left" && d.leases[w[1]] != nil:
		d.leases[w[1]].left = true
	default:
		d.trouble = append(d.trouble, fmt.Sprintf("%s said %q", who, line))
	}
}

// access is a use of the resource behind a name, which refuses tokens lower than the highest it has seen.
func (d *detector) access(b *believed) {
	if b.token < d.highest[b.name] {
		d.fenced++
		return
	}
	d.highest[b.name] = b.token
	d.uses++
}

// late returns how many losses were told, and how many late uses were refused.
func (d *detector) late() (lost, fenced int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost, d.fenced
}

// holder returns who was granted a lock last and has not left it.
func (d *detector) holder() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.all); n > 0 && !d.all[n-1].left {
		return d.all[n-1].who
	}
	return ""
}

// judge reports every two leases of a name that cannot both have been right.
func (d *detector) judge() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := slices.Clone(d.trouble)
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for i, a := range d.all {
		for _, b := range d.all[i+1:] {
			if a.name != b.name {
				continue
			}
			first, second := a, b
			if second.token < first.token {
				first, second = second, first
			}
			if first.token == second.token {
				report("two leases of %s have the token %d: both would be let in", a.name, a.token)
			}
			if first.valid >= second.got {
				report("%s: token %d was thought good until %v, and token %d from %v on: two holders for %v",
					a.name, first.token, first.valid, second.token, second.got, first.valid-second.got)
			}
			if first.asked > second.got {
				report("%s: token %d was asked for after the higher token %d had been granted", a.name, first.token, second.token)
			}
		}
	}
	return found
}

func TestTheDetectorSeesTwoHolders(t *testing.T) {
	good := []string{"asked a 1", "asked a 2", "got a next 2 5", "got a late 1 7", "lost late", "late late", "left late 8", "left next 9",
		"asked a 10", "got a one 5 20", "valid one 30", "left one 40", "asked a 35", "got a two 6 45", "valid two 60", "left two 70"}
	bad := map[string][]string{
		"both would be let in":                     {"asked a 50", "got a three 6 80"},
		"two holders for":                          {"asked a 50", "got a three 7 60"},
		"was asked for after":                      {"asked a 71", "got a three 4 80"},
		"said \"got a three seven 80\"":            {"got a three seven 80"},
		"token 6 was thought good until 60ns, and": {"asked a 50", "got a three 9 55"},
	}
	for want, more := range bad {
		d := newDetector()
		for _, line := range good {
			d.hear("c", line)
		}
		if found := d.judge(); len(found) > 0 {
			t.Fatalf("nothing is wrong yet, and %q is found", found)
		}
		for _, line := range more {
			d.hear("c", line)
		}
		if found := strings.Join(d.judge(), "\n"); !strings.Contains(found, want) {
			t.Errorf("%q is not found in %q", want, found)
		}
	}
}

// contender is a process that contends.
type contender struct {
	who string
	cmd *exec.Cmd
	end func()
}

// envRole says what this test's binary is to be.
const envRole = "LOKT_TEST_ROLE"

func command(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, args...)
	c.Env = []string{envRole + "=" + role, "HOME=" + t.TempDir()}
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, "PATH=") || strings.HasPrefix(e, "TMPDIR=") || strings.HasPrefix(e, "GO") {
			c.Env = append(c.Env, e)
		}
	}
	c.Stderr = os.Stderr
	return c
}

// startContender starts a process that contends for the names until it is ended, and tells the detector what it says.
func startContender(t *testing.T, d *detector, who, urls string, names ...string) *contender {
	t.Helper()
	c := &contender{who: who, cmd: command(t, "contender", append([]string{urls}, names...)...)}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			d.hear(who, lines.Text())
		}
	}()
	c.end = sync.OnceFunc(func() {
		_ = c.cmd.Process.Signal(syscall.SIGCONT)
		_ = in.Close()
		select {
		case <-done:
		case <-time.After(15 * time.Second):
			_ = c.cmd.Process.Kill()
			<-done
		}
		_ = c.cmd.Wait()
	})
	t.Cleanup(c.end)
	return c
}
