package engine

// An independent model of the rules: lists, no indexes, everything looked at every time. The engine must answer as it does.

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

type mJob struct {
	jobs.Spec
	id        string
	state     jobs.State
	seq       int
	ord       int64
	created   time.Time
	wallDue   time.Time     // not before, by the wall
	monoDue   time.Duration // not before, by the other clock
	runnable  bool          // its time has come
	ready     time.Duration // since then
	open      bool
	opened    time.Duration // since then, if it was closed before
	attempt   int
	token     uint64
	cancel    bool
	code      string
	lease     *mLease
	attempts  []string
	readyWall time.Time
	line      string
	lastRun   string // of a schedule: the job
}

type mLease struct {
	id, worker, request string
	job                 *mJob
	issued, shown       time.Time
	expires, runUntil   time.Duration
	asked, ahead        bool // for a job that waits at its worker, and it does
}

type mWait struct {
	ids   []uint64 // of its calls
	until time.Duration
	ask   *Request
	lease *mLease
}

type mKey struct {
	print string
	job   *mJob
	until time.Duration
	wall  time.Time // zero while the job lives
}

type mSeen struct {
	at    time.Duration
	by    *Request // what it said of itself last
	asked time.Duration
	most  int // units that it asked for since it had no lease
}

type mAnswer struct {
	lease  mLease
	token  uint64
	number int
	until  time.Duration
	wall   time.Time
}

type model struct {
	cfg      jobs.Config
	now      Instant
	offset   time.Duration // of the wall clock; 0 before the first turn
	clock    time.Time     // that jobs are ordered by
	clockAt  time.Duration // when it was right
	jobs     []*mJob       // all, in order of submission
	leases   []*mLease
	waits    []*mWait // in order of arrival
	workers  map[string]*mSeen
	keys     map[string]*mKey
	answered map[string]*mAnswer
	frozen   map[string]bool
	rates    map[string]mRate
	served   map[string]int64        // units, by class and fairness key
	virtual  map[jobs.Priority]int64 // what the key had that was served last
	joins    map[jobs.Priority]int64 // what it has then, and who joins
	doomed   []*mJob                 // to be cancelled in this turn
	draining bool
	reserved *mJob
	since    time.Duration
	rest     time.Duration
	host     *mJob         // that a worker is kept for
	hosting  string        // the worker
	hosted   time.Duration // since then
	hostRest time.Duration // none is looked for before
	claimant *mJob         // whose turn it is at its locks
	idle0    time.Duration // one of these has been idle since then
	lockRest time.Duration // there is none before
	search   time.Duration // nor is one looked for
	out      map[uint64]string
	events   map[jobs.EventType]int
	ended    map[jobs.State]int
}

// mRate is until when the jobs that began take, on both clocks.
type mRate struct {
	until time.Duration
	wall  time.Time
	left  time.Duration // when it was stored
}

func newModel(cfg jobs.Config) *model {
	return &model{
		cfg: cfg.WithDefaults(), workers: map[string]*mSeen{}, keys: map[string]*mKey{},
		answered: map[string]*mAnswer{}, frozen: map[string]bool{}, rates: map[string]mRate{}, served: map[string]int64{}, virtual: map[jobs.Priority]int64{}, joins: map[jobs.Priority]int64{}, events: map[jobs.EventType]int{}, ended: map[jobs.State]int{},
	}
}

func (m *model) turn(now Instant, requests []Call) map[uint64]string {
	m.out = map[uint64]string{}
	m.jump(now)
	m.now = Instant{Wall: now.Wall.UTC().Truncate(time.Millisecond), Mono: now.Mono}
	for {
		var first *mLease
		for _, l := range m.leases {
			if min(l.expires, l.runUntil) <= now.Mono && (first == nil || min(l.expires, l.runUntil) < min(first.expires, first.runUntil)) {
				first = l
			}
		}
		if first == nil {
			break
		}
		if first.ahead {
			m.remember(first)
			m.undo(first)
		} else if first.runUntil <= first.expires {
			m.end(first, jobs.Failed, jobs.CodeRuntime)
		} else {
			m.end(first, jobs.Expired, jobs.CodeExpired)
		}
	}
	for j := m.due(); j != nil; j = m.due() {
		m.tick(j)
	}
	for _, j := range m.jobs {
		m.come(j)
		if j.Extra != nil { // a rate may let it begin now
			m.reopenOne(j)
		}
	}
	for _, r := range requests {
		m.apply(r)
	}
	for ; len(m.doomed) > 0; m.doomed = m.doomed[1:] {
		if !m.doomed[0].state.Ended() {
			m.finish(m.doomed[0], jobs.Cancelled, jobs.CodeAfter)
		}
	}
	m.match()
	for _, w := range slices.Clone(m.waits) {
		if w.until > now.Mono {
			continue
		}
		if w.ask == nil {
			m.settle(w, m.beaten(w.lease))
			continue
		}
		code, retry := m.denial(w)
		m.settle(w, fmt.Sprintf("denied %s %v", code, retry))
	}
	for _, r := range requests {
		switch o := r.Op.(type) {
		case Status:
			m.out[r.ID] = fmt.Sprintf("%+v", m.snapshot())
		case Get:
			m.out[r.ID] = "error job_not_found"
			if j := m.job(o.JobID); j != nil && !j.state.Ended() {
				m.out[r.ID] = fmt.Sprintf("%s %s attempts %d", j.state, m.waitingFor(j), j.attempt)
			}
		}
	}
	return m.out
}

// jump counts steps of the wall clock.
func (m *model) jump(now Instant) {
	wall := now.Wall.UTC().Truncate(time.Millisecond)
	offset := wall.Sub(time.Unix(0, 0)) - now.Mono
	if d := offset - m.offset; m.offset != 0 && d.Abs() > time.Second+(now.Mono-m.now.Mono)/1000 {
		m.events[jobs.EventClock]++
	}
	m.offset = offset
}

func (m *model) apply(r Call) {
	say := func(format string, args ...any) { m.out[r.ID] = fmt.Sprintf(format, args...) }
	worker := func(l *mLease) { m.heard(l.worker, nil) }
	switch o := r.Op.(type) {
	case Submit:
		say("%s", m.submit(o.Jobs, o.Ended))
	case Request:
		m.ask(r.ID, &o)
	case Heartbeat:
		var all []string
		for _, id := range o.LeaseIDs {
			l, code := m.lease(id, o.WorkerID)
			if code != "" {
				all = append(all, code)
				continue
			}
			worker(l)
			m.beat(l, o.Ahead)
			if o.Wait > 0 && !l.job.cancel && !m.draining && m.parked() < m.cfg.MaxParked {
				m.waits = append(m.waits, &mWait{ids: []uint64{r.ID}, until: m.now.Mono + o.Wait, lease: l})
				return
			}
			all = append(all, m.beaten(l))
		}
		say("%s", strings.Join(all, ", "))
	case Complete:
		l, code := m.lease(o.LeaseID, o.WorkerID)
		switch code {
		case "lease_not_found":
			say("false")
			return
		case "":
			if worker(l); o.Status == jobs.Queued {
				m.remember(l)
				m.undo(l)
				say("true")
				return
			}
			m.run(l)
			code := jobs.CodeCompleted
			if o.Status == jobs.Failed {
				code = jobs.CodeFailed
			}
			m.end(l, o.Status, code)
			say("true")
			return
		}
		say("error %s", code)
	case Report:
		l, code := m.lease(o.LeaseID, o.WorkerID)
		if code != "" {
			say("error %s", code)
			return
		}
		worker(l)
		say("<nil>")
	case Cancel:
		j := m.job(o.JobID)
		switch {
		case j == nil || j.state.Ended():
			say("error job_not_found")
		case j.lease == nil:
			m.finish(j, jobs.Cancelled, jobs.CodeCancelled)
			say("%s", jobs.Cancelled)
		default:
			if !j.cancel {
				j.cancel = true
				m.events[jobs.EventCancelRequest]++
				for _, w := range slices.Clone(j.lease.waiting(m)) {
					m.settle(w, m.beaten(j.lease))
				}
			}
			say("%s", j.state)
		}
	case Revoke:
		l, _ := m.lease(o.LeaseID, "")
		if l == nil {
			say("error lease_not_found")
			return
		}
		m.end(l, jobs.Failed, jobs.CodeRevoked)
		say("<nil>")
	case Freeze:
		if m.frozen[o.Type] != o.Frozen {
			m.frozen[o.Type] = o.Frozen
			m.events[map[bool]jobs.EventType{true: jobs.EventFreeze, false: jobs.EventUnfreeze}[o.Frozen]]++
			m.reopen()
		}
		say("<nil>")
	case Withdraw:
		gone := false
		for _, w := range slices.Clone(m.waits) {
			if slices.Contains(w.ids, o.CallID) {
				m.out[o.CallID], gone = "error internal", true
			}
			w.ids = slices.DeleteFunc(w.ids, func(id uint64) bool { return id == o.CallID })
			if len(w.ids) == 0 {
				m.drop(w)
			}
		}
		if l, _ := m.lease(o.LeaseID, ""); l != nil && l.job.state == jobs.Leased && !gone {
			gone = true
			m.undo(l)
		}
		say("%v", gone)
	}
}

// waiting returns the heartbeats that wait on the lease.
func (l *mLease) waiting(m *model) []*mWait {
	var all []*mWait
	for _, w := range m.waits {
		if w.lease == l {
			all = append(all, w)
		}
	}
	return all
}

func (m *model) job(id string) *mJob {
	for _, j := range m.jobs {
		if j.id == id {
			return j
		}
	}
	return nil
}

// lease finds an active lease; an empty worker is anybody.
func (m *model) lease(id, worker string) (*mLease, string) {
	for _, l := range m.leases {
		if l.id == id {
			if worker != "" && l.worker != worker {
				return l, "worker_mismatch"
			}
			return l, ""
		}
	}
	return nil, "lease_not_found"
}

func (m *model) submit(all []NewJob, ended map[string]jobs.State) string {
	var made []*mJob
	used := map[string]*mKey{}
	var said []string
	unknown := false
	for _, n := range all {
		for k, id := range n.Extras().After {
			if at, found := strings.CutPrefix(id, "#"); found {
				b, _ := strconv.Atoi(at)
				n.Extra.After[k], _, _ = strings.Cut(said[b], ":")
			}
		}
		if n.IdempotencyKey != "" {
			k := used[n.IdempotencyKey]
			if k == nil {
				if k = m.keys[n.IdempotencyKey]; k != nil && !k.wall.IsZero() && k.until <= m.now.Mono {
					k = nil
				}
			}
			if k != nil {
				if k.print != n.Fingerprint() {
					return "error idempotency_conflict"
				}
				said = append(said, k.job.id+":"+string(k.job.state))
				continue
			}
		}
		j := &mJob{Spec: n.Spec, id: n.ID, state: jobs.Queued}
		if n.Extras().Cron != "" {
			j.state = jobs.Scheduled
		}
		if n.IdempotencyKey != "" {
			used[n.IdempotencyKey] = &mKey{print: n.Fingerprint(), job: j}
		}
		for _, id := range n.Extras().After {
			listed := slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, id+":") })
			if d := m.job(id); !listed && (d == nil || d.state.Ended()) && ended[id] == "" {
				unknown = true
			}
		}
		made = append(made, j)
		said = append(said, j.id+":"+string(j.state))
	}
	if unknown {
		return "error internal"
	}
	maps.Copy(m.keys, used)
	for _, j := range made {
		m.add(j)
	}
	return strings.Join(said, " ")
}

// add takes in a new job.
func (m *model) add(j *mJob) {
	j.created, j.readyWall = m.now.Wall, m.now.Wall
	m.clock = m.clock.Add(m.now.Mono - m.clockAt)
	if m.now.Wall.After(m.clock) {
		m.clock = m.now.Wall
	}
	m.clockAt = m.now.Mono
	j.seq, j.line = len(m.jobs), lineOf(j)
	j.ord = m.clock.UnixMilli() + int64(slices.Index(jobs.Priorities(), j.Priority))*m.cfg.AgeingStep.Milliseconds()
	j.wallDue = j.RunAt.Truncate(time.Millisecond)
	if j.wallDue.After(m.now.Wall) {
		j.readyWall = j.wallDue
	}
	m.jobs = append(m.jobs, j)
	m.events[jobs.EventSubmit]++
	for _, id := range j.Extras().After {
		if m.failed(j, id) {
			m.doomed = append(m.doomed, j)
		}
	}
	m.come(j)
	if j.state == jobs.Scheduled {
		at, _ := jobs.ParseCron(j.Extra.Cron)
		if j.readyWall = at.Next(m.now.Wall); j.wallDue.After(j.readyWall) {
			j.readyWall = at.Next(j.wallDue.Add(-time.Millisecond))
		}
	}
}

// due returns the first schedule whose tick has come.
func (m *model) due() (first *mJob) {
	for _, j := range m.jobs {
		if j.state == jobs.Scheduled && !j.readyWall.After(m.now.Wall) && (first == nil || j.readyWall.Before(first.readyWall)) {
			first = j
		}
	}
	return first
}

// tick runs a schedule for the last tick that has come.
func (m *model) tick(j *mJob) {
	at, _ := jobs.ParseCron(j.Extra.Cron)
	tick := at.Last(j.readyWall, m.now.Wall)
	if last := m.job(j.lastRun); last != nil && !last.state.Ended() {
		m.events[jobs.EventSkip]++
	} else {
		sum := sha256.Sum256(fmt.Append(nil, j.id, tick.UnixMilli()))
		r := &mJob{Spec: j.Again(), id: fmt.Sprintf("%012x%x", tick.UnixMilli(), sum[:10]), state: jobs.Queued}
		r.Extra.Cron, j.lastRun = "", r.id
		m.add(r)
	}
	j.readyWall = at.Next(tick)
}

// come makes a queued job runnable if its time has come, and there is nothing that it has to run after.
func (m *model) come(j *mJob) {
	if j.state == jobs.Queued && !j.runnable && m.obstacle(j) == "" && !j.wallDue.After(m.now.Wall) && j.monoDue <= m.now.Mono {
		j.runnable, j.ready = true, m.now.Mono
		m.newlyIn(j)
	}
}

// failed reports whether a job that the other is to run after has ended otherwise than it should.
func (m *model) failed(j *mJob, id string) bool {
	s := m.job(id).state
	return s.Ended() && s != jobs.Completed && !j.Extra.AfterAny
}

// obstacle returns the first job that is in the way.
func (m *model) obstacle(j *mJob) string {
	for _, id := range j.Extras().After {
		if !m.job(id).state.Ended() || m.failed(j, id) {
			return id
		}
	}
	return ""
}

// newlyIn opens or closes a job that has become runnable.
func (m *model) newlyIn(j *mJob) {
	if !slices.ContainsFunc(m.jobs, func(o *mJob) bool { return o != j && m.inLine(o) && o.turn() == j.turn() }) {
		m.served[j.turn()] = max(m.served[j.turn()], m.joins[j.Priority])
	}
	j.open, j.opened = !m.closed(j), -Never
}

// reopen notes which jobs could be handed out now, after something has changed.
func (m *model) reopen() {
	for _, j := range m.jobs {
		m.reopenOne(j)
	}
}

func (m *model) reopenOne(j *mJob) {
	if j.state == jobs.Queued && j.runnable {
		open := !m.closed(j)
		if open && !j.open {
			j.opened = m.now.Mono
		}
		j.open = open
	}
}

// turn is the job's class and fairness key.
func (j *mJob) turn() string { return string(j.Priority) + " " + j.Extras().Fair }

func (m *model) inLine(j *mJob) bool { return j.state == jobs.Queued && j.runnable }

func (m *model) lockOf(j *mJob) string {
	for _, name := range j.Locks {
		if !m.room(name, j.Extras().Limits[name].Slots) {
			return name
		}
	}
	return ""
}

// room reports whether one more may have the lock, beside whom there may be so many at most, with it.
func (m *model) room(name string, slots int) bool {
	held, most := 0, max(slots, 1)
	for _, l := range m.leases {
		if slices.Contains(l.job.Locks, name) {
			held, most = held+1, min(most, max(l.job.Extras().Limits[name].Slots, 1))
		}
	}
	return held < most
}

// rateOf returns the lock whose rate keeps a job longest from beginning, and for how long.
func (m *model) rateOf(j *mJob) (lock string, left time.Duration) {
	for _, name := range j.Locks {
		limit := j.Extras().Limits[name]
		until := m.rates[name].until - limit.Every()*time.Duration(max(0, limit.Burst-1)) - m.now.Mono
		if limit.Starts > 0 && until > left {
			lock, left = name, until
		}
	}
	return lock, left
}

func (m *model) closed(j *mJob) bool {
	_, left := m.rateOf(j)
	return m.frozen[""] || m.frozen[j.Type] || m.lockOf(j) != "" || m.yields(j) || left > 0
}

// yields reports whether a lock of the job is kept for another.
func (m *model) yields(j *mJob) bool {
	c := m.claimant
	return c != nil && j.line != c.line && slices.ContainsFunc(j.Locks, func(name string) bool { return slices.Contains(c.Locks, name) })
}

// keepLocks finds the job that its locks are kept for.
func (m *model) keepLocks() {
	now := m.now.Mono
	if c := m.claimant; c != nil {
		over := c.state != jobs.Queued || !c.runnable || m.head(c) != c || m.closed(c) && (m.lockOf(c) == "" || m.frozen[""] || m.frozen[c.Type])
		if !over {
			if m.idle0 = min(m.idle0, now); !slices.ContainsFunc(c.Locks, func(name string) bool { return m.room(name, lokt.Shared) }) {
				m.idle0 = Never
			}
			over = m.taker(c) <= now
		}
		if now >= plus(m.idle0, m.cfg.ReserveLimit) {
			over, m.lockRest = true, now+m.cfg.ReserveLimit
		}
		if over {
			m.claimant = nil
			m.reopen()
		}
	}
	if m.claimant != nil || now < m.search {
		return
	}
	m.idle0, m.search = Never, now+LockRetry
	for _, j := range m.jobs {
		if m.inLine(j) && m.head(j) == j && m.lockOf(j) != "" && now >= m.lockRest && m.cfg.ReserveAfter >= 0 && !m.frozen[""] && !m.frozen[j.Type] && now >= plus(j.ready, m.cfg.ReserveAfter) && m.taker(j) > now &&
			j.Units <= m.cfg.Total-m.cfg.Reserve && (m.claimant == nil || j.before(m.claimant)) {
			m.claimant = j
		}
	}
	m.reopen()
}

func (j *mJob) before(o *mJob) bool { return j.ord < o.ord || j.ord == o.ord && j.seq < o.seq }

// head returns the first job of a job's line.
func (m *model) head(of *mJob) *mJob {
	first := of
	for _, j := range m.jobs {
		if m.inLine(j) && j.line == of.line && j.before(first) {
			first = j
		}
	}
	return first
}

func (m *model) heard(worker string, by *Request) {
	if m.workers[worker] == nil {
		m.workers[worker] = &mSeen{}
	}
	w := m.workers[worker]
	w.at = m.now.Mono
	if by != nil {
		if w.by, w.asked = by, m.now.Mono; m.idle(worker) {
			w.most = 0
		}
		w.most = max(w.most, cmp.Or(by.MaxUnits, math.MaxInt))
	}
}

func (m *model) ask(id uint64, op *Request) {
	m.heard(op.WorkerID, op)
	for _, l := range m.leases {
		if op.RequestID != "" && l.worker == op.WorkerID && l.request == op.RequestID {
			m.out[id] = m.granted(l, l.job.token, l.job.attempt)
			return
		}
	}
	if a := m.answered[op.WorkerID+"/"+op.RequestID]; op.RequestID != "" && a != nil && a.until > m.now.Mono {
		m.out[id] = m.granted(&a.lease, a.token, a.number)
		return
	}
	w := &mWait{ids: []uint64{id}, ask: op, until: m.now.Mono}
	if !m.draining && m.parked() < m.cfg.MaxParked {
		w.until += op.Wait
	}
	for _, other := range m.waits {
		if other.ask != nil && op.RequestID != "" && other.ask.WorkerID == op.WorkerID && other.ask.RequestID == op.RequestID {
			other.ids, other.until = append(other.ids, id), w.until
			anew := *op
			anew.LeaseID, anew.Jitter = other.ask.LeaseID, other.ask.Jitter
			other.ask = &anew
			return
		}
	}
	m.waits = append(m.waits, w)
}

func (m *model) granted(l *mLease, token uint64, attempt int) string {
	return fmt.Sprintf("grant %s of %s to %s token %d attempt %d until %s", l.id, l.job.id, l.worker, token, attempt, l.shown.Format(time.RFC3339Nano))
}

// settle answers a request or a heartbeat.
func (m *model) settle(w *mWait, answer string) {
	for _, id := range w.ids {
		m.out[id] = answer
	}
	m.drop(w)
}

func (m *model) drop(w *mWait) {
	m.waits = slices.DeleteFunc(m.waits, func(o *mWait) bool { return o == w })
}

// parked counts the calls that wait.
func (m *model) parked() (n int) {
	for _, w := range m.waits {
		n += len(w.ids)
	}
	return n
}

func (m *model) beat(l *mLease, ahead bool) {
	l.expires = max(l.expires, m.now.Mono+m.cfg.TTL+m.cfg.Grace)
	if s := m.now.Wall.Add(m.cfg.TTL + m.cfg.Grace); s.After(l.shown) {
		l.shown = s
	}
	if !ahead {
		m.run(l)
	}
}

func (m *model) run(l *mLease) {
	if l.job.state == jobs.Leased {
		l.job.state, l.ahead = jobs.Running, false
		m.events[jobs.EventRunning]++
	}
}

func (m *model) beaten(l *mLease) string {
	return fmt.Sprintf("until %s cancel %v drain %v", l.shown.Format(time.RFC3339Nano), l.job.cancel, m.draining)
}

func (m *model) end(l *mLease, how jobs.State, code string) {
	for _, w := range l.waiting(m) {
		m.settle(w, "error lease_not_found")
	}
	m.leases = slices.DeleteFunc(m.leases, func(o *mLease) bool { return o == l })
	j := l.job
	m.remember(l)
	j.attempts = append(j.attempts, string(how)+" "+code)
	j.lease = nil
	switch {
	case how == jobs.Completed || code == jobs.CodeRevoked:
		m.finish(j, how, code)
	case j.cancel:
		m.finish(j, jobs.Cancelled, jobs.CodeCancelled)
	case j.attempt >= j.MaxAttempts:
		m.finish(j, how, code)
	default:
		m.events[jobs.EventRetry]++
		j.state, j.code = jobs.Queued, code
		wait := m.backoff(j)
		j.wallDue, j.monoDue, j.readyWall = time.Time{}, m.now.Mono+wait, m.now.Wall.Add(wait)
		if j.runnable = wait <= 0; j.runnable {
			j.ready = m.now.Mono
			m.newlyIn(j)
		}
	}
	m.reopen()
}

// remember keeps what the request of a lease that ends was answered.
func (m *model) remember(l *mLease) {
	if l.request != "" {
		m.answered[l.worker+"/"+l.request] = &mAnswer{*l, l.job.token, l.job.attempt, m.now.Mono + jobs.RequestLife, m.now.Wall.Add(jobs.RequestLife)}
	}
}

// undo takes a grant back.
func (m *model) undo(l *mLease) {
	for _, w := range l.waiting(m) {
		m.settle(w, "error lease_not_found")
	}
	m.leases = slices.DeleteFunc(m.leases, func(o *mLease) bool { return o == l })
	j := l.job
	j.lease = nil
	j.attempt--
	if j.cancel {
		m.finish(j, jobs.Cancelled, jobs.CodeCancelled)
	} else {
		m.events[jobs.EventReturn]++
		j.state = jobs.Queued
		if j.readyWall.After(m.now.Wall) {
			j.readyWall = m.now.Wall
		}
		j.ready = m.now.Mono
		m.newlyIn(j)
	}
	m.reopen()
}

func (m *model) finish(j *mJob, s jobs.State, code string) {
	j.state, j.code = s, code
	m.ended[s]++
	switch {
	case code == jobs.CodeRevoked:
		m.events[jobs.EventRevoke]++
	default:
		m.events[map[jobs.State]jobs.EventType{jobs.Completed: jobs.EventComplete, jobs.Failed: jobs.EventFail, jobs.Expired: jobs.EventExpire, jobs.Cancelled: jobs.EventCancel}[s]]++
	}
	if k := m.keys[j.IdempotencyKey]; k != nil && k.job == j {
		k.until, k.wall = m.now.Mono+jobs.KeyLife, m.now.Wall.Add(jobs.KeyLife)
	}
	for _, o := range m.jobs {
		if after := o.Extras().After; o.state == jobs.Queued && slices.Contains(after, j.id) {
			if m.failed(o, j.id) {
				m.doomed = append(m.doomed, o)
			}
			if o.wallDue.After(m.now.Wall) {
				o.wallDue = o.readyWall
			}
			m.come(o)
		}
	}
}

func (m *model) free() int {
	free := m.cfg.Total - m.cfg.Reserve
	for _, l := range m.leases {
		free -= l.job.Units
	}
	return free
}

// queue returns the jobs that could be handed out but for capacity and workers, in order.
func (m *model) queue() []*mJob {
	var q []*mJob
	for _, j := range m.jobs {
		if j.state == jobs.Queued && j.runnable && j.open {
			q = append(q, j)
		}
	}
	sort.SliceStable(q, func(a, b int) bool { return q[a].ord < q[b].ord })
	return q
}

// takes reports whether the request may be granted the job, unless its worker is busy.
func (m *model) takes(by *Request, j *mJob) bool {
	return m.could(by, j) && (!by.Ahead || !j.Unique && len(j.Locks) == 0 && j.MaxRuntime == 0)
}

// could reports whether a worker that said so of itself may take the job, if it has nothing else to do.
func (m *model) could(by *Request, j *mJob) bool {
	if by.MaxUnits > 0 && j.Units > by.MaxUnits || len(by.Types) > 0 && !slices.Contains(by.Types, j.Type) {
		return false
	}
	for _, t := range j.Tags {
		if need, ok := strings.CutPrefix(t, "needs:"); ok && !slices.Contains(by.Capabilities, t) && !slices.Contains(by.Capabilities, need) {
			return false
		}
	}
	return true
}

func (m *model) idle(worker string) bool {
	for _, l := range m.leases {
		if l.worker == worker {
			return false
		}
	}
	return true
}

// taker returns until when somebody who could take the job counts as there.
func (m *model) taker(j *mJob) time.Duration {
	until := m.now.Mono
	for _, w := range m.workers {
		if w.by != nil && m.could(w.by, j) {
			until = max(until, w.at+jobs.SeenFor)
		}
	}
	return until
}

func lineOf(j *mJob) string {
	return fmt.Sprint(j.Units, needsOf(j.Tags), j.Unique, j.Type, j.Locks, j.Extras().Limits, j.Extras().Fair, j.Priority, j.MaxRuntime)
}

func (m *model) reserve() {
	m.keepCapacity()
	m.keepWorker()
}

// keepWorker keeps the worker that has the fewest leases for the first job that wants one with none.
func (m *model) keepWorker() {
	if j := m.host; j != nil {
		switch w := m.workers[m.hosting]; {
		case m.now.Mono >= m.hosted+m.cfg.ReserveLimit:
			m.host, m.hostRest = nil, m.now.Mono+m.cfg.ReserveLimit
		case j.state != jobs.Queued || !j.runnable || !j.open || m.now.Mono >= w.at+jobs.SeenFor || !m.alone(w, j):
			m.host = nil
		}
	}
	if m.host != nil || m.cfg.ReserveAfter < 0 || m.now.Mono < m.hostRest {
		return
	}
	seen := map[string]bool{}
	for _, j := range m.queue() {
		head := !seen[j.line]
		seen[j.line] = true
		if !head || m.now.Mono < plus(max(j.ready, j.opened), m.cfg.ReserveAfter) || j != m.reserved && (j.Units > m.free() || !m.behind(j)) {
			continue
		}
		least, leases, taken := "", 0, false
		for name, w := range m.workers {
			if w.by == nil || w.at+jobs.SeenFor <= m.now.Mono || !m.alone(w, j) {
				continue
			}
			n := 0
			for _, l := range m.leases {
				if l.worker == name {
					n++
				}
			}
			if w.asked+jobs.SeenFor <= m.now.Mono { // as if it had more leases than any
				n += 1_000_000
			}
			taken = taken || m.could(w.by, j) && (!j.Unique || m.idle(name))
			if least == "" || n < leases || n == leases && name < least {
				least, leases = name, n
			}
		}
		if least != "" && !taken && !m.idle(least) {
			m.host, m.hosting, m.hosted = j, least, m.now.Mono
			return
		}
	}
	m.hostRest = m.now.Mono + hostRetry
}

// alone reports whether the worker could take the job if it had no lease.
func (m *model) alone(w *mSeen, j *mJob) bool {
	by := *w.by
	by.MaxUnits = w.most
	return m.could(&by, j)
}

// kept reports whether the worker is kept for a job that is before this one.
func (m *model) kept(worker string, j *mJob) bool {
	h := m.host
	return h != nil && m.hosting == worker && (h.ord < j.ord || h.ord == j.ord && h.seq < j.seq)
}

func (m *model) keepCapacity() {
	m.keepLocks()
	if j := m.reserved; j != nil {
		switch {
		case j.state != jobs.Queued || !j.runnable || !j.open:
			m.reserved = nil
		case m.now.Mono >= m.since+m.cfg.ReserveLimit:
			m.reserved, m.rest = nil, m.now.Mono+m.cfg.ReserveLimit
		case m.taker(j) <= m.now.Mono:
			m.reserved = nil
		}
	}
	if m.reserved != nil || m.now.Mono < m.rest || m.cfg.ReserveAfter < 0 {
		return
	}
	seen := map[string]bool{}
	for _, j := range m.queue() {
		head := !seen[j.line]
		seen[j.line] = true
		if head && j.Units > m.free() && j.Units <= m.cfg.Total-m.cfg.Reserve && m.taker(j) > m.now.Mono &&
			m.now.Mono >= plus(max(j.ready, j.opened), m.cfg.ReserveAfter) {
			m.reserved, m.since = j, m.now.Mono
			return
		}
	}
}

// behind reports whether the job may start although it stands behind one with a reservation.
func (m *model) behind(j *mJob) bool {
	r := m.reserved
	if r == nil || r == j || j.ord < r.ord || j.ord == r.ord && j.seq < r.seq {
		return true
	}
	have := m.free()
	at := m.now.Mono
	leases := slices.DeleteFunc(slices.Clone(m.leases), func(l *mLease) bool { return l.runUntil == Never })
	for have < r.Units {
		first := Never
		for _, l := range leases {
			first = min(first, l.runUntil)
		}
		if first == Never {
			return false
		}
		at = first
		leases = slices.DeleteFunc(leases, func(l *mLease) bool {
			if l.runUntil == at {
				have += l.job.Units
			}
			return l.runUntil == at
		})
	}
	return j.Units <= have-r.Units || j.MaxRuntime > 0 && m.now.Mono+j.MaxRuntime <= at
}

func (m *model) match() {
	for again := true; again; {
		again = false
		m.reserve()
		if m.draining {
			return
		}
		var next *mJob
		keyed := slices.ContainsFunc(m.jobs, func(j *mJob) bool { return m.inLine(j) && j.Extras().Fair != "" })
		classes := map[jobs.Priority]*mJob{}
		for _, j := range m.queue() {
			if j.Units > m.free() || !m.behind(j) || m.first(j) == nil {
				continue
			}
			was := classes[j.Priority]
			switch {
			case !keyed:
				next = cmp.Or(next, j)
			case j == m.reserved:
				next = j
			case was == nil || m.served[j.turn()] < m.served[was.turn()]:
				classes[j.Priority] = j
			}
		}
		for _, j := range m.queue() {
			if classes[j.Priority] == j {
				next = cmp.Or(next, j)
			}
		}
		if next != nil {
			m.grant(m.first(next), next)
			again = true
		}
	}
}

// first returns the request that the job goes to.
func (m *model) first(j *mJob) *mWait {
	var ahead *mWait
	for _, w := range m.waits {
		if w.ask == nil || !m.takes(w.ask, j) || j.Unique && !m.idle(w.ask.WorkerID) || m.kept(w.ask.WorkerID, j) {
			continue
		}
		if !w.ask.Ahead {
			return w
		}
		if m.mayAhead(w.ask) {
			ahead = cmp.Or(ahead, w)
		}
	}
	return ahead
}

// mayAhead reports whether the first job that its worker could take is one that may wait.
func (m *model) mayAhead(by *Request) bool {
	for _, j := range m.queue() {
		if j.Units <= m.free() && m.behind(j) && m.could(by, j) {
			return m.takes(by, j)
		}
	}
	return false
}

func (m *model) grant(w *mWait, j *mJob) {
	if j.attempt++; j.attempt == 1 && len(j.Extras().After) > 0 {
		j.readyWall = m.now.Wall.Add(j.ready - m.now.Mono).Truncate(time.Millisecond)
	}
	j.token++
	j.state, j.code = jobs.Leased, ""
	l := &mLease{
		id: w.ask.LeaseID, worker: w.ask.WorkerID, request: w.ask.RequestID, job: j, issued: m.now.Wall,
		shown: m.now.Wall.Add(m.cfg.TTL + m.cfg.Grace), expires: m.now.Mono + m.cfg.TTL + m.cfg.Grace, runUntil: Never, asked: w.ask.Ahead, ahead: w.ask.Ahead,
	}
	if j.MaxRuntime > 0 {
		l.runUntil = m.now.Mono + j.MaxRuntime
	}
	j.lease = l
	m.virtual[j.Priority] = max(m.virtual[j.Priority], m.served[j.turn()])
	m.served[j.turn()] = m.virtual[j.Priority] + int64(j.Units)
	m.joins[j.Priority] = m.served[j.turn()]
	m.leases = append(m.leases, l)
	for name, limit := range j.Extras().Limits {
		if limit.Starts > 0 {
			until := max(m.rates[name].until, m.now.Mono) + limit.Every()
			m.rates[name] = mRate{until, m.now.Wall.Add(until - m.now.Mono), until - m.now.Mono}
		}
	}
	m.events[jobs.EventGrant]++
	m.settle(w, m.granted(l, j.token, j.attempt))
	m.reopen()
}

func (m *model) snapshot() jobs.Snapshot {
	s := jobs.Snapshot{Total: m.cfg.Total, Usable: m.cfg.Total - m.cfg.Reserve, ActiveLeases: len(m.leases), Draining: m.draining}
	for _, l := range m.leases {
		s.Leased += l.job.Units
	}
	s.Available = max(0, s.Usable-s.Leased)
	for _, j := range m.jobs {
		if j.state == jobs.Queued {
			*map[jobs.Priority]*int{jobs.High: &s.Queue.High, jobs.Normal: &s.Queue.Normal, jobs.Low: &s.Queue.Low, jobs.Background: &s.Queue.Background}[j.Priority]++
		}
	}
	return s
}

func (m *model) denial(w *mWait) (string, time.Duration) {
	if m.snapshot().Queue.Sum() == 0 {
		return jobs.DeniedEmpty, 1500 * time.Millisecond
	}
	code := jobs.DeniedEligible
	for _, j := range m.queue() {
		if m.takes(w.ask, j) && (!j.Unique || m.idle(w.ask.WorkerID)) {
			code = jobs.DeniedCapacity
		}
	}
	next := Never
	for _, l := range m.leases {
		next = min(next, l.expires-m.now.Mono, l.runUntil-m.now.Mono)
	}
	for _, j := range m.jobs {
		if j.state == jobs.Queued && !j.runnable && m.obstacle(j) == "" {
			if j.wallDue.IsZero() {
				next = min(next, j.monoDue-m.now.Mono)
			} else {
				next = min(next, j.wallDue.Sub(m.now.Wall))
			}
		}
		if j.state == jobs.Scheduled {
			next = min(next, j.readyWall.Sub(m.now.Wall))
		}
		_, left := m.rateOf(j)
		if j.state == jobs.Queued && j.runnable && !m.frozen[""] && !m.frozen[j.Type] && m.lockOf(j) == "" && !m.yields(j) && left > 0 {
			next = min(next, left)
		}
	}
	if next == Never {
		return code, 1500 * time.Millisecond
	}
	next = min(max(next, 0), 5*time.Second)
	next += time.Duration(float64(next) * 0.2 * w.ask.Jitter)
	return code, min(max(next, 250*time.Millisecond), 5*time.Second).Truncate(time.Millisecond)
}

func (m *model) waitingFor(j *mJob) string {
	switch {
	case j.state != jobs.Queued:
		return ""
	case m.frozen[""] || m.frozen[j.Type]:
		return "frozen"
	case m.obstacle(j) != "":
		return "after:" + m.obstacle(j)
	case !j.runnable:
		return "run_at"
	case m.lockOf(j) != "":
		return "lock:" + m.lockOf(j)
	case m.yields(j):
		return "reserved_for:" + m.claimant.id
	case m.closed(j):
		name, _ := m.rateOf(j)
		return "rate:" + name
	case m.taker(j) <= m.now.Mono:
		return "no_worker"
	case j.Units > m.free():
		return "capacity"
	case !m.behind(j):
		return "reserved_for:" + m.reserved.id
	}
	if j.Unique {
		for name, w := range m.workers {
			if w.by != nil && w.at+jobs.SeenFor > m.now.Mono && m.could(w.by, j) && m.idle(name) {
				return m.noWorker(j)
			}
		}
		return "unique"
	}
	return m.noWorker(j)
}

// noWorker says why nobody who asks was granted the job.
func (m *model) noWorker(j *mJob) string {
	for _, w := range m.waits {
		if w.ask != nil && m.kept(w.ask.WorkerID, j) && m.could(m.workers[m.hosting].by, j) {
			return "reserved_for:" + m.host.id
		}
	}
	return "no_worker"
}

// backoff is how long a job waits before it is tried again.
func (m *model) backoff(j *mJob) time.Duration {
	return time.Duration(math.Min(float64(j.RetryBackoff)*math.Pow(2, float64(j.attempt-1)), float64(jobs.MaxBackoff)))
}

// restart forgets what no store keeps. running says which jobs were stored as running.
func (m *model) restart(now Instant, running map[string]bool) {
	m.now = Instant{Wall: now.Wall.UTC().Truncate(time.Millisecond), Mono: now.Mono}
	m.offset, m.clockAt = m.now.Wall.Sub(time.Unix(0, 0))-now.Mono, now.Mono
	m.served, m.virtual, m.joins = map[string]int64{}, map[jobs.Priority]int64{}, map[jobs.Priority]int64{}
	m.waits, m.workers, m.reserved, m.rest, m.claimant, m.lockRest, m.search, m.host, m.hostRest = nil, map[string]*mSeen{}, nil, 0, nil, 0, 0, nil, 0
	for _, l := range m.leases {
		m.heard(l.worker, nil)
		l.expires = now.Mono + m.cfg.TTL + m.cfg.Grace
		if s := m.now.Wall.Add(m.cfg.TTL + m.cfg.Grace); s.After(l.shown) {
			l.shown = s
		}
		if l.runUntil != Never {
			l.runUntil = max(now.Mono+l.issued.Add(l.job.MaxRuntime).Sub(m.now.Wall), l.expires)
		}
		if l.job.state == jobs.Running && !running[l.job.id] {
			l.job.state, l.ahead = jobs.Leased, l.asked
			m.events[jobs.EventRunning]--
		}
	}
	for name, r := range m.rates {
		m.rates[name] = mRate{now.Mono + max(min(r.wall.Sub(m.now.Wall), r.left), 0), r.wall, r.left}
	}
	for _, k := range m.keys {
		k.until = now.Mono + min(k.wall.Sub(m.now.Wall), jobs.KeyLife)
	}
	for _, a := range m.answered {
		a.until = now.Mono + min(a.wall.Sub(m.now.Wall), jobs.RequestLife)
	}
	for _, j := range m.jobs {
		if j.state != jobs.Queued {
			continue
		}
		ahead := j.readyWall.Sub(m.now.Wall)
		if j.attempt == 0 && !j.RunAt.Truncate(time.Millisecond).After(m.now.Wall) { // its time had come, also if the clock was set back
			ahead = min(ahead, 0)
		}
		if j.attempt > 0 {
			ahead = min(ahead, m.backoff(j))
		}
		j.runnable = ahead <= 0 && m.obstacle(j) == ""
		switch {
		case m.obstacle(j) != "":
		case j.runnable:
			if j.ready = now.Mono; len(j.Extras().After) == 0 {
				j.ready += ahead
			}
			m.newlyIn(j)
		case j.attempt == 0:
			j.wallDue, j.monoDue = j.readyWall, 0
		default:
			j.wallDue, j.monoDue = time.Time{}, now.Mono+ahead
		}
	}
}
