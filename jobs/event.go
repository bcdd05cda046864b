package jobs

import "time"

// EventType names what happened to a job.
type EventType string

// What can happen to a job. Denied requests and heartbeats other than the first are no events: idle workers grow
// nothing.
const (
	EventSubmit  EventType = "submitted"
	EventGrant   EventType = "granted"
	EventRunning EventType = "running"
	// a grant was taken back, because its worker had gone before it could be told
	EventReturn        EventType = "returned"
	EventRetry         EventType = "retried" // an attempt failed or expired, and there will be another
	EventComplete      EventType = "completed"
	EventFail          EventType = "failed"
	EventExpire        EventType = "expired"
	EventSkip          EventType = "skipped" // a tick of a schedule, because the job of the one before has not ended
	EventCancelRequest EventType = "cancel_requested"
	EventCancel        EventType = "cancelled"
	EventRevoke        EventType = "revoked"
	EventFreeze        EventType = "frozen"
	EventUnfreeze      EventType = "unfrozen"
	EventClock         EventType = "clock_jumped" // of no job: the wall clock was set, which moves no deadline
)

// Event is something that happened to a job: rules produce events together with the change they belong to, and stores
// keep both in one step.
type Event struct {
	Seq      uint64    `json:"seq"` // rises by one from event to event
	Time     time.Time `json:"time"`
	Type     EventType `json:"type"`
	JobID    string    `json:"job_id,omitzero"`
	LeaseID  string    `json:"lease_id,omitzero"`
	WorkerID string    `json:"worker_id,omitzero"`
	Attempt  int       `json:"attempt,omitzero"`
	Token    uint64    `json:"token,omitzero"`
	Code     string    `json:"code,omitzero"`   // one of the Code constants; of a freeze, its scope
	Reason   string    `json:"reason,omitzero"` // for people, as given

	// Took is how long the job could have run when it was granted, or how long the lease lasted that ended. It is for
	// who counts, and not kept.
	Took time.Duration `json:"-"`
}
