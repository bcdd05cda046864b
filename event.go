package lokt

import "time"

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
)

// Keys of an event's Extra.
const (
	ExtraReason    = "reason"    // why a hold ended without its owner's doing: one of the Reason constants
	ExtraOutcome   = "outcome"   // of a wait: started, granted, timeout, cancelled, died, deadlock
	ExtraDisplaced = "displaced" // who lost the lock, as owner@host
	ExtraLeaseWas  = "lease_was" // the lease that was displaced
	ExtraBy        = "by"        // who forced it
	ExtraWaited    = "waited_ms" // how long a claim waited, in milliseconds
	ExtraHeld      = "held_ms"   // how long a hold that was given back, or taken away, had lasted, in milliseconds
	ExtraCleaned   = "cleaned"   // of a pruned hold: it was removed on request, not by a claim
)

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
	Expires time.Time         `json:"expires_at,omitzero"` // of a hold that has just been granted or renewed: when it ends if nothing else happens; zero if never
	Extra   map[string]string `json:"extra,omitempty"`
}
