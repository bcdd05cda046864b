package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"

	"github.com/lokt-dev/lokt/jobs"
)

func (c *jobsCall) get() error {
	if !plausible(c.pathID) {
		return jobs.ErrJobNotFound
	}
	v, err := c.api.jobs.Get(c.ctx, c.pathID)
	if err != nil {
		return err
	}
	c.out = appendView(c.out[:0], &v, c.seesLeases())
	return nil
}

// seesLeases reports whether the caller is shown lease IDs.
func (c *jobsCall) seesLeases() bool { return c.caller == nil || c.caller.May(ScopeAdmin, "") }

func (c *jobsCall) list() error {
	q, err := c.query()
	if err != nil {
		return err
	}
	f := jobs.Filter{
		Limit: jobs.DefaultList, State: jobs.State(q.Get("state")), Type: q.Get("type"), Tag: q.Get("tag"), After: q.Get("after"),
	}
	if q.Has("limit") {
		n, err := queryInt(q, "limit")
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return err
		}
		f.Limit = min(max(n, 1), jobs.MaxList)
	}
	p, err := c.api.jobs.List(c.ctx, f)
	if err != nil {
		return err
	}
	c.out = appendPage(c.out[:0], &p, c.api.busy(), c.seesLeases())
	return nil
}

// query returns the query's parameters.
func (c *jobsCall) query() (url.Values, error) {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, &jobs.InvalidError{Problems: []jobs.Problem{{Type: "value_error", Msg: "Query should be key=value pairs, percent-encoded"}}}
	}
	return q, nil
}

// queryInt returns a parameter that is an integer. With one that no int holds it returns the nearest, and an error that wraps
// strconv.ErrRange.
func queryInt(q url.Values, name string) (int, error) {
	n, err := strconv.ParseInt(q.Get(name), 10, strconv.IntSize)
	problem := func(kind, msg string) error {
		return &jobs.InvalidError{Problems: []jobs.Problem{{Type: kind, Loc: []any{name}, Msg: msg}}}
	}
	switch {
	case errors.Is(err, strconv.ErrRange):
		return int(n), fmt.Errorf("%w: %w", problem("int_parsing_size", "Input is too large"), strconv.ErrRange)
	case err != nil:
		return 0, problem("int_parsing", "Input should be a valid integer, unable to parse string as an integer")
	}
	return int(n), nil
}

// days returns how many days of history are asked for. Without a default it must be said.
func (c *jobsCall) days(absent int) (int, error) {
	q, err := c.query()
	if err != nil {
		return 0, err
	}
	if q.Has("days") {
		return queryInt(q, "days")
	}
	if absent == 0 {
		return 0, &jobs.InvalidError{Problems: []jobs.Problem{{Type: "missing", Loc: []any{"days"}, Msg: "Field required"}}}
	}
	return absent, nil
}

func (c *jobsCall) status() error {
	s, err := c.api.jobs.Status(c.ctx)
	if err != nil {
		return err
	}
	c.out = appendSnapshot(c.out[:0], &s, c.api.busy())
	return nil
}

func (c *jobsCall) workers() error {
	all, err := c.api.jobs.Workers(c.ctx)
	if err != nil {
		return err
	}
	c.out = append(c.out[:0], `{"workers":[`...)
	for i := range all {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendWorker(c.out, all[i].ID, all[i].Leases, all[i].LastSeen)
	}
	c.out = append(c.out, "]}"...)
	return nil
}

func (c *jobsCall) stats() error {
	days, err := c.days(jobs.DefaultDays)
	if err != nil {
		return err
	}
	s, err := c.api.jobs.Stats(c.ctx, days)
	if err != nil {
		return err
	}
	return c.value(statsOnWire(&s, days))
}

func (c *jobsCall) decisions() error {
	days, err := c.days(jobs.DefaultDays)
	if err != nil {
		return err
	}
	d, err := c.api.jobs.Decisions(c.ctx, days)
	if err != nil {
		return err
	}
	return c.value(decisionsWire(d))
}

func (c *jobsCall) cleanup() error {
	days, err := c.days(0)
	if err != nil {
		return err
	}
	// Nothing is so old; stores need not cope with times before the common era.
	deleted, err := c.api.jobs.Cleanup(c.ctx, min(days, math.MaxInt32))
	if err != nil {
		return err
	}
	c.out = append(c.out[:0], `{"ok":true,"deleted":`...)
	c.out = strconv.AppendInt(c.out, int64(deleted), 10)
	c.out = append(c.out, `,"days":`...)
	c.out = append(strconv.AppendInt(c.out, int64(days), 10), '}')
	return nil
}

// value answers with a value.
func (c *jobsCall) value(v any) error {
	b, err := json.Marshal(v)
	c.out = append(c.out[:0], b...)
	return err
}
