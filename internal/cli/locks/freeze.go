package locks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

func newFreeze(a cmd) *cobra.Command {
	var ttl time.Duration
	var reason string
	cmd := a.Named("freeze", func(cmd *cobra.Command, b *app.Backend, name string) error {
		return a.runFreeze(cmd.Context(), b, name, lokt.Freeze{ID: lokt.NewLeaseID(), Owner: a.Asker(), Reason: reason, TTL: ttl})
	})
	cmd.PreRunE = func(cmd *cobra.Command, args []string) (err error) {
		switch {
		case !cmd.Flags().Changed("ttl"):
			return app.Usagef("say for how long: %s", a.CommandLine("freeze", args[0], "--ttl", "10m"))
		case ttl == 0:
			return app.Usagef("--ttl 0 is no time to freeze for")
		}
		ttl, err = a.TTL(ttl)
		return err
	}
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "for how long, such as 90s or 5m (required; at least 1s)")
	cmd.Flags().StringVar(&reason, "reason", "", "why, to be shown to those who are kept out")
	return cmd
}

func (a cmd) runFreeze(ctx context.Context, b *app.Backend, name string, wanted lokt.Freeze) error {
	a.MakeRoot(b)
	f, err := b.Freeze(ctx, name, wanted)
	var blocked *lokt.BlockedError
	switch {
	case errors.As(err, &blocked) && !a.JSON && blocked.Freeze != nil && blocked.Freeze.Damaged == "":
		a.Tell("%q is frozen already, by %s; to end that: %s", name, freezeText(blocked.Freeze, blocked.Now),
			a.ByForce("unfreeze", name))
		return app.Exit(app.ExitBlocked)
	case err != nil:
		return a.denied(b, err, app.ExitBlocked, nil)
	}
	s, _ := b.Get(ctx, name) // the freeze stands, whatever is to be told of holders
	stay, how, refreshed := s.Live(), "froze", b.Shown(f.ID) != b.Shown(wanted.ID)
	if refreshed {
		how = "froze again"
	}
	err = a.Answer(struct {
		Status    string    `json:"status"`
		Name      string    `json:"name"`
		LockID    string    `json:"lock_id"`
		Owner     string    `json:"owner"`
		Reason    string    `json:"reason,omitzero"`
		TTLSec    int64     `json:"ttl_sec"`
		ExpiresAt time.Time `json:"expires_at"`
		Refreshed bool      `json:"refreshed,omitzero"`
		Holders   int       `json:"holders"` // who stay in
	}{"frozen", name, b.Shown(f.ID), f.Owner.ID, f.Reason, app.Seconds(f.TTL), f.ExpiresAt.UTC(), refreshed, len(stay)},
		"%s %s for %s", how, name, app.Short(f.TTL))
	for _, h := range stay {
		if !a.JSON {
			a.Tell("%s stays in: %s", name, holderText(b, h, f.At))
		}
	}
	return err
}

func newUnfreeze(a cmd) *cobra.Command {
	var force bool
	cmd := a.Named("unfreeze", func(cmd *cobra.Command, b *app.Backend, name string) error {
		return a.runUnfreeze(cmd.Context(), b, name, force)
	})
	cmd.Flags().BoolVar(&force, "force", false, "end the freeze, whoever's it is and whatever its record looks like")
	return cmd
}

func (a cmd) runUnfreeze(ctx context.Context, b *app.Backend, name string, force bool) error {
	s, err := b.Get(ctx, name)
	notFrozen := app.Worded(lokt.ErrNotFound, "%q is not frozen", name)
	switch {
	case err != nil:
		return err
	case s.Lock.Freeze == nil:
		return notFrozen
	}
	f, err := b.Unfreeze(ctx, lokt.Target{Name: name, LeaseID: s.Lock.Freeze.ID, Owner: a.Asker(), Force: force})
	var other *lokt.NotOwnerError
	switch {
	case errors.As(err, new(*lokt.GoneError)):
		return notFrozen
	case errors.As(err, &other) && other.Freeze != nil:
		text := app.Worded(err, "%q is frozen by %s", name, freezeText(other.Freeze, s.Now))
		return a.others(b, text, []lokt.Holder{{Claim: lokt.Claim{Owner: other.Freeze.Owner}}}, app.SameAgent)
	case errors.As(err, new(*lokt.BlockedError)):
		return a.denied(b, err, app.ExitBlocked, nil)
	case err != nil:
		return err
	}
	how := ""
	switch {
	case f.Damaged != "":
		how = fmt.Sprintf(": the record of the freeze was damaged (%s)", f.Damaged)
	case force:
		how = fmt.Sprintf(": ended the freeze by %s", f.Owner)
	}
	return a.Answer(struct {
		Status string  `json:"status"`
		Name   string  `json:"name"`
		LockID string  `json:"lock_id,omitzero"`
		Owner  string  `json:"owner,omitzero"` // whose freeze it was
		Forced bool    `json:"forced,omitzero"`
		Freeze *freeze `json:"freeze"`
	}{"unfrozen", name, f.ID, f.Owner.ID, force, viewFreeze(b, &f, s.Now)}, "unfroze %s%s", name, how)
}
