// Package sim plays courses of events with lokt's production code, on a clock, a network, a store and a disk that are
// simulated, and looks in each course for what lokt promises never happens. A seed decides a course: the same seed gives
// the same course, so that a failure is told by one number.
//
// The code under test runs in a bubble of testing/synctest. Whatever it asks of the world waits at a gate, and a single
// driver decides which step is next, what becomes of it and when time passes. See docs/adr/0014-simulation.md.
package sim

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lokttest"
)

// Mask says what of a course is left of the seed's wild decisions. The zero Mask leaves all.
type Mask struct {
	Tame bool  // only the decisions in Keep are wild
	Keep []int // numbers of decisions
	Idle []int // actions of scripts that are left out
}

func (m *Mask) wild(n int) bool { return !m.Tame || slices.Contains(m.Keep, n) }

// Options say which course to play.
type Options struct {
	Seed  uint64
	World string // its name; empty: the seed decides
	Mask  Mask
	All   bool // the trace is to have every decision
}

// Violation is a promise that was broken.
type Violation struct {
	Kind string // one of the invariants
	Text string // the two things that contradict each other
}

// Entry is one thing that happened.
type Entry struct {
	At    time.Duration
	Who   string
	Text  string
	actor int // these two put in order what happens in one step
	seq   int
}

func (e Entry) String() string {
	return fmt.Sprintf("%9.3fs  %-9s %s", e.At.Seconds(), e.Who, e.Text)
}

// Result is what came of a course.
type Result struct {
	Options
	Trace     []Entry
	Reached   map[string]int
	Violation *Violation
	Steps     int           // decisions
	Took      time.Duration // simulated
	used      []int         // decisions that were wild, and not what a tame one would have been
	actions   []int         // of scripts that were begun
	history   *lokttest.Recorder
}

// world is everything that a course happens in.
type world struct {
	o     Options
	late  *rand.Rand // for what comes after the beginning
	kind  string
	start time.Time
	gate  gate

	chance *chance
	vague  bool // a claim was made that the history does not have

	actors    []*actor
	db        *database
	scripts   []*client
	probers   []*client
	running   sync.WaitGroup
	history   *lokttest.Recorder
	daemons   []*daemon
	workers   []*actor
	looked    map[string]uint64       // by operator, the last token when one looked
	ended     map[grant]time.Duration // by force: until when its holder may rely on it
	strike    chan struct{}           // closed at the next end by force, which copies of requests wait for; nil without an operator
	forcedOut map[grant]bool          // what was ended by force or passed on
	sentAway  map[string]bool         // leases of claims for which a newer one came
	vows      []*vow
	log       []lokt.Event  // all that there were
	grown     time.Duration // when the last one came
	followers []*follower
	mixed     bool   // clients do more than hold leases that they renew
	board     *board // nil without jobs
	boot      int    // of the host
	host      *host  // nil without lock files
	net       bool   // clients ask daemons

	harm      float64         // how likely a wild step is harmed
	allowed   map[string]bool // disturbances and faults of this course
	rough     int             // decisions until calm
	calm      bool
	calmSince time.Duration
	arrivals  []string // leases, in the order in which they were queued
	used      []int
	actions   []int

	mu        sync.Mutex // for what follows, and the clocks of actors
	trace     []Entry
	fresh     []Entry
	seq       int
	reached   map[string]int
	violation *Violation
	live      int // scripts under way
}

// Play plays one course.
func Play(t *testing.T, o Options) *Result {
	var w *world
	chance := &chance{key: [2]uint64{o.Seed}, drawn: map[[5]uint64]int{}}
	before := crand.Reader
	crand.Reader = chance
	defer func() { crand.Reader = before }()
	synctest.Test(t, func(*testing.T) {
		w = newWorld(o)
		w.chance = chance
		w.drive()
		w.end()
	})
	r := &Result{
		Options: o, Trace: w.trace, Reached: w.reached, Violation: w.violation, Steps: w.gate.round, Took: w.trace[len(w.trace)-1].At,
		used: w.used, actions: w.actions, history: w.history,
	}
	r.World = w.kind
	if r.Violation == nil && w.history != nil && !w.vague {
		switch err := w.history.Check(2 * time.Second); {
		case errors.Is(err, lokttest.ErrTooLong): // too much of it may or may not have happened
			r.Reached["history cannot be explained in time"]++
		case err != nil:
			r.Violation = &Violation{"linearizability", err.Error()}
		}
	}
	return r
}

// chance stands in for crypto/rand. What is drawn depends on the decision that was made last, on the millisecond, on how much is
// drawn, and on nothing that was drawn before at other moments.
type chance struct {
	mu    sync.Mutex
	key   [2]uint64         // seed, decision
	drawn map[[5]uint64]int // how often with the key, the millisecond and the size
}

// turn has what is drawn from now on depend on that decision.
func (c *chance) turn(decision int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key[1] = uint64(decision)
}

// Read implements io.Reader.
func (c *chance) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := [5]uint64{c.key[0], c.key[1], uint64(time.Now().UnixMilli()), uint64(len(b))}
	c.drawn[key]++
	key[4] = uint64(c.drawn[key])
	h := sha256.New()
	_ = binary.Write(h, binary.LittleEndian, key)
	return rand.NewChaCha8([32]byte(h.Sum(nil))).Read(b)
}

// Worlds returns the names of the worlds.
func Worlds() []string {
	if !hasFiles {
		return []string{"store", "http", "jobs"}
	}
	return []string{"store", "http", "jobs", "files"}
}

func newWorld(o Options) *world {
	r := rand.New(rand.NewPCG(o.Seed, 1<<40))
	w := &world{
		o: o, start: time.Now(), late: rand.New(rand.NewPCG(o.Seed, 1<<41)), reached: map[string]int{}, allowed: map[string]bool{},
		looked: map[string]uint64{}, ended: map[grant]time.Duration{}, forcedOut: map[grant]bool{}, sentAway: map[string]bool{},
		gate: gate{arrived: make(chan struct{}, 1)},
	}
	w.kind = Worlds()[r.IntN(len(Worlds()))]
	if o.World != "" {
		w.kind = o.World
	}
	w.harm, w.rough = [...]float64{0, 0.02, 0.1, 0.25}[r.IntN(4)], 50+r.IntN(450)
	for _, d := range mayMeet() {
		w.allowed[d] = r.Float64() < 0.6
	}
	w.db = newDatabase(w)
	w.populate(r)
	w.say(w.db.a, "the world begins: %s", w.kind)
	return w
}

func (w *world) now() time.Duration { return time.Since(w.start) }

// newActor adds a process. Its clock may be off by what leases allow for.
func (w *world) newActor(name string, r *rand.Rand) *actor {
	a := &actor{w: w, index: len(w.actors), name: name, rate: 0.99 + r.Float64()/50}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	w.actors = append(w.actors, a)
	return a
}

// say notes what happened.
func (w *world) say(a *actor, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	w.fresh = append(w.fresh, Entry{w.now(), a.name, fmt.Sprintf(format, args...), a.index, w.seq})
}

// settle moves what was noted since the last decision to the trace.
func (w *world) settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortFunc(w.fresh, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.actor, b.actor), cmp.Compare(a.seq, b.seq))
	})
	w.trace = append(w.trace, w.fresh...)
	w.fresh = w.fresh[:0]
}

// broke notes a violation; the first one counts.
func (w *world) broke(kind, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.violation == nil {
		w.violation = &Violation{kind, fmt.Sprintf(format, args...)}
	}
}

// deny notes a violation if that is so.
func (w *world) deny(so bool, kind, format string, args ...any) {
	if so {
		w.broke(kind, format, args...)
	}
}

// finished reports whether the course is over, and begins its last parts: calm, and fresh claims.
func (w *world) finished() bool {
	if !w.calm && (w.gate.round >= w.rough || w.idle()) {
		w.becalm()
	}
	if w.calm && w.idle() && len(w.probers) == 0 {
		w.probe()
		return false
	}
	if w.calm && w.now()-w.calmSince > patience {
		w.broke("wedge", "%d scripts have not ended, or somebody has not heard of all events, %v after the last fault: see the end of the trace", w.live, patience)
	}
	late := slices.ContainsFunc(w.followers, (*follower).behind)
	return w.idle() && len(w.probers) > 0 && !late || w.violation != nil // idle is last: its mutex shows what was read
}

// patience is how long everything may take to end once nothing is harmed any more.
const patience = 5 * time.Minute

// idle reports whether no script is under way.
func (w *world) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live == 0
}

// becalm ends all harm: processes that are stopped go on, and daemons that died start.
func (w *world) becalm() {
	w.calm, w.calmSince = true, w.now()
	for _, a := range w.actors {
		a.until = 0
	}
	if w.host != nil { // or what is from before a crash might last for long
		w.host.wall = w.host.most
	}
	for _, d := range w.daemons {
		if w.board != nil && d.leave == nil && d.handler != nil && !d.died { // it is about to end
			d.kill()
		}
		if d.died {
			w.say(d.actor, "starts again")
			d.start(w.newActor(d.name, w.late))
		}
	}
	if w.board != nil && !slices.ContainsFunc(w.workers, func(a *actor) bool { return !a.died }) {
		w.hire("worker9", w.late)
	}
	w.say(w.db.a, "nothing fails from here on")
	if w.board != nil { // what is frozen: once more later, because a request that nobody waits for may come late
		me := w.newActor("janitor", w.late)
		w.script(func() {
			for range 2 {
				w.thaw(me, w.reach(me).Jobs(), frozenTypes...)
				time.Sleep(settleIn / 2)
			}
		})
	}
}

// end ends every goroutine of the world.
func (w *world) end() {
	w.settle()
	for _, a := range w.actors {
		a.kill()
	}
	w.running.Wait()
	time.Sleep(time.Hour) // what workers left behind ends
	_ = w.db.Store.Close()
}

// script runs what a process does, in the background.
func (w *world) script(do func()) {
	w.mu.Lock()
	w.live++
	w.mu.Unlock()
	w.running.Go(func() {
		defer func() {
			w.mu.Lock()
			w.live--
			w.mu.Unlock()
			w.gate.rouse()
		}()
		do()
	})
}

// Shrink returns a course as small as it finds within that time in which the same kind of promise is broken: with fewer wild
// decisions, and fewer actions.
func Shrink(t *testing.T, r *Result, most time.Duration) *Result {
	end := time.Now().Add(most)
	best := r
	try := func(m Mask) bool {
		if time.Now().After(end) {
			return false
		}
		o := r.Options
		o.World, o.Mask = r.World, m
		again := Play(t, o)
		if again.Violation == nil || again.Violation.Kind != r.Violation.Kind {
			return false
		}
		best = again
		return true
	}
	if r.Mask.Tame || try(Mask{Tame: true, Keep: r.used, Idle: r.Mask.Idle}) {
		for before := -1; before != len(best.Mask.Keep)+100*len(best.Mask.Idle); {
			before = len(best.Mask.Keep) + 100*len(best.Mask.Idle)
			for _, id := range slices.Backward(best.actions) {
				m := best.Mask
				m.Idle = append(slices.Clone(m.Idle), id)
				try(m)
			}
			without(best.Mask.Keep, func(keep []int) bool { return try(Mask{Tame: true, Keep: keep, Idle: best.Mask.Idle}) })
		}
	}
	return best
}

// without looks for what can be left out of a list, large parts first.
func without(all []int, holds func([]int) bool) {
	for size := len(all); size >= 1; size /= 2 {
		for at := 0; at < len(all); {
			rest := slices.Delete(slices.Clone(all), at, min(at+size, len(all)))
			if holds(rest) {
				all = rest
			} else {
				at += size
			}
		}
	}
}
