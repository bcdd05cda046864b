package httpapi

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// wireEvent is a lokt.LoggedEvent.
type wireEvent struct {
	Seq     uint64            `json:"seq"`
	Time    wireTime          `json:"time"`
	Type    string            `json:"type"`
	Name    string            `json:"name"`
	ID      string            `json:"id,omitempty"` // the public ID of the lease or freeze
	Owner   wireOwner         `json:"owner"`
	Token   uint64            `json:"token,omitempty"`
	TTL     int64             `json:"ttl_ms,omitempty"`
	Expires *wireTime         `json:"expires_at,omitempty"`
	Extra   map[string]string `json:"extra,omitempty"`
}

// wirePage is a lokt.EventPage.
type wirePage struct {
	Events []wireEvent `json:"events"`
	Oldest uint64      `json:"oldest"`
	Newest uint64      `json:"newest"`
	More   bool        `json:"more,omitempty"`
}

func (w wireEvent) event(own func(string) string) lokt.LoggedEvent {
	e := lokt.LoggedEvent{Seq: w.Seq, Event: lokt.Event{
		Time: w.Time.time(), Type: lokt.EventType(w.Type), Name: w.Name, LeaseID: own(w.ID), Owner: w.Owner.owner(), Token: w.Token,
		TTL: time.Duration(w.TTL) * time.Millisecond, Expires: w.Expires.time(), Extra: w.Extra,
	}}
	if was, ok := e.Extra[lokt.ExtraLeaseWas]; ok {
		e.Extra[lokt.ExtraLeaseWas] = own(was)
	}
	return e
}

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
	return c.readEvents(ctx, &exchange{method: http.MethodGet, path: "/v1/audit", query: queryValues(q), wait: longPoll})
}

func (c *Client) readEvents(ctx context.Context, x *exchange) (lokt.EventPage, error) {
	var answer wirePage
	if err := c.do(ctx, x, func(status int, body io.Reader) error {
		answer = wirePage{}
		return decodeInto(&answer)(status, body)
	}); err != nil {
		return lokt.EventPage{}, err
	}
	page := lokt.EventPage{Oldest: answer.Oldest, Newest: answer.Newest, More: answer.More}
	for _, w := range answer.Events {
		page.Events = append(page.Events, w.event(c.restore))
	}
	return page, nil
}

// WaitEvents implements lokt.EventLog.
func (c *Client) WaitEvents(ctx context.Context, after uint64) error {
	for {
		page, err := c.readEvents(ctx, &exchange{
			method: http.MethodGet, path: "/v1/audit", wait: longPoll, patience: lokt.WaitLease,
			query: url.Values{
				"after": {strconv.FormatUint(after, 10)}, "limit": {"1"}, "wait_ms": {strconv.FormatInt(millis(longPoll), 10)},
			},
		})
		if err != nil || page.Newest > after {
			return err
		}
	}
}
