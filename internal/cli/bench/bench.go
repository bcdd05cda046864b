// Package bench measures what locks cost where they are kept: on the disk of lock files, or on a server. It is linked into a
// program of its own, which lokt runs. What a verdict compares was measured in the same run, in turns.
package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/jobs"
)

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{{Name: "bench", Build: newBench, Place: app.Anywhere}}
}

// Main runs the command line of this process and returns its exit code.
func Main(args []string) int { return app.Main(Commands(), args[1:]) }

// Tree returns the command, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System()).Tree(nil) }

const (
	rounds   = 3                // of all probes, so that what is compared is measured in the same seconds
	several  = 16               // at a time
	patience = 30 * time.Second // beyond --time, for what is under way to end
)

// bench is a run: in a directory of its own beside the locks of the user, or on a server.
type bench struct {
	*app.App
	*app.Backend
	time    time.Duration
	name    string          // which those of the locks begin with
	ctx     context.Context // of all that is done, which a signal does not end
	dir     string          // empty on a server
	program string
	owner   lokt.Owner
	jobs    jobs.Service  // nil if they are not measured
	held    []lokt.Target // for heartbeats
}

func newBench(a *app.App) *cobra.Command {
	s := &bench{App: a, program: app.LookUp("lokt")}
	cmd := app.Plain("bench", func(*cobra.Command) error {
		if s.time <= 0 {
			return app.Usagef("--time %v is no time to measure in", s.time)
		} else if err := app.ValidNames(s.name); err != nil {
			return err
		}
		return s.run()
	})
	cmd.Flags().DurationVar(&s.time, "time", 10*time.Second, "how long to measure, in all; each is done three times at least")
	cmd.Flags().StringVar(&s.name, "name", "lokt-bench", "`PREFIX` of the names of the locks that are taken")
	return cmd
}

func (s *bench) run() (err error) {
	ctx, stop := guard.Notify().Context(context.Background())
	defer stop()
	var cancel func() // what is under way when a signal comes goes on to its end
	s.ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), s.time+patience)
	defer cancel()
	defer func() { // nothing is left behind
		for _, t := range s.held {
			_, e := s.Release(s.ctx, t)
			err = errors.Join(err, e)
		}
		err = errors.Join(err, os.RemoveAll(s.dir)) // of an empty name, nothing
	}()
	if err := s.open(); err != nil {
		return err
	}
	s.App.Tell("measuring locks %s for %v", s.Where(), s.time)
	probes := s.probes()
	for _, p := range slices.Repeat(probes, rounds) {
		err := p.turn(ctx, s.time/time.Duration(rounds*len(probes)))
		if signal, ok := errors.AsType[*guard.SignalError](context.Cause(ctx)); ok {
			return app.Exit(signal.Code())
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.what, err)
		}
	}
	return s.tell(probes)
}

// open finds the place, and out whether what is measured may be done there.
func (s *bench) open() (err error) {
	s.name += "-" + strings.ToLower(rand.Text()[:8])
	if len(s.ServerURLs()) == 0 {
		root, err := s.FindRoot()
		for at := root.Path; err == nil && s.dir == ""; at = filepath.Dir(at) { // or the nearest above that is there
			if s.dir, err = os.MkdirTemp(at, ".bench-"); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		}
		if err != nil {
			return err
		}
		s.RootFlag = s.dir
	}
	if s.Backend, err = s.App.Backend(); err != nil {
		return err
	}
	if s.owner, err = s.Claimant(s.Backend); err != nil {
		return err
	}
	for i := range several {
		t, err := s.acquire(fmt.Sprint("beat-", i), true)
		if err != nil {
			return err
		}
		s.held = append(s.held, t)
	}
	if _, err := s.Get(s.ctx, s.held[0].Name); err != nil || s.Far == nil {
		return err
	}
	s.jobs = s.Far.Jobs()
	if _, err := s.job(0); err != nil {
		s.App.Tell("jobs are not measured: %v", err)
		s.jobs = nil
	}
	return nil
}

// probe is something that is done again and again, by so many at a time.
type probe struct {
	name, what string
	atOnce     int
	do         func(i int) (from time.Time, err error) // what it did before does not count
	took       []time.Duration
	lasted     time.Duration

	perSecond, median, p99, slowest float64 // in milliseconds
}

// turn does it for so long, and at least once.
func (p *probe) turn(ctx context.Context, d time.Duration) error {
	var all sync.WaitGroup
	took, errs, begun := make([][]time.Duration, p.atOnce), make([]error, p.atOnce), time.Now()
	for i := range p.atOnce {
		all.Go(func() {
			for errs[i] == nil && (took[i] == nil || ctx.Err() == nil && time.Since(begun) < d) {
				from, err := p.do(i)
				took[i], errs[i] = append(took[i], time.Since(from)), err
			}
		})
	}
	all.Wait()
	p.lasted += time.Since(begun)
	p.took = append(p.took, slices.Concat(took...)...)
	return errors.Join(errs...)
}

// tell writes what was measured, and what it means.
func (s *bench) tell(probes []*probe) error {
	rows, measured := [][]string{{"WHAT", "AT ONCE", "PER SECOND", "MEDIAN", "99 OF 100"}}, []map[string]any{}
	for _, p := range probes {
		slices.Sort(p.took)
		at := func(share float64) float64 {
			return float64(p.took[int(share*float64(len(p.took)-1))]) / float64(time.Millisecond)
		}
		p.perSecond, p.median, p.p99, p.slowest = float64(len(p.took))/p.lasted.Seconds(), at(0.5), at(0.99), at(1)
		rows = append(rows, []string{
			p.what, fmt.Sprint(p.atOnce), fmt.Sprintf("%.0f", p.perSecond), fmt.Sprintf("%.2f ms", p.median), fmt.Sprintf("%.2f ms", p.p99),
		})
		measured = append(measured, map[string]any{
			"name": p.name, "at_once": p.atOnce, "per_second": p.perSecond, "median_ms": p.median, "p99_ms": p.p99, "slowest_ms": p.slowest,
		})
	}
	verdicts := s.verdicts(probes)
	if s.JSON {
		return s.Print(map[string]any{"place": s.Where(), "time_sec": s.time.Seconds(), "measured": measured, "verdicts": verdicts})
	}
	return s.Write(app.Table(rows) + "\n" + strings.Join(verdicts, "\n\n") + "\n")
}

// verdicts says what the figures mean, by each other.
func (s *bench) verdicts(probes []*probe) (told []string) {
	by := map[string]*probe{}
	for _, p := range probes {
		by[p.name] = p
	}
	say := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	most := func(part, of float64, yes, no string) string {
		return map[bool]string{true: yes, false: no}[2*part > of]
	}
	gain := func(name string) string {
		all := by[name+"s"].perSecond
		return fmt.Sprintf("%d at a time are %.0f a second, %.1f times as many as one alone", several, all, all/by[name].perSecond)
	}
	lock, command, guarded, next := by["lock"].median, by["command"].median, by["guard"].median, by["hand-off"].median
	if s.Far == nil {
		fsync, lease := by["fsync"].median, by["lease"].median
		say("disk: your disk takes %.2f ms for an fsync. A lease of lokt lock, which outlives the loss of power, takes %.2f ms: %.1f fsyncs. %s",
			fsync, lease, lease/fsync, most(lease-lock, lease,
				"Most of it is the disk: use lokt guard where a process stands behind the lock. A disk that keeps its cache without power makes leases faster.",
				"Most of it is not the disk: a faster one would not be felt. Where an fsync costs nothing, as in memory, leases are lost with the power."))
		say("locks: a lock of lokt guard, which waits for no disk, takes %.2f ms; %s.", lock, gain("lock"))
	}
	for i, name := range []string{"lock", "job"} {
		if p := by[name]; s.Far != nil && p != nil {
			trips := float64(i+2) * by["round-trip"].median
			say("%ss: each takes %.2f ms, and its %d requests alone, with nothing to store, %.2f ms; %s. %s", name, p.median, i+2, trips, gain(name), most(trips, p.median,
				"Most of it is the way to the server: run clients nearer to it. A faster store would not be felt.",
				"Most of it is the server's store: with SQLite its disk, otherwise the commits of its database. Those that come at the same time share them."))
		}
	}
	slowest := max(by["heartbeat"].slowest, by["heartbeats"].slowest)
	say("heartbeats: the slowest took %.2f ms. A guard sends one every half TTL, so every TTL must be more than %.2f ms.", slowest, 2*slowest)
	say("guard: a command that takes %.2f ms takes %.2f ms more under lokt guard. %s", command, max(0, guarded-command),
		most(guarded-command, guarded, "Hold one lock around many commands that take less than that.", "The command takes most of it."))
	say("hand-off: the next lokt guard has run that command %.2f ms after a release. %s", next,
		most(command, next, "The command takes most of it.", "Most of it is lokt's, and the machine's."))
	return told
}

// probes returns what is measured here.
func (s *bench) probes() (all []*probe) {
	alone := func(name, what string, do func(i int) (time.Time, error)) {
		all = append(all, &probe{name: name, what: what, atOnce: 1, do: do})
	}
	both := func(name, what string, do func(i int) (time.Time, error)) {
		alone(name, what, do)
		all = append(all, &probe{name: name + "s", what: "the same", atOnce: several, do: do})
	}
	if s.Far == nil {
		alone("fsync", "fsync of 4 KiB", s.fsync)
		both("lease", "lease of lokt lock: acquire + release", func(i int) (time.Time, error) { return s.pair(i, false) })
	} else {
		both("round-trip", "round trip to the server", s.roundTrip)
	}
	both("lock", "lock of lokt guard: acquire + release", func(i int) (time.Time, error) { return s.pair(i, true) })
	both("heartbeat", "heartbeat of lokt guard --ttl", s.heartbeat)
	if s.jobs != nil {
		both("job", "job: submit + request + complete", s.job)
	}
	alone("command", "a command: lokt version", func(int) (time.Time, error) { return time.Now(), s.lokt("version")() })
	alone("guard", "the same under lokt guard", func(int) (time.Time, error) {
		return time.Now(), s.lokt("guard", s.name, "--", s.program, "version")()
	})
	alone("hand-off", "the same, from a release on", s.handOff)
	return all
}

func (s *bench) fsync(int) (begun time.Time, err error) {
	f, err := os.Create(filepath.Join(s.dir, "fsync"))
	if err == nil {
		_, err = f.WriteAt(make([]byte, 4096), 0)
		begun = time.Now()
		err = errors.Join(err, f.Sync(), f.Close())
	}
	return begun, err
}

// roundTrip asks what no store is asked for.
func (s *bench) roundTrip(int) (time.Time, error) {
	begun := time.Now()
	_, err := s.Far.About(s.ctx)
	return begun, err
}

// acquire takes a lock as lokt guard does, or as lokt lock does.
func (s *bench) acquire(name string, guarded bool) (lokt.Target, error) {
	t := lokt.Target{Name: s.name + "-" + name, LeaseID: lokt.NewLeaseID(), Owner: s.owner}
	c := lokt.Claim{Name: t.Name, LeaseID: t.LeaseID, Owner: s.owner, Strict: true, Attended: guarded, TTL: s.time + patience}
	if guarded && s.Far == nil {
		c.Process = &s.owner.Process
	}
	_, err := s.Acquire(s.ctx, c)
	return t, err
}

func (s *bench) pair(i int, guarded bool) (time.Time, error) {
	begun := time.Now()
	t, err := s.acquire(fmt.Sprint(i), guarded)
	if err == nil {
		_, err = s.Release(s.ctx, t)
	}
	return begun, err
}

func (s *bench) heartbeat(i int) (time.Time, error) {
	begun := time.Now()
	_, err := s.Renew(s.ctx, lokt.Renewal{Name: s.held[i].Name, LeaseID: s.held[i].LeaseID})
	return begun, err
}

// job lets a job live that no other worker takes.
func (s *bench) job(i int) (begun time.Time, err error) {
	spec, worker, begun := jobs.NewSpec(), fmt.Sprint(s.name, "-", i), time.Now()
	spec.Type, spec.Tags, spec.MaxRuntime = "lokt-bench", []string{jobs.NeedsPrefix + worker}, patience
	receipts, err := s.jobs.Submit(s.ctx, []jobs.Spec{spec})
	if err != nil {
		return begun, err
	}
	g, err := s.jobs.Request(s.ctx, jobs.Request{WorkerID: worker, Types: []string{spec.Type}, Capabilities: spec.Tags, Wait: jobs.MaxWait})
	if err == nil && g.Denied != nil {
		err = errors.New(g.Denied.Reason)
	}
	if err == nil {
		_, err = s.jobs.Complete(s.ctx, jobs.Completion{LeaseID: g.Lease.ID, WorkerID: worker, Status: jobs.Completed})
	}
	if err != nil { // it must not stay
		_, e := s.jobs.Cancel(s.ctx, receipts[0].JobID, err.Error())
		err = errors.Join(err, e)
	}
	return begun, err
}

// lokt starts a command where the locks are, and returns what waits for its end.
func (s *bench) lokt(args ...string) (wait func() error) {
	c, said := exec.CommandContext(s.ctx, s.program, args...), &bytes.Buffer{}
	c.Env = append(s.Environ(), "LOKT_ROOT="+s.dir, "LOKT_SERVER="+strings.Join(s.ServerURLs(), ","))
	c.Stdout, c.Stderr = said, said
	err := c.Start()
	return func() error {
		if err := errors.Join(err, c.Wait()); err != nil {
			return fmt.Errorf("lokt %s: %w: %s", args[0], err, said)
		}
		return nil
	}
}

// handOff lets a command wait for a lock and gives it up.
func (s *bench) handOff(int) (begun time.Time, err error) {
	held, err := s.acquire("next", true)
	if err != nil {
		return begun, err
	}
	wait := s.lokt("guard", held.Name, "--wait", "--timeout", patience.String(), "--", s.program, "version")
	for seen := (lokt.Snapshot{}); err == nil && len(seen.Lock.Queue) == 0; time.Sleep(time.Millisecond) {
		seen, err = s.Get(s.ctx, held.Name)
	}
	begun = time.Now()
	_, released := s.Release(s.ctx, held)
	return begun, errors.Join(err, released, wait())
}
