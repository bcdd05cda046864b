package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// What may be done to a world, beside the faults that steps meet; each in some courses only.
const (
	killClient = "a client dies"
	stopClient = "a client is stopped, and goes on later"
	jumpClock  = "a client's clock jumps"
	slowClock  = "the store's clock is set back"
	setClock   = "the store's clock is wrong for a while"
	copied     = "a request arrives twice"
	sleepAll   = "the machine of the clients sleeps"
	killDaemon = "a daemon dies"
	lateCommit = "a change is stored after who asked gave up"

	ticketGoesOn = "another process goes on with a ticket"
	grantedAgain = "a copy of a claim is granted while its holder relies on what was ended by force"
	ticketIsLate = "an earlier process of a ticket comes late"
)

// disturbances are all of them, those first that any world may meet at any time.
var disturbances = []string{killClient, stopClient, jumpClock, slowClock, setClock, sleepAll, killDaemon, lateCommit}

// harm is a fault that steps of that kind may meet.
type harm struct {
	at   point
	f    fault
	name string
}

var harms = []harm{
	{pointRead, refused, "the store refuses a connection"},
	{pointChange, refused, "the store refuses a change"},
	{pointChange, lost, "a change is not stored, and nobody is told"},
	{pointChange, twice, "a change meets another, and is made again"},
	{pointAnswer, lost, "a change is stored, and its answer is lost"},
	{pointSend, refused, "a daemon refuses a connection"},
	{pointSend, lost, "a request is lost on the way"},
	{pointSend, twice, copied},
	{pointSend, vanished, "a request is never answered"},
	{pointReply, lost, "an answer is lost on the way"},
}

// mayMeet are the names of what a course may meet.
func mayMeet() []string {
	all := slices.Clone(disturbances)
	for _, h := range harms {
		all = append(all, h.name)
	}
	return all
}

// count notes that something was reached.
func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reached[what]++
}

// faultAt returns a fault that the step may meet in this course.
func (w *world) faultAt(s *step, r *rand.Rand) fault {
	all := slices.DeleteFunc(slices.Concat(harms, fileHarms), func(h harm) bool { return h.at != s.point || !w.allowed[h.name] })
	if len(all) == 0 {
		return fine
	}
	h := all[r.IntN(len(all))]
	w.count(h.name)
	w.say(s.actor, "%s: %s", s.what, h.name)
	return h.f
}

// disturb does something to a process, and reports whether it did.
func (w *world) disturb(r *rand.Rand) bool {
	what := disturbances[r.IntN(6)]
	if w.net && r.IntN(3) == 0 {
		what = killDaemon
	}
	if w.host != nil && (what == slowClock || what == setClock || what == sleepAll || r.IntN(2) == 0) {
		return w.host.disturb(r)
	}
	if !w.allowed[what] {
		return false
	}
	switch what {
	case slowClock:
		w.db.behind += randomly(r, 1000, 1e9)
		w.say(w.db.a, "%s", what)
	case setClock:
		by := w.db.behind // it is put right
		if by.Abs() < 2*time.Second {
			by = randomly(r, 2*time.Second, 5*time.Hour)
			if r.IntN(2) == 0 {
				by = -by
			}
		}
		w.say(w.db.a, "its clock is set by %v", by)
		w.db.set(by)
	case sleepAll: // their timers stand still, while the store goes on
		by := randomly(r, time.Second, time.Hour)
		w.say(w.db.a, "%s for %v", what, by)
		w.mu.Lock()
		for _, a := range w.people() {
			a.dazed, a.ahead = w.now()+glance, a.ahead+by
		}
		w.mu.Unlock()
		w.db.behind, w.vague = w.db.behind-by, true // the history counts by the clock of the world
	case killDaemon:
		d := w.daemons[r.IntN(len(w.daemons))]
		if d.died {
			w.say(d.actor, "starts again")
			d.start(w.newActor(d.name, w.late))
		} else if d.leave != nil && r.IntN(3) == 0 {
			w.say(d.actor, "is told to end")
			w.count("a daemon drains")
			close(d.leave)
			d.leave = nil
			return true
		} else {
			w.say(d.actor, "%s", what)
			d.kill()
		}
	default:
		all := w.people()
		a := all[r.IntN(len(all))]
		switch {
		case a.died && what == killClient && a.again != nil:
			again := a.again
			a.again = nil
			return again()
		case a.died:
			return false
		case what == killClient:
			a.kill()
		case what == stopClient:
			a.until = w.now() + randomly(r, 1e6, 60e9)
		case what == jumpClock:
			w.mu.Lock()
			a.dazed, a.ahead = w.now()+glance, a.ahead+randomly(r, 1e6, 20e9)
			w.mu.Unlock()
		}
		w.say(a, "%s", what)
	}
	w.count(what)
	return true
}

// glance is how soon whoever is there looks at its clock, and a bit.
const glance = 1100 * time.Millisecond

// people returns the processes that want something.
func (w *world) people() []*actor {
	all := slices.Clone(w.workers)
	for _, c := range w.scripts {
		all = append(all, c.actor)
	}
	return all
}

// countEvent counts what the production code says has happened.
func (w *world) countEvent(e lokt.Event) {
	what := "event " + string(e.Type)
	for _, k := range []string{lokt.ExtraOutcome, lokt.ExtraReason} {
		if v := e.Extra[k]; v != "" && len(v) < 12 {
			what += ", " + v
		}
	}
	w.count(what)
}

// countJobs counts what schedulers say has happened.
func (w *world) countJobs(all []jobs.Event) {
	for _, e := range all {
		w.count("job event " + string(e.Type))
	}
}

// mustReach is what many courses together have to meet.
func mustReach() []string {
	return append(append(mayMeet(), mustReachFiles()...), "time passes while a step waits", "a client starts again", ticketGoesOn, ticketIsLate, "waiting would be a circle", "a release fails", "the lock was lost",
		"event takeover, expired", "event takeover, unclaimed", "event takeover, preempted", "event auto-prune, unclaimed", "event wait, granted",
		"event wait, timeout", "event wait, cancelled", "event wait, died, not-asking", "event preempt", "event force-break", "event pass", "event freeze-deny", "event release-mismatch", "event renew-fail",
		"a holder sees that it is asked to leave", "a leader that lost its lead leads again", "a lease is refreshed", "a lock that was lost is taken again",
		"a locker is closed while it acquires", "a reader of events is told that some are forgotten", "a reader waits until there is an event", "a stream of events ends",
		"all that is stale is removed", "event wait, ousted", "the queue is full",
		"worker: started", "worker: a job goes back", "worker: stop", "worker: untold", "worker: doubt", "a job ends: completed", "a job ends: lease_expired", "a job ends: max_runtime_exceeded",
		"a job ends: failed", "a job ends: cancelled", "a job ends: revoked", "a job ends: after_failed", "a job is forgotten", "a schedule has a job done",
		"a job waits: after", "a job waits: capacity", "a job waits: lock", "a job waits: rate", "a job waits: run_at", "a job waits: unique", "a scheduler stands in a queue for a job",
		"job event cancel_requested", "job event clock_jumped", "job event frozen",
		"job event retried", "job event returned", "job event skipped", "job event unfrozen",
		"a daemon drains", "a daemon hears of another's jobs", "a worker drains",
		"an attempt goes on from a checkpoint", "heartbeats are sent together", "output is read")
}
