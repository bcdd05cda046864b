// Package manager runs the rules of jobs/engine over a jobs.Store, and is a jobs.Service by that. Requests that arrive
// while a turn is stored are collected into the next; what a turn changed is stored as one step before it is answered.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/engine"
)

// Options are what a manager may be told. The zero Options are good.
type Options struct {
	jobs.Config

	// Keep is how long jobs are kept after their end; 0 means 30 days. KeepMost is how many of them are kept at most; 0
	// means a million, negative no limit.
	Keep     time.Duration
	KeepMost int

	// Locks, if set, is where the locks that jobs name are taken. Otherwise a name excludes only jobs from each other.
	Locks lokt.Service

	// OneStore says that Locks are those of the store of the jobs (see jobs.Facts.Locks): what becomes of them is stored with the turn.
	OneStore bool

	// Observe, if set, is called with events after they were stored, in their order, one call at a time. Nothing is
	// answered while it runs.
	Observe func([]jobs.Event)
}

// Manager is the Service that applies the rules to what a Store remembers. It keeps what lives in memory. Requests that
// arrive while it stores a turn are collected into the next.
type Manager struct {
	cfg   jobs.Config
	opts  Options
	store jobs.Store
	start time.Time // deadlines count from here, on the monotonic clock

	poke  chan struct{} // there is something to do
	stop  context.CancelFunc
	ctx   context.Context // ends when the manager is closed
	ended chan struct{}   // closed when the loop has ended
	tasks sync.WaitGroup  // in the background, which Close waits for
	locks *locker         // nil without Options.Locks

	mu      sync.Mutex
	engine  *engine.Engine
	metrics engine.Metrics   // but for what waits now
	queue   []*call          // not yet in a turn
	calls   map[uint64]*call // not yet answered
	lastID  uint64
	closed  bool

	// For the loop only.
	suspect  bool               // it is not known what was stored: load before the next turn
	pause    time.Duration      // before the next turn, because the store failed
	why      error              // it did
	retry    time.Time          // no turn before
	failures int                // turns that could not be stored, since the last one that was
	unsure   []engine.LockOrder // orders of the last of these turns, which may have been stored all the same
}

// call is a request on its way.
type call struct {
	id    uint64
	op    engine.Op
	ctx   context.Context   // ends when its client goes
	taken bool              // into a turn
	done  chan engine.Reply // gets one
}

var _ jobs.Service = (*Manager)(nil)

// Waits before the store is tried again after it failed: doubled from the first to the last.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// errClosed is what every method answers after Close.
var errClosed = fmt.Errorf("%w: scheduler is closed", lokt.ErrUnavailable)

// Open loads what lives in the store and returns a manager over it. Every lease gets a full TTL and grace from now. The
// store stays the caller's to close, after the manager.
func Open(ctx context.Context, store jobs.Store, o Options) (*Manager, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Keep, o.KeepMost = cmp.Or(o.Keep, jobs.DefaultDays*24*time.Hour), cmp.Or(o.KeepMost, 1_000_000)
	m := &Manager{
		cfg: o.WithDefaults(), opts: o, store: store, start: time.Now(), poke: make(chan struct{}, 1),
		ended: make(chan struct{}),
		calls: map[uint64]*call{}, metrics: engine.NewMetrics(),
	}
	m.ctx, m.stop = context.WithCancel(context.Background())
	if _, shared := store.(jobs.Sharer); shared {
		m.cfg.Shared = true
	}
	if o.Locks != nil {
		m.cfg.Locking = true
		m.locks = newLocker(m, o.Locks)
	}
	if err := m.load(ctx); err != nil {
		m.stop()
		return nil, err
	}
	go m.loop()
	m.tasks.Go(m.housekeep)
	if m.locks != nil {
		m.tasks.Go(m.locks.renew)
	}
	return m, nil
}

// load replaces the engine by what the store keeps.
func (m *Manager) load(ctx context.Context) error {
	living, err := m.store.Load(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.engine = engine.Load(m.cfg, living, lokt.NewLeaseID()[:12], m.instant(living.Now))
	return nil
}

// instant reads the clocks; the store's, if it has one, counts as the wall's.
func (m *Manager) instant(stores time.Time) engine.Instant {
	now := time.Now()
	at := engine.Instant{Wall: now, Mono: now.Sub(m.start)}
	if !stores.IsZero() {
		at.Wall = stores
	}
	return at
}

// Drain denies the requests that wait and all that come, and tells workers with their heartbeats that the
// service is about to end. Everything else goes on.
func (m *Manager) Drain(ctx context.Context) error {
	_, err := m.do(ctx, engine.Drain{})
	return err
}

// Close answers what waits as Drain does, stores what is left and ends the manager; later calls fail. Leases
// stay as they are, for the next one to find.
func (m *Manager) Close() error {
	_, err := m.do(context.Background(), engine.Drain{Last: true})
	m.stop()
	<-m.ended
	m.tasks.Wait()
	if errors.Is(err, errClosed) {
		err = nil
	}
	return err
}

// loop runs turns until the manager is closed.
func (m *Manager) loop() {
	defer close(m.ended)
	var changed <-chan struct{}
	if s, ok := m.store.(jobs.Sharer); ok {
		changed = s.Changed()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	look := false
	for {
		m.turn(look)
		look = false
		timer.Reset(m.idle())
		select {
		case <-m.poke:
		case <-timer.C:
		case <-changed:
			look = true
		case <-m.ctx.Done():
			m.mu.Lock()
			defer m.mu.Unlock()
			m.closed = true
			m.failLocked(errClosed, slices.Collect(maps.Values(m.calls)), func(*call) bool { return false })
			return
		}
	}
}

// idle returns how long the loop may sleep.
func (m *Manager) idle() time.Duration {
	if d := time.Until(m.retry); m.suspect || d > 0 {
		return max(d, 0)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) > 0 {
		return 0
	}
	return max(m.engine.Next()-max(time.Since(m.start), m.engine.Now.Mono), 0)
}

// turn runs one turn, if there is anything to do, stores what it changed, and answers.
func (m *Manager) turn(look bool) {
	if time.Until(m.retry) > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.failLocked(m.why, m.queue, internal)
		return
	}
	if m.suspect {
		if err := m.load(m.ctx); err != nil {
			m.failed(unavailable(err), false)
			return
		}
		m.suspect, m.pause = false, 0
		for _, o := range m.unsure {
			if o.Kind == engine.FreeLocks && !m.locks.active(o.LeaseID) {
				m.locks.follow(o)
			}
		}
		m.unsure = nil
	}
	if !look && m.idle() > 0 {
		return
	}
	var out engine.Outcome
	var decided time.Time // zero if the turn was not run
	runtime.Gosched()     // those who are about to ask for something are in time for this turn
	m.mu.Lock()
	last := m.lastID
	m.mu.Unlock()
	err := m.store.Update(m.ctx, func(f jobs.Facts) jobs.Changes {
		m.mu.Lock()
		defer m.mu.Unlock()
		now := m.instant(f.Now)
		if f.Now.IsZero() { // otherwise the store has read its clock a while ago: no lease begins before it was asked for
			last = m.lastID
		}
		if f.Others != nil {
			m.engine.Follow(f.Others, now)
		}
		var carryOut func(engine.LockOrder) engine.Op
		if f.Locks != nil && m.locks != nil && m.opts.OneStore {
			carryOut = func(o engine.LockOrder) engine.Op { return m.locks.within(f.Locks, o) }
		}
		out = m.engine.Turn(now, m.offered(last), carryOut)
		for _, c := range m.queue[:out.Taken] {
			c.taken = true
		}
		if m.queue = m.queue[out.Taken:]; len(m.queue) == 0 {
			m.queue = nil
		}
		decided = time.Now()
		return out.Changes
	})
	if err != nil {
		m.unsure = out.Orders
		m.failed(unavailable(err), !decided.IsZero())
		return
	}
	m.pause = 0
	if !out.Changes.Empty() {
		m.failures = 0
	}
	if m.opts.Observe != nil && len(out.Changes.Events) > 0 {
		m.opts.Observe(out.Changes.Events)
	}
	m.stored(&out, time.Since(decided))
}

// stored answers what a turn that is stored has answered, and has its orders carried out.
func (m *Manager) stored(out *engine.Outcome, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.metrics.Stored(out)
	if !out.Changes.Empty() {
		m.metrics.Store.Observe(took)
	}
	for _, o := range out.Orders {
		m.locks.follow(o)
	}
	for _, o := range out.Blocked {
		m.locks.watch(o)
	}
	if m.locks != nil {
		m.locks.stand(m.engine.Claimant())
	}
	for _, r := range out.Replies {
		m.answerLocked(r)
	}
}

// turnCalls bounds how many requests are offered to a turn; how many it takes in is up to the engine.
const turnCalls = 4096

// offered returns the requests for this turn, up to the last one, the oldest first. Who has gone is answered.
func (m *Manager) offered(last uint64) []engine.Call {
	m.queue = slices.DeleteFunc(m.queue, func(c *call) bool {
		err := c.ctx.Err()
		if err != nil {
			m.answerLocked(engine.Reply{ID: c.id, Err: err})
		}
		return err != nil
	})
	calls := make([]engine.Call, 0, min(len(m.queue), turnCalls))
	for _, c := range m.queue[:cap(calls)] {
		if c.id > last {
			break
		}
		calls = append(calls, engine.Call{ID: c.id, Op: c.op})
	}
	return calls
}

// failed puts off the next turn, for longer each time, and answers who waits. If a turn was run, it is not known what
// was stored: requests are made again, because a lease that was stored for one is found by its ID, unless this is not
// the first time in a row, because what is granted may be what cannot be stored. The others must look themselves.
func (m *Manager) failed(err error, ran bool) {
	m.why, m.pause = err, min(max(2*m.pause, firstPause), lastPause)
	m.retry = time.Now().Add(m.pause)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.metrics.Failures++
	if !ran {
		m.failLocked(err, m.queue, internal)
		return
	}
	m.suspect, m.retry = true, time.Now() // loading may well succeed at once
	m.failures++
	all := slices.Collect(maps.Values(m.calls))
	slices.SortFunc(all, func(a, b *call) int { return cmp.Compare(a.id, b.id) })
	m.failLocked(err, all, func(c *call) bool {
		_, request := c.op.(engine.Request)
		return !c.taken || internal(c) || request && m.failures == 1
	})
}

// failLocked answers calls with an error, but for those to keep, which are in the next turn.
func (m *Manager) failLocked(err error, among []*call, keep func(*call) bool) {
	m.queue = nil
	for _, c := range among {
		if c.taken = !keep(c); c.taken {
			m.answerLocked(engine.Reply{ID: c.id, Err: err})
		} else {
			m.queue = append(m.queue, c)
		}
	}
}

// internal reports whether a call only tells the engine something, which has to learn it.
func internal(c *call) bool {
	switch c.op.(type) {
	case engine.Locked, engine.Unlocked, engine.Vacant:
		return true
	}
	return false
}

// answerLocked hands an answer to who waits for it, if anybody does.
func (m *Manager) answerLocked(r engine.Reply) {
	if c := m.calls[r.ID]; c != nil {
		delete(m.calls, r.ID)
		c.done <- r
	}
}

// unavailable wraps what a store says, unless it says so itself.
func unavailable(err error) error {
	if errors.Is(err, lokt.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", lokt.ErrUnavailable, err)
}

// send queues a request.
func (m *Manager) send(ctx context.Context, o engine.Op) (*call, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, errClosed
	}
	m.lastID++
	c := &call{id: m.lastID, op: o, ctx: ctx, done: make(chan engine.Reply, 1)}
	m.calls[c.id] = c
	m.queue = append(m.queue, c)
	m.wakeUp()
	return c, nil
}

func (m *Manager) wakeUp() {
	select {
	case m.poke <- struct{}{}:
	default:
	}
}

// tell tells the engine something, and returns when it has taken that in, or false if the manager is closed before.
func (m *Manager) tell(o engine.Op) bool {
	c, err := m.send(context.Background(), o)
	return err == nil && (<-c.done).Err == nil
}

// do sends a request and waits for its answer. When ctx ends first, one that waits in the engine is withdrawn, and if
// its answer came before that, it counts, unless it is a lease that nobody can ask for again: that is taken back.
func (m *Manager) do(ctx context.Context, o engine.Op) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := m.send(ctx, o)
	if err != nil {
		return nil, err
	}
	select {
	case r := <-c.done:
		if ctx.Err() == nil || !waits(o) {
			return r.Result, r.Err
		}
		c.done <- r
	case <-ctx.Done():
	}
	if waits(o) {
		w := engine.Withdraw{CallID: c.id}
		if a, ok := o.(engine.Request); ok && a.RequestID == "" {
			w.LeaseID = a.LeaseID
		}
		if gone, err := m.do(context.Background(), w); err == nil && gone == false {
			if r := <-c.done; r.Err == nil {
				return r.Result, nil
			}
		}
	}
	return nil, context.Cause(ctx)
}

// waits reports whether the engine may keep the request beyond a turn.
func waits(o engine.Op) bool {
	switch o := o.(type) {
	case engine.Request:
		return true
	case engine.Heartbeat:
		return o.Wait > 0
	}
	return false
}
