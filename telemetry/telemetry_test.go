package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
	"github.com/lokt-dev/lokt/telemetry"
)

// bench is a recorder over a store in memory.
type bench struct {
	*testing.T
	rec     *telemetry.Recorder
	service lokt.Service
}

func newBench(t *testing.T, o telemetry.Options) *bench {
	t.Helper()
	rec, err := telemetry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t, rec, lokt.NewManager(memstore.NewWith(memstore.Options{Observe: rec.ObserveAll}))}
}

func (b *bench) locker(who string) *lokt.Locker {
	b.Helper()
	k, err := lokt.NewLocker(b.service, lokt.Owner{ID: who, AnySession: true}, lokt.LockerOptions{Observe: b.rec.Observe})
	if err != nil {
		b.Fatal(err)
	}
	return k
}

func (b *bench) acquire(k *lokt.Locker, name string, o lokt.Options) *lokt.Lease {
	b.Helper()
	l, err := k.Acquire(b.Context(), name, o)
	if err != nil {
		b.Fatal(err)
	}
	return l
}

func (b *bench) release(leases ...*lokt.Lease) {
	b.Helper()
	for _, l := range leases {
		if err := l.Release(context.WithoutCancel(b.Context())); err != nil {
			b.Fatal(err)
		}
	}
}

// want checks all counters: those that are not named are 0.
func (b *bench) want(counts map[string]int64) {
	b.Helper()
	s, err := b.rec.Snapshot(b.Context())
	if err != nil {
		b.Error(err)
	}
	for name, got := range s.Counters {
		if got != counts[name] || got != b.rec.Counter(name) {
			b.Errorf("%s is %d (alone %d), not %d", name, got, b.rec.Counter(name), counts[name])
		}
	}
	for name := range counts {
		if _, ok := s.Counters[name]; !ok {
			b.Errorf("there is no counter %s", name)
		}
	}
}

// holders returns who holds the lock, and how many wait.
func (b *bench) holders(name string) (string, int) {
	b.Helper()
	s, err := b.rec.Snapshot(b.Context())
	if err != nil {
		b.Error(err)
	}
	i := slices.IndexFunc(s.Locks, func(l telemetry.LockSnapshot) bool { return l.Name == name })
	if i < 0 {
		return "", 0
	}
	var who []string
	for _, h := range slices.Sorted(maps.Keys(s.Locks[i].Holders)) {
		who = append(who, fmt.Sprintf("%s:%d", h, s.Locks[i].Holders[h]))
	}
	return strings.Join(who, " "), s.Locks[i].Waiting
}

func (b *bench) wantHolders(when, name, who string, waiting int) {
	b.Helper()
	if got, n := b.holders(name); got != who || n != waiting {
		b.Errorf("%s %s is held by %q with %d waiting, not by %q with %d", when, name, got, n, who, waiting)
	}
}

func (b *bench) wantGauge(name string, want any) {
	b.Helper()
	if got, ok := b.rec.Gauge(name); got != want || ok != (want != nil) {
		b.Errorf("%s is %v (%v), not %v", name, got, ok, want)
	}
}

func TestLifeOfALockIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{})
		runner := b.locker("a")
		l := b.acquire(runner, "sync.processing", lokt.Options{})
		b.want(map[string]int64{telemetry.Acquired: 1})
		b.wantGauge("lock.sync.processing.holder", "a")
		b.wantGauge("lock.sync.processing.hold_duration_ms", nil)
		time.Sleep(3500 * time.Millisecond)
		b.want(map[string]int64{telemetry.Acquired: 1, telemetry.HeartbeatRenewed: 3})
		b.wantGauge("lock.sync.processing.holder", "a")
		if _, ok, err := b.locker("b").TryAcquire(t.Context(), "sync.processing", lokt.Options{}); ok || err != nil {
			t.Fatal(ok, err)
		}
		b.release(l)
		b.want(map[string]int64{telemetry.Acquired: 1, telemetry.HeartbeatRenewed: 3, telemetry.Contention: 1, telemetry.Released: 1})
		b.wantGauge("lock.sync.processing.holder", nil)
		b.wantGauge("lock.sync.processing.hold_duration_ms", int64(3500))
		b.wantGauge("lock.sync.processing.queue_length", int64(0))
		b.wantGauge("lock.unknown.holder", nil)
		b.wantGauge("lock.sync.processing.speed", nil)
		b.wantGauge("nonsense", nil)
		if n := b.rec.Counter("nonsense"); n != 0 {
			t.Errorf("an unknown counter is %d", n)
		}
	})
}

func TestTakeoverOfAStaleLockIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{})
		old := b.acquire(b.locker("a"), "x", lokt.Options{ManualHeartbeat: true})
		time.Sleep(lokt.DefaultTTL - time.Millisecond)
		b.wantGauge("lock.x.holder", nil) // the lease's context has ended already: it is lost
		time.Sleep(2 * time.Millisecond)
		next := b.acquire(b.locker("b"), "x", lokt.Options{})
		want := map[string]int64{
			telemetry.Acquired: 2, telemetry.StaleDetected: 1, telemetry.TakeoverDetected: 1, telemetry.LeaseLost: 1,
		}
		b.want(want)
		b.wantHolders("after the takeover", "x", "b:1", 0)
		b.release(old) // finds another's lock
		want[telemetry.ReleaseMismatch]++
		b.want(want)
		b.wantHolders("after a release that came too late", "x", "b:1", 0)
		b.release(next)
		want[telemetry.Released]++
		b.want(want)
		b.wantHolders("after the release", "x", "", 0)
	})
}

func TestHolderIsClearedWhenItsTimeIsUp(t *testing.T) {
	for name, o := range map[string]lokt.Options{
		"by its TTL":          {ManualHeartbeat: true},
		"by its maximum hold": {TTL: lokt.NoTTL, MaxHold: lokt.DefaultTTL},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, telemetry.Options{})
			// What happens to the lease in its process is not told here, as if it had died.
			k, err := lokt.NewLocker(b.service, lokt.Owner{ID: "a"}, lokt.LockerOptions{})
			if err != nil {
				t.Fatal(err)
			}
			b.acquire(k, "x", o)
			time.Sleep(lokt.DefaultTTL)
			b.wantHolders(name+", at its end", "x", "a:1", 0)
			time.Sleep(time.Nanosecond)
			b.wantHolders(name+", just after it", "x", "", 0)
			b.want(map[string]int64{telemetry.Acquired: 1})
			if n, err := k.CleanupStale(t.Context()); n != 1 || err != nil {
				t.Errorf("%d cleaned, error %v", n, err)
			}
			b.want(map[string]int64{telemetry.Acquired: 1, telemetry.StaleCleaned: 1})
		})
	}
}

// What is beyond the bound is not looked through for each event: with a million leases, that is all there would be time for.
func TestLeasesBeyondTheBoundCostNoMoreThanOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec, err := telemetry.New(telemetry.Options{})
		if err != nil {
			t.Fatal(err)
		}
		grant := func(n int, ttl time.Duration) {
			rec.Observe(lokt.Event{Type: lokt.EventAcquire, Name: "x", LeaseID: strconv.Itoa(n), Owner: lokt.Owner{ID: "a"}, Time: time.Now(), Expires: time.Now().Add(ttl)})
		}
		holders := func() int {
			snap, err := rec.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return snap.Locks[0].Holders["a"]
		}
		for n := range 120_000 {
			grant(n, time.Hour)
		}
		if got := holders(); got != 100_000 {
			t.Errorf("%d holders are shown", got)
		}
		grant(0, time.Second) // a renewal of one that is known
		time.Sleep(2 * time.Minute)
		grant(120_000, time.Hour) // takes the place of what has expired
		if got := holders(); got != 100_000 {
			t.Errorf("%d holders are shown after an expiry", got)
		}
	})
}

func TestFailuresAndRefusalsOfRenewalsAreToldByOneSideEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{})
		cut := &unreachable{Service: b.service}
		k, err := lokt.NewLocker(cut, lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: b.rec.Observe})
		if err != nil {
			t.Fatal(err)
		}
		l := b.acquire(k, "x", lokt.Options{ManualHeartbeat: true})
		cut.set(true)
		if err := l.Renew(t.Context()); !errors.Is(err, lokt.ErrUnavailable) {
			t.Fatal(err)
		}
		b.want(map[string]int64{telemetry.Acquired: 1, telemetry.HeartbeatFailure: 1})
		cut.set(false)
		if _, err := b.service.Release(t.Context(), lokt.Target{Name: "x", Force: true, Owner: lokt.Owner{ID: "admin"}}); err != nil {
			t.Fatal(err)
		}
		if err := l.Renew(t.Context()); !errors.Is(err, lokt.ErrLost) {
			t.Fatal(err)
		}
		b.want(map[string]int64{telemetry.Acquired: 1, telemetry.HeartbeatFailure: 2, telemetry.Broken: 1, telemetry.LeaseLost: 1})
		b.wantHolders("after the break", "x", "", 0)
	})
}

func TestAPreemptionThatStoreAndLockerTellIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{})
		for n, o := range []lokt.Options{{}, {TTL: lokt.NoTTL}} {
			low := b.acquire(b.locker("low"), "x", o)
			high := b.acquire(b.locker("high"), "x", lokt.Options{Priority: 1, Preempt: time.Second, Wait: time.Minute})
			if !errors.Is(low.Err(), lokt.ErrLost) {
				t.Errorf("the holder of low priority has not lost it: %v", low.Err())
			}
			b.release(high)
			if got := b.rec.Counter(telemetry.PreemptionStarted); got != int64(n+1) {
				t.Errorf("%d preemptions are %d by the counter", n+1, got)
			}
		}
	})
}

// unreachable is a service that may be out of reach for renewals.
type unreachable struct {
	lokt.Service
	mu  sync.Mutex
	cut bool
}

func (u *unreachable) set(cut bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cut = cut
}

func (u *unreachable) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	u.mu.Lock()
	cut := u.cut
	u.mu.Unlock()
	if cut {
		return lokt.Holder{}, lokt.ErrUnavailable
	}
	return u.Service.Renew(ctx, r)
}

func TestWaitingIsCountedByItsOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{})
		l := b.acquire(b.locker("a"), "x", lokt.Options{})
		ctx, cancel := context.WithCancel(t.Context())
		var working sync.WaitGroup
		for who, o := range map[string]lokt.Options{
			"patient": {Wait: -1}, "impatient": {Wait: 2 * time.Second}, "cancelled": {Wait: -1, Priority: -1},
		} {
			k := b.locker(who)
			working.Go(func() {
				c := t.Context()
				if who == "cancelled" {
					c = ctx
				}
				if got, err := k.Acquire(c, "x", o); err == nil {
					time.Sleep(time.Second)
					b.release(got)
				} else if who == "patient" {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second)
		b.wantHolders("with three waiting", "x", "a:1", 3)
		time.Sleep(2 * time.Second)
		b.wantHolders("with two waiting", "x", "a:1", 2)
		cancel()
		time.Sleep(2500 * time.Millisecond)
		b.wantHolders("with one waiting", "x", "a:1", 1)
		b.release(l)
		synctest.Wait()
		b.wantHolders("with none waiting", "x", "patient:1", 0)
		working.Wait()

		s, err := b.rec.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		waits := s.Locks[0].Waits
		for outcome, seconds := range map[string]float64{"granted": 5.5, "timeout": 2, "cancelled": 3} {
			if h := waits[outcome]; h.Count != 1 || h.Sum != seconds {
				t.Errorf("waits that ended with %s: %+v", outcome, h)
			}
		}
		if len(waits) != 3 {
			t.Errorf("waits: %+v", waits)
		}
		if n := s.Counters[telemetry.Queued]; n != 3 {
			t.Errorf("%d were queued", n)
		}
		if n := s.Counters[telemetry.Contention]; n != 1 { // the one that waited in vain
			t.Errorf("contention is %d", n)
		}
		if n := s.Counters[telemetry.Acquired]; n != 2 {
			t.Errorf("%d were granted", n)
		}
		if h := s.Locks[0].Holds; h.Count != 2 || h.Sum != 5.5+1 || s.Locks[0].LastHold != time.Second {
			t.Errorf("holds: %+v, last %v", h, s.Locks[0].LastHold)
		}
	})
}

// Each kind of event alone, as stores tell them.
func TestEveryKindOfEventHasItsCounter(t *testing.T) {
	extra := func(kv ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = kv[i+1]
		}
		return m
	}
	for _, c := range []struct {
		e    lokt.Event
		want []string
	}{
		{lokt.Event{Type: lokt.EventAcquire}, []string{telemetry.Acquired}},
		{lokt.Event{Type: lokt.EventDeny}, []string{telemetry.Contention}},
		{lokt.Event{Type: lokt.EventFreezeDeny}, []string{telemetry.FreezeDenied}},
		{lokt.Event{Type: lokt.EventRelease, Extra: extra(lokt.ExtraHeld, "12")}, []string{telemetry.Released}},
		{lokt.Event{Type: lokt.EventRenew}, []string{telemetry.HeartbeatRenewed}},
		{lokt.Event{Type: lokt.EventRenewFail}, []string{telemetry.HeartbeatFailure}},
		{lokt.Event{Type: lokt.EventLost}, []string{telemetry.LeaseLost}},
		{lokt.Event{Type: lokt.EventTakeover}, []string{telemetry.TakeoverDetected}},
		{lokt.Event{Type: lokt.EventAutoPrune, Extra: extra(lokt.ExtraReason, lokt.ReasonDead)}, []string{telemetry.StaleDetected}},
		{lokt.Event{Type: lokt.EventAutoPrune, Extra: extra(lokt.ExtraCleaned, "true")}, []string{telemetry.StaleCleaned}},
		{lokt.Event{Type: lokt.EventStaleBreak}, []string{telemetry.StaleCleaned}},
		{lokt.Event{Type: lokt.EventForceBreak}, []string{telemetry.Broken}},
		{lokt.Event{Type: lokt.EventCorruptBreak}, []string{telemetry.CorruptDiscarded}},
		{lokt.Event{Type: lokt.EventPreempt}, []string{telemetry.PreemptionStarted}},
		{lokt.Event{Type: lokt.EventMismatch}, []string{telemetry.ReleaseMismatch}},
		{lokt.Event{Type: lokt.EventWait, Extra: extra(lokt.ExtraOutcome, "started")}, []string{telemetry.Queued}},
		{lokt.Event{Type: lokt.EventWait, Extra: extra(lokt.ExtraOutcome, "granted", lokt.ExtraWaited, "3")}, nil},
		{lokt.Event{Type: lokt.EventWait, Extra: extra(lokt.ExtraOutcome, "timeout", lokt.ExtraWaited, "3")}, []string{telemetry.Contention}},
		{lokt.Event{Type: lokt.EventWait, Extra: extra(lokt.ExtraOutcome, "deadlock", lokt.ExtraWaited, "3")}, []string{telemetry.Contention}},
		{lokt.Event{Type: lokt.EventWait, Extra: extra(lokt.ExtraOutcome, "cancelled", lokt.ExtraWaited, "3")}, nil},
		{lokt.Event{Type: lokt.EventWait, Extra: extra(lokt.ExtraOutcome, "died", lokt.ExtraWaited, "3")}, nil},
		{lokt.Event{Type: lokt.EventWait, Extra: extra(lokt.ExtraOutcome, "of another version", lokt.ExtraWaited, "3")}, nil},
		{lokt.Event{Type: lokt.EventRelease, Extra: extra(lokt.ExtraHeld, "no number")}, []string{telemetry.Released}},
		{lokt.Event{Type: lokt.EventFreeze}, nil},
		{lokt.Event{Type: lokt.EventUnfreeze}, nil},
		{lokt.Event{Type: lokt.EventForceThaw}, nil},
		{lokt.Event{Type: "of another version"}, nil},
	} {
		b := newBench(t, telemetry.Options{})
		c.e.Name, c.e.LeaseID, c.e.Time = "x", "id", time.Now()
		b.rec.Observe(c.e)
		counts := map[string]int64{}
		for _, name := range c.want {
			counts[name] = 1
		}
		b.want(counts)
	}
}

func TestSeveralHoldersAndHoldsOfOneLockAreShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{})
		var leases []*lokt.Lease
		for _, who := range strings.Split("a b b c d e f g h i j k l m n o p q", " ") {
			leases = append(leases, b.acquire(b.locker(who), "x", lokt.Options{Limit: lokt.Shared}))
		}
		s, err := b.rec.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		holders := s.Locks[0].Holders
		total := 0
		for _, n := range holders {
			total += n
		}
		if total != 18 || len(holders) != 17 || holders[telemetry.Overflow] == 0 {
			t.Errorf("the holders are %v", holders)
		}
		b.release(leases[3:]...)
		b.wantHolders("with two holders", "x", "a:1 b:2", 0)
		b.release(leases[:3]...)
		b.wantHolders("in the end", "x", "", 0)
	})
}

func TestLocksBeyondTheBoundShareOneSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{MaxNames: 2})
		k := b.locker("a")
		for i := range 10 {
			b.acquire(k, fmt.Sprint("lock-", i), lokt.Options{})
		}
		s, err := b.rec.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, l := range s.Locks {
			names = append(names, fmt.Sprint(l.Name, "=", l.Counters[telemetry.Acquired]))
		}
		if got := strings.Join(names, " "); got != "(other)=8 lock-0=1 lock-1=1" || s.Counters[telemetry.Acquired] != 10 {
			t.Errorf("acquired: %s, together %d", got, s.Counters[telemetry.Acquired])
		}
		b.wantHolders("of the rest", telemetry.Overflow, "(other):8", 0)
		if lokt.ValidateName(telemetry.Overflow) == nil {
			t.Errorf("a lock could be named %s", telemetry.Overflow)
		}
		if _, err := k.ReleaseAll(t.Context()); err != nil {
			t.Error(err)
		}
		b.wantHolders("after all", telemetry.Overflow, "", 0)
	})
}

func TestAWaitThatANewerClaimEndedIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, telemetry.Options{})
		l := b.acquire(b.locker("a"), "x", lokt.Options{TTL: time.Hour})
		waits := lokt.Options{Newest: true, Wait: time.Hour}
		gone := make(chan error)
		go func() {
			_, err := b.locker("b").Acquire(t.Context(), "x", waits)
			gone <- err
		}()
		time.Sleep(time.Second)
		next := make(chan *lokt.Lease)
		go func() { next <- b.acquire(b.locker("c"), "x", waits) }()
		if err := <-gone; !errors.Is(err, lokt.ErrHeld) {
			t.Errorf("the older claim: %v", err)
		}
		s, err := b.rec.Snapshot(t.Context())
		if err != nil || s.Locks[0].Waits["ousted"].Count != 1 || s.Locks[0].Waiting != 1 || s.Counters[telemetry.Contention] != 1 {
			t.Errorf("counted: %+v, error %v", s, err)
		}
		b.release(l)
		b.release(<-next)
	})
}

// Two processes share a store; each hears only of its own changes.
func TestWithAServiceHoldersAndQueueAreRightInEveryProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		var recs []*telemetry.Recorder
		var services []lokt.Service
		for range 2 {
			rec, err := telemetry.New(telemetry.Options{Service: lokt.NewManager(store)})
			if err != nil {
				t.Fatal(err)
			}
			recs = append(recs, rec)
			services = append(services, lokt.NewManager(told{store, rec}))
		}
		locker := func(i int, who string) *lokt.Locker {
			k, err := lokt.NewLocker(services[i], lokt.Owner{ID: who}, lokt.LockerOptions{Observe: recs[i].Observe})
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		first := &bench{t, recs[0], services[0]}
		l := first.acquire(locker(0, "a"), "x", lokt.Options{})
		granted := make(chan *lokt.Lease)
		go func() {
			next, err := locker(1, "b").Acquire(t.Context(), "x", lokt.Options{Wait: -1})
			if err != nil {
				t.Error(err)
			}
			granted <- next
		}()
		time.Sleep(time.Second)
		for i, rec := range recs {
			(&bench{t, rec, services[i]}).wantHolders("before the release", "x", "a:1", 1)
		}
		first.release(l)
		next := <-granted
		for i, rec := range recs {
			(&bench{t, rec, services[i]}).wantHolders("after the release", "x", "b:1", 0)
		}
		if n := recs[0].Counter(telemetry.Acquired) + recs[1].Counter(telemetry.Acquired); n != 2 {
			t.Errorf("together they count %d grants", n)
		}
		first.release(next)
	})
}

// told tells a recorder the events of the changes made through it.
type told struct {
	*memstore.Store
	rec *telemetry.Recorder
}

func (s told) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	var events []lokt.Event
	err := s.Store.Update(ctx, name, func(snap lokt.Snapshot) lokt.Change {
		c := change(snap)
		events = c.Events
		return c
	})
	s.rec.ObserveAll(events)
	return err
}

func TestServiceThatCannotBeAskedCostsOnlyTheGauges(t *testing.T) {
	store := memstore.New()
	rec, err := telemetry.New(telemetry.Options{Service: lokt.NewManager(store)})
	if err != nil {
		t.Fatal(err)
	}
	rec.Observe(lokt.Event{Type: lokt.EventAcquire, Name: "x"})
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := rec.Snapshot(t.Context())
	if !errors.Is(err, lokt.ErrUnavailable) || s.Counters[telemetry.Acquired] != 1 {
		t.Errorf("%+v, error %v", s, err)
	}
	if v, ok := rec.Gauge("lock.x.holder"); ok {
		t.Errorf("the holder is %v", v)
	}
}

func TestRecorderMayBeUsedByManyAtOnce(t *testing.T) {
	rec, err := telemetry.New(telemetry.Options{MaxNames: 5})
	if err != nil {
		t.Fatal(err)
	}
	var working sync.WaitGroup
	for i := range 8 {
		working.Go(func() {
			for n := range 500 {
				name, id := fmt.Sprint("lock-", n%10), fmt.Sprint(i, "-", n)
				rec.Observe(lokt.Event{Type: lokt.EventAcquire, Name: name, LeaseID: id, Owner: lokt.Owner{ID: "a"}})
				rec.Observe(lokt.Event{Type: lokt.EventRelease, Name: name, LeaseID: id, Extra: map[string]string{lokt.ExtraHeld: "1"}})
				if n%50 == 0 {
					if _, err := rec.Snapshot(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	working.Wait()
	if a, r := rec.Counter(telemetry.Acquired), rec.Counter(telemetry.Released); a != 4000 || r != 4000 {
		t.Errorf("%d acquired, %d released", a, r)
	}
	s, err := rec.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range s.Locks {
		if len(l.Holders) != 0 {
			t.Errorf("%s is held by %v", l.Name, l.Holders)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	rec, err := telemetry.New(telemetry.Options{})
	if err != nil {
		b.Fatal(err)
	}
	owner := lokt.Owner{ID: "runner_1763585840538_9b880f5d_28575"}
	now := time.Now()
	held := map[string]string{lokt.ExtraHeld: "1234"}
	b.Run("renewal", func(b *testing.B) {
		e := lokt.Event{Type: lokt.EventRenew, Name: "x", LeaseID: "a", Owner: owner, Time: now, Expires: now.Add(5 * time.Second)}
		b.ReportAllocs()
		for b.Loop() {
			rec.Observe(e)
		}
	})
	b.Run("grant and release", func(b *testing.B) {
		e := lokt.Event{Type: lokt.EventAcquire, Name: "x", LeaseID: "b", Owner: owner, Time: now, Expires: now.Add(5 * time.Second)}
		b.ReportAllocs()
		for b.Loop() {
			e.Type, e.Extra = lokt.EventAcquire, nil
			rec.Observe(e)
			e.Type, e.Extra = lokt.EventRelease, held
			rec.Observe(e)
		}
	})
}
