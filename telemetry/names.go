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

// Overflow is the value of the attributes "name" and "holder" for those beyond the bounds. It is no valid name of a lock.
const Overflow = "(other)"

// counter is the index of a counter.
type counter int

const (
	acquired counter = iota
	released
	heartbeatRenewed
	takeoverDetected
	staleDetected
	contention
	releaseMismatch
	heartbeatFailure
	staleCleaned
	leaseLost
	queued
	broken
	corruptDiscarded
	freezeDenied
	preemptionStarted
	numCounters
)

// counters returns the names and descriptions of the counters, by index.
func counters() [numCounters]struct{ name, help string } {
	return [numCounters]struct{ name, help string }{
		acquired:          {Acquired, "Claims granted."},
		released:          {Released, "Holds given back."},
		heartbeatRenewed:  {HeartbeatRenewed, "Holds renewed."},
		takeoverDetected:  {TakeoverDetected, "Grants that took the place of a stale hold."},
		staleDetected:     {StaleDetected, "Stale holds found and removed."},
		contention:        {Contention, "Claims that failed because others were in the way."},
		releaseMismatch:   {ReleaseMismatch, "Releases of what was not the caller's, or not any more."},
		heartbeatFailure:  {HeartbeatFailure, "Renewals that failed or were refused."},
		staleCleaned:      {StaleCleaned, "Stale holds removed on request."},
		leaseLost:         {LeaseLost, "Leases of this process that ended without its doing."},
		queued:            {Queued, "Claims that had to wait."},
		broken:            {Broken, "Holds ended by force."},
		corruptDiscarded:  {CorruptDiscarded, "Records discarded because they were none."},
		freezeDenied:      {FreezeDenied, "Claims refused because the lock was frozen."},
		preemptionStarted: {PreemptionStarted, "Holders told to leave for a claim of higher priority."},
	}
}

// Descriptions of the other metrics.
const (
	holderHelp = "Holds per holder at this moment."
	queueHelp  = "Claims waiting at this moment."
	holdHelp   = "For how long holds that were given back had lasted."
	waitHelp   = "For how long claims waited, by outcome."
)

// outcome is the index of what became of a waiting claim.
type outcome int

const (
	granted outcome = iota
	timedOut
	cancelled
	died
	deadlock
	numOutcomes
)

// outcomes returns the names of the outcomes, which are those of lokt.EventWait, by index.
func outcomes() [numOutcomes]string {
	return [numOutcomes]string{granted: "granted", timedOut: "timeout", cancelled: "cancelled", died: "died", deadlock: "deadlock"}
}

// outcomeOf returns the index of an outcome, and whether there is such a one.
func outcomeOf(name string) (outcome, bool) {
	switch name {
	case "granted":
		return granted, true
	case "timeout":
		return timedOut, true
	case "cancelled":
		return cancelled, true
	case "died":
		return died, true
	case "deadlock":
		return deadlock, true
	}
	return 0, false
}

// bounds returns the upper bounds of the histograms' buckets, in seconds.
func bounds() []float64 {
	return []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600}
}
