package httpapi

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// query reads the parameters of a URL and keeps the first thing that is wrong with them.
type query struct {
	url.Values
	c   *call
	err error
}

func (c *call) query() *query {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	q := &query{Values: values, c: c}
	if err != nil {
		q.err = invalid("query cannot be read: %v", err)
	}
	return q
}

// parsed returns a parameter, or the zero value if it is absent.
func parsed[T any](q *query, name, what string, parse func(string) (T, error)) (value T) {
	text := q.Get(name)
	if text == "" {
		return value
	}
	value, err := parse(text)
	if err != nil {
		q.err = cmp.Or(q.err, invalid("%s is not %s", name, what))
	}
	return value
}

func (q *query) uint(name string) uint64 {
	return parsed(q, name, "a number from 0 to 18446744073709551615", func(text string) (uint64, error) {
		return strconv.ParseUint(text, 10, 64)
	})
}

func (q *query) time(name string) time.Time {
	return parsed(q, name, "a time as of RFC 3339", func(text string) (time.Time, error) {
		return time.Parse(time.RFC3339Nano, text)
	})
}

// bool returns a truth value. A name alone is true.
func (q *query) bool(name string) bool {
	return q.Has(name) && q.Get(name) == "" || parsed(q, name, "true or false", strconv.ParseBool)
}

// wait returns how long the request may wait.
func (q *query) wait() time.Duration {
	ms := q.uint("wait_ms")
	return time.Duration(min(ms, uint64(q.c.s.Limits.Wait/time.Millisecond))) * time.Millisecond
}

// target reads who ends what, and how.
func (q *query) target(name string) lokt.Target {
	t := lokt.Target{Name: name, Force: q.bool("force"), Stale: q.bool("stale"), Owner: lokt.Owner{
		ID: q.Get("owner"), Session: q.Get("session"), AnySession: q.bool("any_session"), Host: q.Get("host"),
	}}
	pid := q.uint("pid")
	if pid > 1<<31 {
		q.err = cmp.Or(q.err, invalid("pid is not a process ID"))
	}
	t.Owner.Process.PID = int(pid) //nolint:gosec // bounded above
	if q.err == nil && t.Owner != (lokt.Owner{}) {
		t.Owner, q.err = q.c.view().stored(t.Owner)
	}
	return t
}

// targetValues is the inverse of target, but for the name and the lease ID.
func targetValues(t lokt.Target) url.Values {
	return values(map[string]any{
		"owner": t.Owner.ID, "session": t.Owner.Session, "host": t.Owner.Host, "pid": t.Owner.Process.PID,
		"any_session": t.Owner.AnySession,
		"force":       t.Force, "stale": t.Stale,
	})
}

// values returns parameters of a URL; those that are zero are left out.
func values(named map[string]any) url.Values {
	v := url.Values{}
	for name, value := range named {
		if reflect.ValueOf(value).IsZero() {
			continue
		}
		if t, is := value.(time.Time); is {
			value = t.UTC().Format(time.RFC3339Nano)
		}
		v.Set(name, fmt.Sprint(value))
	}
	return v
}
