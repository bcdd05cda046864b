package locks

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/process"
)

type lockOptions struct {
	claimFlags
	name string
	pid  int
}

func newLock(a cmd) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock NAME",
		Short: "Take a lock and keep it until it is unlocked or expires",
		Long: "Take a lock and keep it: nobody else gets it until it is unlocked, or --ttl is over, or the process that\n" +
			"--pid names has ended. Locking again refreshes it. Without --pid, and on a server, it does not matter which processes\n" +
			"end, or which hosts: a lock without --ttl on a server is there until somebody unlocks it.",
		Example:           "  lokt lock deploy --ttl 30m\n  lokt lock gpu --slots 2 --wait --timeout 1m",
		Args:              app.OneName,
		ValidArgsFunction: a.CompleteNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.name = args[0]
			if err := o.check(a, cmd); err != nil {
				return err
			}
			switch {
			case cmd.Flags().Changed("pid") && o.pid <= 0:
				return app.Usagef("--pid %d is not a process ID", o.pid)
			case cmd.Flags().Changed("pid") && len(a.ServerURLs()) > 0:
				return app.Usagef("--pid: a server cannot see processes; let the lock end by --ttl, or run the command with lokt guard")
			}
			return a.runLock(o)
		},
	}
	o.bind(cmd)
	cmd.Flags().IntVar(&o.pid, "pid", 0, "free the lock when this process ends")
	return cmd
}

func (a cmd) runLock(o lockOptions) error {
	if err := app.ValidNames(o.name); err != nil {
		return err
	}
	b, err := a.Backend()
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
		if c.Owner, err = a.Claimant(b); err != nil {
			return err
		}
		a.announce(ctx, b, c)
	} else {
		c.Owner = a.Asker()
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
		return a.denied(b, err, app.ExitBlocked)
	}
	if a.JSON {
		return a.Print(struct {
			Status    string `json:"status"`
			Name      string `json:"name"`
			LockID    string `json:"lock_id"`
			LeaseID   string `json:"lease_id,omitempty"` // on a server: proves whose the hold is, and lock_id is what others see of it
			Token     uint64 `json:"token"`
			ExpiresAt any    `json:"expires_at,omitempty"`
			Refreshed bool   `json:"refreshed,omitempty"`
		}{"acquired", h.Name, b.Shown(h.LeaseID), secret(b, h.LeaseID), h.Token, anyTime(h), h.Renewals > 0})
	}
	how := "locked"
	if h.Renewals > 0 {
		how = "refreshed"
	}
	until := "until it is unlocked"
	if b.Far != nil && h.ExpiresAt.IsZero() {
		until += ", by you or by force: nothing else ends it"
	}
	if !h.ExpiresAt.IsZero() {
		until = "for " + app.Short(h.ExpiresAt.Sub(h.AcquiredAt))
	}
	a.Say("%s %s %s", how, h.Name, until)
	return nil
}

// secret returns the lease ID if it is one that others do not see.
func secret(b *app.Backend, leaseID string) string {
	if b.Shown(leaseID) == leaseID {
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
func (a cmd) denied(b *app.Backend, err error, code int) error {
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
	case a.JSON:
		return errors.Join(a.Print(viewBlocked(b, blocked)), app.Exit(code))
	}
	text := blockedText(b, blocked)
	var known *app.HintError
	if errors.As(err, &known) { // why waiting would not help
		text = fmt.Sprintf("%q is held by %s; %s", blocked.Name, holderText(b, blocked.Holders[0], blocked.Now), known.Hint)
	}
	a.Tell("%s", text)
	return app.Exit(code)
}
