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
			Poll(ctx context.Context, c lokt.Claim) (lokt.Holder, error)
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
			_, err := poller.Poll(ctx, b)
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
			h, err := poller.Poll(e.Context(), b)
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
}
