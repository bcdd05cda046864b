package lokt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of a Locker.
const (
	DefaultTTL      = 5 * time.Second
	DefaultInterval = time.Second
)

const minInterval = time.Millisecond // the shortest that may be asked for

// NoTTL, as a TTL, asks for a hold that does not expire: only its release ends it, or somebody else by force, by
// preemption or because the process is dead.
const NoTTL time.Duration = -1

// Options say how to acquire a lock. The zero value asks for an exclusive lock with the Locker's times, and does not wait.
type Options struct {
	// TTL is how long the lock lives without a renewal: others may take it more than TTL after the last one. 0 means
	// the Locker's, or DefaultTTL; NoTTL means for ever.
	TTL time.Duration

	// Interval is the time between heartbeats. 0 means the Locker's if the TTL is the Locker's too, and otherwise what the
	// server says (Holder.HeartbeatIn), or a fifth of the TTL. It must be a millisecond at least, and below the TTL less its margin. A hold without a TTL is looked at instead of renewed:
	// every DefaultInterval if this is 0.
	Interval time.Duration

	// Margin is how long before anybody else may enter the lease's context ends, beside the drift of clocks. 0 means
	// the Locker's if the TTL is the Locker's too, and otherwise a twentieth of the hold's life, at most half a second.
	Margin time.Duration

	// Wait is how long to queue for the lock; 0 does not, negative waits until the context ends.
	Wait time.Duration

	Limit    int           // most holders it shares with, itself included; 0 means Exclusive; see also Shared
	Strict   bool          // exclude other strict holds of this owner too; Do and Lead do unless Reentrant
	Priority int           // place in the queue: higher first
	Preempt  time.Duration // while waiting, ask holders of lower priority to leave within this time
	Newest   bool          // while waiting, send away earlier waiters that ask for the same: see Claim.Newest
	MaxHold  time.Duration // the hold ends at this age, renewed or not; 0 is unlimited
	Weight   Weight        // what the hold takes of what there is
	Metadata map[string]string

	// ManualHeartbeat leaves renewal to the caller: see Lease.Renew and Lease.StartHeartbeat.
	ManualHeartbeat bool

	// Reentrant lets several calls of Do by this owner in at the same time, as calls of Acquire are. It goes before a default of Strict.
	Reentrant bool

	paced bool // the interval is the service's to set

	// Within names further leases that cannot end before this acquisition is answered, besides those of the context: see Claim.Within.
	Within []string

	// Process, if set, is a process whose death frees the lock, where the store can know of it.
	Process *Process
}

// withDefaults fills in what is not set and validates the times. The defaults' interval and margin belong to their TTL,
// and are not used with another.
func (o Options) withDefaults(d Options) (Options, error) {
	o.Wait = cmp.Or(o.Wait, d.Wait)
	o.Limit = cmp.Or(o.Limit, d.Limit)
	o.Strict = o.Strict || d.Strict && !o.Reentrant
	o.Reentrant = o.Reentrant || d.Reentrant
	o.Newest = o.Newest || d.Newest
	o.Priority = cmp.Or(o.Priority, d.Priority)
	o.Preempt = cmp.Or(o.Preempt, d.Preempt)
	o.MaxHold = cmp.Or(o.MaxHold, d.MaxHold)
	o.Weight = cmp.Or(o.Weight, d.Weight)
	o.ManualHeartbeat = o.ManualHeartbeat || d.ManualHeartbeat
	o.Process = cmp.Or(o.Process, d.Process)
	o.Within = slices.Concat(o.Within, d.Within)
	if len(d.Metadata) > 0 {
		own := o.Metadata
		o.Metadata = maps.Clone(d.Metadata)
		maps.Copy(o.Metadata, own)
	}

	if o.Interval > 0 && o.Interval < minInterval {
		return o, invalid("heartbeats every %v would come too often: %v is the shortest interval", o.Interval, minInterval)
	}
	usual := cmp.Or(d.TTL, DefaultTTL)
	o.TTL = cmp.Or(o.TTL, usual)
	if o.TTL < 0 {
		if o.TTL != NoTTL || o.Interval < 0 || o.Margin < 0 {
			return o, invalid("TTL %v, interval %v or margin %v is negative: NoTTL asks for a hold that does not expire", o.TTL, o.Interval, o.Margin)
		}
		o.Margin = cmp.Or(o.Margin, margin(o.MaxHold))
		o.Interval = cmp.Or(o.Interval, DefaultInterval)
		return o, o.lasts()
	}
	if o.TTL == usual {
		o.Interval, o.Margin = cmp.Or(o.Interval, d.Interval), cmp.Or(o.Margin, d.Margin)
	}
	o.paced = o.Interval == 0
	o.Interval = cmp.Or(o.Interval, o.TTL/5)
	if o.Margin == 0 && o.MaxHold > 0 {
		o.Margin = margin(min(o.TTL, o.MaxHold))
	}
	o.Margin = cmp.Or(o.Margin, margin(o.TTL))
	if usable := Usable(o.TTL, o.Margin); o.Interval <= 0 || o.Margin < 0 || o.Interval >= usable {
		return o, invalid("heartbeats every %v cannot keep a lock with a TTL of %v: the interval must be below %v, "+
			"which the margin of %v and the drift of clocks leave", o.Interval, o.TTL, usable, o.Margin)
	}
	return o, o.lasts()
}

// lasts returns an error if a lease would be lost as soon as it is granted.
func (o Options) lasts() error {
	if o.MaxHold > 0 && Usable(o.MaxHold, o.Margin) <= 0 {
		return invalid("a hold of at most %v would be over at once, with a margin of %v", o.MaxHold, o.Margin)
	}
	return nil
}

// margin is the default margin of a hold that lives so long.
func margin(life time.Duration) time.Duration { return min(life/20, 500*time.Millisecond) }

// Locker acquires locks for one owner and keeps them while the program runs. It is safe for concurrent use. Do and Lead
// exclude each other even within a program. Acquire and TryAcquire re-enter, unless Options.Strict says otherwise: each
// acquisition is a hold of its own, and the lock is free when the last of them is released.
type Locker struct {
	service  Service
	owner    Owner
	runner   bool // the owner has the runner ID of this process
	defaults Options
	observe  func(Event)
	keeper   *Keeper

	open      context.Context // ends with Close, which stop makes it do
	stop      context.CancelFunc
	acquiring sync.WaitGroup // none is added once open has ended

	mu     sync.Mutex
	leases map[string]*Lease // by lease ID
}

// LockerOptions configure a Locker. The zero value is what most programs want.
type LockerOptions struct {
	// Defaults hold for every acquisition whose Options leave them at zero; metadata is put together. TryAcquire does
	// not wait whatever they say.
	Defaults Options

	// Observe is told what happens to leases in this process: EventLost, EventRenewFail, EventPreempt, EventAsk. It must be quick, and
	// leave what changes the Locker or a lease to another goroutine. What happens in the store is told by the store.
	Observe func(Event)

	// Keeper renews the leases. Lockers of a program may share one; nil means one of its own, by the clock of a service that
	// is an Elapser.
	Keeper *Keeper
}

// NewLocker returns a Locker that claims as owner from the service. If owner has no ID it gets the runner ID of this process, which all
// Lockers of the process share, and what it acquires carries "pid", "hostname", "platform" and "timestamp" as metadata, as far as the owner
// says them. The error wraps ErrInvalid if the default times do not fit each other.
func NewLocker(s Service, owner Owner, o LockerOptions) (*Locker, error) {
	runner := owner.ID == ""
	if runner {
		owner.ID, owner.AnySession = RunnerID(owner.Process.PID), true
	}
	if _, err := o.Defaults.withDefaults(Options{}); err != nil {
		return nil, err
	}
	if o.Keeper == nil {
		o.Keeper = &Keeper{}
		if e, ok := s.(Elapser); ok {
			o.Keeper.Elapsed = e.Elapsed
		}
	}
	k := &Locker{
		service: s, owner: owner, runner: runner, defaults: o.Defaults, observe: o.Observe, keeper: o.Keeper, leases: map[string]*Lease{},
	}
	k.open, k.stop = context.WithCancel(context.Background())
	return k, nil
}

// runnerStart is made once per process: the time in milliseconds since 1970, and 32 random bits.
var runnerStart = sync.OnceValue(func() string { return fmt.Sprintf("%d_%08x", time.Now().UnixMilli(), rand.Uint32()) })

// RunnerID returns the ID of this process as an owner, "runner_{milliseconds}_{8 hex digits}_{pid}". It is the same
// whenever it is called with the same PID in one process, and differs between processes and restarts.
func RunnerID(pid int) string { return "runner_" + runnerStart() + "_" + strconv.Itoa(pid) }

// Owner returns who the Locker claims as.
func (k *Locker) Owner() Owner { return k.owner }

// Acquire takes the named lock. It waits in the queue for up to o.Wait, or until ctx ends. ctx also bounds the life of
// the lease: when it ends, so do the lease's context and its heartbeats. If another is in the way the error is a
// *BlockedError; after Close it is ErrClosed. An acquisition that fails holds nothing and leaves nothing behind,
// unless the error says otherwise: see BlockedError.Unsure.
func (k *Locker) Acquire(ctx context.Context, name string, o Options) (*Lease, error) {
	o, err := o.withDefaults(k.defaults)
	if err != nil {
		return nil, err
	}
	return k.acquire(ctx, k.claim(ctx, name, o), o)
}

// Reclaim takes a lock again whose lease l was lost because it was not renewed in time: under the same lease ID, unless that has been released, or the answer comes
// too late. It fails like Acquire if anybody else has taken it since, and does not wait. The new lease has a new token, unless the old grant turns out to have lasted.
// Releasing l does nothing from then on. A lease that is not lost is refused with ErrInvalid.
func (k *Locker) Reclaim(ctx context.Context, l *Lease) (*Lease, error) {
	l.renewing.Lock() // no release of l may end what is taken now
	defer l.renewing.Unlock()
	l.look()
	l.mu.Lock()
	state, retaken, left, doubtful := l.state, l.retaken, l.left, l.doubtful
	l.mu.Unlock()
	switch {
	case doubtful:
		return nil, invalid("lease on %q has been released without an answer, which may end it yet", l.name)
	case state != Lost || retaken:
		return nil, invalid("lease on %q is %v, and only a lost one can be reclaimed, once", l.name, state)
	}
	c := k.claim(ctx, l.name, l.o)
	if c.Wait = 0; !left {
		c.LeaseID = l.id
	}
	again, err := k.acquire(ctx, c, l.o)
	l.mu.Lock()
	l.retaken, l.left = err == nil, true // what failed may have been taken back
	l.mu.Unlock()
	return again, err
}

// acquireTries is how often a lock is asked for whose grant was over before it could be taken up.
const acquireTries = 5

func (k *Locker) acquire(ctx context.Context, c Claim, o Options) (l *Lease, err error) {
	k.mu.Lock()
	if k.open.Err() != nil {
		k.mu.Unlock()
		return nil, ErrClosed
	}
	k.acquiring.Add(1)
	k.mu.Unlock()
	defer k.acquiring.Done()
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(k.open, func() { cancel(ErrClosed) })()
	for try := range acquireTries {
		if try > 0 { // a copy of the release that ended the last one may still be under way
			c.LeaseID = NewLeaseID()
		}
		if l, err = k.acquireOnce(ctx, asking, c, o); !errors.As(err, new(*GoneError)) || asking.Err() != nil {
			break
		}
	}
	if err != nil && k.open.Err() != nil && !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return l, err
}

// acquireOnce asks for the lock while asking lasts, for a lease that ends with ctx.
func (k *Locker) acquireOnce(ctx, asking context.Context, c Claim, o Options) (*Lease, error) {
	asked := k.keeper.now()
	h, err := k.service.Acquire(asking, c)
	if err != nil {
		return nil, err
	}
	l := &Lease{k: k, name: c.Name, id: h.LeaseID, token: h.Token, o: o, holder: h, deadline: forever, yield: make(chan struct{})}
	inner, cancel := context.WithCancelCause(ctx)
	l.ctx, l.cancel = &leaseContext{Context: inner, lease: l}, cancel
	if life := l.renewed(h, asked); life > 0 && k.keeper.now()-asked > min(o.Interval, life/2)/2 {
		// Too long ago to count on: the life of the lock began at some moment of the wait. Begin it now.
		l.deadline = forever
		_, err = l.renew(asking)
	}
	k.mu.Lock()
	switch {
	case err != nil:
	case k.open.Err() != nil:
		err = ErrClosed
	default:
		k.leases[h.LeaseID] = l
	}
	k.mu.Unlock()
	if err != nil {
		cancel(err)
		undo, done := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer done()
		return nil, cmp.Or(l.Release(undo), err) // what is in doubt may still end what the lease is granted next
	}
	l.watch()
	if !o.ManualHeartbeat {
		l.StartHeartbeat()
	}
	return l, nil
}

func (k *Locker) claim(ctx context.Context, name string, o Options) Claim {
	return Claim{
		Name: name, LeaseID: NewLeaseID(), Owner: k.owner, Process: o.Process, Attended: true,
		Limit: o.Limit, Weight: o.Weight, Strict: o.Strict, TTL: max(o.TTL, 0), MaxHold: o.MaxHold,
		Priority: o.Priority, Preempt: o.Preempt, Newest: o.Newest, Wait: o.Wait, Metadata: k.describe(o.Metadata),
		Within: append(slices.Clone(o.Within), around(ctx)...),
	}
}

// describe returns the metadata of a claim: what is known of the runner, and what the caller says.
func (k *Locker) describe(own map[string]string) map[string]string {
	if !k.runner {
		return maps.Clone(own)
	}
	all := map[string]string{"platform": runtime.GOOS, "timestamp": time.Now().UTC().Format(time.RFC3339Nano)}
	if k.owner.Host != "" {
		all["hostname"] = k.owner.Host
	}
	if pid := k.owner.Process.PID; pid != 0 {
		all["pid"] = strconv.Itoa(pid)
	}
	maps.Copy(all, own)
	return all
}

// around returns the leases within which the context is, outermost first.
func around(ctx context.Context) []string {
	if c, ok := ctx.Value(leaseKey{}).(*leaseContext); ok {
		return append(around(c.Context), c.lease.id)
	}
	return nil
}

// beyond returns the context, or, if that ends with one of the leases, which are to be released, one that goes on.
func beyond(ctx context.Context, leases ...*Lease) (context.Context, context.CancelFunc) {
	within := around(ctx)
	if !slices.ContainsFunc(leases, func(l *Lease) bool { return slices.Contains(within, l.id) }) {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
}

// TryAcquire takes the named lock if it can be had at once. It reports whether it did; who is in the way is no error.
func (k *Locker) TryAcquire(ctx context.Context, name string, o Options) (*Lease, bool, error) {
	o, err := o.withDefaults(k.defaults)
	if err != nil {
		return nil, false, err
	}
	o.Wait = 0
	l, err := k.acquire(ctx, k.claim(ctx, name, o), o)
	if errors.Is(err, ErrHeld) || errors.Is(err, ErrFrozen) {
		return nil, false, nil
	}
	return l, err == nil, err
}

// Do acquires the named lock, calls fn with the lease's context and its fencing token, and releases it. If the lock is
// lost while fn runs, its context ends, and the error says so beside fn's own. Calls of Do exclude each other, those of
// one program and owner too, unless Options.Reentrant says otherwise.
func (k *Locker) Do(ctx context.Context, name string, o Options, fn func(ctx context.Context, token uint64) error) (err error) {
	o.Strict = o.Strict || !o.Reentrant && !k.defaults.Reentrant
	l, err := k.Acquire(ctx, name, o)
	if err != nil {
		return err
	}
	defer func() {
		undo, done := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer done()
		lost := l.Err()
		if !errors.Is(lost, ErrLost) || errors.Is(err, ErrLost) {
			lost = nil
		}
		err = errors.Join(err, lost, l.Release(undo))
	}()
	return fn(l.Context(), l.Token())
}

// Lead runs fn whenever this owner leads: while it holds the named lock, for which it waits as long as it takes. fn gets a context that
// ends when the lead is lost, and the fencing token of this term. When fn returns because the lead was lost, Lead waits to lead again; when
// it returns otherwise, or ctx ends, so does Lead, with fn's error or the cause of ctx.
func (k *Locker) Lead(ctx context.Context, name string, o Options, fn func(ctx context.Context, token uint64) error) error {
	o.Wait = -1
	pause := retryAtLeast
	for {
		var led, lost bool
		err := k.Do(ctx, name, o, func(term context.Context, token uint64) error {
			pause, led = retryAtLeast, true
			err := fn(term, token)
			lost = errors.Is(context.Cause(term), ErrLost)
			return err
		})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case lost:
		case led, !errors.Is(err, ErrUnavailable):
			return err
		default: // the service may come back
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, 5*time.Second)
		}
	}
}

// forget takes an ended lease out of the Locker's books.
func (k *Locker) forget(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.leases[l.id] == l {
		delete(k.leases, l.id)
	}
}

func (k *Locker) emit(h Holder, news ...Event) {
	for _, e := range news {
		if k.observe != nil {
			e.Time, e.Name, e.LeaseID, e.Owner, e.Token, e.TTL = time.Now(), h.Name, h.LeaseID, h.Owner, h.Token, h.TTL
			k.observe(e)
		}
	}
}

// Leases returns the leases that this Locker holds, by lock name.
func (k *Locker) Leases() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(maps.Values(k.leases), func(a, b *Lease) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.token, b.token))
	})
}

// ReleaseAll releases every lease of this Locker, with the context of one of them, too, many at once, and returns how many of them were still held.
func (k *Locker) ReleaseAll(ctx context.Context) (int, error) {
	leases := k.Leases()
	ctx, enough := beyond(ctx, leases...)
	defer enough()
	errs := make([]error, len(leases))
	var held atomic.Int64
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, l := range leases {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := l.Release(ctx); err != nil {
				errs[i] = fmt.Errorf("%s: %w", l.name, err)
			} else if l.State() == Released {
				held.Add(1)
			}
		})
	}
	all.Wait()
	return int(held.Load()), errors.Join(errs...)
}

// Close ends the Locker: nothing can be acquired any more, what is being acquired is given up with ErrClosed, and every lease is
// released. If ctx ends first the error says so, and what is granted later is given back by whoever asked for it.
func (k *Locker) Close(ctx context.Context) error {
	k.mu.Lock()
	k.stop()
	k.mu.Unlock()
	ctx, enough := beyond(ctx, k.Leases()...)
	defer enough()
	var err error
	idle := make(chan struct{})
	go func() {
		_, err = k.ReleaseAll(ctx)
		k.acquiring.Wait()
		close(idle)
	}()
	select {
	case <-idle:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
