package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
)

// skewed returns stores of the same keys whose wall clocks are wrong by so much.
func (c *cluster) skewed(t *testing.T, by ...time.Duration) []*Store {
	url := c.url()
	var all []*Store
	for _, d := range by {
		s := c.open(t, url, Options{Timeout: longTimeout})
		s.wall = func() time.Time { return time.Now().Add(d) }
		all = append(all, s)
	}
	return all
}

// Promise S-112.
func TestReplicasWhoseClocksDifferByHoursEndNothingEarlyAndNothingNever(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	var wg sync.WaitGroup
	for _, skew := range [][]time.Duration{{time.Hour, -time.Hour}, {-time.Hour, time.Hour}} {
		s := c.skewed(t, skew...)
		here, there := lokt.NewManager(s[0]), lokt.NewManager(s[1])
		const ttl = time.Second
		for what, occupy := range map[string]func(name string){
			"a hold":           func(name string) { acquire(t, here, claimOf(name, "a", ttl)) },
			"a bounded hold":   func(name string) { c := claimOf(name, "a", 0); c.MaxHold = ttl; acquire(t, here, c) },
			"a hold elsewhere": func(name string) { acquire(t, there, claimOf(name, "a", ttl)) },
			"a freeze": func(name string) {
				if _, err := here.Freeze(t.Context(), name, lokt.Freeze{Owner: lokt.Owner{ID: "a"}, TTL: ttl}); err != nil {
					t.Fatal(err)
				}
			},
			"a place in the queue": func(name string) {
				if err := s[0].Update(t.Context(), name, func(snap lokt.Snapshot) lokt.Change {
					inside := lokt.Claim{Name: name, LeaseID: "inside", Owner: lokt.Owner{ID: "inside"}, Limit: 2}
					snap.Lock.Holders = []lokt.Holder{{Claim: inside, Token: 1, HeldSince: snap.Now, AcquiredAt: snap.Now}}
					snap.Lock.Queue = []*lokt.Waiter{{Claim: claimOf(name, "a", 0), Since: snap.Now, Until: snap.Now.Add(ttl + lokt.QueueTTL)}}
					return lokt.Change{Lock: snap.Lock}
				}); err != nil {
					t.Fatal(err)
				}
			},
			"a grant that is not taken up": func(name string) {
				if err := s[0].Update(t.Context(), name, func(snap lokt.Snapshot) lokt.Change {
					snap.Lock.Token++
					snap.Lock.Holders = []lokt.Holder{{
						Claim: claimOf(name, "a", time.Hour), Token: snap.Lock.Token, HeldSince: snap.Now, AcquiredAt: snap.Now,
						ExpiresAt: snap.Now.Add(time.Hour), Pending: snap.Now.Add(ttl),
					}}
					return lokt.Change{Lock: snap.Lock}
				}); err != nil {
					t.Fatal(err)
				}
			},
		} {
			wg.Go(func() {
				name := fmt.Sprint(strings.ReplaceAll(what, " ", "-"), skew[0])
				asked := time.Now()
				occupy(name)
				if _, err := there.Acquire(t.Context(), claimOf(name, "b", 0)); !errors.Is(err, lokt.ErrHeld) && !errors.Is(err, lokt.ErrFrozen) && time.Since(asked) < ttl {
					t.Errorf("%s, clocks %v: granted at once: %v", what, skew, err)
				}
				next := claimOf(name, "b", time.Hour)
				next.Wait, next.Limit = -1, 2
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				if _, err := there.Acquire(ctx, next); err != nil {
					t.Errorf("%s, clocks %v: %v", what, skew, err)
				}
				cancel()
				if took := time.Since(asked); took < ttl {
					t.Errorf("%s of %v, clocks %v, ended after %v", what, ttl, skew, took)
				}
			})
		}
	}
	wg.Wait()
}

// Promise S-112.
func TestALocksClockNeverRunsFasterThanTimeAndIsPutRightWithoutEndingAnything(t *testing.T) {
	t.Parallel()
	start := time.Now()
	wall := start.Round(0).UTC()
	st := &state{at: wall, known: start, mod: 1}
	st.lock = lokt.Lock{Name: "x", Token: 7, Holders: []lokt.Holder{{
		Claim: lokt.Claim{LeaseID: "a", MaxHold: time.Hour}, HeldSince: wall, AcquiredAt: wall, Pending: wall.Add(time.Minute), ExpiresAt: wall.Add(time.Hour),
		Yield: &lokt.Yield{Deadline: wall.Add(time.Second)},
	}}}
	st.lock.Queue = []*lokt.Waiter{{Until: wall.Add(2 * time.Second), Since: wall}}
	st.lock.Freeze = &lokt.Freeze{ExpiresAt: wall.Add(3 * time.Second)}
	for _, off := range []time.Duration{-time.Hour, 0, time.Second, time.Hour} {
		before := time.Since(start)
		plain := st.look(wall.Add(off))
		if shown := plain.Now.Sub(wall); shown < before || shown > time.Since(start) {
			t.Errorf("after %v to %v the clock shows %v", before, time.Since(start), shown)
		}
		v := st.lookToChange(wall.Add(off), 0)
		h, w, f := v.Lock.Holders[0], v.Lock.Queue[0], v.Lock.Freeze
		for what, left := range map[string]time.Duration{
			"pending": h.Pending.Sub(v.Now) - time.Minute, "expiry": h.ExpiresAt.Sub(v.Now) - time.Hour, "grace": h.Yield.Deadline.Sub(v.Now) - time.Second,
			"place": w.Until.Sub(v.Now) - 2*time.Second, "freeze": f.ExpiresAt.Sub(v.Now) - 3*time.Second, "age": h.HeldSince.Sub(v.Now),
			"last renewal": h.AcquiredAt.Sub(v.Now),
		} {
			if left > 0 || left < -time.Since(start) {
				t.Errorf("wall clock off by %v: %s changed by %v", off, what, left)
			}
		}
		if late := off > resync; late != v.Now.Equal(wall.Add(off)) || late != (v.Lock.Token > 7) {
			t.Errorf("wall clock off by %v: the clock shows %v, the token is %d", off, v.Now.Sub(wall), v.Lock.Token)
		}
	}
	if st.lock.Holders[0].Yield.Deadline != wall.Add(time.Second) || st.lock.Freeze.ExpiresAt != wall.Add(3*time.Second) {
		t.Error("looking changed the state")
	}
}

// etcd ends leases too early now and then: a member that led and stood still does so. So nothing hangs on one.
//
// Promise S-112.
func TestNothingOnRecordHangsOnALeaseOfEtcd(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: longTimeout})
	m := lokt.NewManager(s)
	if _, err := m.Freeze(t.Context(), "frozen", lokt.Freeze{Owner: lokt.Owner{ID: "a"}, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	release(t, m, acquire(t, m, claimOf("free", "a", time.Hour)))
	h := acquire(t, m, claimOf("held", "a", time.Hour))
	if _, err := m.Renew(t.Context(), lokt.Renewal{Name: "held", LeaseID: h.LeaseID}); err != nil {
		t.Fatal(err)
	}
	all, err := c.client(t).Get(t.Context(), s.prefix, clientv3.WithPrefix())
	if err != nil || all.Count < 4 { // three locks and their events
		t.Fatalf("%d keys, %v", all.Count, err)
	}
	for _, kv := range all.Kvs {
		if kv.Lease != 0 {
			t.Errorf("%s ends with a lease of etcd", kv.Key)
		}
	}
}

// Who hears of a lock for the first time cannot have measured anything, and lets a hold last for what is left on record,
// whatever the wall clock shows. What was measured is stored once it is more than a minute.
//
// Promise S-112.
func TestWhatIsLeftOfAHoldIsMeasuredFromWhenItIsHeardOf(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Minute
	for _, late := range []time.Duration{0, ttl / 2, ttl, 24 * time.Hour, -time.Hour} { // by the wall clock, after it was renewed
		wall := time.Now().Round(0).UTC()
		begun := wall.Add(-late)
		st := &state{at: begun, known: time.Now(), mod: 1}
		st.lock = lokt.Lock{Name: "x", Token: 7, Holders: []lokt.Holder{{
			Claim: lokt.Claim{LeaseID: "a", TTL: ttl}, HeldSince: begun, AcquiredAt: begun, ExpiresAt: begun.Add(ttl),
		}}}
		for _, snap := range []lokt.Snapshot{st.look(wall), st.lookToChange(wall, 0)} {
			if left := snap.Lock.Holders[0].ExpiresAt.Sub(snap.Now); left > ttl || left < ttl-resync/2 { // what this machine takes
				t.Errorf("%v after its renewal a hold has %v left", late, left)
			}
		}
	}

	c := startCluster(t, 1, false)
	url := c.url()
	s := c.open(t, url, Options{Timeout: longTimeout})
	m := lokt.NewManager(s)
	acquire(t, m, claimOf("x", "a", ttl))
	if _, err := m.Acquire(t.Context(), claimOf("x", "b", ttl)); !errors.Is(err, lokt.ErrHeld) {
		t.Fatal(err)
	}
	sl := s.pin("x")
	defer s.unpin(sl)
	sl.mu.Lock()
	sl.known = sl.known.Add(-ttl * 9 / 10) // it has lasted for so long
	sl.cached.known = sl.known
	revision := sl.latest
	sl.mu.Unlock()
	s.wall = func() time.Time { return time.Now().Add(ttl * 9 / 10) }
	if _, err := m.Acquire(t.Context(), claimOf("x", "b", ttl)); !errors.Is(err, lokt.ErrHeld) {
		t.Fatal(err)
	}
	snap, err := c.open(t, url, Options{Timeout: longTimeout}).View(t.Context(), "x")
	if left := snap.Lock.Holders[0].ExpiresAt.Sub(snap.Now); err != nil || left > ttl/10 || int64(snap.Lock.Revision) <= revision {
		t.Errorf("another sees %v left, %v", left, err)
	}
}

// Promise S-115.
func TestTokensRiseThoughKeysAreDeletedAndEtcdIsSetBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	url := c.url()
	s := c.open(t, url, Options{Timeout: longTimeout})
	m := lokt.NewManager(s)
	var last uint64
	turn := func(m lokt.Service, when string) {
		t.Helper()
		h := acquire(t, m, claimOf("x", "a", time.Hour))
		if h.Token <= last {
			t.Errorf("%s: token %d follows %d", when, h.Token, last)
		}
		last = h.Token
		release(t, m, h)
	}
	later := func() *Store { // a store that is opened two minutes later
		s := c.open(t, c.urlAt(fmt.Sprint("test-", c.prefix.Load())), Options{Timeout: longTimeout})
		s.wall = func() time.Time { return time.Now().Add(2 * time.Minute) }
		return s
	}
	for range 3 {
		turn(m, "at first")
	}
	cl := c.client(t)
	if _, err := cl.Delete(t.Context(), "/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	turn(m, "after all keys were deleted")
	r, err := cl.Get(t.Context(), "/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Compact(t.Context(), r.Header.Revision); err != nil {
		t.Fatal(err)
	}
	turn(m, "after compaction")

	only := c.members[0]
	copied := filepath.Join(t.TempDir(), "copy")
	only.stop()
	if err := os.CopyFS(copied, os.DirFS(only.config.Dir)); err != nil {
		t.Fatal(err)
	}
	c.start(only)
	for range 5 {
		turn(m, "after a restart")
	}
	setBack := func() {
		t.Helper()
		only.stop()
		if err := os.RemoveAll(only.config.Dir); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(only.config.Dir, os.DirFS(copied)); err != nil {
			t.Fatal(err)
		}
		c.start(only)
	}
	setBack()
	turn(m, "after etcd was set back under a running store")
	turn(m, "after etcd was set back under a running store")
	setBack()
	turn(lokt.NewManager(later()), "after etcd was set back, to a new store")
}

// Promise S-435.
func TestAnEtcdThatHasNoRoomIsNotReady(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s, cl := c.open(t, c.url(), Options{Timeout: longTimeout}), c.client(t)
	before, err := cl.Get(t.Context(), "/", clientv3.WithPrefix())
	if err := errors.Join(err, s.Ping(t.Context())); err != nil {
		t.Fatal(err)
	}
	if after, err := cl.Get(t.Context(), "/", clientv3.WithPrefix()); err != nil || after.Header.Revision != before.Header.Revision {
		t.Errorf("it has stored something: %v, %v", after, err)
	}
	no := &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: before.Header.MemberId, Alarm: pb.AlarmType_NOSPACE}
	if _, err := pb.NewMaintenanceClient(cl.ActiveConnection()).Alarm(t.Context(), no); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "space") {
		t.Errorf("without room: %v", err)
	}
	if _, err := cl.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// Promise S-110.
func TestAHotLockIsServedToAllReplicas(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	stores := c.skewed(t, 0, 0, 0)
	var wg sync.WaitGroup
	const goroutines, rounds = 48, 5
	for i := range goroutines {
		wg.Go(func() {
			for n := range rounds {
				if err := stores[i%3].Update(t.Context(), "x", addHolder(fmt.Sprintf("%d-%d", i, n))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	snap, err := stores[0].View(t.Context(), "x")
	if err != nil || len(snap.Lock.Holders) != goroutines*rounds {
		t.Errorf("%d holders, %v", len(snap.Lock.Holders), err)
	}
}

// Promise S-110.
func TestManyHoldersComeAndGoInOneChange(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: longTimeout})
	m := lokt.NewManager(s)
	first := acquire(t, m, claimOf("x", "writer", time.Hour))
	const readers = 130
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			cl := claimOf("x", fmt.Sprint("r", i), time.Hour)
			cl.Limit, cl.Wait = lokt.Shared, -1
			if _, err := m.Acquire(t.Context(), cl); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all wait", func() bool {
		snap, err := s.View(t.Context(), "x")
		return err == nil && len(snap.Lock.Queue) == readers
	})
	release(t, m, first)
	wg.Wait()
	ended, err := m.Release(t.Context(), lokt.Target{Name: "x", Force: true, Owner: lokt.Owner{ID: "root"}})
	if err != nil || len(ended) != readers {
		t.Fatalf("%d were ended, %v", len(ended), err)
	}
	h := acquire(t, m, claimOf("x", "writer", time.Hour))
	release(t, m, h)
}

// Promise S-116.
func TestARecordThatCannotBeReadKeepsEverybodyOut(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: longTimeout})
	m := lokt.NewManager(s)
	for name, value := range map[string]string{
		"garbage": "not JSON", "newer": `{"version":2,"name":"newer","token":3}`, "another": `{"version":1,"name":"x","token":3}`, "empty": "",
	} {
		if _, err := s.client.Put(t.Context(), s.lockKey(name), value); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Acquire(t.Context(), claimOf(name, "a", time.Hour)); !errors.Is(err, lokt.ErrDamaged) {
			t.Errorf("%s: acquired: %v", name, err)
		}
		if _, err := m.Get(t.Context(), name); !errors.Is(err, lokt.ErrDamaged) {
			t.Errorf("%s: got: %v", name, err)
		}
	}
	acquire(t, m, claimOf("good", "a", time.Hour))
	good, bad := 0, 0
	for snap, err := range m.List(t.Context(), lokt.Filter{}) {
		switch {
		case err == nil:
			good++
		case errors.Is(err, lokt.ErrDamaged) && snap.Lock.Name != "":
			bad++
		default:
			t.Error(err)
		}
	}
	if good != 1 || bad != 4 {
		t.Errorf("listed %d good ones and %d damaged ones", good, bad)
	}
	if _, err := s.client.Delete(t.Context(), s.lockKey("garbage")); err != nil {
		t.Fatal(err)
	}
	acquire(t, m, claimOf("garbage", "a", time.Hour))
}

func TestAListOfManyPagesIsWholeThoughEtcdIsCompactedMeanwhile(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: longTimeout, page: 16})
	const locks = 2*16 + 7
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			m := lokt.NewManager(s)
			for n := i; n < locks; n += 8 {
				if _, err := m.Acquire(t.Context(), claimOf(fmt.Sprintf("n%04d", n), "a", time.Hour)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n := 0
	for snap, err := range s.List(t.Context(), lokt.Filter{Prefix: "n"}) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("n%04d", n); snap.Lock.Name != want || len(snap.Live()) != 1 {
			t.Fatalf("%s is listed as %+v", want, snap.Lock)
		}
		if n%10 == 0 {
			if err := s.Update(t.Context(), "other", addHolder(fmt.Sprint(n))); err != nil {
				t.Fatal(err)
			}
			if _, err := s.client.Compact(t.Context(), s.rev.Load()); err != nil {
				t.Fatal(err)
			}
		}
		n++
	}
	if n != locks {
		t.Errorf("%d of %d are listed", n, locks)
	}
}

// Promise S-118.
func TestEventsAreForgottenOldestFirst(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	const keep = 40
	s := c.open(t, c.url(), Options{Timeout: longTimeout, KeepEvents: keep})
	m := lokt.NewManager(s)
	for range 3 * keep {
		release(t, m, acquire(t, m, claimOf("x", "a", time.Hour)))
	}
	eventually(t, "the oldest are forgotten", func() bool {
		n, err := s.client.Get(t.Context(), s.prefix+dirEvent, clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && n.Count <= keep+keep/5
	})
	page, err := s.ReadEvents(t.Context(), lokt.EventQuery{})
	if err != nil || len(page.Events) < keep || page.Oldest != page.Events[0].Seq || page.Newest != page.Events[len(page.Events)-1].Seq {
		t.Fatalf("%d events from %d to %d, %v", len(page.Events), page.Oldest, page.Newest, err)
	}
	for i, e := range page.Events[1:] {
		if before := page.Events[i]; e.Type == before.Type || e.Token < before.Token {
			t.Errorf("%s with token %d follows %s with token %d", e.Type, e.Token, before.Type, before.Token)
		}
	}
}

// Promise S-112.
func TestARenewedHoldLivesOnAndOneThatIsNotRenewedEnds(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.skewed(t, 0, 0)
	m, other := lokt.NewManager(s[0]), lokt.NewManager(s[1])
	const ttl = 2 * time.Second
	start := time.Now()
	h := acquire(t, m, claimOf("x", "a", ttl))
	renewed, longest := start, time.Duration(0)
	for time.Since(start) < 2*ttl {
		asked := time.Now()
		_, err := m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID})
		if longest = max(longest, time.Since(renewed)); longest > ttl*9/10 {
			t.Logf("this machine is too busy: %v between renewals", longest)
			return
		}
		if err != nil {
			t.Fatalf("%v after the renewal before: %v", asked.Sub(renewed), err)
		}
		renewed = asked
		_, err = other.Acquire(t.Context(), claimOf("x", "b", ttl))
		if longest = max(longest, time.Since(renewed)); longest > ttl*9/10 {
			t.Logf("this machine is too busy: %v after a renewal", longest)
			return
		}
		if !errors.Is(err, lokt.ErrHeld) {
			t.Fatalf("%v after the last renewal: %v", time.Since(renewed), err)
		}
		time.Sleep(ttl / 10)
	}
	next := claimOf("x", "b", ttl)
	next.Wait = -1
	if _, err := other.Acquire(t.Context(), next); err != nil || time.Since(renewed) < ttl {
		t.Errorf("%v after the last renewal: %v", time.Since(renewed), err)
	}
	if _, err := m.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID}); !errors.Is(err, lokt.ErrNotOwner) {
		t.Errorf("renewal of what another holds: %v", err)
	}
}

func TestAChangeThatPanicsDoesSoInItsCallerAndHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: longTimeout})
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			defer func() {
				if r := recover(); (r != nil) != (i%2 == 0) {
					t.Errorf("%d: recovered %v", i, r)
				}
			}()
			change := addHolder(fmt.Sprint(i))
			if i%2 == 0 {
				change = func(lokt.Snapshot) lokt.Change { panic("a mistake") }
			}
			if err := s.Update(t.Context(), "x", change); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if snap, err := s.View(t.Context(), "x"); err != nil || len(snap.Lock.Holders) != 5 {
		t.Errorf("got %+v, %v", snap.Lock, err)
	}
}

// Promise S-119.
func TestWhatOneReplicaGrantedAnotherRenewsAndReleases(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.skewed(t, 0, 0)
	first, second := lokt.NewManager(s[0]), lokt.NewManager(s[1])
	h := acquire(t, first, claimOf("x", "a", time.Hour))
	next := claimOf("x", "b", time.Hour)
	next.Wait = -1
	waiting := make(chan error, 2)
	ask := func(m lokt.Service, c lokt.Claim) {
		go func() {
			_, err := m.Acquire(t.Context(), c)
			waiting <- err
		}()
	}
	ask(first, next)
	eventually(t, "b waits", func() bool {
		snap, err := s[1].View(t.Context(), "x")
		return err == nil && len(snap.Lock.Queue) == 1
	})
	if err := s[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("waiting at a replica that is gone: %v", err)
	}
	again, err := second.Renew(t.Context(), lokt.Renewal{Name: "x", LeaseID: h.LeaseID})
	if err != nil || again.Token != h.Token {
		t.Errorf("renewed %+v, %v", again, err)
	}
	ask(second, next) // the same claim, sent again to a replica that lives
	eventually(t, "only b waits", func() bool {
		snap, err := s[1].View(t.Context(), "x")
		return err == nil && len(snap.Lock.Queue) == 1 && len(snap.Lock.Holders) == 1
	})
	release(t, second, again)
	if err := <-waiting; err != nil {
		t.Errorf("the waiter that moved: %v", err)
	}
	snap, err := s[1].View(t.Context(), "x")
	if err != nil || len(snap.Lock.Holders) != 1 || snap.Lock.Holders[0].LeaseID != next.LeaseID || snap.Lock.Token <= h.Token {
		t.Errorf("got %+v, %v", snap.Lock, err)
	}
}

// Promise S-126.
func TestAClaimThatEtcdHasNoRoomForIsRefused(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, false)
	s := c.open(t, c.url(), Options{Timeout: longTimeout})
	m := lokt.NewManager(s)
	in := 0
	for ; ; in++ {
		claim := claimOf("x", fmt.Sprint(in), time.Hour)
		claim.Limit, claim.Metadata = lokt.Shared, map[string]string{"k": strings.Repeat("\x01", lokt.MaxMetadata-1)} // each takes six bytes
		_, err := m.Acquire(t.Context(), claim)
		if errors.Is(err, lokt.ErrFull) {
			break
		}
		if err != nil || in > 100 {
			t.Fatalf("claim %d: %v", in, err)
		}
	}
	if in < 40 {
		t.Errorf("there is room for %d only", in)
	}
	ended, err := m.Release(t.Context(), lokt.Target{Name: "x", Force: true, Owner: lokt.Owner{ID: "root"}})
	if err != nil || len(ended) != in {
		t.Errorf("%d of %d are ended, %v", len(ended), in, err)
	}
}
