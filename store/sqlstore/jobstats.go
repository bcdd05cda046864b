package sqlstore

import (
	"context"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// addUpAfter is after how many turns their additions are added up.
const addUpAfter = 64

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
		*fresh++
	}
	if *fresh < addUpAfter {
		return nil
	}
	*fresh = 0 // not quite so if this is not committed, but then it is counted anew, or put back
	return addUp(ctx, q)
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
		var a addition
		r.decode(&a)
		for i := range a.Tallies {
			into.tally(a.Tallies[i].tally())
		}
		for _, n := range a.Counts {
			into.counts[countKey{n.Hour, n.Event, n.Tag}] += n.N
		}
		return nil
	})
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

// addUp adds what turns added to the sums.
func addUp(ctx context.Context, q querier) error {
	add := newSums()
	if err := readAdditions(ctx, q, -1<<63, add); err != nil {
		return err
	}
	for k, t := range add.tallies {
		if err := q.query(ctx, "SELECT body FROM tallies WHERE hour = ? AND type = ?", []any{k.hour, k.jobType}, func(r *row) error {
			var have tallyDocument
			r.decode(&have)
			t.Add(have.tally())
			return nil
		}); err != nil {
			return err
		}
		body, err := encode(documentOfTally(&t))
		if err != nil {
			return err
		}
		if err := q.exec(ctx, "INSERT INTO tallies (hour, type, body) VALUES (?, ?, ?) ON CONFLICT (hour, type) DO UPDATE SET body = excluded.body",
			k.hour, k.jobType, body); err != nil {
			return err
		}
	}
	for k, n := range add.counts {
		if err := q.exec(ctx, "INSERT INTO counts (hour, event, tag, n) VALUES (?, ?, ?, ?) ON CONFLICT (hour, event, tag) DO UPDATE SET n = counts.n + excluded.n",
			k.hour, k.event, k.tag, n); err != nil {
			return err
		}
	}
	return q.exec(ctx, "DELETE FROM stats_new")
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
