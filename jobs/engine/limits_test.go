package engine

import (
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

func TestReplicasShareARate(t *testing.T) {
	w := newWorld(t, jobs.Config{Shared: true})
	other := newWorld(t, jobs.Config{Shared: true})
	rated := func(s *jobs.Spec) {
		s.Locks = []string{"api"}
		s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{"api": {Slots: 9, Starts: 10, Per: time.Minute}}}
	}
	play := func(by, with *world, o Op) Outcome {
		out := by.turn(Call{1, o})
		with.e.Follow(&out.Changes, with.now)
		return out
	}
	ask := func(lease string) Request {
		return Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: lease}
	}
	for _, id := range []string{"a", "b", "c"} {
		s := jobs.NewSpec()
		rated(&s)
		play(w, other, Submit{Jobs: []NewJob{{Spec: s, ID: id}}})
	}
	w.want("the first", play(w, other, ask("1")).Replies[0].Result.(jobs.Grant).Job.ID, "a")
	d := play(other, w, ask("2")).Replies[0].Result.(jobs.Grant).Denied
	if d == nil || d.RetryAfter != 5*time.Second {
		t.Fatalf("the other replica answers %+v", d)
	}
	v := other.do(Get{"b"}).(jobs.View)
	w.want("why", v.WaitingFor+" until "+v.Awaits.Until.Format(time.TimeOnly), "rate:api until 00:00:06")
	w.want("when it looks again", other.e.Next(), 6*time.Second)
	for _, one := range []*world{w, other} {
		one.pass(6 * time.Second)
	}
	w.want("the second", play(other, w, ask("3")).Replies[0].Result.(jobs.Grant).Job.ID, "b")
	if d := play(w, other, ask("4")).Replies[0].Result.(jobs.Grant).Denied; d == nil {
		t.Fatal("a third job began")
	}
}

// Promises S-229 and S-296. Replicas read the clock that they share some time before their own, now more and now less.
func TestARateGoesByTheClockThatReplicasShare(t *testing.T) {
	for _, late := range []time.Duration{-time.Hour, -40 * time.Millisecond, 40 * time.Millisecond, time.Hour} {
		w, other := newWorld(t, jobs.Config{Shared: true}), newWorld(t, jobs.Config{Shared: true})
		s := jobs.NewSpec()
		s.Locks = []string{"api"}
		s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{"api": {Slots: 9, Starts: 1, Per: time.Second}}}
		w.do(Submit{Jobs: []NewJob{{s, "a"}}})
		out := w.turn(Call{1, Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "a"}})
		other.e.Follow(&out.Changes, other.now)
		for i, one := range []*world{w, other} {
			one.do(Submit{Jobs: []NewJob{{s, "b"}}})
			begins := func() bool {
				ask := Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "b"}
				return one.do(ask).(jobs.Grant).Denied == nil
			}
			one.pass(time.Second)
			one.now.Wall = one.now.Wall.Add(-late)
			if late != 40*time.Millisecond {
				w.want("another begins", begins(), true) // which is the case for a clock that was set, too
				continue
			}
			w.want("another begins too soon by the clock that all share", begins(), false)
			if one.pass(late); !begins() {
				t.Errorf("at replica %d no other one begins", i)
			}
		}
	}
}

// Promise S-94. The worker that could take the job asks another replica.
func TestAReplicaSaysThatAJobWaitsForCapacityWhoeverIsAskedForIt(t *testing.T) {
	w, other := newWorld(t, jobs.Config{Shared: true, Total: 1}), newWorld(t, jobs.Config{Shared: true, Total: 1})
	submit := Submit{Jobs: []NewJob{{jobs.NewSpec(), "a"}, {jobs.NewSpec(), "b"}}}
	ask := Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "l"}
	out := w.turn(Call{1, submit}, Call{2, ask})
	other.e.Follow(&out.Changes, other.now)
	for _, one := range []*world{w, other} {
		w.want("why", one.do(Get{"b"}).(jobs.View).WaitingFor, jobs.WaitingCapacity)
	}
}

// Promise S-229. A clock of a replica that is a little fast, by one part in ten thousand, is seconds ahead at the end of hours.
func TestARateOfHoursIsKeptByAReplicaWhoseClockIsFast(t *testing.T) {
	w := newWorld(t, jobs.Config{Shared: true})
	s := jobs.NewSpec()
	s.Locks = []string{"api"}
	s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{"api": {Slots: 9, Starts: 1, Per: 10 * time.Hour}}}
	begins := func(id string) bool {
		return w.do(Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: id}).(jobs.Grant).Denied == nil
	}
	w.do(Submit{Jobs: []NewJob{{s, "a"}, {s, "b"}}})
	w.want("the first begins", begins("a"), true)
	began := w.now.Wall
	for w.now.Wall.Before(began.Add(10*time.Hour - time.Millisecond)) {
		step := min(time.Minute, began.Add(10*time.Hour-time.Millisecond).Sub(w.now.Wall))
		w.pass(step + step/10_000)
		w.now.Wall = w.now.Wall.Add(-step / 10_000)
		w.want("the second begins too soon", begins("b"), false)
	}
	w.pass(time.Millisecond)
	w.want("the second begins", begins("b"), true)
}

// Promise S-293. The clock that replicas share is set before the other one takes its turn, or one is started.
func TestTheMaximumRuntimeLastsThoughTheClockOfReplicasIsSet(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		w, other := newWorld(t, jobs.Config{Shared: true}), newWorld(t, jobs.Config{Shared: true})
		play := func(o Op) {
			out := w.turn(Call{1, o})
			other.e.Follow(&out.Changes, other.now)
		}
		s := jobs.NewSpec()
		s.MaxRuntime = 30 * time.Minute
		play(Submit{Jobs: []NewJob{{Spec: s, ID: "a"}}})
		other.do(Get{"a"})
		out := w.turn(Call{2, Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "l"}})
		w.now.Wall, other.now.Wall = w.now.Wall.Add(step), other.now.Wall.Add(step)
		other.e.Follow(&out.Changes, other.now)
		w.do(Status{}) // which sees it, and stores what it knows
		third := newWorld(t, jobs.Config{Shared: true})
		third.now = w.now
		r := *w.e.jobs["a"].Record
		third.e = Load(jobs.Config{Shared: true}, jobs.Changes{Jobs: []*jobs.Record{&r}}, "third", third.now)
		for who, one := range map[string]*world{"the other": other, "the third": third} {
			end := one.now.Mono + s.MaxRuntime
			for one.now.Mono < end-time.Second {
				one.do(Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"l"}})
				one.pass(min(30*time.Second, end-one.now.Mono-time.Second/2))
			}
			if v, _ := one.do(Get{"a"}).(jobs.View); v.Lease == nil {
				t.Errorf("clock set by %v: %s has ended it", step, who)
			}
			one.pass(2 * time.Second)
			if v, _ := one.do(Get{"a"}).(jobs.View); v.Lease != nil && step > 0 {
				t.Errorf("clock set by %v: for %s it lasts longer", step, who)
			}
		}
	}
}

// Promise S-284. The clock that replicas share is set back, and put right before the other one takes its turn.
func TestALeaseLastsThoughReplicasSawDifferentClocks(t *testing.T) {
	w, other := newWorld(t, jobs.Config{Shared: true}), newWorld(t, jobs.Config{Shared: true})
	play := func(o Op) {
		out := w.turn(Call{1, o})
		other.e.Follow(&out.Changes, other.now)
	}
	play(Submit{Jobs: []NewJob{{Spec: jobs.NewSpec(), ID: "a"}}})
	other.do(Get{"a"})
	for _, one := range []*world{w, other} {
		one.pass(time.Second)
	}
	w.now.Wall = w.now.Wall.Add(-time.Hour)
	for _, o := range []Op{
		Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "l"},
		Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"l"}},
	} {
		play(o)
		if v, _ := other.do(Get{"a"}).(jobs.View); v.Lease == nil || v.Lease.ID != "l" {
			t.Fatalf("after %T the other one has %+v", o, v)
		}
	}
	other.pass(w.e.cfg.Life() + 2*time.Second)
	if v, _ := other.do(Get{"a"}).(jobs.View); v.Lease != nil {
		t.Error("it lasts for longer than from when the other one looked")
	}
}

// Promise S-296. What was stored by a clock that was ahead is read by one that is right.
func TestNoJobWaitsLongerBecauseTheClockWasSetBack(t *testing.T) {
	w, tb := newWorld(t, jobs.Config{}), newTable()
	play := func(o Op) any {
		out := w.turn(Call{1, o})
		if err := tb.apply(&out.Changes); err != nil {
			t.Fatal(err)
		}
		return out.Replies[0].Result
	}
	for _, id := range []string{"a", "b", "c"} {
		s := jobs.NewSpec()
		if id != "c" {
			s.Locks = []string{"api"}
			s.Extra = &jobs.Extra{Limits: map[string]jobs.Limit{"api": {Slots: 9, Starts: 1, Per: time.Minute}}}
		}
		play(Submit{Jobs: []NewJob{{Spec: s, ID: id}}})
	}
	ask := func(lease string) jobs.Grant {
		return play(Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: lease}).(jobs.Grant)
	}
	w.want("the first", ask("1").Job.ID, "a")
	w.now.Wall = w.now.Wall.Add(-12 * time.Hour)
	w.e = Load(w.e.cfg, tb.living(w.now.Wall), "next", w.now)
	w.want("the one without a rate", ask("2").Job.ID, "c")
	w.pass(59 * time.Second)
	if g := ask("3"); g.Denied == nil {
		t.Fatal("the second began before its time")
	}
	w.pass(time.Second + time.Millisecond)
	w.want("the second", ask("4").Job.ID, "b")
}

// Promise S-229. To take the locks of the first takes longer than the rate has between two.
func TestARateCountsFromTheGrantThoughItsLocksTookLong(t *testing.T) {
	w := newWorld(t, jobs.Config{Locking: true})
	for _, id := range []string{"a", "b", "c"} {
		w.submit(id, func(s *jobs.Spec) {
			s.Locks, s.Extra = []string{"api"}, &jobs.Extra{Limits: map[string]jobs.Limit{"api": {Slots: 9, Starts: 2, Per: time.Minute, Burst: 2}}}
		})
	}
	ask := jobs.Request{WorkerID: "w", Wait: jobs.MaxWait}
	o, second := w.order(1, ask, "L"), w.order(2, ask, "M")
	for range 3 {
		w.pass(31 * time.Second)
		w.want("orders while two are taken", len(w.turn(Call{3, Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "N"}}).Orders), 0)
	}
	for _, o := range []LockOrder{o, second} { // as many as the burst
		w.want("granted", w.turn(Call{0, Locked{Order: o}}).Replies[0].Result.(jobs.Grant).Lease.ID, o.LeaseID)
	}
	w.pass(29 * time.Second)
	w.want("orders before its time", len(w.turn(Call{4, Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "O"}}).Orders), 0)
	w.pass(2 * time.Second)
	w.want("at its time", w.order(5, ask, "P").JobID, "c")
}

// Promise S-87. Each replica ends it in its own time, and no worker is told that more is left of it than there is at any of them.
func TestNoReplicaTellsOfMoreRuntimeThanIsLeftAtAnother(t *testing.T) {
	cfg := jobs.Config{Shared: true}
	w, other := newWorld(t, cfg), newWorld(t, cfg)
	w.submit("a", func(s *jobs.Spec) { s.MaxRuntime = 8 * time.Second })
	out := w.turn(Call{2, Request{Request: jobs.Request{WorkerID: "w"}, LeaseID: "l"}})
	other.pass(2 * time.Second)
	other.e.Follow(&out.Changes, other.now)
	third := newWorld(t, cfg)
	third.pass(2 * time.Second)
	third.e = Load(cfg, jobs.Changes{Jobs: []*jobs.Record{new(*out.Changes.Jobs[0])}}, "third", third.now)
	for name, one := range map[string]*world{"one that hears of it": other, "one that is started": third} {
		left := one.do(Heartbeat{jobs.Heartbeat{WorkerID: "w"}, []string{"l"}}).([]jobs.LeaseAnswer)[0].RunLeft
		if left > 6*time.Second {
			t.Errorf("%s says that %v is left", name, left)
		}
	}
}
