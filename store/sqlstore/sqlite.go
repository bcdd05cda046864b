package sqlstore

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/lokt-dev/lokt"
)

// writerSetup prepares the connection that writes, once it is known that the database is lokt's. auto_vacuum comes first: it has no
// effect on a database that has tables.
func writerSetup() []string {
	return []string{
		"PRAGMA auto_vacuum = INCREMENTAL", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL",
		"PRAGMA cache_size = -32768", "PRAGMA temp_store = MEMORY", "PRAGMA trusted_schema = OFF", "PRAGMA wal_autocheckpoint = 0",
		"PRAGMA journal_size_limit = 67108864",
	}
}

// readerCache is how much memory each connection that reads may keep, in KiB with a minus sign.
const readerCache = "-8192"

func readerSetup() []string {
	return []string{"PRAGMA query_only = ON", "PRAGMA cache_size = " + readerCache, "PRAGMA temp_store = MEMORY", "PRAGMA trusted_schema = OFF"}
}

// touch makes the file for its user alone, if there is none. SQLite gives the files beside it the same permissions.
func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return f.Close()
}

// errClosed is what every method answers after Close.
var errClosed = fmt.Errorf("%w: database is closed", lokt.ErrUnavailable)

// errStalled is the error when a database was not used for long, again and again.
var errStalled = errors.New("the database's clock runs away")

// unavailable wraps an error that is not among those that callers tell apart.
func unavailable(err error) error {
	if err == nil || errors.Is(err, lokt.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", lokt.ErrUnavailable, err)
}

// translate makes an error of the database one of those that callers tell apart.
func translate(err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) || errors.Is(err, lokt.ErrUnavailable) {
		return err
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return fmt.Errorf("%w: %w: %w; restore a backup", lokt.ErrUnavailable, lokt.ErrDamaged, err)
	case sqlite3.SQLITE_FULL:
		return fmt.Errorf("%w: %w: %w", lokt.ErrUnavailable, ErrFull, err)
	}
	return unavailable(err)
}

// single reports whether an error is about what one request wanted to store, rather than about the database.
func single(err error) bool {
	var p *pgconn.PgError
	if errors.As(err, &p) { // data exception, integrity constraint violation
		return strings.HasPrefix(p.Code, "22") || strings.HasPrefix(p.Code, "23")
	}
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return !errors.Is(err, lokt.ErrUnavailable)
	}
	switch e.Code() & 0xff {
	case sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_RANGE:
		return true
	}
	return false
}

// full reports whether an error is that there is no room.
func full(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_FULL
}
