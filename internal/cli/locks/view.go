package locks

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/machine"
	"github.com/lokt-dev/lokt/internal/process"
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
	Paths      []string          `json:"paths,omitempty"` // patterns of those that it is about
	Messages   []lokt.Message    `json:"messages,omitempty"`
	Slot       int               `json:"slot,omitzero"`
	Weight     lokt.Weight       `json:"weight,omitzero"`
	HeldBack   bool              `json:"held_back,omitzero"` // by pressure: its command has not started
	Note       string            `json:"note,omitzero"`      // why a hold goes on whose process is dead, and how to end it
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
	if c.Limit <= lokt.Exclusive {
		p.Limit = 0
	} else if c.Limit == lokt.Shared {
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
		Renewals: h.Renewals, MaxHoldSec: app.Seconds(h.MaxHold), Metadata: h.Metadata, Paths: h.Paths, Messages: h.Messages,
		Slot: h.Slot, Weight: h.Weight,
	}
	if p := h.Process; p != nil {
		v.PIDStart, v.ChildPID, v.HeldBack = p.Start, p.Child, machine.HeldBack(h)
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
	for i, h := range s.Lock.Holders {
		one := viewHold(b, s, h)
		v.Holders = append(v.Holders, one)
		if i == 0 || one.State == StateHeld && v.State != StateHeld {
			v.hold = one
		}
	}
	if len(v.Holders) == 1 {
		v.Holders = nil
	}
	if f := s.Frozen(); f != nil {
		v.Freeze = viewFreeze(b, f, s.Now)
	}
	switch {
	case s.Lock.Corrupt != "":
		v.State = stateCorrupt
	case len(s.Lock.Holders) > 0:
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
func away(s lokt.Snapshot, queue []*lokt.Waiter) []*lokt.Waiter {
	return slices.DeleteFunc(slices.Clone(queue), func(w *lokt.Waiter) bool { return !s.Away(w) })
}

// waiting returns the claims that still have a place in the queue, and whose claimant is not known to be dead.
func waiting(s lokt.Snapshot) []*lokt.Waiter {
	return slices.DeleteFunc(slices.Clone(s.Lock.Queue), func(w *lokt.Waiter) bool {
		_, in := s.Lock.Holder(w.LeaseID)
		return in || s.Dead[w.LeaseID] && w.Ticket == 0 || s.Now.After(w.Until)
	})
}

// Values of pid_status.
const (
	pidAlive    = "alive"
	pidDead     = "dead"
	pidUnknown  = "unknown"
	pidUnbound  = "unbound"  // the hold does not depend on a process
	pidOrphaned = "orphaned" // the process is dead, and something that it started goes on and keeps the hold
)

// pidStatus tells whether the process that the hold depends on lives.
func pidStatus(b *app.Backend, h lokt.Holder) string {
	p := h.Owner.Process
	switch host, err := os.Hostname(); {
	case b.Store == nil && h.Strict: // the server goes by heartbeats alone, but the guard may be one of this host
		if err != nil || h.Owner.Host != host || p.Boot == "" || p.Start == 0 {
			return pidUnknown
		}
		return process.Check(p, true).String()
	case h.Process == nil:
		return pidUnbound
	case b.Store == nil:
		return pidUnknown
	}
	switch alive, known := b.Store.Alive(h); {
	case !known:
		return pidUnknown
	case alive && guardState(b, h) == process.Dead:
		return pidOrphaned
	case alive:
		return pidAlive
	}
	return pidDead
}

// guardState tells whether the process of a hold lives, whatever has become of the command that it ran.
func guardState(b *app.Backend, h lokt.Holder) process.State {
	p := *h.Process
	p.Child = 0
	return process.Check(p, h.Owner.Host == b.Store.Host())
}

// orphanText says what keeps the hold of a process that is dead, and how to end it.
func orphanText(b *app.Backend, h lokt.Holder) string {
	p := lokt.Process{PID: h.Process.Child, Start: h.Process.ChildStart, Boot: h.Process.Boot, Namespace: h.Process.Namespace}
	if p.PID != 0 && process.Check(p, h.Owner.Host == b.Store.Host()) != process.Dead {
		return fmt.Sprintf("dead, but its command goes on with pid %d and keeps the lock; to end it: kill %[1]d", p.PID)
	}
	file, _, _ := strings.Cut(h.Process.Liveness, ":")
	return "dead, but something it started still runs: fuser -v " + filepath.Join(b.Store.Root(), "live", filepath.Base(file))
}

// blocked is how a claim that was not granted is told to programs. All holder fields are about the first holder in the way.
type blocked struct {
	Status           string    `json:"status"` // "blocked"
	Name             string    `json:"name"`
	Reason           string    `json:"reason"` // held, frozen or queued
	HolderOwner      string    `json:"holder_owner,omitzero"`
	HolderHost       string    `json:"holder_host,omitzero"`
	HolderPID        int       `json:"holder_pid,omitzero"`
	HolderAgentID    string    `json:"holder_agent_id,omitzero"`
	HolderKind       string    `json:"holder_kind,omitzero"`
	HolderAgeSec     int64     `json:"holder_age_sec"`
	HolderTTLSec     int64     `json:"holder_ttl_sec,omitzero"`
	HolderRemaining  *int64    `json:"holder_remaining_sec,omitzero"`
	HolderExpired    bool      `json:"holder_expired"`
	HolderPIDStatus  string    `json:"holder_pid_status,omitzero"`
	HolderAcquiredTS time.Time `json:"holder_acquired_ts,omitzero"`
	HolderExpiresAt  time.Time `json:"holder_expires_at,omitzero"`
	ExpiresAt        time.Time `json:"expires_at,omitzero"`
	Holders          int       `json:"holders"`
	Ahead            int       `json:"ahead"` // waiting claims that come first
	FreezeOwner      string    `json:"freeze_owner,omitzero"`
	FreezeReason     string    `json:"freeze_reason,omitzero"`
	TimedOut         bool      `json:"timed_out,omitzero"`
	Unsure           bool      `json:"unsure,omitzero"` // it may be granted yet
	Ousted           string    `json:"ousted,omitzero"` // whose newer claim has sent it away
	Message          string    `json:"message"`
	Ticket           string    `json:"ticket,omitzero"` // with which the wait can go on
	GoOn             string    `json:"go_on,omitzero"`  // the command that does
}

func viewBlocked(b *app.Backend, e *lokt.BlockedError, message string) blocked {
	v := blocked{
		Status: "blocked", Name: e.Name, Reason: "queued", Holders: len(e.Holders), Ahead: len(e.Ahead),
		TimedOut: e.TimedOut > 0, Unsure: e.Unsure, Ousted: e.Ousted, Message: message,
	}
	if len(e.Holders) > 0 {
		h := viewHold(b, lokt.Snapshot{Now: e.Now}, e.Holders[0])
		v.Reason, v.HolderOwner, v.HolderHost, v.HolderPID, v.HolderAgentID, v.HolderKind = StateHeld, h.Owner, h.Host, h.PID, h.AgentID, h.Kind
		v.HolderAgeSec, v.HolderTTLSec, v.HolderRemaining, v.HolderExpired = h.AgeSec, h.TTLSec, h.Remaining, h.Expired
		v.HolderPIDStatus, v.HolderAcquiredTS, v.HolderExpiresAt, v.ExpiresAt = h.PIDStatus, h.AcquiredTS, h.ExpiresAt, h.ExpiresAt
	}
	if f := e.Freeze; f != nil {
		v.Reason, v.FreezeOwner, v.FreezeReason, v.ExpiresAt = StateFrozen, f.Owner.ID, f.Reason, app.UTC(f.ExpiresAt)
	}
	return v
}

// blockedText says what is in the way.
func blockedText(b *app.Backend, e *lokt.BlockedError) string {
	switch {
	case len(e.Cycle) > 0:
		return fmt.Sprintf("%q would never be free: %s; take these locks in one order, or together: lokt guard A B -- …", e.Name, strings.Join(e.Cycle, " → "))
	case e.Ousted != "":
		return fmt.Sprintf("a newer claim of %s has taken the place for %q", e.Ousted, e.Name)
	case e.Freeze != nil && e.Freeze.Damaged != "":
		return fmt.Sprintf("%q is frozen by a record that cannot be read (%s); remove it with: lokt unfreeze %s --force", e.Name, e.Freeze.Damaged, e.Name)
	case e.Freeze != nil:
		return fmt.Sprintf("%q is frozen by %s", e.Name, freezeText(e.Freeze, e.Now))
	case len(e.Holders) > 0:
		text := fmt.Sprintf("%q is held by %s", e.Name, holderText(b, e.Holders[0], e.Now))
		if n := len(e.Holders) - 1; n > 0 {
			text += fmt.Sprintf(", and by %d more", n)
		}
		return text
	case len(e.Ahead) > 0:
		return fmt.Sprintf("%q is next for %s, who waits already", e.Name, e.Ahead[0].Owner)
	}
	return fmt.Sprintf("%q is not available", e.Name)
}

// holderText describes a holder in half a line.
func holderText(b *app.Backend, h lokt.Holder, now time.Time) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if h.Owner.Session != "" {
		add("agent %s", h.Owner.Session)
	}
	switch p, status := pid(h.Claim), pidStatus(b, h); {
	case p == 0:
	case status == pidUnbound || status == pidUnknown && b.Store == nil && !h.Strict:
		add("pid %d", p)
	case status == pidUnknown && b.Store == nil: // nothing is known of it here
		add("pid %d there", p)
	case status == pidOrphaned:
		add("pid %d %s", p, orphanText(b, h))
	default:
		add("pid %d %s", p, status)
	}
	parts = append(parts, machine.Describe(h)...)
	if len(h.Paths) > 0 {
		add("paths %s", app.OneLine(strings.Join(h.Paths, " ")))
	}
	kind := h.Kind()
	if command := h.Metadata[metaCommand]; isPlain(command) {
		kind += " of " + command
	}
	if !h.HeldSince.IsZero() { // as in records made by hand
		kind += " for " + app.Short(now.Sub(h.HeldSince))
	}
	parts = append(parts, kind)
	switch {
	case !h.Pending.IsZero():
		add("granted in its turn after it had waited %s, and passed on in %s unless it is taken up", app.Short(h.Wait), app.Short(h.Pending.Sub(now)))
	case h.ExpiresAt.IsZero() && h.Strict:
		add("until its command ends")
	case h.ExpiresAt.IsZero() && h.Process != nil:
		add("until that process ends")
	case h.ExpiresAt.IsZero():
		add("until it is unlocked")
	case now.After(h.ExpiresAt):
		add("expired %s ago", app.Short(now.Sub(h.ExpiresAt)))
	case h.Strict && h.Renewals > 0:
		add("renewed %s ago, expires in %s", app.Short(now.Sub(h.AcquiredAt)), app.Short(h.ExpiresAt.Sub(now)))
	default:
		add("expires in %s", app.Short(h.ExpiresAt.Sub(now)))
	}
	return h.Owner.String() + " (" + strings.Join(parts, ", ") + ")"
}

// freezeText describes a freeze in half a line.
func freezeText(f *lokt.Freeze, now time.Time) string {
	text := f.Owner.String()
	if f.Owner.Session != "" {
		text += " (agent " + f.Owner.Session + ")"
	}
	if f.Reason != "" {
		text += ": " + app.OneLine(f.Reason)
	}
	if !f.ExpiresAt.IsZero() {
		text += ", for another " + app.Short(f.ExpiresAt.Sub(now))
	}
	return text
}

// table returns rows about locks for people: one for each hold, or for the lock if nobody holds it.
func table(views []lockView) [][]string {
	rows := [][]string{{"NAME", "STATE", "KIND", "SHARE", "OWNER", "AGENT", "PID", "AGE", "TTL", "EXPIRES", "WAITING", "FREEZE"}}
	for i := range views {
		v := &views[i]
		holds := v.Holders
		if holds == nil {
			holds = []hold{v.hold}
		}
		for i := range holds {
			h := &holds[i]
			row := make([]string, len(rows[0]))
			row[0], row[1] = v.Name, stateText(h.State)
			if h.Owner != "" {
				row[2], row[3], row[4], row[5] = h.Kind, shareText(h), lokt.Owner{ID: h.Owner, Host: h.Host}.String(), h.AgentID
				row[6], row[7] = app.PID(h.PID), secondsText(h.AgeSec)
			}
			if h.TTLSec > 0 {
				row[8] = secondsText(h.TTLSec)
			}
			switch {
			case h.Expired:
				row[9] = "expired"
			case h.Remaining != nil:
				row[9] = "in " + secondsText(*h.Remaining)
			}
			if i == 0 {
				row[10], row[11] = strings.TrimSuffix(fmt.Sprintf("%d (%d away)", v.Waiters, v.Away), " (0 away)"), v.Freeze.short()
				if v.Waiters == 0 {
					row[10] = ""
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// stateText makes what is nobody's any more stand out.
func stateText(state string) string {
	switch state {
	case stateFree, StateHeld, StateFrozen, stateQueued, "":
		return state
	case stateCorrupt, stateUnreadable:
		return strings.ToUpper(state)
	}
	return "STALE(" + state + ")"
}

func shareText(h *hold) string {
	if text := machine.WeightText(h.Weight); text != "" {
		return text
	}
	switch h.Limit {
	case 0:
		return ""
	case -1:
		return "shared"
	}
	return "slots=" + strconv.Itoa(h.Limit)
}

func secondsText(n int64) string { return app.Short(time.Duration(n) * time.Second) }

func (f *freeze) short() string {
	switch {
	case f == nil:
		return ""
	case f.Damaged != "":
		return "damaged"
	case f.Remaining != nil:
		return "by " + f.Owner + ", for " + secondsText(*f.Remaining)
	}
	return "by " + f.Owner
}

// awayUntil says what becomes of a waiter that is away.
func awayUntil(leaves int64) string {
	return fmt.Sprintf("away: passed over until it asks again, out of the queue in %s", secondsText(leaves))
}
