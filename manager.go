package lokt

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/internal/ahead"
)

// undoTimeout bounds how long a claim that its caller gave up may take to leave the store.
const undoTimeout = 5 * time.Second

// Manager is the Service that applies the rules to what a Store remembers. It keeps nothing of that itself: any number
// of managers, in any number of processes, may share a store.
type Manager struct {
	store  Store
	polled sync.Map // by lease ID, claims for which a request waits here
}

// NewManager returns a manager over the store. The store stays the caller's to close.
func NewManager(s Store) *Manager { return &Manager{store: s} }

var _ Service = (*Manager)(nil)

// NewLeaseID returns a random lease ID: 32 hexadecimal digits, 128 bits.
func NewLeaseID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}

// apply runs one rule as one atomic change.
func (m *Manager) apply(ctx context.Context, name string, rule func(Snapshot) *decision) (*decision, error) {
	if err := ValidateName(name); err != nil {
		return nil, err
	}
	var d *decision
	if err := m.store.Update(ctx, name, func(s Snapshot) Change {
		s.here = m.here
		d = rule(s)
		return d.Change
	}); err != nil {
		return nil, err
	}
	return d, nil
}

// answer is apply where an error of the store is an answer like any other.
func (m *Manager) answer(ctx context.Context, name string, rule func(Snapshot) *decision) *decision {
	d, err := m.apply(ctx, name, rule)
	if err != nil {
		return &decision{err: err}
	}
	return d
}

// Acquire implements Service.
func (m *Manager) Acquire(ctx context.Context, c Claim) (Holder, error) {
	d := m.acquire(ctx, &c, false)
	return d.holder, d.err
}

// Poll is Acquire for a server whose client may lose its connection and ask again with the same lease ID. When ctx ends,
// or the store does not answer, the claim stays: what was granted stays granted, and a place in the queue lapses after
// QueueTTL, or after AwayTTL if ctx was cancelled without a cause, as that of a request is when its client hangs up.
// If ctx has a deadline, those behind pass the claim when it is not asked for within ReturnTimeout of it.
//
// A client that gives up on purpose releases the lease. If that happens while Poll waits, by way of any manager, Poll
// returns ErrWithdrawn. A claim without a lease ID is given one.
func (m *Manager) Poll(ctx context.Context, c *Claim) (*Holder, error) {
	d := m.acquire(ctx, c, true)
	return &d.holder, d.err
}

// acquire answers a claim. If no answer was had it is taken back, unless it is polled: then its client asks again, and
// may withdraw it by way of another manager.
func (m *Manager) acquire(ctx context.Context, c *Claim, polled bool) *decision {
	if c.LeaseID == "" {
		c.LeaseID = NewLeaseID()
	}
	if polled { // from the beginning: it may be granted in the step after the one that queues it
		m.polled.Store(c.LeaseID, nil)
		defer m.polled.Delete(c.LeaseID)
	}
	begun := time.Now()
	d, err := apart(func() (*decision, error) { return m.ask(ctx, c, polled) })
	switch {
	case err != nil:
		if !polled && !errors.Is(err, ErrDamaged) { // the store does not say whether it kept the claim
			_, _ = m.leave(ctx, c, leftCancelled, min(undoTimeout, storeTimeout-time.Since(begun)))
		}
		return &decision{err: err}
	case d.place == nil:
		return d
	}
	return m.wait(ctx, c, begun, d.place.Until, polled)
}

// apart runs f on a stack of its own, so that those of thousands who wait afterwards stay small. If f panics or ends its goroutine,
// apart does.
func apart(f func() (*decision, error)) (d *decision, err error) {
	done, returned := make(chan any), false
	go func() {
		defer func() { done <- recover() }()
		d, err = f()
		returned = true
	}()
	if p := <-done; p != nil {
		panic(p)
	}
	if !returned {
		runtime.Goexit()
	}
	return d, err
}

// storeTimeout bounds the wait for a store that does not answer. The last second is for taking back a claim that it may
// have put on record.
const storeTimeout = 10 * time.Second

// lateError says that the store took too long: Timeout is true, as of errors of net. It is no context.DeadlineExceeded, which would say that the
// caller's own time is over.
type lateError struct{}

func (lateError) Error() string { return "it has not said in time that the claim is on record" }
func (lateError) Timeout() bool { return true }

// ask puts the claim to the rules, in time: if it is not known to be on record then, it does not wait.
func (m *Manager) ask(ctx context.Context, c *Claim, polled bool) (*decision, error) {
	if err := cmp.Or(c.Validate(), context.Cause(ctx)); err != nil {
		return &decision{err: err}, nil
	}
	limit := storeTimeout
	if !polled {
		limit -= time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d, err := m.apply(bounded, c.Name, c.rule(ctx, polled))
	if err != nil && errors.Is(bounded.Err(), context.DeadlineExceeded) && (polled || ctx.Err() == nil) {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, lateError{})
	}
	return d, err
}

// rule decides the claim. If it is polled, its client asks for it again when ctx has ended.
func (c *Claim) rule(ctx context.Context, polled bool) func(Snapshot) *decision {
	again := untilAskedAgain(ctx)
	return func(s Snapshot) *decision {
		if polled {
			return asked(s, *c, again)
		}
		return acquire(s, *c)
	}
}

// untilAskedAgain returns how long it takes at most until the next request for a claim comes after the one of ctx.
func untilAskedAgain(ctx context.Context) time.Duration {
	if end, ends := ctx.Deadline(); ends {
		return min(max(time.Until(end), 0), PresenceTTL) + ReturnTimeout // longer ones make no difference
	}
	return PresenceTTL
}

// here reports whether a request waits here for the claim: it need not be waited for whether it takes its grant up.
func (m *Manager) here(leaseID string) bool {
	_, waits := m.polled.Load(leaseID)
	return waits
}

// wait keeps the claim at its place in the queue, until then at first, until it is granted, its time is up or ctx ends.
func (m *Manager) wait(ctx context.Context, c *Claim, begun, until time.Time, polled bool) *decision {
	suspicious, refresh := begun.Add(deadlockAfter), time.Now().Add(c.refresh())
	var watch Watch
	var most time.Duration
	look := func() (*decision, error) { // without a decision, it goes on to sleep
		for {
			s, err := m.store.View(ctx, c.Name)
			if err != nil {
				return nil, err
			}
			h, granted := s.Lock.Holder(c.LeaseID)
			if _, stale := s.Stale(h); granted && polled && h.Pending.IsZero() && !stale && ctx.Err() == nil && s.tooLate(c.LeaseID, c.Ticket) == nil {
				return &decision{holder: h}, nil
			}
			now := time.Now()
			at, queued := s.Lock.Position(c.LeaseID)
			switch {
			case !queued || s.turn(c, at) || !now.Before(refresh):
				refresh = now.Add(c.refresh())
				rule, change := c.rule(ctx, polled), ctx
				if !queued { // it has been granted
					change = ahead.Of(ctx)
				}
				d, err := m.apply(change, c.Name, func(s Snapshot) *decision {
					if _, in := s.Lock.Holder(c.LeaseID); polled && !in {
						if _, queued := s.Lock.Position(c.LeaseID); !queued {
							return &decision{Change: Change{Lock: s.Lock}, err: ErrWithdrawn}
						}
					}
					return rule(s)
				})
				if err != nil || d.place == nil {
					return d, err
				}
				until = d.place.Until
				continue
			case c.Wait > 0 && now.Sub(begun) >= c.Wait:
				return m.giveUp(ctx, c, leftTimeout, now.Sub(begun), nil, polled), nil
			case now.After(suspicious):
				suspicious = now.Add(min(now.Sub(begun), 4*deadlockAfter)) // each look reads all queues
				if cycle := m.deadlock(ctx, c); cycle != nil {
					return m.giveUp(ctx, c, leftDeadlock, 0, cycle, polled), nil
				}
			}
			watch, most = s.nap(c, at)
			if most = min(most, refresh.Sub(now)); c.Wait > 0 {
				most = min(most, begun.Add(c.Wait).Sub(now))
			}
			if len(c.Within) > 0 {
				most = min(most, suspicious.Sub(now)+time.Millisecond)
			}
			return nil, nil
		}
	}
	for {
		d, err := apart(look)
		if d == nil && err == nil {
			err = m.sleep(ctx, watch, most)
		}
		switch {
		case d != nil:
			return d
		case err == nil:
			continue
		case !polled:
			_, _ = m.leave(ctx, c, leftCancelled, undoTimeout)
		case context.Cause(ctx) == context.Canceled: //nolint:errorlint // a cause that wraps it is another's doing
			m.hungUp(ctx, c, until)
		}
		return &decision{err: cmp.Or(context.Cause(ctx), err)}
	}
}

// hungUp notes that nobody may be there any more who asks for the claim. It does its best: if it fails, the claim stays
// for longer.
func (m *Manager) hungUp(ctx context.Context, c *Claim, until time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	_ = m.answer(ctx, c.Name, func(s Snapshot) *decision { return away(s, c.LeaseID, c.Ticket, until) })
}

// turn reports whether asking again may change anything for a claim with so many ahead of it in the queue: it counts as
// away, as one does that was sent away, or somebody in the queue can be let in.
func (s Snapshot) turn(c *Claim, ahead int) bool {
	return s.Lock.Queue[ahead].away(s.Now) || begin(s).Lock.Token != s.Lock.Token || (c.Refresh || s.Lock.Corrupt != "") && s.WouldGrant(*c) == nil
}

// nap returns what a queued claim waits for, and for how long at most, before it looks again.
func (s Snapshot) nap(c *Claim, ahead int) (Watch, time.Duration) {
	look := c.refresh()
	if next := s.NextChange(); !next.IsZero() {
		// Those behind look a little later: the first in the queue sees to it that everybody's turn comes. To look at a long queue takes long.
		slot := min(max(20*time.Millisecond, time.Duration(len(s.Lock.Queue))*400*time.Microsecond), 100*time.Millisecond)
		look = min(look, next.Sub(s.Now)+time.Millisecond+time.Duration(ahead)*slot)
	}
	return Watch{Name: c.Name, Seen: s.Lock.Revision, LeaseID: c.LeaseID}, look
}

// sleep waits until the lock changes, for so long at most.
func (m *Manager) sleep(ctx context.Context, w Watch, most time.Duration) error {
	nap, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := m.store.Wait(nap, w)
	if err != nil && nap.Err() != nil {
		return ctx.Err()
	}
	return err
}

// How a waiting claim left the queue.
const (
	leftTimeout   = "timeout"
	leftCancelled = "cancelled"
	leftDeadlock  = "deadlock"
)

// giveUp takes the claim out of the queue and says what was in its way; if it was granted meanwhile, it keeps the
// grant. Who polls asks again if the store does not answer.
func (m *Manager) giveUp(ctx context.Context, c *Claim, how string, waited time.Duration, cycle []string, polled bool) *decision {
	d, err := m.leave(ctx, c, how, undoTimeout)
	var blocked *BlockedError
	switch {
	case err != nil && (polled || errors.Is(err, ErrDamaged)):
		return &decision{err: err}
	case err != nil:
		blocked = &BlockedError{Name: c.Name, Now: time.Now(), TimedOut: waited, Cycle: cycle, Unsure: true}
		return &decision{err: fmt.Errorf("%w: %w", blocked, err)}
	case errors.As(d.err, &blocked) && blocked.Ousted == "":
		blocked.TimedOut, blocked.Cycle = max(waited, blocked.TimedOut), cycle // it may have begun to wait with an earlier request
	}
	return d
}

// leave takes the claim out of the queue, even if ctx has ended. It does its best: an orphan ends with its process or its
// time to live.
func (m *Manager) leave(ctx context.Context, c *Claim, how string, limit time.Duration) (*decision, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return m.apply(ctx, c.Name, func(s Snapshot) *decision { return leaveQueue(s, *c, how) })
}

// deadlockAfter is how long a claim waits before it looks for circles; later looks come up to four times as far apart.
const deadlockAfter = time.Second

// deadlock returns the circle of waiting claims of which c is the one to give way, or nil.
func (m *Manager) deadlock(ctx context.Context, c *Claim) []string {
	if len(c.Within) == 0 {
		return nil
	}
	look := func() []string {
		var locks []Snapshot
		for s, err := range m.store.List(ctx, Filter{Queued: true}) {
			if err == nil {
				locks = append(locks, s)
			}
		}
		if victim, cycle, found := FindDeadlock(locks); found && victim.LeaseID == c.LeaseID {
			return cycle
		}
		return nil
	}
	if look() == nil {
		return nil
	}
	return look() // locks are read one after another: believe only what is there twice
}

// Renew implements Service.
func (m *Manager) Renew(ctx context.Context, r Renewal) (Holder, error) {
	d := m.answer(ahead.Of(ctx), r.Name, func(s Snapshot) *decision { return renew(s, r) })
	return d.holder, d.err
}

// Release implements Service.
func (m *Manager) Release(ctx context.Context, t Target) ([]Holder, error) {
	d := m.answer(ahead.Of(ctx), t.Name, func(s Snapshot) *decision { return release(s, t) })
	return d.ended, d.err
}

// Tell implements Service.
func (m *Manager) Tell(ctx context.Context, t Target, msg Message) (Holder, error) {
	msg.ID = cmp.Or(msg.ID, NewLeaseID())
	if p := msg.Pass; p != nil {
		msg.Pass = &Claim{Name: t.Name, LeaseID: NewLeaseID(), Owner: p.Owner, TTL: p.TTL}
	}
	d := m.answer(ctx, t.Name, func(s Snapshot) *decision { return tell(s, t, msg) })
	return d.holder, d.err
}

// Freeze implements Service.
func (m *Manager) Freeze(ctx context.Context, name string, f Freeze) (Freeze, error) {
	switch {
	case f.Owner.ID == "":
		return Freeze{}, invalid("owner is empty")
	case f.TTL < 0 || f.TTL > 0 && f.TTL < MinTTL:
		return Freeze{}, invalid("TTL %v is not at least %v", f.TTL, MinTTL)
	case len(f.Reason) > MaxMetadata:
		return Freeze{}, invalid("reason has %d bytes, more than %d", len(f.Reason), MaxMetadata)
	}
	f.ID = cmp.Or(f.ID, NewLeaseID())
	d := m.answer(ctx, name, func(s Snapshot) *decision { return freeze(s, f) })
	return d.freeze, d.err
}

// Unfreeze implements Service.
func (m *Manager) Unfreeze(ctx context.Context, t Target) (Freeze, error) {
	d := m.answer(ctx, t.Name, func(s Snapshot) *decision { return unfreeze(s, t) })
	return d.freeze, d.err
}

// Prune implements Service.
func (m *Manager) Prune(ctx context.Context, name string) ([]Removed, error) {
	d := m.answer(ctx, name, prune)
	return d.removed, d.err
}

// Sweep forgets what is stale, of every lock, and returns how many holds and waiters that were. A lock is judged again
// in the step that changes it, so what was renewed meanwhile stays.
func (m *Manager) Sweep(ctx context.Context) (n int, err error) {
	err = sweep(ctx, m, func(gone []Removed) { n += len(gone) })
	return n, err
}

// atOnce is how many locks are swept or released at once, so that they share what it takes to store them.
const atOnce = 64

func sweep(ctx context.Context, service Service, tell func(gone []Removed)) error {
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	names := make(chan string)
	for range atOnce {
		all.Go(func() {
			for name := range names {
				gone, err := service.Prune(ctx, name)
				mu.Lock()
				if tell(gone); err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	for s, err := range service.List(ctx, Filter{Spent: true}) {
		if err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		} else if s.Spent() {
			names <- s.Lock.Name
		}
	}
	close(names)
	all.Wait()
	return errors.Join(errs...)
}

// Get implements Service.
func (m *Manager) Get(ctx context.Context, name string) (Snapshot, error) {
	if err := ValidateName(name); err != nil {
		return Snapshot{}, err
	}
	s, err := m.store.View(ctx, name)
	return s.told(), err
}

// List implements Service.
func (m *Manager) List(ctx context.Context, f Filter) iter.Seq2[Snapshot, error] {
	if err := ValidatePrefix(f.Prefix); err != nil {
		return func(yield func(Snapshot, error) bool) { yield(Snapshot{}, err) }
	}
	return func(yield func(Snapshot, error) bool) {
		for s, err := range m.store.List(ctx, f) {
			if !yield(s.told(), err) {
				return
			}
		}
	}
}

// Wait implements Service.
func (m *Manager) Wait(ctx context.Context, w Watch) error {
	if err := ValidateName(w.Name); err != nil {
		return err
	}
	return m.store.Wait(ctx, w)
}
