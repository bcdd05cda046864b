package httpapi

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

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

// answer answers with a value, in the form of the API that the path belongs to.
func (c *call) answer(status int, v any) error {
	if c.scheduled() {
		body, err := form.Marshal(v)
		if err != nil {
			return err
		}
		return c.send(status, body)
	}
	body, err := lokt.Marshal(v)
	if err != nil {
		return err
	}
	h := c.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	return c.send(status, append(body, '\n'))
}

// lockWire is a lokt.Snapshot.
type lockWire struct {
	lokt.Lock
	Now   time.Time         `json:"now"`
	Stale map[string]string `json:"stale,omitempty"` // by ID, why a hold or a claim in the queue does not count any more
	Away  []string          `json:"away,omitempty"`  // IDs of claims in the queue that others pass
	Error *problem          `json:"error,omitzero"`  // only in lists: why the lock cannot be read
}

// lock returns the snapshot as the caller sees it.
func (c *call) lock(s lokt.Snapshot) lockWire {
	w := lockWire{Lock: c.view().lock(s.Lock), Now: s.Now, Stale: map[string]string{}}
	for _, h := range s.Lock.Holders {
		if why, stale := s.Stale(h); stale {
			w.Stale[lokt.PublicID(h.LeaseID)] = why
		}
	}
	for _, q := range s.Lock.Queue {
		if s.Dead[q.LeaseID] {
			w.Stale[lokt.PublicID(q.LeaseID)] = lokt.ReasonDead
		}
		if s.Away(q) {
			w.Away = append(w.Away, lokt.PublicID(q.LeaseID))
		}
	}
	return w
}

// seenWire is what a client knows of a lock: with both it waits for the revision to be another.
type seenWire struct {
	Seen *uint64       `json:"seen"`
	Wait time.Duration `json:"wait_ms"`
}

func (c *call) getLock(q *seenWire) (lockWire, error) {
	name := c.r.PathValue("name")
	snap, err := c.s.Locks.Get(c.ctx, name)
	if err == nil && q.Wait > 0 && q.Seen != nil && snap.Lock.Revision == *q.Seen {
		watch := lokt.Watch{Name: name, Seen: *q.Seen}
		err = c.waitFor(q.Wait, func(ctx context.Context) error { return c.s.Locks.Wait(ctx, watch) })
		if err == nil {
			snap, err = c.s.Locks.Get(c.ctx, name)
		}
	}
	return c.lock(snap), err
}

// locksWire are the locks that listWire asks for.
type locksWire struct {
	Locks []lockWire `json:"locks"`
}

type listWire struct {
	Prefix string `json:"prefix"`
	Queued bool   `json:"queued"`
}

// listLocks answers with the locks that the caller may look at. It writes them as it reads them.
func (c *call) listLocks(q *listWire) (none locksWire, err error) {
	if err := lokt.ValidatePrefix(q.Prefix); err != nil {
		return none, err
	}
	c.Header().Set("Content-Type", "application/json")
	c.Header().Set("Cache-Control", "no-store")
	out, between := bufio.NewWriterSize(c, 16<<10), "" // the last flush tells of errors
	_, _ = out.WriteString(`{"locks":[`)
	for snap, err := range c.s.Locks.List(c.ctx, lokt.Filter{Prefix: q.Prefix, Queued: q.Queued}) {
		var entry lockWire
		switch {
		case err != nil && snap.Lock.Name == "":
			return none, err
		case c.may(ScopeRead, snap.Lock.Name) != nil, err == nil && snap.Over():
			continue
		case err != nil:
			p := c.problem(err)
			entry = lockWire{Lock: lokt.Lock{Name: snap.Lock.Name}, Error: &p}
		default:
			entry = c.lock(snap)
		}
		text, err := lokt.Marshal(entry)
		if err != nil {
			return none, err
		}
		c.writeDeadline()
		_, _ = out.WriteString(between)
		if _, err := out.Write(text); err != nil {
			return none, err
		}
		between = ","
	}
	c.writeDeadline()
	_, _ = out.WriteString("]}\n")
	return none, out.Flush()
}

// claimWire asks for a lock.
type claimWire struct {
	lokt.Claim
	Stay bool `json:"stay,omitzero"` // when the wait is over, stay in the queue for a while: the client asks again
}

// grantWire is a grant, or a place in the queue.
type grantWire struct {
	Holder *lokt.Holder `json:"holder,omitzero"`
	Queued bool         `json:"queued,omitzero"`
	ID     string       `json:"id,omitzero"` // of the queued claim
}

// check refuses claims that make no sense on the wire, and makes up a lease ID if there is none.
func (q *claimWire) check(name string) error {
	switch {
	case q.Name != "" && q.Name != name:
		return invalid("name is another than in the path")
	case q.Claim.Process != nil:
		return invalid("process is not known: a server cannot look at the processes of its clients")
	case q.ID != "":
		return invalid("id is not known")
	case q.Wait < 0:
		return invalid("wait_ms is negative")
	case q.Stay && q.Wait == 0:
		return invalid("stay without wait_ms")
	case len(q.Within) > maxWithin:
		return invalid("claim is made within more than %d leases", maxWithin)
	case slices.ContainsFunc(q.Within, func(id string) bool { return len(id) > lokt.MaxIDLen }):
		return invalid("a lease that the claim is made within has an ID of more than %d bytes", lokt.MaxIDLen)
	}
	if q.Name = name; q.LeaseID == "" {
		q.LeaseID = lokt.NewLeaseID()
	}
	return cmp.Or(checkLeaseID(q.LeaseID), q.Validate())
}

// checkLeaseID refuses lease IDs that cannot be sent in a header, or that look like public ones. It does not repeat them.
func checkLeaseID(id string) error {
	switch {
	case id == "" || len(id) > lokt.MaxIDLen:
		return invalid("lease ID must have from 1 to %d bytes", lokt.MaxIDLen)
	case strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }):
		return invalid("lease ID must be printable ASCII without spaces")
	case isPublicID(id):
		return invalid("lease ID looks like a public one")
	}
	return nil
}

// isPublicID reports whether id looks as lokt.PublicID makes them.
func isPublicID(id string) bool {
	digits, found := strings.CutPrefix(id, "L-")
	return found && len(digits) == 20 && strings.Trim(digits, "0123456789abcdef") == ""
}

// acquire grants a claim, or waits in the queue for up to wait_ms. A client that hangs up leaves its claim where it is:
// if only the connection broke, the client is about to ask again and must find it. If it does not, others pass
// the claim, and it leaves the queue later; a client that gives up on purpose takes it back with a release.
func (c *call) acquire(q *claimWire) (answer grantWire, err error) {
	c.lease = q.LeaseID
	if err := q.check(c.r.PathValue("name")); err != nil {
		return answer, err
	}
	operation, err := c.operation(headerOperation)
	if err != nil {
		return answer, err
	}
	claim := &q.Claim
	if claim.Owner, err = c.view().stored(claim.Owner); err != nil {
		return answer, err
	}
	if err := c.room(); err != nil {
		s, failed := c.s.Locks.Get(c.ctx, claim.Name)
		if len(s.Lock.Holders)+len(s.Lock.Queue) == 0 {
			return answer, cmp.Or(failed, err)
		}
	}
	ctx, done := c.ctx, func() {}
	if claim.Wait > 0 {
		leave, err := c.crowded(claim)
		if err != nil {
			return answer, err
		}
		defer leave()
		claim.Wait = min(claim.Wait, c.s.Limits.Wait)
		limit := claim.Wait
		if q.Stay {
			claim.Wait = -1
		} else {
			limit += c.s.Limits.Request
		}
		if ctx, done, err = c.park(limit); err != nil {
			return answer, err
		}
	}
	defer done()
	ctx, end, err := c.s.claims.begin(ctx, operation)
	if err != nil {
		return answer, err
	}
	h, err := c.s.Locks.Poll(ctx, claim)
	end()
	cause := context.Cause(ctx)
	if err != nil && cause != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, cause)) {
		err = cause
	}
	over := errors.Is(err, errWaitOver) || errors.Is(err, lokt.ErrWithdrawn) // a client that has not given up asks again
	switch {
	case over && q.Stay:
		return answer, c.answer(http.StatusAccepted, grantWire{Queued: true, ID: lokt.PublicID(claim.LeaseID)})
	case over:
		return answer, errBusy
	case err != nil:
		return answer, err
	}
	answer.Holder = c.view().own(h, claim.LeaseID)
	answer.Holder.HeartbeatIn = c.s.pace.next(h.TTL)
	return answer, nil
}

// operation returns the operation that a header names, or nothing. Those of different callers are different.
func (c *call) operation(header string) (string, error) {
	name := c.r.Header.Get(header)
	if len(name) > 64 {
		return "", invalid("%s has more than 64 bytes", header)
	}
	if name != "" {
		name = string(c.view()) + name
	}
	return name, nil
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
	if lokt.PublicID(secret) != c.r.PathValue("id") {
		return "", invalid("the lease ID in %s is not that of the lease %q", headerLease, c.r.PathValue("id"))
	}
	return secret, nil
}

// releasedWire is the holds that were ended.
type releasedWire struct {
	Released []lokt.Holder `json:"released"`
}

// release ends what the target says.
func (c *call) release(t lokt.Target) (answer releasedWire, err error) {
	ended, err := c.s.Locks.Release(c.ctx, t)
	for i := range ended {
		answer.Released = append(answer.Released, *c.view().own(&ended[i], c.r.Header.Get(headerLease)))
	}
	return answer, err
}

// releaseOne ends one hold, or takes a claim out of the queue: with its lease ID as proof, by force, or because it is
// stale.
func (c *call) releaseOne(q *leaseWire) (answer releasedWire, err error) {
	if c.r.Header.Get(headerLease) != "" || !q.Force && !q.Stale {
		t, err := c.target(&q.targetWire)
		if err != nil {
			return answer, err
		}
		t.Ticket = q.Ticket
		operation, err := c.operation(headerCancels)
		if err != nil {
			return answer, err
		}
		if t.LeaseID, err = c.leaseOf(); err != nil {
			return answer, err
		}
		c.s.claims.takeBack(c.ctx, operation)
		return c.release(t)
	}
	t, err := c.ownersTarget(&q.targetWire)
	if err != nil {
		return answer, err
	}
	snap, err := c.s.Locks.Get(c.ctx, t.Name)
	if err != nil {
		return answer, err
	}
	if t.LeaseID = findPublic(snap.Lock, c.r.PathValue("id")); t.LeaseID == "" {
		return answer, &lokt.GoneError{Name: t.Name, Holders: snap.Lock.Holders}
	}
	return c.release(t)
}

// findPublic returns the lease ID of the holder or waiter with the public ID, or nothing.
func findPublic(l lokt.Lock, id string) string {
	for _, h := range l.Holders {
		if lokt.PublicID(h.LeaseID) == id {
			return h.LeaseID
		}
	}
	for _, w := range l.Queue {
		if lokt.PublicID(w.LeaseID) == id {
			return w.LeaseID
		}
	}
	return ""
}

// targetWire is a lokt.Target without what a path and a header say.
type targetWire struct {
	Owner      string `json:"owner"`
	Session    string `json:"session"`
	AnySession bool   `json:"any_session"`
	Host       string `json:"host"`
	PID        int    `json:"pid"`
	Force      bool   `json:"force"`
	Stale      bool   `json:"stale"`
	UpTo       uint64 `json:"up_to"`
}

// leaseWire is a target that is one lease.
type leaseWire struct {
	targetWire
	Ticket int `json:"ticket"`
}

func toTarget(t lokt.Target) *targetWire {
	o := t.Owner
	return &targetWire{o.ID, o.Session, o.AnySession, o.Host, o.Process.PID, t.Force, t.Stale, t.UpTo}
}

// target returns who ends what, and how.
func (c *call) target(q *targetWire) (t lokt.Target, err error) {
	owner := lokt.Owner{ID: q.Owner, Session: q.Session, AnySession: q.AnySession, Host: q.Host, Process: lokt.Process{PID: q.PID}}
	if q.PID > math.MaxInt32 {
		return t, invalid("pid is not a process ID")
	}
	if owner != (lokt.Owner{}) {
		owner, err = c.view().stored(owner)
	}
	return lokt.Target{Name: c.r.PathValue("name"), Force: q.Force, Stale: q.Stale, UpTo: q.UpTo, Owner: owner}, err
}

// ownersTarget returns what a request without a lease ID wants to end, if its caller may.
func (c *call) ownersTarget(q *targetWire) (lokt.Target, error) {
	t, err := c.target(q)
	if err == nil && t.Force {
		err = c.may(ScopeForce, t.Name)
	}
	if err == nil && t.Owner.ID == "" {
		err = invalid("owner, who asks for it, is missing")
	}
	return t, err
}

// releaseAll ends an owner's holds but its guards, all holds by force, or all that are stale.
func (c *call) releaseAll(q *targetWire) (releasedWire, error) {
	t, err := c.ownersTarget(q)
	if err != nil {
		return releasedWire{}, err
	}
	return c.release(t)
}

// prunedWire is what was stale.
type prunedWire struct {
	Removed []lokt.Removed `json:"removed"`
}

func (c *call) prune(*none) (prunedWire, error) {
	removed, err := c.s.Locks.Prune(c.ctx, c.r.PathValue("name"))
	for i := range removed {
		removed[i].Holder = *c.view().own(&removed[i].Holder, "")
	}
	return prunedWire{removed}, err
}

func (c *call) tell(m *lokt.Message) (answer grantWire, err error) {
	var q targetWire
	if err := c.parse(&q); err != nil {
		return answer, err
	}
	t, err := c.ownersTarget(&q)
	t.LeaseID = c.r.Header.Get(headerLease)
	if p := m.Pass; err == nil && p != nil && !strings.Contains(p.Owner.ID, "/") { // it names no caller
		p.Owner, err = c.view().stored(p.Owner)
	}
	if err != nil {
		return answer, err
	}
	h, err := c.s.Locks.Tell(c.ctx, t, *m)
	return grantWire{Holder: c.view().own(&h, t.LeaseID)}, err
}

// freezeWire is a freeze that was made, or ended.
type freezeWire struct {
	Freeze *lokt.Freeze `json:"freeze"`
}

func (c *call) freeze(q *lokt.Freeze) (answer freezeWire, err error) {
	if len(q.ID) > lokt.MaxIDLen {
		return answer, invalid("id has more than %d bytes", lokt.MaxIDLen)
	}
	owner, err := c.view().stored(q.Owner)
	if err != nil {
		return answer, err
	}
	f := lokt.Freeze{ID: q.ID, Owner: owner, Reason: q.Reason, TTL: q.TTL} // the rest is the server's to say
	f, err = c.s.Locks.Freeze(c.ctx, c.r.PathValue("name"), f)
	return freezeWire{c.view().freeze(&f)}, err
}

func (c *call) unfreeze(q *targetWire) (answer freezeWire, err error) {
	t, err := c.ownersTarget(q)
	if err != nil {
		return answer, err
	}
	t.LeaseID = c.r.Header.Get(headerLease)
	f, err := c.s.Locks.Unfreeze(c.ctx, t)
	return freezeWire{c.view().freeze(&f)}, err
}

// checkOwner refuses an owner that no claim could have.
func checkOwner(o lokt.Owner) error {
	return lokt.Claim{Name: "x", Owner: o}.Validate()
}
