package locks

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/jsonline"
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

// holdJSON is how a hold is told to programs: the fields of a version-1 record, and what the clock and the process table
// make of them.
type holdJSON struct {
	LockID     string            `json:"lock_id,omitempty"`
	Owner      string            `json:"owner,omitempty"`
	Host       string            `json:"host,omitempty"`
	PID        int               `json:"pid,omitempty"`
	PIDStart   int64             `json:"pid_start_ns,omitempty"`
	AgentID    string            `json:"agent_id,omitempty"`
	AcquiredTS time.Time         `json:"acquired_ts,omitzero"`
	TTLSec     int64             `json:"ttl_sec,omitempty"`
	ExpiresAt  time.Time         `json:"expires_at,omitzero"`
	AgeSec     int64             `json:"age_sec"` // since it was granted
	Expired    bool              `json:"expired"`
	PIDStatus  string            `json:"pid_status,omitempty"`
	State      string            `json:"state"`
	Kind       string            `json:"kind,omitempty"`
	Token      uint64            `json:"token,omitempty"`
	HeldSince  time.Time         `json:"held_since,omitzero"`
	Renewals   int               `json:"renewals,omitempty"`
	Remaining  *int64            `json:"remaining_sec,omitempty"`
	MaxHoldSec int64             `json:"max_hold_sec,omitempty"`
	Limit      int               `json:"limit,omitempty"` // most holders; absent means one, -1 any number
	Priority   int               `json:"priority,omitempty"`
	ChildPID   int               `json:"child_pid,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
}

// lockJSON is how a lock is told to programs. The fields of the hold are those of the first live holder, or of the first
// if none is live.
type lockJSON struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	holdJSON
	Freeze  *freezeJSON   `json:"freeze,omitempty"`
	Holders []holdJSON    `json:"holders,omitempty"` // all of them, if there are several
	Waiters int           `json:"waiters,omitempty"`
	Away    int           `json:"waiters_away,omitempty"` // of these, those that are passed over until they ask again
	Queue   []waiterJSON  `json:"queue,omitempty"`        // in the view of one lock
	Problem string        `json:"problem,omitempty"`
	Pruned  []removedJSON `json:"pruned,omitempty"` // what --prune-expired removed

	revision uint64 // of what is stored
}

// freezeJSON is how a freeze in force is told to programs.
type freezeJSON struct {
	LockID     string    `json:"lock_id,omitempty"`
	Owner      string    `json:"owner,omitempty"`
	Host       string    `json:"host,omitempty"`
	PID        int       `json:"pid,omitempty"`
	AgentID    string    `json:"agent_id,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	AcquiredTS time.Time `json:"acquired_ts,omitzero"`
	TTLSec     int64     `json:"ttl_sec,omitempty"`
	ExpiresAt  time.Time `json:"expires_at,omitzero"`
	AgeSec     int64     `json:"age_sec"`
	Remaining  *int64    `json:"remaining_sec,omitempty"`
	Damaged    string    `json:"damaged,omitempty"`
}

// waiterJSON is how a waiting claim is told to programs.
type waiterJSON struct {
	Position int       `json:"position"` // 1 is next
	LockID   string    `json:"lock_id"`
	Owner    string    `json:"owner"`
	Host     string    `json:"host,omitempty"`
	PID      int       `json:"pid,omitempty"`
	AgentID  string    `json:"agent_id,omitempty"`
	Kind     string    `json:"kind"`
	Priority int       `json:"priority,omitempty"`
	Limit    int       `json:"limit,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	AgeSec   int64     `json:"age_sec"`
	Away     bool      `json:"away,omitempty"`       // passed over until it asks again
	Until    time.Time `json:"until,omitzero"`       // if so: when it leaves the queue otherwise
	Leaves   *int64    `json:"leaves_sec,omitempty"` // the same from now
}

// removedJSON is how something stale that was removed is told to programs.
type removedJSON struct {
	LockID  string `json:"lock_id,omitempty"`
	Owner   string `json:"owner,omitempty"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	AgentID string `json:"agent_id,omitempty"`
	What    string `json:"what"`   // guard, lease, waiter, freeze or record
	Reason  string `json:"reason"` // expired, dead, and so on
}

// append appends the view as encoding/json would. The table of fields is there twice, because a list of ten thousand locks
// would spend most of its time in reflection.
func (v *lockJSON) append(o *jsonline.Object) {
	o.Open()
	o.Int("version", int64(v.Version))
	o.String("name", v.Name)
	v.holdJSON.append(o)
	if v.Freeze != nil {
		o.Key("freeze")
		o.B = appendAny(o.B, v.Freeze)
	}
	if len(v.Holders) > 0 {
		o.Key("holders")
		o.B = append(o.B, '[')
		for i := range v.Holders {
			if i > 0 {
				o.B = append(o.B, ',')
			}
			o.Open()
			v.Holders[i].append(o)
			o.Close()
		}
		o.B = append(o.B, ']')
	}
	o.OptInt("waiters", int64(v.Waiters))
	o.OptInt("waiters_away", int64(v.Away))
	if len(v.Queue) > 0 {
		o.Key("queue")
		o.B = appendAny(o.B, v.Queue)
	}
	o.OptString("problem", v.Problem)
	if len(v.Pruned) > 0 {
		o.Key("pruned")
		o.B = appendAny(o.B, v.Pruned)
	}
	o.Close()
}

func (v *holdJSON) append(o *jsonline.Object) {
	o.OptString("lock_id", v.LockID)
	o.OptString("owner", v.Owner)
	o.OptString("host", v.Host)
	o.OptInt("pid", int64(v.PID))
	o.OptInt("pid_start_ns", v.PIDStart)
	o.OptString("agent_id", v.AgentID)
	o.OptTime("acquired_ts", v.AcquiredTS)
	o.OptInt("ttl_sec", v.TTLSec)
	o.OptTime("expires_at", v.ExpiresAt)
	o.Int("age_sec", v.AgeSec)
	o.Key("expired")
	o.B = strconv.AppendBool(o.B, v.Expired)
	o.OptString("pid_status", v.PIDStatus)
	o.String("state", v.State)
	o.OptString("kind", v.Kind)
	o.OptUint("token", v.Token)
	o.OptTime("held_since", v.HeldSince)
	o.OptInt("renewals", int64(v.Renewals))
	if v.Remaining != nil {
		o.Int("remaining_sec", *v.Remaining)
	}
	o.OptInt("max_hold_sec", v.MaxHoldSec)
	o.OptInt("limit", int64(v.Limit))
	o.OptInt("priority", int64(v.Priority))
	o.OptInt("child_pid", int64(v.ChildPID))
	o.OptMap("metadata", v.Metadata)
}

// appendAny appends what is rare.
func appendAny(b []byte, v any) []byte {
	buf := bytes.NewBuffer(b)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // our own types, and times that utc returned
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
}

// view makes of a snapshot what is shown of it.
func view(b *app.Backend, s lokt.Snapshot) lockJSON {
	queue := waiting(s)
	v := lockJSON{Version: lockfile.Version, Name: s.Lock.Name, Waiters: len(queue), Away: len(away(s, queue)), Problem: s.Lock.Corrupt, revision: s.Lock.Revision}
	shown := -1
	if len(s.Lock.Holders) > 1 {
		v.Holders = make([]holdJSON, len(s.Lock.Holders))
	}
	for i, h := range s.Lock.Holders {
		one := viewHold(b, s, h)
		if v.Holders != nil {
			v.Holders[i] = one
		}
		if shown < 0 || one.State == StateHeld && v.State != StateHeld {
			shown, v.holdJSON = i, one
		}
	}
	if f := s.Frozen(); f != nil {
		v.Freeze = viewFreeze(f, s.Now)
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

// viewHold makes of a hold what is shown of it. Its state is held, or why it is stale.
func viewHold(b *app.Backend, s lokt.Snapshot, h lokt.Holder) holdJSON {
	v := holdJSON{
		LockID: b.Shown(h.LeaseID), Owner: h.Owner.ID, Host: h.Owner.Host, PID: h.Owner.Process.PID, PIDStart: h.Owner.Process.Start,
		AgentID: h.Owner.Session, AcquiredTS: app.UTC(h.AcquiredAt), TTLSec: app.Seconds(h.TTL), AgeSec: app.Age(s.Now, h.HeldSince),
		Expired: !h.ExpiresAt.IsZero() && s.Now.After(h.ExpiresAt), State: StateHeld,
		Kind: h.Kind(), Token: h.Token, HeldSince: app.UTC(h.HeldSince), Renewals: h.Renewals, Remaining: app.Remaining(s.Now, h.ExpiresAt),
		MaxHoldSec: app.Seconds(h.MaxHold), Limit: limitJSON(h.Limit), Priority: h.Priority, Metadata: h.Metadata,
	}
	v.ExpiresAt = app.UTC(h.ExpiresAt)
	if p := h.Process; p != nil {
		v.PID, v.PIDStart, v.ChildPID = p.PID, p.Start, p.Child
	}
	if s.Dead[h.LeaseID] {
		v.PIDStatus = pidDead
	} else {
		v.PIDStatus = pidStatus(b, h)
	}
	if reason, stale := s.Stale(h); stale {
		v.State = reason
	}
	return v
}

func viewFreeze(f *lokt.Freeze, now time.Time) *freezeJSON {
	if f.Damaged != "" {
		return &freezeJSON{Damaged: f.Damaged}
	}
	v := &freezeJSON{
		LockID: f.ID, Owner: f.Owner.ID, Host: f.Owner.Host, PID: f.Owner.Process.PID, AgentID: f.Owner.Session,
		Reason: f.Reason, AcquiredTS: app.UTC(f.At), TTLSec: app.Seconds(f.TTL), AgeSec: app.Age(now, f.At), Remaining: app.Remaining(now, f.ExpiresAt),
	}
	v.ExpiresAt = app.UTC(f.ExpiresAt)
	return v
}

// viewQueue makes of the queue what is shown of it.
func viewQueue(b *app.Backend, s lokt.Snapshot) []waiterJSON {
	var queue []waiterJSON
	for i, w := range waiting(s) {
		v := waiterJSON{
			Position: i + 1, LockID: b.Shown(w.LeaseID), Owner: w.Owner.ID, Host: w.Owner.Host, PID: w.Owner.Process.PID,
			AgentID: w.Owner.Session, Kind: w.Kind(), Priority: w.Priority, Limit: limitJSON(w.Limit),
			Since: app.UTC(w.Since), AgeSec: app.Age(s.Now, w.Since),
		}
		if s.Away(w) {
			v.Away, v.Until, v.Leaves = true, app.UTC(w.Until), app.Remaining(s.Now, w.Until)
		}
		queue = append(queue, v)
	}
	return queue
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

// limitJSON returns the number of holders that a claim shares with as JSON tells it: absent for one, -1 for any number.
func limitJSON(limit int) int {
	switch {
	case limit <= lokt.Exclusive:
		return 0
	case limit == lokt.Shared:
		return -1
	}
	return limit
}
