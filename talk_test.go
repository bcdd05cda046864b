package lokt

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func (l *lab) tell(t Target, m Message) *decision { return l.apply(tell(l.s, t, m)) }

// pass passes the hold of the owner on to the other.
func (l *lab) passOn(by, to string, ttl time.Duration) *decision {
	next := Claim{Name: "x", LeaseID: "passed to " + to, Owner: as(to).Owner, TTL: ttl}
	return l.tell(Target{Name: "x", Owner: as(by).Owner}, Message{ID: "note", Text: "take care", Pass: &next})
}

func attended(c *Claim) { c.Attended = true }

// Promise S-197.
func TestAQuestionGoesToTheFirstHolderOfAnother(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", limit(3)))
	l.grant(as("b", limit(3)))
	l.grant(as("c", limit(3)))
	ask := func(id, by, leaseID string) (string, error) {
		d := l.tell(Target{Name: "x", LeaseID: leaseID, Owner: as(by).Owner}, Message{ID: id, Text: "soon?"})
		return d.holder.LeaseID, d.err
	}
	for _, test := range []struct{ by, leaseID, want string }{
		{"z", "", "a"}, {"a", "", "b"}, {"z", "c", "c"}, {"z", PublicID("b"), "b"}, {"c", "c", "c"}, {"z", "nobody's", ""},
	} {
		got, err := ask(test.by+test.leaseID, test.by, test.leaseID)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s asked %q: told %q, %v", test.by, test.leaseID, got, err)
		}
	}
	if n := len(l.s.Lock.Holders[0].Messages); n != 1 {
		t.Errorf("the first holder has %d messages", n)
	}
	told(t, l.tell(Target{Name: "x", Owner: as("z").Owner}, Message{ID: "z", Text: "soon?"})) // sent again
	if d := newLab(t).tell(Target{Name: "x", Owner: as("z").Owner}, Message{ID: "1", Text: "anybody?"}); !errors.Is(d.err, ErrNotFound) {
		t.Errorf("a free lock was asked: %v", d.err)
	}
}

// Promise S-197.
func TestAnAnswerGoesToAllThatWasAskedAndEndsWithTheHold(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", ttl(time.Minute)))
	for _, by := range []string{"b", "c"} {
		told(t, l.tell(Target{Name: "x", Owner: as(by).Owner}, Message{ID: by, Text: "soon?"}), EventAsk)
	}
	if d := l.tell(Target{Name: "x", Owner: as("b").Owner}, Message{Answer: "I do not hold it"}); !errors.Is(d.err, ErrNotOwner) {
		t.Errorf("another has answered: %v", d.err)
	}
	if d := l.tell(Target{Name: "x", LeaseID: "a", Owner: as("b").Owner}, Message{Answer: "nor now"}); !errors.Is(d.err, ErrNotOwner) {
		t.Errorf("another has answered under the lease ID: %v", d.err)
	}
	if d := l.tell(Target{Name: "x", Owner: as("a").Owner}, Message{Answer: "at noon"}); d.err != nil {
		t.Fatal(d.err)
	}
	if h, err := l.renew("a"); err != nil || len(h.Messages) != 2 || h.Messages[0].Answer != "at noon" || h.Messages[1].Answer != "at noon" {
		t.Errorf("after the answer: %v, %+v", err, h.Messages)
	}
	l.tell(Target{Name: "x", Owner: as("b").Owner}, Message{ID: "d", Text: "sure?"})
	l.tell(Target{Name: "x", Owner: as("a").Owner}, Message{Answer: "yes"})
	if m := l.s.Lock.Holders[0].Messages; m[0].Answer != "at noon" || m[2].Answer != "yes" {
		t.Errorf("an answer was changed: %+v", m)
	}
	l.release("a")
	if h := l.grant(as("a")); len(h.Messages) != 0 {
		t.Errorf("the next hold has messages: %+v", h.Messages)
	}
}

// Promise S-197.
func TestMessagesAreBounded(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	for i := range 3 * MaxMessages {
		l.tell(Target{Name: "x", Owner: as("b").Owner}, Message{ID: strings.Repeat("i", i+1), Text: "soon?"})
	}
	if m := l.s.Lock.Holders[0].Messages; len(m) != MaxMessages || len(m[MaxMessages-1].ID) != 3*MaxMessages {
		t.Errorf("%d messages, the last %+v", len(m), m[len(m)-1])
	}
	for _, m := range []Message{
		{ID: "1", Text: strings.Repeat("x", MaxIDLen+1)}, {ID: "1", Text: "two\nlines"}, {ID: "1", Text: "\x1b[2J"}, {ID: "\x00", Text: "x"},
		{Answer: "\x07"}, {ID: "1", Text: "\xff"},
	} {
		was := l.s.Lock
		if d := l.tell(Target{Name: "x", Owner: as("b").Owner}, m); !errors.Is(d.err, ErrInvalid) || len(d.Events) != 0 || !d.Lock.Equal(&was) {
			t.Errorf("%+v: %v, %v", m, d.err, d.Events)
		}
	}
}

// Promise S-198.
func TestALeaseIsPassedOnInOneStep(t *testing.T) {
	l := newLab(t)
	h := l.grant(as("a"))
	l.enqueue(as("c"))
	d := l.passOn("a", "b", time.Minute)
	told(t, d, EventPass, EventRelease, EventAcquire)
	l.expect("passed to b", "c")
	n := l.s.Lock.Holders[0]
	if d.err != nil || d.holder.LeaseID != n.LeaseID || n.Token <= h.Token || !n.Pending.IsZero() || n.Owner.ID != "b" || !n.ExpiresAt.Equal(l.s.Now.Add(time.Minute)) {
		t.Errorf("%v, %+v", d.err, n)
	}
	if len(n.Messages) != 1 || n.Messages[0].Text != "take care" || n.Messages[0].From.ID != "a" {
		t.Errorf("the note: %+v", n.Messages)
	}
	if _, err := l.renew("a"); !errors.Is(err, ErrNotOwner) {
		t.Errorf("the old hold was renewed: %v", err)
	}
	l.pass(time.Minute + 1)
	l.apply(prune(l.s))
	l.expect("", "") // the other was silent for long
}

// Promise S-198.
func TestAProgramIsToldBeforeItsHoldGoesOn(t *testing.T) {
	for _, test := range []struct {
		ttl time.Duration
		end func(l *lab)
	}{
		{time.Minute, func(l *lab) { l.release("a") }},
		{0, func(l *lab) { l.release("a") }},
		{time.Minute, func(l *lab) { // it renews, and is told so
			if h, err := l.renew("a"); err != nil || h.Yield == nil || h.Yield.To.ID != "b" || !h.Yield.Deadline.Equal(l.s.Now.Add(PassTimeout)) {
				l.t.Errorf("renewed: %v, %+v", err, h.Yield)
			}
			_, _ = l.heed("a")
			l.pass(PassTimeout)
			l.expect("a", "passed to b c")
			l.pass(1)
		}},
		{0, func(l *lab) { // it looks, renews, and hears when its hold ends
			_, _ = l.renew("a")
			_, _ = l.heed("a")
			l.pass(PassTimeout + 1)
		}},
		{time.Minute, func(l *lab) { l.pass(time.Minute + 1) }}, // it does not come again
		{0, func(l *lab) { l.s.Dead["a"] = true }},
	} {
		l := newLab(t)
		l.grant(as("a", guard, attended, ttl(test.ttl)))
		l.enqueue(as("c", priority(7)))
		d := l.passOn("a", "b", time.Minute)
		told(t, d, EventPass)
		if d.err != nil || d.holder.LeaseID != "a" || d.holder.Yield == nil {
			t.Fatalf("%v, %+v", d.err, d.holder)
		}
		l.expect("a", "passed to b c")
		l.pass(time.Second)
		test.end(l)
		l.apply(prune(l.s))
		if h := l.s.Lock.Holders; len(h) != 1 || h[0].LeaseID != "passed to b" || h[0].Token != 2 || h[0].Yield != nil {
			t.Errorf("TTL %v: %+v", test.ttl, h)
		}
	}
}

// Promise S-198.
func TestAHoldThatIsPassedGoesToWhatWaitsForTheOwner(t *testing.T) {
	l := newLab(t)
	l.grant(as("a", guard, attended))
	l.enqueue(as("c", priority(7)))
	l.enqueue(as("b", guard))
	l.passOn("a", "b", time.Minute)
	l.expect("a", "b c")
	l.acquire(as("b", guard, waits)) // it asks again, as all do who wait
	l.expect("a", "b c")
	l.release("a")
	l.expect("b", "c")
	if h := l.s.Lock.Holders[0]; h.Pending.IsZero() || !h.Strict || len(h.Messages) != 1 {
		t.Errorf("%+v", h)
	}
	l.pass(OfferTTL + 1) // it was not there
	l.apply(prune(l.s))
	l.expect("c", "b")
}

// Promise S-198.
func TestOnlyTheHoldThatIsPassedEndsForIt(t *testing.T) {
	l := newLab(t)
	for _, who := range []string{"a", "b", "c"} {
		l.grant(as(who, limit(3), attended, ttl(time.Minute)))
	}
	l.passOn("b", "z", 0)
	for _, h := range l.s.Lock.Holders {
		if (h.Yield != nil) != (h.LeaseID == "b") {
			t.Errorf("%s: yield %+v", h.LeaseID, h.Yield)
		}
	}
	l.passOn("b", "y", 0) // who changes his mind
	l.expect("a b c", "passed to y")
	l.release("b")
	l.expect("a c passed to y", "")
}

// Promise S-198.
func TestWhoMayPassAHoldOn(t *testing.T) {
	next := func(to string) Message {
		return Message{Pass: &Claim{Name: "x", LeaseID: "passed to " + to, Owner: as(to).Owner}}
	}
	for _, test := range []struct {
		name string
		t    Target
		m    Message
		want error
	}{
		{"another", Target{Owner: as("b").Owner}, next("b"), ErrNotOwner},
		{"another with the public ID", Target{Owner: as("b").Owner, LeaseID: PublicID("a")}, next("b"), ErrNotOwner},
		{"to itself", Target{Owner: as("a").Owner}, next("a"), ErrNotOwner},
		{"without an owner", Target{Owner: as("a").Owner}, next(""), ErrInvalid},
		{"by force", Target{Owner: as("b").Owner, Force: true}, next("b"), nil},
		{"with the lease ID", Target{Owner: as("c").Owner, LeaseID: "a"}, next("b"), nil},
		{"its owner", Target{Owner: as("a").Owner}, next("b"), nil},
	} {
		l := newLab(t)
		l.grant(as("a"))
		d := l.tell(test.t, test.m)
		if !errors.Is(d.err, test.want) {
			t.Errorf("%s: %v", test.name, d.err)
		}
		if is := l.s.Lock.Holders[0].LeaseID; len(l.s.Lock.Holders) != 1 || (is == "a") != (test.want != nil) {
			t.Errorf("%s: %s holds it", test.name, is)
		}
	}
	l := newLab(t)
	l.grant(as("a"))
	l.apply(freeze(l.s, Freeze{ID: "f", Owner: as("f").Owner}))
	if d := l.passOn("a", "b", 0); !errors.Is(d.err, ErrFrozen) {
		t.Errorf("frozen: %v", d.err)
	}
	l.expect("a", "")
}
