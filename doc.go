// Package lokt provides locks for programs, and for people, that share what only one may touch at a time: locks that
// are kept alive by heartbeats, pass on when their holder dies, and are handed over in order.
//
// The same locks can live in memory, in files of one host (and then the command lokt works on them too), in a database,
// or behind a server. What they mean does not depend on where they live.
//
// # Six nouns
//
// A [Claim] asks for a lock. A granted claim is a [Holder] of it. A [Lock] is everything remembered about one name:
// holders, queue, freeze, and the last fencing token. A [Lease] keeps a holder alive inside a program. A [Store]
// remembers locks. A [Service] answers claims: a [Manager] by the rules of this package over a store, a client of a
// server from afar. Most programs see a [Locker], which makes claims for one owner, and the leases that it gives out.
//
// # How to start
//
// For the processes of one host, with files:
//
//	locker, err := easy.Open("/var/lib/app/locks") // when the process dies, its locks are free at once
//	err = locker.Do(ctx, "import", lokt.Options{Wait: time.Minute}, func(ctx context.Context, token uint64) error {
//		return importEverything(ctx) // and stop when ctx ends
//	})
//
// Within one process, and in tests, memstore.New() is the store. [Locker.TryAcquire] does not wait. [Locker.Acquire]
// returns a lease to keep and to release. [Locker.AcquireAll] takes several locks or none. [Locker.Lead] runs a
// function whenever this owner leads. Locks that are shared, or of which there are several, are the same thing with
// [Options].Limit: [Shared] for readers, n for a pool of n, nothing for one at a time.
//
// # Owners and re-entry
//
// An [Owner] does not block itself: if it holds a lock and asks for it again, it gets a second hold, with a lease of
// its own, and the lock is free when the last hold is released. A Locker without an owner ID claims under the runner ID
// of its process (see [RunnerID]), so what the goroutines of a program acquire re-enters. [Locker.Do] and [Locker.Lead]
// exclude each other all the same, and so do acquisitions with [Options].Strict.
//
// # Waiting
//
// With [Options].Wait a claim that cannot be granted goes into the lock's queue. The release that makes room grants the
// lock to the first in the queue, by priority and then by arrival, and nobody passes by who does not hold the lock
// already. A waiter that dies falls out. If claims wait for each other in a circle, one of them gives way with
// [ErrDeadlock], provided they say what they hold already: acquire the inner lock with the context of the outer lease.
//
// A claim with [Options].Preempt asks holders of lower priority to leave. They are told through [Lease.Yield], and their lease ends after
// the grace that the claim gives; who cannot be told keeps the lock for as long as it was told before.
//
// # Losing a lock
//
// A lock is stale when it has not been renewed for more than its time to live, and then belongs to whoever asks next.
// Heartbeats renew it in time, unless the program is stopped, the service is out of reach, or an operator ends the
// hold. [Lease.Context] ends before anybody else may enter, with a cause that wraps [ErrLost]. Programs pass this
// context to what they do under the lock, and look at it before each step that cannot be undone.
//
// A renewal that fails is not a loss. The lease is then [InDoubt], and renewal is tried again soon, until the time is
// up. How long a lease can be relied on is counted from before the request that was granted was sent: the time to live,
// less 1 % of it for clocks that run at different speeds, less [Options].Margin.
//
// # Fencing tokens
//
// A program can be stopped between looking at its lease and writing, and be continued an hour later. It will then
// write, though another holds the lock, and no lock can prevent that. What is written to can: every grant carries a
// token ([Lease.Token]) that is higher than those of all earlier grants of that lock. A resource that remembers the
// highest token it has seen, and refuses lower ones, is safe from holders that come late:
//
//	UPDATE accounts SET balance = $1, token = $2 WHERE id = $3 AND token <= $2
//
// Renewals do not change the token. Tokens of different locks are not comparable. A lease without a time to live
// ([NoTTL]) is not renewed but looked at, every [Options].Interval, to notice an end by force.
//
// # What is promised
//
// At no instant are there more holders than all of them put up with, and a hold is not passed on before more than its
// time to live has gone by, on the store's clock, since the last renewal that it acknowledged. If the clocks of program
// and store run at speeds within 1 % of each other, nobody else holds the lock while the context of a lease is live. If
// the resource checks tokens, nothing that an old holder does arrives after something that a newer one did.
//
// Not promised: that a program that does not look at its lease stops in time; that a hold which is ended by force ends
// after its holder knows; fairness to those who do not wait. docs/semantics.md has all promises, with their numbers.
//
// # Times
//
// All durations are [time.Duration]. Leases live for [DefaultTTL], 5 s, and are renewed every [DefaultInterval], 1 s,
// unless Options say otherwise. Points in time are the store's, and mean something only compared with the store's
// clock: a [Snapshot] has both. Within a program, deadlines are measured by a monotonic clock, so that setting the wall
// clock changes nothing. Go's stands still while the machine sleeps, as the time of lock files on this host does. Leases of a server go by a
// clock that counts the sleep: see [Elapser].
//
// # Errors
//
// Errors are told apart with [errors.Is] and the sentinels of this package. [ErrHeld] and [ErrFrozen] come as a
// [*BlockedError], which says who is in the way; [ErrNotOwner] and [ErrNotFound] as a [*GoneError] or [*NotOwnerError].
// An acquisition that fails leaves nothing behind. If the service could not even be told so, what it may have granted
// ends with its time to live, or with the process.
//
// # Writing a store
//
// A [Store] reports facts, and decides nothing: it hands the lock, its own clock, and what it knows about dead holders
// to a function, and keeps what that returns, as one atomic step. The comments of the interface are the specification,
// memstore is the reference, and lokttest.TestStore checks an implementation; lokttest.TestService does the same for a
// [Service].
package lokt
