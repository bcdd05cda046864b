//go:build unix

package replicas_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/worker"
	"github.com/lokt-dev/lokt/lokttest"
)

func contextWithin(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// thorough reports whether more is to be played than plain go test does.
func thorough() bool { return os.Getenv("LOKT_FAULT_TIME") != "" || os.Getenv("LOKT_SOAK") != "" }

// together lets the test run beside others, unless it is a thorough run, whose load is the machine's.
func together(t *testing.T) {
	if !thorough() {
		t.Parallel()
	}
}

// crowdSize is how many contenders, clients and workers there are of each.
func crowdSize() int {
	if thorough() {
		return 8
	}
	return 4
}

// faultTime is how long faults are made: 10 s, two minutes where LOKT_SOAK is set, or what LOKT_FAULT_TIME says.
func faultTime(t *testing.T) time.Duration {
	t.Helper()
	s := os.Getenv("LOKT_FAULT_TIME")
	switch {
	case s == "" && os.Getenv("LOKT_SOAK") != "":
		return 2 * time.Minute
	case s == "":
		return 10 * time.Second
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// system is what a test is about: replicas on a store, and how to hurt that.
type system struct {
	replicas []*replica
	hurt     []func() (what string, err error) // the store, and let it recover
	jobs     bool
	dice     *rand.Rand // which faults are made, and for how long; nothing else is decided by the seed
}

// dice are those of LOKT_SEED, or of chance.
func dice(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	if s := os.Getenv("LOKT_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("LOKT_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// pause waits for at most so long.
func (s *system) pause(most time.Duration) { time.Sleep(time.Duration(s.dice.Int64N(int64(most)))) }

// counted tells programs what was injected, or checked, and how often.
func counted(t *testing.T, what string, counts map[string]int) {
	t.Helper()
	b, err := json.Marshal(counts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("counted %s: %s", what, b)
}

// Promises S-1, S-4, S-12, S-13, S-14, S-27, S-68.
func TestReplicasOnPostgreSQLUnderFaults(t *testing.T) {
	together(t)
	if testing.Short() {
		t.Skip("takes half a minute and more")
	}
	pg := servers.NeedPostgres(t)
	s := &system{jobs: true, dice: dice(t)}
	clock, err := newClock(pg)
	if err != nil {
		t.Fatal(err)
	}
	s.hurt = []func() (string, error){
		func() (string, error) { return "PostgreSQL is killed", pg.Crash() },
		func() (string, error) {
			return "PostgreSQL's backends are ended", pg.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lokt'")
		},
		func() (string, error) {
			return "PostgreSQL's clock is set forward", clock.step(13*time.Second + time.Duration(s.dice.Int64N(int64(time.Hour))))
		},
		func() (string, error) {
			return "PostgreSQL's clock is set back", clock.step(-time.Duration(s.dice.Int64N(int64(2 * time.Second))))
		},
		func() (string, error) {
			by := 11*time.Second + time.Duration(s.dice.Int64N(int64(time.Hour)))
			back := clock.step(-by)
			s.pause(3 * time.Second)
			return "PostgreSQL's clock is wrong for a while", errors.Join(back, clock.step(by))
		},
	}
	for range 3 {
		s.replicas = append(s.replicas, startReplica(t, []string{pg.Addr}, func(a []string) []string {
			return []string{"--store", pg.URL(a[0], clock.path)}
		}))
	}
	s.survive(t)
}

// Promises S-1, S-4, S-12, S-13, S-14, S-68.
func TestReplicasOnPostgreSQLThatFailsOverUnderFaults(t *testing.T) {
	together(t)
	if !thorough() {
		t.Skip("takes a minute and more: set LOKT_FAULT_TIME")
	}
	pair := startPair(t)
	s := &system{jobs: true, dice: dice(t)}
	for range 3 {
		s.replicas = append(s.replicas, startReplica(t, []string{pair.primary.addr}, func(a []string) []string {
			return []string{"--store", pair.URL(a[0], "lokt")}
		}))
	}
	s.hurt = []func() (string, error){func() (string, error) {
		return "PostgreSQL fails over to its standby", pair.failOver(t, func(addr string) {
			for _, r := range s.replicas {
				r.back[0].To(addr)
			}
		})
	}}
	s.survive(t)
}

func TestReplicasOnEtcdUnderFaults(t *testing.T) {
	together(t)
	if testing.Short() {
		t.Skip("takes half a minute and more")
	}
	schema := shared.Schema(t) // of a PostgreSQL which etcd leaves jobs to
	cluster := startEtcd(t)
	s := &system{jobs: true, dice: dice(t)}
	s.hurt = []func() (string, error){
		func() (string, error) {
			m := cluster.leader(t)
			m.signal(syscall.SIGSTOP)
			s.pause(2 * lockTTL)
			m.signal(syscall.SIGCONT)
			return "etcd's leader stands still", nil
		},
		func() (string, error) {
			m := cluster.leader(t)
			m.kill()
			s.pause(2 * time.Second)
			return "etcd's leader is killed", m.start(t)
		},
		func() (string, error) {
			two := []*process{cluster.leader(t)}
			two = append(two, cluster.members[(slices.Index(cluster.members, two[0])+1)%len(cluster.members)])
			for _, m := range two {
				m.kill()
			}
			s.pause(2 * lockTTL)
			var both sync.WaitGroup // one is not ready without the other
			errs := make([]error, 2)
			for i, m := range two {
				both.Go(func() { errs[i] = m.start(t) })
			}
			both.Wait()
			return "etcd loses its quorum", errors.Join(errs...)
		},
	}
	for range 3 {
		s.replicas = append(s.replicas, startReplica(t, append(slices.Clone(cluster.clients), shared.Addr), func(a []string) []string {
			members := a[:len(cluster.clients)]
			return []string{"--store", "etcd://" + strings.Join(members, ",") + "/lokt", "--jobs-store", shared.URL(a[len(members)], schema)}
		}))
	}
	s.survive(t)
}

// survive runs contenders, histories and jobs while faults are made, and then checks that nobody was told anything wrong and
// that everything can be had again.
func (s *system) survive(t *testing.T) {
	d := newDetector()
	names := []string{"left", "right"}
	var crowd []*contender
	for i := range crowdSize() {
		crowd = append(crowd, startContender(t, d, fmt.Sprint("c", i), urls(s.replicas), names...))
	}
	// One client reaches the replicas through proxies of its own, so that it can be cut off from all of them.
	var own []string
	var lonely []*servers.Proxy
	for _, r := range s.replicas {
		p := servers.NewProxy(t, r.front.Addr())
		lonely = append(lonely, p)
		own = append(own, "http://"+p.Addr())
	}
	histories := s.record(t, []string{urls(s.replicas), strings.Join(own, ",")})
	var work *workload
	if s.jobs {
		work = startJobs(t, []string{urls(s.replicas), strings.Join(own, ",")})
	}

	made := s.faults(t, d, lonely, crowd, func(i int) *contender {
		return startContender(t, d, fmt.Sprint("d", i), urls(s.replicas), names...)
	})
	counted(t, "injected", made)

	for _, c := range crowd {
		c.end()
	}
	s.obtainable(t, names)
	histories(t)
	if work != nil {
		work.finish(t)
	}
	for _, s := range d.judge() {
		t.Error(s)
	}
	counted(t, "checked", map[string]int{
		"leases of contenders": len(d.all), "uses under a lease": d.uses, "losses told": d.lost, "late uses refused by their token": d.fenced,
	})
	if len(d.all) < 10 || d.uses < 100 || d.lost == 0 || d.fenced == 0 {
		t.Error("too little happened to put anything to the test")
	}
}

// faults makes one fault after the other until the time is up, with all kinds in a thorough run, heals everything, and returns how many
// of each it made.
func (s *system) faults(t *testing.T, d *detector, lonely []*servers.Proxy, crowd []*contender, another func(int) *contender) map[string]int {
	made := map[string]int{}
	restart := func(r *replica) {
		for end := time.Now().Add(patience); ; {
			err := r.restart(t)
			if err == nil {
				return
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	late := func() string {
		// Until one is stopped while it uses what a lock is for, and another gets that lock: one that was giving it back is
		// told of no loss.
		lost, fenced := d.late()
		happened := func() bool {
			l, f := d.late()
			return l > lost && f > fenced
		}
		for end := time.Now().Add(2 * patience); time.Now().Before(end) && !happened(); {
			who := d.holder()
			i := slices.IndexFunc(crowd, func(c *contender) bool { return c.who == who })
			if i >= 0 {
				_ = crowd[i].cmd.Process.Signal(syscall.SIGSTOP)
				time.Sleep(20 * time.Millisecond) // for what it said before
				still := d.holder() == who
				if still {
					time.Sleep(lockTTL + 2*time.Second)
				}
				_ = crowd[i].cmd.Process.Signal(syscall.SIGCONT)
				for told := time.Now().Add(2 * time.Second); still && !happened() && time.Now().Before(told); {
					time.Sleep(10 * time.Millisecond)
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		return "a holder stands still for longer than its lock lasts"
	}
	kinds := []func() string{
		late,
		func() string {
			r := s.replicas[s.dice.IntN(len(s.replicas))]
			r.kill()
			s.pause(2 * time.Second)
			restart(r)
			return "a replica is killed"
		},
		func() string {
			r := s.replicas[s.dice.IntN(len(s.replicas))]
			r.signal(syscall.SIGSTOP)
			s.pause(5 * time.Second)
			r.signal(syscall.SIGCONT)
			return "a replica stands still"
		},
		func() string {
			r := s.replicas[s.dice.IntN(len(s.replicas))]
			for _, p := range r.back {
				p.Hole()
			}
			s.pause(5 * time.Second)
			r.heal()
			return "a replica is cut off from the store"
		},
		func() string {
			r := s.replicas[s.dice.IntN(len(s.replicas))]
			for _, p := range append(slices.Clone(r.back), r.front) {
				p.Delay(time.Duration(s.dice.IntN(100)) * time.Millisecond)
			}
			s.pause(3 * time.Second)
			r.heal()
			return "a replica is slow"
		},
		func() string {
			r := s.replicas[s.dice.IntN(len(s.replicas))]
			r.front.Cut()
			for _, p := range r.back {
				p.Cut()
			}
			return "connections break"
		},
		func() string {
			for _, p := range lonely {
				if s.dice.IntN(2) == 0 {
					p.Hole()
				} else {
					p.Refuse()
				}
			}
			s.pause(5 * time.Second)
			for _, p := range lonely {
				p.Heal()
			}
			return "a client is cut off from all replicas"
		},
		func() string {
			c := crowd[s.dice.IntN(len(crowd))]
			_ = c.cmd.Process.Signal(syscall.SIGSTOP)
			s.pause(2 * lockTTL)
			_ = c.cmd.Process.Signal(syscall.SIGCONT)
			return "a contender stands still"
		},
		func() string {
			i := s.dice.IntN(len(crowd))
			_ = crowd[i].cmd.Process.Kill()
			crowd[i].end()
			total := 0
			for _, n := range made {
				total += n
			}
			crowd[i] = another(total)
			return "a contender is killed"
		},
	}
	for _, hurt := range s.hurt {
		kinds = append(kinds, func() string {
			what, err := hurt()
			if err != nil {
				t.Fatal(what, err)
			}
			return what
		})
	}
	end := time.Now().Add(faultTime(t))
	for round := 0; time.Now().Before(end) || thorough() && round < len(kinds); round++ {
		if round%len(kinds) == 0 {
			s.dice.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		}
		what := kinds[round%len(kinds)]()
		made[what]++
		s.pause(time.Second)
	}
	if lost, fenced := d.late(); lost == 0 || fenced == 0 {
		made[late()]++
	}
	for _, r := range s.replicas {
		r.heal()
	}
	for _, p := range lonely {
		p.Heal()
	}
	return made
}

// obtainable checks that every lock can be had soon, now that nothing fails any more.
func (s *system) obtainable(t *testing.T, names []string) {
	t.Helper()
	c, err := httpapi.New(urls(s.replicas), httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := contextWithin(t, patience)
	defer cancel()
	for _, name := range names {
		begun := time.Now()
		h, err := c.Acquire(ctx, lokt.Claim{
			Name: name, LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "afterwards"}, Strict: true, TTL: lockTTL, Wait: patience,
		})
		if err != nil {
			t.Errorf("%s cannot be had after the faults: %v", name, err)
			continue
		}
		took := time.Since(begun)
		t.Logf("%s was to be had %v after the faults", name, took.Round(time.Millisecond))
		if limit := lockTTL + 2*time.Second + stretch; took > limit {
			t.Errorf("%s was to be had only after %v", name, took)
		}
		if _, err := c.Release(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID}); err != nil {
			t.Error(err)
		}
	}
}

// stretch is what a busy machine may add to a time that is promised.
const stretch = 20 * time.Second

// record lets eight clients acquire, renew and release locks without pause, and returns what ends them and checks that their
// histories can be explained.
func (s *system) record(t *testing.T, reach []string) func(*testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	var recorders []*lokttest.Recorder
	clients := crowdSize()
	shared := make([]*httpapi.Client, 0, clients)
	for i := range clients {
		c, err := httpapi.New(reach[i%len(reach)], httpapi.ClientOptions{Attempt: 2 * time.Second, Patience: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		shared = append(shared, c)
	}
	var answered atomic.Int64
	wg.Go(func() {
		for episode := 0; ctx.Err() == nil; episode++ {
			hub := &hub{}
			r := lokttest.NewRecorder(hub)
			r.Slack = 300 * time.Millisecond // the replicas' clocks are one, but this process may be late to look at its own
			mu.Lock()
			recorders = append(recorders, r)
			mu.Unlock()
			name := fmt.Sprint("history-", episode)
			end := time.Now().Add(4 * time.Second)
			var turn sync.WaitGroup
			for i := range clients {
				turn.Go(func() {
					for n := 0; time.Now().Before(end) && ctx.Err() == nil && r.Len() < 120; n++ {
						scramble(hub.as(ctx, shared[i]), r, name, fmt.Sprintf("client-%d-%d", i, n))
						answered.Add(1)
					}
				})
			}
			turn.Wait()
		}
	})
	return func(t *testing.T) {
		t.Helper()
		for end := time.Now().Add(patience); answered.Load() < 50 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		} // a slow machine makes fewer in the same time
		stop()
		wg.Wait()
		for _, c := range shared {
			_ = c.Close()
		}
		for _, r := range recorders {
			if err := r.Check(2 * time.Minute); err != nil {
				t.Error(err)
			}
		}
		counted(t, "checked", map[string]int{"histories explained": len(recorders), "turns in histories": int(answered.Load())})
		if answered.Load() < 50 {
			t.Errorf("only %d turns", answered.Load())
		}
	}
}

// hub is a service that asks the client that the context names, so that one recorder sees many clients.
type hub struct{ lokt.Service }

type clientKey struct{}

func (*hub) as(ctx context.Context, c *httpapi.Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

func (*hub) client(ctx context.Context) *httpapi.Client {
	return ctx.Value(clientKey{}).(*httpapi.Client)
}

func (h *hub) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	return h.client(ctx).Acquire(ctx, c)
}

func (h *hub) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	return h.client(ctx).Renew(ctx, r)
}

func (h *hub) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	return h.client(ctx).Release(ctx, t)
}

// scramble takes a lock, if it can be had soon, renews it now and then, and gives it back or forgets it.
func scramble(ctx context.Context, r *lokttest.Recorder, name, who string) {
	owner := lokt.Owner{ID: who}
	h, err := r.Acquire(ctx, lokt.Claim{
		Name: name, LeaseID: lokt.NewLeaseID(), Owner: owner, Strict: true, TTL: 2 * time.Second,
		Wait: time.Duration(rand.IntN(2)) * time.Second,
	})
	if err != nil {
		time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
		return
	}
	for range rand.IntN(3) {
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		if _, err := r.Renew(ctx, lokt.Renewal{Name: name, LeaseID: h.LeaseID}); err != nil {
			return
		}
	}
	if rand.IntN(10) > 0 {
		_, _ = r.Release(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: owner})
	}
}

// workload is jobs that are submitted and done while faults are made.
type workload struct {
	stop     context.CancelFunc
	submits  sync.WaitGroup
	works    sync.WaitGroup
	clients  []*httpapi.JobsClient
	mu       sync.Mutex
	accepted []string                          // jobs whose submission was acknowledged
	doing    map[string]map[uint64]*worker.Run // by job and token: attempts that are under way
	inside   map[string]map[holder]string      // by lock: who was told that it holds it
	twice    []string
	attempts int
	locked   int // how often a lock was held
}

func startJobs(t *testing.T, reach []string) *workload {
	ctx, stop := context.WithCancel(t.Context())
	w := &workload{stop: stop, doing: map[string]map[uint64]*worker.Run{}, inside: map[string]map[holder]string{}}
	client := func(i int) (*httpapi.JobsClient, *httpapi.Client) {
		both, err := httpapi.New(reach[i%len(reach)], httpapi.ClientOptions{Attempt: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		c := both.Jobs()
		w.clients = append(w.clients, c)
		return c, both
	}
	for i := range 2 {
		c, both := client(i)
		k, err := lokt.NewLocker(both, lokt.Owner{ID: fmt.Sprint("outsider-", i)}, lokt.LockerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.submits.Go(func() { w.contend(ctx, k, fmt.Sprint("of-jobs-", i)) })
		w.submits.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				spec := jobs.NewSpec()
				spec.MaxAttempts = 50
				spec.RetryBackoff = 100 * time.Millisecond
				spec.IdempotencyKey = fmt.Sprintf("key-%d-%d", i, n)
				if n%4 == 0 {
					spec.Locks = []string{fmt.Sprint("of-jobs-", rand.IntN(3)), "of-jobs-3"}[:1+rand.IntN(2)]
				}
				if got, err := c.Submit(ctx, []jobs.Spec{spec}); err == nil {
					w.mu.Lock()
					w.accepted = append(w.accepted, got[0].JobID)
					w.mu.Unlock()
				}
				time.Sleep(400 * time.Millisecond / time.Duration(crowdSize()))
			}
		})
	}
	working, rest := context.WithCancel(t.Context())
	for i := range crowdSize() {
		c, _ := client(i)
		worker, err := worker.NewWorker(c, w.work, worker.WorkerOptions{ID: fmt.Sprint("worker-", i), Concurrency: 2, Wait: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		w.works.Go(func() {
			if err := worker.Run(working); err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	submits := w.stop
	w.stop = func() { submits(); w.submits.Wait() }
	t.Cleanup(func() { w.stop(); rest(); w.works.Wait() })
	return w
}

// holder is an attempt or a lease. It has no error as long as it may rely on its locks.
type holder interface{ Err() error }

// enter notes that a lock was granted, and who else thinks that it holds it. The workload is locked.
func (w *workload) enter(lock string, h holder, what string) {
	for other, its := range w.inside[lock] {
		if other.Err() == nil {
			w.twice = append(w.twice, fmt.Sprintf("lock %s is held by %s, and by %s", lock, what, its))
		}
	}
	if w.inside[lock] == nil {
		w.inside[lock] = map[holder]string{}
	}
	w.inside[lock][h] = what
	w.locked++
}

// contend takes a lock of jobs from outside, again and again.
func (w *workload) contend(ctx context.Context, k *lokt.Locker, lock string) {
	for ctx.Err() == nil {
		l, err := k.Acquire(ctx, lock, lokt.Options{TTL: lockTTL, Wait: time.Second})
		if err == nil {
			w.mu.Lock()
			w.enter(lock, l, fmt.Sprintf("an outsider with token %d", l.Token()))
			w.mu.Unlock()
			time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
			w.mu.Lock()
			delete(w.inside[lock], l)
			w.mu.Unlock()
			_ = l.Release(ctx)
		}
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
	}
}

// work does a job: it notes while it may rely on its lease that it does so.
func (w *workload) work(ctx context.Context, r *worker.Run) (any, error) {
	w.mu.Lock()
	w.attempts++
	on := w.doing[r.Job.ID]
	if on == nil {
		on = map[uint64]*worker.Run{}
		w.doing[r.Job.ID] = on
	}
	for token, other := range on {
		if other.Err() == nil { // it would go on
			w.twice = append(w.twice, fmt.Sprintf("job %s is done by token %d while %d thinks it is on it", r.Job.ID, r.Token(), token))
		}
	}
	on[r.Token()] = r
	for _, name := range r.Job.Locks {
		w.enter(name, r, fmt.Sprintf("job %s with token %d", r.Job.ID, r.LockToken(name)))
	}
	w.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(rand.IntN(400)) * time.Millisecond):
	}
	w.mu.Lock()
	delete(on, r.Token())
	for _, name := range r.Job.Locks {
		delete(w.inside[name], r)
	}
	w.mu.Unlock()
	return nil, ctx.Err()
}

// finish checks that every job that was acknowledged gets done, by one worker at a time.
func (w *workload) finish(t *testing.T) {
	t.Helper()
	w.stop()
	w.mu.Lock()
	accepted := slices.Clone(w.accepted)
	w.mu.Unlock()
	end := time.Now().Add(2 * patience)
	for _, id := range accepted {
		for {
			v, err := w.clients[0].Get(t.Context(), id)
			if err == nil && v.Job.State == jobs.Completed {
				break
			}
			if errors.Is(err, jobs.ErrJobNotFound) || err == nil && v.Job.State.Ended() || time.Now().After(end) {
				t.Errorf("acknowledged job %s: %v, %v", id, v.Job.State, err)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.twice {
		t.Error(s)
	}
	counted(t, "checked", map[string]int{"jobs acknowledged and done": len(accepted), "attempts at jobs": w.attempts, "locks held": w.locked})
	if len(accepted) < 20 || w.locked < 10 {
		t.Errorf("only %d jobs, with %d locks", len(accepted), w.locked)
	}
}
