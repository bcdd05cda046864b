package lokttest

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
)

var queueTests = []serviceTest{
	{"who waits is granted in order of arrival", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		var queue []*pending
		for _, who := range []string{"b", "c", "d", "e"} {
			queue = append(queue, e.enqueue(e.claim("x", who)))
		}
		e.expect("x", "a", "b c d e")
		for _, next := range queue {
			e.release(h)
			last := h.Token
			if h = next.granted(); h.Token <= last || !h.Pending.IsZero() || h.LeaseID != next.claim.LeaseID {
				e.Errorf("granted %+v after token %d", h, last)
			}
		}
		e.release(h)
		e.expectFree("x")
	}},
	{"nobody overtakes who waits", func(e *env) {
		r := e.grant(e.claim("x", "r", limit(lokt.Shared)))
		w := e.enqueue(e.claim("x", "w"))
		blocked := e.deny(e.claim("x", "r2", limit(lokt.Shared)))
		if len(blocked.Ahead) != 1 || blocked.Ahead[0].Owner.ID != "w" {
			e.Errorf("denied with %+v", blocked)
		}
		r3 := e.enqueue(e.claim("x", "r3", limit(lokt.Shared)))
		again := e.grant(e.claim("x", "r", limit(lokt.Shared))) // r is inside, and would wait for itself
		e.release(r)
		e.expect("x", "r", "w r3")
		e.release(again)
		h := w.granted()
		_ = e.deny(e.claim("x", "r2", limit(lokt.Shared)))
		e.release(h)
		e.release(r3.granted())
		e.expectFree("x")
	}},
	{"a wait that is over leaves nothing behind", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		asked := time.Now()
		p := e.begin(e.claim("x", "b", waits(e.short)))
		blocked := p.denied()
		if waited := p.at.Sub(asked); !errors.Is(p.err, lokt.ErrHeld) || waited < e.short || e.bubble && waited > e.short+slack {
			e.Errorf("denied after %v: %v", waited, p.err)
		}
		if blocked.TimedOut < e.short || owners(blocked.Holders) != "a" {
			e.Errorf("denied with %+v", blocked)
		}
		e.expect("x", "a", "")
		e.release(h)
		e.expectFree("x")
	}},
	{"a wait that is cancelled leaves nothing behind", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		p, q := e.enqueue(e.claim("x", "b")), e.enqueue(e.claim("x", "c"))
		p.cancel()
		p.wait()
		if !errors.Is(p.err, context.Canceled) {
			e.Errorf("cancelled with %+v, %v", p.holder, p.err)
		}
		e.eventually("only c waits", func() bool { return waiting(e.get("x").Lock) == "c" })
		e.release(h)
		e.release(q.granted())
		e.expectFree("x")
	}},
	{"a wait that is cancelled when its turn comes is granted, or leaves nothing behind", func(e *env) {
		granted := 0
		for round := range 20 {
			h := e.grant(e.claim("x", "a"))
			p := e.enqueue(e.claim("x", "b"))
			together(2, func(i int) {
				if i == round%2 {
					e.release(h)
				} else {
					p.cancel()
				}
			})
			p.wait()
			if p.err == nil {
				granted++
				e.release(p.holder)
			} else if !errors.Is(p.err, context.Canceled) {
				e.Errorf("cancelled with %v", p.err)
			}
			e.expectFree("x")
		}
		e.Logf("%d of 20 were granted", granted)
	}},
	{"who has hung up is passed over, and keeps its place", func(e *env) {
		poller, ok := e.s.(interface {
			Poll(ctx context.Context, c *lokt.Claim) (*lokt.Holder, error)
		})
		if !ok { // from afar nobody can hang up without taking the claim back
			return
		}
		h := e.grant(e.claim("x", "a", ttl(0)))
		b := e.claim("x", "b", ttl(0))
		b.Wait = -1
		ctx, hangUp := context.WithCancel(e.Context())
		over := make(chan error, 1)
		go func() {
			_, err := poller.Poll(ctx, &b)
			over <- err
		}()
		e.eventually("b waits", func() bool { return len(e.get("x").Lock.Queue) == 1 })
		c, d := e.enqueue(e.claim("x", "c", ttl(0))), e.enqueue(e.claim("x", "d", ttl(0)))
		hangUp()
		if err := <-over; !errors.Is(err, context.Canceled) {
			e.Fatal(err)
		}
		e.release(h)
		h = c.granted()
		e.expect("x", "c", "b d")
		go func() { // it is back
			h, err := poller.Poll(e.Context(), &b)
			if err == nil {
				_, err = e.s.Release(e.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID})
			}
			over <- err
		}()
		e.eventually("b is back", func() bool {
			s := e.get("x")
			return len(s.Lock.Queue) == 2 && !s.Away(s.Lock.Queue[0])
		})
		e.release(h)
		if err := <-over; err != nil {
			e.Fatal(err)
		}
		if last := h.Token; d.granted().Token != last+2 {
			e.Errorf("d was granted token %d after %d", d.holder.Token, last)
		}
	}},
	{"of claims that wait for each other, the last one gives way", func(e *env) {
		x, y := e.grant(e.claim("x", "a")), e.grant(e.claim("y", "b"))
		a := e.enqueue(e.claim("y", "a", inside(x.LeaseID)))
		time.Sleep(e.short) // so that b comes later by any clock
		b := e.enqueue(e.claim("x", "b", inside(y.LeaseID)))
		asked := time.Now()
		blocked := b.denied()
		if took := b.at.Sub(asked); e.bubble && took > 5*time.Second {
			e.Errorf("it took %v to find out", took)
		}
		if !errors.Is(b.err, lokt.ErrDeadlock) || !errors.Is(b.err, lokt.ErrHeld) {
			e.Fatalf("b gave way with %v", b.err)
		}
		if cycle := strings.Join(blocked.Cycle, " "); !strings.Contains(cycle, "a@") || !strings.Contains(cycle, "b@") || !strings.Contains(cycle, "x") {
			e.Errorf("the circle is told as %v", blocked.Cycle)
		}
		e.expect("x", "a", "")
		e.expect("y", "b", "a")
		e.release(y)
		e.release(a.granted())
		e.release(x)
	}},
	{"a claim with a ticket keeps its place when its wait is over, for another process", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		b := e.claim("x", "b", waits(e.short), ticket, process(1))
		if blocked := e.begin(b).denied(); blocked.TimedOut < e.short {
			e.Errorf("denied with %+v", blocked)
		}
		c := e.enqueue(e.claim("x", "c"))
		if s := e.get("x"); waiting(s.Lock) != "b c" || !s.Away(s.Lock.Queue[0]) || s.Away(s.Lock.Queue[1]) {
			e.Fatalf("the queue is %q", waiting(s.Lock))
		}
		e.release(h) // b is not there
		h = c.granted()
		b.Wait = -1
		process(2)(&b)
		ticket(&b)
		again := e.begin(b)
		e.eventually("another process waits in its place", func() bool {
			s := e.get("x")
			return waiting(s.Lock) == "b" && !s.Away(s.Lock.Queue[0])
		})
		d := e.enqueue(e.claim("x", "d"))
		e.expect("x", "c", "b d")
		e.release(h)
		if h = again.granted(); h.LeaseID != b.LeaseID || h.Owner.Process.PID != 2 || !h.Pending.IsZero() {
			e.Errorf("granted %+v", h)
		}
		e.noRelease("by the process before", lokt.Target{Name: "x", LeaseID: b.LeaseID, Ticket: 1}, lokt.ErrNotOwner)
		e.release(h)
		e.release(d.granted())
		e.expectFree("x")
	}},
	{"a claim with a ticket that is cancelled keeps its place, and its process takes it up", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		b := e.claim("x", "b", waits(-1), ticket, process(1))
		p := e.enqueue(b)
		p.cancel()
		p.wait()
		e.eventually("it is away", func() bool {
			s := e.get("x")
			return waiting(s.Lock) == "b" && s.Away(s.Lock.Queue[0])
		})
		again := e.begin(b)
		e.eventually("it is back", func() bool {
			s := e.get("x")
			return waiting(s.Lock) == "b" && !s.Away(s.Lock.Queue[0])
		})
		e.release(h)
		e.release(again.granted())
		e.expectFree("x")
	}},
	{"a newer waiter sends away the one before it that wants nobody newer", func(e *env) {
		h := e.grant(e.claim("x", "a"))
		other, first := e.enqueue(e.claim("x", "c")), e.enqueue(e.claim("x", "b", newest))
		asked := time.Now()
		last := e.enqueue(e.claim("x", "d", newest))
		blocked := first.denied()
		if took := first.at.Sub(asked); !strings.HasPrefix(blocked.Ousted, "d@") || blocked.TimedOut != 0 || !errors.Is(first.err, lokt.ErrHeld) || took > 8*time.Second {
			e.Errorf("sent away after %v with %+v", took, blocked)
		}
		e.expect("x", "a", "c d")
		e.release(h)
		e.release(other.granted())
		e.release(last.granted())
		e.expectFree("x")
	}},
	{"a hold is passed on to who waits, and to who does not, with a note", func(e *env) {
		a := e.grant(e.claim("x", "a"))
		b, c := e.enqueue(e.claim("x", "b")), e.enqueue(e.claim("x", "c"))
		e.pass(a, c.claim.Owner, "c")
		h := c.granted()
		if h.Token <= a.Token || len(h.Messages) != 1 || h.Messages[0].Text != "take care" || h.Messages[0].From.ID != "a" {
			e.Errorf("passed on as %+v", h)
		}
		e.noRenewal("of what was passed on", a, lokt.ErrNotOwner)
		d := e.claim("x", "d").Owner
		e.pass(h, d, "d")
		e.expect("x", "d", "b")
		if in := e.get("x").Lock.Holders[0]; in.Token != h.Token+1 || len(in.Messages) != 1 || in.TTL != time.Hour || !in.Pending.IsZero() {
			e.Errorf("passed on as %+v", in)
		}
		e.ends(lokt.Target{Name: "x", Owner: d}, "d")
		e.release(b.granted())
		e.expectFree("x")
	}},
	{"a program is told that its hold is passed on, and the next one begins when it has ended", func(e *env) {
		a := e.grant(e.claim("x", "a", limit(3), strict, func(c *lokt.Claim) { c.Attended = true }))
		c := e.enqueue(e.claim("x", "c"))
		e.pass(a, e.claim("x", "b").Owner, "a")
		told, err := e.renew(a)
		if err != nil || told.Yield == nil || told.Yield.To.ID != "b" || !told.Yield.Deadline.Equal(told.AcquiredAt.Add(lokt.PassTimeout)) {
			e.Errorf("renewed to %+v, %v", told, err)
		}
		e.expect("x", "a", "b c")
		e.release(told)
		e.expect("x", "b", "c")
		e.ends(lokt.Target{Name: "x", Owner: e.claim("x", "b").Owner}, "b")
		e.release(c.granted())
		e.expectFree("x")
	}},
}

// pass passes the hold on, and checks whose hold is the answer.
func (e *env) pass(h lokt.Holder, to lokt.Owner, who string) {
	e.Helper()
	target := lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: h.Owner}
	answer, err := e.s.Tell(e.Context(), target, lokt.Message{Text: "take care", Pass: &lokt.Claim{Owner: to, TTL: time.Hour}})
	if err != nil || answer.Owner.ID != who {
		e.Fatalf("%s was passed on to %s: %+v, %v", h.Name, to.ID, answer, err)
	}
}
