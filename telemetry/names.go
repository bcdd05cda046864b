package telemetry

import "github.com/lokt-dev/lokt"

// Names of the counters: one series per lock, with the lock's name as attribute "name". counters says what they count.
const (
	Acquired          = "lock.acquired"
	Released          = "lock.released"
	HeartbeatRenewed  = "lock.heartbeat_renewed"
	TakeoverDetected  = "lock.takeover_detected"
	StaleDetected     = "lock.stale_detected"
	Contention        = "lock.contention"
	ReleaseMismatch   = "lock.release_mismatch"
	HeartbeatFailure  = "lock.heartbeat_failure"
	StaleCleaned      = "lock.stale_cleaned"
	LeaseLost         = "lock.lost"
	Queued            = "lock.queued"
	Broken            = "lock.broken"
	CorruptDiscarded  = "lock.corrupt_discarded"
	FreezeDenied      = "lock.freeze_denied"
	PreemptionStarted = "lock.preemption_started"
)

// Names of the other metrics.
const (
	HolderGauge  = "lock.holder"        // holds of each holder, the owner's ID as attribute "holder"
	QueueLength  = "lock.queue_length"  // waiting claims
	HoldDuration = "lock.hold_duration" // histogram, in seconds: for how long what was given back had been held
	WaitDuration = "lock.wait_duration" // histogram, in seconds: for how long claims waited, by "outcome"
)

// Keys of attributes.
const (
	attrName    = "name"
	attrHolder  = "holder"
	attrOutcome = "outcome"
)

// Overflow is the value of the attributes "name" and "holder" for those beyond the bounds. It is no valid name of a
// lock.
const Overflow = "(other)"

// counter is the name and description of a counter, and the type of events that it counts.
type counter struct {
	name, help string
	event      lokt.EventType
}

// counters returns all of them. Queued and Contention count events of waiting as well, and StaleCleaned what was found
// stale on request.
func counters() []counter {
	return []counter{
		{Acquired, "Claims granted.", lokt.EventAcquire},
		{Released, "Holds given back.", lokt.EventRelease},
		{HeartbeatRenewed, "Holds renewed.", lokt.EventRenew},
		{TakeoverDetected, "Grants that took the place of a stale hold.", lokt.EventTakeover},
		{StaleDetected, "Stale holds found and removed.", lokt.EventAutoPrune},
		{Contention, "Claims that failed because others were in the way.", lokt.EventDeny},
		{ReleaseMismatch, "Releases of what was not the caller's, or not any more.", lokt.EventMismatch},
		{HeartbeatFailure, "Renewals that failed or were refused.", lokt.EventRenewFail},
		{StaleCleaned, "Stale holds removed on request.", lokt.EventStaleBreak},
		{LeaseLost, "Leases of this process that ended without its doing.", lokt.EventLost},
		{Queued, "Claims that had to wait.", ""},
		{Broken, "Holds ended by force.", lokt.EventForceBreak},
		{CorruptDiscarded, "Records discarded because they were none.", lokt.EventCorruptBreak},
		{FreezeDenied, "Claims refused because the lock was frozen.", lokt.EventFreezeDeny},
		{PreemptionStarted, "Holders told to leave for a claim of higher priority.", lokt.EventPreempt},
	}
}

// Descriptions of the other metrics.
const (
	holderHelp = "Holds per holder at this moment."
	queueHelp  = "Claims waiting at this moment."
	holdHelp   = "For how long holds that were given back had lasted."
	waitHelp   = "For how long claims waited, by outcome."
)

// outcomes returns what a waiting claim may come to, as lokt.EventWait names it.
func outcomes() []string {
	return []string{"granted", "timeout", "cancelled", "died", "deadlock", "ousted"}
}

// bounds returns the upper bounds of the histograms' buckets, in seconds.
func bounds() []float64 {
	return []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600}
}
