package locks

import (
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
	"github.com/lokt-dev/lokt/internal/guard"
)

// share says with whom a claim shares.
type share struct {
	shared bool
	slots  int // 0 unless they are given
	weight lokt.Weight

	pressure machine.Pressure // of commands
}

func (f *share) bind(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.shared, "shared", false, "share with others that share; exclude those that do not")
	machine.SlotsFlag(cmd, &f.slots)
	machine.WeightFlag(cmd, &f.weight)
}

func (f *share) check(cmd *cobra.Command) error {
	switch given := cmd.Flags().Changed("slots"); {
	case given && f.slots < 1:
		return app.Usagef("--slots %d leaves room for nobody", f.slots)
	case f.slots >= lokt.Shared:
		return app.Usagef("--slots %d is no limit: use --shared", f.slots)
	case given && f.shared:
		return app.Usagef("--shared has no limit and --slots sets one: give one of them")
	}
	return nil
}

// shareFlags returns the flags as they were given.
func (f *share) shareFlags() (flags []string) {
	switch {
	case f.shared:
		flags = []string{"--shared"}
	case f.slots > 0:
		flags = []string{"--slots", strconv.Itoa(f.slots)}
	}
	return append(flags, machine.Flags(f.weight, &f.pressure)...)
}

func (f *share) limit() int {
	if f.shared || f.weight.Takes > 0 && f.slots == 0 {
		return lokt.Shared
	}
	return max(f.slots, lokt.Exclusive)
}

// claimFlags are the flags that guard and lock share: what to ask for.
type claimFlags struct {
	share
	ttl, timeout, maxHold time.Duration
	wait                  bool
	priority              int
	meta                  []string
	metadata              map[string]string // the same

	guard bool // of a guard
}

const defaultTimeout = 10 * time.Minute

func (f *claimFlags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.DurationVar(&f.ttl, "ttl", 0, "free the lock if it is not renewed for this long, such as 90s or 5m (at least 1s)")
	fs.BoolVar(&f.wait, "wait", false, "wait in the queue until the lock is free")
	fs.DurationVar(&f.timeout, "timeout", defaultTimeout, "with --wait: give up after this long; 0 never does")
	f.share.bind(cmd)
	fs.IntVar(&f.priority, "priority", 0, "place in the queue: higher first")
	fs.DurationVar(&f.maxHold, "max-hold", 0, "free the lock after this long, renewed or not")
	fs.StringArrayVar(&f.meta, "meta", nil, "note KEY=VALUE in the lock's record; may be repeated")
}

// check finds out what the command line means, before anything is touched.
func (f *claimFlags) check(a cmd, cmd *cobra.Command) (err error) {
	if err := f.share.check(cmd); err != nil {
		return err
	}
	if f.ttl, err = a.TTL(f.ttl); err != nil {
		return err
	}
	switch {
	case cmd.Flags().Changed("timeout") && !f.wait:
		return app.Usagef("--timeout says how long to wait: it needs --wait")
	case f.timeout < 0:
		return app.Usagef("--timeout %v is negative", f.timeout)
	case f.maxHold < 0 || f.maxHold > 0 && f.maxHold < time.Millisecond:
		return app.Usagef("--max-hold %v is too short", f.maxHold)
	}
	if text := f.pressure.Text(); text != "" {
		f.meta = append(f.meta, machine.MetaPressure+"="+text)
	}
	for _, kv := range f.meta {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return app.Usagef("--meta %q is not KEY=VALUE", kv)
		}
		if f.metadata == nil {
			f.metadata = map[string]string{}
		}
		f.metadata[k] = v
	}
	return nil
}

// patience returns how long to queue, as claims have it.
func (f *claimFlags) patience() time.Duration {
	switch {
	case !f.wait:
		return 0
	case f.timeout == 0:
		return -1
	}
	return f.timeout
}

// noteEvery is how often a claim that waits says what it waits for.
const noteEvery = 30 * time.Second

// announce says on standard error what claims are about to wait for, at once and again while they do, until stop is called.
func (a cmd) announce(ctx context.Context, b *app.Backend, claims ...lokt.Claim) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	note := func() {
		for _, c := range claims {
			if text := waitText(ctx, b, c); text != "" && ctx.Err() == nil {
				a.Tell("%s", text)
			}
		}
	}
	note()
	var telling sync.WaitGroup
	telling.Go(func() {
		for app.Pause(ctx, noteEvery) {
			note()
		}
	})
	return func() { cancel(); telling.Wait() }
}

// waitText says what a claim waits for, and its place in the queue; nothing if there is nothing to wait for.
func waitText(ctx context.Context, b *app.Backend, c lokt.Claim) string {
	s, err := b.Get(ctx, c.Name)
	if err != nil || slices.ContainsFunc(s.Lock.Holders, func(h lokt.Holder) bool { return sameClaimant(c, h.Claim) }) {
		return ""
	}
	queue := waiting(s)
	place := slices.IndexFunc(queue, func(w *lokt.Waiter) bool { return sameClaimant(c, w.Claim) })
	if place < 0 {
		place = len(slices.DeleteFunc(slices.Clone(queue), func(w *lokt.Waiter) bool { return w.Priority < c.Priority }))
	} else {
		c = queue[place].Claim
	}
	var blocked *lokt.BlockedError
	switch err = s.WouldGrant(c); {
	case errors.As(err, &blocked):
		return fmt.Sprintf("waiting, %s in the queue: %s%s", ordinal(place+1), blockedText(b, blocked), rootText(b))
	case errors.Is(err, lokt.ErrFull):
		return fmt.Sprintf("waiting for room in the queue: %v", err)
	}
	return ""
}

// sameClaimant reports whether a claim in the store is the one that this process makes.
func sameClaimant(c, stored lokt.Claim) bool {
	if c.LeaseID != "" {
		return stored.LeaseID == c.LeaseID
	}
	return c.Owner.Process.PID != 0 && stored.Owner.Process.PID == c.Owner.Process.PID && stored.Owner.Same(c.Owner)
}

// rootText names the directory of the locks if it is not the repository's: others may look elsewhere.
func rootText(b *app.Backend) string {
	if b.Store == nil || b.Root.Method == app.MethodGit {
		return ""
	}
	return ", in " + b.Root.Path
}

// denied reports a claim that was not granted, and returns what ends the program with the right code. It points to the
// command that explains this very claim.
func (a cmd) denied(b *app.Backend, err error, code int, f *claimFlags) error {
	var signal *guard.SignalError
	var blocked *lokt.BlockedError
	switch {
	case errors.As(err, &signal):
		return app.Exit(signal.Code())
	case errors.Is(err, lokt.ErrFull):
		a.Report(err)
		return app.Exit(code)
	case !errors.As(err, &blocked):
		return err
	}
	text := blockedText(b, blocked) + rootText(b)
	if blocked.TimedOut > 0 {
		text = fmt.Sprintf("gave up after %s: %s", app.Short(blocked.TimedOut), text)
	}
	var known *app.HintError
	switch fz := blocked.Freeze; {
	case errors.As(err, &known): // why waiting would not help
		text += "; " + known.Hint
	case len(blocked.Cycle) > 0 || fz != nil && fz.Damaged != "":
	default:
		do := "; "
		if f != nil && !f.wait {
			do += "wait with --wait, or "
		}
		if fz != nil && a.Asker().Same(fz.Owner) {
			do += "end the freeze with: " + a.CommandLine("unfreeze", blocked.Name) + ", or "
		}
		text += do + "see: " + a.whyLine(blocked.Name, f)
	}
	if a.JSON {
		return errors.Join(a.Print(viewBlocked(b, blocked, text)), app.Exit(code))
	}
	a.Tell("%s", text)
	return app.Exit(code)
}

// whyLine returns the command that explains a claim with these flags.
func (a cmd) whyLine(name string, f *claimFlags) string {
	if f == nil {
		return a.CommandLine("why", name)
	}
	flags := f.shareFlags()
	if f.guard {
		flags = append([]string{"--guard"}, flags...)
	}
	return a.CommandLine("why", name, flags...)
}
