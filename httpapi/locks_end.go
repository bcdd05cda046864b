package httpapi

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// query reads the parameters of a URL and keeps the first thing that is wrong with them.
type query struct {
	url.Values
	c   *call
	err error
}

func (c *call) query() *query {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	q := &query{Values: values, c: c}
	if err != nil {
		q.err = invalid("query cannot be read: %v", err)
	}
	return q
}

func (q *query) wrong(name, what string) {
	if q.err == nil {
		q.err = invalid("%s is not %s", name, what)
	}
}

// uint returns a number, or 0 if it is absent.
func (q *query) uint(name string) uint64 {
	text := q.Get(name)
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		q.wrong(name, "a number from 0 to 18446744073709551615")
	}
	return n
}

// bool returns a truth value, or false if it is absent. A name alone is true.
func (q *query) bool(name string) bool {
	if !q.Has(name) {
		return false
	}
	switch q.Get(name) {
	case "", "true", "1":
		return true
	case "false", "0":
	default:
		q.wrong(name, "true or false")
	}
	return false
}

// wait returns how long the request may wait.
func (q *query) wait() time.Duration {
	ms := q.uint("wait_ms")
	return time.Duration(min(ms, uint64(q.c.s.Limits.Wait/time.Millisecond))) * time.Millisecond
}

// time returns a time, or the zero time if it is absent.
func (q *query) time(name string) time.Time {
	if !q.Has(name) {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, q.Get(name))
	if err != nil {
		q.wrong(name, "a time as of RFC 3339")
	}
	return t
}

// target reads who ends what, and how.
func (q *query) target(name string) lokt.Target {
	t := lokt.Target{Name: name, Force: q.bool("force"), Stale: q.bool("stale"), Owner: lokt.Owner{
		ID: q.Get("owner"), Session: q.Get("session"), AnySession: q.bool("any_session"), Host: q.Get("host"),
	}}
	pid := q.uint("pid")
	if pid > 1<<31 {
		q.wrong("pid", "a process ID")
	}
	t.Owner.Process.PID = int(pid) //nolint:gosec // bounded above
	if q.err == nil && t.Owner != (lokt.Owner{}) {
		t.Owner, q.err = q.c.view().stored(t.Owner)
	}
	return t
}

// targetValues is the inverse of target, but for the name and the lease ID.
func targetValues(t lokt.Target) url.Values {
	v := url.Values{}
	for name, text := range map[string]string{"owner": t.Owner.ID, "session": t.Owner.Session, "host": t.Owner.Host} {
		if text != "" {
			v.Set(name, text)
		}
	}
	for name, set := range map[string]bool{"any_session": t.Owner.AnySession, "force": t.Force, "stale": t.Stale} {
		if set {
			v.Set(name, "true")
		}
	}
	if t.Owner.Process.PID > 0 {
		v.Set("pid", strconv.Itoa(t.Owner.Process.PID))
	}
	return v
}

// releaseAnswer is the holds that were ended.
type releaseAnswer struct {
	Released []wireHolder `json:"released"`
}

func (c *call) released(ended []lokt.Holder, leaseID string) error {
	answer := releaseAnswer{Released: []wireHolder{}}
	for _, h := range ended {
		answer.Released = append(answer.Released, toOwnHolder(c.view().holder(h), leaseID))
	}
	return c.writeJSON(http.StatusOK, "application/json", answer)
}

// release ends one hold, or takes a claim out of the queue: with its lease ID as proof, by force, or because it is stale.
func (s *server) release(c *call) error {
	name := c.r.PathValue("name")
	if err := c.may(ScopeLock, name); err != nil {
		return err
	}
	q := c.query()
	t := q.target(name)
	if q.err != nil {
		return q.err
	}
	ctx, cancel := c.brief()
	defer cancel()
	if c.r.Header.Get(headerLease) != "" || !t.Force && !t.Stale {
		leaseID, err := c.leaseOf()
		if err != nil {
			return err
		}
		operation, err := c.operation(headerCancels)
		if err != nil {
			return err
		}
		t.LeaseID = leaseID
		s.polls.takeBack(ctx, operation)
		ended, err := s.Locks.Release(ctx, t)
		if err != nil {
			return err
		}
		return c.released(ended, leaseID)
	}
	if t.Force {
		if err := c.may(ScopeForce, name); err != nil {
			return err
		}
	}
	if t.Owner.ID == "" {
		return invalid("owner, who asks for it, is missing")
	}
	snap, err := s.Locks.Get(ctx, name)
	if err != nil {
		return err
	}
	if t.LeaseID = findPublic(snap.Lock, c.r.PathValue("id")); t.LeaseID == "" {
		return &lokt.GoneError{Name: name, Holders: snap.Lock.Holders}
	}
	ended, err := s.Locks.Release(ctx, t)
	if err != nil {
		return err
	}
	return c.released(ended, "")
}

// findPublic returns the lease ID of the holder or waiter with the public ID, or nothing.
func findPublic(l lokt.Lock, id string) string {
	for _, h := range l.Holders {
		if PublicID(h.LeaseID) == id {
			return h.LeaseID
		}
	}
	for _, w := range l.Queue {
		if PublicID(w.LeaseID) == id {
			return w.LeaseID
		}
	}
	return ""
}

// ownersTarget returns what a request without a lease ID wants to end, if its caller may.
func (c *call) ownersTarget() (lokt.Target, error) {
	name := c.r.PathValue("name")
	if err := c.may(ScopeLock, name); err != nil {
		return lokt.Target{}, err
	}
	q := c.query()
	t := q.target(name)
	switch {
	case q.err != nil:
		return t, q.err
	case t.Force:
		if err := c.may(ScopeForce, name); err != nil {
			return t, err
		}
	}
	if t.Owner.ID == "" {
		return t, invalid("owner is missing")
	}
	return t, nil
}

// releaseAll ends an owner's holds but its guards, all holds by force, or all that are stale.
func (s *server) releaseAll(c *call) error {
	t, err := c.ownersTarget()
	if err != nil {
		return err
	}
	ctx, cancel := c.brief()
	defer cancel()
	ended, err := s.Locks.Release(ctx, t)
	if err != nil {
		return err
	}
	return c.released(ended, "")
}

// pruneAnswer is what was stale.
type pruneAnswer struct {
	Removed []wireRemoved `json:"removed"`
}

// wireRemoved is a lokt.Removed.
type wireRemoved struct {
	Holder wireHolder `json:"holder"`
	Waiter bool       `json:"waiter,omitempty"`
	Reason string     `json:"reason"`
}

func (s *server) prune(c *call) error {
	name := c.r.PathValue("name")
	if err := c.may(ScopeLock, name); err != nil {
		return err
	}
	ctx, cancel := c.brief()
	defer cancel()
	removed, err := s.Locks.Prune(ctx, name)
	if err != nil {
		return err
	}
	answer := pruneAnswer{Removed: []wireRemoved{}}
	for _, r := range removed {
		answer.Removed = append(answer.Removed, wireRemoved{Holder: toHolder(c.view().holder(r.Holder), lokt.Snapshot{}), Waiter: r.Waiter, Reason: r.Reason})
	}
	return c.writeJSON(http.StatusOK, "application/json", answer)
}

// freezeRequest is what may be said of a new freeze.
type freezeRequest struct {
	ID     string    `json:"id,omitempty"`
	Owner  wireOwner `json:"owner"`
	Reason string    `json:"reason,omitempty"`
	TTL    int64     `json:"ttl_ms,omitempty"`
}

// freezeAnswer is a freeze that was made, or ended.
type freezeAnswer struct {
	Freeze *wireFreeze `json:"freeze"`
}

func (s *server) freeze(c *call) error {
	name := c.r.PathValue("name")
	if err := c.may(ScopeLock, name); err != nil {
		return err
	}
	var q freezeRequest
	if err := c.decode(&q, false); err != nil {
		return err
	}
	ttl, err := duration("ttl_ms", q.TTL)
	if err != nil {
		return err
	}
	f := lokt.Freeze{ID: q.ID, Reason: q.Reason, TTL: ttl}
	if f.Owner, err = c.view().stored(q.Owner.owner()); err != nil {
		return err
	}
	if len(f.ID) > lokt.MaxIDLen {
		return invalid("id has more than %d bytes", lokt.MaxIDLen)
	}
	ctx, cancel := c.brief()
	defer cancel()
	if f, err = s.Locks.Freeze(ctx, name, f); err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, "application/json", freezeAnswer{Freeze: toFreeze(c.view().freeze(&f))})
}

func (s *server) unfreeze(c *call) error {
	t, err := c.ownersTarget()
	if err != nil {
		return err
	}
	ctx, cancel := c.brief()
	defer cancel()
	f, err := s.Locks.Unfreeze(ctx, t)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, "application/json", freezeAnswer{Freeze: toFreeze(c.view().freeze(&f))})
}
