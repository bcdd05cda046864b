package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
)

// Events are stored with their change, in a table of those that have no number yet, and numbered by whoever
// reads first; if nobody reads, every two seconds, and after so many. A number that a change took itself
// would have to be locked until the change is on the disk, and no two changes could be on their way there at
// once.
const numberAfter = 4096

// number gives all events that were stored before a number.
func (s *serverLocks) number(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, "SELECT CASE WHEN has_new_lock_events() THEN number_lock_events(false) END")
	return err
}

// WaitEvents implements lokt.EventLog.
func (s *serverLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.grown.next()
	if err := s.usable(ctx); err != nil {
		return err
	}
	there := false
	if err := s.db.using(ctx, "events", func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT lock_event > $1 OR has_new_lock_events() FROM state", int64(after)).Scan(&there)
	}); err != nil || there {
		return err
	}
	select {
	case <-grown:
	case <-time.After(lookAnyway):
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.usable(context.WithoutCancel(ctx))
}

// ReadEvents implements lokt.EventLog. What is stored while it numbers events is left for later.
func (s *serverLocks) ReadEvents(ctx context.Context, q lokt.EventQuery) (page lokt.EventPage, err error) {
	if err := s.usable(ctx); err != nil {
		return page, err
	}
	err = s.db.using(ctx, "events", func(ctx context.Context, c *pgx.Conn) error {
		if err := s.number(ctx, c); err != nil {
			return err
		}
		return atOneMoment(func(ctx context.Context, c *pgx.Conn) error { return readEvents(ctx, c, q, &page) })(ctx, c)
	})
	return page, err
}

// readEvents collects what the query lets through, of which the statement finds few more.
func readEvents(ctx context.Context, c *pgx.Conn, q lokt.EventQuery, page *lokt.EventPage) error {
	if err := c.QueryRow(ctx, "SELECT lock_event, coalesce((SELECT min(first) FROM lock_events), 0) FROM state").
		Scan(&page.Newest, &page.Oldest); err != nil {
		return err
	}
	statement, args := selectEvents(q, func(n int) string { return fmt.Sprint("$", n) })
	if _, err := c.Exec(ctx, "DECLARE found NO SCROLL CURSOR FOR "+statement, args...); err != nil {
		return err
	}
	p := newPager(q, page)
	defer p.end()
	for {
		var first, since int64
		var lock string
		var d document
		room := true
		rows, _ := c.Query(ctx, "FETCH 1000 FROM found")
		done, err := pgx.ForEachRow(rows, []any{&first, &lock, &since, &d.text, &d.sum}, func() error {
			room = room && p.add(d.openEvents(lock, lock, uint64(first), since))
			return nil
		})
		if err != nil || !room || done.RowsAffected() < 1000 {
			return err
		}
	}
}

// trim forgets the oldest events that are too old or too many, some at a time.
func (s *serverLocks) trim(ctx context.Context, c *pgx.Conn) error {
	for range 100 {
		done, err := c.Exec(ctx, `DELETE FROM lock_events WHERE first <= (SELECT max(first)
			FROM (SELECT * FROM lock_events ORDER BY first LIMIT 5000) oldest, state
			WHERE $1::bigint >= 0 AND last <= lock_event - $1::bigint
			OR $2::bigint >= 0 AND until < `+pgNow+` * 1000 - $2::bigint)`,
			int64(s.db.options.KeepEvents), int64(s.db.options.KeepEventsFor))
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
	}
	return nil
}
