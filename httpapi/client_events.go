package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// queryValues returns the query as the parameters of a URL.
func queryValues(q lokt.EventQuery) url.Values {
	v := url.Values{}
	for name, n := range map[string]uint64{"after": q.After, "before": q.Before, "limit": uint64(max(q.Limit, 0))} { //nolint:gosec // not negative
		if n > 0 {
			v.Set(name, strconv.FormatUint(n, 10))
		}
	}
	for name, text := range map[string]string{"name": q.Name, "prefix": q.Prefix, "owner": q.Owner} {
		if text != "" {
			v.Set(name, text)
		}
	}
	for _, t := range q.Types {
		v.Add("type", string(t))
	}
	for name, t := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !t.IsZero() {
			v.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	if q.Latest {
		v.Set("latest", "true")
	}
	return v
}

// ReadEvents implements lokt.EventLog. A server whose store keeps no events answers with ErrNoEvents.
func (c *Client) ReadEvents(ctx context.Context, q lokt.EventQuery) (lokt.EventPage, error) {
	return c.readEvents(ctx, &exchange{method: http.MethodGet, path: "/v1/audit", query: queryValues(q), wait: c.slow(), looks: true})
}

func (c *Client) readEvents(ctx context.Context, x *exchange) (lokt.EventPage, error) {
	var page lokt.EventPage
	err := c.do(ctx, x, into(&page, lockJSON))
	for i := range page.Events {
		c.event(&page.Events[i])
	}
	return page, err
}

// WaitEvents implements lokt.EventLog.
func (c *Client) WaitEvents(ctx context.Context, after uint64) error {
	for {
		page, err := c.readEvents(ctx, &exchange{
			method: http.MethodGet, path: "/v1/audit", wait: longPoll, patience: lokt.QueueTTL,
			query: url.Values{
				"after": {strconv.FormatUint(after, 10)}, "limit": {"1"}, "wait_ms": {longPollMillis},
			},
		})
		if err != nil || page.Newest > after {
			return err
		}
	}
}

// GapError says that events were forgotten before they could be read.
type GapError struct {
	After  uint64 `json:"after"`  // the last event that was read
	Oldest uint64 `json:"oldest"` // the oldest that is kept
}

func (e *GapError) Error() string {
	return fmt.Sprintf("events after number %d were forgotten: the oldest kept is %d", e.After, e.Oldest)
}

// Reasons why the reading of a stream ended.
var (
	errStreamEnded = errors.New("the stream ended")
	errEnough      = errors.New("the reader has had enough")
)

// Events yields the events that the query lets through as they happen, from q.After on, or from the present on if that is
// 0. It connects again when the connection breaks, and misses nothing that way; what the store has forgotten is told by
// a *GapError, after which the sequence goes on. Any other error is the last thing that it yields. It looks at Name,
// Prefix, Owner, Types and Since of the query.
func (c *Client) Events(ctx context.Context, q lokt.EventQuery) iter.Seq2[lokt.LoggedEvent, error] {
	q = lokt.EventQuery{After: q.After, Name: q.Name, Prefix: q.Prefix, Owner: q.Owner, Types: q.Types, Since: q.Since}
	return func(yield func(lokt.LoggedEvent, error) bool) {
		last := strconv.FormatUint(q.After, 10)
		if q.After == 0 {
			last = ""
		}
		q.After = 0
		connected := false
		for {
			x := &exchange{
				method: http.MethodGet, path: "/v1/events", query: queryValues(q), patience: lokt.QueueTTL, quiet: 3 * heartbeat,
			}
			x.seen = connected
			if last != "" {
				x.header = map[string]string{"Last-Event-ID": last}
			}
			err := c.do(ctx, x, func(_ int, body io.Reader) error {
				connected = true
				return &stopError{c.readStream(body, &last, yield)}
			})
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			switch {
			case errors.Is(err, errEnough):
				return
			case !errors.Is(err, errStreamEnded):
				yield(lokt.LoggedEvent{}, err)
				return
			}
			select {
			case <-time.After(firstPause + rand.N(4*firstPause)):
			case <-ctx.Done():
			}
		}
	}
}

// maxEventLine is the longest line of a stream, in bytes.
const maxEventLine = 1 << 20

// readStream reads server-sent events and yields them. It notes the last one's number.
func (c *Client) readStream(body io.Reader, last *string, yield func(lokt.LoggedEvent, error) bool) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxEventLine)
	var kind, data []byte
	id := *last
	for lines.Scan() {
		name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "id":
			id = string(value)
		case "event":
			kind = bytes.Clone(value)
		case "data":
			data = append(data, value...)
		}
		if len(lines.Bytes()) > 0 {
			continue
		}
		if err := c.dispatch(string(kind), data, yield); err != nil {
			return err
		}
		*last, kind, data = id, nil, nil
	}
	return errStreamEnded
}

// dispatch yields one event of a stream.
func (c *Client) dispatch(kind string, data []byte, yield func(lokt.LoggedEvent, error) bool) error {
	if len(data) == 0 {
		return nil
	}
	var e lokt.LoggedEvent
	var gap error
	switch kind {
	case "gap":
		missed := &GapError{}
		if err := lokt.Unmarshal(data, missed); err != nil {
			return err
		}
		gap = missed
	case "":
		if err := lokt.Unmarshal(data, &e); err != nil {
			return err
		}
		c.event(&e)
	default: // of a later version
		return nil
	}
	if !yield(e, gap) {
		return errEnough
	}
	return nil
}
