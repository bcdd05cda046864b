package lokt

import (
	"cmp"
	"slices"
	"strings"
)

// FindDeadlock looks for claims that wait for each other in a circle, in locks as List(Filter{Queued: true}) yields
// them.
//
// A claim waits for the holders in its way, and for the claims ahead of it in the queue. Such a holder is bound to a
// waiting claim if the claim's Within names its lease; all others may end at any time. So a claim is stuck if it could
// not enter even when every hold had ended that is not bound to a stuck claim; of a semaphore, one slot that may come
// free is enough. What is stale, and claims that merely wait for stuck ones, are no part of a circle.
//
// The victim is the claim that should give way: of those in a circle to which a hold in that circle is bound, the one
// queued last, and of several queued at once the one with the greatest lease ID; but first one that a scheduler makes for a
// job (owner job:ID), which stands in the queue again later. It depends on nothing else, so all who look at the same locks
// choose the same victim. cycle tells people about one circle through it: an owner, the lock it
// waits for, the owner whose claim keeps that one, and so on to the first owner again.
func FindDeadlock(locks []Snapshot) (victim Waiter, cycle []string, found bool) {
	g := newWaitGraph(locks)
	g.dropFree()
	g.connect()
	best := -1
	var way []int
	for i := range g.nodes {
		if best < 0 || g.nodes[best].before(g.nodes[i]) {
			if w := g.circle(i); w != nil {
				best, way = i, w
			}
		}
	}
	if best < 0 {
		return Waiter{}, nil, false
	}
	cycle = []string{g.nodes[best].waiter.Owner.String()}
	for _, i := range way {
		cycle = append(cycle, g.nodes[i].lock.Name, g.nodes[i].waiter.Owner.String())
	}
	slices.Reverse(cycle)
	return g.nodes[best].waiter, cycle, true
}

// waitGraph says which queued claims wait for which.
type waitGraph struct {
	nodes []*waitNode
	edges [][]waitEdge     // by node
	bound map[string][]int // nodes whose claim is made within the lease
}

// waitNode is a live queued claim.
type waitNode struct {
	waiter Waiter
	lock   *Lock // with its live holders only
	ahead  []int // the claims that must go first, nearest last; those ahead of them in turn may be left out
	stuck  bool
	wanted bool // a hold that is bound to it is in the way of another stuck claim
}

type waitEdge struct {
	to    int
	bound bool // a hold in the way is bound to it; otherwise it is ahead in the queue
}

// before orders claims by age; it is the order in which victims are chosen, last first.
func (n *waitNode) before(o *waitNode) bool {
	if job := n.ofJob(); job != o.ofJob() {
		return !job
	}
	return cmp.Or(
		n.waiter.Since.Compare(o.waiter.Since),
		cmp.Compare(n.waiter.LeaseID, o.waiter.LeaseID),
		cmp.Compare(n.lock.Name, o.lock.Name),
	) < 0
}

// ofJob reports whether the claim is made for a job: the prefix is jobs.OwnerPrefix.
func (n *waitNode) ofJob() bool { return strings.HasPrefix(n.waiter.Owner.ID, "job:") }

func newWaitGraph(locks []Snapshot) *waitGraph {
	locks = slices.Clone(locks)
	slices.SortFunc(locks, func(a, b Snapshot) int { return cmp.Compare(a.Lock.Name, b.Lock.Name) })
	g := &waitGraph{bound: map[string][]int{}}
	for _, s := range locks {
		l := &Lock{Name: s.Lock.Name, Holders: s.Live()}
		var ahead []int
		plain := !slices.ContainsFunc(l.Holders, func(h Holder) bool { return len(h.Paths) > 0 })
		for _, w := range s.Lock.Queue {
			if _, in := l.Holder(w.LeaseID); in || s.Away(w) {
				continue
			}
			i := len(g.nodes)
			n := &waitNode{waiter: *w, lock: l, stuck: true}
			for _, j := range ahead {
				if l.passes(&g.nodes[j].waiter, &w.Claim) {
					n.ahead = append(n.ahead, j)
				}
			}
			if plain = plain && len(w.Paths) == 0; plain && len(n.ahead) == len(ahead) { // the next one waits for this one, and so for all ahead of it
				ahead = nil
			}
			ahead = append(slices.Clip(ahead), i)
			g.nodes = append(g.nodes, n)
			for _, id := range w.Within {
				g.bound[id] = append(g.bound[id], i)
			}
		}
	}
	return g
}

// keepers returns the stuck claims to which the lease is bound.
func (g *waitGraph) keepers(leaseID string) []int {
	return slices.DeleteFunc(slices.Clone(g.bound[leaseID]), func(i int) bool { return !g.nodes[i].stuck })
}

// dropFree finds out which claims are stuck: all but those that could enter once what may end has ended, and then those
// that could enter once these have been and gone, and so on.
func (g *waitGraph) dropFree() {
	for changed := true; changed; {
		changed = false
		for _, n := range g.nodes {
			if !n.stuck || slices.ContainsFunc(n.ahead, func(i int) bool { return g.nodes[i].stuck }) {
				continue
			}
			if g.staying(n).admits(&n.waiter.Claim) {
				n.stuck, changed = false, true
			}
		}
	}
}

// staying returns the lock that the claim waits for with those holders only that are bound to stuck claims.
func (g *waitGraph) staying(n *waitNode) *Lock {
	free := func(h Holder) bool { return len(g.keepers(h.LeaseID)) == 0 }
	return &Lock{Name: n.lock.Name, Holders: slices.DeleteFunc(slices.Clone(n.lock.Holders), free)}
}

// connect draws the edges between stuck claims.
func (g *waitGraph) connect() {
	g.edges = make([][]waitEdge, len(g.nodes))
	for i, n := range g.nodes {
		if !n.stuck {
			continue
		}
		if staying := g.staying(n); !staying.admits(&n.waiter.Claim) { // otherwise only those ahead keep it
			for _, h := range staying.inTheWay(&n.waiter.Claim) {
				for _, to := range g.keepers(h.LeaseID) {
					g.edges[i] = append(g.edges[i], waitEdge{to: to, bound: true})
					g.nodes[to].wanted = true
				}
			}
		}
		for _, to := range n.ahead {
			if g.nodes[to].stuck {
				g.edges[i] = append(g.edges[i], waitEdge{to: to})
			}
		}
	}
}

// circle returns a shortest way from the claim back to itself, last node first, which ends with the claim itself. It is
// nil if there is none, or no hold in the circle is bound to the claim.
func (g *waitGraph) circle(start int) []int {
	if !g.nodes[start].wanted {
		return nil
	}
	from, bound := map[int]int{}, false
	for next := []int{start}; len(next) > 0; next = next[1:] {
		i := next[0]
		for _, e := range g.edges[i] {
			bound = bound || e.to == start && e.bound
			if _, seen := from[e.to]; !seen {
				from[e.to] = i
				next = append(next, e.to)
			}
		}
	}
	if !bound {
		return nil
	}
	way := []int{from[start]}
	for i := from[start]; i != start; i = from[i] {
		way = append(way, from[i])
	}
	return way
}
