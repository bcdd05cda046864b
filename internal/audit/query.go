package audit

import (
	"context"
	"iter"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
)

// Query says which entries to read. Its Limit is of those that are there, the newest; 0 lets all of them through, and a
// negative one none, so that Follow begins with what comes.
type Query = lokt.EventQuery

// matches reports whether the query lets an entry through, which has no number.
func matches(q *Query, l *line) bool {
	return q.Matches(&lokt.LoggedEvent{Seq: q.After + 1, Event: lokt.Event{
		Time: l.ts, Type: lokt.EventType(l.Event), Name: value[string](l.Name), Owner: lokt.Owner{ID: value[string](l.Owner)},
	}})
}

// Read reads the entries that are in the log when the iteration begins, in the order in which they were appended.
//
// Errors do not end the sequence. A *GarbageError reports a line that is not an entry, and callers do well to count
// these and go on. Any other error means that a file of the log cannot be read, which the sequence goes on without;
// or, the last one, that ctx has ended before everything was read.
func (l *Log) Read(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		r := &reader{log: l, query: q}
		defer r.close()
		stopped := false
		out := func(e Entry, err error) bool {
			stopped = stopped || !yield(e, err)
			return !stopped
		}
		if !r.begin(ctx, true, out) && !stopped {
			yield(Entry{}, context.Cause(ctx))
		}
	}
}

// Follow reads like Read, and then goes on with the entries that are appended, as they come. Only ctx ends it, which is
// no error. It keeps the log's files open while it waits.
func (l *Log) Follow(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		r := &reader{log: l, query: q}
		defer r.close()
		tick := time.NewTicker(l.poll)
		defer tick.Stop()
		for goOn := r.begin(ctx, false, yield); goOn; goOn = r.again(ctx, yield) {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

// begin passes on what is in the log. It reports false if yield did or ctx has ended. If it is final, a line without
// end is taken for what it is.
func (r *reader) begin(ctx context.Context, final bool, yield func(Entry, error) bool) bool {
	if !tell(r.look(ctx), yield) {
		return false
	}
	if r.query.Limit == 0 {
		for _, s := range r.sources {
			if !r.drain(ctx, s, final, yield) {
				return false
			}
		}
		return ctx.Err() == nil
	}
	// Older files are read only if the newer ones have too little.
	var newest []Entry
	need := max(r.query.Limit, 0)
	for _, s := range slices.Backward(r.sources) {
		var part []Entry
		keep := func(e Entry, err error) bool {
			if err != nil {
				return yield(e, err)
			}
			if part = append(part, e); len(part) >= 2*need {
				part = append(part[:0], part[len(part)-need:]...)
			}
			return true
		}
		if need == 0 {
			_ = s.read(ctx, false, func(int64, []byte) bool { return true }) // goes on with what comes
		} else if !r.drain(ctx, s, final, keep) {
			return false
		}
		part = part[max(0, len(part)-need):]
		need -= len(part)
		newest = slices.Concat(part, newest)
	}
	for _, e := range newest {
		if !yield(e, nil) {
			return false
		}
	}
	return ctx.Err() == nil
}

// again passes on what has come since the last look, and lets go of files that are no longer part of the log.
func (r *reader) again(ctx context.Context, yield func(Entry, error) bool) bool {
	if !tell(r.look(ctx), yield) {
		return false
	}
	for _, s := range r.sources {
		if !r.drain(ctx, s, s.gone, yield) {
			return false
		}
	}
	r.sources = slices.DeleteFunc(r.sources, func(s *source) bool {
		if s.gone {
			s.f.Close()
		}
		return s.gone
	})
	return ctx.Err() == nil
}

// tell yields errors, and reports whether to go on.
func tell(errs []error, yield func(Entry, error) bool) bool {
	for _, err := range errs {
		if !yield(Entry{}, err) {
			return false
		}
	}
	return true
}
