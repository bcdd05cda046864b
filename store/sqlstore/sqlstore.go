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

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/place"
)

// Options are what a database may be told. The zero Options are good.
type Options struct {
	// Describe says where the process that opens a database of SQLite is to be found, such as the address it serves:
	// another process that wants the database is told so.
	Describe string

	// AcceptLoss opens a database of SQLite though it has less than what was acknowledged: its log was damaged or
	// taken away. Tokens go on far above any that were given.
	AcceptLoss bool

	// Observe, if set, is called after everything the database was asked to do: with what it was, how long it took,
	// and how it ended. Operations are "commit", "recover", "checkpoint", "ping", "view", "list", "events", "load",
	// "read", "trim", "backup" and "check". It may be called by several goroutines at once, and must not wait for the
	// database.
	Observe func(op string, took time.Duration, err error)

	// Warn, if set, is told what an operator should know: documents that are damaged, a log that ended early.
	Warn func(err error)

	// KeepEvents is how many events are kept, of locks and of jobs each; 0 means 1,000,000, negative no limit.
	// KeepEventsFor is how long those of locks are; 0 means 90 days, negative no limit. Events of jobs go with the
	// jobs.
	KeepEvents    int
	KeepEventsFor time.Duration
}

func (o *Options) observe(op string, begin time.Time, err error) {
	if o.Observe != nil {
		o.Observe(op, time.Since(begin), err)
	}
}

func (o *Options) warn(err error) {
	if o.Warn != nil {
		o.Warn(err)
	}
}

// row is a row that was found.
type row interface{ Scan(into ...any) error }

// look runs a statement over a database of either kind, in which a question mark stands for each argument, and has scan
// read each row. errEnough ends it.
type look func(statement string, args []any, scan func(row) error) error

// each has scan read each row that was found.
func each(found interface {
	row
	Next() bool
	Err() error
}, scan func(row) error,
) error {
	for found.Next() {
		if err := scan(found); errors.Is(err, errEnough) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return found.Err()
}

// execute runs a statement that changes rows, with arguments as a look has them, and returns how many.
type execute func(statement string, args ...any) (int64, error)

// closable is closed before its database is, or with it.
type closable struct{ closed atomic.Bool }

// usable reports why it cannot be used.
func (c *closable) usable(ctx context.Context) error {
	if c.closed.Load() && ctx.Err() == nil {
		return errClosed
	}
	return ctx.Err()
}

// LockStore keeps locks and the log of their events.
type LockStore interface {
	lokt.Store
	lokt.EventLog
}

// DB is an open database. Its methods may be called by any number of goroutines.
type DB struct {
	backend
	place.Teller
}

// backend is a database of one kind.
type backend interface {
	// Locks returns the locks in the database. They end with the database; closing them closes nothing else.
	Locks() LockStore

	// Jobs returns the jobs in the database. They end with the database; closing them closes nothing else. In SQLite
	// they belong to one manager at a time.
	Jobs() jobs.Store

	// Path returns the path of the database's file, free of symbolic links; of a server's database its name.
	Path() string

	// Ping returns nil if the database can be read and is not known to be unable to store.
	Ping(ctx context.Context) error

	// Backup writes a copy of a database of SQLite, as it is at this moment, to a file that does not exist yet, for
	// the user alone. Everything goes on meanwhile. The copy is a database of its own, to be put where the other was;
	// it is on the disk when Backup returns. When it is opened as one, fencing tokens go on far above those that were
	// given after it was made, but holds are those that it has: whatever was done since is forgotten.
	Backup(ctx context.Context, path string) error

	// Contents returns what the database had when it was opened, or for a server's database has now.
	Contents(ctx context.Context) (Contents, error)

	// Failed returns a channel that is closed when a database of SQLite could not be flushed to the disk. Nothing can
	// be stored any more then by this process: Close only gives the reason, and leaves the files open. The process
	// should end, and another one open the database, which then has everything that was acknowledged.
	Failed() <-chan struct{}

	// Close stores what was asked for before and closes the database. Later calls fail, and waits return.
	Close() error
}

// Contents is what a database had when it was opened.
type Contents struct {
	Created bool // it was made, and is empty
	Locks   int  // that are not free
}

// ErrFull is wrapped by the errors of a database for which there is no room on the disk.
var ErrFull = fmt.Errorf("the disk is full: make room: %w", syscall.ENOSPC)

// errClosed is what every method answers after Close.
var errClosed = fmt.Errorf("%w: database is closed", lokt.ErrUnavailable)

// Open opens a database. Its URL is
//
//   - sqlite: and the path of a file, which is made if it does not exist, for the user alone, with the directories that are
//     missing. With ?mode=rw after the path a database is not made: without one, opening fails. One process at a time has it.
//     Every hold, place in the queue and freeze that has not ended by time gets its full time from now, but no more than its
//     maximum hold.
//   - postgres:// and so on, as PostgreSQL's own programs take it. Any number of processes share the database. The tables are
//     made in the first schema of the search path (the parameter search_path) if there are none. When nobody has used the
//     database for ten seconds, everybody gets their full time from when somebody does again.
//
// Errors wrap lokt.ErrInvalid for what is no such URL, no such database or one of another version,
// lokt.ErrUnavailable if another process has the database, which the error names, or it cannot be read, and
// lokt.ErrDamaged if its contents make no sense or are less than what was acknowledged.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	o.KeepEvents, o.KeepEventsFor = cmp.Or(o.KeepEvents, 1_000_000), cmp.Or(o.KeepEventsFor, 90*24*time.Hour)
	if strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://") {
		d, err := openServer(ctx, url, o)
		if err != nil {
			return nil, fmt.Errorf("open database of PostgreSQL: %w", err)
		}
		return &DB{d, place.Postgres(func(ctx context.Context, query string, to ...any) error {
			return d.readers.QueryRow(ctx, query).Scan(to...)
		})}, nil
	}
	path, old, ok := File(url)
	if !ok {
		return nil, fmt.Errorf("%w: a database is sqlite: and a path, with ?mode=rw behind it if it must exist, or postgres://…", lokt.ErrInvalid)
	}
	d, err := openFile(ctx, path, old, o)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	return &DB{d, place.SQLite(d.path)}, nil
}

// File returns the path in the URL of a database of SQLite, and whether the database must exist to be opened. It is not ok
// if the URL is none of SQLite, or ends with a parameter that is none: a mistyped ?mode=rw is not the name of a new
// database.
func File(url string) (path string, old, ok bool) {
	path, ok = strings.CutPrefix(url, "sqlite:")
	path, old = strings.CutSuffix(strings.TrimPrefix(path, "//"), "?mode=rw")
	at := strings.LastIndexByte(path, '?')
	mistyped := at >= 0 && !strings.Contains(path[at:], "/") && strings.Contains(path[at:], "=")
	return path, old, ok && path != "" && !mistyped
}

// schemaVersion is the version of both schemas. A database of any other is refused.
const schemaVersion = 1

// applicationID marks databases of SQLite as lokt's: "lokt" in ASCII.
const applicationID = 0x6c6f6b74

//go:embed schema/sqlite.sql
var sqliteSchema string
