//go:build unix

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/store/filestore"
)

func now(t *testing.T) time.Duration {
	t.Helper()
	d, ok := process.Monotonic()
	if !ok {
		t.Skip("this system has no clock that processes share")
	}
	return d
}

// span is when something happens, on the shared clock: not before the one and not after the other.
type span struct{ from, to time.Duration }

// expiry returns when the only holder of the lock goes stale.
func expiry(t *testing.T, root, name string) (stale span, h lokt.Holder) {
	t.Helper()
	s, err := filestore.Open(root, filestore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	before := now(t)
	snap, err := s.View(context.Background(), name)
	after := now(t)
	if err != nil || len(snap.Lock.Holders) != 1 {
		t.Fatalf("lock %s: %d holders, %v", name, len(snap.Lock.Holders), err)
	}
	h = snap.Lock.Holders[0]
	left := h.ExpiresAt.Sub(snap.Now)
	return span{before + left, after + left}, h
}

// slack is what two readings of clocks, one after the other, may differ by.
const slack = 20 * time.Millisecond

// takeWhenStale asks again and again until it gets the lock. No attempt that ended before the lock went stale may have got
// it.
func takeWhenStale(t *testing.T, p *proc, name string, stale span) reply {
	t.Helper()
	for {
		r := p.ask("try %s", name)
		switch r.what {
		case "ok":
			if r.done < stale.from-slack {
				t.Fatalf("taken %v before it went stale", stale.from-r.done)
			}
			return r
		case "held":
			if r.begun > stale.to+slack {
				t.Fatalf("refused %v after it went stale", r.begun-stale.to)
			}
		default:
			t.Fatalf("try: %s %v", r.what, r.rest)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func token(t *testing.T, r reply) uint64 {
	t.Helper()
	if r.what != "ok" {
		t.Fatalf("not granted: %s %v", r.what, r.rest)
	}
	n, err := strconv.ParseUint(r.rest[0], 10, 64)
	if err != nil || n == 0 {
		t.Fatalf("token %v: %v", r.rest, err)
	}
	return n
}

// Promise S-27.
func TestALockGoesStaleAfterTheThresholdAndNotBefore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ ttl, interval time.Duration }{{5 * time.Second, time.Second}, {2 * time.Second, 500 * time.Millisecond}} {
		t.Run(c.ttl.String(), func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			a, b := start(t, root, c.ttl, c.interval), start(t, root, c.ttl, c.interval)
			first := a.ask("manual x")
			tokenA := token(t, first)
			stale, _ := expiry(t, root, "x")
			if stale.to < first.begun+c.ttl-slack || stale.from > first.done+c.ttl+slack {
				t.Fatalf("goes stale %v after it was acquired, not %v", stale.from-first.done, c.ttl)
			}
			if r := takeWhenStale(t, b, "x", stale); token(t, r) <= tokenA {
				t.Fatal("the token did not rise")
			}
		})
	}
}

func TestACrashedHolderIsTakenOverOneThresholdAfterItsLastHeartbeat(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const ttl = 8 * time.Second // of which a machine that stands still may take some
	a, b := start(t, root, ttl, time.Second), start(t, root, ttl, time.Second)
	tokenA := token(t, a.ask("try x"))
	deadline := time.Now().Add(patience)
	for _, h := expiry(t, root, "x"); h.Renewals < 2; _, h = expiry(t, root, "x") {
		if time.Now().After(deadline) {
			t.Fatalf("no heartbeat within %v", patience)
		}
		time.Sleep(20 * time.Millisecond)
	}
	a.kill()
	stale, h := expiry(t, root, "x")
	r := takeWhenStale(t, b, "x", stale)
	if token(t, r) <= tokenA {
		t.Fatal("the token did not rise")
	}
	after := r.done - (stale.from - h.TTL)
	t.Logf("taken %v after the last heartbeat", after)
	if after < ttl-slack {
		t.Errorf("taken %v after the last heartbeat, before the threshold of %v", after, ttl)
	}
}

// Promise S-13.
func TestAStoppedHolderLearnsOfItsLossBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	a, b := start(t, root, 5*time.Second, time.Second), start(t, root, time.Minute, time.Second)
	tokenA := token(t, a.ask("try x"))
	a.stop()
	stopped := now(t)
	stale, _ := expiry(t, root, "x")
	r := takeWhenStale(t, b, "x", stale)
	if token(t, r) <= tokenA {
		t.Fatal("the token did not rise")
	}
	for now(t)-stopped < 7*time.Second {
		time.Sleep(50 * time.Millisecond)
	}
	_, before := expiry(t, root, "x")
	a.signal(syscall.SIGCONT)
	if got := a.ask("state x"); strings.Join(got.rest, " ") != "lost ended silent" {
		t.Errorf("the stopped holder wakes up %v, not lost, ended and silent", got.rest)
	}
	if got := a.ask("renew x"); got.what != "lost" {
		t.Errorf("the stopped holder's renewal: %s, not refused", got.what)
	}
	if got := a.ask("release x"); got.what != "ok" || got.rest[0] != "lost" {
		t.Errorf("the stopped holder's release: %s %v", got.what, got.rest)
	}
	_, after := expiry(t, root, "x")
	if after.LeaseID != before.LeaseID || after.Token != before.Token {
		t.Errorf("the second holder was touched: %+v, and before %+v", after, before)
	}
	if got := b.ask("state x"); strings.Join(got.rest, " ") != "held live beating" {
		t.Errorf("the second holder is %v", got.rest)
	}
}

// often returns n where LOKT_SOAK is set, and an eighth of it otherwise: how often something is tried.
func often(n int) int {
	if os.Getenv("LOKT_SOAK") == "" {
		return n / 8
	}
	return n
}

// Promises S-1, S-3.
func TestFiftyProcessesHaveOneWinnerInEveryRound(t *testing.T) {
	t.Parallel()
	const processes = 50
	rounds := often(100)
	root := t.TempDir()
	procs := make([]*proc, processes)
	for i := range procs {
		procs[i] = start(t, root, time.Hour, 10*time.Second)
	}
	round := func(name string) {
		t.Helper()
		for _, p := range procs {
			p.tell("manual %s", name)
		}
		var winners []*proc
		for _, p := range procs {
			if p.hear().what == "ok" {
				winners = append(winners, p)
			}
		}
		if len(winners) != 1 {
			t.Fatalf("%s: %d winners", name, len(winners))
		}
		winners[0].ask("release %s", name)
	}
	for i := range rounds {
		round("free-" + strconv.Itoa(i))
	}
	crashed := start(t, root, 500*time.Millisecond, 100*time.Millisecond)
	for i := range rounds {
		token(t, crashed.ask("manual stale-%d", i))
	}
	stale, _ := expiry(t, root, fmt.Sprintf("stale-%d", rounds-1))
	crashed.kill()
	for now(t) < stale.to+slack {
		time.Sleep(slack)
	}
	for i := range rounds {
		round("stale-" + strconv.Itoa(i))
	}
}

// Promise S-44.
func TestOppositeOrdersNeverDeadlock(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	a, b := start(t, root, time.Minute, time.Second), start(t, root, time.Minute, time.Second)
	a.tell("all %d a b", often(1000))
	b.tell("all %d b a", often(1000))
	for _, p := range []*proc{a, b} {
		if r := p.hear(); r.what != "ok" {
			t.Fatalf("%s %v", r.what, r.rest)
		}
	}
}

func TestEachProcessIsARunnerOfItsOwn(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	a, b := start(t, root, time.Minute, time.Second), start(t, root, time.Minute, time.Second)
	idA, idB := a.ask("runner").rest[0], b.ask("runner").rest[0]
	for p, id := range map[*proc]string{a: idA, b: idB} {
		if want := fmt.Sprintf(`^runner_\d{13}_[0-9a-f]{8}_%d$`, p.cmd.Process.Pid); !regexp.MustCompile(want).MatchString(id) {
			t.Errorf("runner %q does not match %s", id, want)
		}
	}
	if idA == idB {
		t.Fatalf("two processes are one runner: %s", idA)
	}
	first := token(t, a.ask("try x"))
	if r := b.ask("try x"); r.what != "held" {
		t.Fatalf("another runner's try: %s", r.what)
	}
	if again := token(t, a.ask("try x")); again <= first {
		t.Errorf("re-entry has token %d, after %d", again, first)
	}
	if r := a.ask("release x"); r.what != "ok" {
		t.Fatalf("release: %s", r.what)
	}
	if r := b.ask("try x"); r.what != "held" {
		t.Fatalf("after the first of two releases, another's try: %s", r.what)
	}
	if r := a.ask("release x"); r.what != "ok" {
		t.Fatalf("release: %s", r.what)
	}
	token(t, b.ask("try x"))
	a.kill()
	if again := start(t, root, time.Minute, time.Second).ask("runner").rest[0]; again == idA || again == idB {
		t.Errorf("a restarted program is the runner %s again", again)
	}
}

func TestAHolderThatComputesWithoutPauseKeepsItsLock(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const ttl = 8 * time.Second // of which a machine that stands still may take some
	a, b := start(t, root, ttl, time.Second), start(t, root, ttl, time.Second)
	token(t, a.ask("try x"))
	a.tell("spin 10s")
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { defer close(done); a.hear() })
	tries := 0
	for busy := true; busy; {
		select {
		case <-done:
			busy = false
		case <-time.After(100 * time.Millisecond):
			if r := b.ask("try x"); r.what != "held" {
				t.Fatalf("a busy holder's lock: %s", r.what)
			}
			tries++
		}
	}
	wg.Wait()
	if got := a.ask("state x"); strings.Join(got.rest, " ") != "held live beating" {
		t.Errorf("after computing, the holder is %v", got.rest)
	}
	if tries < 10 {
		t.Errorf("tried %d times only", tries)
	}
}
