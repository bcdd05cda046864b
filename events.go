package lokt

import (
	"context"
	"slices"
	"strings"
	"time"
)

// EventType names what happened to a lock.
type EventType string

// What can happen to a lock. The names are those of the audit log.
const (
	EventAcquire      EventType = "acquire"
	EventDeny         EventType = "deny"
	EventFreezeDeny   EventType = "freeze-deny"
	EventRelease      EventType = "release"
	EventRenew        EventType = "renew"
	EventRenewFail    EventType = "renew-fail"
	EventLost         EventType = "lost"
	EventTakeover     EventType = "takeover"
	EventAutoPrune    EventType = "auto-prune"
	EventForceBreak   EventType = "force-break"
	EventStaleBreak   EventType = "stale-break"
	EventCorruptBreak EventType = "corrupt-break"
	EventFreeze       EventType = "freeze"
	EventUnfreeze     EventType = "unfreeze"
	EventForceThaw    EventType = "force-unfreeze"
	EventWait         EventType = "wait"
	EventPreempt      EventType = "preempt"
	EventMismatch     EventType = "release-mismatch" // somebody tried to give back what is not theirs, or not any more
	EventAsk          EventType = "ask"
	EventAnswer       EventType = "answer"
	EventPass         EventType = "pass"
)

// Keys of an event's Extra.
const (
	ExtraReason    = "reason"    // why a hold ended without its owner's doing: one of the Reason constants
	ExtraOutcome   = "outcome"   // of a wait: started, granted, timeout, cancelled, died, deadlock, ousted
	ExtraDisplaced = "displaced" // who lost the lock, as owner@host
	ExtraLeaseWas  = "lease_was" // the lease that was displaced
	ExtraBy        = "by"        // who forced it, asked or passed it on
	ExtraTo        = "to"        // whom a hold was passed to
	ExtraText      = "text"      // of a message
	ExtraWaited    = "waited_ms" // how long a claim waited, in milliseconds
	ExtraHeld      = "held_ms"   // how long a hold that was given back, or taken away, had lasted, in milliseconds
	ExtraCleaned   = "cleaned"   // of a pruned hold: it was removed on request, not by a claim
	ExtraTerms     = "terms"     // of a claim that shares, is a guard's, or has a priority: as TermsForm has it
	ExtraHeard     = "heard"     // of what a Locker tells its observer and the store has told before
	ExtraPassed    = "passed"    // of a grant: PublicIDs of the waiters that were away and came before
)

// TermsForm is how ExtraTerms tells programs the limit, whether the claim is strict, its priority, what it takes, of how much, and whether the
// owner is one in every session.
const TermsForm = "%d %t %d %d/%d %t"

// Event is something that happened to a lock: rules produce events together with the change they belong to, and
// stores keep both in one step.
type Event struct {
	Time    time.Time         `json:"time"`
	Type    EventType         `json:"type"`
	Name    string            `json:"name,omitzero"`
	LeaseID string            `json:"lease_id,omitzero"`
	ID      string            `json:"id,omitzero"` // stands for the lease ID where that is not told: see PublicID
	Owner   Owner             `json:"owner"`       // whose claim or hold it is about; for breaks and freezes, who did it
	Token   uint64            `json:"token,omitzero"`
	TTL     time.Duration     `json:"ttl_ms,omitzero"`
	Expires time.Time         `json:"expires_at,omitzero"` // of a hold just granted or renewed: when it ends; zero if never
	Extra   map[string]string `json:"extra,omitempty"`
}

// EventLog is implemented by stores that keep the events of their locks for reading: an audit log that outlives the
// change, and a stream for whoever follows along.
//
// Events are numbered in the order of the changes they belong to. Numbers rise; they need not be without gaps. The
// oldest events may be forgotten, by age or by number, as the store's options say.
type EventLog interface {
	// ReadEvents returns the events that the query lets through, oldest first. Errors are those of Store.
	ReadEvents(ctx context.Context, q EventQuery) (EventPage, error)

	// WaitEvents returns nil once there is an event with a higher number than after, and may return nil earlier:
	// callers read again. It returns the context's error when that ends.
	WaitEvents(ctx context.Context, after uint64) error
}

// MaxEvents is the most events that one page has.
const MaxEvents = 1000

// EventQuery says which events to read. Zero fields let everything through.
type EventQuery struct {
	After  uint64      `json:"after"`  // only events with a higher number
	Before uint64      `json:"before"` // only events with a lower number; 0 for no bound
	Name   string      `json:"name"`   // of this lock only
	Prefix string      `json:"prefix"` // of locks whose names begin so
	Owner  string      `json:"owner"`  // of the owner with this ID
	Types  []EventType `json:"type"`
	Since  time.Time   `json:"since"`  // not earlier
	Until  time.Time   `json:"until"`  // earlier
	Limit  int         `json:"limit"`  // at most so many, up to MaxEvents; 0 stands for MaxEvents
	Latest bool        `json:"latest"` // the last of those let through, up to the limit, instead of the first
}

// Matches reports whether the query lets the event through; Limit and Latest are left to who reads.
func (q EventQuery) Matches(e *LoggedEvent) bool {
	return e.Seq > q.After && (q.Before == 0 || e.Seq < q.Before) &&
		(q.Name == "" || e.Name == q.Name) && strings.HasPrefix(e.Name, q.Prefix) &&
		(q.Owner == "" || e.Owner.ID == q.Owner) &&
		(len(q.Types) == 0 || slices.Contains(q.Types, e.Type)) &&
		(q.Since.IsZero() || !e.Time.Before(q.Since)) && (q.Until.IsZero() || e.Time.Before(q.Until))
}

// LoggedEvent is an event and its number.
type LoggedEvent struct {
	Seq uint64 `json:"seq"`
	Event
}

// EventPage is what a query found. A reader who has seen events up to some number, and finds Oldest higher than the
// next, has missed what was forgotten.
type EventPage struct {
	Events []LoggedEvent `json:"events"`
	Oldest uint64        `json:"oldest"`        // number of the oldest event that is kept; 0 if there is none
	Newest uint64        `json:"newest"`        // number of the newest event there ever was; 0 if there was none
	More   bool          `json:"more,omitzero"` // the limit kept some out
}
