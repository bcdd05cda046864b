package lokt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/internal/heap"
)

const (
	// clockDrift is the relative error of a holder's clock against the store's that leases allow for.
	clockDrift = 0.01

	keepWorkers   = 100                    // renewals under way at once, per Keeper: what a request to a server takes
	mostWorkers   = 10 * keepWorkers       // the same while renewals are late, because answers are slow
	keepTogether  = keepWorkers - 1        // renewals made before their time at most, because one is due
	retryAtLeast  = 20 * time.Millisecond  // between two tries of a renewal that failed
	repeatAtLeast = 100 * time.Millisecond // a shorter wait for an answer is not cut in two
)

// Keeper renews any number of leases in time, with one timer and a bounded number of goroutines. Renewals that are due
// within an eighth of their interval are made together: the program wakes up less often. The zero Keeper is ready.
type Keeper struct {
	// Elapsed, if set before the first use, reads a clock that never goes back. It may count the time that the machine
	// sleeps, which Go's own monotonic clock does not, nor its timers: the keeper then looks every second.
	Elapsed func() time.Duration

	mu      sync.Mutex
	base    time.Time
	beats   *heap.Heap[*Heartbeat] // by when they are due; nil before the first
	ready   []*Heartbeat           // due, but all workers are busy
	busy    int                    // workers
	running bool
	alarm   time.Time // when the loop wakes up unless it is roused, by the clock of its timer
	wake    chan struct{}
}

// Heartbeat describes one lease to be kept.
type Heartbeat struct {
	// Interval is the time between two renewals; 0 renews never, and only the end of the lease is told. Renew may change it.
	Interval time.Duration

	// Renew renews the lease and returns how long it lives from the call on; 0 is for ever. An error that wraps
	// ErrNotOwner or ErrNotFound is final; after any other Renew is called again soon, until the lease's time is up.
	// The context ends when half of the time that is left is over: a request without an answer is repeated.
	Renew func(ctx context.Context) (life time.Duration, err error)

	// Lost is called once, with an error that wraps ErrLost, when the lease can no longer be relied on. It must not
	// call Stop, and is not called after Stop has returned.
	Lost func(cause error)

	// Margin is how long before the end of its life the lease counts as lost.
	Margin time.Duration

	k        *Keeper
	renewing sync.Mutex // held while Renew and its consequences run
	telling  sync.Mutex // held while Lost runs
	next     time.Duration
	deadline time.Duration // never if it is forever
	due      time.Duration
	place    int // in the heap
	inFlight bool
	late     time.Duration // when it has waited too long for a worker; 0 if it does not wait
	paused   bool          // not renewed, but still watched
	stopped  bool
	failure  error
	cancel   context.CancelFunc
}

const forever = 1<<63 - 1

// now reads the keeper's clock.
func (k *Keeper) now() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.nowLocked()
}

func (k *Keeper) nowLocked() time.Duration {
	if k.Elapsed != nil {
		return k.Elapsed()
	}
	if k.base.IsZero() {
		k.base = time.Now()
	}
	return time.Since(k.base)
}

// Usable returns how long a lease of the given life may be relied on, counted from before its request was sent: the
// life less clockDrift and the margin. It is negative for a lease too short to use, and forever for one that does not
// end.
func Usable(life, margin time.Duration) time.Duration {
	if life <= 0 {
		return forever
	}
	return life - time.Duration(float64(life)*clockDrift) - margin
}

// after returns when a lease whose life began when asked can no longer be relied on.
func after(asked, life, margin time.Duration) time.Duration {
	if life <= 0 {
		return forever
	}
	return asked + Usable(life, margin)
}

// Keep starts to renew a lease that was asked for at that time of the keeper's clock, and lives so long. A heartbeat is
// kept once, and belongs to the keeper until Stop.
func (k *Keeper) Keep(b *Heartbeat, asked time.Duration, life time.Duration) {
	b.paused = b.Interval <= 0
	k.keepUntil(b, asked, after(asked, life, b.Margin))
}

// keepUntil starts to renew a lease that can be relied on until the deadline, first an interval after asked, unless it
// is paused.
func (k *Keeper) keepUntil(b *Heartbeat, asked, deadline time.Duration) {
	b.k, b.deadline = k, deadline
	b.nextAfter(asked)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.beats == nil {
		k.beats = heap.New(func(b *Heartbeat) *int { return &b.place }, func(a, b *Heartbeat) bool { return a.due < b.due })
	}
	k.beats.Push(b)
	b.schedule()
	if !k.running {
		k.running, k.alarm = true, time.Time{}
		k.wake = make(chan struct{}, 1)
		go k.loop(k.wake)
	}
}

// nextAfter makes the next renewal come an interval after the moment at which the last one was asked for.
func (b *Heartbeat) nextAfter(asked time.Duration) {
	b.next = forever
	if !b.paused {
		b.next = asked + b.Interval
	}
}

// schedule puts the beat where its next moment belongs, unless it is over: then it has left the heap. The keeper is
// locked.
func (b *Heartbeat) schedule() {
	if b.place == 0 {
		return
	}
	b.due = b.deadline
	switch {
	case !b.inFlight:
		b.due = min(b.next, b.deadline)
	case b.late > 0:
		b.due = min(b.late, b.deadline)
	}
	b.k.beats.Fix(b)
	if b.k.beats.Top() == b && b.due-b.k.nowLocked() < time.Until(b.k.alarm) {
		b.k.rouse()
	}
}

// rouse makes the loop look again. The keeper is locked.
func (k *Keeper) rouse() {
	select {
	case k.wake <- struct{}{}: // nobody listens on a nil channel
	default:
	}
}

// resume renews the lease from now on, an interval after the last renewal or at once.
func (b *Heartbeat) resume(last time.Duration) {
	now := b.k.now()
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	b.paused = false
	b.next = max(last+b.Interval, now)
	b.schedule()
}

// pause ends the heartbeats, but not the watch over the lease's end, and waits for one that is under way.
func (b *Heartbeat) pause() {
	b.k.mu.Lock()
	b.paused, b.next = true, forever
	if b.cancel != nil {
		b.cancel()
	}
	b.schedule()
	b.k.mu.Unlock()
	b.renewing.Lock()   // whoever is inside finishes first
	b.renewing.Unlock() //nolint:staticcheck // nothing to protect: only to wait
}

// Extend takes in a renewal that was not the keeper's own: asked for at that moment, for so long a life.
func (b *Heartbeat) Extend(asked, life time.Duration) { b.extend(asked, life, 0) }

// extend is Extend. It sets the interval, too, unless that is 0.
func (b *Heartbeat) extend(asked, life, interval time.Duration) {
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	b.Interval = cmp.Or(interval, b.Interval)
	b.deadline = after(asked, life, b.Margin)
	if !b.inFlight {
		b.nextAfter(asked)
	}
	b.schedule()
}

// Stop ends the heartbeats and waits for one that is under way. After it, Renew and Lost are not called again. Stopping
// again does nothing.
func (b *Heartbeat) Stop() {
	b.halt()
	for _, m := range []*sync.Mutex{&b.renewing, &b.telling} { // whoever is inside finishes first
		m.Lock()
		m.Unlock() //nolint:staticcheck // nothing to protect: only to wait
	}
}

// halt is Stop without the wait.
func (b *Heartbeat) halt() {
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	b.stopped = true
	b.remove()
	if b.cancel != nil {
		b.cancel()
	}
}

// remove takes the beat out of the heap, and lets the loop end if it was the last. The keeper is locked.
func (b *Heartbeat) remove() {
	if b.place == 0 {
		return
	}
	b.k.beats.Remove(b)
	if b.k.beats.Len() == 0 {
		b.k.rouse()
	}
}

// loop waits for the next moment at which a lease needs something. It ends when there is nothing left to keep.
func (k *Keeper) loop(wake chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := k.now()
		k.mu.Lock()
		var lost []*Heartbeat
		for k.beats.Len() > 0 && k.beats.Top().due <= now {
			b := k.beats.Top()
			switch {
			case now >= b.deadline:
				b.remove()
				lost = append(lost, b)
			case b.inFlight:
				if b.late > 0 && k.busy < mostWorkers {
					i := slices.Index(k.ready, b)
					k.ready = slices.Delete(k.ready, i, i+1)
					k.busy++
					go k.work(b)
				}
				b.late = 0
				b.schedule()
			default:
				k.start(b)
				k.startSoon(now)
			}
		}
		if k.beats.Len() == 0 && len(lost) == 0 { // what still waits for a worker is over too
			k.running, k.wake = false, nil
			k.mu.Unlock()
			return
		}
		pause := time.Minute
		if k.Elapsed != nil {
			pause = time.Second
		}
		if k.beats.Len() > 0 {
			pause = min(pause, k.beats.Top().due-now)
		}
		k.alarm = time.Now().Add(pause)
		k.mu.Unlock()
		for _, b := range lost {
			go b.expire()
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-wake:
		}
	}
}

// start renews the beat's lease as soon as a worker is free, or it is late. The keeper is locked.
func (k *Keeper) start(b *Heartbeat) {
	b.inFlight = true
	if k.busy < keepWorkers {
		k.busy++
		go k.work(b)
	} else {
		k.ready = append(k.ready, b)
		now := k.nowLocked()
		b.late = now + min(b.Interval, (b.deadline-now)/4)
	}
	b.schedule()
}

// startSoon starts renewals that are nearly due. The keeper is locked.
func (k *Keeper) startSoon(now time.Duration) {
	for range keepTogether {
		b := k.beats.Top()
		if b.inFlight || b.due >= b.deadline || b.due > now+b.Interval/8 {
			return
		}
		k.start(b)
	}
}

// work renews one lease, and then those that had to wait for a worker.
func (k *Keeper) work(b *Heartbeat) {
	for b != nil {
		b.renew()
		k.mu.Lock()
		b = nil
		if len(k.ready) > 0 {
			b = k.ready[0]
			k.ready = k.ready[1:]
			b.late = 0
			b.schedule()
		} else {
			k.busy--
		}
		k.mu.Unlock()
	}
}

// renew renews once and schedules what comes next.
func (b *Heartbeat) renew() {
	b.renewing.Lock()
	defer b.renewing.Unlock()
	k := b.k
	asked := k.now()
	k.mu.Lock()
	if b.paused || b.place == 0 || asked >= b.deadline {
		b.inFlight = false
		b.schedule()
		k.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	if b.deadline != forever {
		ctx, cancel = context.WithTimeout(context.Background(), patience(b.deadline-asked))
	}
	b.cancel = cancel
	k.mu.Unlock()

	life, err := b.Renew(ctx)
	cancel()

	answered := k.now()
	k.mu.Lock()
	b.inFlight, b.cancel, b.failure = false, nil, err
	if b.place == 0 { // stopped, or lost while the answer was under way
		k.mu.Unlock()
		return
	}
	over := final(err)
	switch {
	case over:
		b.remove()
	case err != nil:
		if !b.paused {
			b.next = answered + max(retryAtLeast, min(b.Interval, b.deadline-answered)/4)
		}
		b.schedule()
	default:
		b.deadline = after(asked, life, b.Margin)
		b.nextAfter(asked)
		b.schedule()
	}
	k.mu.Unlock()
	if over {
		b.tell(err)
	}
}

// patience returns how long to wait for the answer to a renewal if that much time is left: half of it, so that a
// request that went astray can be repeated, as long as that is worth while.
func patience(left time.Duration) time.Duration {
	if half := left / 2; half >= repeatAtLeast {
		return half
	}
	return left
}

// final reports whether an error is the last answer to a renewal: the lease is not there any more.
func final(err error) bool {
	return errors.Is(err, ErrNotOwner) || errors.Is(err, ErrNotFound)
}

// errTimeUp is the cause of a loss that no answer announced.
var errTimeUp = errors.New("it could not be renewed in time")

// expire tells of a lease whose time is up. It does not wait for a renewal under way, which is too late.
func (b *Heartbeat) expire() {
	b.k.mu.Lock()
	if b.cancel != nil {
		b.cancel()
	}
	err := b.failure
	b.k.mu.Unlock()
	b.tell(cmp.Or(err, errTimeUp))
}

// tell calls Lost, once, unless the beat was stopped.
func (b *Heartbeat) tell(err error) {
	b.telling.Lock()
	defer b.telling.Unlock()
	b.k.mu.Lock()
	stopped := b.stopped
	b.stopped = true
	b.k.mu.Unlock()
	if !stopped {
		b.Lost(fmt.Errorf("%w: %w", ErrLost, err))
	}
}
