package locks

import (
	"cmp"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/lockfile"
)

// Values of state: what a lock, or one hold of it, is.
const (
	stateFree       = "free"
	StateHeld       = "held"
	StateFrozen     = "frozen" // and held by nobody
	stateQueued     = "queued" // held by nobody, but somebody waits already
	stateCorrupt    = "corrupt"
	stateUnreadable = "unreadable"
)

// party is a claim in any stage, or a freeze, as programs are told of it: under the names of a version-1 record.
type party struct {
	LockID    string    `json:"lock_id,omitzero"`
	Owner     string    `json:"owner,omitzero"`
	Host      string    `json:"host,omitzero"`
	PID       int       `json:"pid,omitzero"`
	AgentID   string    `json:"agent_id,omitzero"`
	Kind      string    `json:"kind,omitzero"`
	AgeSec    int64     `json:"age_sec"` // since it was granted, queued or set
	TTLSec    int64     `json:"ttl_sec,omitzero"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Remaining *int64    `json:"remaining_sec,omitzero"`
	PIDStatus string    `json:"pid_status,omitzero"`
	Limit     int       `json:"limit,omitzero"` // most holders; absent means one, -1 any number
	Priority  int       `json:"priority,omitzero"`
}

// hold is a hold, and what the clock and the process table make of it.
type hold struct {
	party
	PIDStart   int64             `json:"pid_start_ns,omitzero"`
	ChildPID   int               `json:"child_pid,omitzero"`
	AcquiredTS time.Time         `json:"acquired_ts,omitzero"`
	HeldSince  time.Time         `json:"held_since,omitzero"`
	Expired    bool              `json:"expired"`
	State      string            `json:"state"`
	Token      uint64            `json:"token,omitzero"`
	Renewals   int               `json:"renewals,omitzero"`
	MaxHoldSec int64             `json:"max_hold_sec,omitzero"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Note       string            `json:"note,omitzero"` // why a hold goes on whose process is dead, and how to end it
}

// freeze is a freeze in force.
type freeze struct {
	party
	Reason     string    `json:"reason,omitzero"`
	AcquiredTS time.Time `json:"acquired_ts,omitzero"`
	Damaged    string    `json:"damaged,omitzero"`
}

// waiter is a claim that waits.
type waiter struct {
	party
	Position int       `json:"position"` // 1 is next
	Since    time.Time `json:"since,omitzero"`
	Away     bool      `json:"away,omitzero"`       // passed over until it asks again
	Until    time.Time `json:"until,omitzero"`      // if so: when it leaves the queue otherwise
	Leaves   *int64    `json:"leaves_sec,omitzero"` // the same from now
}

// removed is something stale that was removed.
type removed struct {
	party
	What   string `json:"what"`   // guard, lease, waiter, freeze or record
	Reason string `json:"reason"` // expired, dead, and so on
}

// lockView is how a lock is told to programs. The fields of the hold are those of the first live holder, or of the first
// if none is live.
type lockView struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	hold
	Freeze  *freeze   `json:"freeze,omitzero"`
	Holders []hold    `json:"holders,omitempty"` // all of them, if there are several
	Waiters int       `json:"waiters,omitzero"`
	Away    int       `json:"waiters_away,omitzero"` // of these, those that are passed over until they ask again
	Queue   []waiter  `json:"queue,omitempty"`       // in the view of one lock
	Problem string    `json:"problem,omitzero"`
	Pruned  []removed `json:"pruned,omitempty"` // what --prune-expired removed

	revision uint64 // of what is stored
}

// viewClaim makes of a claim what all views of it share.
func viewClaim(b *app.Backend, now time.Time, c lokt.Claim, since, expires time.Time) party {
	p := party{
		LockID: shownID(b, c), Owner: c.Owner.ID, Host: c.Owner.Host, PID: pid(c), AgentID: c.Owner.Session, Kind: c.Kind(), AgeSec: app.Age(now, since),
		TTLSec: app.Seconds(c.TTL), ExpiresAt: app.UTC(expires), Remaining: app.Remaining(now, expires), Limit: c.Limit, Priority: c.Priority,
	}
	switch {
	case c.Limit <= lokt.Exclusive:
		p.Limit = 0
	case c.Limit == lokt.Shared:
		p.Limit = -1
	}
	return p
}

// shownID returns what a lease is called where others may see it.
func shownID(b *app.Backend, c lokt.Claim) string { return cmp.Or(c.ID, b.Shown(c.LeaseID)) }

// pid returns the ID of the process that a claim depends on, or of the one that asked.
func pid(c lokt.Claim) int {
	if c.Process != nil {
		return c.Process.PID
	}
	return c.Owner.Process.PID
}

// viewHold makes of a hold what is shown of it. Its state is held, or why it is stale.
func viewHold(b *app.Backend, s lokt.Snapshot, h lokt.Holder) hold {
	v := hold{
		party: viewClaim(b, s.Now, h.Claim, h.HeldSince, h.ExpiresAt), PIDStart: h.Owner.Process.Start, AcquiredTS: app.UTC(h.AcquiredAt),
		HeldSince: app.UTC(h.HeldSince), Expired: !h.ExpiresAt.IsZero() && s.Now.After(h.ExpiresAt), State: StateHeld, Token: h.Token,
		Renewals: h.Renewals, MaxHoldSec: app.Seconds(h.MaxHold), Metadata: h.Metadata,
	}
	if p := h.Process; p != nil {
		v.PIDStart, v.ChildPID = p.Start, p.Child
	}
	if v.PIDStatus = pidDead; !s.Dead[h.LeaseID] {
		v.PIDStatus = pidStatus(b, h)
	}
	if v.PIDStatus == pidOrphaned {
		v.Note = orphanText(b, h)
	}
	if reason, stale := s.Stale(h); stale {
		v.State = reason
	}
	return v
}

func viewFreeze(b *app.Backend, f *lokt.Freeze, now time.Time) *freeze {
	if f.Damaged != "" {
		return &freeze{Damaged: f.Damaged}
	}
	p := viewClaim(b, now, lokt.Claim{ID: f.ID, Owner: f.Owner, TTL: f.TTL}, f.At, f.ExpiresAt)
	p.Kind = ""
	return &freeze{party: p, Reason: f.Reason, AcquiredTS: app.UTC(f.At)}
}

// viewQueue makes of the queue what is shown of it.
func viewQueue(b *app.Backend, s lokt.Snapshot) (queue []waiter) {
	for i, w := range waiting(s) {
		v := waiter{party: viewClaim(b, s.Now, w.Claim, w.Since, time.Time{}), Position: i + 1, Since: app.UTC(w.Since)}
		if s.Away(w) {
			v.Away, v.Until, v.Leaves = true, app.UTC(w.Until), app.Remaining(s.Now, w.Until)
		}
		queue = append(queue, v)
	}
	return queue
}

// view makes of a snapshot what is shown of it.
func view(b *app.Backend, s lokt.Snapshot) lockView {
	queue := waiting(s)
	v := lockView{Version: lockfile.Version, Name: s.Lock.Name, Waiters: len(queue), Away: len(away(s, queue)), Problem: s.Lock.Corrupt, revision: s.Lock.Revision}
	shown := -1
	for i, h := range s.Lock.Holders {
		one := viewHold(b, s, h)
		if len(s.Lock.Holders) > 1 {
			v.Holders = append(v.Holders, one)
		}
		if shown < 0 || one.State == StateHeld && v.State != StateHeld {
			shown, v.hold = i, one
		}
	}
	if f := s.Frozen(); f != nil {
		v.Freeze = viewFreeze(b, f, s.Now)
	}
	switch {
	case s.Lock.Corrupt != "":
		v.State = stateCorrupt
	case shown >= 0:
	case v.Freeze != nil:
		v.State = StateFrozen
	case v.Waiters > 0:
		v.State = stateQueued
	default:
		v.State = stateFree
	}
	return v
}

// away returns those of the waiting claims that are passed over, because nobody is known to be there for them.
func away(s lokt.Snapshot, queue []*lokt.Waiter) (all []*lokt.Waiter) {
	for _, w := range queue {
		if s.Away(w) {
			all = append(all, w)
		}
	}
	return all
}

// waiting returns the claims that still have a place in the queue, and whose claimant is not known to be dead.
func waiting(s lokt.Snapshot) []*lokt.Waiter {
	if len(s.Lock.Queue) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.Lock.Queue), func(w *lokt.Waiter) bool {
		_, in := s.Lock.Holder(w.LeaseID)
		return in || s.Dead[w.LeaseID] || s.Now.After(w.Until)
	})
}
