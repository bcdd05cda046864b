package engine

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

// lockingWorld has rules that order locks.
func lockingWorld(t *testing.T) *world {
	w := newWorld(t, jobs.Config{Total: 5, Locking: true})
	w.submit("a", func(s *jobs.Spec) { s.Units, s.Locks = 3, []string{"x", "y"} })
	return w
}

// order plays a request, and returns what it makes the rules order.
func (w *world) order(id uint64, a jobs.Request, leaseID string) LockOrder {
	w.Helper()
	out := w.turn(Call{id, Request{Request: a, LeaseID: leaseID}})
	if len(out.Orders) != 1 || out.Orders[0].Kind != TakeLocks || len(out.Replies) != 0 {
		w.Fatalf("a request brought %+v, and orders %+v", out.Replies, out.Orders)
	}
	return out.Orders[0]
}

func TestAJobWithLocksIsGrantedWhenTheyAreTaken(t *testing.T) {
	w := lockingWorld(t)
	o := w.order(1, jobs.Request{WorkerID: "w"}, "L")
	w.want("lease", o.LeaseID, "L")
	w.want("job", o.JobID, "a")
	s := w.do(Status{}).(jobs.Snapshot)
	w.want("leased before", s.Leased, 0)
	w.submit("b", func(s *jobs.Spec) { s.Units = 3 })
	w.want("capacity that is kept", w.ask("v", "M"), jobs.DeniedCapacity)
	w.want("waiting", w.do(Get{"a"}).(jobs.View).WaitingFor, "lock:x")
	tokens := map[string]uint64{"x": 3, "y": 8}
	out := w.turn(Call{0, Locked{o, tokens, ""}})
	g, ok := out.Replies[0].Result.(jobs.Grant)
	if !ok || g.Denied != nil || g.Job.ID != "a" || !maps.Equal(g.Lease.LockTokens, tokens) || g.Lease.ID != "L" || out.Replies[0].ID != 1 {
		t.Fatalf("answered with %+v", out.Replies)
	}
	out = w.turn(Call{3, Complete{jobs.Completion{LeaseID: "L", WorkerID: "w", Status: jobs.Completed}}})
	if len(out.Orders) != 1 || out.Orders[0].Kind != FreeLocks || out.Orders[0].LeaseID != "L" {
		t.Fatalf("the end ordered %+v", out.Orders)
	}
	w.submit("c", func(s *jobs.Spec) { s.Locks = []string{"y"} })
	w.want("lock that is being given back", w.do(Get{"c"}).(jobs.View).WaitingFor, "lock:y")
	w.turn(Call{0, Unlocked{"L"}})
	w.want("job", w.order(5, jobs.Request{WorkerID: "w", Types: []string{"generic"}, MaxUnits: 1}, "N").JobID, "c")
}

func TestAJobWhoseLockIsHeldElsewhereIsPassedOverForAWhile(t *testing.T) {
	w := lockingWorld(t)
	o := w.order(1, jobs.Request{WorkerID: "w"}, "L")
	w.submit("b", func(s *jobs.Spec) { s.Priority = jobs.Background })
	out := w.turn(Call{0, Locked{o, nil, "y"}})
	g, ok := out.Replies[0].Result.(jobs.Grant)
	if !ok || g.Denied != nil || g.Job.ID != "b" || len(out.Orders) != 0 {
		t.Fatalf("answered with %+v, orders %+v", out.Replies, out.Orders)
	}
	w.want("waiting", w.do(Get{"a"}).(jobs.View).WaitingFor, "lock:y")
	w.want("ask", w.ask("v", "M"), jobs.DeniedEligible)
	w.want("next look", w.e.Next()-w.now.Mono, time.Second) // for what is kept for jobs that wait
	w.pass(LockWatch)
	o = w.order(3, jobs.Request{WorkerID: "v", Wait: jobs.MaxWait}, "N")
	w.turn(Call{0, Locked{o, nil, "y"}})
	w.pass(LockWatch)
	out = w.turn()
	if len(out.Orders) != 1 || out.Orders[0].LeaseID != "N" {
		t.Fatalf("after a while there are orders %+v", out.Orders)
	}
}

func TestLocksTakenForNobodyAreGivenBack(t *testing.T) {
	for name, gone := range map[string]Op{"withdrawn": Withdraw{CallID: 1}, "cancelled": Cancel{"a", ""}, "drained": Drain{}, "forgotten": nil} {
		w := lockingWorld(t)
		o := w.order(1, jobs.Request{WorkerID: "w", Wait: jobs.MaxWait}, "L")
		if gone == nil {
			w.e = newEngine(w.e.cfg) // what was not stored
		} else {
			w.turn(Call{2, gone})
		}
		out := w.turn(Call{0, Locked{o, nil, ""}})
		if len(out.Orders) != 1 || out.Orders[0].Kind != FreeLocks || out.Orders[0].LeaseID != "L" {
			t.Errorf("%s: ordered are %+v", name, out.Orders)
		}
		for _, r := range out.Replies {
			if g, ok := r.Result.(jobs.Grant); ok && g.Denied == nil {
				t.Errorf("%s: granted %+v", name, g)
			}
		}
		w.turn(Call{0, Unlocked{"L"}})
		if s := w.do(Status{}).(jobs.Snapshot); s.Leased != 0 || w.e.kept != 0 || len(w.e.unlocking) != 0 {
			t.Errorf("%s: left is %+v, and %d units are kept", name, s, w.e.kept)
		}
	}
}

func TestOfTwinsOnlyOneAsksWhileLocksAreTaken(t *testing.T) {
	w := lockingWorld(t)
	w.submit("b")
	o := w.order(1, jobs.Request{WorkerID: "w", RequestID: "r", Wait: jobs.MaxWait}, "L")
	if out := w.turn(Call{2, Request{Request: jobs.Request{WorkerID: "w", RequestID: "r", Wait: jobs.MaxWait}, LeaseID: "M"}}); len(out.Replies) != 0 {
		t.Fatalf("the twin was answered with %+v", out.Replies)
	}
	out := w.turn(Call{0, Locked{o, nil, ""}})
	if len(out.Replies) != 2 || out.Replies[0].Result.(jobs.Grant).Lease.ID != "L" || out.Replies[1].Result.(jobs.Grant).Lease.ID != "L" {
		t.Errorf("answered with %+v", out.Replies)
	}
}

// carried returns what carries out orders at once, and says which locks are held outside.
func carried(held map[string]bool, log *[]string) func(LockOrder) Op {
	return func(o LockOrder) Op {
		*log = append(*log, fmt.Sprint(o.Kind, o.LeaseID, o.Names))
		if o.Kind == FreeLocks {
			return Unlocked{o.LeaseID}
		}
		tokens := map[string]uint64{}
		for _, name := range o.Names {
			if held[name] {
				return Locked{Order: o, Blocked: name}
			}
			tokens[name] = 7
		}
		return Locked{Order: o, Tokens: tokens}
	}
}

func TestOrdersThatAreCarriedOutAtOnceAreOneTurn(t *testing.T) {
	w := lockingWorld(t)
	w.submit("b", func(s *jobs.Spec) { s.Locks = []string{"x"} })
	w.submit("c", func(s *jobs.Spec) { s.Locks = []string{"z"} })
	held, log := map[string]bool{"z": true}, []string(nil)
	out := w.e.Turn(w.now, []Call{{1, Request{Request: jobs.Request{WorkerID: "w", RequestID: "r"}, LeaseID: "L"}}}, carried(held, &log))
	if len(out.Replies) != 1 || out.Replies[0].Result.(jobs.Grant).Lease.LockTokens["y"] != 7 || len(out.Orders) != 0 || len(out.Changes.Jobs) != 1 {
		t.Fatalf("answered with %+v", out)
	}
	out = w.e.Turn(w.now, []Call{
		{2, Request{Request: jobs.Request{WorkerID: "v"}, LeaseID: "M"}}, {3, Request{Request: jobs.Request{WorkerID: "v"}, LeaseID: "N"}},
		{4, Complete{jobs.Completion{LeaseID: "L", WorkerID: "w", Status: jobs.Completed}}},
	}, carried(held, &log))
	answers := map[uint64]any{}
	for _, r := range out.Replies {
		answers[r.ID] = r.Result
	}
	if g := answers[2].(jobs.Grant); answers[4] != true || g.Job.ID != "b" || answers[3].(jobs.Grant).Denied.RetryAfter > LockRetry {
		t.Errorf("answered with %+v", answers)
	}
	if len(out.Changes.Jobs) != 2 || len(out.Changes.Memos) != 1 || w.e.check() != nil {
		t.Errorf("to be stored are %+v", out.Changes)
	}
	w.want("orders", fmt.Sprint(log), "[0L[x y] 1L[x y] 0M[z] 0M[x]]")
	w.want("waiting", w.do(Get{"c"}).(jobs.View).WaitingFor, "lock:z")
}

// Promise S-313: of jobs of the others there is always one that has a lock of the job that waits.
func TestAJobHasItsTurnAtLocksThatJobsBehindItTakeInTurn(t *testing.T) {
	for name, edit := range map[string]func(waits bool, i int, s *jobs.Spec){
		"one for each of its locks": func(waits bool, i int, s *jobs.Spec) {
			if s.Locks = []string{"x", "y"}; !waits {
				s.Locks = s.Locks[i%2:][:1]
			}
		},
		"they share what it wants for itself": func(waits bool, _ int, s *jobs.Spec) {
			if s.Locks = []string{"x"}; !waits {
				s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{"x": {Slots: 3}}}
			}
		},
		"they are of higher priority": func(waits bool, i int, s *jobs.Spec) {
			if s.Locks, s.Priority = []string{"x", "y"}, jobs.Background; !waits {
				s.Locks, s.Priority = s.Locks[i%2:][:1], jobs.High
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, jobs.Config{})
			add := func(i int) string {
				id := fmt.Sprint("other", i)
				w.submit(id, func(s *jobs.Spec) { edit(false, i, s) })
				return w.ask("w", id)
			}
			for i := range 2 {
				w.want("granted", add(i), fmt.Sprint("other", i))
			}
			w.submit("a", func(s *jobs.Spec) { edit(true, 0, s) })
			for i := 2; ; i++ {
				w.pass(20 * time.Second)
				done := Complete{jobs.Completion{LeaseID: fmt.Sprint("other", i-2), WorkerID: "w", Status: jobs.Completed}}
				if w.do(done); w.do(Get{"a"}).(jobs.View).WaitingFor == jobs.WaitingWorker {
					w.want("granted", w.ask("w", "L"), "a")
					break
				}
				if now := w.now.Mono; now > 5*time.Minute {
					t.Fatalf("after %v it waits for %s", now, w.do(Get{"a"}).(jobs.View).WaitingFor)
				}
				if got := add(i); w.now.Mono < 2*time.Minute {
					w.want("granted before its turn", got, fmt.Sprint("other", i))
				} else {
					w.want("granted in its turn", got, jobs.DeniedEligible)
					w.want("waiting", w.do(Get{fmt.Sprint("other", i)}).(jobs.View).WaitingFor, "reserved_for:a")
				}
			}
		})
	}
}

// Promise S-313: whoever waits outside is not kept from a lock for a job that nobody asks for.
func TestSomebodyStandsForAJobInAQueueWhileAWorkerAsks(t *testing.T) {
	w := lockingWorld(t)
	w.pass(3 * time.Minute)
	refused := func(id uint64, lease string) {
		w.turn(Call{0, Locked{w.order(id, jobs.Request{WorkerID: "w"}, lease), nil, "x"}})
		w.want("stands for", w.e.Claimant().JobID, "a")
	}
	refused(1, "L")
	w.pass(askedFor - time.Second)
	w.turn()
	w.want("stands for", w.e.Claimant().JobID, "a")
	w.want("next look", w.e.Next() <= w.now.Mono+time.Second, true)
	w.pass(time.Second)
	w.turn()
	w.want("stands for", w.e.Claimant().JobID, "")
	refused(2, "M")
	w.turn(Call{0, Cancel{"a", ""}})
	w.want("stands for", w.e.Claimant().JobID, "")
}

// What is kept for a job is not kept for ever: somebody has one of its locks for longer.
func TestLocksAreKeptForAJobForTenMinutesAtMost(t *testing.T) {
	w := newWorld(t, jobs.Config{})
	w.submit("long", func(s *jobs.Spec) { s.Locks = []string{"x"} })
	w.want("granted", w.ask("w", "L"), "long")
	w.submit("a", func(s *jobs.Spec) { s.Locks = []string{"x", "y"} })
	pass := func(d time.Duration) {
		for range d / (30 * time.Second) {
			w.pass(30 * time.Second)
			w.do(Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"L"}})
		}
	}
	pass(2 * time.Minute)
	w.submit("b", func(s *jobs.Spec) { s.Locks = []string{"y"} })
	w.want("b in a's turn", w.ask("v", "M"), jobs.DeniedEligible)
	pass(9 * time.Minute)
	w.want("b in a's turn", w.ask("v", "M"), jobs.DeniedEligible)
	pass(2 * time.Minute)
	w.want("b after it", w.ask("v", "M"), "b")
}

// Promise S-313. A job that never fits, because capacity is held back or there was more, would keep its locks from the others for nothing.
func TestNoLocksAreKeptForAJobThatNeverFits(t *testing.T) {
	w := newWorld(t, jobs.Config{Reserve: 1})
	w.submit("first", func(s *jobs.Spec) { s.Locks = []string{"x"} })
	w.submit("all", func(s *jobs.Spec) { s.Units, s.Locks = 100, []string{"x"} })
	w.want("granted", w.ask("w", "L"), "first")
	w.pass(time.Minute - time.Second)
	w.do(Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"L"}})
	w.pass(time.Minute - time.Second)
	w.do(Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"L"}})
	w.pass(10 * time.Second)
	w.submit("second", func(s *jobs.Spec) { s.Locks = []string{"x"} })
	w.do(Complete{jobs.Completion{LeaseID: "L", WorkerID: "w", Status: jobs.Completed}})
	w.want("granted", w.ask("w", "M"), "second")
}

// Promises S-78 and S-229: both replicas have had locks taken for a job, and one of them has granted it.
func TestAJobWhoseLocksAreTakenWaitsForWhatAnotherReplicaHasUsedUp(t *testing.T) {
	rate := &jobs.Extra{Limits: map[string]jobs.Limit{"api": {Slots: 9, Starts: 1, Per: time.Minute}}}
	for what, c := range map[string]struct {
		edit    func(*jobs.Spec)
		then    []Op
		types   []string
		waiting string
		wait    time.Duration
	}{
		"capacity": {edit: func(s *jobs.Spec) { s.Units, s.Locks = 3, []string{s.Type} }, types: []string{"a", "b"}},
		"a rate": {
			edit: func(s *jobs.Spec) { s.Locks, s.Extra = []string{"api"}, rate }, types: []string{"a", "b"},
			waiting: "rate:api", wait: time.Minute + time.Millisecond,
		},
		"the worker": {edit: func(s *jobs.Spec) { s.Unique, s.Locks = true, []string{s.Type} }, types: []string{"a", "b"}},
		"a freeze":   {edit: func(s *jobs.Spec) { s.Locks = []string{s.Type} }, types: []string{"a", "b"}, then: []Op{Freeze{Type: "b", Frozen: true}}, waiting: "frozen"},
		"the job": {
			edit: func(s *jobs.Spec) { s.MaxAttempts, s.RetryBackoff, s.Locks = 2, time.Minute, []string{"x"} }, types: []string{"b", "b"},
			then: []Op{
				Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"L"}},
				Complete{jobs.Completion{LeaseID: "L", WorkerID: "w", Status: jobs.Failed}}, Unlocked{"L"},
			},
			waiting: "run_at", wait: time.Minute,
		},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := jobs.Config{Total: 5, Locking: true, Shared: true}
			w, other := newWorld(t, cfg), newWorld(t, cfg)
			play := func(o Op) Outcome {
				out := w.turn(Call{1, o})
				changes := out.Changes
				for i, r := range changes.Jobs {
					changes.Jobs[i] = new(*r)
				}
				other.e.Follow(&changes, other.now)
				return out
			}
			for _, id := range []string{"a", "b"} {
				s := jobs.NewSpec()
				s.Type = id
				c.edit(&s)
				play(Submit{Jobs: []NewJob{{Spec: s, ID: id}}})
			}
			ask := func(i int) jobs.Request {
				return jobs.Request{WorkerID: "w", Types: c.types[i : i+1], Wait: jobs.MaxWait}
			}
			o := w.order(1, ask(0), "L")
			late := other.order(2, ask(1), "M")
			play(Locked{Order: o})
			w.want("units of the first", w.do(Status{}).(jobs.Snapshot).Leased > 0, true)
			for _, o := range c.then {
				play(o)
			}
			out := other.turn(Call{0, Locked{Order: late}})
			if len(out.Orders) != 1 || out.Orders[0].Kind != FreeLocks || len(out.Changes.Jobs) != 0 {
				t.Fatalf("it is granted, or its locks are kept: %+v", out)
			}
			out = other.turn(Call{0, Unlocked{"M"}})
			w.want("orders", len(out.Orders), 0)
			if v := other.do(Get{"b"}).(jobs.View); c.waiting != "" {
				w.want("waiting", v.WaitingFor, c.waiting)
			}
			if c.wait == 0 {
				c.wait = other.e.cfg.Life()
			}
			other.pass(c.wait)
			out = other.turn(Call{4, Freeze{Type: "b"}}, Call{3, Request{Request: ask(1), LeaseID: "N"}})
			w.want("taken after its time", slices.ContainsFunc(out.Orders, func(o LockOrder) bool { return o.Kind == TakeLocks && o.JobID == "b" }), true)
		})
	}
}

// Another replica granted it while its locks were being taken, and the attempt ends here.
func TestAJobThatIsKeptForARequestIsNotQueuedBesideWhenAnAttemptEnds(t *testing.T) {
	for _, status := range []jobs.State{jobs.Failed, jobs.Queued} {
		cfg := jobs.Config{Locking: true, Shared: true}
		w, other := newWorld(t, cfg), newWorld(t, cfg)
		out := w.turn(Call{1, Submit{Jobs: []NewJob{{Spec: jobs.NewSpec(), ID: "a"}}}})
		s := &out.Changes.Jobs[0].Spec
		s.Locks, s.MaxAttempts = []string{"x"}, 2
		w.e, other.e = newEngine(cfg), newEngine(cfg)
		for _, one := range []*world{w, other} {
			one.e.Follow(&jobs.Changes{Jobs: []*jobs.Record{new(*out.Changes.Jobs[0])}}, one.now)
		}
		late := other.order(1, jobs.Request{WorkerID: "v", Wait: jobs.MaxWait}, "M")
		out = w.turn(Call{0, Locked{Order: w.order(1, jobs.Request{WorkerID: "w"}, "L")}})
		other.e.Follow(&out.Changes, other.now)
		out = other.turn(Call{2, Complete{jobs.Completion{LeaseID: "L", WorkerID: "w", Status: status}}})
		w.want("orders", out.Orders[0].LeaseID, "L")
		other.turn(Call{0, Unlocked{"L"}})
		other.turn(Call{0, Locked{Order: late, Blocked: "x"}})
		other.pass(2 * LockWatch)
		out = other.turn()
		if len(out.Orders) != 1 || out.Orders[0].LeaseID != "M" {
			t.Errorf("%s: ordered are %+v", status, out.Orders)
		}
	}
}

// The store failed after the locks were ordered, and a job that goes first came meanwhile.
func TestLocksAreNotTakenForAnotherJobThatTheSameRequestGetsAfterwards(t *testing.T) {
	w := lockingWorld(t)
	a := jobs.Request{WorkerID: "w", Wait: jobs.MaxWait}
	o := w.order(1, a, "L")
	w.e = newEngine(w.e.cfg)
	w.submit("b", func(s *jobs.Spec) { s.Locks = []string{"y", "z"} })
	next := w.order(1, a, "L")
	out := w.turn(Call{0, Locked{Order: o, Tokens: map[string]uint64{"x": 1, "y": 1}}})
	if len(out.Replies) != 0 || len(out.Orders) != 1 || out.Orders[0].Kind != FreeLocks || fmt.Sprint(out.Orders[0].Names) != "[x]" {
		t.Fatalf("answered with %+v, orders %+v", out.Replies, out.Orders)
	}
	w.turn(Call{0, Unlocked{"L"}})
	tokens := map[string]uint64{"y": 1, "z": 1}
	out = w.turn(Call{0, Locked{Order: next, Tokens: tokens}})
	if g, ok := out.Replies[0].Result.(jobs.Grant); !ok || g.Job.ID != "b" || !maps.Equal(g.Lease.LockTokens, tokens) {
		t.Errorf("answered with %+v", out.Replies)
	}
}

// The store failed after the locks were ordered, and the request comes again in the turn that has them given back.
func TestWhatTheSameRequestTakesAgainIsNotFreeWhenItWasGivenBackBefore(t *testing.T) {
	w := lockingWorld(t)
	a := jobs.Request{WorkerID: "w", Wait: jobs.MaxWait}
	o := w.order(1, a, "L")
	*w = *lockingWorld(t)
	out := w.turn(Call{1, Request{Request: a, LeaseID: "L"}}, Call{0, Locked{Order: o}})
	if len(out.Orders) != 2 || out.Orders[0].Kind != FreeLocks || out.Orders[1].Kind != TakeLocks {
		t.Fatalf("ordered are %+v", out.Orders)
	}
	w.submit("c", func(s *jobs.Spec) { s.Locks = []string{"y"} })
	w.turn(Call{0, Unlocked{"L"}})
	w.want("while they are taken", w.ask("v", "N"), jobs.DeniedEligible)
	w.turn(Call{0, Locked{Order: out.Orders[1]}})
	w.want("while they are held", w.ask("v", "N"), jobs.DeniedEligible)
	w.want("waits for", w.do(Get{"c"}).(jobs.View).WaitingFor, "lock:y")
}
