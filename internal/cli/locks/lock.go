package locks

import (
	"context"
	"fmt"
	"time"

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
	b, err := a.Open(o.name)
	if err != nil {
		return err
	}
	a.MakeRoot(b)
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
	waited := func() {}
	if c.Wait != 0 {
		waited = a.announce(ctx, b, c)
	}
	h, err := b.Acquire(ctx, c)
	waited()
	if err != nil {
		return a.denied(b, err, app.ExitBlocked, &o.claimFlags)
	}
	if a.JSON {
		return a.Print(struct {
			Status    string    `json:"status"`
			Name      string    `json:"name"`
			LockID    string    `json:"lock_id"`
			LeaseID   string    `json:"lease_id,omitzero"` // on a server: proves whose the hold is, and lock_id is what others see of it
			Token     uint64    `json:"token"`
			ExpiresAt time.Time `json:"expires_at,omitzero"`
			Refreshed bool      `json:"refreshed,omitzero"`
		}{"acquired", h.Name, b.Shown(h.LeaseID), secret(b, h.LeaseID), h.Token, h.ExpiresAt.UTC(), h.Renewals > 0})
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
