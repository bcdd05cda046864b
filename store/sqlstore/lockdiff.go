package sqlstore

import (
	"cmp"
	"slices"

	"github.com/lokt-dev/lokt"
)

func leaseOfHolder(h *lokt.Holder) string  { return h.LeaseID }
func leaseOfWaiter(w **lokt.Waiter) string { return (*w).LeaseID }

// byLease returns where those with each lease are.
func byLease[T any](all []T, lease func(*T) string) map[string]int {
	if len(all) == 0 {
		return nil
	}
	where := make(map[string]int, len(all))
	for i := range all {
		where[lease(&all[i])] = i
	}
	return where
}

// putInOrder gives the holders and waiters of a lock the places that they had, or new ones.
func putInOrder(was, is *entry) {
	is.holders = keepPlaces(was.lock.Holders, was.holders, is.lock.Holders, leaseOfHolder)
	is.waiters = keepPlaces(was.lock.Queue, was.waiters, is.lock.Queue, leaseOfWaiter)
	is.stored = true
}

func keepPlaces[T any](was []T, had []int64, is []T, lease func(*T) string) []int64 {
	if len(is) == 0 {
		return nil
	}
	old := byLease(was, lease)
	return arrange(len(is), func(i int) (int64, bool) {
		j, ok := old[lease(&is[i])]
		if !ok {
			return 0, false
		}
		return had[j], true
	})
}

// difference returns what became of a lock whose parts have their places.
func difference(was, is *entry) lockChange {
	l := &is.lock
	c := lockChange{name: l.Name, revision: l.Revision, token: l.Token}
	if c.frozen = !sameFreeze(was.lock.Freeze, l.Freeze); c.frozen {
		c.freeze = l.Freeze
	}
	c.holders, c.released = replaced(was.lock.Holders, was.holders, l.Holders, is.holders, leaseOfHolder, sameHolder)
	c.waiters, c.left = replaced(was.lock.Queue, was.waiters, l.Queue, is.waiters, leaseOfWaiter, sameWaiter)
	return c
}

// replaced returns who is new or differs, and the leases of those that are gone.
func replaced[T any](was []T, had []int64, is []T, has []int64, lease func(*T) string, same func(a, b T) bool) (put []placed[T], gone []string) {
	old := byLease(was, lease)
	for i := range is {
		j, ok := old[lease(&is[i])]
		if !ok || had[j] != has[i] || !same(was[j], is[i]) {
			put = append(put, placed[T]{has[i], is[i]})
		}
		delete(old, lease(&is[i]))
	}
	for l := range old {
		gone = append(gone, l)
	}
	return put, gone
}

// journalable reports whether what is written of a lock cannot be refused later, when its rows are: no lease is there twice, and
// everything has a form in which it is stored.
func journalable(l *lokt.Lock) bool {
	if len(l.Holders) > 1 && len(byLease(l.Holders, leaseOfHolder)) < len(l.Holders) ||
		len(l.Queue) > 1 && len(byLease(l.Queue, leaseOfWaiter)) < len(l.Queue) {
		return false
	}
	for i := range l.Holders {
		if _, err := encodeYield(l.Holders[i].Yield); err != nil {
			return false
		}
	}
	return true
}

// total returns what changes of a lock, one after another, come to: to make a large lock anew for each would take long.
func total(all []*lockChange) *lockChange {
	t := *all[len(all)-1]
	for _, c := range slices.Backward(all) {
		if c.frozen {
			t.frozen, t.freeze = true, c.freeze
			break
		}
	}
	t.holders, t.released = latest(all, func(c *lockChange) ([]placed[lokt.Holder], []string) { return c.holders, c.released }, leaseOfHolder)
	t.waiters, t.left = latest(all, func(c *lockChange) ([]placed[*lokt.Waiter], []string) { return c.waiters, c.left }, leaseOfWaiter)
	return &t
}

// latest returns what the last of the changes that are about it say of each lease.
func latest[T any](all []*lockChange, of func(*lockChange) ([]placed[T], []string), lease func(*T) string) (put []placed[T], gone []string) {
	known := map[string]bool{}
	for _, c := range slices.Backward(all) {
		came, went := of(c)
		for i := range came {
			if l := lease(&came[i].one); !known[l] {
				known[l], put = true, append(put, came[i])
			}
		}
		for _, l := range went {
			if !known[l] {
				known[l], gone = true, append(gone, l)
			}
		}
	}
	return put, gone
}

// after returns what a lock became of what it was.
func (c *lockChange) after(was *entry) *entry {
	is := &entry{lock: was.lock.Clone(), stored: true}
	l := &is.lock
	l.Revision, l.Token = c.revision, c.token
	if c.frozen {
		l.Freeze = c.freeze
	}
	l.Holders, is.holders = replace(l.Holders, was.holders, c.holders, c.released, leaseOfHolder)
	l.Queue, is.waiters = replace(l.Queue, was.waiters, c.waiters, c.left, leaseOfWaiter)
	return is
}

// replace does what replaced found out.
func replace[T any](was []T, had []int64, put []placed[T], gone []string, lease func(*T) string) (is []T, has []int64) {
	without := make(map[string]bool, len(put)+len(gone))
	for _, l := range gone {
		without[l] = true
	}
	for i := range put {
		without[lease(&put[i].one)] = true
	}
	all := slices.Clone(put)
	for i := range was {
		if !without[lease(&was[i])] {
			all = append(all, placed[T]{had[i], was[i]})
		}
	}
	slices.SortFunc(all, func(a, b placed[T]) int { return cmp.Compare(a.place, b.place) })
	for i := range all {
		is, has = append(is, all[i].one), append(has, all[i].place)
	}
	return is, has
}
