package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
)

// heartbeat is how often a stream without events says that it is alive.
const heartbeat = 15 * time.Second

// eventsWire says which events are asked for.
type eventsWire struct {
	lokt.EventQuery
	After *uint64       `json:"after"` // the same; nil if it is absent
	Wait  time.Duration `json:"wait_ms"`
}

// eventQuery returns which events are asked for.
func (c *call) eventQuery(q *eventsWire) (lokt.EventQuery, error) {
	e := q.EventQuery
	e.Limit = min(cmp.Or(e.Limit, lokt.MaxEvents), lokt.MaxEvents)
	if len(e.Types) > 64 || slices.ContainsFunc(e.Types, func(t lokt.EventType) bool { return len(t) > 64 }) {
		return e, invalid("type is not the name of an event, or there are too many")
	}
	if e.Name != "" {
		if err := lokt.ValidateName(e.Name); err != nil {
			return e, err
		}
	}
	if err := lokt.ValidatePrefix(e.Prefix); err != nil {
		return e, err
	}
	if e.Owner != "" {
		if err := checkOwner(lokt.Owner{ID: e.Owner}); err != nil {
			return e, err
		}
		if !strings.Contains(e.Owner, "/") { // it names no caller
			e.Owner = string(c.view()) + e.Owner
		}
	}
	return e, c.may(ScopeRead, e.Name) // the caller may ask for those of other locks only
}

// readEvents returns the events that the caller may see, and the number of the one that was read last, or first with Latest, seen or not.
func (c *call) readEvents(ctx context.Context, q lokt.EventQuery) (page lokt.EventPage, last uint64, err error) {
	ctx, done := context.WithTimeout(ctx, c.s.Limits.Request)
	defer done()
	if page, err = c.s.Events.ReadEvents(ctx, q); err != nil {
		return page, 0, err
	}
	var seen []lokt.LoggedEvent
	for _, e := range page.Events {
		if last = e.Seq; q.Latest {
			last = page.Events[0].Seq
		}
		if c.may(ScopeRead, e.Name) == nil {
			seen = append(seen, c.view().event(e))
		}
	}
	page.Events = seen
	return page, last, nil
}

// visible reads on past events that the caller may not see, which the query leaves out from then on.
func (c *call) visible(ctx context.Context, q *lokt.EventQuery) (lokt.EventPage, error) {
	for most := q.Limit; ; {
		page, last, err := c.readEvents(ctx, *q)
		if err == nil && len(page.Events) == 0 && page.More {
			if q.Limit = lokt.MaxEvents; q.Latest {
				q.Before = last
			} else {
				q.After = last
			}
			continue
		}
		if q.Limit = most; len(page.Events) > most {
			from := 0
			if q.Latest {
				from = len(page.Events) - most
			}
			page.Events, page.More = page.Events[from:from+most], true
		}
		return page, err
	}
}

// unseenPause is between two looks for an event that the caller may see while there are others all the time.
const unseenPause = 100 * time.Millisecond

// audit answers with events. With after and wait_ms it waits for there to be one that the caller may see.
func (c *call) audit(q *eventsWire) (lokt.EventPage, error) {
	e, err := c.eventQuery(q)
	if err != nil {
		return lokt.EventPage{}, err
	}
	page, err := c.visible(c.r.Context(), &e)
	if err == nil && q.Wait > 0 && q.After != nil && len(page.Events) == 0 {
		err = c.waitFor(q.Wait, func(ctx context.Context) error {
			for {
				err := c.s.Events.WaitEvents(ctx, max(e.After, page.Newest))
				if err != nil {
					return err
				}
				now, err := c.visible(ctx, &e)
				if err != nil {
					return err
				}
				if page = now; len(page.Events) > 0 {
					return nil
				}
				select {
				case <-time.After(unseenPause):
				case <-ctx.Done():
				}
			}
		})
	}
	return page, err
}

// stream answers with server-sent events, from the present on, or from the event after the one that the client saw
// last.
func (c *call) stream(q *eventsWire) (none, error) {
	e, wrong := c.eventQuery(q)
	e.Before, e.Until, e.Latest, e.Limit = 0, time.Time{}, false, 0
	resumed := q.After != nil
	if id := c.r.Header.Get("Last-Event-ID"); id != "" {
		after, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			return none{}, invalid("Last-Event-ID is not a number")
		}
		e.After, resumed = after, true
	}
	if wrong != nil {
		return none{}, wrong
	}
	free, err := c.s.streams.take(c.who())
	if err != nil {
		return none{}, err
	}
	defer free()
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	defer context.AfterFunc(c.s.Stop, cancel)() // it is not called any more
	if !resumed {
		page, err := c.s.Events.ReadEvents(c.ctx, lokt.EventQuery{Latest: true, Limit: 1})
		if err != nil {
			return none{}, err
		}
		e.After = page.Newest
	}
	st := &eventStream{c: c, query: e, entered: time.Now()}
	return none{}, st.run(ctx)
}

// eventStream writes events to one client.
type eventStream struct {
	c       *call
	query   lokt.EventQuery // After is the last event that was written, or is known not to be wanted
	seen    uint64          // the newest event there was before the last reading
	entered time.Time       // when the Gate last let the caller in
}

// enterEvery is how often a stream asks the Gate, at most, whether its caller is still let in.
const enterEvery = time.Second

// still reports whether the caller may go on: a stream would outlive its token otherwise. One that a Gate turns away
// for another reason connects again.
func (st *eventStream) still() bool {
	c := st.c
	if c.s.Gate == nil || time.Since(st.entered) < enterEvery {
		return true
	}
	caller, err := c.s.Gate.Enter(c.r)
	if err != nil || caller.Name() != c.who() {
		return false
	}
	st.entered, c.caller = time.Now(), caller
	return c.may(ScopeRead, st.query.Name) == nil
}

func (st *eventStream) run(ctx context.Context) error {
	h := st.c.Header()
	page, last, err := st.c.readEvents(ctx, st.query)
	if err != nil {
		return err
	}
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	st.c.WriteHeader(http.StatusOK)
	if st.c.r.Method == http.MethodHead {
		return nil
	}
	if err := st.send(fmt.Appendf(nil, "id: %d\n\n", st.query.After)); err != nil { // to resume from here
		return nil //nolint:nilerr // who cannot be written to has gone
	}
	for {
		if err := st.write(page, last); err != nil {
			return nil //nolint:nilerr // who cannot be written to has gone
		}
		if !page.More && (st.pause(ctx) != nil || st.wait(ctx, page.Newest) != nil) {
			return nil // the stream ends when its client goes, or the server does
		}
		if !st.still() {
			return nil
		}
		if page, last, err = st.c.readEvents(ctx, st.query); err != nil {
			if ctx.Err() == nil {
				st.c.s.Log.Error("stream of events ends", "request_id", st.c.id, "error", err)
			}
			return nil // the client connects again
		}
	}
}

// write writes a page, and before it that something is missing, if so.
func (st *eventStream) write(page lokt.EventPage, last uint64) error {
	var text []byte
	after := st.query.After
	if page.Newest < after || after > 0 && page.Oldest > after+1 {
		const gap = "event: gap\ndata: {\"after\":%d,\"oldest\":%d,\"newest\":%d}\n\n"
		text = fmt.Appendf(text, gap, after, page.Oldest, page.Newest)
	}
	if page.Newest < after { // the numbers began again
		st.query.After, st.seen = page.Newest, page.Newest
	}
	for _, e := range page.Events {
		data, err := lokt.Marshal(e)
		if err != nil {
			return err
		}
		text = fmt.Appendf(text, "id: %d\ndata: %s\n\n", e.Seq, data)
	}
	if !page.More { // then it has all that there was before it was read
		last = max(last, st.seen)
	}
	if last > st.query.After {
		st.query.After = last
		text = fmt.Appendf(text, "id: %d\n\n", last)
	}
	st.seen = max(st.seen, page.Newest)
	if len(text) == 0 {
		return nil
	}
	return st.send(text)
}

func (st *eventStream) send(text []byte) error {
	st.c.writeDeadline()
	if _, err := st.c.Write(text); err != nil {
		return err
	}
	return http.NewResponseController(st.c).Flush()
}

// pause waits a millisecond for each open stream: each reads for itself, and however fast events come, all of them together read
// once in a millisecond at most.
func (st *eventStream) pause(ctx context.Context) error {
	select {
	case <-time.After(time.Duration(st.c.s.streams.inUse()) * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait returns nil when there are events after newest. After a while it returns in any case, and says that the
// connection is alive.
func (st *eventStream) wait(ctx context.Context, newest uint64) error {
	nap, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	err := st.c.s.Events.WaitEvents(nap, max(newest, st.query.After))
	if err != nil && ctx.Err() == nil && nap.Err() != nil {
		return st.send([]byte(": alive\n\n"))
	}
	return err
}
