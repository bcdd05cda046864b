package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
)

// Check implements backend: each document is held against its checksum. What PostgreSQL keeps beside, it checks itself
// (pg_amcheck).
func (d *serverDB) Check(ctx context.Context) error {
	var wrong []error
	begin := time.Now()
	err := d.lend(ctx, pgLoading, func(ctx context.Context, c *pgx.Conn) error {
		return atOneMoment(ctx, c, func(ctx context.Context, c *pgx.Conn) error {
			for _, statement := range serverChecks() {
				rows, err := c.Query(ctx, statement)
				if err != nil {
					return err
				}
				var what, key string
				var doc document
				if _, err := pgx.ForEachRow(rows, []any{&what, &key, &doc.text, &doc.payload, &doc.sum}, func() error {
					if doc.sum != checksum(key, doc.text, doc.payload) && len(wrong) < mostWrong {
						wrong = append(wrong, fmt.Errorf("%w: %s: %w", lokt.ErrDamaged, what, errChecksum))
					}
					return nil
				}); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("database %s: %w", d.Path(), errors.Join(wrong...))
	}
	d.options.observe("check", begin, err)
	return err
}

// serverChecks are the queries for everything that has a checksum: what it is, the key of its row, and its document.
func serverChecks() []string {
	return []string{
		"SELECT 'lock ' || name, name || ' ' || waiting || ' ' || free::text, doc, '', sum FROM locks WHERE doc <> ''",
		"SELECT 'who waits for lock ' || lock, lock || ' ' || lease_id, doc, '', sum FROM waiters",
		`SELECT 'queue of lock ' || name || ', where some are missing', '', '', '', -1::bigint FROM locks l
			WHERE waiting <> (SELECT count(*) FROM waiters w WHERE w.lock = l.name)`,
		"SELECT 'events of lock ' || lock || ' from number ' || seq, lock, doc, '', sum FROM lock_events",
		"SELECT 'job ' || id, id, doc, payload, sum FROM jobs",
		"SELECT 'memo ' || id, id, doc, '', sum FROM memos",
		"SELECT 'a statistic', hour / 1000 || ' ' || source || ' ' || type || ' ' || tag, doc, '', sum FROM job_stats",
		"SELECT 'events of jobs from number ' || seq, seq::text, doc, '', sum FROM job_events",
	}
}
