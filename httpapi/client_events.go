package httpapi

import (
	"context"
	"net/http"
	"net/url"

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
	return c.readEvents(ctx, &exchange{method: http.MethodGet, path: "/v1/audit", query: queryValues(q), looks: true})
}

func (c *Client) readEvents(ctx context.Context, x *exchange) (lokt.EventPage, error) {
	page, err := send[lokt.EventPage](ctx, c, x)
	for i := range page.Events {
		c.event(&page.Events[i])
	}
	return page, err
}

// WaitEvents implements lokt.EventLog.
func (c *Client) WaitEvents(ctx context.Context, after uint64) error {
	for {
		x := &exchange{method: http.MethodGet, path: "/v1/audit"}
		x.longPoll("after", after)
		x.query.Set("limit", "1")
		page, err := c.readEvents(ctx, x)
		if err != nil || page.Newest > after {
			return err
		}
	}
}
