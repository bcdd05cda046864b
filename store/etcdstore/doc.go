// Package etcdstore keeps locks in etcd, for any number of processes on any number of hosts that must not depend on one
// machine. It is a lokt.Store and a lokt.EventLog.
//
// # What is promised
//
// Every change of a lock is one etcd transaction, guarded by the revisions of what it was decided on; every read is
// linearizable, so a member that lost touch with the others answers nothing rather than something old. A change whose
// answer was lost is looked for before it is tried again, so it takes effect at most once; if it cannot be found out
// what became of it, Update says so with an error that wraps lokt.ErrUnavailable.
//
// The life of a hold, and of a freeze, hangs on an etcd lease: while etcd has the lease the hold lives, whatever any clock
// says. Leases count in whole seconds and have a minimum (with etcd's defaults 2 s), so a TTL is
// rounded up; and they end some time, usually less than a second, after they are due, later by up to a TTL if etcd's leader
// changed.
//
// They may end early, too. A leader that stood still, and was replaced, goes on for a moment as if it led: it ends leases that were
// renewed meanwhile, and says of others that it renewed them, which its successor does not know (etcd 3.7 asks for its
// leadership only a member that has not been running for three ticks; see etcd's issue 15247). So a hold whose lease is gone is
// over only when a second clock says so, too: the lock's own, which advances only while somebody can prove that time has passed.
// See the comment of state.now. It needs clocks of about the same rate, not of the same reading, and errs on the late side. Whoever
// hears of a lock for the first time after its holder died may have to wait for a TTL more, but not for longer than two minutes after the hold's
// end by the wall clock.
//
// All shorter times (how long a waiter that stopped asking keeps its place, how long a grant waits to be taken up, the grace of a
// preemption) are judged on the lock's own clock alone.
//
// Fencing tokens rise over release, expiry, force, restarts of clients and members, changes of the leader and compaction, because the
// last one is stored with the lock and stays when the lock is free. If keys were deleted, or etcd was restored from a
// snapshot older than a minute, they go on from the number of seconds since 1970, times 2^20, as file stores do:
// they rise if the wall clock is not behind the last grant.
//
// # Keys
//
// Below a prefix (/lokt unless the URL says otherwise):
//
//	lock/NAME         a lock that is held, awaited or frozen, as JSON
//	free/NAME         the last token of one that is not
//	hold/NAME,LEASE   attached to the etcd lease on which the hold's life depends
//	thaw/NAME         the same for a freeze with a TTL
//	event/…           the newest events, one key for those of one change
//
// Whoever can write these keys can take any lock; lease IDs can be read in them. Give lokt a user of its own with rights for
// the prefix only.
package etcdstore
