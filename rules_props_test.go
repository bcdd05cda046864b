package lokt

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
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
	dead    map[int]bool   // processes
	claims  []Claim        // every claim made so far, by the last process that made it
	arrival map[string]int // when a lease came to the queue
	relied  map[string]reliance
	told    []string // what happened, for people
}

// reliance is until when a holder may rely on its hold, with that token, if all answers were lost but those that it has said
// it heard.
type reliance struct {
	token uint64
	until time.Time
	wish  time.Time // the deadline that it was told last
}

func newWorld() *world {
	return &world{
		lock:    Lock{Name: "x"},
		now:     time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC),
		dead:    map[int]bool{},
		arrival: map[string]int{},
		relied:  map[string]reliance{},
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

// snapshot returns what a store says of the lock: a hold that was not taken up, and a place in the queue, end with who asked.
func (w *world) snapshot(l Lock) Snapshot {
	s := Snapshot{Lock: l, Now: w.now, Dead: map[string]bool{}}
	for _, h := range l.Holders {
		if p := cmp.Or(h.Process, &h.Owner.Process); w.dead[p.PID] && (h.Process != nil || !h.Pending.IsZero()) {
			s.Dead[h.LeaseID] = true
		}
	}
	for _, q := range l.Queue {
		if w.dead[q.Owner.Process.PID] {
			s.Dead[q.LeaseID] = true
		}
	}
	return s
}

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

// claim returns a claim of a process of its own.
func (w *world) claim(st step, leaseID string) Claim {
	c := st.plain(leaseID).by(len(w.told)+1, st.lease < 192)
	if c.Limit == 2 {
		c.Weight = pick(st.shape>>4, Weight{}, Weight{2, 5}, Weight{3, 5}, Weight{}, Weight{2, 3}, Weight{1, 5}, Weight{0, 1})
	} else {
		c.Paths = pick(st.shape>>4, nil, []string{"a/**"}, nil, []string{"a/x"}, []string{"b/**", "a/x"}, nil, []string{"**/x"}, []string{"b/**"},
			nil, []string{"{a,b}/y"}, []string{"b/**"}, nil, []string{"a/x", "{a,b}/y"}, nil, []string{"a/**"}, nil)
	}
	return c
}

// by returns the claim as a process makes it, on which its hold may depend.
func (c Claim) by(pid int, depends bool) Claim {
	c.Owner.Process, c.Process = Process{PID: pid}, nil
	if depends {
		c.Process = &Process{PID: pid}
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
		Preempt:  pick(st.order>>3, 0, 0, pick(st.life>>6, 2*time.Second, 2*time.Second, 2*time.Second, time.Minute)),
		Newest:   st.order>>5&1 == 1,
		Ticket:   int(st.owner >> 7),
		Attended: st.owner&64 != 0,
		Wait:     pick(st.order>>5, 0, -1, time.Minute),
	}
}

// earlier returns the number of the ticket's process that made the claim, or of the one before, which comes late.
func (st step) earlier(c Claim) int { return c.Ticket - min(c.Ticket/2, int(st.life>>3)&1) }

// late says whether a later process has gone on with the ticket by which the request was made.
func (r *request) late(l Lock) bool {
	if h := findHolder(l, r.by.LeaseID); h != nil {
		return h.Ticket > r.by.Ticket
	}
	w := findWaiter(l, r.by.LeaseID)
	return w != nil && w.Ticket > r.by.Ticket
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
	by      Claim  // whose ticket says whether it comes too late; without a lease ID it does not
	claim   *Claim // set for whatever may bring this claim in
	renew   *Renewal
	release *Target // holds and places in the queue that it may end
	leaves  string  // a lease that leaves the queue
	gaveWay bool    // it does so for others' sake
	freeze  *Freeze
	thaw    *Target
	prune   bool
	target  *Target // with the message, whom it is for
	message *Message
}

// request turns the step into a request; steps that only change the facts return nil.
func (w *world) request(st step) *request {
	c, known := w.known(st.lease)
	kind := st.kind % 20
	if st.kind >= stepAsk {
		kind = 20 + st.kind%2
	}
	switch kind {
	default: // a new claim
		c = w.claim(st, fmt.Sprintf("lease-%d", len(w.claims)))
		return asking("claim", c)
	case 6: // the same claim again, by another process if that one is dead, or a ticket has moved on
		if !known {
			return nil
		}
		if w.dead[c.Owner.Process.PID] || c.Ticket > 0 && st.life&4 != 0 {
			c = c.by(len(w.told)+1, c.Process != nil)
			c.Ticket += min(c.Ticket, 1)
		}
		c.Ticket = st.earlier(c)
		return asking("claim again", c)
	case 7: // a claim with the lease ID of another
		if !known {
			return nil
		}
		return asking("claim with a lease ID in use", w.claim(st, c.LeaseID))
	case 8, 9:
		if !known {
			return nil
		}
		r := Renewal{Name: "x", LeaseID: c.LeaseID, Owner: pick(st.owner, nil, nil, &c.Owner, &Owner{ID: "mallory"})}
		r.Heard = pick(st.shape, time.Time{}, w.relied[c.LeaseID].wish)
		return &request{text: fmt.Sprintf("renew %s as %v, which has heard %v", c.LeaseID, r.Owner, r.Heard), renew: &r, rule: func(s Snapshot) *decision { return renew(s, r) }}
	case 10, 11:
		if !known {
			return nil
		}
		return ending(Target{Name: "x", LeaseID: c.LeaseID, Ticket: st.earlier(c), Owner: st.who(), Force: st.shape%8 == 0, Stale: st.shape%8 == 1})
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
		c.Ticket = st.earlier(c)
		how := pick(st.shape, leftTimeout, leftCancelled, leftDeadlock)
		r := &request{
			text: "leave by " + how + " of " + c.LeaseID, by: c, leaves: c.LeaseID, gaveWay: how == leftDeadlock,
			rule: func(s Snapshot) *decision { return leaveQueue(s, c, how) },
		}
		if how == leftCancelled {
			r.release = &Target{LeaseID: c.LeaseID, Ticket: c.Ticket}
		} else if !w.dead[c.Owner.Process.PID] {
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
			if queued && !nobodys(w.lock.Queue[at]) {
				d := away(w.snapshot(w.lock), c.LeaseID, w.lock.Queue[at].Ticket, w.lock.Queue[at].Until)
				w.came(w.snapshot(w.lock), &request{}, d)
				w.lock = d.Lock
				w.tell("%s hangs up", c.LeaseID)
			}
		case known && c.Owner.Process.PID > 0:
			w.dead[c.Owner.Process.PID] = true
			w.tell("process %d of %s dies", c.Owner.Process.PID, c.LeaseID)
		}
		return nil
	case 20, 21:
		t := pick(st.shape, Target{Owner: st.who()}, Target{Owner: c.Owner}, Target{Owner: st.who(), LeaseID: c.LeaseID}, Target{Owner: st.who(), Force: true})
		m := Message{ID: fmt.Sprint(len(w.told)/2, st.kind), Text: fmt.Sprint("message ", len(w.told))}
		if t.Name = "x"; kind == 20 && st.shape&4 != 0 {
			m = Message{Answer: fmt.Sprint("answer ", len(w.told))}
		} else if kind == 21 {
			next := Claim{Name: "x", LeaseID: fmt.Sprintf("passed-%d", len(w.claims)), Owner: step{owner: st.order}.who(), TTL: pick(st.life, 0, time.Second, time.Minute)}
			m.Pass, w.claims = &next, append(w.claims, next)
		}
		return &request{text: fmt.Sprintf("tell %+v %+v: %+v", t, m, m.Pass), target: &t, message: &m, rule: func(s Snapshot) *decision { return tell(s, t, m) }}
	}
}

func asking(text string, c Claim) *request {
	return &request{text: fmt.Sprintf("%s: %s", text, describe(c)), by: c, claim: &c, rule: func(s Snapshot) *decision { return acquireAndSay(s, c) }}
}

func ending(t Target) *request {
	r := &request{text: fmt.Sprintf("release %+v", t), release: &t, leaves: t.LeaseID, rule: func(s Snapshot) *decision { return release(s, t) }}
	if t.Ticket > 0 {
		r.by = Claim{LeaseID: t.LeaseID, Ticket: t.Ticket}
	}
	return r
}

func describe(c Claim) string {
	return fmt.Sprintf("%s of %s/%s/%d paths=%v limit=%d weight=%v strict=%v refresh=%v ttl=%v max=%v priority=%d preempt=%v wait=%v newest=%v ticket=%v attended=%v",
		c.LeaseID, c.Owner.ID, c.Owner.Session, c.Owner.Process.PID, c.Paths, c.Limit, c.Weight, c.Strict, c.Refresh, c.TTL, c.MaxHold, c.Priority, c.Preempt, c.Wait, c.Newest, c.Ticket, c.Attended)
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
	before := w.snapshot(w.lock)
	untouched, _ := Marshal(w.lock)
	d := r.rule(before)
	if now, _ := Marshal(w.lock); !bytes.Equal(untouched, now) {
		return errors.New("the rule wrote into the snapshot")
	}
	read := before // as a store has it that has read it anew
	read.Lock.calm, read.Lock.open, read.Lock.plain = time.Time{}, false, false
	if again := r.rule(read); !again.Lock.Equal(&d.Lock) || !reflect.DeepEqual(again.Events, d.Events) {
		return errors.New("the rule decides differently the second time")
	}
	if r.late(w.lock) {
		var refused *GoneError
		if !errors.As(d.err, &refused) || refused.Cause != ReasonTakenOver {
			return fmt.Errorf("what comes too late is answered %w", d.err)
		}
		r = &request{text: r.text}
	}
	if c := r.claim; c != nil {
		if i := slices.IndexFunc(w.claims, func(o Claim) bool { return o.LeaseID == c.LeaseID }); i < 0 {
			w.claims = append(w.claims, *c)
		} else if w.claims[i].Owner.ID == c.Owner.ID {
			w.claims[i].Owner.Process, w.claims[i].Process, w.claims[i].Ticket = c.Owner.Process, c.Process, c.Ticket
		}
		if q, h := findWaiter(w.lock, c.LeaseID), findHolder(w.lock, c.LeaseID); q != nil && q.Owner.ID == c.Owner.ID ||
			h != nil && !h.Pending.IsZero() && h.Owner.ID == c.Owner.ID { // who asks is there
			before.Dead = maps.Clone(before.Dead)
			delete(before.Dead, c.LeaseID)
		}
	}
	if r.renew != nil {
		w.hears(&before.Lock, *r.renew)
	}
	w.came(before, r, d)
	j := judge{request: r, was: before, is: w.snapshot(d.Lock), d: d, arrival: w.arrival, relied: w.relied}
	if err := j.verdict(); err != nil {
		return err
	}
	w.answered(r, d)
	w.lock = d.Lock
	w.lock.Revision++
	return nil
}

// hears notes of a holder, as who is on record, that it has heard by when it is to leave: from then on it relies on no more.
func (w *world) hears(l *Lock, r Renewal) {
	h, relied := findHolder(*l, r.LeaseID), w.relied[r.LeaseID]
	if h == nil || !isBy(r, h) || h.Yield == nil || h.Yield.Deadline.IsZero() || h.Yield.Deadline.Sub(r.Heard).Abs() > time.Millisecond {
		return
	}
	l.Holders = slices.Clone(l.Holders)
	y := *h.Yield
	y.Heard = true
	findHolder(*l, r.LeaseID).Yield = &y
	if relied.until.After(y.Deadline) {
		relied.until = y.Deadline
		w.relied[r.LeaseID] = relied
	}
}

// isBy says whether the renewal is by who is on record.
func isBy(r Renewal, h *Holder) bool {
	o := r.Owner
	return o == nil || o.ID == h.Owner.ID && (o.Process.PID == 0 || o.Process.PID == h.Owner.Process.PID)
}

// answered notes what a holder is told of its hold, which may get lost.
func (w *world) answered(r *request, d *decision) {
	h := d.holder
	if d.err != nil || h.LeaseID == "" || r.claim == nil && r.renew == nil {
		return
	}
	until := h.ExpiresAt
	if until.IsZero() {
		until = w.now.Add(1000 * time.Hour)
	}
	was, again := w.relied[h.LeaseID], reliance{token: h.Token}
	if h.Yield != nil && !h.Yield.Deadline.IsZero() {
		if again.wish = h.Yield.Deadline; again.wish.Before(until) {
			until = again.wish
		}
	}
	heard := r.renew != nil && !r.renew.Heard.IsZero() && r.renew.Heard.Equal(again.wish)
	if own := r.claim != nil && r.claim.Refresh; was.token == h.Token && was.until.After(until) && !heard && !own {
		until = was.until
	}
	again.until = until
	w.relied[h.LeaseID] = again
}

// came notes who came into the queue, or back to its head, or was passed a hold.
func (w *world) came(was Snapshot, r *request, d *decision) {
	for i, q := range d.Lock.Queue {
		if r.back(was, q.LeaseID) || r.passes(d) && len(q.Messages) > 0 && q.Messages[0].ID == r.message.ID {
			w.arrival[q.LeaseID] = i - 1000*len(w.told)
		} else if waited(was, q.LeaseID) == nil {
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
	relied  map[string]reliance
}

func (j *judge) verdict() error {
	return errors.Join(j.tokens(), j.limits(), j.holders(), j.queue(), j.barging(), j.stuck(), j.events(), j.yields(), j.reliances(), j.freezes(), j.answer(), j.telling())
}

// over says whether a deadline has been passed.
func over(now, deadline time.Time) bool { return !deadline.IsZero() && deadline.Sub(now) < 0 }

func gone(s Snapshot, h Holder) bool {
	return s.Dead[h.LeaseID] || over(s.Now, h.ExpiresAt) || over(s.Now, h.Pending) || h.Yield != nil && h.Yield.Heard && over(s.Now, h.Yield.Deadline)
}

// waited returns the place in the queue that the lease has still; nil if it has left, or never came.
func waited(s Snapshot, leaseID string) *Waiter {
	w := findWaiter(s.Lock, leaseID)
	if w == nil || over(s.Now, w.Until) || s.Dead[leaseID] && w.Ticket == 0 {
		return nil
	}
	return w
}

// keep says for how long a place in the queue is kept: so long, or that of a ticket.
func keep(c Claim, usual time.Duration) time.Duration {
	if c.Ticket > 0 {
		return 2 * time.Minute
	}
	return usual
}

// nobodys says whether the waiter is a hold that was passed to an owner who does not wait, and who need not be there.
func nobodys(w *Waiter) bool {
	return w.Passed > 0 && w.Wait == 0 && strings.HasPrefix(w.LeaseID, "passed")
}

// owed says whether the waiter is to get what somebody still has.
func owed(l Lock, w *Waiter) bool {
	return slices.ContainsFunc(l.Holders, func(h Holder) bool { return h.Token == w.Passed })
}

// absent says whether a waiter was not asked for lately, and is not now.
func (j *judge) absent(w *Waiter) bool {
	asks := j.claim != nil && j.leaves == "" && j.claim.LeaseID == w.LeaseID && j.claim.Owner.ID == w.Owner.ID
	return !asks && !nobodys(w) && (j.was.Dead[w.LeaseID] || w.Until.Sub(j.was.Now) <= keep(w.Claim, 30*time.Second))
}

// back says whether the claim has its place in the queue again: its grant met nobody, or is given back with a ticket.
func (r *request) back(was Snapshot, leaseID string) bool {
	h := findHolder(was.Lock, leaseID)
	switch {
	case h == nil || h.Pending.IsZero():
		return false
	case r.ends(*h) && h.Ticket > 0:
		return !r.release.Force
	case !gone(was, *h) || was.Dead[h.LeaseID] && h.Ticket == 0:
		return false
	}
	end := h.Pending
	if !h.ExpiresAt.IsZero() && h.ExpiresAt.Before(end) {
		end = h.ExpiresAt
	}
	return !over(was.Now, end.Add(keep(h.Claim, 10*time.Second)))
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
func (r *request) ends(h Holder) bool {
	t := r.release
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
		case j.ends(h) || j.passedOn(h):
			if now != nil && now.Token == h.Token {
				return fmt.Errorf("%s was released and still holds", h.LeaseID)
			}
		case now == nil:
			return fmt.Errorf("%s was put out", h.LeaseID)
		case !slices.Equal(now.Messages, j.answered(h)) && (j.message == nil || j.message.Text == ""):
			return fmt.Errorf("%s has the messages %+v, not %+v", h.LeaseID, now.Messages, j.answered(h))
		case j.renew == nil && j.claim == nil && j.message == nil || j.d.holder.LeaseID != h.LeaseID: // nobody's business
			old, cur := h, *now
			old.Yield, cur.Yield, old.Messages = nil, nil, j.answered(h)
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
		var messages []Message
		if w := waited(j.was, h.LeaseID); w != nil {
			messages = w.Messages
		} else if old := findHolder(was, h.LeaseID); j.back(j.was, h.LeaseID) || old != nil && j.isClaimant(h) && h.Renewals > 0 {
			messages = old.Messages // its turn came again, or it is refreshed
		}
		if r := j.recipient(); r != nil && r.LeaseID == h.LeaseID || j.message != nil && j.message.Text == "" && j.message.Pass == nil {
			continue // see telling: an answer is one to all holds
		}
		if len(messages)+len(h.Messages) > 0 && !reflect.DeepEqual(messages, h.Messages) && (j.message == nil || j.d.holder.LeaseID != h.LeaseID) {
			return fmt.Errorf("%s was granted with the messages %+v, not %+v", h.LeaseID, h.Messages, messages)
		}
		if w := findWaiter(was, h.LeaseID); w != nil && !j.isClaimant(h) {
			if j.was.Dead[w.LeaseID] && w.Ticket == 0 || over(j.was.Now, w.Until) {
				return fmt.Errorf("%s was granted from the queue, which it had left", h.LeaseID)
			}
			if j.renew != nil && j.renew.LeaseID == h.LeaseID && h.Pending.IsZero() || nobodys(w) && h.Pending.IsZero() {
				continue // renewing takes it up, or nobody need
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
	h := findHolder(j.was.Lock, c.LeaseID)
	fresh := waited(j.was, c.LeaseID) == nil && (h == nil || gone(j.was, *h) && !j.back(j.was, h.LeaseID))
	return fresh && c.Newest && c.Wait != 0 &&
		w.Newest && w.Ousted == "" && w.Passed == 0 && w.Priority <= c.Priority && common(w.Claim, *c)
}

// forgets reports whether the claim sends so many away that the first who was sent away is not told of it any more.
func (j *judge) forgets(w Waiter) bool {
	sends, told := false, 0
	for _, other := range j.was.Lock.Queue {
		sends = sends || j.ousts(*other)
		if now := findWaiter(j.is.Lock, other.LeaseID); now == nil || now.Ousted == "" {
			continue
		} else if told++; other.Place < w.Place && other.Priority >= w.Priority {
			return false
		}
	}
	return sends && told >= 100 && (w.Ousted != "" || j.ousts(w))
}

func (j *judge) queue() error {
	was, is, r := j.was.Lock, j.is.Lock, j.recipient()
	for _, w := range was.Queue {
		quits := j.leaves == w.LeaseID && (j.release == nil && w.Ousted == "" || j.release != nil && !j.release.Stale) // or is away, with a ticket
		left := j.was.Dead[w.LeaseID] && w.Ticket == 0 || over(j.was.Now, w.Until) || quits && (w.Ticket == 0 || j.gaveWay) ||
			findHolder(is, w.LeaseID) != nil || findHolder(was, w.LeaseID) != nil ||
			j.claim != nil && j.claim.LeaseID == w.LeaseID && (j.d.err == nil || w.Ousted != "" && j.leaves == "") || r != nil && nobodys(w) && w.Passed == r.Passed
		now := findWaiter(is, w.LeaseID)
		if now != nil && j.claim != nil && j.claim.LeaseID == w.LeaseID && j.d.err != nil && !quits {
			if !now.Since.Equal(w.Since) && waited(j.was, w.LeaseID) != nil || (now.Ticket > 0 || j.claim.Wait != 0) && now.Ousted == "" && now.Owner.ID == j.claim.Owner.ID && now.Owner.Process != j.claim.Owner.Process {
				return fmt.Errorf("%s asks again, and has %+v, not %+v", w.LeaseID, now, w)
			}
			continue
		}
		if left != (now == nil) && (now != nil || !j.forgets(*w)) && (now != nil || !j.passes(j.d) || j.meant() != nil) { // it was let in, and passed on, in this very step
			return fmt.Errorf("%s waited, should it have left: %v, did it: %v", w.LeaseID, left, now == nil)
		}
		if now == nil || r != nil && r.LeaseID == w.LeaseID {
			continue
		}
		as, may := *w, *w // as it is, if it is not as it was
		if w.Ticket > 0 && (quits || j.was.Dead[w.LeaseID] && w.Until.Sub(j.was.Now) > 2*time.Minute) {
			as.Until = j.was.Now.Add(2 * time.Minute)
			may = as
		}
		may.Paths, may.Within, may.Metadata, may.Preempt = nil, nil, nil, 0
		if may.Ousted, may.Until = now.Ousted, j.was.Now.Add(keep(w.Claim, 30*time.Second)); j.ousts(*w) && reflect.DeepEqual(may, *now) {
			continue
		}
		if j.ousts(*w) && findWaiter(is, j.claim.LeaseID) != nil {
			return fmt.Errorf("%s was not sent away by a newer one", w.LeaseID)
		}
		if !reflect.DeepEqual(as, *now) {
			return fmt.Errorf("%s changed while it waited: %+v, %+v", w.LeaseID, *w, *now)
		}
	}
	for i, w := range is.Queue {
		if findWaiter(was, w.LeaseID) == nil && !j.back(j.was, w.LeaseID) && (j.claim == nil || j.claim.LeaseID != w.LeaseID || j.claim.Wait == 0) && w != r {
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
	passed := false // who comes before that was let in by time
	for _, h := range j.granted() {
		if r := j.recipient(); r != nil && r.LeaseID == h.LeaseID {
			passed = true
			continue // it goes before all
		}
		var earlier []Holder
		for _, o := range j.was.Lock.Holders {
			if !gone(j.was, o) && !j.ends(o) && (!j.passedOn(o) || !passed) {
				earlier = append(earlier, o)
			}
		}
		for _, o := range j.is.Lock.Holders {
			if o.Token < h.Token {
				earlier = append(earlier, o)
				if w := findWaiter(j.was.Lock, o.LeaseID); w != nil { // before the request refreshed it
					earlier = append(earlier, Holder{Claim: w.Claim})
				}
			}
		}
		came, queued := j.arrival[h.LeaseID]
		if findWaiter(j.was.Lock, h.LeaseID) == nil && !j.back(j.was, h.LeaseID) {
			queued = false
		}
		for _, w := range j.is.Lock.Queue {
			if waited(j.was, w.LeaseID) == nil || w == j.recipient() || j.absent(w) || !keeps(earlier, w, h.Claim) {
				continue // it came in this step, behind, or was away, or need not be waited for
			}
			priority := h.Priority
			if first := findWaiter(j.was.Lock, h.LeaseID); first != nil {
				priority = max(priority, first.Priority) // it may have been refreshed since
			}
			if w.Priority > priority || w.Priority == priority && (!queued || j.arrival[w.LeaseID] < came) {
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
		if !owed(l, w) && !slices.ContainsFunc(present[:i], func(p *Waiter) bool { return keeps(l.Holders, p, w.Claim) }) && fits(l.Holders, w.Claim) {
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
		if e.Type == EventAcquire || e.Type == EventRenew && e.Token > j.was.Lock.Token && j.claim != nil && grants[e.Token] == 0 {
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
			return w.Passed == h.Token || w.Passed == 0 && w.Preempt > 0 && w.Priority > h.Priority && !inside([]Holder{h}, w.Claim) && common(h.Claim, w.Claim)
		}
		wanted := slices.ContainsFunc(j.is.Lock.Queue, preempts)
		now := slices.ContainsFunc(j.is.Lock.Queue, func(w *Waiter) bool { return preempts(w) && !j.absent(w) })
		if !wanted && h.Yield != nil || now && h.Yield == nil {
			return fmt.Errorf("%s is wanted: %v, was asked to yield: %+v", h.LeaseID, wanted, h.Yield)
		}
		if h.Yield == nil {
			continue
		}
		if told := !h.Yield.Deadline.IsZero(); h.TTL == 0 && !h.Attended && !h.Yield.Heard {
			return fmt.Errorf("%s never looks, and has no deadline to yield", h.LeaseID)
		} else if told && h.Yield.Deadline.Before(h.Yield.AskedAt.Add(h.Yield.Grace)) {
			return fmt.Errorf("%s has less than its grace: %+v", h.LeaseID, h.Yield)
		}
		old := findHolder(j.was.Lock, h.LeaseID)
		if old == nil || old.Token != h.Token || old.Yield == nil {
			continue
		}
		if !old.Yield.Deadline.IsZero() && h.Yield.Deadline != old.Yield.Deadline && j.claim == nil && !j.passes(j.d) {
			return fmt.Errorf("the deadline of %s to yield moved from %v to %v", h.LeaseID, old.Yield.Deadline, h.Yield.Deadline)
		}
	}
	return nil
}

// reliances looks for holds that ended by time, or for others' sake, while their holders could rely on them.
func (j *judge) reliances() error {
	for _, h := range j.was.Lock.Holders {
		r, told := j.relied[h.LeaseID]
		now := findHolder(j.is.Lock, h.LeaseID)
		ended := now == nil || now.Token != h.Token
		if ended && told && (h.TTL > 0 || h.Attended) && r.token == h.Token && !j.was.Dead[h.LeaseID] && !j.ends(h) && !j.passedOn(h) && !over(j.was.Now, r.until) {
			return fmt.Errorf("%s was put out at %v, and may rely on it until %v", h.LeaseID, j.was.Now, r.until)
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
		may := old != nil && !gone(j.was, *old) && isBy(*j.renew, old)
		now := findHolder(l, j.renew.LeaseID)
		promoted := now != nil && now.Token > j.was.Lock.Token
		if promoted { // it renews the grant from the queue
			may = isBy(*j.renew, now)
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
		if id := j.leaves; id != "" && j.d.err == nil && !j.release.Stale {
			if w := findWaiter(l, id); w == nil || w.Ticket > 0 && j.absent(w) {
				break
			}
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

// passes says whether the request has passed a hold on.
func (r *request) passes(d *decision) bool {
	return r.message != nil && r.message.Pass != nil && d.err == nil
}

// meant returns the first hold that was there, and that the message is for, or that it passes on.
func (j *judge) meant() *Holder {
	if j.message == nil {
		return nil
	}
	for i, h := range j.was.Lock.Holders {
		own := inside([]Holder{h}, Claim{Owner: j.target.Owner})
		named, any := j.target.LeaseID == h.LeaseID, j.target.LeaseID == ""
		switch next := j.message.Pass; {
		case gone(j.was, h):
		case next != nil && !inside([]Holder{h}, *next) && (named || any && (own || j.target.Force)),
			next == nil && j.message.Text == "" && own, next == nil && j.message.Text != "" && (named || any && !own):
			return &j.was.Lock.Holders[i]
		}
	}
	return nil
}

// answered returns what the hold was asked, with the answer if the request is that.
func (j *judge) answered(h Holder) []Message {
	all := slices.Clone(h.Messages)
	for i := range all {
		if m := j.message; m != nil && m.Text == "" && inside([]Holder{h}, Claim{Owner: j.target.Owner}) {
			all[i].Answer = cmp.Or(all[i].Answer, m.Answer)
		}
	}
	return all
}

// passedOn says whether the hold, which no program keeps, ends for another one.
func (j *judge) passedOn(h Holder) bool {
	first := j.meant()
	return j.passes(j.d) && first != nil && first.LeaseID == h.LeaseID && !h.Attended && !h.Strict
}

// recipient returns the waiter that a hold is passed on to, or as which it was granted.
func (j *judge) recipient() *Waiter {
	if !j.passes(j.d) {
		return nil
	}
	mine := func(all []Message) bool {
		return len(all) > 0 && all[0].ID == j.message.ID && all[0].Text == j.message.Text
	}
	for _, w := range j.is.Lock.Queue {
		if mine(w.Messages) {
			return w
		}
	}
	for _, h := range j.granted() {
		if mine(h.Messages) {
			w := &Waiter{Claim: h.Claim, Messages: h.Messages}
			if first := j.meant(); first != nil {
				w.Passed = first.Token
			}
			return w
		}
	}
	return nil
}

// telling checks a question, an answer, or that a hold was passed on.
func (j *judge) telling() error {
	first, m := j.meant(), j.message
	if m == nil || first == nil && len(j.granted()) > 0 { // one that came in this very step may be meant
		return nil
	}
	if first == nil {
		if !errors.Is(j.d.err, ErrNotFound) && !errors.Is(j.d.err, ErrNotOwner) {
			return fmt.Errorf("it was for nobody, and the answer is %w", j.d.err)
		}
		return nil
	}
	now, as := findHolder(j.is.Lock, first.LeaseID), j.answered(*first)
	if m.Pass == nil {
		if m.Text != "" && !slices.ContainsFunc(as, func(have Message) bool { return have.ID == m.ID }) {
			as = append(as, Message{ID: m.ID, Text: m.Text, From: Claim{Owner: j.target.Owner}.by(0, false).Owner, At: j.was.Now})
		}
		if as = as[max(len(as)-8, 0):]; j.d.err != nil || !slices.Equal(as, now.Messages) {
			return fmt.Errorf("answered %w, and %s has the messages %+v, not %+v", j.d.err, first.LeaseID, now.Messages, as)
		}
		return nil
	}
	rest := slices.DeleteFunc(slices.Clone(j.is.Lock.Holders), func(h Holder) bool { return h.LeaseID == first.LeaseID })
	next := Claim{Owner: m.Pass.Owner, Limit: first.Limit, Paths: first.Paths, Weight: first.Weight}
	waits := slices.IndexFunc(j.is.Lock.Queue, func(w *Waiter) bool {
		return !j.absent(w) && !nobodys(w) && (w.Passed == first.Token || !owed(j.is.Lock, w)) && findWaiter(j.was.Lock, w.LeaseID) != nil && inside([]Holder{{Claim: w.Claim}}, next)
	})
	if waits >= 0 {
		next = j.is.Lock.Queue[waits].Claim
	}
	if j.d.err != nil {
		var blocked *BlockedError
		switch named := errors.As(j.d.err, &blocked) && len(blocked.Holders) > 0; {
		case frozen(j.is) && errors.Is(j.d.err, ErrFrozen), named && !first.Attended && !first.Strict && !fits(rest, next):
			return nil
		}
		return fmt.Errorf("%s was not passed on: %w", first.LeaseID, j.d.err)
	}
	r, old := j.recipient(), (*Waiter)(nil)
	if r != nil {
		old = findWaiter(j.was.Lock, r.LeaseID)
	}
	switch {
	case frozen(j.is) || r == nil || !inside([]Holder{{Claim: r.Claim}}, *m.Pass) || r.LeaseID != m.Pass.LeaseID && (old == nil || nobodys(old)):
		return fmt.Errorf("%s was passed on, and has it %+v", first.LeaseID, r)
	case r.LeaseID == m.Pass.LeaseID && (waits >= 0 || r.Limit != first.Limit || r.Weight != first.Weight || !slices.Equal(r.Paths, first.Paths)):
		return fmt.Errorf("%s was passed on as %+v, though %d waits", first.LeaseID, r, waits)
	case j.passedOn(*first):
		if h := findHolder(j.is.Lock, r.LeaseID); now != nil || h == nil || j.d.holder.LeaseID != h.LeaseID || h.Pending.IsZero() != (old == nil || nobodys(old)) {
			return fmt.Errorf("%s was passed on to %+v, and there are %+v and %+v", first.LeaseID, r, now, h)
		}
	case now == nil || now.Yield == nil || now.Yield.Deadline.IsZero() && now.Yield.To.ID != r.Owner.ID || now.Yield.Grace > 10*time.Second || j.is.Lock.Queue[0] != r || j.d.holder.LeaseID != now.LeaseID:
		return fmt.Errorf("%s was passed on to %+v, and is told %+v", first.LeaseID, r, now.Yield)
	}
	return nil
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
	was, is := cmp.Or(findWaiter(j.was.Lock, c.LeaseID), &Waiter{}), findWaiter(l, c.LeaseID)
	if h := findHolder(l, c.LeaseID); was.Ticket > 0 && was.Owner.ID == c.Owner.ID && (is != nil && is.Ticket < c.Ticket || h != nil && h.Ticket < c.Ticket) {
		return fmt.Errorf("the process of number %d is there, and on record is %+v or %+v", c.Ticket, h, is)
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
		case h.LeaseID == c.LeaseID && strings.HasPrefix(c.LeaseID, "lease") && h.Owner.Process != c.Owner.Process && (h.Token > j.was.Lock.Token || !findHolder(j.was.Lock, h.LeaseID).Pending.IsZero()):
			return fmt.Errorf("process %d goes on, and process %d has it", c.Owner.Process.PID, h.Owner.Process.PID)
		}
		return nil
	}
	if !errors.Is(j.d.err, ErrHeld) && !errors.Is(j.d.err, ErrFrozen) {
		return fmt.Errorf("a claim is answered %w", j.d.err)
	}
	w := findWaiter(l, c.LeaseID)
	if before := waited(j.was, c.LeaseID); before != nil && before.Ousted != "" && (w == nil || w.Ousted != "") {
		return nil // it was sent away
	}
	if c.Wait != 0 && j.leaves == "" && (w == nil || j.d.place == nil || w.Until != j.is.Now.Add(15*time.Second+keep(w.Claim, 30*time.Second))) {
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
	if first := waited(j.was, c.LeaseID); first != nil {
		c = first.Claim // it was queued on these terms
	} else if j.back(j.was, c.LeaseID) {
		c = findHolder(j.was.Lock, c.LeaseID).Claim
	}
	behind := slices.ContainsFunc(l.Queue, func(w *Waiter) bool {
		return w.Priority >= c.Priority && !j.absent(w) && keeps(l.Holders, w, c)
	})
	if first := findWaiter(j.was.Lock, c.LeaseID); fits(l.Holders, c) && !behind && (first == nil || !owed(l, first)) {
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

// Promises S-1, S-4, S-55, S-197, S-198, S-220, S-225.
func TestRulesSatisfyTheReferee(t *testing.T) {
	set := func(name, value string) {
		if f := flag.Lookup(name); f.Value.String() == f.DefValue {
			_ = f.Value.Set(value)
			t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
		}
	}
	if os.Getenv("LOKT_SOAK") != "" {
		set("rapid.checks", "400000") // others each time: some defects show in one of a million
	} else {
		set("rapid.checks", "4000")
		set("rapid.seed", "1") // a change is judged by what it does, not by its luck
	}
	rapid.Check(t, func(t *rapid.T) {
		some, plain, tickets := rapid.Uint8(), rapid.Bool().Draw(t, "plain"), rapid.Bool().Draw(t, "tickets")
		one := rapid.Custom(func(t *rapid.T) step {
			st := step{
				some.Draw(t, "kind"), some.Draw(t, "owner"), some.Draw(t, "lease"),
				some.Draw(t, "shape"), some.Draw(t, "life"), some.Draw(t, "order"),
			}
			if plain {
				st.shape &= 0x0f // neither paths nor weights
			}
			if tickets {
				st.owner |= 128
			}
			return st
		})
		if err := play(rapid.SliceOfN(one, 1, 80).Draw(t, "steps")); err != nil {
			t.Fatal(err)
		}
	})
}
