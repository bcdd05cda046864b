package audit

import (
	"context"
	"iter"
	"slices"
	"time"
)

// Query says which entries to read. The zero Query lets all through.
type Query struct {
	Since time.Time // not before this time, if set
	Until time.Time // before this time, if set
	Name  string    // of this lock only, if set
	Event string    // of this event only, if set

	// Limit is how many of those entries that are there to read at most, the newest; 0 is all of them. If it is
	// negative, none are: Follow begins with what comes.
	Limit int
}

func (q Query) matches(l line) bool {
	return (q.Name == "" || value[string](l.Name) == q.Name) && (q.Event == "" || l.Event == q.Event) &&
		(q.Since.IsZero() || !l.ts.Before(q.Since)) && (q.Until.IsZero() || l.ts.Before(q.Until))
}

// Read reads the entries that are in the log when the iteration begins, in the order in which they were appended.
//
// Errors do not end the sequence. A *GarbageError reports a line that is not an entry, and callers do well to count
// these and go on. Any other error means that a file of the log cannot be read, which the sequence goes on without; or, the last
// one, that ctx has ended before everything was read.
func (l *Log) Read(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		r := l.reader(q)
		defer r.close()
		stopped := false
		out := func(e Entry, err error) bool {
			stopped = stopped || !yield(e, err)
			return !stopped
		}
		if r.begin(ctx, true, out) || stopped {
			return
		}
		yield(Entry{}, context.Cause(ctx))
	}
}

// Follow reads like Read, and then goes on with the entries that are appended, as they come. Only ctx ends it, which is
// no error. It keeps the log's files open while it waits.
func (l *Log) Follow(ctx context.Context, q Query) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		r := l.reader(q)
		defer r.close()
		if !r.begin(ctx, false, yield) {
			return
		}
		tick := time.NewTicker(l.opts.Poll)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if !r.again(ctx, yield) {
				return
			}
		}
	}
}

// begin passes on what is in the log. It reports false if yield did or ctx has ended. If it is final, a line without end
// is taken for what it is.
func (r *reader) begin(ctx context.Context, final bool, yield func(Entry, error) bool) bool {
	for _, err := range r.look(ctx) {
		if !yield(Entry{}, err) {
			return false
		}
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
	var parts [][]Entry
	need := max(r.query.Limit, 0)
	for _, s := range slices.Backward(r.sources) {
		if need == 0 {
			s.skip(r.buf)
			continue
		}
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
		if !r.drain(ctx, s, final, keep) {
			return false
		}
		part = part[max(0, len(part)-need):]
		need -= len(part)
		parts = append(parts, part)
	}
	for _, part := range slices.Backward(parts) {
		for _, e := range part {
			if !yield(e, nil) {
				return false
			}
		}
	}
	return ctx.Err() == nil
}

// again passes on what has come since the last look, and lets go of files that are no longer part of the log.
func (r *reader) again(ctx context.Context, yield func(Entry, error) bool) bool {
	for _, err := range r.look(ctx) {
		if !yield(Entry{}, err) {
			return false
		}
	}
	for _, s := range r.sources {
		if !r.drain(ctx, s, !s.found, yield) {
			return false
		}
	}
	r.sources = slices.DeleteFunc(r.sources, func(s *source) bool {
		if !s.found {
			s.f.Close()
		}
		return !s.found
	})
	return ctx.Err() == nil
}
