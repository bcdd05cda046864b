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
	m := &jobs.Changes{}
	living, leases := map[uint64]int{}, map[string]int{} // where they are in m
	keys, answered := map[string]int{}, map[[2]string]int{}
	tallies, counts := map[tallyKey]int{}, map[countKey]int{}
	for _, c := range all {
		for _, id := range c.Unleased {
			drop(leases, id, m.Leases, func(l *jobs.Lease) { l.ID = "" })
		}
		for _, k := range c.Dropped {
			drop(keys, k, m.Keys, func(k *jobs.Key) { k.Key = "" })
		}
		for i := range c.Forgot {
			drop(answered, [2]string{c.Forgot[i].WorkerID, c.Forgot[i].RequestID}, m.Answered, func(a *jobs.Answered) { a.RequestID = "" })
		}
		m.Unleased, m.Dropped, m.Forgot = append(m.Unleased, c.Unleased...), append(m.Dropped, c.Dropped...), append(m.Forgot, c.Forgot...)
		for i := range c.Jobs {
			j := c.Jobs[i]
			if at, ok := living[j.Seq]; ok {
				j.What |= m.Jobs[at].What
			}
			put(living, j.Seq, &m.Jobs, j)
		}
		for i := range c.Leases {
			put(leases, c.Leases[i].ID, &m.Leases, c.Leases[i])
		}
		for i := range c.Ended {
			drop(living, c.Ended[i].Seq, m.Jobs, func(j *jobs.JobChange) { j.Seq = 0 })
		}
		for i := range c.Keys {
			put(keys, c.Keys[i].Key, &m.Keys, c.Keys[i])
		}
		for i := range c.Answered {
			put(answered, [2]string{c.Answered[i].WorkerID, c.Answered[i].RequestID}, &m.Answered, c.Answered[i])
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
	m.Jobs = slices.DeleteFunc(m.Jobs, func(j jobs.JobChange) bool { return j.Seq == 0 })
	m.Leases = slices.DeleteFunc(m.Leases, func(l jobs.Lease) bool { return l.ID == "" })
	m.Keys = slices.DeleteFunc(m.Keys, func(k jobs.Key) bool { return k.Key == "" })
	m.Answered = slices.DeleteFunc(m.Answered, func(a jobs.Answered) bool { return a.RequestID == "" })
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

// drop marks what has the key as gone, if it is there.
func drop[K comparable, T any](places map[K]int, key K, all []T, mark func(*T)) {
	if at, ok := places[key]; ok {
		mark(&all[at])
		delete(places, key)
	}
}
