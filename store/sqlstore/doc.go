// Package sqlstore keeps locks and jobs in a SQL database: a lokt.Store with its EventLog, and a jobs.Store, side by side
// in one file of SQLite, or in a database of PostgreSQL.
//
// # SQLite
//
// One process at a time has the file: a kernel lock on the file PATH.lock beside it sees to that. Concurrent updates of
// locks and of jobs share one transaction and one flush to the disk. The database is the truth; what is in memory is a
// copy of what was committed, and is read anew after any commit whose outcome is not known.
//
// Changes are flushed to the disk before they are acknowledged, except for those that only say that somebody is still there:
// renewals of holds, waiters that ask again, and refusals. Those survive the death of the process like everything else, but
// not the loss of power; and because every hold and every place in the queue gets its full time again when the database is
// opened, nobody loses anything by that.
//
// # PostgreSQL
//
// Any number of processes share the database. It is the truth, and so is its clock. A change of a lock is one transaction that has
// the lock's row locked; changes that arrive at one process meanwhile share the next. A turn of the scheduler has the row locked that all turns
// need, and is told what other processes changed since its last one; it is stored as one row, and any of the processes writes the tables for jobs
// soon after, which readers complete by what is not in them yet. Processes wake each other by LISTEN and NOTIFY, and look every two
// seconds in any case. Everything that is acknowledged is as durable as the server's synchronous_commit says, refusals excepted.
package sqlstore
