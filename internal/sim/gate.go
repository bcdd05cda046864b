package sim

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// point is a place where the production code meets the simulated world, and so a kind of fault that it may meet.
type point int

const (
	pointWork   point = iota // a client goes on with its script
	pointRead                // a store or disk is read
	pointChange              // a store is about to be changed
	pointAnswer              // the store has been changed, and its answer is on the way
	pointSend                // a request is about to leave
	pointReply               // an answer is about to arrive
)

// fault is what becomes of a step.
type fault int

const (
	fine      fault = iota
	refused         // an error, and nothing was done
	lost            // an error: done or not, nobody can tell
	twice           // done twice: a conflict, or a copy of a request
	dead            // the process that asks is no more
	abandoned       // who asked has given up
	vanished        // no answer, ever
)

// step is something that the production code is about to do, and waits for leave to do.
type step struct {
	actor *actor
	point point
	what  string // what it is, in words; orders steps that came together
	round int    // decisions made when it came
	seq   int    // among equal ones
	leave chan fault
}

// actor is a process of the simulated world.
type actor struct {
	w      *world
	index  int
	name   string
	ctx    context.Context // ends with the process
	cancel context.CancelFunc
	died   bool
	until  time.Duration // stopped until then
	dazed  time.Duration // until when its timers may be late, because its clock has jumped
	rate   float64       // of its clock, against the world's
	ahead  time.Duration // of its clock
	reads  time.Duration // of its clock at one moment, 1 ns each
	last   time.Duration // that moment
	again  func() bool   // starts it again after its death, if there is more to do; nil if somebody else does
	bury   func()        // takes from it what its host's kernel takes; nil without one
}

// elapsed reads the actor's clock, which never says the same twice: of two timers that are set one after the other for the
// same moment the second goes off first, and not any.
func (a *actor) elapsed() time.Duration {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	now := a.w.now()
	if a.reads++; now != a.last {
		a.last, a.reads = now, 0
	}
	return time.Duration(float64(now)*a.rate) + a.ahead + a.reads
}

// gate is where steps wait.
type gate struct {
	mu      sync.Mutex
	waiting []*step
	seq     int
	round   int
	arrived chan struct{}
}

// originKey finds, in a context, for whom a daemon does something.
type originKey struct{}

// pass waits until the driver lets the step go on, and returns what becomes of it.
func (a *actor) pass(ctx context.Context, p point, what string) fault {
	if origin, ok := ctx.Value(originKey{}).(string); ok {
		what += " for " + origin
	}
	g := &a.w.gate
	g.mu.Lock()
	if a.died {
		g.mu.Unlock()
		return dead
	}
	g.seq++
	s := &step{actor: a, point: p, what: what, round: g.round, seq: g.seq, leave: make(chan fault, 1)}
	g.waiting = append(g.waiting, s)
	g.mu.Unlock()
	g.rouse()
	select {
	case f := <-s.leave:
		return f
	case <-ctx.Done():
		g.take(func(o *step) bool { return o == s })
		return abandoned
	}
}

// rouse has the driver look.
func (g *gate) rouse() {
	select {
	case g.arrived <- struct{}{}:
	default:
	}
}

// open lets the step go on.
func (g *gate) open(s *step, f fault) {
	if s.actor.w.o.All {
		s.actor.w.say(s.actor, "%d: %s", g.round, s.what)
	}
	g.take(func(o *step) bool { return o == s })
	s.leave <- f
}

// take takes steps out of those that wait.
func (g *gate) take(which func(*step) bool) (taken []*step) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = slices.DeleteFunc(g.waiting, func(s *step) bool {
		if which(s) {
			taken = append(taken, s)
			return true
		}
		return false
	})
	return taken
}

// ready returns the steps of processes that are not stopped, the oldest first.
func (g *gate) ready(now time.Duration) []*step {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(g.waiting), func(s *step) bool { return s.actor.until > now })
	slices.SortFunc(all, func(a, b *step) int {
		return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.actor.index, b.actor.index), cmp.Compare(a.what, b.what), cmp.Compare(a.seq, b.seq))
	})
	return all
}

// kill ends the process: nothing that it is about to do is done.
func (a *actor) kill() {
	a.died = true
	if a.bury != nil {
		a.bury()
	}
	own := a.w.gate.take(func(s *step) bool { return s.actor == a }) // last: who comes to the gate after it sees the rest
	a.cancel()
	synctest.Wait() // who looks at the context first has seen that
	for _, s := range own {
		s.leave <- dead
	}
}

// drive decides which step is next, what becomes of it, and when time passes, until the course is over. A decision that
// is not wild is the tamest there is: the oldest step goes on, unharmed, and time passes only when there is none.
func (w *world) drive() {
	for n := 0; ; {
		synctest.Wait()
		w.gate.round = n
		w.chance.turn(n + 1)
		if w.check(); w.violation != nil || w.finished() {
			return
		}
		ready := w.gate.ready(w.now())
		r := rand.New(rand.NewPCG(w.o.Seed, uint64(n)))
		wild := !w.calm && w.o.Mask.wild(n)
		roll := r.Float64()
		if w.host != nil { // whose steps are smaller
			roll *= 5
		}
		switch {
		case wild && roll < 0.12:
			w.count("time passes while a step waits")
			time.Sleep(time.Duration(float64(time.Millisecond)*math.Pow(10, 4*r.Float64())) + time.Duration(r.IntN(1000)))
			w.used = append(w.used, n)
		case wild && roll < 0.17 && w.disturb(r):
			w.used = append(w.used, n)
		case len(ready) == 0:
			w.await() // which is no decision: what wakes it may have gone
			continue
		case wild:
			at, f := r.IntN(len(ready)), fine
			if r.Float64() < w.harm {
				f = w.faultAt(ready[at], r)
			}
			if at > 0 || f != fine {
				w.used = append(w.used, n)
			}
			w.gate.open(ready[at], f)
		default:
			w.gate.open(ready[0], fine)
		}
		n++
		time.Sleep(time.Duration(1 + r.IntN(1000))) // no two steps are taken at the same moment, nor what follows from them later
	}
}

// await lets time pass until a step comes, or a process that was stopped goes on.
func (w *world) await() {
	next := time.Minute
	for _, a := range w.actors {
		if left := a.until - w.now(); left > 0 {
			next = min(next, left)
		}
	}
	select { // what came before has been seen
	case <-w.gate.arrived:
	default:
	}
	select {
	case <-w.gate.arrived:
	case <-time.After(next):
	}
}
