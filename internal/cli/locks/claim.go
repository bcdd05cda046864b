package locks

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

// claimFlags are the flags that guard and lock share: what to ask for.
type claimFlags struct {
	ttl      time.Duration
	wait     bool
	timeout  time.Duration
	shared   bool
	slots    int
	priority int
	maxHold  time.Duration
	meta     []string

	timeoutSet, slotsSet bool
}

const defaultTimeout = 10 * time.Minute

func (f *claimFlags) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.DurationVar(&f.ttl, "ttl", 0, "free the lock if it is not renewed for this long, such as 90s or 5m (at least 1s)")
	fs.BoolVar(&f.wait, "wait", false, "wait in the queue until the lock is free")
	fs.DurationVar(&f.timeout, "timeout", defaultTimeout, "with --wait: give up after this long; 0 never does")
	fs.BoolVar(&f.shared, "shared", false, "share with others that share; exclude those that do not")
	fs.IntVar(&f.slots, "slots", 0, "share with others, as long as there are no more than this many holders")
	fs.IntVar(&f.priority, "priority", 0, "place in the queue: higher first")
	fs.DurationVar(&f.maxHold, "max-hold", 0, "free the lock after this long, renewed or not")
	fs.StringArrayVar(&f.meta, "meta", nil, "note KEY=VALUE in the lock's record; may be repeated")
}

// check finds out what the command line means, before anything is touched.
func (f *claimFlags) check(a cmd, cmd *cobra.Command) (err error) {
	f.timeoutSet, f.slotsSet = cmd.Flags().Changed("timeout"), cmd.Flags().Changed("slots")
	if f.ttl, err = a.TTL(f.ttl); err != nil {
		return err
	}
	switch {
	case f.timeoutSet && !f.wait:
		return app.Usagef("--timeout says how long to wait: it needs --wait")
	case f.timeout < 0:
		return app.Usagef("--timeout %v is negative", f.timeout)
	case f.slotsSet && f.slots < 1:
		return app.Usagef("--slots %d leaves room for nobody", f.slots)
	case f.slotsSet && f.slots >= lokt.Shared:
		return app.Usagef("--slots %d is no limit: use --shared", f.slots)
	case f.slotsSet && f.shared:
		return app.Usagef("--shared has no limit and --slots sets one: give one of them")
	case f.maxHold < 0 || f.maxHold > 0 && f.maxHold < time.Millisecond:
		return app.Usagef("--max-hold %v is too short", f.maxHold)
	}
	for _, kv := range f.meta {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" {
			return app.Usagef("--meta %q is not KEY=VALUE", kv)
		}
	}
	return nil
}

func (f *claimFlags) limit() int {
	switch {
	case f.shared:
		return lokt.Shared
	case f.slotsSet:
		return f.slots
	}
	return lokt.Exclusive
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

func (f *claimFlags) metadata() map[string]string {
	if len(f.meta) == 0 {
		return nil
	}
	m := make(map[string]string, len(f.meta))
	for _, kv := range f.meta {
		k, v, _ := strings.Cut(kv, "=")
		m[k] = v
	}
	return m
}

// announce tells a person at a terminal whom a claim is about to wait for.
func (a cmd) announce(ctx context.Context, b *app.Backend, c lokt.Claim) {
	if !app.IsTerminal(a.Err) {
		return
	}
	s, err := b.Get(ctx, c.Name)
	if err != nil {
		return
	}
	var blocked *lokt.BlockedError
	switch err = s.WouldGrant(c); {
	case errors.As(err, &blocked):
		a.Tell("waiting: %s", blockedText(b, blocked))
	case errors.Is(err, lokt.ErrFull):
		a.Tell("waiting for room: %v", err)
	}
}
