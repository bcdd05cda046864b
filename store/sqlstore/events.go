package sqlstore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
)

// events keeps the events of locks: numbers them, stores them, forgets the oldest, and tells who wants to know.
type events struct {
	keep    int           // how many; negative for all
	keepFor time.Duration // how long; negative for ever
	newest  atomic.Uint64 // number of the last that was stored
	tell    func([]lokt.Event)

	mu      sync.Mutex
	grown   chan struct{} // closed when there are more
	queue   [][]lokt.Event
	ended   bool
	poke    chan struct{}
	telling sync.WaitGroup

	// For the goroutine that commits only.
	sinceTrim int       // events since the oldest were last looked at
	trimmed   time.Time // when they were
}

// When the oldest events are looked at: after so many more, or so much time; and how many are forgotten then, or twice as many as were
// added, if those are more.
const (
	trimAfter = 256
	trimEvery = time.Hour
	trimMost  = 512
)

func newEvents(o Options) *events {
	e := &events{keep: o.KeepEvents, keepFor: o.KeepEventsFor, tell: o.Events, grown: make(chan struct{}), poke: make(chan struct{}, 1)}
	if e.tell != nil {
		e.telling.Go(e.deliver)
	}
	return e
}

func cloneEvents(all []lokt.Event) []lokt.Event {
	all = slices.Clone(all)
	for i := range all {
		all[i].Extra = maps.Clone(all[i].Extra)
	}
	return all
}

// load is told the number of the last event.
func (e *events) load(newest uint64) {
	e.newest.Store(newest)
	e.wakeAll()
}

const (
	eventFields  = "at, type, lock, lease_id, owner, session, host, token, ttl, expires, detail"
	eventColumns = "seq, " + eventFields
)

// write writes the rows of events that have their numbers, and of the batch's.
func (e *events) write(ctx context.Context, q querier, before []lokt.LoggedEvent, b *batch) error {
	for i := range before {
		if err := writeEvent(ctx, q, before[i].Seq, &before[i].Event); err != nil {
			return err
		}
	}
	seq := e.newest.Load()
	for _, told := range b.told {
		for i := range told {
			seq++
			if err := writeEvent(ctx, q, seq, &told[i]); err != nil {
				return err
			}
		}
	}
	if e.sinceTrim+b.events < trimAfter && b.now.Sub(e.trimmed) < trimEvery {
		return nil
	}
	return e.trim(ctx, q, b.now, seq, max(trimMost, 2*(e.sinceTrim+b.events)))
}

func writeEvent(ctx context.Context, q querier, seq uint64, e *lokt.Event) error {
	values, err := eventValues(e)
	if err != nil {
		return err
	}
	return q.exec(ctx, "INSERT INTO lock_events ("+eventColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", append([]any{seq}, values...)...)
}

// eventValues returns what is stored of an event, but for its number.
func eventValues(e *lokt.Event) ([]any, error) {
	rest := eventDocument{e.Owner.AnySession, processOf(e.Owner.Process), e.Extra}
	var detail any
	if rest.AnySession || rest.Asks != nil || len(rest.Extra) > 0 {
		var err error
		if detail, err = encode(rest); err != nil {
			return nil, err
		}
	}
	return []any{
		nanos(e.Time), string(e.Type), e.Name, text(e.LeaseID), text(e.Owner.ID), text(e.Owner.Session), text(e.Owner.Host),
		number(e.Token), number(e.TTL), nanos(e.Expires), detail,
	}, nil
}

// oldest returns the number up to which some of the oldest events, at most so many, are too old or too many, or 0.
func (e *events) oldest(ctx context.Context, q querier, now time.Time, newest uint64, most int) (upTo uint64, err error) {
	whole := true // all so far are to go
	err = q.query(ctx, "SELECT seq, at FROM lock_events ORDER BY seq LIMIT ?", []any{most}, func(r *row) error {
		seq, at := r.count(), r.nanos()
		many := e.keep >= 0 && newest-seq >= uint64(e.keep)
		old := e.keepFor >= 0 && now.Sub(at) > e.keepFor
		if whole = whole && (many || old); whole {
			upTo = seq
		}
		return nil
	})
	return upTo, err
}

// trim forgets some of the oldest events, at most so many, that are too old or too many.
func (e *events) trim(ctx context.Context, q querier, now time.Time, newest uint64, most int) error {
	upTo, err := e.oldest(ctx, q, now, newest, most)
	if err != nil || upTo == 0 {
		return err
	}
	if err := q.exec(ctx, "DELETE FROM lock_events WHERE seq <= ?", upTo); err != nil {
		return err
	}
	return shrink(ctx, q)
}

// shrink gives some of the file's free pages back.
func shrink(ctx context.Context, q querier) error {
	return q.exec(ctx, "PRAGMA incremental_vacuum(64)")
}

// publish makes what was committed known.
func (e *events) publish(b *batch) {
	if e.sinceTrim += b.events; b.foldLocks && (e.sinceTrim >= trimAfter || b.now.Sub(e.trimmed) >= trimEvery) {
		e.sinceTrim, e.trimmed = 0, b.now
	}
	if b.events == 0 {
		return
	}
	e.newest.Add(uint64(b.events))
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.grown)
	e.grown = make(chan struct{})
	if e.tell != nil {
		e.queue = append(e.queue, b.told...)
		select {
		case e.poke <- struct{}{}:
		default:
		}
	}
}

// wakeAll lets everybody look again.
func (e *events) wakeAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.grown)
	e.grown = make(chan struct{})
}

// deliver tells the observer until the database is closed and everything has been told.
func (e *events) deliver() {
	for {
		e.mu.Lock()
		queue, ended := e.queue, e.ended
		e.queue = nil
		e.mu.Unlock()
		for _, told := range queue {
			e.tell(told)
		}
		if len(queue) > 0 {
			continue
		}
		if ended {
			return
		}
		<-e.poke
	}
}

// end waits until everything has been told.
func (e *events) end() {
	e.mu.Lock()
	e.ended = true
	e.mu.Unlock()
	select {
	case e.poke <- struct{}{}:
	default:
	}
	e.telling.Wait()
}

// more returns a channel that is closed when there are more events.
func (e *events) more() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.grown
}

// WaitEvents implements lokt.EventLog.
func (s *fileLocks) WaitEvents(ctx context.Context, after uint64) error {
	grown := s.events.more()
	if err := s.usable(ctx); err != nil {
		return err
	}
	if s.events.newest.Load() > after {
		return nil
	}
	select {
	case <-grown:
		return s.usable(context.WithoutCancel(ctx))
	case <-ctx.Done():
		return ctx.Err()
	}
}

// newestNumber returns the number of the last event.
func newestNumber(ctx context.Context, q querier) (uint64, error) {
	n, err := one(ctx, q, "SELECT lock_event FROM state")
	return uint64(n), err
}

// reader lends what reads the database as it was at one moment.
type reader = func(ctx context.Context, op string, read func(q querier) error) error

// readEvents answers a query. The rest are the newest events, some or all of which may not be in the tables yet.
func readEvents(ctx context.Context, reading reader, newest func(context.Context, querier) (uint64, error), q lokt.EventQuery, rest []lokt.LoggedEvent) (
	page lokt.EventPage, err error,
) {
	limit := lokt.MaxEvents
	if q.Limit > 0 {
		limit = min(q.Limit, limit)
	}
	statement, args := selectEvents(q, limit+1)
	err = reading(ctx, "events", func(c querier) error {
		var err error
		if page.Newest, err = newest(ctx, c); err != nil {
			return err
		}
		n, err := one(ctx, c, "SELECT min(seq) FROM lock_events")
		if err != nil {
			return err
		}
		page.Oldest = uint64(n)
		return c.query(ctx, statement, args, func(r *row) error {
			page.Events = append(page.Events, readEvent(r))
			return nil
		})
	})
	if err != nil {
		return lokt.EventPage{}, err
	}
	addEvents(&page, q, limit+1, rest)
	if page.More = len(page.Events) > limit; page.More {
		page.Events = page.Events[:limit]
	}
	if q.Latest {
		slices.Reverse(page.Events)
	}
	return page, nil
}

func readEvent(r *row) lokt.LoggedEvent {
	e := lokt.LoggedEvent{Seq: r.count()}
	e.Time, e.Type, e.Name, e.LeaseID = r.nanos(), lokt.EventType(r.text()), r.text(), r.text()
	e.Owner.ID, e.Owner.Session, e.Owner.Host = r.text(), r.text(), r.text()
	e.Token, e.TTL, e.Expires = r.count(), r.span(), r.nanos()
	var rest eventDocument
	r.decode(&rest)
	e.Owner.AnySession, e.Owner.Process, e.Extra = rest.AnySession, rest.Asks.process(), rest.Extra
	return e
}

// selectEvents writes the statement for a query.
func selectEvents(q lokt.EventQuery, limit int) (statement string, args []any) {
	var where []string
	add := func(condition string, values ...any) {
		where, args = append(where, condition), append(args, values...)
	}
	if q.After > 0 {
		add("seq > ?", q.After)
	}
	if q.Before > 0 {
		add("seq < ?", q.Before)
	}
	if q.Name != "" {
		add("lock = ?", q.Name)
	}
	if q.Prefix != "" { // names are ASCII
		add("lock >= ? AND lock < ?", q.Prefix, q.Prefix[:len(q.Prefix)-1]+string(q.Prefix[len(q.Prefix)-1]+1))
	}
	if q.Owner != "" {
		add("owner = ?", q.Owner)
	}
	if len(q.Types) > 0 {
		types := make([]any, len(q.Types))
		for i, t := range q.Types {
			types[i] = string(t)
		}
		add("type IN (?"+strings.Repeat(", ?", len(types)-1)+")", types...)
	}
	if !q.Since.IsZero() {
		add("at >= ?", unixNano(q.Since))
	}
	if !q.Until.IsZero() {
		add("at < ?", unixNano(q.Until))
	}
	statement = "SELECT " + eventColumns + " FROM lock_events"
	if len(where) > 0 {
		statement += " WHERE " + strings.Join(where, " AND ")
	}
	statement += " ORDER BY seq"
	if q.Latest {
		statement += " DESC"
	}
	return statement + " LIMIT ?", append(args, limit)
}
