package lokt

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// lab is a lock to which rules are applied one after another.
type lab struct {
	t *testing.T
	s Snapshot
}

func newLab(t *testing.T) *lab {
	return &lab{t: t, s: Snapshot{
		Lock: Lock{Name: "x"}, Now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Dead: map[string]bool{},
	}}
}

func (l *lab) apply(d *decision) *decision {
	l.s.Lock = d.Lock
	return d
}

// as returns a claim of an owner whose lease ID is its name, edited by the options.
func as(owner string, edits ...func(*Claim)) Claim {
	id, session, _ := strings.Cut(owner, "/")
	c := Claim{Name: "x", LeaseID: owner, Owner: Owner{ID: id, Session: session, Host: "here"}}
	for _, edit := range edits {
		edit(&c)
	}
	return c
}

func lease(id string) func(*Claim)             { return func(c *Claim) { c.LeaseID = id } }
func limit(n int) func(*Claim)                 { return func(c *Claim) { c.Limit = n } }
func ttl(d time.Duration) func(*Claim)         { return func(c *Claim) { c.TTL = d } }
func maxHold(d time.Duration) func(*Claim)     { return func(c *Claim) { c.MaxHold = d } }
func priority(n int) func(*Claim)              { return func(c *Claim) { c.Priority = n } }
func preempt(grace time.Duration) func(*Claim) { return func(c *Claim) { c.Preempt = grace } }
func guard(c *Claim)                           { c.Strict = true }
func refreshed(c *Claim)                       { c.Refresh = true }
func waits(c *Claim)                           { c.Wait = -1 }
func within(ids ...string) func(*Claim)        { return func(c *Claim) { c.Within = ids } }
func anySession(c *Claim)                      { c.Owner.AnySession = true }

func (l *lab) acquire(c Claim) *decision { return l.apply(acquire(l.s, c)) }

// grant acquires what must be granted.
func (l *lab) grant(c Claim) Holder {
	l.t.Helper()
	d := l.acquire(c)
	if d.err != nil {
		l.t.Fatalf("%s was denied: %v", c.LeaseID, d.err)
	}
	return d.holder
}

// enqueue acquires what must wait.
func (l *lab) enqueue(c Claim) {
	l.t.Helper()
	waits(&c)
	if d := l.acquire(c); d.place == nil || d.err != nil {
		l.t.Fatalf("%s does not wait: %+v", c.LeaseID, d)
	}
}

// deny acquires what must be denied.
func (l *lab) deny(c Claim) *BlockedError {
	l.t.Helper()
	d := l.acquire(c)
	var blocked *BlockedError
	if !errors.As(d.err, &blocked) || d.place != nil {
		l.t.Fatalf("%s was not denied: %+v", c.LeaseID, d)
	}
	return blocked
}

func (l *lab) renew(leaseID string) (Holder, error) {
	d := l.apply(renew(l.s, Renewal{Name: "x", LeaseID: leaseID}))
	return d.holder, d.err
}

// heed renews as a holder that has heard of what the last answer was.
func (l *lab) heed(leaseID string) (Holder, error) {
	h, _ := l.s.Lock.Holder(leaseID)
	d := l.apply(renew(l.s, Renewal{Name: "x", LeaseID: leaseID, Heard: h.Yield.Deadline}))
	return d.holder, d.err
}

func (l *lab) release(leaseID string) *decision {
	l.t.Helper()
	d := l.apply(release(l.s, Target{Name: "x", LeaseID: leaseID}))
	if d.err != nil {
		l.t.Fatalf("release of %s: %v", leaseID, d.err)
	}
	return d
}

func (l *lab) pass(d time.Duration) { l.s.Now = l.s.Now.Add(d) }

func leases(holders []Holder) string {
	ids := make([]string, len(holders))
	for i, h := range holders {
		ids[i] = h.LeaseID
	}
	return strings.Join(ids, " ")
}

// expect compares the holders and the queue, as lease IDs in order.
func (l *lab) expect(holders, queue string) {
	l.t.Helper()
	ids := make([]string, len(l.s.Lock.Queue))
	for i, w := range l.s.Lock.Queue {
		ids[i] = w.LeaseID
	}
	if got := leases(l.s.Lock.Holders); got != holders {
		l.t.Errorf("holders are %q, not %q", got, holders)
	}
	if got := strings.Join(ids, " "); got != queue {
		l.t.Errorf("the queue is %q, not %q", got, queue)
	}
}

// told compares the types of the events.
func told(t *testing.T, d *decision, want ...EventType) {
	t.Helper()
	var got []EventType
	for _, e := range d.Events {
		got = append(got, e.Type)
	}
	if !slices.Equal(got, want) {
		t.Errorf("events are %v, not %v", got, want)
	}
}

func TestGrantRecordsTheClaim(t *testing.T) {
	l := newLab(t)
	c := as("alice", ttl(time.Minute), priority(3), guard)
	c.Metadata = map[string]string{"why": "so"}
	d := l.acquire(c)
	told(t, d, EventAcquire)
	want := Holder{Claim: c, Token: 1, HeldSince: l.s.Now, AcquiredAt: l.s.Now, ExpiresAt: l.s.Now.Add(time.Minute)}
	if !reflect.DeepEqual(d.holder, want) {
		t.Errorf("got  %+v\nwant %+v", d.holder, want)
	}
	if e := d.Events[0]; e.LeaseID != "alice" || e.Token != 1 || e.TTL != time.Minute || e.Owner.ID != "alice" || e.Name != "x" {
		t.Errorf("event %+v", e)
	}
}

// Promise S-1.
func TestWhoMayShareWithWhom(t *testing.T) {
	shared, two := limit(Shared), limit(2)
	for _, c := range []struct {
		name  string
		held  []Claim
		claim Claim
		ok    bool
	}{
		{"exclusive on exclusive", []Claim{as("a")}, as("b"), false},
		{"exclusive on shared", []Claim{as("a", shared)}, as("b"), false},
		{"shared on exclusive", []Claim{as("a")}, as("b", shared), false},
		{"shared on shared", []Claim{as("a", shared), as("b", shared)}, as("c", shared), true},
		{"second of two", []Claim{as("a", two)}, as("b", two), true},
		{"third of two", []Claim{as("a", two), as("b", two)}, as("c", two), false},
		{"shared as the third of two", []Claim{as("a", two), as("b", two)}, as("c", shared), false},
		{"shared as the second of two", []Claim{as("a", two)}, as("b", shared), true},
		{"two where three share", []Claim{as("a", shared), as("b", shared), as("c", shared)}, as("d", two), false},
		{"limits of three and two", []Claim{as("a", limit(3)), as("b", two)}, as("c", limit(3)), false},
		{"own exclusive again", []Claim{as("a")}, as("a", lease("a2")), true},
		{"own shared beside own exclusive", []Claim{as("a")}, as("a", shared, lease("a2")), true},
		{"upgrade when alone", []Claim{as("a", shared)}, as("a", lease("a2")), true},
		{"upgrade with company", []Claim{as("a", shared), as("b", shared)}, as("a", lease("a2")), false},
		{"own re-entrant holds count once", []Claim{as("a", two), as("a", two, lease("a2"))}, as("b", two), true},
		{"another session", []Claim{as("a/1")}, as("a/2"), false},
		{"the same session", []Claim{as("a/1")}, as("a/1", lease("a2")), true},
		{"an owner of all sessions", []Claim{as("a/1")}, as("a", anySession), true},
		{"a session against an owner of all", []Claim{as("a", anySession)}, as("a/1"), false},
		{"guard on own guard", []Claim{as("a", guard)}, as("a", guard, lease("a2")), false},
		{"guard on own lease", []Claim{as("a")}, as("a", guard, lease("a2")), true},
		{"lease on own guard", []Claim{as("a", guard)}, as("a", lease("a2")), true},
		{"guard of two slots on own guard", []Claim{as("a", guard, two)}, as("a", guard, two, lease("a2")), true},
		{"own guards count each", []Claim{as("a", guard, two), as("a", guard, two, lease("a2"))}, as("b", two), false},
		{"own guards and a lease take two slots", []Claim{as("a", guard, limit(3)), as("a", limit(3), lease("a2")), as("a", guard, limit(3), lease("a3"))}, as("b", limit(3)), true},
		{"exclusive lease on two own guards", []Claim{as("a", guard, two), as("a", guard, two, lease("a2"))}, as("a", lease("a3")), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			for _, h := range c.held {
				l.grant(h)
			}
			before := leases(l.s.Lock.Holders)
			d := l.acquire(c.claim)
			if (d.err == nil) != c.ok {
				t.Fatalf("granted: %v", d.err)
			}
			if c.ok {
				l.expect(before+" "+c.claim.LeaseID, "")
				told(t, d, EventAcquire)
				return
			}
			l.expect(before, "")
			told(t, d, EventDeny)
			var blocked *BlockedError
			if !errors.As(d.err, &blocked) || len(blocked.Holders) == 0 || !errors.Is(d.err, ErrHeld) || errors.Is(d.err, ErrFrozen) {
				t.Errorf("denied with %v", d.err)
			}
		})
	}
}

func TestDenialNamesWhoIsInTheWay(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(2)))
	l.grant(as("b", limit(2)))
	l.enqueue(as("c", limit(2)))
	blocked := l.deny(as("a", lease("a2"))) // its own hold is not in its way, and being inside it waits for nobody
	if leases(blocked.Holders) != "b" || len(blocked.Ahead) != 0 || !blocked.Now.Equal(l.s.Now) || blocked.Name != "x" {
		t.Errorf("a is denied by %+v", blocked)
	}
	blocked = l.deny(as("d", limit(2)))
	if leases(blocked.Holders) != "a b" || len(blocked.Ahead) != 1 || blocked.Ahead[0].LeaseID != "c" {
		t.Errorf("d is denied by %+v", blocked)
	}
}

// Promise S-27.
func TestStaleIsStrictlyAfterTheDeadline(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	yield := func(at time.Time) *Yield { return &Yield{Deadline: at} }
	for _, c := range []struct {
		name   string
		holder Holder
		dead   bool
		reason string
	}{
		{"without end", Holder{}, false, ""},
		{"before expiry", Holder{ExpiresAt: now.Add(1)}, false, ""},
		{"at expiry", Holder{ExpiresAt: now}, false, ""},
		{"after expiry", Holder{ExpiresAt: now.Add(-1)}, false, ReasonExpired},
		{"dead", Holder{ExpiresAt: now.Add(1)}, true, ReasonDead},
		{"to be taken up by now", Holder{Pending: now}, false, ""},
		{"not taken up", Holder{Pending: now.Add(-1)}, false, ReasonUnclaimed},
		{"asked to yield", Holder{Yield: yield(time.Time{})}, false, ""},
		{"told to yield by now", Holder{Yield: yield(now)}, false, ""},
		{"told to yield before", Holder{Yield: yield(now.Add(-1))}, false, ""},
		{"told before, and has heard", Holder{Yield: &Yield{Deadline: now.Add(-1), Heard: true}}, false, ReasonPreempted},
		{"told before, and expires later", Holder{ExpiresAt: now, Yield: yield(now.Add(-1))}, false, ""},
		{"told and expired before", Holder{ExpiresAt: now.Add(-1), Yield: yield(now.Add(-1))}, false, ReasonPreempted},
		{"told by now and expired", Holder{ExpiresAt: now.Add(-1), Yield: yield(now)}, false, ReasonExpired},
	} {
		c.holder.LeaseID = "a"
		s := Snapshot{Lock: Lock{Name: "x", Token: 1, Holders: []Holder{c.holder}}, Now: now, Dead: map[string]bool{"a": c.dead}}
		reason, stale := s.Stale(c.holder)
		if reason != c.reason || stale != (c.reason != "") {
			t.Errorf("%s: stale %v, %q", c.name, stale, reason)
		}
		if live := len(s.Live()); (live == 0) != stale {
			t.Errorf("%s: %d live", c.name, live)
		}
		d := prune(s)
		if stale != (len(d.Lock.Holders) == 0) || stale != (len(d.removed) == 1 && d.removed[0].Reason == c.reason) {
			t.Errorf("%s: pruning removed %+v and left %+v", c.name, d.removed, d.Lock.Holders)
		}
		if len(s.Lock.Holders) != 1 {
			t.Errorf("%s: the snapshot was changed", c.name)
		}
	}
}

// Promise S-11.
func TestTakeoverTellsWhoWasDisplaced(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(time.Second)))
	l.pass(time.Second + 1)
	d := l.acquire(as("b"))
	told(t, d, EventAutoPrune, EventTakeover, EventAcquire)
	if e := d.Events[1]; e.Extra[ExtraDisplaced] != "a@here" || e.Extra[ExtraLeaseWas] != "a" || e.Extra[ExtraReason] != ReasonExpired || e.LeaseID != "b" {
		t.Errorf("takeover %+v", e)
	}
	if d.holder.Token != 2 {
		t.Errorf("token %d", d.holder.Token)
	}
}

func TestEachStaleHolderHasOneSuccessor(t *testing.T) {
	l := newLab(t)
	for _, who := range []string{"a", "b"} {
		l.grant(as(who, limit(2), ttl(time.Second)))
	}
	for _, who := range []string{"c", "d", "e"} {
		l.enqueue(as(who, limit(3), ttl(time.Minute)))
	}
	l.pass(time.Second + 1)
	var succession []string
	for _, e := range l.apply(prune(l.s)).Events {
		if e.Type == EventTakeover {
			succession = append(succession, e.Extra[ExtraLeaseWas]+" "+e.LeaseID)
		}
	}
	l.expect("c d e", "")
	if got := strings.Join(succession, ", "); got != "a c, b d" {
		t.Errorf("takeovers: %s", got)
	}
}

func TestEventsOfGrantsAndRenewalsSayWhenTheHoldEnds(t *testing.T) {
	l := newLab(t)
	want := func(d *decision, end time.Time) {
		t.Helper()
		if e := d.Events[len(d.Events)-1]; !e.Expires.Equal(end) {
			t.Errorf("%s says %v, not %v", e.Type, e.Expires, end)
		}
	}
	begun := l.s.Now
	want(l.acquire(as("a", ttl(time.Minute), maxHold(90*time.Second))), begun.Add(time.Minute))
	l.pass(40 * time.Second)
	want(l.apply(renew(l.s, Renewal{Name: "x", LeaseID: "a"})), begun.Add(90*time.Second))
	want(l.release("a"), time.Time{})
	want(l.acquire(as("b")), time.Time{})
}

func TestNextChangeIsTheEarliestDeadline(t *testing.T) {
	l := newLab(t)
	if !l.s.NextChange().IsZero() {
		t.Error("a free lock changes by itself")
	}
	now := l.s.Now
	l.s.Lock.Holders = []Holder{{ExpiresAt: now.Add(-1)}} // what has changed already does not change again
	if !l.s.NextChange().IsZero() {
		t.Errorf("next change is %v", l.s.NextChange())
	}
	at := func(n time.Duration) time.Time { return now.Add(n * time.Second) }
	for n := 5; n >= 1; n-- {
		switch n {
		case 5:
			l.s.Lock.Holders = []Holder{{ExpiresAt: at(5)}, {}}
		case 4:
			l.s.Lock.Queue = []*Waiter{{Until: at(6)}, {Until: at(4)}}
		case 3:
			l.s.Lock.Freeze = &Freeze{ExpiresAt: at(3)}
		case 2:
			l.s.Lock.Holders[1].Pending = at(2)
		case 1:
			l.s.Lock.Holders[0].Yield = &Yield{Deadline: now.Add(1)} // of which it has not heard
			l.s.Lock.Holders[1].Yield = &Yield{Deadline: at(1), Heard: true}
		}
		if got := l.s.NextChange(); !got.Equal(at(time.Duration(n))) {
			t.Errorf("next change is %v, not %v", got, at(time.Duration(n)))
		}
	}
}

// Promise S-7.
func TestClaimSentAgainIsAnsweredAlike(t *testing.T) {
	l := newLab(t)
	first := l.grant(as("a", ttl(10*time.Second)))
	l.pass(4 * time.Second)
	d := l.acquire(as("a", ttl(10*time.Second), limit(7), priority(9)))
	told(t, d)
	if h := d.holder; d.err != nil || h.Token != first.Token || h.Limit != first.Limit || !h.HeldSince.Equal(first.HeldSince) || !h.ExpiresAt.Equal(l.s.Now.Add(10*time.Second)) {
		t.Errorf("the answer is %+v, %v", h, d.err)
	}
	l.expect("a", "")
	if d := l.acquire(as("b", lease("a"))); !errors.Is(d.err, ErrInvalid) {
		t.Errorf("another's lease ID: %v", d.err)
	}
	l.enqueue(as("c"))
	if d := l.acquire(as("b", lease("c"), waits)); !errors.Is(d.err, ErrInvalid) {
		t.Errorf("another's place in the queue: %v", d.err)
	}
	l.expect("a", "c")
}

func TestQueuedClaimAskedAgainKeepsItsPlaceAndItsTerms(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(2)))
	l.enqueue(as("b"))
	l.enqueue(as("c"))
	l.pass(20 * time.Second)
	l.enqueue(as("b", priority(5), limit(2)))
	l.expect("a", "b c")
	if w := l.s.Lock.Queue[0]; w.Priority != 0 || !w.Until.Equal(l.s.Now.Add(PresenceTTL+QueueTTL)) || !w.Since.Equal(l.s.Now.Add(-20*time.Second)) {
		t.Errorf("b waits as %+v", w)
	}
	l.pass(PresenceTTL + QueueTTL - 20*time.Second + 1) // c did not ask
	l.apply(prune(l.s))
	l.expect("a", "b")
}

func TestQueueIsByPriorityThenArrival(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	for _, c := range []Claim{as("b"), as("c", priority(1)), as("d"), as("e", priority(-1)), as("f", priority(1)), as("g", priority(7))} {
		l.enqueue(c)
	}
	l.expect("a", "g c f b d e")
	if n, ok := l.s.Lock.Position("b"); n != 3 || !ok {
		t.Errorf("b is at %d, %v", n, ok)
	}
	for _, next := range strings.Fields("g c f b d e") {
		d := l.release(l.s.Lock.Holders[0].LeaseID)
		told(t, d, EventRelease, EventAcquire, EventWait)
		if got := leases(l.s.Lock.Holders); got != next {
			t.Fatalf("%s was granted, not %s", got, next)
		}
	}
}

// Promise S-37.
func TestNobodyBarges(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(2)))
	l.enqueue(as("writer"))
	_ = l.deny(as("reader", limit(2)))                     // there is room, but the writer comes first
	l.grant(as("urgent", limit(2), priority(1)))           // unless it is more important
	l.grant(as("a", limit(2), lease("a2")))                // or its owner is inside, who would wait for itself
	l.enqueue(as("urgent", lease("u2"), limit(Exclusive))) // and cannot get in for another reason
	l.expect("a urgent a2", "writer u2")
	l.release("urgent")
	l.release("a")
	l.expect("a2", "writer u2")
	l.release("a2")
	l.expect("writer", "u2")
}

func TestReleaseLetsInAllThatFit(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	for _, c := range []Claim{as("b", limit(Shared)), as("c", limit(3)), as("d", limit(Shared)), as("e", limit(Shared)), as("f")} {
		l.enqueue(c)
	}
	l.release("a")
	l.expect("b c d", "e f")
	for i, h := range l.s.Lock.Holders {
		if h.Token != uint64(2+i) || !h.Pending.Equal(l.s.Now.Add(OfferTTL)) {
			t.Errorf("holder %+v", h)
		}
	}
}

// Promise S-37.
func TestReentrantWaiterPassesTheOneThatWaitsForIt(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(Shared)))
	l.grant(as("b", limit(Shared)))
	l.enqueue(as("c"))
	l.enqueue(as("a", lease("a2"))) // an upgrade, behind c, which waits for a
	l.release("b")
	l.expect("a a2", "c")
}

func newest(c *Claim) { c.Newest = true }

// Promise S-225.
func TestANewerWaiterSendsAwayThoseBeforeItThatWantThat(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", newest))
	for _, c := range []Claim{as("b", newest), as("plain"), as("urgent", newest, priority(1)), as("c", newest)} {
		l.enqueue(c)
	}
	_ = l.deny(as("looks", newest)) // who does not wait sends nobody away
	l.expect("a", "urgent b plain c")
	for _, w := range l.s.Lock.Queue {
		if (w.Ousted == "urgent@here") != (w.LeaseID == "b") || l.s.Away(w) != (w.Ousted != "") {
			t.Errorf("%s waits as %+v", w.LeaseID, w)
		}
	}
	l.enqueue(as("c", newest)) // again, which is not newer
	l.release("a")
	l.expect("urgent", "b plain c")
	l.pass(time.Second)
	if blocked := l.deny(as("b", newest, waits)); blocked.TimedOut != 0 || blocked.Ousted != "urgent@here" { // it asks, though the lock is free for it
		t.Errorf("b was told %+v", blocked)
	}
	l.expect("urgent", "plain c")
	l.enqueue(as("d", newest))
	l.release("urgent")
	l.release("plain")
	l.expect("d", "c")
	l.grant(as("d"))
	l.pass(QueueTTL + 1) // c does not ask again
	l.apply(prune(l.s))
	l.expect("d", "")
}

// Promise S-225. A store may not notice that its clock was set back by less than a second.
func TestWhoWasSentAwayIsNotLetInThoughTheClockIsSetBack(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", newest))
	l.enqueue(as("b", newest))
	l.enqueue(as("c", newest))
	l.pass(-time.Second / 2)
	l.release("a")
	l.expect("c", "b")
}

// Promise S-266.
func TestWhoWasSentAwayHearsSoHoweverOftenItAsks(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", guard))
	l.enqueue(as("b", newest, preempt(time.Second), within("a"), func(c *Claim) { c.Priority, c.Paths = 1, []string{"src/**"} }))
	d := l.acquire(as("c", newest, priority(1), waits))
	told(t, d, EventWait, EventWait)
	if e := d.Events[0]; e.LeaseID != "b" || e.Extra[ExtraOutcome] != "ousted" {
		t.Errorf("of b is told %+v", e)
	}
	if h, _ := l.s.Lock.Holder("a"); h.Yield != nil || l.s.Lock.waitingBytes() != 0 || len(l.s.told().Lock.Queue) != 1 {
		t.Errorf("b, which was sent away, is wanted by %+v, and seen are %v", h.Yield, l.s.told().Lock.Queue)
	}
	for range 3 { // an answer may be lost
		l.pass(QueueTTL / 3)
		d := l.apply(asked(l.s, as("b", newest, waits), PresenceTTL))
		if blocked := (*BlockedError)(nil); !errors.As(d.err, &blocked) || blocked.Ousted != "c@here" || len(d.Events) > 0 {
			t.Errorf("b hears %v, and of it is told %v", d.err, d.Events)
		}
		l.apply(asked(l.s, as("c", newest, waits), PresenceTTL))
		l.expect("a", "b c")
	}
	d = l.apply(leaveQueue(l.s, as("b", newest, waits), leftTimeout)) // between its last look and this
	if blocked := (*BlockedError)(nil); !errors.As(d.err, &blocked) || blocked.Ousted != "c@here" {
		t.Errorf("at the end of its time b hears %v", d.err)
	}
	l.pass(1)
	told(t, l.apply(prune(l.s)))
	l.expect("a", "c")
}

// Promises S-126, S-266.
func TestWhoWasSentAwayTakesNobodysPlace(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	for i := range maxOusted + 3 {
		l.enqueue(as(fmt.Sprint("b", i), newest))
	}
	if n := len(l.s.Lock.Queue); n != maxOusted+1 {
		t.Errorf("on record are %d", n)
	}
	for len(l.s.Lock.Queue) < maxOusted+MaxWaiters {
		l.s.Lock.Queue = append(l.s.Lock.Queue, &Waiter{Claim: as(fmt.Sprint("c", len(l.s.Lock.Queue))), Until: l.s.Now.Add(time.Hour)})
	}
	if d := acquire(l.s, as("d", waits)); !errors.Is(d.err, ErrFull) {
		t.Errorf("one too many is told %v", d.err)
	}
	l.s.Lock.Queue = l.s.Lock.Queue[:len(l.s.Lock.Queue)-1]
	l.enqueue(as("d"))
}

// Promise S-225.
func TestANewerClaimThatMayEnterSendsAwayTheWaiterInItsWay(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(Shared)))
	l.enqueue(as("b", newest))
	l.grant(as("c", newest, limit(Shared), waits))
	l.expect("a c", "b")
	l.release("a")
	l.release("c")
	l.expect("", "b")
	if d := l.acquire(as("b", newest, waits)); !errors.Is(d.err, ErrHeld) {
		t.Errorf("b, which was sent away, got %v", d.err)
	}
}

// Promise S-39.
func TestGrantFromTheQueueIsPassedOnUnlessItIsTakenUp(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	l.enqueue(as("b", ttl(time.Hour)))
	l.enqueue(as("c", ttl(time.Hour)))
	l.release("a")
	l.pass(OfferTTL)
	d := l.apply(prune(l.s))
	told(t, d)
	l.expect("b", "c")
	l.pass(1)
	d = l.acquire(as("c", ttl(time.Hour), waits)) // c has asked in time; b has not
	if d.err != nil || d.place != nil || d.holder.LeaseID != "c" || !d.holder.Pending.IsZero() || !d.holder.ExpiresAt.Equal(l.s.Now.Add(time.Hour)) {
		t.Errorf("c is answered %+v", d)
	}
	l.expect("c", "b") // it may come back, and is the next then
	l.enqueue(as("d"))
	l.expect("c", "b d")
	l.pass(QueueTTL * 2)
	l.apply(prune(l.s))
	l.expect("c", "")
	if d := l.acquire(as("b", ttl(time.Hour))); !errors.Is(d.err, ErrHeld) {
		t.Errorf("b comes late and is answered %v", d.err)
	}
}

// Promise S-39.
func TestDeadAndSilentWaitersAreNotGranted(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(time.Second)))
	l.enqueue(as("dead"))
	l.enqueue(as("silent"))
	l.s.Dead["dead"] = true
	l.pass(PresenceTTL - time.Second)
	_, _ = l.renew("a") // refused: a has expired, so the queue moves
	l.expect("silent", "")
	l.release("silent")

	l.grant(as("a"))
	l.enqueue(as("silent"))
	l.pass(PresenceTTL)
	l.enqueue(as("b"))
	d := l.release("a")
	l.expect("b", "silent") // which is passed over, and keeps its place
	told(t, d, EventRelease, EventAcquire, EventWait)
	l.acquire(as("b"))
	l.pass(QueueTTL + 1)
	l.enqueue(as("c"))
	l.expect("b", "c")
}

// hangUp has the claim's client go away.
func (l *lab) hangUp(leaseID string) {
	l.t.Helper()
	at, _ := l.s.Lock.Position(leaseID)
	l.apply(away(l.s, leaseID, 0, l.s.Lock.Queue[at].Until))
}

// Promise S-125.
func TestWaitersThatAreAwayArePassedOverAndKeepTheirPlace(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	for _, who := range []string{"b", "c", "d", "e"} {
		l.enqueue(as(who))
	}
	l.hangUp("b")
	l.hangUp("c")
	l.release("a")
	l.expect("d", "b c e")
	l.acquire(as("d"))
	l.enqueue(as("b")) // which is back
	l.release("d")
	l.expect("b", "c e")
	l.acquire(as("b"))
	l.hangUp("e")
	if err := l.deny(as("f")); len(err.Ahead) != 0 { // only the holder is in the way
		t.Errorf("f is told of %+v", err.Ahead)
	}
	l.release("b")
	l.expect("", "c e")
	l.grant(as("f")) // nobody else is there
	l.enqueue(as("e"))
	l.enqueue(as("c"))
	l.release("f")
	l.expect("c", "e")
}

// Promise S-125.
func TestAClaimantThatReturnsLateIsNotOvertakenInTheSameStep(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(20*time.Second)))
	l.enqueue(as("b"))
	l.pass(18 * time.Second)
	l.enqueue(as("c"))
	l.pass(2*time.Second + 1)
	if d := l.acquire(as("b", waits)); d.err != nil || d.place != nil || !d.holder.Pending.IsZero() {
		t.Errorf("b asks when a is over, and is answered %+v", d)
	}
	l.expect("b", "c")
}

// Promises S-125, S-147.
func TestGrantsThatNobodyTakesUpDoNotAddUpForThoseWhoCame(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	for _, who := range []string{"b", "c", "d"} {
		l.enqueue(as(who, ttl(time.Hour), within("outer of "+who), preempt(time.Second), priority(1)))
	}
	came := l.s.Now
	l.pass(3 * time.Second)
	l.release("a")
	l.pass(OfferTTL + 1)
	l.apply(prune(l.s))
	l.expect("c", "b d")
	l.pass(OfferTTL + 1)
	l.apply(prune(l.s))
	l.expect("d", "c b")
	for _, w := range l.s.Lock.Queue {
		if !w.Since.Equal(came) || w.Wait != 0 {
			t.Errorf("%s waits since %v, not since it came, %v: %+v", w.LeaseID, w.Since, came, w)
		}
	}
	d := l.acquire(as("c", ttl(time.Hour), within("outer of c"), preempt(time.Second), priority(1), waits))
	if w := l.s.Lock.Queue[0]; d.place == nil || w.LeaseID != "c" || w.Preempt != time.Second || len(w.Within) != 1 {
		t.Errorf("c waits again as %+v", w)
	}
	l.s.Dead["d"] = true
	l.apply(prune(l.s))
	l.expect("c", "b") // the dead do not come back
}

// Promise S-125.
func TestReadersPassAWriterThatIsAway(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(Shared)))
	l.enqueue(as("writer"))
	l.pass(5 * time.Second)
	l.enqueue(as("reader", limit(Shared)))
	if next := l.s.NextChange(); !next.Equal(l.s.Now.Add(PresenceTTL - 5*time.Second)) {
		t.Errorf("the next change is %v, in %v", next, next.Sub(l.s.Now))
	}
	l.pass(PresenceTTL - 5*time.Second)
	l.apply(prune(l.s))
	l.expect("a reader", "writer")
}

// Promise S-125.
func TestReadersPassAWriterInTheStepThatTellsItAway(t *testing.T) {
	behind := func() *lab {
		l := newLab(t)
		l.grant(as("a", limit(Shared)))
		l.enqueue(as("first"))
		l.enqueue(as("writer"))
		l.release("a")
		l.apply(acquire(l.s, as("first", limit(Shared))))
		l.s.Lock.Holders[0].Limit = Shared
		l.enqueue(as("reader", limit(Shared)))
		l.apply(prune(l.s))
		return l
	}
	l := behind()
	l.apply(away(l.s, "writer", 0, l.s.Lock.Queue[0].Until))
	l.expect("first reader", "writer") // whose client has hung up
	l = behind()
	l.apply(asked(l.s, as("writer", waits), 2*time.Second))
	l.pass(2 * time.Second)
	l.apply(prune(l.s))
	l.expect("first reader", "writer") // which was not asked for again
}

// Promise S-125.
func TestWhoIsAwayDoesNotPreempt(t *testing.T) {
	l := newLab(t)
	l.enqueueAway(as("urgent", priority(1), preempt(time.Minute)))
	l.grant(as("a"))
	if l.s.Lock.Holders[0].Yield != nil {
		t.Error("it was asked to yield")
	}
	l.enqueue(as("urgent", priority(1), preempt(time.Minute)))
	l.enqueue(as("other"))
	if l.s.Lock.Holders[0].Yield == nil {
		t.Error("it was not asked to yield")
	}
	deadline := l.s.Lock.Holders[0].Yield.Deadline
	l.hangUp("urgent")
	l.enqueue(as("third"))
	if y := l.s.Lock.Holders[0].Yield; y == nil || !y.Deadline.Equal(deadline) {
		t.Errorf("its grace became %+v", y)
	}
}

// enqueueAway has a claim in the queue whose client has hung up.
func (l *lab) enqueueAway(c Claim) {
	l.t.Helper()
	l.grant(as("first"))
	l.enqueue(c)
	l.hangUp(c.LeaseID)
	l.release("first")
}

func TestRenewal(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(10*time.Second), maxHold(25*time.Second)))
	start := l.s.Now
	for i, c := range []struct {
		after   time.Duration
		expires time.Duration
	}{{8 * time.Second, 18 * time.Second}, {18 * time.Second, 25 * time.Second}, {25 * time.Second, 25 * time.Second}} {
		l.s.Now = start.Add(c.after)
		h, err := l.renew("a")
		if err != nil || !h.ExpiresAt.Equal(start.Add(c.expires)) || h.Renewals != i+1 || !h.AcquiredAt.Equal(l.s.Now) || !h.HeldSince.Equal(start) || h.Token != 1 {
			t.Errorf("renewal %d: %+v, %v", i, h, err)
		}
	}
	l.pass(1)
	_, err := l.renew("a")
	var gone *GoneError
	if !errors.As(err, &gone) || !errors.Is(err, ErrNotFound) || gone.Cause != ReasonExpired {
		t.Errorf("renewal past the maximum hold: %v", err)
	}
	if _, err := l.renew("a"); !errors.As(err, &gone) || gone.Cause != "" {
		t.Errorf("second renewal past the maximum hold: %v", err)
	}
	l.grant(as("b"))
	if _, err := l.renew("a"); !errors.Is(err, ErrNotOwner) || errors.Is(err, ErrNotFound) {
		t.Errorf("renewal of what another holds: %v", err)
	}
}

func TestRenewalNeedsTheRecordedOwner(t *testing.T) {
	owner := Owner{ID: "a", Host: "here", Process: Process{PID: 7}}
	for _, c := range []struct {
		name string
		by   *Owner
		ok   bool
	}{
		{"nobody in particular", nil, true},
		{"the same", &owner, true},
		{"the same without a PID", &Owner{ID: "a", Host: "here"}, true},
		{"another ID", &Owner{ID: "b", Host: "here"}, false},
		{"another host", &Owner{ID: "a", Host: "there"}, false},
		{"another process", &Owner{ID: "a", Host: "here", Process: Process{PID: 8}}, false},
	} {
		l := newLab(t)
		l.grant(Claim{Name: "x", LeaseID: "a", Owner: owner, TTL: time.Second})
		before := l.s.Lock.Clone()
		d := renew(l.s, Renewal{Name: "x", LeaseID: "a", Owner: c.by})
		if (d.err == nil) != c.ok {
			t.Errorf("by %s: %v", c.name, d.err)
		}
		if !c.ok {
			told(t, d, EventRenewFail)
			if !reflect.DeepEqual(d.Lock.Holders, before.Holders) {
				t.Errorf("by %s, and the hold changed", c.name)
			}
		}
	}
}

// Promise S-23.
func TestRefreshRenewsTheOwnHoldOnNewTerms(t *testing.T) {
	l := newLab(t)
	c := as("a", ttl(10*time.Second))
	c.Metadata = map[string]string{"k": "v"}
	l.grant(c)
	l.enqueue(as("b", limit(2)))
	l.pass(3 * time.Second)
	d := l.acquire(as("a", lease("a2"), refreshed, limit(2), ttl(20*time.Second)))
	told(t, d, EventRenew, EventAcquire, EventWait) // b shares with what is now a hold of two
	h := d.holder
	if h.LeaseID != "a" || h.Token != 1 || h.Limit != 2 || h.Renewals != 1 || !h.ExpiresAt.Equal(l.s.Now.Add(20*time.Second)) || h.Metadata["k"] != "v" {
		t.Errorf("refreshed to %+v", h)
	}
	l.expect("a b", "")
	if d := l.acquire(as("a", lease("a3"), refreshed)); !errors.Is(d.err, ErrHeld) {
		t.Errorf("refresh to exclusive beside b: %v", d.err)
	}
	if h, _ := l.s.Lock.Holder("a"); h.Limit != 2 || h.Renewals != 1 {
		t.Errorf("a refresh that was denied changed the hold: %+v", h)
	}
}

func TestRefreshLeavesGuardsAlone(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", guard, ttl(time.Second)))
	h := l.grant(as("a", lease("a2"), refreshed))
	if h.LeaseID != "a2" {
		t.Errorf("refreshed %+v", h)
	}
	l.expect("a a2", "")
}

// Promise S-23.
func TestRefreshTakesUpAStaleHoldWithANewToken(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(time.Second)))
	l.pass(time.Minute)
	d := l.acquire(as("a", lease("a2"), refreshed, ttl(time.Second)))
	told(t, d, EventRenew)
	if h := d.holder; h.LeaseID != "a" || h.Token != 2 || !h.HeldSince.Equal(l.s.Now) {
		t.Errorf("taken up as %+v", h)
	}
	l.enqueue(as("b"))
	l.pass(2 * time.Second)
	d = l.acquire(as("a", lease("a3"), refreshed, ttl(time.Second)))
	if !errors.Is(d.err, ErrHeld) {
		t.Errorf("it passed who waited: %v", d.err)
	}
	l.expect("b", "")
}

func TestRefreshOfAStaleHoldDoesNotPassWhoWaits(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(Shared), ttl(time.Second)))
	l.grant(as("b", limit(Shared)))
	l.enqueue(as("writer"))
	l.pass(2 * time.Second)
	blocked := l.deny(as("a", lease("a2"), refreshed, limit(Shared)))
	if len(blocked.Ahead) != 1 || blocked.Ahead[0].LeaseID != "writer" {
		t.Errorf("denied with %+v", blocked)
	}
	l.expect("b", "writer")
}

func TestRefreshEndsTheWaitForAnotherHold(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", guard))
	second := as("a", lease("a2"), guard, refreshed)
	l.enqueue(second)
	l.grant(as("a", lease("a3")))
	waits(&second)
	d := l.acquire(second) // there is a lease now, which it may have instead
	if d.err != nil || d.place != nil || d.holder.LeaseID != "a3" {
		t.Errorf("answered %+v", d)
	}
	l.expect("a a3", "")
}

func TestRefreshCannotMakeAHoldOlderThanItMayBe(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	l.pass(time.Minute)
	h := l.grant(as("a", lease("a2"), refreshed, maxHold(time.Second)))
	if h.LeaseID != "a2" || !h.ExpiresAt.Equal(l.s.Now.Add(time.Second)) {
		t.Errorf("granted %+v", h)
	}
	l.expect("a a2", "")
}

// Promise S-25.
func TestRelease(t *testing.T) {
	setup := func(t *testing.T) *lab {
		l := newLab(t)
		l.grant(as("a", limit(Shared), ttl(time.Second)))
		l.grant(as("a", lease("a2"), limit(Shared)))
		l.grant(as("a", lease("guard"), guard, limit(Shared)))
		l.grant(as("b", limit(Shared)))
		l.enqueue(as("c"))
		return l
	}
	owner := func(id string) Owner { return as(id).Owner }
	for _, c := range []struct {
		name    string
		target  Target
		passed  time.Duration
		ended   string
		holders string
		queue   string
		err     error
	}{
		{"by lease", Target{LeaseID: "a2"}, 0, "a2", "a guard b", "c", nil},
		{"by lease of a guard", Target{LeaseID: "guard"}, 0, "guard", "a a2 b", "c", nil},
		{"by lease of a waiter", Target{LeaseID: "c"}, 0, "", "a a2 guard b", "", nil},
		{"by unknown lease", Target{LeaseID: "z"}, 0, "", "a a2 guard b", "c", ErrNotOwner},
		{"by lease, too late", Target{LeaseID: "a"}, time.Minute, "a", "a2 guard b", "", nil},
		{"by owner", Target{Owner: owner("a")}, 0, "a a2", "guard b", "c", nil},
		{"by owner of nothing", Target{Owner: owner("z")}, 0, "", "a a2 guard b", "c", ErrNotOwner},
		{"by who only waits", Target{Owner: owner("c")}, 0, "", "a a2 guard b", "c", ErrNotOwner},
		{"by another session", Target{Owner: owner("a/2")}, 0, "", "a a2 guard b", "c", ErrNotOwner},
		{"by force", Target{Owner: owner("z"), Force: true}, 0, "a a2 guard b", "c", "", nil},
		{"by force, one", Target{Owner: owner("z"), LeaseID: "guard", Force: true}, 0, "guard", "a a2 b", "c", nil},
		{"what is stale, nothing", Target{Owner: owner("z"), Stale: true}, 0, "", "a a2 guard b", "c", ErrHeld},
		{"what is stale", Target{Owner: owner("z"), Stale: true}, 2 * time.Second, "a", "a2 guard b", "c", nil},
		{"one if it is stale, which it is not", Target{LeaseID: "a2", Stale: true}, 2 * time.Second, "", "a2 guard b", "c", ErrNotOwner},
		{"one if it is stale", Target{LeaseID: "a", Stale: true}, 2 * time.Second, "a", "a2 guard b", "c", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := setup(t)
			l.pass(c.passed)
			c.target.Name = "x"
			d := l.apply(release(l.s, c.target))
			if got := leases(d.ended); got != c.ended {
				t.Errorf("ended %q, not %q", got, c.ended)
			}
			l.expect(c.holders, c.queue)
			if c.err == nil && d.err != nil || c.err != nil && !errors.Is(d.err, c.err) {
				t.Errorf("error %v, not %v", d.err, c.err)
			}
		})
	}
}

func TestReleaseOfAFreeLockFindsNothing(t *testing.T) {
	for _, target := range []Target{{}, {LeaseID: "a"}, {Force: true}, {Stale: true}} {
		l := newLab(t)
		if d := release(l.s, target); !errors.Is(d.err, ErrNotFound) {
			t.Errorf("%+v: %v", target, d.err)
		}
	}
}

func TestOwnerIsToldThatAGuardEndsByItself(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", guard))
	d := release(l.s, Target{Name: "x", Owner: as("a").Owner})
	var not *NotOwnerError
	if !errors.As(d.err, &not) || !not.Guard || !errors.Is(d.err, ErrNotOwner) {
		t.Errorf("release: %v", d.err)
	}
}

func TestForceAndStaleBreaksAreTold(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	d := l.apply(release(l.s, Target{Name: "x", Owner: as("root").Owner, Force: true}))
	told(t, d, EventForceBreak)
	if e := d.Events[0]; e.Extra[ExtraBy] != "root@here" || e.LeaseID != "a" {
		t.Errorf("event %+v", e)
	}
	l.grant(as("a", ttl(time.Second)))
	l.pass(time.Minute)
	d = l.apply(release(l.s, Target{Name: "x", Owner: as("root").Owner, Stale: true}))
	told(t, d, EventStaleBreak)
	if e := d.Events[0]; e.Extra[ExtraReason] != ReasonExpired {
		t.Errorf("event %+v", e)
	}
}

// Promise S-41.
func TestFreezeKeepsNewcomersOut(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(Shared), ttl(time.Second)))
	l.enqueue(as("b"))
	d := l.apply(freeze(l.s, Freeze{ID: "f", Owner: as("ops").Owner, Reason: "release", TTL: time.Minute}))
	told(t, d, EventFreeze)
	if d.err != nil || !d.freeze.ExpiresAt.Equal(l.s.Now.Add(time.Minute)) || !d.freeze.At.Equal(l.s.Now) {
		t.Fatalf("frozen as %+v, %v", d.freeze, d.err)
	}
	if h, err := l.renew("a"); err != nil || h.Renewals != 1 {
		t.Errorf("a holder's renewal: %v", err)
	}
	d = l.acquire(as("c", limit(Shared)))
	told(t, d, EventFreezeDeny)
	if !errors.Is(d.err, ErrFrozen) || errors.Is(d.err, ErrHeld) {
		t.Errorf("a newcomer is denied with %v", d.err)
	}
	_ = l.deny(as("a", limit(Shared), lease("a2"))) // owners inside are newcomers, too
	l.release("a")
	l.expect("", "b")
	l.pass(QueueTTL)
	l.enqueue(as("b"))
	l.pass(QueueTTL)
	l.apply(prune(l.s))
	l.expect("", "b") // at the very end it is frozen still
	l.enqueue(as("b"))
	l.pass(1)
	d = l.apply(prune(l.s))
	told(t, d, EventUnfreeze, EventAcquire, EventWait)
	l.expect("b", "")
}

func TestFreezeDoesNotRefreshWhatIsStale(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(time.Second)))
	l.apply(freeze(l.s, Freeze{ID: "f", Owner: as("ops").Owner}))
	h := l.grant(as("a", lease("a2"), refreshed, ttl(time.Second)))
	if h.LeaseID != "a" {
		t.Errorf("a live hold was not refreshed: %+v", h)
	}
	l.pass(2 * time.Second)
	if b := l.deny(as("a", lease("a3"), refreshed)); b.Freeze == nil {
		t.Errorf("denied with %v", b)
	}
	l.expect("", "")
}

// Promise S-42.
func TestWhoMayFreezeAndUnfreeze(t *testing.T) {
	ops, other := as("ops").Owner, as("other").Owner
	frozen := func(t *testing.T) *lab {
		l := newLab(t)
		l.apply(freeze(l.s, Freeze{ID: "first", Owner: ops, TTL: time.Minute}))
		return l
	}
	t.Run("the same owner freezes longer", func(t *testing.T) {
		l := frozen(t)
		d := l.apply(freeze(l.s, Freeze{ID: "second", Owner: ops, TTL: time.Hour}))
		if d.err != nil || d.freeze.ID != "first" || !l.s.Lock.Freeze.ExpiresAt.Equal(l.s.Now.Add(time.Hour)) {
			t.Errorf("frozen as %+v, %v", d.freeze, d.err)
		}
	})
	t.Run("another cannot", func(t *testing.T) {
		l := frozen(t)
		if d := l.apply(freeze(l.s, Freeze{ID: "second", Owner: other})); !errors.Is(d.err, ErrFrozen) || l.s.Lock.Freeze.ID != "first" {
			t.Errorf("frozen as %+v, %v", l.s.Lock.Freeze, d.err)
		}
	})
	t.Run("another can once it has expired", func(t *testing.T) {
		l := frozen(t)
		l.pass(time.Minute + 1)
		d := l.apply(freeze(l.s, Freeze{ID: "second", Owner: other}))
		told(t, d, EventUnfreeze, EventFreeze)
		if d.err != nil || l.s.Lock.Freeze.ID != "second" {
			t.Errorf("frozen as %+v, %v", l.s.Lock.Freeze, d.err)
		}
	})
	for _, c := range []struct {
		name    string
		by      Target
		passed  time.Duration
		damaged string
		thawed  bool
		err     error
		event   EventType
	}{
		{"its owner unfreezes", Target{Owner: ops}, 0, "", true, nil, EventUnfreeze},
		{"another does not", Target{Owner: other}, 0, "", false, ErrNotOwner, ""},
		{"another forces it", Target{Owner: other, Force: true}, 0, "", true, nil, EventForceThaw},
		{"another finds it expired", Target{Owner: other}, time.Hour, "", true, ErrNotFound, EventUnfreeze},
		{"nobody unfreezes what cannot be read", Target{Owner: ops}, time.Hour, "garbage", false, ErrFrozen, ""},
		{"force unfreezes what cannot be read", Target{Owner: ops, Force: true}, 0, "garbage", true, nil, EventForceThaw},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := frozen(t)
			l.s.Lock.Freeze.Damaged = c.damaged
			l.pass(c.passed)
			d := l.apply(unfreeze(l.s, c.by))
			if (l.s.Lock.Freeze == nil) != c.thawed || c.err == nil && d.err != nil || c.err != nil && !errors.Is(d.err, c.err) {
				t.Errorf("freeze %+v, error %v", l.s.Lock.Freeze, d.err)
			}
			if c.event == "" {
				told(t, d)
			} else {
				told(t, d, c.event)
			}
		})
	}
	if d := unfreeze(newLab(t).s, Target{Owner: ops}); !errors.Is(d.err, ErrNotFound) {
		t.Errorf("unfreezing what is not frozen: %v", d.err)
	}
}

// Promise S-43.
func TestUnfreezeLetsTheQueueIn(t *testing.T) {
	l := newLab(t)
	l.apply(freeze(l.s, Freeze{ID: "f", Owner: as("ops").Owner}))
	l.enqueue(as("a"))
	l.enqueue(as("b"))
	d := l.apply(unfreeze(l.s, Target{Name: "x", Owner: as("ops").Owner}))
	told(t, d, EventUnfreeze, EventAcquire, EventWait)
	l.expect("a", "b")
}

func TestPreemptionOfAHolderThatRenews(t *testing.T) {
	l := newLab(t)
	l.grant(as("low", ttl(10*time.Second)))
	l.enqueue(as("even", preempt(time.Second)))
	if h, _ := l.s.Lock.Holder("low"); h.Yield != nil {
		t.Fatal("asked to yield to a claim of its own priority")
	}
	l.enqueue(as("high", priority(1), preempt(3*time.Second)))
	l.expect("low", "high even")
	h, _ := l.s.Lock.Holder("low")
	if h.Yield == nil || h.Yield.To.ID != "high" || !h.Yield.Deadline.IsZero() || h.Yield.Grace != 3*time.Second {
		t.Fatalf("asked to yield: %+v", h.Yield)
	}
	l.pass(9 * time.Second) // until it looks, it has its time
	d := l.apply(renew(l.s, Renewal{Name: "x", LeaseID: "low"}))
	told(t, d, EventPreempt, EventRenew)
	end := l.s.Now.Add(3 * time.Second)
	if h := d.holder; d.err != nil || !h.ExpiresAt.Equal(end) || !h.Yield.Deadline.Equal(end) {
		t.Fatalf("told to yield: %+v, %v", h, d.err)
	}
	l.pass(2 * time.Second)
	if h, err := l.heed("low"); err != nil || !h.Yield.Heard || !h.ExpiresAt.Equal(end) {
		t.Errorf("renewing moved the end to %v, %v", h.ExpiresAt, err)
	}
	if h := l.grant(as("low", ttl(10*time.Second))); !h.ExpiresAt.Equal(end) {
		t.Errorf("claiming again moved the end to %v", h.ExpiresAt)
	}
	if h := l.grant(as("low", lease("low2"), refreshed, ttl(10*time.Second))); !h.ExpiresAt.Equal(end) {
		t.Errorf("refreshing moved the end to %v", h.ExpiresAt)
	}
	l.s.Now = end.Add(1)
	_, err := l.renew("low")
	var gone *GoneError
	if !errors.As(err, &gone) || gone.Cause != ReasonPreempted {
		t.Errorf("after its grace: %v", err)
	}
	l.expect("high", "even")
}

// Promise S-235.
func TestPreemptionOfAHolderThatNeverLooks(t *testing.T) {
	l := newLab(t)
	l.grant(as("low", ttl(10*time.Second)))
	l.enqueue(as("high", priority(1), preempt(3*time.Second)))
	l.pass(10 * time.Second)
	l.apply(prune(l.s))
	l.expect("low", "high")
	l.pass(1)
	l.apply(prune(l.s))
	l.expect("high", "")

	l = newLab(t)
	l.grant(as("low", attended))
	l.enqueue(as("high", priority(1), preempt(3*time.Second)))
	l.pass(10 * time.Second)
	l.apply(prune(l.s))
	l.expect("low", "high")

	l = newLab(t)
	l.grant(as("low")) // nobody is there who could hear
	l.enqueue(as("high", priority(1), preempt(3*time.Second)))
	l.pass(3 * time.Second)
	l.apply(prune(l.s))
	l.expect("low", "high")
	l.pass(1)
	l.apply(prune(l.s))
	l.expect("high", "")
}

// Promises S-235, S-260.
func TestPreemptionOfAHolderWhoseAnswersAreLost(t *testing.T) {
	for _, life := range []time.Duration{0, 10 * time.Second} {
		l := newLab(t)
		known := l.grant(as("low", ttl(life), attended))
		l.enqueue(as("high", priority(1), preempt(3*time.Second)))
		l.pass(2 * time.Second)
		for range 3 {
			told, err := l.renew("low")
			if err != nil || told.Yield == nil || told.Yield.Heard || !told.ExpiresAt.Equal(known.ExpiresAt) {
				t.Fatalf("TTL %v: renewed to %+v, %v", life, told, err)
			}
			l.pass(time.Second + 1)
		}
		l.apply(prune(l.s))
		l.expect("low", "high") // it believes still
		if life > 0 {
			l.s.Now = known.ExpiresAt.Add(1)
			l.apply(prune(l.s))
			l.expect("high", "")
			continue
		}
		var gone *GoneError
		if h, err := l.heed("low"); !errors.As(err, &gone) || gone.Cause != ReasonPreempted { // its time is over already
			t.Errorf("%+v, %v", h, err)
		}
		l.expect("high", "")
	}
}

// Promise S-260.
func TestARefreshedHoldIsNotOverAtOnce(t *testing.T) {
	for _, life := range []time.Duration{0, time.Second} {
		l := newLab(t)
		l.grant(as("low", attended))
		l.enqueue(as("high", priority(1), preempt(3*time.Second)))
		if _, err := l.renew("low"); err != nil {
			t.Fatal(err)
		}
		l.pass(3*time.Second + 1) // by when it was to leave, of which it has not heard
		h := l.grant(as("low", lease("low2"), refreshed, ttl(life)))
		if reason, over := l.s.Stale(h); over || h.LeaseID != "low2" {
			t.Errorf("TTL %v: it was granted %+v, which is over: %s", life, h, reason)
		}
	}
}

// A renewal that says what was heard of an earlier wish may come late, and says nothing of this one.
//
// Promise S-235.
func TestWhatWasHeardOfAnotherWishIsNothingOfThisOne(t *testing.T) {
	l := newLab(t)
	l.grant(as("low", ttl(time.Minute)))
	l.enqueue(as("high", priority(1), preempt(3*time.Second)))
	first, _ := l.renew("low")
	l.release("high")
	l.pass(time.Second)
	known, _ := l.renew("low")
	l.enqueue(as("higher", priority(1), preempt(3*time.Second)))
	for range 2 {
		d := l.apply(renew(l.s, Renewal{Name: "x", LeaseID: "low", Heard: first.Yield.Deadline}))
		if y := d.holder.Yield; y == nil || y.Heard || !d.holder.ExpiresAt.Equal(known.ExpiresAt) {
			t.Errorf("%+v, %+v", d.holder, y)
		}
		l.pass(time.Millisecond)
	}
}

func TestPreemptionEndsWithWhoAskedForIt(t *testing.T) {
	l := newLab(t)
	l.grant(as("low", ttl(time.Minute)))
	l.enqueue(as("high", priority(1), preempt(3*time.Second)))
	if h, err := l.renew("low"); err != nil || h.Yield == nil {
		t.Fatalf("told to yield: %+v, %v", h, err)
	}
	l.release("high")
	h, err := l.renew("low")
	if err != nil || h.Yield != nil || !h.ExpiresAt.Equal(l.s.Now.Add(time.Minute)) {
		t.Errorf("nobody wants it any more: %+v, %v", h, err)
	}
}

// Promise S-40.
func TestLeavingTheQueue(t *testing.T) {
	for _, c := range []struct {
		name    string
		how     string
		granted bool // the lock came free before the claim left
		mute    bool // and only leaving finds that out
		holders string
		err     bool
	}{
		{"time is up", leftTimeout, false, false, "a", true},
		{"cancelled", leftCancelled, false, false, "a", true},
		{"gave way", leftDeadlock, false, false, "a", true},
		{"time is up, but it was granted", leftTimeout, true, false, "b", false},
		{"cancelled, but it was granted", leftCancelled, true, false, "c", false},
		{"gave way, but it was granted", leftDeadlock, true, false, "b", false},
		{"time is up, and the holder's, too", leftTimeout, true, true, "b", false},
		{"cancelled, and the holder's time is up", leftCancelled, true, true, "c", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab(t)
			l.grant(as("a", ttl(time.Second)))
			l.enqueue(as("b"))
			l.enqueue(as("c"))
			if c.granted && c.mute {
				l.pass(2 * time.Second)
			} else if c.granted {
				l.release("a")
			}
			d := l.apply(leaveQueue(l.s, as("b", waits), c.how))
			if (d.err != nil) != c.err {
				t.Errorf("error %v", d.err)
			}
			if got := leases(l.s.Lock.Holders); got != c.holders {
				t.Errorf("holders are %q, not %q", got, c.holders)
			}
			if _, queued := l.s.Lock.Position("b"); queued {
				t.Error("it is queued still")
			}
			if h, in := l.s.Lock.Holder("b"); in && (!h.Pending.IsZero() || d.holder.LeaseID != "b") {
				t.Errorf("it was granted, but as %+v, answered %+v", h, d.holder)
			}
		})
	}
}

func TestWaiterThatSleptTooLongTakesWhatIsFree(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(time.Second)))
	l.enqueue(as("b"))
	l.pass(time.Hour)
	d := l.apply(leaveQueue(l.s, as("b", waits), leftTimeout))
	if d.err != nil || d.holder.LeaseID != "b" {
		t.Errorf("answered %+v, %v", d.holder, d.err)
	}
	l.expect("b", "")
}

func TestAClaimThatGivesUpSaysHowLongItHasWaitedWithAllItsRequests(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(time.Hour)))
	l.enqueue(as("b"))
	l.pass(5 * time.Second)
	d := l.apply(leaveQueue(l.s, as("b", waits), leftTimeout))
	blocked, _ := errors.AsType[*BlockedError](d.err)
	if blocked == nil || blocked.TimedOut != 5*time.Second || d.Events[0].Extra[ExtraWaited] != "5000" {
		t.Errorf("%v, noted %v", d.err, d.Events)
	}
}

// Promise S-46.
func TestDamagedLockIsTakenOverByWhoClaimsIt(t *testing.T) {
	l := newLab(t)
	l.s.Lock.Token, l.s.Lock.Corrupt = 7, "garbage"
	if l.s.Lock.Free() {
		t.Error("a damaged lock is free")
	}
	d := l.acquire(as("a"))
	told(t, d, EventCorruptBreak, EventAcquire)
	if d.holder.Token != 8 || l.s.Lock.Corrupt != "" {
		t.Errorf("granted %+v of %+v", d.holder, l.s.Lock)
	}
	l = newLab(t)
	l.grant(as("a"))
	l.enqueue(as("b", limit(2)))
	l.enqueue(as("c", limit(2)))
	l.s.Lock.Holders, l.s.Lock.Corrupt = nil, "garbage"
	l.apply(renew(l.s, Renewal{Name: "x", LeaseID: "a"}))
	l.expect("", "b c") // nobody is let in without asking
	if h := l.grant(as("b", limit(2))); !h.Pending.IsZero() {
		t.Errorf("granted %+v", h)
	}
	l.expect("b c", "")
	l.s.Lock = Lock{Name: "x", Corrupt: "garbage"}
	told(t, l.apply(prune(l.s)), EventCorruptBreak)
	if l.s.Lock.Corrupt != "" {
		t.Error("pruning left the damage")
	}
}

// Promise S-126.
func TestALockHasABoundedNumberOfHoldersAndWaiters(t *testing.T) {
	l := newLab(t)
	member := func(who string, edits ...func(*Claim)) Claim {
		return as(who, append(edits, limit(Shared), ttl(time.Minute))...)
	}
	for i := range MaxHolders - 1 {
		l.s.Lock.Holders = append(l.s.Lock.Holders, Holder{Claim: member(fmt.Sprint("h", i)), Token: uint64(i + 1)})
	}
	l.grant(member("last"))
	if d := l.acquire(member("more")); !errors.Is(d.err, ErrHeld) {
		t.Errorf("one holder more than there may be is answered %v", d.err)
	}
	if _, err := l.renew("last"); err != nil {
		t.Error(err)
	}
	if d := l.acquire(member("last")); d.err != nil {
		t.Errorf("who is in already is answered %v", d.err)
	}
	for i := range MaxWaiters - 1 {
		l.s.Lock.enqueue(&Waiter{Claim: member(fmt.Sprint("w", i)), Since: l.s.Now, Until: l.s.Now.Add(PresenceTTL + QueueTTL)})
	}
	if d := l.acquire(member("patient", waits)); d.place == nil {
		t.Errorf("the last waiter is answered %v", d.err)
	}
	d := l.acquire(member("late", waits))
	if !errors.Is(d.err, ErrFull) || d.place != nil {
		t.Errorf("one waiter more than there may be is answered %v", d.err)
	}
	told(t, d, EventDeny)
	if d := l.acquire(member("patient", waits)); d.place == nil {
		t.Errorf("who waits already is answered %v", d.err)
	}
	l.release("last")
	if n := len(l.s.Lock.Holders); n != MaxHolders || l.s.Lock.Queue[0].LeaseID != "w1" {
		t.Errorf("%d hold it, and %s is next", n, l.s.Lock.Queue[0].LeaseID)
	}
}

// Promise S-126.
func TestAPoolOfAThousandIsServedInSteps(t *testing.T) {
	l := newLab(t)
	agent := func(who string) Claim { return as(who, limit(1000), ttl(30*time.Second), guard) }
	for i := range 1000 {
		l.s.Lock.Holders = append(l.s.Lock.Holders, Holder{Claim: agent(fmt.Sprint("h", i)), Token: uint64(i + 1)})
		l.s.Lock.enqueue(&Waiter{Claim: agent(fmt.Sprint("w", i)), Since: l.s.Now, Until: l.s.Now.Add(PresenceTTL + QueueTTL)})
	}
	l.s.Lock.Token = 1000
	l.apply(release(l.s, Target{Name: "x", Force: true}))
	if n := len(l.s.Lock.Holders); n != grantsPerStep {
		t.Errorf("one step grants %d", n)
	}
	for steps := 0; len(l.s.Lock.Queue) > 0; steps++ { // who was granted the lock takes it up
		h := l.s.Lock.Holders[steps]
		if d := l.acquire(h.Claim); d.err != nil || steps > 1000/grantsPerStep {
			t.Fatalf("after %d steps %d wait: %v", steps, len(l.s.Lock.Queue), d.err)
		}
	}
	if n := len(l.s.Lock.Holders); n != 1000 {
		t.Errorf("%d hold it", n)
	}
}

// Promise S-10.
func TestWouldGrantAnswersAsAcquireWould(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(time.Second)))
	if err := l.s.WouldGrant(as("b", waits)); !errors.Is(err, ErrHeld) {
		t.Errorf("while it is held: %v", err)
	}
	l.pass(time.Second + 1)
	if err := l.s.WouldGrant(as("b", waits)); err != nil {
		t.Errorf("after it expired: %v", err)
	}
	l.expect("a", "")
}

func weighs(takes, of int64) func(*Claim) { return func(c *Claim) { c.Weight = Weight{takes, of} } }

func TestASlotIsTheLowestNumberThatNobodyHas(t *testing.T) {
	l := newLab(t)
	slot := func(who string, edits ...func(*Claim)) int {
		t.Helper()
		return l.grant(as(who, append([]func(*Claim){guard, limit(4)}, edits...)...)).Slot
	}
	if a, b, c := slot("a"), slot("b"), slot("c"); a != 1 || b != 2 || c != 3 {
		t.Errorf("numbers %d %d %d", a, b, c)
	}
	if h := l.grant(as("lease", limit(4))); h.Slot != 0 {
		t.Errorf("a lease has the number %d", h.Slot)
	}
	l.apply(release(l.s, Target{Name: "x", LeaseID: "b"}))
	if d := slot("d"); d != 2 {
		t.Errorf("after the second left the next has the number %d", d)
	}
	if h, _ := l.s.Lock.Holder("c"); h.Slot != 3 {
		t.Errorf("the third has the number %d now", h.Slot)
	}
}

func TestWeightsAddUpToWhatThereIs(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", guard, limit(Shared), weighs(4, 10)))
	l.grant(as("b", guard, limit(Shared), weighs(5, 10)))
	_ = l.deny(as("c", guard, limit(Shared), weighs(2, 10)))
	_ = l.deny(as("c", guard, limit(Shared), weighs(1, 9))) // the least of what any says there is
	l.grant(as("c", guard, limit(Shared), weighs(1, 10)))
	l.grant(as("d", guard, limit(Shared)))
	if err := as("e", weighs(11, 10)).Validate(); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "never fit") {
		t.Errorf("a weight that never fits: %v", err)
	}
	own := l.acquire(as("a", lease("a2"), weighs(1, 10), limit(Shared)))
	var blocked *BlockedError
	if !errors.As(own.err, &blocked) || len(blocked.Holders) == 0 {
		t.Errorf("who is in one's own way: %v", own.err)
	}
}

// Promise S-247.
func TestWhatAnEarlierProcessOfATicketSendsLateChangesNothing(t *testing.T) {
	number := func(n int) func(*Claim) {
		return func(c *Claim) { c.Ticket, c.Owner.Process, c.Wait = n, Process{PID: n}, -1 }
	}
	first := as("b", number(1), ttl(time.Minute))
	late := map[string]func(s Snapshot) *decision{
		"claim":        func(s Snapshot) *decision { return acquire(s, first) },
		"poll":         func(s Snapshot) *decision { return asked(s, first, time.Second) },
		"cancellation": func(s Snapshot) *decision { return leaveQueue(s, first, leftCancelled) },
		"time-out":     func(s Snapshot) *decision { return leaveQueue(s, first, leftTimeout) },
		"circle":       func(s Snapshot) *decision { return leaveQueue(s, first, leftDeadlock) },
		"release":      func(s Snapshot) *decision { return release(s, Target{Name: "x", LeaseID: "b", Ticket: 1}) },
	}
	for _, where := range []string{"in the queue", "granted", "holds"} {
		for what, rule := range late {
			l := newLab(t)
			l.grant(as("a"))
			l.enqueue(first)
			l.enqueue(as("b", number(2), ttl(time.Minute)))
			if where != "in the queue" {
				l.release("a")
			}
			if where == "holds" {
				l.grant(as("b", number(2), ttl(time.Minute)))
			}
			was := l.s.Lock
			var gone *GoneError
			if d := l.apply(rule(l.s)); !errors.As(d.err, &gone) || gone.Cause != ReasonTakenOver || !d.Lock.Equal(&was) {
				t.Errorf("%s: after a late %s, which is answered %v, there is %+v", where, what, d.err, d.Lock)
			}
			if where == "in the queue" {
				if d := away(l.s, "b", 1, l.s.Lock.Queue[0].Until); !d.Lock.Equal(&was) {
					t.Errorf("its hanging up made of it %+v", d.Lock)
				}
				l.release("a")
			}
			l.grant(as("b", number(2)))
			if d := l.apply(release(l.s, Target{Name: "x", LeaseID: "b", Ticket: 2})); d.err != nil {
				t.Errorf("its own release: %v", d.err)
			}
		}
	}
	l := newLab(t)
	l.grant(as("b", number(1)))
	l.grant(as("b", number(2)))
	l.release("b") // as by who knows of no ticket
	l.expect("", "")
}
