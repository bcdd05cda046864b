package locks

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/process"
)

type guardOptions struct {
	claimFlags
	names        []string
	command      []string
	onLost       string
	conflictCode int
}

// serverTTL is the TTL of guards on a server that does not say otherwise.
const serverTTL = 30 * time.Second

// What --on-lost can say.
const (
	OnLostWarn = "warn"
	OnLostStop = "stop"
)

func newGuard(a cmd) *cobra.Command {
	o := guardOptions{claimFlags: claimFlags{guard: true}}
	cmd := &cobra.Command{
		Use:   "guard NAME... [flags] -- COMMAND [ARG...]",
		Short: "Run a command while holding locks",
		Long: "Run a command while holding one or more locks, all or none of them, and end as the command does. The locks are\n" +
			"given back when it ends, however it ends. With --ttl they are renewed while it runs. On a server they always have\n" +
			"a TTL, 30s unless --ttl says otherwise, and --on-lost is stop unless it says warn.",
		Example: "  lokt guard build --ttl 5m -- make build\n  lokt guard db cache --wait -- ./migrate.sh",
		RunE: func(cmd *cobra.Command, args []string) error {
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
			if err := o.check(a, cmd); err != nil {
				return err
			}
			for _, name := range o.names {
				if d, err := time.ParseDuration(name); err == nil && d > 0 {
					a.Tell("warning: %s is taken for the name of a lock; to wait for that long, write --wait --timeout %s", name, name)
				}
			}
			return a.runGuard(o)
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if slices.Contains(a.Words[:max(0, len(a.Words)-1)], "--") { // cobra does not tell, for it parses with a -- of its own
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.CompleteNames(cmd, args, prefix)
		},
	}
	o.bind(cmd)
	cmd.Flags().StringVar(&o.onLost, "on-lost", "", "`WHAT` to do when the lock is lost: warn and go on, or stop the command (default $LOKT_ON_LOST, or warn, or stop on a server)")
	cmd.Flags().IntVar(&o.conflictCode, "conflict-exit-code", app.ExitBlocked, "exit code if the lock cannot be had")
	return cmd
}

func (o *guardOptions) check(a cmd, cmd *cobra.Command) error {
	if err := o.claimFlags.check(a, cmd); err != nil {
		return err
	}
	if o.onLost == "" {
		o.onLost = a.Getenv("LOKT_ON_LOST")
	}
	onServer := len(a.ServerURLs()) > 0
	switch {
	case o.onLost != "":
	case onServer:
		o.onLost = OnLostStop // somebody else may be granted the lock while this host is cut off
	default:
		o.onLost = OnLostWarn
	}
	switch {
	case onServer && o.ttl == 0 && cmd.Flags().Changed("ttl"):
		return app.Usagef("--ttl 0: on a server a guard has a TTL, for the server cannot see whether it lives (default %v)", serverTTL)
	case onServer && o.ttl == 0:
		o.ttl = serverTTL
	}
	switch {
	case o.onLost != OnLostWarn && o.onLost != OnLostStop:
		return app.Usagef("--on-lost (or LOKT_ON_LOST) is warn or stop, not %q", o.onLost)
	case o.conflictCode < 0 || o.conflictCode > 255:
		return app.Usagef("--conflict-exit-code %d is not between 0 and 255", o.conflictCode)
	}
	return nil
}

func (a cmd) runGuard(o guardOptions) error {
	signals := guard.Notify() // until the end of the process
	b, err := a.Open(o.names...)
	if err != nil {
		return err
	}
	path, err := guard.Find(o.command[0])
	if err != nil {
		return a.NotRun(err)
	}
	a.MakeRoot(b)
	owner, err := a.Claimant(b)
	if err != nil {
		return err
	}
	g := &guardRun{cmd: a, b: b, o: o, path: path, owner: owner}
	var locks lokt.Service = b
	if b.Far != nil {
		locks = insistent{Service: b, from: app.ShownURLs(b.URLs), attempt: attemptTime(o.ttl), failed: func(r lokt.Renewal, err error) { g.doubt(r.Name, err.Error()) }}
	}
	if g.k, err = lokt.NewLocker(locks, owner, lokt.LockerOptions{Observe: g.observe}); err != nil {
		return err
	}
	ctx, stop := context.Background(), func() {}
	if o.wait {
		ctx, stop = signals.Context(ctx)
	}
	leases, inherited, err := g.acquire(ctx)
	stop()
	if err != nil {
		return a.denied(b, err, o.conflictCode, &o.claimFlags)
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

	mu     sync.Mutex
	warned time.Time

	losing sync.Mutex           // held while a loss is dealt with
	taken  []*lokt.Lease        // all that were acquired
	told   map[*lokt.Lease]bool // whose loss is known to the user
	ended  bool                 // the command has
}

func (g *guardRun) options(within []string) lokt.Options {
	opts := lokt.Options{
		TTL: g.o.ttl, Wait: g.o.patience(), Limit: g.o.limit(), Strict: true, Priority: g.o.priority,
		MaxHold: g.o.maxHold, Metadata: g.o.metadata(), Within: within,
	}
	if g.b.Store != nil {
		opts.Process = &g.owner.Process
	}
	if opts.TTL == 0 {
		opts.TTL = lokt.NoTTL
		opts.ManualHeartbeat = g.o.onLost == OnLostWarn // only who has to stop the command looks for a loss
	} else {
		opts.Interval = max(opts.TTL/2, 500*time.Millisecond)
	}
	return opts
}

// acquire takes the locks that no guard around this one holds already.
func (g *guardRun) acquire(ctx context.Context) (lokt.Leases, []string, error) {
	held, err := g.heldAround(ctx)
	if err != nil {
		return nil, nil, err
	}
	var names, inherited, within []string
	for name, leaseID := range held {
		within = append(within, leaseID)
		if slices.Contains(g.o.names, name) {
			inherited = append(inherited, name+"="+leaseID)
		}
	}
	slices.Sort(inherited)
	for _, name := range g.o.names {
		if _, in := held[name]; !in {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, inherited, nil
	}
	opts := g.options(within)
	if opts.Wait != 0 {
		var claims []lokt.Claim
		for _, name := range names {
			claims = append(claims, lokt.Claim{Name: name, Owner: g.owner, Limit: opts.Limit, Strict: true, Priority: opts.Priority})
		}
		defer g.announce(ctx, g.b, claims...)()
	}
	leases, err := g.k.AcquireAll(ctx, names, opts)
	return leases, inherited, err
}

// heldAround returns the leases, by name, of the guards that this process runs in and that still hold.
func (g *guardRun) heldAround(ctx context.Context) (map[string]string, error) {
	held := map[string]string{}
	for _, pair := range strings.Split(g.Getenv("LOKT_HELD"), ",") {
		name, leaseID, ok := strings.Cut(pair, "=")
		if !ok || lokt.ValidateName(name) != nil {
			continue
		}
		g.b.Know(leaseID)
		s, err := g.b.Get(ctx, name)
		if err != nil {
			continue // acquiring will tell
		}
		h, in := s.Lock.Holder(leaseID)
		if _, stale := s.Stale(h); !in || stale {
			continue
		}
		if limit := max(h.Limit, 1); slices.Contains(g.o.names, name) && g.o.limit() < limit {
			return nil, app.Hint(&lokt.BlockedError{Name: name, Holders: []lokt.Holder{h}, Now: s.Now},
				"the guard around this command holds it for up to %d, and this one wants it for %d", limit, g.o.limit())
		}
		held[name] = leaseID
	}
	return held, nil
}

// environment returns what the command is told about the locks.
func (g *guardRun) environment(leases lokt.Leases, inherited []string) []string {
	var names, ids, tokens []string
	held := slices.Clone(inherited)
	for _, pair := range inherited {
		name, id, _ := strings.Cut(pair, "=")
		names, ids = append(names, name), append(ids, id)
		tokens = append(tokens, tokenAround(g.Getenv, name))
	}
	for _, l := range leases {
		names, ids, tokens = append(names, l.Name()), append(ids, l.ID()), append(tokens, strconv.FormatUint(l.Token(), 10))
		held = append(held, l.Name()+"="+l.ID())
	}
	for _, pair := range strings.Split(g.Getenv("LOKT_HELD"), ",") {
		if pair != "" && !slices.Contains(held, pair) {
			held = append(held, pair)
		}
	}
	own := []string{"LOKT_NAME", "LOKT_LEASE", "LOKT_TOKEN", "LOKT_HELD"}
	env := slices.DeleteFunc(slices.Clone(g.Environ()), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(own, name)
	})
	return append(env, "LOKT_NAME="+strings.Join(names, ","), "LOKT_LEASE="+strings.Join(ids, ","),
		"LOKT_TOKEN="+strings.Join(tokens, ","), "LOKT_HELD="+strings.Join(held, ","))
}

// tokenAround returns the fencing token that a guard around this one was granted for the name.
func tokenAround(getenv func(string) string, name string) string {
	tokens := strings.Split(getenv("LOKT_TOKEN"), ",")
	i := slices.Index(strings.Split(getenv("LOKT_NAME"), ","), name)
	if i < 0 || i >= len(tokens) {
		return ""
	}
	return tokens[i]
}

// childNoteDelay is how long a command must run before its process ID is worth a note in the record.
const childNoteDelay = 20 * time.Millisecond

// run runs the command, and gives the locks back when it has ended.
func (g *guardRun) run(leases lokt.Leases, inherited []string, signals *guard.Signals) error {
	c := guard.Command{
		Path: g.path, Args: g.o.command, Env: g.environment(leases, inherited), Inherit: g.b.LiveFile(),
		Bound: g.b.Store == nil, Stop: g.o.onLost == OnLostStop, StopGrace: g.grace(), Ending: g.ending, Lost: g.lost,
	}
	g.taken, g.told = slices.Clone(leases), map[*lokt.Lease]bool{}
	noted := func() {}
	if g.b.Store != nil && len(leases) > 0 {
		c.Started = func(pid int) { noted = g.noteChild(leases, pid) }
	}
	code, err := guard.Run(c, leases, signals)
	noted()
	released := g.release(signals)
	if err != nil {
		return worse(g.NotRun(err), released)
	}
	return worse(app.Exit(code), released)
}

// worse returns how the command ended, unless it ended well and its locks could not be given back.
func worse(end, released error) error {
	if end == nil {
		return released
	}
	return end
}

// grace is how long a command gets to end by itself before it is killed for a lock about to be lost.
func (g *guardRun) grace() time.Duration {
	life := g.o.ttl
	if life == 0 {
		life = g.o.maxHold
	}
	return min(life/4, 10*time.Second)
}

// noteChild puts the command's process ID into the records, if it runs long enough to be seen. The returned function ends
// that, and waits for it if it is under way.
func (g *guardRun) noteChild(leases lokt.Leases, pid int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var under sync.Mutex
	t := time.AfterFunc(childNoteDelay, func() {
		under.Lock()
		defer under.Unlock()
		p, err := process.Lookup(pid)
		if err != nil || ctx.Err() != nil {
			return
		}
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
		t.Stop()
		under.Lock()
		under.Unlock() //nolint:staticcheck // nothing to protect: only to wait
	}
}
