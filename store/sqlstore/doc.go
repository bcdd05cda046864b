// Package sqlstore keeps locks and jobs in a database of SQLite or PostgreSQL.
//
// A lock is one JSON document, and so is a job: see lokt.Marshal. Beside the documents there are only the columns
// that queries need, and a checksum, so that a document that was damaged is refused by name. Those who wait for a
// lock have rows of their own, because a hand-over is not to write the whole queue.
//
// With SQLite memory is the truth for locks, and the database its log: one process has the file, one goroutine writes
// it, and changes that arrive while a transaction is being flushed share the next one. With PostgreSQL any number of
// processes share the database.
//
// Views show locks, holders, queues, jobs and events to people who look with sqlite3 or psql.
package sqlstore
