package locks

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

type freezeOptions struct {
	name   string
	ttl    time.Duration
	reason string
}

func newFreeze(a cmd) *cobra.Command {
	var o freezeOptions
	cmd := &cobra.Command{
		Use:   "freeze NAME --ttl DURATION",
		Short: "Keep newcomers out of a lock for a while",
		Long: "Let nobody new have the lock until the time is over or it is unfrozen. Who holds it keeps it; who waits for it\n" +
			"waits on. Freezing again starts the time anew.",
		Example:           "  lokt freeze deploy --ttl 30m --reason 'incident 42'",
		Args:              app.OneName,
		ValidArgsFunction: a.CompleteNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.name = args[0]
			if !cmd.Flags().Changed("ttl") {
				return app.Usagef("say for how long: %s", a.CommandLine("freeze", o.name, "--ttl", "10m"))
			}
			if o.ttl == 0 {
				return app.Usagef("--ttl 0 is no time to freeze for")
			}
			var err error
			if o.ttl, err = a.TTL(o.ttl); err != nil {
				return err
			}
			return a.runFreeze(o)
		},
	}
	cmd.Flags().DurationVar(&o.ttl, "ttl", 0, "for how long, such as 90s or 5m (required; at least 1s)")
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, to be shown to those who are kept out")
	return cmd
}

func (a cmd) runFreeze(o freezeOptions) error {
	b, err := a.Open(o.name)
	if err != nil {
		return err
	}
	ctx, id := context.Background(), lokt.NewLeaseID()
	a.MakeRoot(b)
	f, err := b.Freeze(ctx, o.name, lokt.Freeze{ID: id, Owner: a.Asker(), Reason: o.reason, TTL: o.ttl})
	var blocked *lokt.BlockedError
	switch {
	case errors.As(err, &blocked) && !a.JSON && blocked.Freeze != nil && blocked.Freeze.Damaged == "":
		a.Tell("%q is frozen already, by %s; to end that: %s", o.name, freezeText(blocked.Freeze, blocked.Now),
			a.ByForce("unfreeze", o.name))
		return app.Exit(app.ExitBlocked)
	case err != nil:
		return a.denied(b, a.Repairable(err, o.name), app.ExitBlocked, nil)
	}
	var stay []lokt.Holder
	if s, err := b.Get(ctx, o.name); err == nil { // the freeze stands, whatever is to be told of holders
		stay = s.Live()
	}
	refreshed := b.Shown(f.ID) != b.Shown(id)
	if a.JSON {
		return a.Print(struct {
			Status    string    `json:"status"`
			Name      string    `json:"name"`
			LockID    string    `json:"lock_id"`
			Owner     string    `json:"owner"`
			Reason    string    `json:"reason,omitzero"`
			TTLSec    int64     `json:"ttl_sec"`
			ExpiresAt time.Time `json:"expires_at"`
			Refreshed bool      `json:"refreshed,omitzero"`
			Holders   int       `json:"holders"` // who stay in
		}{"frozen", o.name, b.Shown(f.ID), f.Owner.ID, f.Reason, app.Seconds(f.TTL), f.ExpiresAt.UTC(), refreshed, len(stay)})
	}
	how := "froze"
	if refreshed {
		how = "froze again"
	}
	a.Say("%s %s for %s", how, o.name, app.Short(f.TTL))
	for _, h := range stay {
		a.Tell("%s stays in: %s", o.name, holderText(b, h, f.At))
	}
	return nil
}

func newUnfreeze(a cmd) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:               "unfreeze NAME",
		Short:             "Let newcomers have a frozen lock again",
		Long:              "End a freeze of yours. --force ends anybody's, and one whose record is damaged.",
		Example:           "  lokt unfreeze deploy",
		Args:              app.OneName,
		ValidArgsFunction: a.CompleteNames,
		RunE:              func(_ *cobra.Command, args []string) error { return a.runUnfreeze(args[0], force) },
	}
	cmd.Flags().BoolVar(&force, "force", false, "end the freeze, whoever's it is and whatever its record looks like")
	return cmd
}

func (a cmd) runUnfreeze(name string, force bool) error {
	b, err := a.Open(name)
	if err != nil {
		return err
	}
	ctx, by := context.Background(), a.Asker()
	s, err := b.Get(ctx, name)
	notFrozen := app.Worded(lokt.ErrNotFound, "%q is not frozen", name)
	switch {
	case err != nil:
		return a.Repairable(err, name)
	case s.Lock.Freeze == nil:
		return notFrozen
	}
	f, err := b.Unfreeze(ctx, lokt.Target{Name: name, Owner: by, Force: force})
	var gone *lokt.GoneError
	var other *lokt.NotOwnerError
	var blocked *lokt.BlockedError
	switch {
	case errors.As(err, &gone):
		return notFrozen
	case errors.As(err, &other) && other.Freeze != nil:
		text := app.Worded(err, "%q was frozen by %s", name, freezeText(other.Freeze, s.Now))
		return app.Hint(text, "%s%s", app.SameAgent, a.OrForce())
	case errors.As(err, &blocked):
		return a.denied(b, err, app.ExitBlocked, nil)
	case err != nil:
		return a.Repairable(err, name)
	}
	if a.JSON {
		return a.Print(struct {
			Status string  `json:"status"`
			Name   string  `json:"name"`
			LockID string  `json:"lock_id,omitzero"`
			Owner  string  `json:"owner,omitzero"` // whose freeze it was
			Forced bool    `json:"forced,omitzero"`
			Freeze *freeze `json:"freeze"`
		}{"unfrozen", name, f.ID, f.Owner.ID, force, viewFreeze(b, &f, s.Now)})
	}
	switch {
	case f.Damaged != "":
		a.Say("unfroze %s: the record of the freeze was damaged (%s)", name, f.Damaged)
	case force:
		a.Say("unfroze %s: ended the freeze by %s", name, f.Owner)
	default:
		a.Say("unfroze %s", name)
	}
	return nil
}
