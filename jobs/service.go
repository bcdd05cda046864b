package jobs

import "context"

// Service answers those who submit jobs, workers, and those who watch. A Manager does so by the rules over a Store; a
// client of a server does the same from afar. Implementations pass the suite jobstest.TestService.
//
// Every method returns an *InvalidError, with the locations of what is wrong, for a request that breaks a limit of this
// package, before it looks at anything else.
type Service interface {
	Submitter
	Leaser
	Reader
	Operator
}

// Submitter takes jobs.
type Submitter interface {
	// Submit queues all the specs or none, and returns a receipt for each in order. A spec with an idempotency key that
	// was used for an equal one, within KeyLife of that job's end, gives that job again; for a different one it is
	// ErrConflict. The location of a problem begins with "jobs" and the index of the spec.
	Submit(ctx context.Context, specs []Spec) ([]Receipt, error)

	// Cancel ends a queued job, and asks the worker of a leased one to stop: its next heartbeat is told, and it ends as
	// cancelled unless it is completed. It returns the job's state, also for one that ended earlier, or
	// ErrJobNotFound.
	Cancel(ctx context.Context, jobID, reason string) (State, error)
}

// OwnerPrefix begins the owner of a lock that is held for a job; the job's ID follows.
const OwnerPrefix = "job:"

// Leaser serves workers.
type Leaser interface {
	// Request grants the first job in order that the worker may take and that fits. Otherwise it waits for one
	// if the request says so, and then is denied, which is no error. If ctx ends while it waits, nothing is granted
	// and the error is the context's. A grant that came first is taken back, as if it had not been made, unless
	// the request has a request ID: then it stands, and asking again under the same one gets it.
	Request(ctx context.Context, a Request) (Grant, error)

	// Heartbeat extends the lease to a full TTL and grace from now, never back. It is ErrLeaseNotFound for a
	// lease that is not active, for whatever reason, and ErrWorkerMismatch for another worker's. One that waits
	// is applied at once, and answered when the job is to be stopped, the lease has ended, or the time is up.
	Heartbeat(ctx context.Context, b Heartbeat) (HeartbeatAnswer, error)

	// HeartbeatAll extends many leases of one worker, and answers for each.
	HeartbeatAll(ctx context.Context, workerID string, leaseIDs []string) ([]LeaseAnswer, error)

	// Complete ends a lease with its job's result, and reports whether it did: for a lease that is not active it
	// changes nothing and returns false, so it may be repeated. It is ErrWorkerMismatch for an active lease of
	// another worker.
	Complete(ctx context.Context, c Completion) (applied bool, err error)

	// Report keeps what a worker tells about its job, and does not extend the lease. Errors are those of Heartbeat.
	Report(ctx context.Context, p Progress) error
}

// Reader serves those who watch. What they see has been stored: it outlives the service.
type Reader interface {
	// Get returns a job with its attempts, or ErrJobNotFound.
	Get(ctx context.Context, jobID string) (View, error)

	// Output returns the pieces of a job's output that end beyond an offset, or ErrJobNotFound.
	Output(ctx context.Context, jobID string, from int64) (Output, error)

	// List returns jobs, newest change first.
	List(ctx context.Context, f Filter) (Page, error)

	// CountEnded counts the jobs that ended, up to MaxCount, whose state and type, unless they are empty, are these.
	CountEnded(ctx context.Context, state State, jobType string) (int, error)

	Status(ctx context.Context) (Snapshot, error)
	Workers(ctx context.Context) ([]WorkerStatus, error) // in order of ID

	// Stats sums up the jobs that ended within so many days.
	Stats(ctx context.Context, days int) (Stats, error)

	// Decisions counts events within so many days.
	Decisions(ctx context.Context, days int) (Decisions, error)
}

// Operator serves those who run the service.
type Operator interface {
	// Revoke ends a lease, and fails its job with the reason, without another attempt. It is ErrLeaseNotFound
	// for a lease that is not active.
	Revoke(ctx context.Context, leaseID, reason string) error

	// Freeze keeps jobs of a type, or of every type if it is empty, from being handed out; Unfreeze ends that. Active
	// leases go on.
	Freeze(ctx context.Context, jobType string) error
	Unfreeze(ctx context.Context, jobType string) error

	// Cleanup forgets jobs that ended more than so many days ago, and returns how many.
	Cleanup(ctx context.Context, days int) (deleted int, err error)
}
