package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/process"
)

type lockOptions struct {
	claimFlags
	name string
	pid  int
}

func newLock(a *app) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock NAME",
		Short: "Take a lock and keep it until it is unlocked or expires",
		Long: "Take a lock and keep it: nobody else gets it until it is unlocked, or --ttl is over, or the process that\n" +
			"--pid names has ended. Locking again refreshes it. Without --pid, and on a server, it does not matter which processes\n" +
			"end, or which hosts: a lock without --ttl on a server is there until somebody unlocks it.",
		Example:           "  lokt lock deploy --ttl 30m\n  lokt lock gpu --slots 2 --wait --timeout 1m",
		Args:              oneName,
		ValidArgsFunction: a.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.name = args[0]
			if err := o.check(a, cmd); err != nil {
				return err
			}
			switch {
			case cmd.Flags().Changed("pid") && o.pid <= 0:
				return usagef("--pid %d is not a process ID", o.pid)
			case cmd.Flags().Changed("pid") && len(a.serverURLs()) > 0:
				return usagef("--pid: a server cannot see processes; let the lock end by --ttl, or run the command with lokt guard")
			}
			return a.runLock(o)
		},
	}
	o.bind(cmd)
	cmd.Flags().IntVar(&o.pid, "pid", 0, "free the lock when this process ends")
	return cmd
}

func (a *app) runLock(o lockOptions) error {
	if err := validNames(o.name); err != nil {
		return err
	}
	b, err := a.backend()
	if err != nil {
		return err
	}
	c := lokt.Claim{
		Name: o.name, LeaseID: lokt.NewLeaseID(), Refresh: true, Limit: o.limit(), TTL: o.ttl, MaxHold: o.maxHold,
		Priority: o.priority, Wait: o.patience(), Metadata: o.metadata(),
	}
	ctx := context.Background()
	if c.Wait != 0 {
		signals := guard.Notify()
		defer signals.Stop()
		var stop func()
		ctx, stop = signals.Context(ctx)
		defer stop()
		if c.Owner, err = a.claimant(b); err != nil {
			return err
		}
		a.announce(ctx, b, c)
	} else {
		c.Owner = a.asker()
	}
	if o.pid != 0 {
		p, err := process.Lookup(o.pid)
		if err != nil {
			return fmt.Errorf("--pid %d: %w", o.pid, err)
		}
		c.Process = &p
	}
	h, err := b.Acquire(ctx, c)
	if err != nil {
		return a.denied(b, err, exitBlocked)
	}
	if a.json {
		return a.print(struct {
			Status    string `json:"status"`
			Name      string `json:"name"`
			LockID    string `json:"lock_id"`
			LeaseID   string `json:"lease_id,omitempty"` // on a server: proves whose the hold is, and lock_id is what others see of it
			Token     uint64 `json:"token"`
			ExpiresAt any    `json:"expires_at,omitempty"`
			Refreshed bool   `json:"refreshed,omitempty"`
		}{"acquired", h.Name, b.shown(h.LeaseID), b.secret(h.LeaseID), h.Token, anyTime(h), h.Renewals > 0})
	}
	how := "locked"
	if h.Renewals > 0 {
		how = "refreshed"
	}
	until := "until it is unlocked"
	if b.far != nil && h.ExpiresAt.IsZero() {
		until += ", by you or by force: nothing else ends it"
	}
	if !h.ExpiresAt.IsZero() {
		until = "for " + short(h.ExpiresAt.Sub(h.AcquiredAt))
	}
	a.say("%s %s %s", how, h.Name, until)
	return nil
}

// secret returns the lease ID if it is one that others do not see.
func (b *backend) secret(leaseID string) string {
	if b.shown(leaseID) == leaseID {
		return ""
	}
	return leaseID
}

func anyTime(h lokt.Holder) any {
	if t := at(h.ExpiresAt); t != nil {
		return t
	}
	return nil
}

// denied reports a claim that was not granted, and returns what ends the program with the right code.
func (a *app) denied(b *backend, err error, code int) error {
	var signal *guard.SignalError
	var blocked *lokt.BlockedError
	switch {
	case errors.As(err, &signal):
		return exit(signal.Code())
	case errors.Is(err, lokt.ErrFull):
		a.report(err)
		return exit(code)
	case !errors.As(err, &blocked):
		return err
	case a.json:
		return errors.Join(a.print(b.blockedJSON(blocked)), exit(code))
	}
	text := b.blockedText(blocked)
	var known *hintError
	if errors.As(err, &known) { // why waiting would not help
		text = fmt.Sprintf("%q is held by %s; %s", blocked.Name, b.holderText(blocked.Holders[0], blocked.Now), known.hint)
	}
	a.tell("%s", text)
	return exit(code)
}

// completionTime is how long a shell may have to wait for names.
const completionTime = 2 * time.Second

// completeNames offers the names of the locks on record.
func (a *app) completeNames(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	b, err := a.backend()
	if err != nil || lokt.ValidatePrefix(prefix) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	ctx, stop := context.WithTimeout(context.Background(), completionTime)
	defer stop()
	for s, err := range b.List(ctx, lokt.Filter{Prefix: prefix}) {
		if err == nil {
			names = append(names, s.Lock.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
