package care

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

// entries returns the entries of the audit log that the query lets through, and if follow is set goes on with those that
// come, until ctx ends. Errors do not end the sequence, but for the last of a server that is not followed.
func entries(b *app.Backend, ctx context.Context, q audit.Query, follow bool) iter.Seq2[audit.Entry, error] {
	switch {
	case b.Store != nil && follow:
		return audit.Open(b.Store.Root(), audit.Options{}).Follow(ctx, q)
	case b.Store != nil:
		return audit.Open(b.Store.Root(), audit.Options{}).Read(ctx, q)
	}
	return func(yield func(audit.Entry, error) bool) {
		r := eventReader{log: b.Far.Events(), query: lokt.EventQuery{Name: q.Name, Since: q.Since, Until: q.Until}, shown: b.Far.Shown}
		if q.Event != "" {
			r.query.Types = []lokt.EventType{lokt.EventType(q.Event)}
		}
		var err error
		if q.Limit > 0 {
			err = r.latest(ctx, q.Limit, yield)
		} else {
			err = r.rest(ctx, yield)
		}
		switch {
		case errors.Is(err, errEnough) || ctx.Err() != nil && follow:
		case err != nil && !yield(audit.Entry{}, err) || !follow:
		default:
			r.follow(ctx, yield)
		}
	}
}

// errEnough says that whoever reads wants no more.
var errEnough = errors.New("enough")

// eventReader reads the events of a server as entries of an audit log.
type eventReader struct {
	log   lokt.EventLog
	query lokt.EventQuery // After is what has been read
	shown func(leaseID string) string
}

// rest passes on what has not been read yet.
func (r *eventReader) rest(ctx context.Context, yield func(audit.Entry, error) bool) error {
	for {
		page, err := r.log.ReadEvents(ctx, r.query)
		if err != nil {
			return err
		}
		if after := r.query.After; after > 0 && page.Oldest > after+1 &&
			!yield(audit.Entry{}, fmt.Errorf("%w: the server has forgotten events before they could be read", lokt.ErrUnavailable)) {
			return errEnough
		}
		if err := r.pass(page.Events, yield); err != nil {
			return err
		}
		if !page.More || len(page.Events) == 0 {
			r.query.After = max(r.query.After, page.Newest)
			return nil
		}
	}
}

// latest passes on the newest n of the events that are there.
func (r *eventReader) latest(ctx context.Context, n int, yield func(audit.Entry, error) bool) error {
	var found []lokt.LoggedEvent
	q, newest := r.query, uint64(0)
	q.Latest = true
	for more := true; more; {
		q.Limit = min(n-len(found), lokt.MaxEvents)
		page, err := r.log.ReadEvents(ctx, q)
		if err != nil {
			return err
		}
		newest = max(newest, page.Newest)
		if found = append(page.Events, found...); len(found) > 0 {
			q.Before = found[0].Seq
		}
		more = page.More && len(found) < n
	}
	err := r.pass(found, yield)
	r.query.After = max(newest, r.query.After)
	return err
}

// pass passes events on.
func (r *eventReader) pass(events []lokt.LoggedEvent, yield func(audit.Entry, error) bool) error {
	for _, e := range events {
		r.query.After = e.Seq
		e.LeaseID = r.shown(e.LeaseID)
		entry := audit.FromEvent(e.Event)
		entry.Raw = bytes.TrimSuffix(audit.Encode([]lokt.Event{e.Event}), []byte("\n"))
		if !yield(entry, nil) {
			return errEnough
		}
	}
	return nil
}

// Pauses before a server that does not answer is asked again.
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// follow passes on what comes. It tells of an outage when it begins, and asks again until it is over.
func (r *eventReader) follow(ctx context.Context, yield func(audit.Entry, error) bool) {
	retry := firstRetry
	for ctx.Err() == nil {
		err := r.log.WaitEvents(ctx, r.query.After)
		if err == nil {
			err = r.rest(ctx, yield)
		}
		switch {
		case errors.Is(err, errEnough) || ctx.Err() != nil:
			return
		case err == nil:
			retry = firstRetry
			continue
		case !errors.Is(err, lokt.ErrUnavailable):
			yield(audit.Entry{}, err)
			return
		case retry == firstRetry && !yield(audit.Entry{}, err):
			return
		}
		app.Pause(ctx, retry)
		retry = min(2*retry, lastRetry)
	}
}
