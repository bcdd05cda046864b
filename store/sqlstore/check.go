package sqlstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/lokt-dev/lokt"
)

// mostWrong is how much damage is named.
const mostWrong = 100

// wrongs collects what is wrong with a database.
type wrongs []error

func (w *wrongs) note(err error) {
	if err != nil && len(*w) < mostWrong {
		*w = append(*w, fmt.Errorf("%w: %w", lokt.ErrDamaged, err))
	}
}

// err returns the error that names all of it.
func (w *wrongs) err(database string, err error) error {
	if err == nil && len(*w) > 0 {
		return fmt.Errorf("database %s: %w", database, errors.Join(*w...))
	}
	return err
}

// check notes every document that is not what its checksum says. The statements find what it is, the key of its row, its
// text, payload and sum; more are those of one kind of database.
func (w *wrongs) check(ctx context.Context, read look, more ...string) error {
	for _, statement := range append([]string{
		"SELECT 'who waits for lock ' || lock, lock || ' ' || lease_id, doc, '', sum FROM waiters",
		`SELECT 'queue of lock ' || name || ', where some are missing', '', '', '', -1 FROM locks l
			WHERE waiting <> (SELECT count(*) FROM waiters w WHERE w.lock = l.name)`,
		"SELECT 'output of job ' || job, job || ' ' || until, doc, '', sum FROM output",
		"SELECT 'memo ' || id, id, doc, '', sum FROM memos",
		"SELECT 'a statistic', hour || ' ' || source || ' ' || type || ' ' || tag, doc, '', sum FROM statistics",
		"SELECT 'events of jobs from number ' || first, CAST(first AS TEXT), doc, '', sum FROM job_events",
	}, more...) {
		if err := read(statement, nil, func(from row) error {
			var what, key string
			var d document
			if err := from.Scan(&what, &key, &d.text, &d.payload, &d.sum); err != nil {
				return err
			}
			if d.sum != checksum([]byte(key), []byte(d.text), []byte(d.payload)) {
				w.note(fmt.Errorf("%s: %w", what, errChecksum))
			}
			return nil
		}); err != nil && (ctx.Err() != nil || code(err) == 0) {
			return err
		} else if err != nil { // SQLite cannot read it
			w.note(err)
		}
	}
	return nil
}
