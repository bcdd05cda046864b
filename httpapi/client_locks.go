package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// longPoll is how long one request of a client waits.
const longPoll = 30 * time.Second

// leastPoll is how long one request for a claim waits at least, however short the time to live, unless the wait is over.
const leastPoll = time.Second

// circlePoll is the same for a claim that may be part of a circle.
const circlePoll = 5 * time.Second

// undoTimeout bounds how long a claim that its caller gave up may take to be taken back.
const undoTimeout = 5 * time.Second

// errOutcomeUnknown is wrapped, beside lokt.ErrUnavailable, by the error of a request to end something that may have done
// so, and of which the answer was lost.
var errOutcomeUnknown = errors.New("an answer was lost, and by now there is nothing to end")

func lockPath(name string) string { return "/v1/locks/" + url.PathEscape(name) }

func leasePath(name, publicID string) string {
	return lockPath(name) + "/leases/" + url.PathEscape(publicID)
}

// Acquire implements lokt.Service. If ctx ends while the claim waits, it is taken back before Acquire returns, within
// five seconds; if the server cannot be told, others pass it as soon as the server misses it, or it ends with its time to live.
func (c *Client) Acquire(ctx context.Context, claim lokt.Claim) (lokt.Holder, error) {
	if claim.LeaseID == "" {
		claim.LeaseID = lokt.NewLeaseID()
	}
	if err := claim.Validate(); err != nil {
		return lokt.Holder{}, err
	}
	if err := checkLeaseID(claim.LeaseID); err != nil {
		return lokt.Holder{}, err
	}
	if err := ctx.Err(); err != nil {
		return lokt.Holder{}, err
	}
	c.know(claim.LeaseID)
	operation := lokt.NewLeaseID()
	h, x, err := c.acquire(ctx, claim, operation)
	if err == nil {
		if !isPublicID(h.LeaseID) {
			c.granted(h, x.sent)
		}
		return h, nil
	}
	if x.seen && (ctx.Err() != nil || x.doubtful) {
		c.takeBack(ctx, claim, operation)
	}
	if _, held := c.lasting(claim.LeaseID); !held {
		c.forget(claim.LeaseID)
	}
	return lokt.Holder{}, err
}

// acquire asks until the claim is granted or denied. A claim that waits is asked for again and again.
func (c *Client) acquire(ctx context.Context, claim lokt.Claim, operation string) (h lokt.Holder, x *exchange, err error) {
	begun := time.Now()
	over := false // the wait is: leave the queue
	x = &exchange{
		method: http.MethodPost, path: lockPath(claim.Name) + "/leases", lease: claim.LeaseID,
		header: map[string]string{headerOperation: operation},
	}
	if claim.Wait != 0 {
		x.patience = lokt.QueueTTL
	}
	if claim.Wait > 0 { // who does not want to wait any more does not wait for a server either
		x.patience, x.most = min(x.patience, claim.Wait), claim.Wait
	}
	poll := longPoll
	if claim.TTL > 0 { // a grant of which the answer is lost without a word is asked for again while it lasts
		x.attempt = max(claim.TTL/3, leastPoll)
		poll = min(poll, x.attempt)
	}
	if len(claim.Within) > 0 { // finding out that it waits in a circle takes the server some time
		poll = max(poll, circlePoll)
	}
	body := acquireRequest{
		LeaseID: claim.LeaseID, Owner: toOwner(claim.Owner), Limit: claim.Limit, Strict: claim.Strict, Attended: claim.Attended,
		Refresh: claim.Refresh, TTL: millis(claim.TTL), MaxHold: millis(claim.MaxHold), Priority: claim.Priority,
		Preempt: millis(claim.Preempt), Metadata: claim.Metadata, Within: claim.Within,
	}
	x.again = func() (any, time.Duration) {
		wait := poll
		if claim.Wait > 0 {
			wait = min(wait, claim.Wait-time.Since(begun))
		}
		switch {
		case claim.Wait == 0:
			return body, 0
		case wait <= 0 || over:
			over = true
			body.Wait, body.Stay = 1, false
		default:
			body.Wait, body.Stay = millis(wait), true
		}
		return body, wait
	}
	for {
		var answer acquireAnswer
		var status int
		err := c.do(ctx, x, func(s int, r io.Reader) error {
			status, answer = s, acquireAnswer{}
			return decodeInto(&answer)(s, r)
		})
		switch blocked := (*lokt.BlockedError)(nil); {
		case errors.As(err, &blocked) && claim.Wait != 0 && len(blocked.Cycle) == 0:
			blocked.TimedOut = time.Since(begun)
			return h, x, err
		case err != nil:
			return h, x, err
		case status == http.StatusAccepted:
		case answer.Holder == nil:
			return h, x, c.unreachable(c.current.Load(), errGarbage)
		default:
			return answer.Holder.holder(c.restore), x, nil
		}
	}
}

// takeBack ends a claim whose outcome is unknown, and sees to it that no copy of it that is still under way is granted.
func (c *Client) takeBack(ctx context.Context, claim lokt.Claim, operation string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	t := lokt.Target{Name: claim.Name, LeaseID: claim.LeaseID, Owner: claim.Owner}
	_ = c.do(ctx, &exchange{ // that it is gone already is as well
		method: http.MethodDelete, path: leasePath(claim.Name, PublicID(claim.LeaseID)), query: targetValues(t), lease: claim.LeaseID,
		header: map[string]string{headerLease: claim.LeaseID, headerCancels: operation},
	}, decodeInto(&releaseAnswer{}))
}

// Renew implements lokt.Service. It is never sent again after ctx has ended.
func (c *Client) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	if err := lokt.ValidateName(r.Name); err != nil {
		return lokt.Holder{}, err
	}
	if err := checkLeaseID(r.LeaseID); err != nil {
		return lokt.Holder{}, err
	}
	x := &exchange{
		method: http.MethodPut, path: leasePath(r.Name, PublicID(r.LeaseID)), lease: r.LeaseID,
		header: map[string]string{headerLease: r.LeaseID},
	}
	if r.Owner != nil {
		owner := toOwner(*r.Owner)
		x.body = renewRequest{Owner: &owner}
	}
	var answer holderAnswer
	if err := c.do(ctx, x, decodeInto(&answer)); err != nil {
		if gone := (*lokt.GoneError)(nil); errors.As(err, &gone) {
			c.forget(r.LeaseID)
		}
		return lokt.Holder{}, err
	}
	h := answer.Holder.holder(c.restore)
	h.LeaseID = r.LeaseID
	c.granted(h, x.sent)
	return h, nil
}

// Release implements lokt.Service. With Force or Stale, the target's lease ID may be a PublicID.
func (c *Client) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	if err := lokt.ValidateName(t.Name); err != nil {
		return nil, err
	}
	x := &exchange{method: http.MethodDelete, path: lockPath(t.Name) + "/leases", query: targetValues(t), lease: t.LeaseID}
	switch {
	case t.LeaseID == "":
	case isPublicID(t.LeaseID) && (t.Force || t.Stale):
		x.path = leasePath(t.Name, t.LeaseID)
	default:
		if err := checkLeaseID(t.LeaseID); err != nil {
			return nil, err
		}
		x.path = leasePath(t.Name, PublicID(t.LeaseID))
		x.header = map[string]string{headerLease: t.LeaseID}
	}
	was, lasting := c.lasting(t.LeaseID)
	var answer releaseAnswer
	err := c.do(ctx, x, decodeInto(&answer))
	gone := (*lokt.GoneError)(nil)
	switch {
	case err == nil:
		ended := fromHolders(answer.Released, c.restore)
		for _, h := range ended {
			c.forget(h.LeaseID)
		}
		return ended, nil
	case errors.As(err, &gone) && x.doubtful && x.header != nil:
		if _, still := c.lasting(t.LeaseID); lasting && still && !t.Stale { // nothing but the attempt whose answer was lost can have ended it
			c.forget(t.LeaseID)
			return []lokt.Holder{was}, nil
		}
		return nil, c.unreachable(c.current.Load(), errOutcomeUnknown)
	case errors.As(err, &gone):
		c.forget(t.LeaseID)
	}
	return nil, c.known(x, err)
}

// known returns the error, unless an attempt whose answer was lost may be why there was nothing to end.
func (c *Client) known(x *exchange, err error) error {
	if x.doubtful && (errors.Is(err, lokt.ErrNotFound) || errors.Is(err, lokt.ErrNotOwner)) {
		return c.unreachable(c.current.Load(), errOutcomeUnknown)
	}
	return err
}

// Freeze implements lokt.Service.
func (c *Client) Freeze(ctx context.Context, name string, f lokt.Freeze) (lokt.Freeze, error) {
	if err := lokt.ValidateName(name); err != nil {
		return lokt.Freeze{}, err
	}
	var answer freezeAnswer
	x := &exchange{
		method: http.MethodPut, path: lockPath(name) + "/freeze",
		body: freezeRequest{ID: f.ID, Owner: toOwner(f.Owner), Reason: f.Reason, TTL: millis(f.TTL)},
	}
	if f.TTL < 0 {
		return lokt.Freeze{}, invalid("TTL %v is negative", f.TTL)
	}
	if err := c.do(ctx, x, decodeInto(&answer)); err != nil {
		return lokt.Freeze{}, err
	}
	return c.thaw(answer, f.TTL)
}

// thaw returns the freeze of an answer. If it was asked for with a time that is no whole number of milliseconds, its end
// is told as it was asked for, a part of a millisecond before the server's.
func (c *Client) thaw(a freezeAnswer, ttl time.Duration) (lokt.Freeze, error) {
	if a.Freeze == nil {
		return lokt.Freeze{}, c.unreachable(c.current.Load(), errGarbage)
	}
	f := *a.Freeze.freeze()
	if ttl > 0 && f.TTL == time.Duration(millis(ttl))*time.Millisecond {
		f.TTL = ttl
		f.ExpiresAt = f.At.Add(ttl)
	}
	return f, nil
}

// Unfreeze implements lokt.Service.
func (c *Client) Unfreeze(ctx context.Context, t lokt.Target) (lokt.Freeze, error) {
	if err := lokt.ValidateName(t.Name); err != nil {
		return lokt.Freeze{}, err
	}
	var answer freezeAnswer
	x := &exchange{method: http.MethodDelete, path: lockPath(t.Name) + "/freeze", query: targetValues(t)}
	if err := c.do(ctx, x, decodeInto(&answer)); err != nil {
		return lokt.Freeze{}, c.known(x, err)
	}
	return c.thaw(answer, 0)
}

// Prune implements lokt.Service.
func (c *Client) Prune(ctx context.Context, name string) ([]lokt.Removed, error) {
	if err := lokt.ValidateName(name); err != nil {
		return nil, err
	}
	var answer pruneAnswer
	if err := c.do(ctx, &exchange{method: http.MethodPost, path: lockPath(name) + "/prune"}, decodeInto(&answer)); err != nil {
		return nil, err
	}
	var removed []lokt.Removed
	for _, r := range answer.Removed {
		removed = append(removed, lokt.Removed{Holder: r.Holder.holder(c.restore), Waiter: r.Waiter, Reason: r.Reason})
	}
	return removed, nil
}

// Get implements lokt.Service.
func (c *Client) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	if err := lokt.ValidateName(name); err != nil {
		return lokt.Snapshot{}, err
	}
	return c.get(ctx, &exchange{method: http.MethodGet, path: lockPath(name), looks: true})
}

func (c *Client) get(ctx context.Context, x *exchange) (lokt.Snapshot, error) {
	var answer wireLock
	if err := c.do(ctx, x, decodeInto(&answer)); err != nil {
		return lokt.Snapshot{}, err
	}
	s, err := answer.snapshot(c.restore)
	if err != nil {
		return s, c.unreachable(c.current.Load(), fmt.Errorf("%w: %w", errGarbage, err))
	}
	return s, nil
}

// List implements lokt.Service. It reads all locks before it yields the first.
func (c *Client) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		if err := lokt.ValidatePrefix(f.Prefix); err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		x := &exchange{method: http.MethodGet, path: "/v1/locks", query: url.Values{}, wait: c.slow(), looks: true}
		if f.Prefix != "" {
			x.query.Set("prefix", f.Prefix)
		}
		if f.Queued {
			x.query.Set("queued", "true")
		}
		var answer struct {
			Locks []wireLock `json:"locks"`
		}
		if err := c.do(ctx, x, func(status int, body io.Reader) error {
			answer.Locks = nil
			return decodeInto(&answer)(status, body)
		}); err != nil {
			yield(lokt.Snapshot{}, err)
			return
		}
		for _, w := range answer.Locks {
			s, err := w.snapshot(c.restore)
			if w.Error != nil {
				err = w.Error.err(c.restore, "")
			}
			if !yield(s, err) {
				return
			}
		}
	}
}

// Wait implements lokt.Service. It does not look at the watch's lease ID.
func (c *Client) Wait(ctx context.Context, w lokt.Watch) error {
	if err := lokt.ValidateName(w.Name); err != nil {
		return err
	}
	for {
		s, err := c.get(ctx, &exchange{
			method: http.MethodGet, path: lockPath(w.Name), wait: longPoll, patience: lokt.QueueTTL,
			query: url.Values{"seen": {strconv.FormatUint(w.Seen, 10)}, "wait_ms": {strconv.FormatInt(millis(longPoll), 10)}},
		})
		if err != nil || s.Lock.Revision != w.Seen {
			return err
		}
	}
}
