package sqlstore

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
)

// Events are stored with their change, in a table of those that have no number yet, and numbered by whoever reads first; if nobody
// reads, every two seconds, and after so many. A number that a change took itself would have to be locked until the change is on
// the disk, and no two changes could be on their way there at once.
const numberAfter = 4096

// number gives all events that were stored before a number. Those who want that at the same time do it one after another, and
// all but the first find little to do.
func (s *serverLocks) number(ctx context.Context) error {
	select {
	case s.numbering <- struct{}{}:
		defer func() { <-s.numbering }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.db.using(ctx, presenceOp, s.numberNew)
}

// numberNew does so over a connection that is there already.
func (s *serverLocks) numberNew(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, "SELECT CASE WHEN has_new_lock_events() THEN number_lock_events(false) END")
	return err
}

// WaitEvents implements lokt.EventLog.
func (s *serverLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.grown.next()
	if err := s.usable(ctx); err != nil {
		return err
	}
	var newest int64
	var fresh bool
	if err := s.db.using(ctx, "events", func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT lock_event, has_new_lock_events() FROM state").Scan(&newest, &fresh)
	}); err != nil {
		return err
	}
	if fresh || uint64(newest) > after {
		return nil
	}
	timer := time.NewTimer(lookAnyway)
	defer timer.Stop()
	select {
	case <-grown:
	case <-timer.C:
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
	fresh := false
	read := func(ctx context.Context, c *pgx.Conn) error {
		page = lokt.EventPage{}
		var newest, oldest int64
		if err := c.QueryRow(ctx, "SELECT lock_event, coalesce((SELECT min(seq) FROM lock_events), 0), has_new_lock_events() FROM state").
			Scan(&newest, &oldest, &fresh); err != nil {
			return err
		}
		page.Newest, page.Oldest = uint64(newest), uint64(oldest)
		return readEvents(ctx, c, q, &page)
	}
	reading := func(ctx context.Context, c *pgx.Conn) error { return atOneMoment(ctx, c, read) }
	if err := s.db.using(ctx, "events", reading); err != nil || !fresh {
		return page, err
	}
	if err := s.number(ctx); err != nil {
		return lokt.EventPage{}, err
	}
	err = s.db.using(ctx, "events", reading)
	return page, err
}

// eventRows is how many rows are read at a time, of which the query may let few through.
const eventRows = 1000

// readEvents collects what the query lets through. The statement narrows the rows, and the pager looks at each event.
func readEvents(ctx context.Context, c *pgx.Conn, q lokt.EventQuery, page *lokt.EventPage) error {
	statement, args := selectEvents(q)
	if _, err := c.Exec(ctx, "DECLARE found NO SCROLL CURSOR FOR "+statement, args); err != nil {
		return err
	}
	p := newPager(q, page)
	for n, room := eventRows, true; n == eventRows && room; {
		n = 0
		rows, err := c.Query(ctx, "FETCH 1000 FROM found")
		if err != nil {
			return err
		}
		for ; rows.Next(); n++ {
			var seq int64
			var lock string
			var d document
			if err := rows.Scan(&seq, &lock, &d.text, &d.sum); err != nil {
				return err
			}
			events, err := openNumbered(&d, lock, uint64(seq))
			if err != nil {
				rows.Close()
				return err
			}
			room = room && p.add(events)
		}
		if err := rows.Err(); err != nil {
			return err
		}
	}
	p.end()
	return nil
}

// openNumbered reads the events of a change of a lock.
func openNumbered(d *document, lock string, first uint64) (logged []lokt.LoggedEvent, err error) {
	var all []lokt.Event
	err = d.open("events of lock "+lock+" from number "+number(first), lock, &all)
	for i := range all {
		logged = append(logged, lokt.LoggedEvent{Seq: first + uint64(i), Event: all[i]})
	}
	return logged, err
}

// selectEvents writes the statement that finds the rows of a query, and few more.
func selectEvents(q lokt.EventQuery) (statement string, args pgx.NamedArgs) {
	args = pgx.NamedArgs{
		"after": int64(q.After), "before": int64(q.Before), "name": q.Name, "prefix": q.Prefix, "since": q.Since.UnixNano(), "until": q.Until.UnixNano(),
	}
	where := []string{"true"}
	for _, narrow := range []struct {
		if_       bool
		condition string
	}{
		{q.After > 0, "seq >= (SELECT coalesce(max(seq), 0) FROM lock_events WHERE seq <= @after::bigint + 1)"},
		{q.Before > 0, "seq < @before::bigint"},
		{q.Name != "", "lock = @name::text"},
		{q.Prefix != "", "starts_with(lock, @prefix::text)"},
		{!q.Since.IsZero(), "upto >= @since::bigint"},
		{!q.Until.IsZero(), "at < @until::bigint"},
	} {
		if narrow.if_ {
			where = append(where, narrow.condition)
		}
	}
	order := ""
	if q.Latest {
		order = " DESC"
	}
	return "SELECT seq, lock, doc, sum FROM lock_events WHERE " + strings.Join(where, " AND ") + " ORDER BY seq" + order, args
}

// The most rows of events that are forgotten by one statement, and by how many at a time.
const (
	pgTrimMost  = 5000
	pgTrimTimes = 100
)

// trim forgets the oldest events that are too old or too many.
func (s *serverLocks) trim(ctx context.Context, c *pgx.Conn) error {
	o := &s.db.options
	for range pgTrimTimes {
		done, err := c.Exec(ctx, `DELETE FROM lock_events WHERE seq <= (SELECT max(seq) FROM (SELECT seq, n, at FROM lock_events ORDER BY seq LIMIT $1) oldest, state
			WHERE $2::bigint >= 0 AND seq + n - 1 <= lock_event - $2::bigint OR $3::bigint >= 0 AND at < `+pgNow+` * 1000 - $3::bigint)`,
			pgTrimMost, int64(o.KeepEvents), int64(o.KeepEventsFor))
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
	}
	return nil
}
