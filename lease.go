package lokt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// State is how far a lease can be relied on.
type State int

// The states of a lease.
const (
	Held     State = iota // renewed in time, or not in need of it
	InDoubt               // a renewal failed: the lock is still held, and may be lost soon; or its release did, and Err is not nil
	Lost                  // no longer held: another may hold the lock
	Released              // given back
)

func (s State) String() string {
	if names := [...]string{"held", "in doubt", "lost", "released"}; s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("State(%d)", int(s))
}

// Lease is a lock held by a running program. It is safe for concurrent use.
type Lease struct {
	name   string
	id     string
	token  uint64
	k      *Locker
	o      Options
	ctx    *leaseContext
	cancel context.CancelCauseFunc
	yield  chan struct{}

	renewing sync.Mutex // one renewal at a time, and none during or after release

	mu       sync.Mutex
	holder   Holder
	deadline time.Duration // by the keeper's clock
	state    State
	cause    error
	asked    time.Duration // when the last successful renewal, or the grant, was asked for
	beat     *Heartbeat    // nil until the lease is handed out
	beating  bool
	yielding bool
	told     []string // IDs of messages
	left     bool     // what ends it was sent, of which a copy may arrive yet
	doubtful bool     // it was not answered
	retaken  bool     // another lease has taken over its ID: see Locker.Reclaim
}

// leaseContext looks at the clock before it says that nothing has happened, so that a program that was stopped sees the
// end of its lease before any timer could run.
type leaseContext struct {
	context.Context
	lease *Lease
}

// leaseKey finds, in a context, the leaseContext that it comes from.
type leaseKey struct{}

func (c *leaseContext) Err() error {
	c.lease.look()
	return c.Context.Err()
}

func (c *leaseContext) Value(key any) any {
	if key == (leaseKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// Name returns the name of the lock.
func (l *Lease) Name() string { return l.name }

// ID returns the lease ID, which proves ownership: keep it from those who must not release the lock.
func (l *Lease) ID() string { return l.id }

// Token returns the fencing token of the grant. It is higher than that of every earlier grant of this lock, and renewals do not change it. A resource
// that refuses tokens lower than the highest it has seen is safe from holders that act late.
func (l *Lease) Token() uint64 { return l.token }

// Holder returns what the service recorded at the grant or the last renewal.
func (l *Lease) Holder() Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holder
}

// Context returns a context that is live while the lock can be relied on. It ends with a cause that wraps ErrLost, a
// margin before anybody else may enter; with context.Canceled as cause when the lease is released; and with the context
// that was given to Acquire. Acquiring another lock with it tells the service that this one cannot end before.
func (l *Lease) Context() context.Context { return l.ctx }

// State returns how far the lease can be relied on at this moment.
func (l *Lease) State() State {
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Err returns nil while the lock can be relied on, and afterwards why it cannot: an error that wraps ErrLost, or
// context.Canceled if it was released.
func (l *Lease) Err() error {
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Remaining returns for how long the lease can be relied on if no renewal succeeds. It is 0 after loss and release, and
// the greatest Duration if the lease does not expire.
func (l *Lease) Remaining() time.Duration {
	l.look()
	now := l.k.keeper.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.cause != nil:
		return 0
	case l.deadline == forever:
		return forever
	}
	return max(l.deadline-now, 0)
}

// Yield returns a channel that is closed when a claim of higher priority asks for the lock. The lease stays good until
// its context ends, which it does after the grace that the other claim gives.
func (l *Lease) Yield() <-chan struct{} { return l.yield }

// look declares the lease lost if its time is up.
func (l *Lease) look() {
	now := l.k.keeper.now()
	l.mu.Lock()
	late := l.cause == nil && now >= l.deadline
	l.mu.Unlock()
	if late {
		l.lose(fmt.Errorf("%w: %w", ErrLost, errTimeUp))
	}
}

// lose ends the lease without its holder's doing, once.
func (l *Lease) lose(cause error) {
	h := l.Holder()
	if y := h.Yield; y != nil && !final(cause) && (h.ExpiresAt.IsZero() || !h.ExpiresAt.Before(y.Deadline)) {
		cause = fmt.Errorf("%w: it goes to %s", ErrLost, y.To)
	} else if !final(cause) && h.MaxHold > 0 && !h.ExpiresAt.Before(h.HeldSince.Add(h.MaxHold)) {
		cause = fmt.Errorf("%w: its maximum hold is over", ErrLost)
	}
	if l.end(Lost, cause) {
		l.k.forget(l)
		l.k.emit(h, Event{Type: EventLost, Extra: map[string]string{ExtraReason: cause.Error()}})
	}
}

// end ends the lease's context, and puts the lease into the state, unless it is in a final one.
func (l *Lease) end(s State, cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == Lost || l.state == Released || l.cause != nil && s == InDoubt {
		return false
	}
	l.state, l.cause = s, cause
	l.cancel(cause)
	return true
}

// Renew renews the lease now. Programs that leave heartbeats to the lease need not call it. After loss it returns the
// lease's error and asks nobody.
func (l *Lease) Renew(ctx context.Context) error {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	over := l.Err()
	_, err := l.renew(ctx)
	switch {
	case err == nil || over != nil:
	case final(err):
		l.lose(fmt.Errorf("%w: %w", ErrLost, err))
		return l.Err()
	default:
		l.doubt(err)
	}
	return err
}

// renew asks the service and takes in its answer. If that is the wish that the holder leave, it says at once that it has heard,
// so that nobody waits for longer than the grace.
func (l *Lease) renew(ctx context.Context) (life time.Duration, err error) {
	l.look()
	l.mu.Lock()
	err, owner, y := l.cause, l.holder.Owner, cmp.Or(l.holder.Yield, &Yield{})
	l.mu.Unlock()
	if err != nil {
		return 0, err
	}
	for {
		asked := l.k.keeper.now()
		h, err := l.k.service.Renew(ctx, Renewal{Name: l.name, LeaseID: l.id, Owner: &owner, Heard: y.Deadline})
		if err != nil {
			return 0, err
		}
		if h.Token != l.token { // the hold had ended, and a copy of its claim was granted since
			return 0, &GoneError{Name: l.name, LeaseID: l.id, Holders: []Holder{h}}
		}
		if life = l.renewed(h, asked); h.Yield == nil || h.Yield.Heard || h.Yield.Deadline.Equal(y.Deadline) {
			return life, nil
		}
		y = h.Yield // also if the grace is over already: a hold that does not expire would stay
	}
}

// keep is renew for the keeper. A heartbeat that failed because heartbeats were stopped is no reason for doubt.
func (l *Lease) keep(ctx context.Context) (time.Duration, error) {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	if l.ctx.Context.Err() != nil {
		return 0, context.Canceled
	}
	life, err := l.renew(ctx)
	if err == nil || final(err) {
		return life, err
	}
	l.mu.Lock()
	stopped := !l.beating || l.cause == nil && l.ctx.Context.Err() != nil
	l.mu.Unlock()
	if !stopped {
		l.doubt(err)
	}
	return 0, err
}

// renewed takes in a successful renewal that was asked for at the given time.
func (l *Lease) renewed(h Holder, asked time.Duration) time.Duration {
	life := h.life()
	l.mu.Lock()
	l.holder = h
	if l.cause == nil {
		l.state, l.asked = Held, asked
		l.deadline = after(asked, life, l.o.Margin)
		if l.beat != nil {
			l.beat.extend(asked, life, l.interval(life))
		}
	}
	news := l.notice()
	l.mu.Unlock()
	l.k.emit(h, news...)
	return life
}

// interval returns how long to wait for the next renewal of a hold that lives so long: as the service says, if it does and
// the program does not, and while there is time for another try. The lease is locked.
func (l *Lease) interval(life time.Duration) time.Duration {
	if next := l.holder.HeartbeatIn; next > 0 && l.o.paced {
		return max(min(next, Usable(life, l.o.Margin)/4*3), 1)
	}
	return l.o.Interval
}

// glance looks whether the hold, which does not expire, is still there, and whether it is wanted, which it renews to hear, and
// returns how long it lasts. That it cannot look changes nothing.
func (l *Lease) glance(ctx context.Context) (time.Duration, error) {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, DefaultTTL/2)
	defer cancel()
	asked := l.k.keeper.now()
	s, err := l.k.service.Get(ctx, l.name)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(s.Lock.Holders, func(h Holder) bool { return h.Token == l.token })
	if i < 0 {
		return 0, &GoneError{Name: l.name, LeaseID: l.id, Holders: s.Live()}
	}
	h := s.Lock.Holders[i]
	if reason, stale := s.Stale(h); stale {
		return 0, &GoneError{Name: l.name, LeaseID: l.id, Cause: reason}
	}
	if h.Yield != nil && !h.Yield.Heard {
		return l.renew(ctx)
	}
	h.AcquiredAt = s.Now // it lasts from now on
	life := h.life()
	l.mu.Lock()
	if l.cause == nil {
		l.holder.Yield, l.holder.Messages = h.Yield, h.Messages
		l.deadline = after(asked, life, l.o.Margin)
	}
	news := l.notice()
	h = l.holder
	l.mu.Unlock()
	l.k.emit(h, news...)
	return life, nil
}

// notice returns, once, what the program is asked, and that it was asked to leave. The lease is locked, and what looks at it when it is
// told of that must not wait.
func (l *Lease) notice() (news []Event) {
	for _, m := range l.holder.Messages {
		if m.Answer == "" && !slices.Contains(l.told, m.ID) {
			l.told = append(l.told, m.ID)
			news = append(news, Event{Type: EventAsk, Extra: map[string]string{ExtraBy: m.From.String(), ExtraText: m.Text}})
		}
	}
	if y := l.holder.Yield; y != nil && !l.yielding {
		news = append(news, Event{Type: EventPreempt, Extra: map[string]string{ExtraBy: y.To.String(), ExtraHeard: "true"}})
		l.yielding = true
		close(l.yield)
	}
	return news
}

// life returns how long the hold lives from its last renewal; 0 if it does not expire. A store may have put off its end since, and nobody knows
// from when on: it is never more than the time to live.
func (h Holder) life() time.Duration {
	end := h.ExpiresAt
	if y := h.Yield; y != nil && !y.Deadline.IsZero() && (end.IsZero() || y.Deadline.Before(end)) {
		end = y.Deadline
	}
	if end.IsZero() {
		return 0
	}
	return max(min(end.Sub(h.AcquiredAt), cmp.Or(h.TTL, forever)), 1)
}

// doubt notes that a renewal failed.
func (l *Lease) doubt(err error) {
	l.mu.Lock()
	if l.cause == nil {
		l.state = InDoubt
	}
	h := l.holder
	l.mu.Unlock()
	l.k.emit(h, Event{Type: EventRenewFail, Extra: map[string]string{ExtraReason: err.Error()}})
}

// watch has the keeper tell the end of the lease in time, renewed or not.
func (l *Lease) watch() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat = &Heartbeat{Interval: l.interval(l.holder.life()), Margin: l.o.Margin, Lost: l.lose, Renew: l.keep, paused: true}
	if l.holder.TTL == 0 && !l.o.ManualHeartbeat {
		l.beat.Renew, l.beat.paused = l.glance, false
	}
	l.k.keeper.keepUntil(l.beat, l.asked, l.deadline)
	context.AfterFunc(l.ctx.Context, func() {
		l.beat.halt()
		if l.Err() == nil { // the context that it was acquired with has ended, and it may never be released
			l.forgetInTime()
		}
	})
}

// forgetInTime makes the Locker forget the lease when its time is up.
func (l *Lease) forgetInTime() {
	l.mu.Lock()
	end := l.deadline
	l.mu.Unlock()
	if end < forever {
		time.AfterFunc(end-l.k.keeper.now(), func() { l.k.forget(l) })
	}
}

// StartHeartbeat renews the lease from now on, every Options.Interval, until it is lost, released or StopHeartbeat is called. Without
// Options.ManualHeartbeat it has been called already. It does nothing for a lease that never expires or has ended.
func (l *Lease) StartHeartbeat() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.beating || l.cause != nil || l.holder.TTL == 0 || l.beat == nil {
		return
	}
	l.beating = true
	l.beat.resume(l.asked)
}

// StopHeartbeat ends the heartbeats that StartHeartbeat began, and waits for one under way. The lease lasts until its
// time is up, and its context then ends as ever.
func (l *Lease) StopHeartbeat() {
	l.mu.Lock()
	was := l.beating
	l.beating = false
	l.mu.Unlock()
	if was {
		l.beat.pause()
	}
}

// Beating reports whether heartbeats are on.
func (l *Lease) Beating() bool {
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.beating && l.ctx.Context.Err() == nil
}

// Release gives the lock back. Heartbeats are stopped first, and the lease's context ends before the service is asked: once it
// may have the request, another may hold the lock. Release may be called again, and after loss, and then never touches what
// another holds. It returns an error only if the service could not be asked: the lease is in doubt then, and the lock ends when
// its time is up. A lease that had been lost, by whatever way, is no error: see Err.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	l.beating = false
	beat := l.beat
	l.mu.Unlock()
	if beat != nil {
		beat.pause() // one without a TTL has no heartbeats, and is looked at
	}
	l.renewing.Lock()
	defer l.renewing.Unlock()
	ctx, enough := beyond(ctx, l)
	defer enough()
	l.look()
	first := l.end(InDoubt, context.Canceled)
	l.mu.Lock()
	h := l.holder
	done := l.state == Released || l.retaken
	l.left = l.left || !done
	l.mu.Unlock()
	if done {
		return nil
	}
	_, err := l.k.service.Release(ctx, Target{Name: h.Name, LeaseID: h.LeaseID, Owner: h.Owner})
	if e := (*GoneError)(nil); errors.As(err, &e) {
		if first { // and otherwise an earlier try may have ended it
			l.lose(fmt.Errorf("%w: %w", ErrLost, err))
		}
		err = nil
	}
	if err != nil {
		l.mu.Lock()
		l.doubtful = true
		l.mu.Unlock()
		l.forgetInTime()
		return fmt.Errorf("release %q: %w", h.Name, err)
	}
	l.end(Released, context.Canceled)
	l.k.forget(l)
	return nil
}
