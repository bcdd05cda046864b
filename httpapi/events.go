package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// heartbeat is how often a stream without events says that it is alive.
const heartbeat = 15 * time.Second

func (s *server) routeEvents() {
	s.route("GET /v1/audit", s.audit)
	s.route("GET /v1/events", s.stream)
}

func toEvent(e lokt.LoggedEvent) wireEvent {
	w := wireEvent{
		Seq: e.Seq, Time: wireTime(e.Time), Type: string(e.Type), Name: e.Name, ID: PublicID(e.LeaseID), Owner: toOwner(e.Owner), Token: e.Token,
		TTL: millis(e.TTL), Expires: optionalTime(e.Expires), Extra: e.Extra,
	}
	if was, ok := e.Extra[lokt.ExtraLeaseWas]; ok {
		w.Extra = maps.Clone(e.Extra)
		w.Extra[lokt.ExtraLeaseWas] = PublicID(was)
	}
	return w
}

// eventQuery reads which events are asked for.
func (q *query) eventQuery() lokt.EventQuery {
	e := lokt.EventQuery{
		After: q.uint("after"), Before: q.uint("before"), Name: q.Get("name"), Prefix: q.Get("prefix"), Owner: q.Get("owner"),
		Since: q.time("since"), Until: q.time("until"), Limit: lokt.MaxEvents, Latest: q.bool("latest"),
	}
	if limit := q.uint("limit"); limit > 0 && limit < lokt.MaxEvents {
		e.Limit = int(limit)
	}
	for _, t := range q.Values["type"] {
		if len(t) > 64 || len(e.Types) >= 64 {
			q.wrong("type", "the name of an event, or there are too many")
			break
		}
		e.Types = append(e.Types, lokt.EventType(t))
	}
	if q.err == nil && e.Name != "" {
		q.err = lokt.ValidateName(e.Name)
	}
	if q.err == nil {
		q.err = lokt.ValidatePrefix(e.Prefix)
	}
	if q.err == nil && e.Owner != "" {
		q.err = checkOwner(lokt.Owner{ID: e.Owner})
	}
	return e
}

// readEvents returns the events that the caller may see.
func (s *server) readEvents(ctx context.Context, c *call, e lokt.EventQuery) (wirePage, error) {
	ctx, done := context.WithTimeout(ctx, s.Limits.Request)
	defer done()
	page, err := s.readOwner(ctx, c.view(), e)
	w := wirePage{Events: []wireEvent{}, Oldest: page.Oldest, Newest: page.Newest, More: page.More}
	for _, e := range page.Events {
		w.last = e.Seq
		if c.may(ScopeRead, e.Name) == nil {
			w.Events = append(w.Events, toEvent(c.view().event(e)))
		}
	}
	return w, err
}

// readOwner reads events. An owner's ID that they are asked for is one as the caller sees it: of its own owners, or with
// its caller before it.
func (s *server) readOwner(ctx context.Context, v view, e lokt.EventQuery) (lokt.EventPage, error) {
	page, err := s.Events.ReadEvents(ctx, e)
	if v == "" || e.Owner == "" || err != nil {
		return page, err
	}
	e.Owner = string(v) + e.Owner
	own, err := s.Events.ReadEvents(ctx, e)
	if err != nil {
		return page, err
	}
	return merged(e, page, own), nil
}

// merged returns the page of what one query or another lets through, which are the same but for the owner. The second was
// made after the first: what is newer than that one knows is left for later.
func merged(q lokt.EventQuery, a, b lokt.EventPage) lokt.EventPage {
	newer := func(e lokt.LoggedEvent) bool { return e.Seq > a.Newest }
	all := slices.Concat(a.Events, slices.DeleteFunc(b.Events, newer))
	slices.SortFunc(all, func(a, b lokt.LoggedEvent) int { return cmp.Compare(a.Seq, b.Seq) })
	p := lokt.EventPage{Events: all, Oldest: max(a.Oldest, b.Oldest), Newest: a.Newest, More: a.More || b.More}
	if most := cmp.Or(q.Limit, lokt.MaxEvents); len(all) > most {
		p.More = true
		if p.Events = all[:most]; q.Latest {
			p.Events = all[len(all)-most:]
		}
	}
	return p
}

// audit answers with events. With after and wait_ms it waits for there to be one.
func (s *server) audit(c *call) error {
	if s.Events == nil {
		return ErrNoEvents
	}
	q := c.query()
	e, wait := q.eventQuery(), q.wait()
	if q.err != nil {
		return q.err
	}
	if err := c.may(ScopeRead, e.Name); err != nil {
		return err
	}
	page, err := s.readEvents(c.r.Context(), c, e)
	if err == nil && wait > 0 && q.Has("after") && page.Newest <= e.After {
		if err = c.waitFor(wait, func(ctx context.Context) error { return s.Events.WaitEvents(ctx, e.After) }); err == nil {
			page, err = s.readEvents(c.r.Context(), c, e)
		}
	}
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, "application/json", page)
}

// stream answers with server-sent events, from the present on, or from the event after the one that the client saw last.
func (s *server) stream(c *call) error {
	if s.Events == nil {
		return ErrNoEvents
	}
	q := c.query()
	e := q.eventQuery()
	e.Before, e.Until, e.Latest, e.Limit = 0, time.Time{}, false, 0
	resumed := q.Has("after")
	if id := c.r.Header.Get("Last-Event-ID"); id != "" {
		after, err := strconv.ParseUint(id, 10, 64)
		if err != nil {
			return invalid("Last-Event-ID is not a number")
		}
		e.After, resumed = after, true
	}
	if q.err != nil {
		return q.err
	}
	if err := c.may(ScopeRead, e.Name); err != nil {
		return err
	}
	free, err := s.streams.take(c.who())
	if err != nil {
		return err
	}
	defer free()
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	if s.Stop != nil {
		go func() {
			select {
			case <-s.Stop:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	if !resumed {
		brief, done := c.brief()
		page, err := s.Events.ReadEvents(brief, lokt.EventQuery{Latest: true, Limit: 1})
		done()
		if err != nil {
			return err
		}
		e.After = page.Newest
	}
	st := &eventStream{c: c, query: e, entered: time.Now()}
	return st.run(ctx)
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

// still reports whether the caller may go on: a stream would outlive its token otherwise. One that a Gate turns away for another
// reason connects again.
func (st *eventStream) still() bool {
	c := st.c
	if c.s.Gate == nil || time.Since(st.entered) < enterEvery {
		return true
	}
	caller, err := c.s.Gate.Enter(c.r)
	if err != nil || caller.Name() != c.w.caller {
		return false
	}
	st.entered, c.caller = time.Now(), caller
	return c.may(ScopeRead, st.query.Name) == nil
}

func (st *eventStream) run(ctx context.Context) error {
	s, h := st.c.s, st.c.w.Header()
	page, err := s.readEvents(ctx, st.c, st.query)
	if err != nil {
		return err
	}
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	st.c.w.WriteHeader(http.StatusOK)
	if st.c.r.Method == http.MethodHead {
		return nil
	}
	if err := st.send(fmt.Appendf(nil, "id: %d\n\n", st.query.After)); err != nil { // so that the client can resume from here
		return nil //nolint:nilerr // who cannot be written to has gone
	}
	for {
		if err := st.write(page); err != nil {
			return nil //nolint:nilerr // who cannot be written to has gone
		}
		if !page.More {
			if err := st.wait(ctx, page.Newest); err != nil {
				return nil //nolint:nilerr // the stream ends when its client goes, or the server does
			}
		}
		if !st.still() {
			return nil
		}
		if page, err = s.readEvents(ctx, st.c, st.query); err != nil {
			if ctx.Err() == nil {
				s.Log.Error("stream of events ends", "request_id", st.c.id, "error", err)
			}
			return nil // the client connects again
		}
	}
}

// write writes a page, and before it that something is missing, if so.
func (st *eventStream) write(page wirePage) error {
	var text []byte
	if after := st.query.After; page.Newest < after {
		text = fmt.Appendf(text, "event: gap\ndata: {\"after\":%d,\"oldest\":%d,\"newest\":%d}\n\n", after, page.Oldest, page.Newest)
		st.query.After, st.seen = page.Newest, page.Newest // the numbers began again
	} else if after > 0 && page.Oldest > after+1 {
		text = fmt.Appendf(text, "event: gap\ndata: {\"after\":%d,\"oldest\":%d,\"newest\":%d}\n\n", after, page.Oldest, page.Newest)
	}
	for _, e := range page.Events {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		text = fmt.Appendf(text, "id: %d\ndata: %s\n\n", e.Seq, data)
	}
	last := page.last
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
	if _, err := st.c.w.Write(text); err != nil {
		return err
	}
	return http.NewResponseController(st.c.w).Flush()
}

// wait returns nil when there are events after newest, and keeps the connection alive meanwhile.
func (st *eventStream) wait(ctx context.Context, newest uint64) error {
	for {
		nap, cancel := context.WithTimeout(ctx, heartbeat)
		err := st.c.s.Events.WaitEvents(nap, max(newest, st.query.After))
		over := nap.Err() != nil
		cancel()
		if err == nil || ctx.Err() != nil || !over {
			return err
		}
		if !st.still() {
			return ErrUnauthenticated
		}
		if err := st.send([]byte(": alive\n\n")); err != nil {
			return err
		}
	}
}
