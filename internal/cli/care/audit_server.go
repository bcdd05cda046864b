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
func entries(ctx context.Context, b *app.Backend, q audit.Query, follow bool) iter.Seq2[audit.Entry, error] {
	switch {
	case b.Store != nil && follow:
		return audit.Open(b.Store.Root(), audit.Options{}).Follow(ctx, q)
	case b.Store != nil:
		return audit.Open(b.Store.Root(), audit.Options{}).Read(ctx, q)
	}
	return func(yield func(audit.Entry, error) bool) {
		r := eventReader{log: b.Far.Events(), query: lokt.EventQuery{Name: q.Name, Since: q.Since, Until: q.Until}, shown: b.Far.Shown, yield: yield}
		if q.Event != "" {
			r.query.Types = []lokt.EventType{lokt.EventType(q.Event)}
		}
		read := r.rest
		if q.Limit > 0 {
			read = func(ctx context.Context) error { return r.latest(ctx, q.Limit) }
		}
		err := read(ctx)
		switch {
		case errors.Is(err, errEnough) || ctx.Err() != nil && follow:
		case err != nil && !yield(audit.Entry{}, err):
		case follow:
			r.follow(ctx)
		}
	}
}

// errEnough says that the reader wants no more.
var errEnough = errors.New("enough")

// eventReader reads the events of a server as entries of an audit log.
type eventReader struct {
	log   lokt.EventLog
	query lokt.EventQuery // After is the last event that was read
	shown func(leaseID string) string
	yield func(audit.Entry, error) bool
}

// rest passes on the events that have not been read yet.
func (r *eventReader) rest(ctx context.Context) error {
	for {
		page, err := r.log.ReadEvents(ctx, r.query)
		if err != nil {
			return err
		}
		if after := r.query.After; after > 0 && page.Oldest > after+1 &&
			!r.yield(audit.Entry{}, fmt.Errorf("%w: the server has forgotten events before they could be read", lokt.ErrUnavailable)) {
			return errEnough
		}
		if err := r.pass(page.Events); err != nil {
			return err
		}
		if !page.More || len(page.Events) == 0 {
			r.query.After = max(r.query.After, page.Newest)
			return nil
		}
	}
}

// latest passes on the newest n of the events that are there.
func (r *eventReader) latest(ctx context.Context, n int) error {
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
	err := r.pass(found)
	r.query.After = max(newest, r.query.After)
	return err
}

func (r *eventReader) pass(events []lokt.LoggedEvent) error {
	for _, e := range events {
		r.query.After = e.Seq
		e.LeaseID = r.shown(e.LeaseID)
		entry := audit.FromEvent(e.Event)
		entry.Raw = bytes.TrimSuffix(audit.Encode([]lokt.Event{e.Event}), []byte("\n"))
		if !r.yield(entry, nil) {
			return errEnough
		}
	}
	return nil
}

// retry is the pause before a server that does not answer is asked again.
const retry = time.Second

// follow passes on the events that come. It tells of an outage when it begins, and asks again until it is over.
func (r *eventReader) follow(ctx context.Context) {
	for away := false; ctx.Err() == nil; {
		err := r.log.WaitEvents(ctx, r.query.After)
		if err == nil {
			err = r.rest(ctx)
		}
		down := errors.Is(err, lokt.ErrUnavailable)
		switch {
		case errors.Is(err, errEnough) || ctx.Err() != nil:
			return
		case err != nil && !(down && away) && !r.yield(audit.Entry{}, err), err != nil && !down:
			return
		case err != nil:
			app.Pause(ctx, retry)
		}
		away = err != nil
	}
}
