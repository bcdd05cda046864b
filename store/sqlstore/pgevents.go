package sqlstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
)

// Events are stored with their change, in a table of those that have no number yet, and numbered by whoever reads first; if nobody
// reads, every two seconds, and after so many. A number that a change took itself would have to be locked until the change is on
// the disk, and no two changes could be on their way there at once.
const numberAfter = 4096

// writeEvents stores the batch's events.
func (s *serverLocks) writeEvents(ctx context.Context, c *pgConn, b *batch) error {
	b.events = 0
	for _, told := range b.told {
		b.events += len(told)
		for i := range told {
			values, err := eventValues(&told[i])
			if err != nil {
				return err
			}
			if err := c.exec(ctx, "INSERT INTO lock_events_new ("+eventFields+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values...); err != nil {
				return err
			}
		}
	}
	return nil
}

// numbering lets those who want events to be numbered at the same time share one transaction.
type numbering struct {
	busy  chan struct{} // has an element while somebody numbers
	count sync.Mutex
	begun int // how often it was begun
	err   error
}

// number gives all events that were stored before a number.
func (s *serverLocks) number(ctx context.Context) error {
	n := &s.numbering
	n.count.Lock()
	before := n.begun
	n.count.Unlock()
	select {
	case n.busy <- struct{}{}:
		defer func() { <-n.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if n.begun > before && n.err == nil { // somebody began after this was called, and is done
		return nil
	}
	n.count.Lock()
	n.begun++
	n.count.Unlock()
	n.err = s.db.using(ctx, presenceOp, func(ctx context.Context, c *pgConn) error {
		_, err := one(ctx, c, "SELECT number_lock_events(false)")
		return err
	})
	return n.err
}

// noCompiling keeps the server, until the transaction ends, from compiling has_new_lock_events anew at each call: it forbids itself to read
// a table as a whole, and the server takes the small table that it reads so all the same for an expensive one. That takes 40 ms each time.
const noCompiling = "SELECT set_config('jit', 'off', true)"

// numberNew does so if there are any, over a connection that is there already.
func (s *serverLocks) numberNew(ctx context.Context, c *pgConn) error {
	if err := c.exec(ctx, noCompiling); err != nil {
		return err
	}
	_, err := one(ctx, c, "SELECT CASE WHEN has_new_lock_events() THEN number_lock_events(false) END FROM state WHERE oldest <= ?", s.db.known)
	return err
}

// errNew says that there are events without a number.
var errNew = errors.New("there are events without a number")

// newest returns the number of the last event, or errNew.
func (s *serverLocks) newest(ctx context.Context, q querier) (n uint64, err error) {
	if err := q.exec(ctx, noCompiling); err != nil {
		return 0, err
	}
	err = q.query(ctx, "SELECT lock_event, oldest, has_new_lock_events() FROM state", nil, func(r *row) error {
		n = r.count()
		if err := s.db.fits(r.number()); err != nil {
			return err
		}
		if r.yes() {
			return errNew
		}
		return nil
	})
	return n, err
}

// WaitEvents implements lokt.EventLog.
func (s *serverLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.events.more()
	if err := s.usable(ctx); err != nil {
		return err
	}
	var newest uint64
	if err := s.db.using(ctx, "events", func(ctx context.Context, c *pgConn) (err error) {
		if newest, err = s.newest(ctx, c); errors.Is(err, errNew) {
			newest, err = after+1, nil
		}
		return err
	}); err != nil {
		return err
	}
	if newest > after {
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

// ReadEvents implements lokt.EventLog.
func (s *serverLocks) ReadEvents(ctx context.Context, q lokt.EventQuery) (page lokt.EventPage, err error) {
	if err := s.usable(ctx); err != nil {
		return lokt.EventPage{}, err
	}
	fresh := false
	page, err = readEvents(ctx, func(ctx context.Context, op string, read func(q querier) error) error {
		return s.db.reading(ctx, op, func(q querier) error {
			err := read(q)
			if fresh = errors.Is(err, errNew); fresh {
				return nil
			}
			return err
		})
	}, s.newest, q, nil)
	if err != nil || !fresh {
		return page, err
	}
	if err := s.number(ctx); err != nil {
		return lokt.EventPage{}, err
	}
	return readEvents(ctx, s.db.reading, newestNumber, q, nil) // what was stored meanwhile is left for later
}

// The most events that are forgotten by one statement, and by how many at a time.
const (
	pgTrimMost  = 5000
	pgTrimTimes = 100
)

// trim forgets the oldest events that are too old or too many.
func (s *serverLocks) trim(ctx context.Context, c *pgConn) error {
	for range pgTrimTimes {
		var newest uint64
		var now time.Time
		if err := c.query(ctx, "SELECT lock_event, "+pgNow+" * 1000, oldest FROM state", nil, func(r *row) error {
			newest, now = r.count(), r.nanos()
			return s.db.fits(r.number())
		}); err != nil {
			return err
		}
		upTo, err := s.events.oldest(ctx, c, now, newest, pgTrimMost)
		if err != nil || upTo == 0 {
			return err
		}
		if err := c.exec(ctx, "DELETE FROM lock_events WHERE seq <= ?", upTo); err != nil {
			return err
		}
		if err := c.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}
