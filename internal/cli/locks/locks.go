// Package locks has the commands that take, give back and look at locks.
package locks

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/process"
)

// cmd is what the commands of this package share.
type cmd struct{ *app.App }

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{
		{Name: "guard", Build: func(a *app.App) *cobra.Command { return Guard(a, nil) }},
		{Name: "lock", Build: app.On(newLock)},
		{Name: "unlock", Build: app.On(newUnlock)},
		{Name: "status", Build: app.On(newStatus)},
		{Name: "exists", Build: app.On(newExists)},
		{Name: "why", Build: app.On(newWhy)},
		{Name: "freeze", Build: app.On(newFreeze)},
		{Name: "unfreeze", Build: app.On(newUnfreeze)},
	}
}

func newExists(a cmd) *cobra.Command {
	return a.Named("exists", func(cmd *cobra.Command, b *app.Backend, name string) error {
		s, err := b.Get(cmd.Context(), name)
		held := len(s.Live()) > 0
		if err == nil && a.JSON {
			err = a.Print(struct {
				Name string `json:"name"`
				Held bool   `json:"held"`
			}{name, held})
		}
		if err != nil || held {
			return err
		}
		return app.Exit(app.ExitNotFound)
	})
}

type lockOptions struct {
	claimFlags
	pid int
}

func newLock(a cmd) *cobra.Command {
	var o lockOptions
	cmd := a.Named("lock", func(cmd *cobra.Command, b *app.Backend, name string) error {
		return a.runLock(cmd.Context(), b, name, o)
	})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch pid := cmd.Flags().Changed("pid"); {
		case pid && o.pid <= 0:
			return app.Usagef("--pid %d is not a process ID", o.pid)
		case pid && len(a.ServerURLs()) > 0:
			return app.Usagef("--pid: a server cannot see processes; let the lock end by --ttl, or run the command with lokt guard")
		}
		return o.check(a, cmd)
	}
	o.bind(cmd)
	cmd.Flags().IntVar(&o.pid, "pid", 0, "free the lock when this process ends")
	return cmd
}

func (a cmd) runLock(ctx context.Context, b *app.Backend, name string, o lockOptions) error {
	a.MakeRoot(b)
	c := lokt.Claim{
		Name: name, LeaseID: lokt.NewLeaseID(), Owner: a.Asker(), Refresh: true, Limit: o.limit(), TTL: o.ttl, MaxHold: o.maxHold,
		Weight: o.weight, Priority: o.priority, Metadata: o.metadata,
	}
	if o.pid != 0 {
		p, err := process.Lookup(o.pid)
		if err != nil {
			return fmt.Errorf("--pid %d: %w", o.pid, err)
		}
		c.Process = &p
	}
	h, err := o.Acquire(ctx, a.App, b, c, waitText(b))
	if err != nil {
		return a.denied(b, err, app.ExitBlocked, &o.claimFlags)
	}
	how, until := "locked", "until it is unlocked"
	if h.Renewals > 0 {
		how = "refreshed"
	}
	switch {
	case o.pid != 0 && h.ExpiresAt.IsZero():
		until = fmt.Sprintf("until process %d ends", o.pid)
	case !h.ExpiresAt.IsZero():
		until = "for " + app.Short(h.ExpiresAt.Sub(h.AcquiredAt))
	case b.Far != nil:
		until += ", by you or by force: nothing else ends it"
	}
	return a.Granted(b, h, struct {
		Status    string    `json:"status"`
		Name      string    `json:"name"`
		LockID    string    `json:"lock_id"`
		LeaseID   string    `json:"lease_id,omitzero"` // on a server: proves whose the hold is, and lock_id is what others see of it
		Token     uint64    `json:"token"`
		ExpiresAt time.Time `json:"expires_at,omitzero"`
		Refreshed bool      `json:"refreshed,omitzero"`
	}{"acquired", h.Name, b.Shown(h.LeaseID), secret(b, h.LeaseID), h.Token, h.ExpiresAt.UTC(), h.Renewals > 0}, "%s %s %s", how, h.Name, until)
}

// secret returns the lease ID if it is one that others do not see.
func secret(b *app.Backend, leaseID string) string {
	return map[bool]string{b.Shown(leaseID) != leaseID: leaseID}[true]
}
