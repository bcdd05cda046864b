package sqlstore

import (
	"cmp"
	"slices"

	"github.com/lokt-dev/lokt/jobs"
)

// merge returns what several turns changed, one after another, as one change: what was made and is gone again is not in it. It
// leaves them as they are.
func merge(all []*jobs.Changes) *jobs.Changes {
	if len(all) == 1 {
		return all[0]
	}
	m := roomFor(all)
	living, leases := newest[uint64, jobs.JobChange]{}, newest[string, jobs.Lease]{}
	keys, answered := newest[string, jobs.Key]{}, newest[[2]string, jobs.Answered]{}
	var what []jobs.What // of living, all that changed
	tallies, counts := map[tallyKey]int{}, map[countKey]int{}
	granted := map[string]bool{} // leases that are not stored yet
	for _, c := range all {
		for i := range c.Events {
			if e := &c.Events[i]; e.Type == jobs.EventGrant {
				granted[e.LeaseID] = true
			}
		}
		for _, id := range c.Unleased {
			if leases.drop(id); granted[id] {
				delete(granted, id)
			} else {
				m.Unleased = append(m.Unleased, id)
			}
		}
		for _, k := range c.Dropped {
			keys.drop(k)
		}
		for i := range c.Forgot {
			answered.drop([2]string{c.Forgot[i].WorkerID, c.Forgot[i].RequestID})
		}
		m.Dropped, m.Forgot = append(m.Dropped, c.Dropped...), append(m.Forgot, c.Forgot...)
		for i := range c.Jobs {
			j := &c.Jobs[i]
			if at := living.put(j.Seq, j); at == len(what) {
				what = append(what, j.What)
			} else {
				what[at] |= j.What
			}
		}
		for i := range c.Leases {
			leases.put(c.Leases[i].ID, &c.Leases[i])
		}
		for i := range c.Ended {
			living.drop(c.Ended[i].Seq)
		}
		for i := range c.Keys {
			keys.put(c.Keys[i].Key, &c.Keys[i])
		}
		for i := range c.Answered {
			answered.put([2]string{c.Answered[i].WorkerID, c.Answered[i].RequestID}, &c.Answered[i])
		}
		m.Ended, m.Attempts, m.Events = append(m.Ended, c.Ended...), append(m.Attempts, c.Attempts...), append(m.Events, c.Events...)
		for i := range c.Tallies {
			t := &c.Tallies[i]
			k := tallyKey{t.Hour.UnixMilli(), t.Type}
			if _, ok := tallies[k]; !ok {
				put(tallies, k, &m.Tallies, jobs.Tally{Hour: t.Hour, Type: t.Type})
			}
			m.Tallies[tallies[k]].Add(*t)
		}
		for _, n := range c.Counts {
			k := countKey{n.Hour.UnixMilli(), string(n.Event), n.Tag}
			if at, ok := counts[k]; ok {
				n.N += m.Counts[at].N
			}
			put(counts, k, &m.Counts, n)
		}
		if c.Refrozen {
			m.Refrozen, m.Frozen = true, c.Frozen
		}
		m.Time, m.Counters = c.Time, c.Counters
	}
	m.Jobs = make([]jobs.JobChange, 0, len(living.at))
	for at, j := range living.all {
		if j != nil {
			m.Jobs = append(m.Jobs, jobs.JobChange{Job: j.Job, What: what[at]})
		}
	}
	m.Leases, m.Keys, m.Answered = leases.values(), keys.values(), answered.values()
	slices.SortFunc(m.Jobs, func(a, b jobs.JobChange) int { return cmp.Compare(a.Revision, b.Revision) })
	return m
}

// put adds something to a list, or replaces what has the same key there.
func put[K comparable, T any](places map[K]int, key K, all *[]T, one T) {
	if at, ok := places[key]; ok {
		(*all)[at] = one
		return
	}
	places[key] = len(*all)
	*all = append(*all, one)
}

// roomFor returns a change without anything in it that has room for what there is most of.
func roomFor(all []*jobs.Changes) *jobs.Changes {
	var ended, attempts, events int
	for _, c := range all {
		ended, attempts, events = ended+len(c.Ended), attempts+len(c.Attempts), events+len(c.Events)
	}
	return &jobs.Changes{
		Ended: make([]jobs.Job, 0, ended), Attempts: make([]jobs.Attempt, 0, attempts),
		Events: make([]jobs.Event, 0, events),
	}
}

// newest has what was put last under each key, in the order in which they came.
type newest[K comparable, T any] struct {
	at  map[K]int
	all []*T // nil for what is gone
}

// put returns the place.
func (n *newest[K, T]) put(key K, one *T) int {
	if at, ok := n.at[key]; ok {
		n.all[at] = one
		return at
	}
	if n.at == nil {
		n.at = map[K]int{}
	}
	at := len(n.all)
	n.at[key], n.all = at, append(n.all, one)
	return at
}

func (n *newest[K, T]) drop(key K) {
	if at, ok := n.at[key]; ok {
		n.all[at] = nil
		delete(n.at, key)
	}
}

// values returns what is there.
func (n *newest[K, T]) values() []T {
	all := make([]T, 0, len(n.at))
	for _, one := range n.all {
		if one != nil {
			all = append(all, *one)
		}
	}
	return all
}
