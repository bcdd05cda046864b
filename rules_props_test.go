package lokt

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A world is one lock, the clock and the deaths around it, and the claims made so far. Its steps are requests, answered
// by the rules, and after each one a referee, which shares no code with the rules, compares what was with what is.
type world struct {
	lock    Lock
	now     time.Time
	dead    map[string]bool
	claims  []Claim        // every claim made so far
	arrival map[string]int // when a lease came to the queue
	told    []string       // what happened, for people
}

func newWorld() *world {
	return &world{
		lock:    Lock{Name: "x"},
		now:     time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		dead:    map[string]bool{},
		arrival: map[string]int{},
	}
}

// step is one request, as six small numbers, so that it is made as well from a fuzzer's bytes as from a generator.
type step struct{ kind, owner, lease, shape, life, order uint8 }

const stepSize = 6

func stepOf(b []byte) step { return step{b[0], b[1], b[2], b[3], b[4], b[5]} }

func pick[T any](n uint8, from ...T) T { return from[int(n)%len(from)] }

func (st step) who() Owner {
	return pick(st.owner,
		Owner{ID: "alice", Session: "1"}, Owner{ID: "bob"}, Owner{ID: "carol"}, Owner{ID: "dave"},
		Owner{ID: "alice", Session: "2"}, Owner{ID: "alice", AnySession: true},
	)
}

// someHave are patterns, and which of a few paths they stand for: enough to tell which of these patterns have one in common.
var someHave = map[string]string{"a/**": "a a/x a/y", "a/x": "a/x", "b/**": "b b/x b/y", "**/x": "a/x b/x", "{a,b}/y": "a/y b/y"}

// common says whether the claims are about something in common.
func common(a, b Claim) bool {
	if len(a.Paths) == 0 || len(b.Paths) == 0 {
		return true
	}
	all := func(c Claim) (paths []string) {
		for _, p := range c.Paths {
			paths = append(paths, strings.Fields(someHave[p])...)
		}
		return paths
	}
	return slices.ContainsFunc(all(a), func(p string) bool { return slices.Contains(all(b), p) })
}

// among returns the holders that are about something of what the claim is about.
func among(holders []Holder, c Claim) []Holder {
	return slices.DeleteFunc(slices.Clone(holders), func(h Holder) bool { return !common(h.Claim, c) })
}

// between says whether a limit is neither one nor all: such a hold is about everything.
func between(h Holder) bool { return h.Limit > Exclusive && h.Limit < Shared }

func (st step) claim(leaseID string) Claim {
	c := st.plain(leaseID)
	if c.Limit == 2 {
		c.Weight = pick(st.shape>>4, Weight{}, Weight{2, 5}, Weight{3, 5}, Weight{}, Weight{2, 3}, Weight{1, 5}, Weight{0, 1})
	} else {
		c.Paths = pick(st.shape>>4, nil, []string{"a/**"}, nil, []string{"a/x"}, []string{"b/**", "a/x"}, nil, []string{"**/x"}, []string{"b/**"},
			nil, []string{"{a,b}/y"}, []string{"b/**"}, nil, []string{"a/x", "{a,b}/y"}, nil, []string{"a/**"}, nil)
	}
	return c
}

func (st step) plain(leaseID string) Claim {
	return Claim{
		Name: "x", LeaseID: leaseID, Owner: st.who(),
		Limit:    pick(st.shape, 0, Exclusive, 2, Shared),
		Strict:   st.shape&4 != 0,
		Refresh:  st.shape&8 != 0,
		TTL:      pick(st.life, 0, time.Second, 3*time.Second, 10*time.Second, 2*time.Minute),
		MaxHold:  pick(st.life>>4, 0, 0, 0, 5*time.Second, 90*time.Second),
		Priority: pick(st.order, 0, 0, 1, 2, -1),
		Preempt:  pick(st.order>>3, 0, 0, 2*time.Second),
		Newest:   st.order>>5&1 == 1,
		Wait:     pick(st.order>>5, 0, -1, time.Minute),
	}
}

// known returns one of the claims made so far.
func (w *world) known(n uint8) (Claim, bool) {
	if len(w.claims) == 0 {
		return Claim{}, false
	}
	// Recent claims are the interesting ones.
	return w.claims[len(w.claims)-1-int(n)%min(len(w.claims), 12)], true
}

// request is a step in the form in which the rules are asked.
type request struct {
	text    string
	rule    func(Snapshot) *decision
	claim   *Claim // set for whatever may bring this claim in
	renew   *Renewal
	release *Target // holds and places in the queue that it may end
	leaves  string  // a lease that leaves the queue
	gaveWay bool    // it does so for others' sake
	freeze  *Freeze
	thaw    *Target
	prune   bool
}

// request turns the step into a request; steps that only change the facts return nil.
func (w *world) request(st step) *request {
	c, known := w.known(st.lease)
	switch st.kind % 20 {
	default: // a new claim
		c = st.claim(fmt.Sprintf("lease-%d", len(w.claims)))
		return asking("claim", c)
	case 6: // the same claim again
		if !known || w.dead[c.LeaseID] {
			return nil
		}
		return asking("claim again", c)
	case 7: // a claim with the lease ID of another
		if !known || w.dead[c.LeaseID] {
			return nil
		}
		return asking("claim with a lease ID in use", st.claim(c.LeaseID))
	case 8, 9:
		if !known {
			return nil
		}
		r := Renewal{Name: "x", LeaseID: c.LeaseID, Owner: pick(st.owner, nil, nil, &c.Owner, &Owner{ID: "mallory"})}
		return &request{text: fmt.Sprintf("renew %s as %v", c.LeaseID, r.Owner), renew: &r, rule: func(s Snapshot) *decision { return renew(s, r) }}
	case 10, 11:
		if !known {
			return nil
		}
		return ending(Target{Name: "x", LeaseID: c.LeaseID, Owner: st.who(), Force: st.shape%8 == 0, Stale: st.shape%8 == 1})
	case 12:
		return ending(Target{Name: "x", Owner: st.who(), Force: st.shape%4 == 0, Stale: st.shape%4 == 1})
	case 13:
		if !known {
			return nil
		}
		first, h := findWaiter(w.lock, c.LeaseID), findHolder(w.lock, c.LeaseID)
		if first != nil && first.Owner.ID != c.Owner.ID || h != nil && !h.Pending.IsZero() && h.Owner.ID != c.Owner.ID {
			return nil // its lease is a secret of that owner
		}
		how := pick(st.shape, leftTimeout, leftCancelled, leftDeadlock)
		r := &request{
			text: "leave by " + how + " of " + c.LeaseID, leaves: c.LeaseID, gaveWay: how == leftDeadlock,
			rule: func(s Snapshot) *decision { return leaveQueue(s, c, how, time.Second) },
		}
		if how == leftCancelled {
			r.release = &Target{LeaseID: c.LeaseID}
		} else if !w.dead[c.LeaseID] {
			r.claim = &c
		} else {
			return nil
		}
		return r
	case 14:
		f := Freeze{ID: "freeze", Owner: st.who(), TTL: pick(st.life, 0, 2*time.Second, time.Minute), Reason: pick(st.shape, "", "why")}
		return &request{text: fmt.Sprintf("freeze by %v for %v", f.Owner, f.TTL), freeze: &f, rule: func(s Snapshot) *decision { return freeze(s, f) }}
	case 15:
		t := Target{Name: "x", Owner: st.who(), Force: st.shape%2 == 0}
		return &request{text: fmt.Sprintf("unfreeze %+v", t), thaw: &t, rule: func(s Snapshot) *decision { return unfreeze(s, t) }}
	case 16:
		return &request{text: "prune", prune: true, rule: prune}
	case 17, 18: // time goes by: a little, up to the very moment of a change, or just past it
		next := Snapshot{Lock: w.lock, Now: w.now}.NextChange()
		until := max(next.Sub(w.now), 0)
		d := pick(st.life, time.Millisecond, until, until+1, until, until+1, 700*time.Millisecond, 40*time.Second, 16*time.Second, 2*time.Second+1)
		w.now = w.now.Add(d)
		w.tell("%v go by", d)
		return nil
	case 19:
		switch {
		case st.shape%16 == 15: // the store finds something that is no lock
			w.lock = Lock{Name: "x", Revision: w.lock.Revision + 1, Token: w.lock.Token, Queue: w.lock.Queue, Corrupt: "garbage"}
			w.tell("the record is damaged")
		case known && st.shape%4 == 1:
			at, queued := w.lock.Position(c.LeaseID)
			if queued {
				next := away(Snapshot{Lock: w.lock, Now: w.now}, c.LeaseID, w.lock.Queue[at].Until).Lock
				w.came(next)
				w.lock = next
				w.tell("%s hangs up", c.LeaseID)
			}
		case known:
			w.dead[c.LeaseID] = true
			w.tell("%s dies", c.LeaseID)
		}
		return nil
	}
}

func asking(text string, c Claim) *request {
	return &request{text: fmt.Sprintf("%s: %s", text, describe(c)), claim: &c, rule: func(s Snapshot) *decision { return acquireAndSay(s, c) }}
}

func ending(t Target) *request {
	return &request{text: fmt.Sprintf("release %+v", t), release: &t, leaves: t.LeaseID, rule: func(s Snapshot) *decision { return release(s, t) }}
}

func describe(c Claim) string {
	return fmt.Sprintf("%s of %s/%s paths=%v limit=%d weight=%v strict=%v refresh=%v ttl=%v max=%v priority=%d preempt=%v wait=%v",
		c.LeaseID, c.Owner.ID, c.Owner.Session, c.Paths, c.Limit, c.Weight, c.Strict, c.Refresh, c.TTL, c.MaxHold, c.Priority, c.Preempt, c.Wait)
}

func (w *world) tell(format string, args ...any) {
	w.told = append(w.told, fmt.Sprintf(format, args...))
}

// do takes one step, and returns what the referee says against its outcome.
func (w *world) do(st step) error {
	r := w.request(st)
	if r == nil {
		return nil
	}
	w.tell("%s", r.text)
	before := Snapshot{Lock: w.lock, Now: w.now, Dead: w.dead}
	untouched, _ := Marshal(w.lock)
	d := r.rule(before)
	if now, _ := Marshal(w.lock); !bytes.Equal(untouched, now) {
		return errors.New("the rule wrote into the snapshot")
	}
	if again := r.rule(before); !reflect.DeepEqual(again.Change, d.Change) {
		return errors.New("the rule decides differently the second time")
	}
	if r.claim != nil && !slices.ContainsFunc(w.claims, func(c Claim) bool { return c.LeaseID == r.claim.LeaseID }) {
		w.claims = append(w.claims, *r.claim)
	}
	dead := w.dead
	if r.claim != nil && d.err == nil && w.dead[d.holder.LeaseID] { // a dead process's lease, taken up by another one
		dead = maps.Clone(w.dead)
		delete(dead, d.holder.LeaseID)
	}
	w.came(d.Lock)
	j := judge{request: r, was: before, is: Snapshot{Lock: d.Lock, Now: w.now, Dead: dead}, d: d, arrival: w.arrival}
	if err := j.verdict(); err != nil {
		return err
	}
	w.lock, w.dead = d.Lock, dead
	w.lock.Revision++
	return nil
}

// came notes who came into the queue, or back to its head.
func (w *world) came(next Lock) {
	for i, q := range next.Queue {
		if late(Snapshot{Lock: w.lock, Now: w.now, Dead: w.dead}, findHolder(w.lock, q.LeaseID)) { // its turn was over before it came
			w.arrival[q.LeaseID] = i - 1000*len(w.told)
		} else if old := findWaiter(w.lock, q.LeaseID); old == nil || w.dead[q.LeaseID] || over(w.now, old.Until) {
			w.arrival[q.LeaseID] = len(w.told)
		}
	}
}

func (w *world) String() string {
	s := strings.Join(w.told, "\n") + fmt.Sprintf("\nholders %+v", w.lock.Holders)
	for _, q := range w.lock.Queue {
		s += fmt.Sprintf("\nwaits %+v", *q)
	}
	return s
}

// judge is the referee over one step.
type judge struct {
	*request
	was, is Snapshot
	d       *decision
	arrival map[string]int
}

func (j *judge) verdict() error {
	return errors.Join(j.tokens(), j.limits(), j.holders(), j.queue(), j.barging(), j.stuck(), j.events(), j.yields(), j.freezes(), j.answer())
}

// over says whether a deadline has been passed.
func over(now, deadline time.Time) bool { return !deadline.IsZero() && deadline.Sub(now) < 0 }

func gone(s Snapshot, h Holder) bool {
	return s.Dead[h.LeaseID] || over(s.Now, h.ExpiresAt) || over(s.Now, h.Pending) || h.Yield != nil && over(s.Now, h.Yield.Deadline)
}

// absent says whether a waiter was not asked for lately, and is not now.
func (j *judge) absent(w *Waiter) bool {
	asks := j.claim != nil && j.leaves == "" && j.claim.LeaseID == w.LeaseID && j.claim.Owner.ID == w.Owner.ID
	return !asks && w.Until.Sub(j.was.Now) <= 30*time.Second
}

// late says whether the hold was granted in its turn, and is over because its claimant did not come, but may come yet.
func late(was Snapshot, h *Holder) bool {
	if h == nil || h.Pending.IsZero() || !gone(was, *h) || was.Dead[h.LeaseID] {
		return false
	}
	end := h.Pending
	if !h.ExpiresAt.IsZero() && h.ExpiresAt.Before(end) {
		end = h.ExpiresAt
	}
	return !over(was.Now, end.Add(10*time.Second))
}

func frozen(s Snapshot) bool {
	f := s.Lock.Freeze
	return f != nil && (f.Damaged != "" || !over(s.Now, f.ExpiresAt))
}

func findHolder(l Lock, leaseID string) *Holder {
	for i := range l.Holders {
		if l.Holders[i].LeaseID == leaseID {
			return &l.Holders[i]
		}
	}
	return nil
}

func findWaiter(l Lock, leaseID string) *Waiter {
	for i := range l.Queue {
		if l.Queue[i].LeaseID == leaseID {
			return l.Queue[i]
		}
	}
	return nil
}

// granted returns the holders whose token is new.
func (j *judge) granted() []Holder {
	var fresh []Holder
	for _, h := range j.is.Lock.Holders {
		if h.Token > j.was.Lock.Token {
			fresh = append(fresh, h)
		}
	}
	return fresh
}

func (j *judge) tokens() error {
	was, is := j.was.Lock, j.is.Lock
	if is.Token < was.Token {
		return fmt.Errorf("the token fell from %d to %d", was.Token, is.Token)
	}
	last := uint64(0)
	for _, h := range is.Holders {
		if h.Token <= last || h.Token > is.Token {
			return fmt.Errorf("%s has token %d after %d, of %d in all", h.LeaseID, h.Token, last, is.Token)
		}
		last = h.Token
		old := findHolder(was, h.LeaseID)
		if h.Token <= was.Token && (old == nil || old.Token != h.Token) {
			return fmt.Errorf("%s came in with the old token %d", h.LeaseID, h.Token)
		}
	}
	return nil
}

// units counts the holders: each owner once, or as often as it holds strictly. An owner that stands for all sessions of
// its ID makes one owner of them.
func units(holders []Holder) int {
	any := map[string]bool{}
	for _, h := range holders {
		any[h.Owner.ID] = any[h.Owner.ID] || h.Owner.AnySession
	}
	strict := map[[2]string]int{}
	for _, h := range holders {
		key := [2]string{h.Owner.ID, h.Owner.Session}
		if any[h.Owner.ID] {
			key[1] = "any"
		}
		if h.Strict {
			strict[key]++
		} else {
			strict[key] += 0
		}
	}
	n := 0
	for _, holds := range strict {
		n += max(1, holds)
	}
	return n
}

// limits compares what the holders add up to with the smallest limit among them.
func (j *judge) limits() error {
	all, limit, parted := j.is.Lock.Holders, Shared, false
	for i, h := range all {
		limit, parted = min(limit, max(h.Limit, 1)), parted || len(h.Paths) > 0
		for _, o := range among(all[:i], h.Claim) {
			if n := units([]Holder{h, o}); n > min(max(h.Limit, 1), max(o.Limit, 1)) {
				return fmt.Errorf("%s and %s hold what is for one", h.LeaseID, o.LeaseID)
			}
		}
	}
	numbers, weight := map[int]bool{}, Weight{Of: MaxWeight}
	for _, h := range all {
		if h.Weight.Of > 0 {
			weight.Takes, weight.Of = weight.Takes+h.Weight.Takes, min(weight.Of, h.Weight.Of)
		}
		switch has := h.Slot > 0; {
		case has != (h.Strict && h.Limit > Exclusive):
			return fmt.Errorf("%s has the number %d", h.LeaseID, h.Slot)
		case has && (numbers[h.Slot] || h.Slot > h.Limit):
			return fmt.Errorf("%s has the number %d, which another has or which there is not", h.LeaseID, h.Slot)
		}
		numbers[h.Slot] = true
		if was, before := j.was.Lock.Holder(h.LeaseID); before && was.Token == h.Token && was.Slot != h.Slot {
			return fmt.Errorf("%s had the number %d, and has %d", h.LeaseID, was.Slot, h.Slot)
		}
	}
	if weight.Takes > weight.Of {
		return fmt.Errorf("they take %d of %d", weight.Takes, weight.Of)
	}
	if n := units(all); n > limit && (!parted || slices.ContainsFunc(all, between)) {
		return fmt.Errorf("%d hold a lock for %d", n, limit)
	}
	return nil
}

// fits says whether the claim could join the holders.
func fits(holders []Holder, c Claim) bool {
	if !slices.ContainsFunc(holders, between) {
		holders = among(holders, c)
	}
	strict := map[string]int{} // of each other owner
	mine, limit, weight := 0, c.Limit, c.Weight
	if limit == 0 {
		limit = 1
	}
	if c.Strict {
		mine = 1
	}
	for _, h := range holders {
		if h.Limit < limit {
			limit = max(h.Limit, 1)
		}
		if h.Weight.Of > 0 {
			weight.Takes += h.Weight.Takes
			if weight.Of == 0 || h.Weight.Of < weight.Of {
				weight.Of = h.Weight.Of
			}
		}
		one := 0
		if h.Strict {
			one = 1
		}
		switch {
		case h.Owner.ID == c.Owner.ID && (c.Owner.AnySession || h.Owner.Session == c.Owner.Session):
			mine += one
		case h.Owner.AnySession:
			strict[h.Owner.ID+"/*"] += one
		default:
			strict[h.Owner.ID+"/"+h.Owner.Session] += one
		}
	}
	total := max(mine, 1)
	for _, n := range strict {
		total += max(n, 1)
	}
	return total <= limit && weight.Takes <= weight.Of
}

// inside says whether the claim's owner is among the holders.
func inside(holders []Holder, c Claim) bool {
	for _, h := range holders {
		if h.Owner.ID == c.Owner.ID && (c.Owner.AnySession || h.Owner.Session == c.Owner.Session) {
			return true
		}
	}
	return false
}

// ends says whether the request may end this hold, although it is live.
func (j *judge) ends(h Holder) bool {
	t := j.release
	switch {
	case t == nil:
		return false
	case t.LeaseID != "" && t.LeaseID != h.LeaseID:
		return false
	case t.Stale:
		return false
	case t.LeaseID != "" || t.Force:
		return true
	}
	return !h.Strict && inside([]Holder{h}, Claim{Owner: t.Owner})
}

// holders checks who stays, who leaves, who comes, and how long they may stay.
func (j *judge) holders() error {
	was, is := j.was.Lock, j.is.Lock
	for _, h := range was.Holders {
		now := findHolder(is, h.LeaseID)
		switch {
		case gone(j.was, h):
			if now != nil && now.Token == h.Token {
				return fmt.Errorf("%s was gone and still holds", h.LeaseID)
			}
		case j.ends(h):
			if now != nil && now.Token == h.Token {
				return fmt.Errorf("%s was released and still holds", h.LeaseID)
			}
		case now == nil:
			return fmt.Errorf("%s was put out", h.LeaseID)
		case j.renew == nil && j.claim == nil || j.d.holder.LeaseID != h.LeaseID: // nobody's business
			old, cur := h, *now
			old.Yield, cur.Yield = nil, nil
			if !reflect.DeepEqual(old, cur) {
				return fmt.Errorf("%s changed by itself: %+v, %+v", h.LeaseID, old, cur)
			}
		}
	}
	for _, h := range is.Holders {
		if gone(j.is, h) {
			return fmt.Errorf("%s is reported as holder, but gone", h.LeaseID)
		}
		if findWaiter(is, h.LeaseID) != nil {
			return fmt.Errorf("%s holds and waits", h.LeaseID)
		}
		latest := time.Time{}
		if h.TTL > 0 {
			latest = h.AcquiredAt.Add(h.TTL)
		}
		if end := h.HeldSince.Add(h.MaxHold); h.MaxHold > 0 && (latest.IsZero() || end.Before(latest)) {
			latest = end
		}
		if latest.IsZero() != h.ExpiresAt.IsZero() || h.ExpiresAt.After(latest) {
			return fmt.Errorf("%s expires at %v, not by %v", h.LeaseID, h.ExpiresAt, latest)
		}
		if h.Yield == nil && findHolder(was, h.LeaseID) == nil && h.Token > was.Token && h.ExpiresAt != latest {
			return fmt.Errorf("%s was granted until %v, not %v", h.LeaseID, h.ExpiresAt, latest)
		}
	}
	for _, h := range j.granted() {
		if w := findWaiter(was, h.LeaseID); w != nil && !j.isClaimant(h) {
			if j.was.Dead[w.LeaseID] || over(j.was.Now, w.Until) {
				return fmt.Errorf("%s was granted from the queue, which it had left", h.LeaseID)
			}
			if j.renew != nil && j.renew.LeaseID == h.LeaseID && h.Pending.IsZero() {
				continue // renewing takes it up
			}
			if j.absent(w) {
				return fmt.Errorf("%s was granted from the queue, though it was away", h.LeaseID)
			}
			if h.Pending != j.is.Now.Add(2*time.Second) {
				return fmt.Errorf("%s was granted from the queue, to be taken up by %v", h.LeaseID, h.Pending)
			}
			continue
		}
		if !j.isClaimant(h) {
			return fmt.Errorf("%s was granted, though nobody asked", h.LeaseID)
		}
		if !h.Pending.IsZero() {
			return fmt.Errorf("%s was granted to who asked for it, but only until %v", h.LeaseID, h.Pending)
		}
	}
	return nil
}

// isClaimant says whether the hold is the answer to the request's claim.
func (j *judge) isClaimant(h Holder) bool {
	if j.claim == nil || j.d.err != nil {
		return false
	}
	if h.LeaseID == j.claim.LeaseID {
		return true
	}
	c := *j.claim
	if first := findWaiter(j.was.Lock, c.LeaseID); first != nil && !over(j.was.Now, first.Until) {
		c = first.Claim // it was queued on these terms
	}
	old := findHolder(j.was.Lock, h.LeaseID)
	return old != nil && c.Refresh && !old.Strict && inside([]Holder{*old}, c)
}

// ousts reports whether the claim is one that sends the waiter away, unless it is answered at once.
func (j *judge) ousts(w Waiter) bool {
	c := j.claim
	if c == nil {
		return false
	}
	first, h := findWaiter(j.was.Lock, c.LeaseID), findHolder(j.was.Lock, c.LeaseID)
	fresh := (first == nil || over(j.was.Now, first.Until) || j.was.Dead[c.LeaseID]) && (h == nil || gone(j.was, *h) && !late(j.was, h))
	return fresh && c.Newest && c.Wait != 0 &&
		w.Newest && !w.Ousted && w.Passed == 0 && w.Priority <= c.Priority && common(w.Claim, *c)
}

func (j *judge) queue() error {
	was, is := j.was.Lock, j.is.Lock
	for _, w := range was.Queue {
		left := j.was.Dead[w.LeaseID] || over(j.was.Now, w.Until) || j.leaves == w.LeaseID && (j.release == nil || !j.release.Stale) ||
			findHolder(is, w.LeaseID) != nil || findHolder(was, w.LeaseID) != nil ||
			j.claim != nil && j.claim.LeaseID == w.LeaseID && (j.d.err == nil || w.Ousted)
		now := findWaiter(is, w.LeaseID)
		if now != nil && j.claim != nil && j.claim.LeaseID == w.LeaseID && j.d.err != nil {
			continue // it asks again
		}
		if left != (now == nil) {
			return fmt.Errorf("%s waited, should it have left: %v, did it: %v", w.LeaseID, left, now == nil)
		}
		gone := *w
		gone.Ousted, gone.Until = true, j.was.Now.Add(w.Keeps(QueueTTL))
		if now != nil && j.ousts(*w) && reflect.DeepEqual(gone, *now) {
			continue
		}
		if now != nil && j.ousts(*w) && findWaiter(is, j.claim.LeaseID) != nil {
			return fmt.Errorf("%s was not sent away by a newer one", w.LeaseID)
		}
		if now != nil && !reflect.DeepEqual(*w, *now) {
			return fmt.Errorf("%s changed while it waited: %+v, %+v", w.LeaseID, *w, *now)
		}
	}
	for i, w := range is.Queue {
		if findWaiter(was, w.LeaseID) == nil && !late(j.was, findHolder(was, w.LeaseID)) && (j.claim == nil || j.claim.LeaseID != w.LeaseID || j.claim.Wait == 0) {
			return fmt.Errorf("%s came into the queue without asking", w.LeaseID)
		}
		if i == 0 {
			continue
		}
		ahead := is.Queue[i-1]
		if ahead.Priority < w.Priority || ahead.Priority == w.Priority && j.arrival[ahead.LeaseID] >= j.arrival[w.LeaseID] {
			return fmt.Errorf("%s (priority %d) waits ahead of %s (priority %d)", ahead.LeaseID, ahead.Priority, w.LeaseID, w.Priority)
		}
	}
	return nil
}

// barging looks for grants that overtook somebody who still waits.
func (j *judge) barging() error {
	for _, h := range j.granted() {
		var earlier []Holder
		for _, o := range j.was.Lock.Holders {
			if !gone(j.was, o) && !j.ends(o) {
				earlier = append(earlier, o)
			}
		}
		for _, o := range j.is.Lock.Holders {
			if o.Token < h.Token {
				earlier = append(earlier, o)
			}
		}
		came, queued := j.arrival[h.LeaseID]
		if findWaiter(j.was.Lock, h.LeaseID) == nil && !late(j.was, findHolder(j.was.Lock, h.LeaseID)) {
			queued = false
		}
		for _, w := range j.is.Lock.Queue {
			if findWaiter(j.was.Lock, w.LeaseID) == nil || j.absent(w) || !keeps(earlier, w, h.Claim) {
				continue // it came in this step, behind, or was away, or need not be waited for
			}
			if w.Priority > h.Priority || w.Priority == h.Priority && (!queued || j.arrival[w.LeaseID] < came) {
				return fmt.Errorf("%s overtook %s", h.LeaseID, w.LeaseID)
			}
		}
	}
	return nil
}

// keeps says whether the claim has to let a waiter pass that was first: it is about something in common, and not about what
// the claim's owner holds.
func keeps(holders []Holder, w *Waiter, c Claim) bool {
	return common(w.Claim, c) && !inside(among(holders, w.Claim), c)
}

// stuck looks for waiters that could be in.
func (j *judge) stuck() error {
	l := j.is.Lock
	if frozen(j.is) || l.Corrupt != "" {
		return nil
	}
	present := slices.DeleteFunc(slices.Clone(l.Queue), j.absent)
	for i, w := range present {
		if !slices.ContainsFunc(present[:i], func(p *Waiter) bool { return keeps(l.Holders, p, w.Claim) }) && fits(l.Holders, w.Claim) {
			return fmt.Errorf("%s waits, %d from the head, though it could be in", w.LeaseID, i)
		}
	}
	return nil
}

func (j *judge) events() error {
	grants := map[uint64]int{}
	for _, e := range j.d.Events {
		if e.Name != "x" || !e.Time.Equal(j.is.Now) {
			return fmt.Errorf("event %+v has a wrong name or time", e)
		}
		if e.Type == EventAcquire || e.Type == EventRenew && e.Token > j.was.Lock.Token && j.claim != nil {
			grants[e.Token]++
		}
		if e.Type == EventAcquire && e.Token <= j.was.Lock.Token {
			return fmt.Errorf("event %+v tells of an old grant", e)
		}
	}
	for token := j.was.Lock.Token + 1; token <= j.is.Lock.Token; token++ {
		if grants[token] != 1 {
			return fmt.Errorf("token %d was issued with %d events: %+v", token, grants[token], j.d.Events)
		}
	}
	if len(grants) != int(j.is.Lock.Token-j.was.Lock.Token) {
		return fmt.Errorf("%d grants were told, of %d tokens", len(grants), j.is.Lock.Token-j.was.Lock.Token)
	}
	return nil
}

func (j *judge) yields() error {
	for _, h := range j.is.Lock.Holders {
		preempts := func(w *Waiter) bool {
			return w.Preempt > 0 && w.Priority > h.Priority && !inside([]Holder{h}, w.Claim) && common(h.Claim, w.Claim)
		}
		wanted := slices.ContainsFunc(j.is.Lock.Queue, preempts)
		now := slices.ContainsFunc(j.is.Lock.Queue, func(w *Waiter) bool { return preempts(w) && !j.absent(w) })
		if !wanted && h.Yield != nil || now && h.Yield == nil {
			return fmt.Errorf("%s is wanted: %v, was asked to yield: %+v", h.LeaseID, wanted, h.Yield)
		}
		if h.Yield == nil {
			continue
		}
		if told := !h.Yield.Deadline.IsZero(); h.TTL == 0 && !told {
			return fmt.Errorf("%s never looks, and has no deadline to yield", h.LeaseID)
		} else if told && h.Yield.Deadline.Before(h.Yield.AskedAt.Add(h.Yield.Grace)) {
			return fmt.Errorf("%s has less than its grace: %+v", h.LeaseID, h.Yield)
		}
		old := findHolder(j.was.Lock, h.LeaseID)
		if old == nil || old.Token != h.Token || old.Yield == nil {
			continue
		}
		if !old.Yield.Deadline.IsZero() && h.Yield.Deadline != old.Yield.Deadline && j.claim == nil {
			return fmt.Errorf("the deadline of %s to yield moved from %v to %v", h.LeaseID, old.Yield.Deadline, h.Yield.Deadline)
		}
	}
	return nil
}

func (j *judge) freezes() error {
	was, is := j.was.Lock, j.is.Lock
	if frozen(j.was) && j.thaw == nil {
		if len(j.granted()) > 0 || is.Token != was.Token {
			return errors.New("somebody entered a frozen lock")
		}
		if is.Freeze == nil {
			return errors.New("the freeze went away")
		}
	}
	if is.Freeze != nil && !frozen(j.is) {
		return errors.New("an expired freeze is left")
	}
	if is.Freeze != nil && was.Freeze == nil && j.freeze == nil {
		return errors.New("a freeze came by itself")
	}
	return nil
}

// answer checks that the answer fits what was done.
func (j *judge) answer() error {
	l := j.is.Lock
	switch {
	case j.claim != nil:
		return j.claimAnswer()
	case j.renew != nil:
		old := findHolder(j.was.Lock, j.renew.LeaseID)
		may := old != nil && !gone(j.was, *old) && (j.renew.Owner == nil || j.renew.Owner.ID == old.Owner.ID)
		now := findHolder(l, j.renew.LeaseID)
		promoted := now != nil && now.Token > j.was.Lock.Token
		if promoted { // it renews the grant from the queue
			may = j.renew.Owner == nil || j.renew.Owner.ID == now.Owner.ID
		}
		switch {
		case may != (j.d.err == nil):
			return fmt.Errorf("a renewal may be: %v, and is answered %w", may, j.d.err)
		case !may && !errors.Is(j.d.err, ErrNotOwner) && !errors.Is(j.d.err, ErrNotFound):
			return fmt.Errorf("a late renewal is answered %w", j.d.err)
		case may && (now == nil || !now.AcquiredAt.Equal(j.is.Now) || !now.Pending.IsZero() || !promoted && now.Renewals != old.Renewals+1):
			return fmt.Errorf("after its renewal the hold is %+v", now)
		}
	case j.release != nil:
		if id := j.leaves; id != "" && j.d.err == nil && !j.release.Stale && findWaiter(l, id) != nil {
			return fmt.Errorf("%s was taken out, and waits", id)
		}
	case j.freeze != nil:
		if (j.d.err == nil) != (l.Freeze != nil && inside([]Holder{{Claim: Claim{Owner: l.Freeze.Owner}}}, Claim{Owner: j.freeze.Owner})) {
			return fmt.Errorf("a request to freeze is answered %w, and the freeze is %+v", j.d.err, l.Freeze)
		}
	case j.thaw != nil:
		if j.d.err == nil && l.Freeze != nil {
			return errors.New("it was unfrozen, and is frozen")
		}
		if j.thaw.Force && j.was.Lock.Freeze != nil && j.d.err != nil {
			return fmt.Errorf("force did not unfreeze: %w", j.d.err)
		}
	case j.prune:
		stale := 0
		for _, h := range j.was.Lock.Holders {
			if gone(j.was, h) {
				stale++
			}
		}
		removed := 0
		for _, r := range j.d.removed {
			if !r.Waiter {
				removed++
			}
		}
		if stale != removed {
			return fmt.Errorf("%d were stale, %d were removed", stale, removed)
		}
	}
	return nil
}

// acquireAndSay is acquire that says of a claim in the queue, too, what is in its way.
func acquireAndSay(s Snapshot, c Claim) *decision {
	d := acquire(s, c)
	if d.place != nil {
		d.err = d.Lock.blocked(&c, s.Now)
	}
	return d
}

func (j *judge) claimAnswer() error {
	c, l := *j.claim, j.is.Lock
	if errors.Is(j.d.err, ErrInvalid) {
		h, w := findHolder(l, c.LeaseID), findWaiter(l, c.LeaseID)
		if (h == nil || h.Owner.ID == c.Owner.ID) && (w == nil || w.Owner.ID == c.Owner.ID) {
			return fmt.Errorf("a good claim is answered %w", j.d.err)
		}
		return nil
	}
	if w := findWaiter(l, c.LeaseID); w != nil && w.Owner.ID != c.Owner.ID {
		return fmt.Errorf("the place in the queue of %s was used by %s", w.Owner, c.Owner)
	}
	if j.d.err == nil {
		h := findHolder(l, j.d.holder.LeaseID)
		switch {
		case h == nil || h.Token != j.d.holder.Token:
			return fmt.Errorf("the claim is granted, but not on record: %+v", j.d.holder)
		case !h.Pending.IsZero() || !j.d.holder.Pending.IsZero():
			return errors.New("the claimant knows of its grant, and it is still to be taken up")
		case h.ExpiresAt != j.d.holder.ExpiresAt || h.Owner.ID != c.Owner.ID:
			return fmt.Errorf("on record is %+v, and the answer %+v", h, j.d.holder)
		case l.Corrupt != "":
			return errors.New("it was granted, and is damaged")
		}
		return nil
	}
	if !errors.Is(j.d.err, ErrHeld) && !errors.Is(j.d.err, ErrFrozen) {
		return fmt.Errorf("a claim is answered %w", j.d.err)
	}
	w := findWaiter(l, c.LeaseID)
	if before := findWaiter(j.was.Lock, c.LeaseID); before != nil && before.Ousted && w == nil && !j.was.Dead[c.LeaseID] && !over(j.was.Now, before.Until) {
		return nil // it was sent away
	}
	if c.Wait != 0 && j.leaves == "" && (w == nil || j.d.place == nil || w.Until != j.is.Now.Add(45*time.Second)) {
		return fmt.Errorf("a waiting claim is not in the queue: %+v", w)
	}
	if frozen(j.is) {
		if !errors.Is(j.d.err, ErrFrozen) {
			return fmt.Errorf("the lock is frozen, and the answer %w", j.d.err)
		}
		return nil
	}
	if w != nil && j.leaves == "" || j.gaveWay {
		return nil // whether it could be in, stuck has seen
	}
	if first := findWaiter(j.was.Lock, c.LeaseID); first != nil && !over(j.was.Now, first.Until) && !j.was.Dead[c.LeaseID] {
		c = first.Claim // it was queued on these terms
	} else if h := findHolder(j.was.Lock, c.LeaseID); late(j.was, h) {
		c = h.Claim
	}
	behind := slices.ContainsFunc(l.Queue, func(w *Waiter) bool {
		return w.Priority >= c.Priority && !j.absent(w) && keeps(l.Holders, w, c)
	})
	if fits(l.Holders, c) && !behind {
		return fmt.Errorf("denied without a reason: %w", j.d.err)
	}
	var blocked *BlockedError
	if errors.As(j.d.err, &blocked) && len(blocked.Holders) == 0 && len(blocked.Ahead) == 0 {
		return errors.New("the denial names nobody")
	}
	return nil
}

// play takes the steps, and reports the first that goes wrong, with all that led to it.
func play(steps []step) error {
	w := newWorld()
	for _, st := range steps {
		if err := w.do(st); err != nil {
			return fmt.Errorf("%w\n%s", err, w)
		}
	}
	return nil
}

// Promises S-1, S-4, S-55.
func TestRulesSatisfyTheReferee(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.Uint8()
		one := rapid.Custom(func(t *rapid.T) step {
			return step{
				some.Draw(t, "kind"), some.Draw(t, "owner"), some.Draw(t, "lease"),
				some.Draw(t, "shape"), some.Draw(t, "life"), some.Draw(t, "order"),
			}
		})
		if err := play(rapid.SliceOfN(one, 1, 80).Draw(t, "steps")); err != nil {
			t.Fatal(err)
		}
	})
}
