package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lokt-dev/lokt"
)

// A database of PostgreSQL may be used by programs of several versions at once. Whoever opens one of an older version brings it to the
// newest that he knows, and each migration says which programs may go on beside it: those that know the version on its line
// "-- beside: N". Every change and turn reads that in its own transaction, and is given up if this program is too old. Migrations lock the
// table of which it is read, so none comes between the reading and the commit.

// versions are what a program knows of the database's versions, and how patiently it brings a database to the newest.
type versions struct {
	migrations []migration
	wait       time.Duration // how long tables are waited for that somebody uses: everybody else waits meanwhile
	pause      time.Duration // after that, for everybody else
	atMost     time.Duration // how long it is tried
}

// knownVersions returns what this program knows.
func knownVersions() (versions, error) {
	all, err := listMigrations("postgres")
	return versions{migrations: all, wait: 2 * time.Second, pause: time.Second, atMost: 30 * time.Second}, err
}

// fits returns nil if this program may use the database, which is for those that know a version at least.
func (d *serverDB) fits(oldest int64) error {
	d.unfit.Store(oldest > d.known)
	if oldest > d.known {
		return d.tooOld()
	}
	return nil
}

// tooOld is the error when the database was brought to a version that this program must not use.
func (d *serverDB) tooOld() error {
	return fmt.Errorf("%w: the database was brought to a version with which programs that know none after %d do not work: use a newer program", lokt.ErrUnavailable, d.known)
}

// prepare brings the database to the newest version that is known, unless it is of a newer one that this program works with.
func (d *serverDB) prepare(ctx context.Context, known versions) error {
	d.known = int64(len(known.migrations))
	if err := d.takesText(ctx); err != nil {
		return err
	}
	for end := time.Now().Add(known.atMost); ; {
		err := d.migrate(ctx, known)
		if !inTheWay(err) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: others use its tables for longer than %v, such as a backup that is being made: %w", lokt.ErrUnavailable, known.wait, err)
		}
		select {
		case <-time.After(known.pause): // the others go on meanwhile
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// takesText returns nil if the database takes all text. With another encoding it would refuse to have in the tables what was stored as
// bytes and acknowledged before.
func (d *serverDB) takesText(ctx context.Context) error {
	var encoding string
	if err := d.writer.query(ctx, "SHOW server_encoding", nil, func(r *row) error {
		encoding = r.text()
		return nil
	}); err != nil {
		return err
	}
	if encoding != "UTF8" && encoding != "SQL_ASCII" {
		return fmt.Errorf("%w: the database's encoding is %s: use one that was made with ENCODING 'UTF8' TEMPLATE template0", lokt.ErrInvalid, encoding)
	}
	return nil
}

// inTheWay reports whether a migration failed because others had what it needs.
func inTheWay(err error) bool {
	var e *pgconn.PgError
	return again(err) || errors.As(err, &e) && e.Code == "55P03"
}

// migrate does so in one transaction. Servers that start at the same time do so one after another.
func (d *serverDB) migrate(ctx context.Context, known versions) (err error) {
	c := d.writer
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			c.abandon(context.WithoutCancel(ctx))
		}
	}()
	var schema string
	if err := tx.QueryRow(ctx, "SELECT coalesce(current_schema(), '')").Scan(&schema); err != nil {
		return err
	}
	if schema == "" {
		return fmt.Errorf("%w: the search path names no schema that is there", lokt.ErrInvalid)
	}
	d.channel = "lokt_" + schema
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", d.channel); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)"); err != nil {
		return err
	}
	var version int64
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM schema_version").Scan(&version); err != nil {
		return err
	}
	if version > d.known {
		var oldest int64
		if err := tx.QueryRow(ctx, "SELECT oldest FROM state").Scan(&oldest); err != nil {
			return err
		}
		if oldest > d.known {
			return fmt.Errorf("%w: its version is %d, and this program knows none after %d: use a newer program", lokt.ErrInvalid, version, d.known)
		}
		return tx.Commit(ctx)
	}
	for _, m := range known.migrations[version:] {
		if err := m.apply(ctx, tx, known.wait); err != nil {
			return fmt.Errorf("bring it to version %d: %w", m.version, err)
		}
	}
	return tx.Commit(ctx)
}

// apply brings the database to the migration's version.
func (m *migration) apply(ctx context.Context, tx pgx.Tx, wait time.Duration) error {
	if m.version > 1 {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", wait.Milliseconds())); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "LOCK TABLE state IN ACCESS EXCLUSIVE MODE"); err != nil {
			return err
		}
	}
	if _, err := tx.Conn().PgConn().Exec(ctx, m.text).ReadAll(); err != nil {
		return err
	}
	if m.version > 1 {
		if _, err := tx.Exec(ctx, "UPDATE state SET oldest = greatest(oldest, $1)", m.beside); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, "INSERT INTO schema_version (version) VALUES ($1)", m.version)
	return err
}
