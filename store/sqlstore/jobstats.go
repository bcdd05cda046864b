package sqlstore

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// After how many turns their additions are added up: or fewer, if what they add is more than so much each. More than that of so many is not added
// up at once, so that it takes a moment whatever there is.
const (
	addUpAfter = 64
	addUpEach  = 256
)

// writeStats stores what is to be added to the statistics: as one row, and after some turns all of these rows are added up. fresh counts
// them.
func writeStats(ctx context.Context, q querier, c *jobs.Changes, fresh *int) error {
	if len(c.Tallies) > 0 || len(c.Counts) > 0 {
		var add addition
		hour := int64(-1 << 63) // of the last of them
		for i := range c.Tallies {
			add.Tallies = append(add.Tallies, documentOfTally(&c.Tallies[i]))
			hour = max(hour, add.Tallies[i].Hour)
		}
		for i, n := range c.Counts {
			add.Counts = append(add.Counts, countDocument{n.Hour.UnixMilli(), string(n.Event), n.Tag, n.N})
			hour = max(hour, add.Counts[i].Hour)
		}
		body, err := encode(add)
		if err != nil {
			return err
		}
		if err := q.exec(ctx, "INSERT INTO stats_new (hour, body) VALUES (?, ?)", hour, body); err != nil {
			return err
		}
		*fresh += 1 + (len(add.Tallies)+len(add.Counts))/addUpEach
	}
	if *fresh < addUpAfter {
		return nil
	}
	left, err := addUp(ctx, q)
	if err == nil && !left {
		*fresh = 0 // not quite so if this is not committed, but then it is counted anew, or put back
	}
	return err
}

// sums are statistics, added up.
type sums struct {
	tallies map[tallyKey]jobs.Tally
	counts  map[countKey]int64
}

type tallyKey struct {
	hour    int64
	jobType string
}

type countKey struct {
	hour       int64
	event, tag string
}

func readAdditions(ctx context.Context, q querier, from int64, into *sums) error {
	return q.query(ctx, "SELECT body FROM stats_new WHERE hour >= ?", []any{from}, func(r *row) error {
		into.addition(r)
		return nil
	})
}

// addition adds what the next column has, and returns how much it is.
func (s *sums) addition(r *row) int {
	var a addition
	r.decode(&a)
	for i := range a.Tallies {
		s.tally(a.Tallies[i].tally())
	}
	for _, n := range a.Counts {
		s.counts[countKey{n.Hour, n.Event, n.Tag}] += n.N
	}
	return len(a.Tallies) + len(a.Counts)
}

func (s *sums) tally(t jobs.Tally) {
	k := tallyKey{t.Hour.UnixMilli(), t.Type}
	sum := s.tallies[k]
	sum.Hour, sum.Type = t.Hour, t.Type
	sum.Add(t)
	s.tallies[k] = sum
}

func newSums() *sums {
	return &sums{tallies: map[tallyKey]jobs.Tally{}, counts: map[countKey]int64{}}
}

// addUp adds what turns added to the sums, that of the oldest first, and reports whether it left some.
func addUp(ctx context.Context, q querier) (left bool, err error) {
	add, last := newSums(), int64(-1<<63)
	for n, rows := 0, addUpAfter; rows == addUpAfter && !left; {
		rows = 0
		if err := q.query(ctx, "SELECT id, body FROM stats_new WHERE id > ? ORDER BY id LIMIT ?", []any{last, addUpAfter}, func(r *row) error {
			rows++
			if left = left || n >= addUpAfter*addUpEach; !left {
				last = r.number()
				n += 1 + add.addition(r)
			}
			return nil
		}); err != nil {
			return false, err
		}
	}
	if err := addTallies(ctx, q, add.tallies); err != nil {
		return false, err
	}
	for k, n := range add.counts {
		if err := q.exec(ctx, "INSERT INTO counts (hour, event, tag, n) VALUES (?, ?, ?, ?) ON CONFLICT (hour, event, tag) DO UPDATE SET n = counts.n + excluded.n",
			k.hour, k.event, k.tag, n); err != nil {
			return false, err
		}
	}
	return left, q.exec(ctx, "DELETE FROM stats_new WHERE id <= ?", last)
}

// addTallies adds to those that are there, which are read many at once.
func addTallies(ctx context.Context, q querier, add map[tallyKey]jobs.Tally) error {
	keys := slices.Collect(maps.Keys(add))
	for part := range slices.Chunk(keys, addUpEach) {
		questions := make([]question, len(part))
		for i, k := range part {
			questions[i] = question{"SELECT body FROM tallies WHERE hour = ? AND type = ?", []any{k.hour, k.jobType}, func(r *row) error {
				var have tallyDocument
				r.decode(&have)
				t := add[k]
				t.Add(have.tally())
				add[k] = t
				return nil
			}}
		}
		if err := q.ask(ctx, questions...); err != nil {
			return err
		}
	}
	for _, k := range keys {
		t := add[k]
		body, err := encode(documentOfTally(&t))
		if err != nil {
			return err
		}
		if err := q.exec(ctx, "INSERT INTO tallies (hour, type, body) VALUES (?, ?, ?) ON CONFLICT (hour, type) DO UPDATE SET body = excluded.body",
			k.hour, k.jobType, body); err != nil {
			return err
		}
	}
	return nil
}

// History implements jobs.Store.
func (s *jobReader) History(ctx context.Context, from time.Time) (tallies []jobs.Tally, counts []jobs.Count, err error) {
	return s.historyBeside(ctx, from, nil)
}

func (s *jobReader) historyBeside(ctx context.Context, from time.Time, u unfolded) (tallies []jobs.Tally, counts []jobs.Count, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, nil, err
	}
	hour := int64(-1 << 63)
	if !from.IsZero() {
		hour = from.UnixMilli()
	}
	all := newSums()
	err = s.reading(ctx, "read", func(c querier) error {
		rest, err := s.rest(ctx, c, u)
		if err != nil {
			return err
		}
		for _, c := range rest {
			for _, t := range c.Tallies {
				all.tally(t)
			}
			for _, n := range c.Counts {
				all.counts[countKey{n.Hour.UnixMilli(), string(n.Event), n.Tag}] += n.N
			}
		}
		if err := c.query(ctx, "SELECT body FROM tallies WHERE hour >= ?", []any{hour}, func(r *row) error {
			var t tallyDocument
			r.decode(&t)
			all.tally(t.tally())
			return nil
		}); err != nil {
			return err
		}
		if err := c.query(ctx, "SELECT hour, event, tag, n FROM counts WHERE hour >= ?", []any{hour}, func(r *row) error {
			all.counts[countKey{r.number(), r.text(), r.text()}] += r.number()
			return nil
		}); err != nil {
			return err
		}
		return readAdditions(ctx, c, hour, all)
	})
	if err != nil {
		return nil, nil, err
	}
	for _, t := range all.tallies {
		if !t.Hour.Before(from) {
			tallies = append(tallies, t)
		}
	}
	for k, n := range all.counts {
		if h := time.UnixMilli(k.hour).UTC(); !h.Before(from) {
			counts = append(counts, jobs.Count{Hour: h, Event: jobs.EventType(k.event), Tag: k.tag, N: n})
		}
	}
	return tallies, counts, nil
}
