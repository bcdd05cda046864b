// Package etcdstore keeps locks in etcd, for any number of processes on any number of hosts that must not depend on one
// machine. It is a lokt.Store and a lokt.EventLog.
//
// # What is promised
//
// Every change of a lock is one etcd transaction, guarded by the revisions of what it was decided on. Every read is
// linearizable: a member that lost touch with the others answers nothing rather than something old. A change whose
// answer was lost is looked for before it is tried again, so it takes effect at most once. If it cannot be found out
// what became of it, Update says so with an error that wraps lokt.ErrUnavailable.
//
// Time is measured by a clock that belongs to the lock. It advances only while somebody can prove that time has passed,
// so nothing ends early, whatever the clocks of hosts show and whatever etcd does to its leaders and leases: see
// state.now. It needs clocks of about the same rate. A process that hears of a lock for the first time measures from
// then on, and may wait for a TTL more.
//
// Fencing tokens rise over release, expiry, force, restarts of clients and members, changes of the leader and
// compaction: the last one is stored with the lock and stays when the lock is free. If keys were deleted, or etcd was
// restored from a snapshot older than a minute, they go on from the number of seconds since 1970, times 2^20, as file
// stores do: they rise if the wall clock is not behind the last grant.
//
// # Keys
//
// Below a prefix (/lokt unless the URL says otherwise):
//
//	lock/NAME   a lock that is held, awaited or frozen, as JSON
//	free/NAME   the last token of one that is not
//	event/…     the newest events, one key for those of one change
//
// Whoever can write these keys can take any lock; lease IDs can be read in them. Give lokt a user of its own with
// rights for the prefix only.
package etcdstore
