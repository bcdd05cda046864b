package httpapi

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/lokt-dev/lokt"
)

// queryValues returns the query as the parameters of a URL.
func queryValues(q lokt.EventQuery) url.Values {
	v := values(map[string]any{
		"after": q.After, "before": q.Before, "limit": max(q.Limit, 0), "name": q.Name, "prefix": q.Prefix, "owner": q.Owner,
		"since": q.Since, "until": q.Until, "latest": q.Latest,
	})
	for _, t := range q.Types {
		v.Add("type", string(t))
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

// Events yields the events that the query lets through as they happen, from q.After on, or from the present on if that is
// 0. It misses nothing when a connection breaks; what the store has forgotten is told by a *GapError, after which the sequence
// goes on. Any other error is the last thing that it yields. It looks at Name, Prefix, Owner, Types and Since of the query.
func (c *Client) Events(ctx context.Context, q lokt.EventQuery) iter.Seq2[lokt.LoggedEvent, error] {
	q = lokt.EventQuery{After: q.After, Name: q.Name, Prefix: q.Prefix, Owner: q.Owner, Types: q.Types, Since: q.Since}
	return func(yield func(lokt.LoggedEvent, error) bool) {
		present, reached := q.After == 0, false
		for {
			x := &exchange{method: http.MethodGet, path: "/v1/audit", query: queryValues(q), wait: longPoll, patience: lokt.QueueTTL}
			x.seen = reached
			if present {
				x.query = url.Values{"latest": {"true"}, "limit": {"1"}}
			} else {
				x.query.Set("after", strconv.FormatUint(q.After, 10))
				x.query.Set("wait_ms", longPollMillis)
			}
			page, err := c.readEvents(ctx, x)
			if err != nil {
				yield(lokt.LoggedEvent{}, err)
				return
			}
			reached = true
			switch {
			case present:
				present, q.After = false, page.Newest
				continue
			case page.Newest < q.After, page.Oldest > q.After+1: // the numbers began again, or some were forgotten
				if !yield(lokt.LoggedEvent{}, &GapError{After: q.After, Oldest: page.Oldest}) {
					return
				}
				q.After = min(q.After, page.Newest)
			}
			for _, e := range page.Events {
				if q.After = e.Seq; !yield(e, nil) {
					return
				}
			}
			if !page.More {
				q.After = page.Newest
			}
		}
	}
}
