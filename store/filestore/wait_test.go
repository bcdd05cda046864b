//go:build unix

package filestore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
)

// turns hands the lock "x" over between a and b so many times, and returns how long each hand-over took at most.
func turns(ctx context.Context, m *lokt.Manager, me string, n int) (longest time.Duration, err error) {
	for i := range n {
		c := by(me)
		c.LeaseID, c.Wait = lokt.NewLeaseID(), time.Minute
		begun := time.Now()
		h, err := m.Acquire(ctx, c)
		if err != nil {
			return 0, fmt.Errorf("turn %d: %w", i, err)
		}
		longest = max(longest, time.Since(begun))
		if _, err := m.Release(ctx, lokt.Target{Name: "x", LeaseID: h.LeaseID}); err != nil {
			return 0, fmt.Errorf("turn %d: %w", i, err)
		}
	}
	return longest, nil
}

// Promise S-38.
func TestNoHandOverBetweenGoroutinesIsMissed(t *testing.T) {
	t.Parallel()
	root := memoryPlace(t)
	n := often(1000)
	done := make(chan error, 2)
	for _, who := range []string{"a", "b"} { // with a store each, as processes have
		m := lokt.NewManager(open(t, root, Options{}))
		go func() {
			longest, err := turns(context.Background(), m, who, n/2)
			if err == nil && longest > 10*time.Second {
				err = fmt.Errorf("a hand-over took %v", longest)
			}
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	wakeFilesAreGone(t, root)
}

// count returns how many claims of this process wait to be woken.
func (k *waker) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.waiting)
}

// wakeFilesAreGone checks that nobody is left to be woken.
func wakeFilesAreGone(t *testing.T, root string) {
	t.Helper()
	left, err := os.ReadDir(filepath.Join(root, dirWake))
	if err != nil || len(left) != 0 {
		t.Errorf("%d wake files are left: %v, %v", len(left), left, err)
	}
}

// ping takes turns at the lock "x".
func ping(args []string) error {
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	s, err := Open(args[0], Options{noWatch: args[3] == "blind"})
	if err != nil {
		return err
	}
	longest, err := turns(context.Background(), lokt.NewManager(s), args[1], n)
	fmt.Println(longest.Milliseconds())
	return errors.Join(err, s.Close())
}

func TestNoHandOverBetweenProcessesIsMissed(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"events", "blind"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			root := memoryPlace(t)
			n := "150"
			if how == "blind" {
				n = "25"
			}
			children := []*child{start(t, "ping", root, "a", n, how), start(t, "ping", root, "b", n, how)}
			for _, c := range children {
				took := c.line(t)
				if err := c.Wait(); err != nil {
					t.Errorf("%v: %s", err, c.err)
				}
				if ms, err := strconv.Atoi(took); err != nil || ms > 10_000 {
					t.Errorf("a hand-over took %s ms", took)
				}
			}
			wakeFilesAreGone(t, root)
		})
	}
}

// Promises S-37, S-38, S-40.
func TestManyWhoWaitAreServedInOrder(t *testing.T) {
	t.Parallel()
	waiters := often(200)
	root := memoryPlace(t)
	stores := []*Store{open(t, root, Options{}), open(t, root, Options{}), open(t, root, Options{noWatch: true})}
	m := lokt.NewManager(stores[0])
	begun := time.Now()
	first, err := m.Acquire(t.Context(), by("first"))
	if err != nil {
		t.Fatal(err)
	}
	type grant struct {
		i     int
		token uint64
		err   error
	}
	granted := make(chan grant, waiters)
	var late atomic.Bool // a claim was not on record in time, and so was made again
	for i := range waiters {
		m := lokt.NewManager(stores[i%len(stores)])
		go func() {
			c := by(fmt.Sprint("waiter ", i))
			c.Wait = 5 * time.Minute
			h, err := m.Acquire(context.Background(), c)
			for ; errors.Is(err, lokt.ErrUnavailable) && time.Since(begun) < 5*time.Minute; h, err = m.Acquire(context.Background(), c) {
				late.Store(true)
			}
			if err == nil {
				_, err = m.Release(context.Background(), lokt.Target{Name: "x", LeaseID: h.LeaseID})
			}
			granted <- grant{i, h.Token, err}
		}()
		eventually(t, "it is queued", func() bool {
			snap, err := stores[0].View(t.Context(), "x")
			_, queued := snap.Lock.Position(by(fmt.Sprint("waiter ", i)).LeaseID)
			return err == nil && queued
		})
	}
	if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: first.LeaseID}); err != nil {
		t.Fatal(err)
	}
	tokens := make([]uint64, waiters)
	for range waiters {
		g := <-granted
		if g.err != nil {
			t.Fatalf("waiter %d: %v", g.i, g.err)
		}
		tokens[g.i] = g.token
	}
	// Nobody was late, away or missed a turn, unless this process did not get to run.
	inOrder := !late.Load() && time.Since(begun) < lokt.PresenceTTL
	for e, err := range stores[0].log.Read(t.Context(), audit.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		inOrder = inOrder && e.Event != string(lokt.EventAutoPrune)
	}
	for i, token := range tokens {
		if token != first.Token+1+uint64(i) && inOrder {
			t.Fatalf("waiter %d was served with token %d, after %d", i, token, first.Token)
		}
	}
	snap, err := stores[0].View(t.Context(), "x")
	if err != nil || !snap.Lock.Free() {
		t.Errorf("the lock is %+v, %v", snap.Lock, err)
	}
	wakeFilesAreGone(t, root)
	for i, s := range stores {
		eventually(t, fmt.Sprintf("store %d waits for no wake file", i), func() bool { return s.waker.count() == 0 })
	}
}

// waitOnce queues for the lock "x".
func waitOnce(args []string) error {
	s, err := Open(args[0], Options{})
	if err != nil {
		return err
	}
	self, err := s.Self()
	if err != nil {
		return err
	}
	c := guardClaim("x", self, s.Host())
	c.Wait = -1
	h, err := lokt.NewManager(s).Acquire(context.Background(), c)
	if err != nil {
		return err
	}
	fmt.Println(h.Token)
	time.Sleep(time.Minute)
	return nil
}

// Promise S-39.
func TestDeadWaitersDelayNobody(t *testing.T) {
	t.Parallel()
	root := memoryPlace(t)
	s := open(t, root, Options{})
	m := lokt.NewManager(s)
	if _, err := m.Acquire(t.Context(), by("a")); err != nil {
		t.Fatal(err)
	}
	queued := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " wait"), func() bool {
			snap, err := s.View(t.Context(), "x")
			return err == nil && len(snap.Lock.Queue) == n
		})
	}
	var dead []*child
	for range 4 {
		dead = append(dead, start(t, "wait", root))
	}
	queued(len(dead))
	// As many as one process that is gone could leave behind, too.
	gone := guardClaim("x", lokt.Process{PID: 0x7ffffff0, Start: 1}, s.Host())
	if err := s.Update(t.Context(), "x", func(snap lokt.Snapshot) lokt.Change {
		for i := range 50 {
			gone.LeaseID = fmt.Sprint("gone ", i)
			snap.Lock.Queue = append(snap.Lock.Queue, &lokt.Waiter{Claim: gone, Since: snap.Now, Until: snap.Now.Add(time.Hour)})
		}
		return lokt.Change{Lock: snap.Lock}
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		c := by("alive")
		c.Wait = time.Minute
		_, err := m.Acquire(context.Background(), c)
		done <- err
	}()
	eventually(t, "the last one waits", func() bool {
		snap, err := s.View(t.Context(), "x")
		_, waits := snap.Lock.Position("lease of alive")
		return err == nil && waits
	})
	for _, c := range dead {
		c.kill()
	}
	released := time.Now()
	if _, err := m.Release(t.Context(), lokt.Target{Name: "x", LeaseID: "lease of a"}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(released); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	if left, err := os.ReadDir(filepath.Join(root, dirWake)); err != nil || len(left) != 0 {
		t.Errorf("wake files of the dead are left: %v, %v", left, err)
	}
}

func TestAHolderThatDiesIsNoticedByWhoWaits(t *testing.T) {
	t.Parallel()
	for _, noWatch := range []bool{false, true} {
		root := memoryPlace(t)
		s := open(t, root, Options{noWatch: noWatch})
		holder, _ := holding(t, root, "alone")
		done := make(chan error, 1)
		go func() {
			c := by("a")
			c.Wait = time.Minute
			_, err := lokt.NewManager(s).Acquire(context.Background(), c)
			done <- err
		}()
		eventually(t, "it waits", func() bool {
			snap, err := s.View(t.Context(), "x")
			return err == nil && len(snap.Lock.Queue) == 1
		})
		holder.kill()
		died := time.Now()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if took := time.Since(died); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}

func TestAWaitThatComesTooLateLeavesNoWakeFile(t *testing.T) {
	t.Parallel()
	root := memoryPlace(t)
	s := open(t, root, Options{})
	if _, err := lokt.NewManager(s).Acquire(t.Context(), by("a")); err != nil {
		t.Fatal(err)
	}
	snap, err := s.View(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(t.Context(), lokt.Watch{Name: "x", Seen: snap.Lock.Revision + 1, LeaseID: "lease of a"}); err != nil {
		t.Error(err)
	}
	wakeFilesAreGone(t, root)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Wait(ctx, lokt.Watch{Name: "x", Seen: snap.Lock.Revision, LeaseID: "nobody"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	wakeFilesAreGone(t, root)
	if n := s.waker.count(); n != 0 {
		t.Errorf("still waiting are %d", n)
	}
}

func TestLeaseIDsOfAnyKindHaveWakeFilesInPlace(t *testing.T) {
	t.Parallel()
	s := open(t, place(t), Options{})
	seen := map[string]bool{}
	for _, id := range []string{"a", "A", "../x", "..", ".", "", "a/b", "\x00", strings.Repeat("n", 300), strings.Repeat("n", 301), "h-", lokt.NewLeaseID()} {
		path := s.wakePath(id)
		if filepath.Dir(path) != filepath.Join(s.root, dirWake) || len(filepath.Base(path)) > 64 || seen[path] {
			t.Errorf("%q wakes by %q", id, path)
		}
		seen[path] = true
	}
}
