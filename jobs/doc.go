// Package jobs leases jobs to workers, within a capacity that they share.
//
// A [Spec] is submitted and becomes a [Job], which waits in a queue. A worker's [Request] is answered with a
// [Lease] on the first job in order that the worker may take and that fits; the lease holds units of the
// capacity until the job is completed or failed, the lease is revoked, or the worker's heartbeats stop. Each
// lease on a job is one [Attempt].
//
// It has the shape of package lokt: rules decide, as pure functions of what is known and what is asked; a
// [Store] remembers; a [Service] answers. Package engine has the rules, package manager is the service that runs
// them over a store, and package worker asks a service for jobs and does them. What a service has answered
// survives the death of the process.
//
// What is promised: at every moment the units leased are the sum over the active leases; no two active leases
// are on the same job; the fencing tokens of a job's leases rise. What is not: that a worker whose lease expired
// has stopped. Only who checks the token of each write, and refuses older ones, is safe from that.
package jobs
