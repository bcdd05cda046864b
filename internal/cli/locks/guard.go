package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/machine"
	"github.com/lokt-dev/lokt/internal/cli/wait"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/nearest"
	"github.com/lokt-dev/lokt/internal/process"
)

type guardOptions struct {
	claimFlags
	names        []string
	command      []string
	onLost       string
	conflictCode int
	pools        machine.Pools
	turns        Turns // nil without rules
}

// serverTTL is the TTL of guards on a server that does not say otherwise.
const serverTTL = 30 * time.Second

// What --on-lost can say.
const (
	OnLostWarn = "warn"
	OnLostStop = "stop"
)

// Asked is what a guard asks for. It is acquired as it is after Turns.Before.
type Asked struct {
	lokt.Options
	Service      lokt.Service
	Owner        lokt.Owner
	Names        []string // of locks that no guard around this one holds
	ConflictCode int
}

// Turns are rules for when the turns of locks come, beside those of claims. An error ends the guard.
type Turns interface {
	Before(context.Context, *Asked) error
	Taken(context.Context, error) error // the locks are held, or could not be had for that reason, which it may put in another way
	Succeeded()                         // the command has, and the locks are still held
}

// Guard builds the command for which the turns are judged, or the one that becomes that if turns is nil and there are rules.
func Guard(shared *app.App, turns Turns) *cobra.Command {
	a := cmd{shared}
	o := guardOptions{claimFlags: claimFlags{guard: true}, turns: turns}
	cmd := app.Describe("guard", &cobra.Command{
		RunE: func(cmd *cobra.Command, args []string) error {
			if turns == nil && a.ruled() {
				return a.HandOver("lokt-agent", a.Words)
			}
			if err := o.check(a, cmd, args); err != nil {
				return err
			}
			return a.runGuard(o)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if slices.Contains(a.Words[:max(0, len(a.Words)-1)], "--") { // cobra does not tell, for it parses with a -- of its own
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.CompleteNames(cmd, args, prefix)
		},
	})
	o.bind(cmd)
	o.pressure.Bind(cmd)
	o.pools.Bind(cmd)
	cmd.Flags().StringVar(&o.onLost, "on-lost", "", "`WHAT` to do when the lock is lost: warn and go on, or stop the command (default $LOKT_ON_LOST, or warn, or stop on a server)")
	_ = cmd.RegisterFlagCompletionFunc("on-lost", cobra.FixedCompletions([]string{OnLostWarn, OnLostStop}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().IntVar(&o.conflictCode, "conflict-exit-code", app.ExitBlocked, "exit code if the lock cannot be had")
	return cmd
}

// ruled reports whether lokt.toml may have rules for turns, however they are written, which package policy reads.
func (a cmd) ruled() bool {
	dir, err := a.Dir()
	_, text, bad := nearest.File(dir, "lokt.toml")
	plain := strings.NewReplacer(" ", "", "\t", "", `"`, "", "'", "").Replace(string(text))
	return err == nil && (bad != nil || strings.Contains(plain, "[lock") || strings.Contains(plain, "lock=["))
}

// check finds out what the command line means, before anything is touched.
func (o *guardOptions) check(a cmd, cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash < 0:
		return app.Usagef("put -- before the command: lokt guard NAME -- COMMAND")
	case dash == 0:
		return app.Usagef("give the name of a lock before the --: lokt guard NAME -- COMMAND")
	case dash == len(args):
		return app.Usagef("give the command behind the --: lokt guard %s -- COMMAND", strings.Join(args, " "))
	}
	o.names, o.command = args[:dash], args[dash:]
	o.meta = append([]string{metaCommand + "=" + shown(o.command)}, o.meta...)
	if err := o.claimFlags.check(a, cmd); err != nil {
		return err
	}
	onLost, ttl := OnLostWarn, time.Duration(0)
	if len(a.ServerURLs()) > 0 {
		if o.ttl == 0 && cmd.Flags().Changed("ttl") {
			return app.Usagef("--ttl 0: on a server a guard has a TTL, for the server cannot see whether it lives (default %v)", serverTTL)
		}
		onLost, ttl = OnLostStop, serverTTL // somebody else may be granted the lock while this host is cut off
	}
	o.onLost, o.ttl = cmp.Or(o.onLost, a.Getenv("LOKT_ON_LOST"), onLost), cmp.Or(o.ttl, ttl)
	switch {
	case o.onLost != OnLostWarn && o.onLost != OnLostStop:
		return app.Usagef("--on-lost (or LOKT_ON_LOST) is warn or stop, not %q", o.onLost)
	case o.pressure.Text() != "" && len(o.names) > 1:
		return app.Usagef("--pressure goes by who had the lock first, and there are %d locks: name one", len(o.names))
	case o.conflictCode < 0 || o.conflictCode > 255:
		return app.Usagef("--conflict-exit-code %d is not between 0 and 255", o.conflictCode)
	}
	for _, name := range o.names {
		if d, err := time.ParseDuration(name); err == nil && d > 0 {
			a.Tell("warning: %s is taken for the name of a lock; to wait for that long, write --wait --timeout %s", name, name)
		}
	}
	return nil
}

func (a cmd) runGuard(o guardOptions) error {
	signals := guard.Notify() // until the end of the process
	defer tellBeside(a.App, signals)()
	b, err := a.Open(o.names...)
	if err != nil {
		return err
	}
	path, err := guard.Find(o.command[0])
	if err != nil {
		return err
	}
	a.MakeRoot(b)
	owner, err := a.Claimant(b)
	if err != nil {
		return err
	}
	g := &guardRun{cmd: a, b: b, o: o, path: path, owner: owner, began: time.Now()}
	locks, keeper := g.o.Service(a.App, b, waitText(b)), &lokt.Keeper{}
	if b.Far != nil {
		keeper.Elapsed = b.Far.Elapsed
		locks = insistent{Service: locks, from: app.ShownURLs(b.URLs), attempt: attemptTime(o.ttl), failed: func(r lokt.Renewal, err error) { g.doubt(r.Name, err.Error()) }}
	}
	if g.k, err = lokt.NewLocker(locks, owner, lokt.LockerOptions{Observe: g.observe, Keeper: keeper}); err != nil {
		return err
	}
	ctx, stop := context.Background(), func() {}
	if o.Wait || b.Far != nil { // a server may take long to answer
		ctx, stop = signals.Context(ctx)
	}
	leases, inherited, err := g.acquire(ctx)
	if err == nil {
		leases, err = g.fit(ctx, leases)
	}
	stop()
	if got := (*guard.SignalError)(nil); errors.As(context.Cause(ctx), &got) && !errors.As(err, &got) {
		err = got // it came in the moment of the grant
	}
	if err != nil {
		g.taken = leases
		return errors.Join(a.denied(b, err, o.conflictCode, &g.o.claimFlags), g.release(signals))
	}
	return g.run(leases, inherited, signals)
}

// guardRun is one run of a command under locks.
type guardRun struct {
	cmd
	b     *app.Backend
	o     guardOptions
	path  string
	owner lokt.Owner
	k     *lokt.Locker

	began   time.Time
	numbers []string // of pools, for the command's environment

	mu     sync.Mutex
	warned time.Time

	losing sync.Mutex           // held while a loss is dealt with
	taken  []*lokt.Lease        // all that were acquired
	told   map[*lokt.Lease]bool // whose loss is known to the user
	when   string               // a lock is lost that turns out to be; empty before the command has begun
	ended  bool                 // the command has
}

func (g *guardRun) options(within []string) lokt.Options {
	opts := lokt.Options{
		TTL: g.o.ttl, Wait: g.o.Patience(), Limit: g.o.limit(), Strict: true, Priority: g.o.priority,
		MaxHold: g.o.maxHold, Weight: g.o.weight, Metadata: g.o.metadata, Within: within,
	}
	if g.b.Store != nil {
		opts.Process = &g.owner.Process
	}
	if opts.TTL == 0 {
		opts.TTL = lokt.NoTTL // it looks whether the lock is still there, and what is asked
	} else if g.b.Store != nil { // a server says when
		opts.Interval = max(opts.TTL/2, 500*time.Millisecond)
	}
	return opts
}

// around is a lock that a guard around this one holds.
type around struct{ name, leaseID, token string }

// acquire takes the locks that no guard around this one holds already, and returns those that one does.
func (g *guardRun) acquire(ctx context.Context) (leases lokt.Leases, inherited []around, err error) {
	held, err := g.heldAround(ctx)
	if err != nil {
		return nil, nil, err
	}
	var within []string
	for _, h := range held {
		within = append(within, h.leaseID)
		if slices.Contains(g.o.names, h.name) {
			inherited = append(inherited, h)
		}
	}
	names := slices.DeleteFunc(slices.Clone(g.o.names), func(name string) bool {
		return slices.ContainsFunc(held, func(h around) bool { return h.name == name })
	})
	if len(names) == 0 {
		return nil, inherited, nil
	}
	asked := &Asked{g.options(within), g.b, g.owner, names, g.o.conflictCode}
	if g.o.turns != nil {
		if err := g.o.turns.Before(ctx, asked); err != nil {
			return nil, nil, err
		}
	}
	leases, err = g.k.AcquireAll(ctx, names, asked.Options)
	if g.o.turns != nil {
		err = g.o.turns.Taken(ctx, err)
	}
	return leases, inherited, err
}

// fit makes sure that the machine has what the command needs: no more pressure than it may start at, and a number of each pool.
// What is returned is held, also with an error.
func (g *guardRun) fit(ctx context.Context, leases lokt.Leases) (lokt.Leases, error) {
	opts := g.options(nil)
	for _, l := range leases {
		if err := g.o.pressure.Hold(ctx, g.App, g.b, l, g.began, opts.Wait, g.whyLine(l.Name(), &g.o.claimFlags)); err != nil {
			return leases, err
		}
	}
	opts.Wait, opts.Limit, opts.Weight = 0, lokt.Exclusive, lokt.Weight{}
	numbers, env, err := g.o.pools.Take(func(name string) (*lokt.Lease, error) { return g.k.Acquire(ctx, name, opts) })
	g.numbers = env
	return append(leases, numbers...), err
}

// heldAround returns the locks of the guards that this process runs in and that still hold.
func (g *guardRun) heldAround(ctx context.Context) (held []around, err error) {
	names, tokens := strings.Split(g.Getenv("LOKT_NAME"), ","), strings.Split(g.Getenv("LOKT_TOKEN"), ",")
	for _, pair := range strings.Split(g.Getenv("LOKT_HELD"), ",") {
		name, leaseID, ok := strings.Cut(pair, "=")
		if !ok || lokt.ValidateName(name) != nil {
			continue
		}
		if g.b.Far != nil {
			g.b.Far.Know(leaseID)
		}
		s, err := g.b.Get(ctx, name)
		if err != nil {
			continue // acquiring will tell
		}
		h, in := s.Lock.Holder(leaseID)
		if _, stale := s.Stale(h); !in || stale {
			continue
		}
		same, blocked := slices.Contains(g.o.names, name), &lokt.BlockedError{Name: name, Holders: []lokt.Holder{h}, Now: s.Now}
		if limit := max(h.Limit, 1); same && g.o.limit() < limit {
			among := "any number"
			if limit < lokt.Shared {
				among = strconv.Itoa(limit)
			}
			return nil, app.Hint(blocked, "the guard around this command holds it for up to %s, and this one wants it for %d", among, g.o.limit())
		}
		if w := g.o.weight; same && h.Weight.Of > 0 && w.Takes > h.Weight.Takes {
			return nil, app.Hint(blocked, "the guard around this command takes %s, and this one wants %s", machine.WeightText(h.Weight), machine.WeightText(w))
		}
		one := around{name: name, leaseID: leaseID}
		if i := slices.Index(names, name); i >= 0 && i < len(tokens) {
			one.token = tokens[i]
		}
		held = append(held, one)
	}
	slices.SortFunc(held, func(a, b around) int { return strings.Compare(a.name, b.name) })
	return held, nil
}

// environment returns what the command is told about the locks.
func (g *guardRun) environment(leases lokt.Leases, inherited []around) []string {
	var names, ids, tokens, held, slots []string
	for _, l := range leases {
		if slot := l.Holder().Slot; slot > 0 {
			slots = append(slots, strconv.Itoa(slot))
		}
		inherited = append(inherited, around{l.Name(), l.ID(), strconv.FormatUint(l.Token(), 10)})
	}
	for _, l := range inherited {
		names, ids, tokens, held = append(names, l.name), append(ids, l.leaseID), append(tokens, l.token), append(held, l.name+"="+l.leaseID)
	}
	for _, pair := range strings.Split(g.Getenv("LOKT_HELD"), ",") {
		if pair != "" && !slices.Contains(held, pair) {
			held = append(held, pair)
		}
	}
	told := append(g.numbers, "LOKT_NAME="+strings.Join(names, ","), "LOKT_LEASE="+strings.Join(ids, ","),
		"LOKT_TOKEN="+strings.Join(tokens, ","), "LOKT_HELD="+strings.Join(held, ","))
	if len(slots) > 0 {
		told = append(told, "LOKT_SLOT="+strings.Join(slots, ","))
	}
	env := slices.DeleteFunc(slices.Clone(g.Environ()), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == wait.TicketVar || slices.ContainsFunc(told, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	})
	return append(env, told...)
}

// childNoteDelay is how long a command must run before its process ID is worth a note in the record.
const childNoteDelay = 20 * time.Millisecond

// run runs the command, and gives the locks back when it has ended.
func (g *guardRun) run(leases lokt.Leases, inherited []around, signals *guard.Signals) error {
	c := guard.Command{
		Path: g.path, Args: g.o.command, Env: g.environment(leases, inherited), Inherit: g.b.LiveFile(),
		Bound: g.b.Store == nil, Stop: g.o.onLost == OnLostStop, StopGrace: min(cmp.Or(g.o.ttl, g.o.maxHold, time.Minute)/4, 10*time.Second), Ending: g.ending, Lost: g.lost,
		Refused: func(err error) { g.Tell("warning: %v", err) },
	}
	g.taken, g.told = slices.Clone(leases), map[*lokt.Lease]bool{}
	noted := func() {}
	c.Started = func(pid int) {
		if g.when = "while the command ran"; g.b.Store != nil && len(leases) > 0 {
			noted = g.noteChild(leases, pid)
		}
	}
	code, err := guard.Run(c, leases, signals)
	noted()
	if g.o.turns != nil && err == nil && code == app.ExitOK {
		g.o.turns.Succeeded()
	}
	released := g.release(signals)
	return cmp.Or(err, app.Exit(code), released)
}

// noteChild puts the command's process ID into the records, if it runs long enough to be seen. The returned function ends
// that, and waits for it if it is under way.
func (g *guardRun) noteChild(leases lokt.Leases, pid int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var noting sync.WaitGroup
	noting.Add(1)
	t := time.AfterFunc(childNoteDelay, func() { // a goroutine that sleeps would cost another thread at the start
		defer noting.Done()
		p, err := process.Lookup(pid)
		if err != nil || ctx.Err() != nil {
			return
		}
		g.losing.Lock()
		g.owner.Process.Child, g.owner.Process.ChildStart = pid, p.Start // for a hold that is taken again
		g.losing.Unlock()
		ids := map[string]string{}
		for _, l := range leases {
			ids[l.Name()] = l.ID()
		}
		if err := g.b.Store.SetChild(ctx, ids, pid, p.Start); err != nil && ctx.Err() == nil {
			g.Tell("warning: the command's process ID could not be noted: %v", err)
		}
	})
	return func() {
		cancel()
		if t.Stop() {
			noting.Done()
		}
		noting.Wait()
	}
}

// release gives the locks back. Locks that turn out to have been lost are told of now, if they were not before. A loss that
// is being dealt with comes first, so that nothing is taken again after this.
func (g *guardRun) release(signals *guard.Signals) error {
	g.losing.Lock()
	defer g.losing.Unlock()
	g.ended = true
	var err error
	if g.b.Store == nil {
		err = g.part(signals)
	} else {
		_, err = g.k.ReleaseAll(context.Background()) // which files bound
	}
	for _, l := range g.taken {
		if (g.o.onLost == OnLostStop || !g.told[l]) && l.State() == lokt.Lost && l.Holder().Yield != nil {
			_ = l.Release(context.Background()) // it may still be on record, and nobody there to find it over
		}
		if cause := l.Err(); errors.Is(cause, lokt.ErrLost) && !g.told[l] {
			g.Tell("warning: the lock %q was lost %s: %s", l.Name(), cmp.Or(g.when, "before the command could begin"), lossText(l, cause))
		}
	}
	switch {
	case err != nil && g.b.Store != nil:
		return fmt.Errorf("the command has ended, but: %w", err)
	case err != nil && !g.allLost(): // nothing of the command is lost, and nothing stays locked
		g.Tell("warning: the command has ended, but not everything could be given back, which expires within %s: %v", app.Short(g.o.ttl), err)
	}
	return nil
}

// How long a server gets to take locks back: in all, for one answer, and between two tries.
const (
	partingTime    = 5 * time.Second
	partingAttempt = 2 * time.Second
	partingPause   = 200 * time.Millisecond
)

// part gives the locks back to a server. There is one try for locks that are lost anyway, and after a signal: it may be the
// one that has ended the command, and must not keep the lock from being free.
func (g *guardRun) part(signals *guard.Signals) error {
	whole, cancel := context.WithTimeout(context.Background(), partingTime)
	defer cancel()
	ctx, stop := signals.Context(whole)
	defer stop()
	for {
		attempt, done := context.WithTimeout(whole, partingAttempt)
		_, err := g.k.ReleaseAll(attempt)
		done()
		if !errors.Is(err, lokt.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) || g.allLost() || !app.Pause(ctx, partingPause) {
			return err
		}
	}
}

// allLost reports whether none of the locks is held any more.
func (g *guardRun) allLost() bool {
	return !slices.ContainsFunc(g.taken, func(l *lokt.Lease) bool { return l.State() != lokt.Lost })
}

// lost is told of a lease that ended while the command runs. A lock that only expired and that nobody took since is
// taken again.
func (g *guardRun) lost(l *lokt.Lease, err error) *lokt.Lease {
	g.losing.Lock()
	defer g.losing.Unlock()
	if g.ended || g.told[l] {
		return nil
	}
	g.told[l] = true
	var gone *lokt.GoneError
	taken := errors.As(err, &gone) && (gone.Cause == "" || len(gone.Holders) > 0)
	warn, ctx := g.o.onLost == OnLostWarn && !taken, context.Background() // whose end would be the lease's: the store bounds how long it takes
	if warn && l.Holder().Yield != nil {
		_ = l.Release(ctx) // what is left of it would be held again at once, for no longer than that
	}
	if warn && g.o.maxHold == 0 {
		if again, err := g.k.Reclaim(ctx, l); err == nil {
			g.taken = append(g.taken, again)
			since := "nobody took it"
			if again.Holder().Slot != l.Holder().Slot {
				since = "others may have its LOKT_SLOT"
			}
			if again.Token() > l.Token()+1 {
				since = "others may have had it meanwhile"
			}
			g.Tell("warning: the lock %q was not renewed in time; %s, and it is held again", l.Name(), since)
			return again
		}
	}
	what := map[string]string{OnLostWarn: "the command goes on, and others may enter", OnLostStop: "stopping the command"}
	g.Tell("warning: the lock %q was lost: %s: %s", l.Name(), lossText(l, err), what[g.o.onLost])
	return nil
}

// ending is told of a lease for whose sake the command is asked to end before it is lost.
func (g *guardRun) ending(l *lokt.Lease) {
	g.losing.Lock()
	defer g.losing.Unlock()
	if !g.told[l] {
		g.told[l] = true
		g.Tell("warning: the lock %q is about to be lost: %s: stopping the command", l.Name(), lossText(l, nil))
	}
}

// lossText says why a lease was lost, without saying again that it was, or why it will be if err is nil.
func lossText(l *lokt.Lease, err error) string {
	switch h := l.Holder(); {
	case err != nil:
		return strings.TrimPrefix(err.Error(), lokt.ErrLost.Error()+": ")
	case h.Yield != nil:
		return "it goes to " + h.Yield.To.String()
	case h.MaxHold > 0 && !h.ExpiresAt.Before(h.HeldSince.Add(h.MaxHold)):
		return "its maximum hold is over"
	}
	return "it could not be renewed in time"
}

// observe records what only this process knows, and tells what is asked.
func (g *guardRun) observe(e lokt.Event) {
	switch by := e.Extra[lokt.ExtraBy]; e.Type {
	case lokt.EventAsk:
		g.Tell("%s about the lock %q: %s; answer with: %s TEXT", by, e.Name, app.OneLine(e.Extra[lokt.ExtraText]), g.CommandLine("answer", e.Name))
		return
	case lokt.EventPreempt:
		g.Tell("warning: the lock %q is to go to %s soon", e.Name, by)
		return
	case lokt.EventRenewFail:
		g.doubt(e.Name, e.Extra[lokt.ExtraReason])
	}
	if err := g.b.Record(e); err != nil {
		g.Tell("warning: audit log: %v", err)
	}
}

// doubt tells that a lock could not be renewed, once in a TTL.
func (g *guardRun) doubt(name, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.warned) > g.o.ttl {
		g.warned = time.Now()
		g.Tell("warning: the lock %q could not be renewed, trying again: %s", name, reason)
	}
}

// insistent is a Service on a server whose renewals are repeated for as long as their context lasts. One without an
// answer is soon sent again over another connection, because a connection may be dead while the server is well. The
// earlier ones are waited for, too, because the server may be well and slow.
type insistent struct {
	lokt.Service
	from    string                    // the server, for people
	attempt time.Duration             // how long an answer may take before it is asked for again
	failed  func(lokt.Renewal, error) // is told of each attempt that failed, though more will follow
}

// renewed is the answer to one attempt.
type renewed struct {
	lokt.Holder
	err error
}

// Renew implements lokt.Service.
func (s insistent) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan renewed)
	again := time.NewTimer(0)
	defer again.Stop()
	silent := fmt.Errorf("%w: no answer from %s within %v", lokt.ErrUnavailable, s.from, s.attempt)
	last := silent
	for under := 0; ; {
		select {
		case <-again.C:
			if under > 0 {
				s.failed(r, silent)
			}
			under++
			go func() {
				h, err := s.Service.Renew(ctx, r)
				select {
				case answers <- renewed{h, err}:
				case <-ctx.Done():
				}
			}()
			again.Reset(s.attempt)
		case a := <-answers:
			if a.err == nil || !errors.Is(a.err, lokt.ErrUnavailable) {
				return a.Holder, a.err
			}
			s.failed(r, a.err)
			last = a.err
			if under--; under == 0 {
				again.Reset(s.attempt / 10)
			}
		case <-ctx.Done():
			return lokt.Holder{}, last
		}
	}
}

// attemptTime is how long an answer to a guard with that TTL may take before it is asked for again.
func attemptTime(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 250*time.Millisecond), 3*time.Second)
}
