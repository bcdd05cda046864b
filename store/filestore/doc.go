// Package filestore keeps locks as files in a directory of one host.
//
// Layout of the directory:
//
//	locks/NAME.json     the record of who holds the lock; absent when nobody does
//	queue/NAME.json     who waits for it; absent when nobody does
//	freezes/NAME.json   the record of a freeze
//	guards/HH           256 files, never removed: a kernel lock on one of them excludes all who change the locks whose
//	                    names hash to it; it also holds their fencing-token counter and a one-entry journal
//	live/H              16 files: a holder or waiter keeps a kernel lock on one byte of one of them while it lives
//	wake/ID             watched by a waiting process, removed to wake it
//	damaged/            what was removed by force because it could not be read
//	audit.log           what happened
//
// What the store promises: a change is one step under the kernel lock, records are published whole by rename, and a
// crash at any point leaves the old or the new state. What it does not: it cannot exclude on file systems whose kernel
// locks are not honoured by everybody who mounts them.
package filestore
