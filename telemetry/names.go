package telemetry

// Names of the counters: one series per lock, with the lock's name as attribute "name".
const (
	Acquired          = "lock.acquired"           // a claim was granted: at once, or from the queue
	Released          = "lock.released"           // a hold was given back
	HeartbeatRenewed  = "lock.heartbeat_renewed"  // a hold was renewed, or refreshed by its owner
	TakeoverDetected  = "lock.takeover_detected"  // a grant took the place of a stale hold
	StaleDetected     = "lock.stale_detected"     // a hold was found expired, dead, preempted or not taken up, and removed
	Contention        = "lock.contention"         // a claim failed because of others: refused, waited in vain, or in a deadlock
	ReleaseMismatch   = "lock.release_mismatch"   // somebody tried to give back what is not theirs, or not any more
	HeartbeatFailure  = "lock.heartbeat_failure"  // a renewal failed or was refused
	StaleCleaned      = "lock.stale_cleaned"      // a stale hold was removed on request, not by a claim
	LeaseLost         = "lock.lost"               // a lease of this process ended without its doing
	Queued            = "lock.queued"             // a claim could not be granted at once and began to wait
	Broken            = "lock.broken"             // a hold was ended by force
	CorruptDiscarded  = "lock.corrupt_discarded"  // a record that is none was replaced
	FreezeDenied      = "lock.freeze_denied"      // a claim was refused because the lock is frozen
	PreemptionStarted = "lock.preemption_started" // a holder was told to leave for a claim of higher priority
)

// Names of the other metrics.
const (
	HolderGauge  = "lock.holder"        // 1 for each holder, the owner's ID as attribute "holder"; more if it has several holds
	QueueLength  = "lock.queue_length"  // waiting claims
	HoldDuration = "lock.hold_duration" // histogram, in seconds: for how long what was given back had been held
	WaitDuration = "lock.wait_duration" // histogram, in seconds: for how long claims waited, attribute "outcome" says what for
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

// counters returns the names and descriptions of the counters.
func counters() []struct{ name, help string } {
	return []struct{ name, help string }{
		{Acquired, "Claims granted."},
		{Released, "Holds given back."},
		{HeartbeatRenewed, "Holds renewed."},
		{TakeoverDetected, "Grants that took the place of a stale hold."},
		{StaleDetected, "Stale holds found and removed."},
		{Contention, "Claims that failed because others were in the way."},
		{ReleaseMismatch, "Releases of what was not the caller's, or not any more."},
		{HeartbeatFailure, "Renewals that failed or were refused."},
		{StaleCleaned, "Stale holds removed on request."},
		{LeaseLost, "Leases of this process that ended without its doing."},
		{Queued, "Claims that had to wait."},
		{Broken, "Holds ended by force."},
		{CorruptDiscarded, "Records discarded because they were none."},
		{FreezeDenied, "Claims refused because the lock was frozen."},
		{PreemptionStarted, "Holders told to leave for a claim of higher priority."},
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
func outcomes() []string { return []string{"granted", "timeout", "cancelled", "died", "deadlock"} }

// bounds returns the upper bounds of the histograms' buckets, in seconds.
func bounds() []float64 {
	return []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600}
}
