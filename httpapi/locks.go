package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/lokt-dev/lokt"
)

// Headers of the locks API.
const (
	headerLease     = "Lokt-Lease"     // the secret lease ID, as proof of ownership
	headerOperation = "Lokt-Operation" // the same for all copies of one request to claim
	headerCancels   = "Lokt-Cancels"   // with a release: the operation that is taken back
)

// maxWithin is how many leases a claim may be made within.
const maxWithin = 100

// The routes of what is held.
const (
	patternRenew   = "PUT /v1/locks/{name}/leases/{id}"
	patternRelease = "DELETE /v1/locks/{name}/leases/{id}"
)

// keeps reports whether a route of the locks API keeps a lease, or ends it: who holds something must not lose it because others, or he
// himself, asked for too much under the same name.
func keeps(pattern string) bool { return pattern == patternRenew || pattern == patternRelease }

func (s *server) routeLocks() {
	for pattern, serve := range map[string]func(c *call) error{
		"GET /v1/locks":                  s.listLocks,
		"GET /v1/locks/{name}":           s.getLock,
		"POST /v1/locks/{name}/leases":   s.acquire,
		patternRenew:                     s.renew,
		patternRelease:                   s.release,
		"DELETE /v1/locks/{name}/leases": s.releaseAll,
		"POST /v1/locks/{name}/prune":    s.prune,
		"PUT /v1/locks/{name}/freeze":    s.freeze,
		"DELETE /v1/locks/{name}/freeze": s.unfreeze,
	} {
		s.route(pattern, func(c *call) error {
			if s.Locks == nil {
				return errNoLocks
			}
			return serve(c)
		})
	}
}

// secret returns the lease ID that the request names, which no text may show.
func (c *call) secret() string {
	if c.lease != "" {
		return c.lease
	}
	return c.r.Header.Get(headerLease)
}

// wireLock is a lokt.Snapshot.
type wireLock struct {
	Name     string       `json:"name"`
	Revision string       `json:"revision"` // compare for equality only
	Token    uint64       `json:"token"`
	Now      wireTime     `json:"now"`
	Holders  []wireHolder `json:"holders"`
	Queue    []wireWaiter `json:"queue"`
	Freeze   *wireFreeze  `json:"freeze,omitempty"`
	Corrupt  string       `json:"corrupt,omitempty"`
	Error    *problem     `json:"error,omitempty"` // only in lists: why the lock cannot be read
}

func toLock(s lokt.Snapshot) wireLock {
	return wireLock{
		Name: s.Lock.Name, Revision: strconv.FormatUint(s.Lock.Revision, 10), Token: s.Lock.Token, Now: wireTime(s.Now),
		Holders: toHolders(s.Lock.Holders, s), Queue: toWaiters(s.Lock.Queue, s), Freeze: toFreeze(s.Lock.Freeze), Corrupt: s.Lock.Corrupt,
	}
}

func (w wireLock) snapshot(own func(string) string) (lokt.Snapshot, error) {
	revision, err := strconv.ParseUint(w.Revision, 10, 64)
	s := lokt.Snapshot{Now: w.Now.time(), Lock: lokt.Lock{
		Name: w.Name, Revision: revision, Token: w.Token, Holders: fromHolders(w.Holders, own), Queue: fromWaiters(w.Queue, own),
		Freeze: w.Freeze.freeze(), Corrupt: w.Corrupt,
	}}
	dead := func(leaseID string) {
		if s.Dead == nil {
			s.Dead = map[string]bool{}
		}
		s.Dead[leaseID] = true
	}
	for i, h := range w.Holders {
		if h.Stale == lokt.ReasonDead {
			dead(s.Lock.Holders[i].LeaseID)
		}
	}
	for i, q := range w.Queue {
		if q.Dead {
			dead(s.Lock.Queue[i].LeaseID)
		}
	}
	return s, err
}

// getLock answers with a lock. With seen and wait_ms it waits for its revision to be another than the one seen.
func (s *server) getLock(c *call) error {
	name := c.r.PathValue("name")
	if err := c.may(ScopeRead, name); err != nil {
		return err
	}
	q := c.query()
	seen, wait := q.uint("seen"), q.wait()
	if q.err != nil {
		return q.err
	}
	look := func() (lokt.Snapshot, error) {
		ctx, done := c.brief()
		defer done()
		return s.Locks.Get(ctx, name)
	}
	snap, err := look()
	if err == nil && wait > 0 && q.Has("seen") && snap.Lock.Revision == seen {
		if err = c.waitFor(wait, func(ctx context.Context) error { return s.Locks.Wait(ctx, lokt.Watch{Name: name, Seen: seen}) }); err == nil {
			snap, err = look()
		}
	}
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, "application/json", toLock(c.view().snapshot(snap)))
}

// listLocks answers with the locks that the caller may look at. It writes them as it reads them.
func (s *server) listLocks(c *call) error {
	q := c.query()
	f := lokt.Filter{Prefix: q.Get("prefix"), Queued: q.bool("queued")}
	if q.err != nil {
		return q.err
	}
	if err := lokt.ValidatePrefix(f.Prefix); err != nil {
		return err
	}
	if err := c.may(ScopeRead, ""); err != nil {
		return err
	}
	ctx, cancel := c.brief()
	defer cancel()
	out := bufio.NewWriterSize(c.w, 16<<10)
	begun := false
	begin := func() {
		if !begun {
			begun = true
			c.w.Header().Set("Content-Type", "application/json")
			c.w.Header().Set("Cache-Control", "no-store")
			c.writeDeadline()
			_, _ = out.WriteString(`{"locks":[`) // the last flush tells of errors
		}
	}
	first := true
	for snap, err := range s.Locks.List(ctx, f) {
		var entry wireLock
		switch {
		case err != nil && snap.Lock.Name == "":
			if !begun {
				return err
			}
			out.Flush() //nolint:errcheck // the answer breaks off anyway
			return err
		case c.may(ScopeRead, snap.Lock.Name) != nil, err == nil && snap.Over():
			continue
		case err != nil:
			p := newProblem(c.view().error(err))
			entry = wireLock{Name: snap.Lock.Name, Revision: "0", Error: &p}
		default:
			entry = toLock(c.view().snapshot(snap))
		}
		begin()
		text, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		if !first {
			_ = out.WriteByte(',')
		}
		first = false
		c.writeDeadline()
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	begin()
	_, _ = out.WriteString("]}\n")
	return out.Flush()
}

// acquireRequest is a lokt.Claim.
type acquireRequest struct {
	LeaseID  string            `json:"lease_id,omitempty"`
	Owner    wireOwner         `json:"owner"`
	Limit    int               `json:"limit,omitempty"`
	Strict   bool              `json:"strict,omitempty"`
	Attended bool              `json:"attended,omitempty"`
	Refresh  bool              `json:"refresh,omitempty"`
	TTL      int64             `json:"ttl_ms,omitempty"`
	MaxHold  int64             `json:"max_hold_ms,omitempty"`
	Priority int               `json:"priority,omitempty"`
	Preempt  int64             `json:"preempt_ms,omitempty"`
	Wait     int64             `json:"wait_ms,omitempty"`
	Stay     bool              `json:"stay,omitempty"` // when the wait is over, stay in the queue for a while: the client asks again
	Metadata map[string]string `json:"metadata,omitempty"`
	Within   []string          `json:"within,omitempty"` // lease IDs
}

// acquireAnswer is a grant, or a place in the queue.
type acquireAnswer struct {
	Holder *wireHolder `json:"holder,omitempty"`
	Queued bool        `json:"queued,omitempty"`
	ID     string      `json:"id,omitempty"` // of the queued claim
}

func (q acquireRequest) claim(name string) (lokt.Claim, error) {
	c := lokt.Claim{
		Name: name, LeaseID: q.LeaseID, Owner: q.Owner.owner(), Limit: q.Limit, Strict: q.Strict, Attended: q.Attended, Refresh: q.Refresh,
		Priority: q.Priority, Metadata: q.Metadata, Within: q.Within,
	}
	var errs [4]error
	c.TTL, errs[0] = duration("ttl_ms", q.TTL)
	c.MaxHold, errs[1] = duration("max_hold_ms", q.MaxHold)
	c.Preempt, errs[2] = duration("preempt_ms", q.Preempt)
	c.Wait, errs[3] = duration("wait_ms", q.Wait)
	for _, err := range errs {
		if err != nil {
			return c, err
		}
	}
	if c.LeaseID == "" {
		c.LeaseID = lokt.NewLeaseID()
	}
	switch {
	case q.Wait < 0:
		return c, invalid("wait_ms is negative")
	case q.Stay && q.Wait == 0:
		return c, invalid("stay without wait_ms")
	case len(q.Within) > maxWithin:
		return c, invalid("claim is made within more than %d leases", maxWithin)
	case slices.ContainsFunc(q.Within, func(id string) bool { return len(id) > lokt.MaxIDLen }):
		return c, invalid("a lease that the claim is made within has an ID of more than %d bytes", lokt.MaxIDLen)
	}
	return c, checkLeaseID(c.LeaseID)
}

// checkLeaseID refuses lease IDs that cannot be sent in a header, or that look like public ones. It does not repeat them.
func checkLeaseID(id string) error {
	if id == "" || len(id) > lokt.MaxIDLen {
		return invalid("lease ID must have from 1 to %d bytes", lokt.MaxIDLen)
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return invalid("lease ID must be printable ASCII without spaces")
		}
	}
	if isPublicID(id) {
		return invalid("lease ID looks like a public one")
	}
	return nil
}

// acquire grants a claim, or waits in the queue for up to wait_ms. A client that hangs up leaves its claim where it is:
// if only the connection broke, the client is about to ask again and must find it. If it does not, others pass
// the claim, and it leaves the queue later; a client that gives up on purpose takes it back with a release.
func (s *server) acquire(c *call) error {
	name := c.r.PathValue("name")
	if err := c.may(ScopeLock, name); err != nil {
		return err
	}
	var q acquireRequest
	if err := c.decode(&q, false); err != nil {
		return err
	}
	c.lease = q.LeaseID
	claim, err := q.claim(name)
	if err != nil {
		return err
	}
	operation, err := c.operation(headerOperation)
	if err != nil {
		return err
	}
	if err := claim.Validate(); err != nil {
		return err
	}
	if claim.Owner, err = c.view().stored(claim.Owner); err != nil {
		return err
	}
	ctx, done := c.brief()
	if claim.Wait > 0 {
		done()
		claim.Wait = min(claim.Wait, s.Limits.Wait)
		limit := claim.Wait
		if q.Stay {
			claim.Wait = -1
		} else {
			limit += s.Limits.Request
		}
		if ctx, done, err = c.park(limit); err != nil {
			return err
		}
	}
	defer done()
	ctx, end, err := s.polls.begin(ctx, operation)
	if err != nil {
		return err
	}
	h, err := s.poll(ctx, claim)
	end()
	if errors.Is(err, lokt.ErrWithdrawn) { // a client that has not given up asks again
		err = errWaitOver
	}
	switch cause := context.Cause(ctx); {
	case err == nil:
		w := toOwnHolder(c.view().holder(h), claim.LeaseID)
		return c.writeJSON(http.StatusOK, "application/json", acquireAnswer{Holder: &w})
	case errors.Is(err, errWaitOver) && q.Stay:
		return c.writeJSON(http.StatusAccepted, "application/json", acquireAnswer{Queued: true, ID: PublicID(claim.LeaseID)})
	case errors.Is(err, errWaitOver):
		return errBusy
	case cause == nil || !errors.Is(err, ctx.Err()) && !errors.Is(err, cause):
		return err
	case errors.Is(cause, errWaitOver) && q.Stay:
		return c.writeJSON(http.StatusAccepted, "application/json", acquireAnswer{Queued: true, ID: PublicID(claim.LeaseID)})
	case errors.Is(cause, errWaitOver):
		return errBusy
	default:
		return cause
	}
}

// poller is a Service that can leave a claim where it is when its context ends, as lokt.Manager can.
type poller interface {
	Poll(ctx context.Context, c lokt.Claim) (lokt.Holder, error)
}

// poll asks for the claim and does not take it back when ctx ends.
func (s *server) poll(ctx context.Context, claim lokt.Claim) (lokt.Holder, error) {
	if p, ok := s.Locks.(poller); ok {
		return p.Poll(ctx, claim)
	}
	return s.Locks.Acquire(ctx, claim)
}

// operation returns the operation that a header names, or nothing. Those of different callers are different.
func (c *call) operation(header string) (string, error) {
	name := c.r.Header.Get(header)
	switch {
	case len(name) > 64:
		return "", invalid("%s has more than 64 bytes", header)
	case name == "":
		return "", nil
	}
	return string(c.view()) + name, nil
}

// leaseOf returns the lease ID that the request proves to know, which must be the one that the path names.
func (c *call) leaseOf() (string, error) {
	secret := c.r.Header.Get(headerLease)
	if secret == "" {
		return "", invalid("the header %s, with the lease ID, is missing", headerLease)
	}
	if err := checkLeaseID(secret); err != nil {
		return "", err
	}
	if PublicID(secret) != c.r.PathValue("id") {
		return "", invalid("the lease ID in %s is not that of the lease %q", headerLease, c.r.PathValue("id"))
	}
	return secret, nil
}

// renewRequest is the optional body of a renewal.
type renewRequest struct {
	Owner *wireOwner `json:"owner,omitempty"`
}

// holderAnswer is a hold that was renewed.
type holderAnswer struct {
	Holder wireHolder `json:"holder"`
}

func (s *server) renew(c *call) error {
	name := c.r.PathValue("name")
	if err := c.may(ScopeLock, name); err != nil {
		return err
	}
	var q renewRequest
	if err := c.decode(&q, true); err != nil {
		return err
	}
	leaseID, err := c.leaseOf()
	if err != nil {
		return err
	}
	r := lokt.Renewal{Name: name, LeaseID: leaseID}
	if q.Owner != nil {
		owner, err := c.view().stored(q.Owner.owner())
		if err != nil {
			return err
		}
		r.Owner = &owner
	}
	ctx, cancel := c.brief()
	defer cancel()
	h, err := s.Locks.Renew(ctx, r)
	if another := takenByAnother(q, r, err); another != nil {
		r.Owner = another
		h, err = s.Locks.Renew(ctx, r)
	}
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, "application/json", holderAnswer{Holder: toOwnHolder(c.view().holder(h), leaseID)})
}

// takenByAnother returns the recorded owner of the lease that a renewal is refused for, if it is the owner that the caller names
// but was put on record by another caller, or without any. The lease ID is what proves ownership: a token can be replaced by one of
// another name while its holds last.
func takenByAnother(q renewRequest, r lokt.Renewal, err error) *lokt.Owner {
	var gone *lokt.GoneError
	if q.Owner == nil || !errors.As(err, &gone) || gone.Cause != "" {
		return nil
	}
	for _, h := range gone.Holders {
		if h.LeaseID != r.LeaseID || h.Owner.ID == r.Owner.ID {
			continue
		}
		if _, id, found := strings.Cut(h.Owner.ID, "/"); h.Owner.ID == q.Owner.ID || found && id == q.Owner.ID {
			owner := *r.Owner
			owner.ID = h.Owner.ID
			return &owner
		}
	}
	return nil
}

// checkOwner refuses an owner that no claim could have.
func checkOwner(o lokt.Owner) error {
	return lokt.Claim{Name: "x", Owner: o}.Validate()
}
