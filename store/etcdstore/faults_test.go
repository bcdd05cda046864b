package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
)

// claimOf is an exclusive claim.
func claimOf(name, who string, ttl time.Duration) lokt.Claim {
	return lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: who, Host: "test.example"}, TTL: ttl}
}

func acquire(t *testing.T, s lokt.Service, c lokt.Claim) lokt.Holder {
	t.Helper()
	h, err := s.Acquire(t.Context(), c)
	if err != nil {
		t.Fatalf("%s of %s: %v", c.Name, c.Owner.ID, err)
	}
	return h
}

func release(t *testing.T, s lokt.Service, h lokt.Holder) {
	t.Helper()
	if _, err := s.Release(t.Context(), lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: h.Owner}); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to pass that %s", what)
		}
	}
}

// addHolder is a change that adds a hold without end, whose lease ID must be new.
func addHolder(id string) func(lokt.Snapshot) lokt.Change {
	return func(s lokt.Snapshot) lokt.Change {
		s.Lock.Token++
		s.Lock.Holders = append(s.Lock.Holders, lokt.Holder{
			Claim: lokt.Claim{Name: s.Lock.Name, LeaseID: id, Owner: lokt.Owner{ID: "o"}}, Token: s.Lock.Token, HeldSince: s.Now, AcquiredAt: s.Now,
		})
		return lokt.Change{Lock: s.Lock, Events: []lokt.Event{{Time: s.Now, Type: lokt.EventAcquire, Name: s.Lock.Name, LeaseID: id, Token: s.Lock.Token}}}
	}
}

// The promises that a cluster of three keeps while its members come and go. They share one cluster, one after another.
//
// Promises S-110, S-112, S-114.
func TestAClusterOfThreeUnderFaults(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, true)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, c *cluster)
	}{
		{"a killed leader costs little more than the election", killedLeader},
		{"no hold ends early because the leader changed, and it does end", leaderChangeKeepsHolds},
		{"without a quorum everything is unavailable in bounded time, and then goes on", noQuorum},
		{"a member that is cut off from the others answers nothing old", isolatedMember},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c) })
	}
}

func killedLeader(t *testing.T, c *cluster) {
	s := c.open(t, c.url(), Options{Timeout: longTimeout})
	m := lokt.NewManager(s)
	h := acquire(t, m, claimOf("x", "a", time.Hour))
	leader := c.leader()
	var wg sync.WaitGroup
	killed := time.Now()
	wg.Go(leader.stop)
	for time.Since(killed) < time.Second { // some of them meet the dying member
		asked := time.Now()
		if _, err := m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID}); err != nil {
			t.Errorf("renewal after the leader was killed: %v", err)
		}
		if took := time.Since(asked); took > 100*time.Millisecond {
			t.Logf("a renewal took %v, and was answered %v after the leader was killed", took, time.Since(killed))
		}
	}
	wg.Wait()
	blocked := &lokt.BlockedError{}
	if _, err := m.Acquire(t.Context(), claimOf("x", "b", time.Hour)); !errors.As(err, &blocked) {
		t.Errorf("the lock is held, but: %v", err)
	}
	c.start(leader)
	c.leader()
	release(t, m, h)
	if again := acquire(t, m, claimOf("x", "b", time.Hour)); again.Token <= h.Token {
		t.Errorf("token %d after %d", again.Token, h.Token)
	}
}

func leaderChangeKeepsHolds(t *testing.T, c *cluster) {
	m := lokt.NewManager(c.open(t, c.url(), Options{Timeout: longTimeout}))
	const ttl = 3 * time.Second
	asked := time.Now()
	h := acquire(t, m, claimOf("x", "a", ttl))
	leader := c.leader()
	leader.stop()
	next := claimOf("x", "b", time.Hour)
	next.Wait = -1
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, err := m.Acquire(ctx, next)
	took := time.Since(asked)
	if err != nil || got.Token <= h.Token || took < ttl {
		t.Errorf("a hold of %v passed on after %v: %+v, %v", ttl, took, got, err)
	}
	t.Logf("a hold of %v ended after %v", ttl, took)
	c.start(leader)
	c.leader()
}

func noQuorum(t *testing.T, c *cluster) {
	const timeout = time.Second
	s, m := c.open(t, c.url(), Options{Timeout: timeout}), lokt.NewManager(c.open(t, c.url(), Options{Timeout: longTimeout}))
	h := acquire(t, m, claimOf("x", "a", time.Hour))
	dead := c.others(c.leader())
	for _, d := range dead {
		d.stop()
	}
	for what, ask := range map[string]func() error{
		"Update": func() error { return s.Update(t.Context(), "x", addHolder("never")) },
		"View":   func() error { _, err := s.View(t.Context(), "x"); return err },
		"List": func() (err error) {
			for _, e := range s.List(t.Context(), lokt.Filter{}) {
				err = e
			}
			return err
		},
		"ReadEvents": func() error { _, err := s.ReadEvents(t.Context(), lokt.EventQuery{}); return err },
	} {
		start := time.Now()
		err := ask()
		if took := time.Since(start); !errors.Is(err, lokt.ErrUnavailable) || took > 30*timeout {
			t.Errorf("%s answered after %v: %v", what, took, err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.View(short, "x"); !errors.Is(err, lokt.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("View with a context of 50 ms: %v", err)
	}
	c.start(dead...)
	c.leader()
	eventually(t, "the hold can be renewed", func() bool {
		_, err := m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID})
		if err != nil && !errors.Is(err, lokt.ErrUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func isolatedMember(t *testing.T, c *cluster) {
	url := c.url()
	leader := c.leader()
	rest := c.others(leader)
	prefix := fmt.Sprint("test-", c.prefix.Load())
	there := c.open(t, c.urlAt(prefix, leader), Options{Timeout: time.Second}) // sees the isolated member only
	here := c.open(t, c.urlAt(prefix, rest...), Options{Timeout: longTimeout})
	all := c.open(t, url, Options{Timeout: longTimeout})
	if err := here.Update(t.Context(), "x", addHolder("first")); err != nil {
		t.Fatal(err)
	}
	c.isolate(leader)
	mended := sync.OnceFunc(func() { c.rejoin(leader) })
	defer mended()
	if err := here.Update(t.Context(), "x", addHolder("second")); err != nil {
		t.Fatalf("the majority: %v", err)
	}
	if snap, err := there.View(t.Context(), "x"); err == nil {
		t.Errorf("the isolated member answered %+v", snap.Lock)
	} else if !errors.Is(err, lokt.ErrUnavailable) {
		t.Error(err)
	}
	if err := there.Update(t.Context(), "x", addHolder("third")); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("the isolated member: %v", err)
	}
	for range 6 { // whoever knows all members finds one that can answer
		if snap, err := all.View(t.Context(), "x"); err != nil || len(snap.Lock.Holders) != 2 {
			t.Errorf("got %+v, %v", snap.Lock, err)
		}
	}
	mended()
	eventually(t, "the member has caught up", func() bool {
		snap, err := there.View(t.Context(), "x")
		return err == nil && len(snap.Lock.Holders) >= 2
	})
}

// Promise S-111.
func TestAChangeWhoseAnswerIsLostIsStoredOnceAtMost(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: 3 * time.Second})
	other := c.open(t, c.urlAt(fmt.Sprint("test-", c.prefix.Load())), Options{Timeout: longTimeout}) // by the same gate
	g := c.members[0].gate
	stop := make(chan struct{})
	var nemesis sync.WaitGroup
	cuts := 0
	nemesis.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		for cuts < 60 {
			g.Swallow()
			time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
			g.Heal()
			cuts++
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(random.IntN(30)) * time.Millisecond):
			}
		}
	})
	var mu sync.Mutex
	outcome := map[string]error{}
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			for n := range 12 {
				id := fmt.Sprintf("%d-%d", i, n)
				on := []*Store{s, other}[i%2]
				err := on.Update(t.Context(), "x", addHolder(id))
				mu.Lock()
				outcome[id] = err
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	close(stop)
	nemesis.Wait()
	g.Heal()
	var l lokt.Lock
	eventually(t, "etcd answers again", func() bool {
		snap, err := s.View(t.Context(), "x")
		l = snap.Lock
		return err == nil
	})
	times := map[string]int{}
	for i, h := range l.Holders {
		times[h.LeaseID]++
		if i > 0 && h.Token <= l.Holders[i-1].Token {
			t.Errorf("token %d follows %d", h.Token, l.Holders[i-1].Token)
		}
	}
	unknown := 0
	for id, err := range outcome {
		switch {
		case err == nil && times[id] != 1:
			t.Errorf("%s was stored %d times", id, times[id])
		case err != nil && !errors.Is(err, lokt.ErrUnavailable):
			t.Errorf("%s: %v", id, err)
		case err != nil:
			unknown++
		}
		if times[id] > 1 {
			t.Errorf("%s was stored %d times", id, times[id])
		}
	}
	page, err := s.ReadEvents(t.Context(), lokt.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Events) != len(l.Holders) {
		t.Errorf("%d events for %d changes", len(page.Events), len(l.Holders))
	}
	t.Logf("%d cuts; %d of %d were answered with an error", cuts, unknown, len(outcome))
}

// Promise S-113.
func TestAWaiterIsWokenThoughItsWatchWasLostAndCompactedAway(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	url := c.url()
	waiter := c.open(t, url, Options{Timeout: longTimeout})
	waiter.anyway = time.Hour // only the watch wakes
	direct := *c.members[0]
	direct.front = direct.config.ListenClientUrls[0].Host
	other := c.open(t, c.urlAt(fmt.Sprint("test-", c.prefix.Load()), &direct), Options{Timeout: longTimeout})
	for round := range 3 {
		name := fmt.Sprint("x", round)
		if err := other.Update(t.Context(), name, addHolder("first")); err != nil {
			t.Fatal(err)
		}
		snap, err := waiter.View(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		woken := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for {
				if err := waiter.Wait(ctx, lokt.Watch{Name: name, Seen: snap.Lock.Revision}); err != nil {
					woken <- err
					return
				}
				if now, err := waiter.View(ctx, name); err == nil && len(now.Lock.Holders) == 2 {
					woken <- nil
					return
				}
			}
		}()
		eventually(t, "somebody waits", func() bool {
			sl := waiter.pin(name)
			defer waiter.unpin(sl)
			sl.mu.Lock()
			defer sl.mu.Unlock()
			return !sl.watchers.None()
		})
		c.members[0].gate.Refuse()
		if err := other.Update(t.Context(), name, addHolder("second")); err != nil {
			t.Fatal(err)
		}
		for i := range 2 { // so that the change is older than what is left
			if err := other.Update(t.Context(), "unrelated", addHolder(fmt.Sprint(round, i))); err != nil {
				t.Fatal(err)
			}
		}
		now, err := other.View(t.Context(), "unrelated")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.client.Compact(t.Context(), int64(now.Lock.Revision)); err != nil {
			t.Fatal(err)
		}
		c.members[0].gate.Heal()
		if err := <-woken; err != nil {
			t.Errorf("round %d: %v", round, err)
		}
	}
}

// many spreads requests over several services, as a load balancer does.
type many struct {
	services []lokt.Service
	next     atomic.Uint64
}

func (m *many) one() lokt.Service { return m.services[m.next.Add(1)%uint64(len(m.services))] }

func (m *many) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	return m.one().Acquire(ctx, c)
}
func (m *many) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	return m.one().Renew(ctx, r)
}
func (m *many) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	return m.one().Release(ctx, t)
}
func (m *many) Freeze(ctx context.Context, name string, f lokt.Freeze) (lokt.Freeze, error) {
	return m.one().Freeze(ctx, name, f)
}
func (m *many) Tell(ctx context.Context, t lokt.Target, msg lokt.Message) (lokt.Holder, error) {
	return m.one().Tell(ctx, t, msg)
}
func (m *many) Unfreeze(ctx context.Context, t lokt.Target) (lokt.Freeze, error) {
	return m.one().Unfreeze(ctx, t)
}
func (m *many) Prune(ctx context.Context, name string) ([]lokt.Removed, error) {
	return m.one().Prune(ctx, name)
}
func (m *many) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	return m.one().Get(ctx, name)
}
func (m *many) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return m.one().List(ctx, f)
}
func (m *many) Wait(ctx context.Context, w lokt.Watch) error { return m.one().Wait(ctx, w) }

// It takes some ten seconds, or as long as LOKT_ETCD_FAULTS says: "5m", for example.
//
// Promises S-110, S-112.
func TestWhatClientsOfThreeReplicasWereAnsweredCanBeExplainedWhateverFails(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, true)
	long, _ := time.ParseDuration(os.Getenv("LOKT_ETCD_FAULTS")) // none is 0
	for start := time.Now(); ; {
		underFaults(t, c)
		if t.Failed() || time.Since(start) >= long {
			return
		}
	}
}

// underFaults makes a history of clients that use three replicas while members fail, and checks it.
func underFaults(t *testing.T, c *cluster) {
	url := c.url()
	var services []lokt.Service
	for i := range 3 {
		s := c.open(t, url, Options{})
		skew := time.Duration(i-1) * time.Hour // the replicas' clocks differ
		s.wall = func() time.Time { return time.Now().Add(skew) }
		defer func() { _ = s.Close() }() // there may be many rounds
		services = append(services, lokt.NewManager(s))
	}
	r := lokttest.NewRecorder(&many{services: services})
	stop := make(chan struct{})
	var nemesis sync.WaitGroup
	faults := map[string]int{}
	nemesis.Go(func() { harm(c, stop, faults) })
	lokttest.Exercise(t, r, 8, 7, 700*time.Millisecond, rand.Uint64())
	close(stop)
	nemesis.Wait()
	t.Logf("%d answers, with faults %v", r.Len(), faults)
	if err := r.Check(patience); err != nil {
		t.Error(err)
	}
	if len(faults) == 0 {
		t.Error("nothing failed")
	}
	for _, name := range []string{"x", "y"} { // everything can be had again
		cl := claimOf(name, "last", time.Hour)
		cl.Wait = -1
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := services[0].Acquire(ctx, cl)
		for errors.Is(err, lokt.ErrUnavailable) && ctx.Err() == nil { // the members may be about to elect a leader
			_, err = services[0].Acquire(ctx, cl)
		}
		if err != nil {
			t.Errorf("after the faults: %s: %v", name, err)
		}
		cancel()
	}
}

// harm does harm to the members, one after another, until it is stopped. It leaves all of them well.
func harm(c *cluster, stop <-chan struct{}, faults map[string]int) {
	random := rand.New(rand.NewPCG(rand.Uint64(), 1))
	nap := func(d time.Duration) bool {
		select {
		case <-stop:
			return false
		case <-time.After(d/2 + time.Duration(random.Int64N(int64(d)))):
			return true
		}
	}
	for n := 0; nap(300 * time.Millisecond); n++ {
		victim := c.members[random.IntN(3)]
		if leader := c.leading(); leader != nil && random.IntN(2) == 0 {
			victim = leader
		}
		switch n % 4 {
		case 0:
			faults["kill"]++
			victim.stop()
			nap(300 * time.Millisecond)
			c.start(victim)
		case 1:
			faults["isolate"]++
			c.isolate(victim)
			nap(time.Second)
			c.rejoin(victim)
		case 2:
			faults["swallow answers"]++
			victim.gate.Swallow()
			nap(300 * time.Millisecond)
			victim.gate.Heal()
		case 3:
			faults["slow answers"]++
			victim.gate.Delay(20 * time.Millisecond)
			nap(300 * time.Millisecond)
			victim.gate.Heal()
		}
	}
}
