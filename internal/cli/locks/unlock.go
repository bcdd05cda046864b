package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

type unlockOptions struct {
	name       string
	force      bool
	breakStale bool
	all        bool
	owner      string
	id         string
}

func newUnlock(a cmd) *cobra.Command {
	var o unlockOptions
	var ownerSet bool
	cmd := &cobra.Command{
		Use:   "unlock [NAME]",
		Short: "Give a lock back, or take it from whoever has it",
		Long: "Give back the lease that you took with lokt lock. What a running guard holds it gives back by itself, when its\n" +
			"command ends; --force takes that away too, and whatever else holds the lock.",
		Example: "  lokt unlock deploy\n  lokt unlock deploy --break-stale\n  lokt unlock deploy --force\n  lokt unlock --all",
		Args: func(cmd *cobra.Command, args []string) error {
			ownerSet = cmd.Flags().Changed("owner")
			if len(args) == 0 && (o.all || ownerSet) {
				return nil
			}
			return app.OneName(cmd, args)
		},
		ValidArgsFunction: a.CompleteNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) > 0 && (o.all || ownerSet):
				return app.Usagef("give either the name of a lock or --all or --owner")
			case o.all && ownerSet:
				return app.Usagef("--all is about your own leases, --owner about somebody's: give one of them")
			case ownerSet && o.owner == "":
				return app.Usagef("--owner is empty")
			case o.force && o.breakStale:
				return app.Usagef("--force ends every hold, --break-stale only what is stale: give one of them")
			case cmd.Flags().Changed("id") && o.id == "":
				return app.Usagef("--id is empty")
			case o.id != "" && len(args) == 0:
				return app.Usagef("--id needs the name of the lock: lokt unlock NAME --id LOCK_ID")
			}
			if len(args) == 0 {
				return a.runUnlockMany(o)
			}
			o.name = args[0]
			return a.runUnlock(o)
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&o.force, "force", false, "end every hold, whoever's it is, running guards' too; remove a record that cannot be read")
	fs.BoolVar(&o.breakStale, "break-stale", false, "end only what has expired or whose process is dead, whoever's it is")
	fs.BoolVar(&o.all, "all", false, "end all your leases, of all names (guards only with --force)")
	fs.StringVar(&o.owner, "owner", "", "end all leases of this `owner`, of all names (guards only with --force)")
	fs.StringVar(&o.id, "id", "", "end only the hold with this `lock_id`")
	return cmd
}

// unlockedJSON is how ended holds are told to programs.
type unlockedJSON struct {
	Status   string   `json:"status"` // "released"
	Name     string   `json:"name,omitzero"`
	Released []string `json:"released"` // names
	Count    int      `json:"count"`    // of released
	Holds    []hold   `json:"holds"`
	Removed  []string `json:"removed_records,omitempty"` // files that could not be read
	Warnings []string `json:"warnings,omitempty"`
}

func (a cmd) runUnlock(o unlockOptions) error {
	if err := app.ValidNames(o.name); err != nil {
		return err
	}
	b, err := a.Backend()
	if err != nil {
		return err
	}
	ctx, by := context.Background(), a.Asker()
	if err := checkOwner(by); err != nil {
		return err
	}
	if b.Far != nil && o.id != "" && b.Shown(o.id) != o.id { // a lease ID, which proves whose the hold is
		b.Know(o.id)
	}
	s, err := b.Get(ctx, o.name)
	switch {
	case errors.Is(err, lokt.ErrDamaged) && o.force:
		return a.discard(ctx, b, o, by)
	case err != nil:
		return a.Repairable(err, o.name)
	case s.Lock.Free():
		return a.notUnlocked(b, s, o, &lokt.GoneError{Name: o.name})
	}
	if o.id != "" && !o.force && !o.breakStale {
		if err := ownHold(s, o.id, by); err != nil {
			return a.notUnlocked(b, s, o, err)
		}
	}
	t := lokt.Target{Name: o.name, LeaseID: o.id, Owner: by, Force: o.force, Stale: o.breakStale}
	if b.Far != nil && o.id != "" && !o.force && !o.breakStale && secret(b, o.id) == "" {
		if t, err = ownTarget(s, t); err != nil {
			return err
		}
	}
	ended, err := b.Release(ctx, t)
	var gone *lokt.GoneError
	if o.breakStale && errors.As(err, &gone) {
		if h, in := (lokt.Lock{Holders: gone.Holders}).Holder(o.id); in { // it is there, but not stale
			err = &lokt.BlockedError{Name: o.name, Holders: []lokt.Holder{h}, Now: s.Now}
		}
	}
	if err != nil {
		return a.notUnlocked(b, s, o, err)
	}
	v := unlockedJSON{Status: "released", Name: o.name, Released: []string{o.name}, Count: 1, Holds: []hold{}}
	for _, h := range ended {
		v.Holds = append(v.Holds, viewHold(b, s, h))
		if w := endedWarning(b, s, h, by, o.force); w != "" {
			v.Warnings = append(v.Warnings, w)
		}
	}
	for _, w := range v.Warnings {
		a.Tell("warning: %s", w)
	}
	if a.JSON {
		return a.Print(v)
	}
	switch {
	case len(ended) == 0 && o.id != "":
		a.Say("removed %s from the queue of %s", o.id, o.name)
	case len(ended) == 0:
		a.Say("unlocked %s: its record was damaged", o.name)
	case !o.force && !o.breakStale:
		a.Say("unlocked %s", o.name)
	}
	if o.force || o.breakStale {
		for _, h := range ended {
			a.Say("unlocked %s: ended the hold of %s", o.name, holderText(b, h, s.Now))
		}
	}
	return nil
}

// checkOwner refuses to act for an owner that there cannot be.
func checkOwner(o lokt.Owner) error {
	return (lokt.Claim{Name: "x", Owner: o}).Validate()
}

// ownTarget names the only lease of the owner by the owner: on a server, what others see of a lease ID proves nothing.
func ownTarget(s lokt.Snapshot, t lokt.Target) (lokt.Target, error) {
	leases := 0
	for _, h := range s.Lock.Holders {
		if !h.Strict && t.Owner.Same(h.Owner) {
			leases++
		}
	}
	if leases > 1 {
		return t, app.Hint(fmt.Errorf("%w: you have %d leases of %q, and %s only shows which one you mean", lokt.ErrInvalid, leases, t.Name, t.LeaseID),
			"prove that it is yours with the lease_id that `lokt lock --json` gave, or use --force")
	}
	t.LeaseID = ""
	return t, nil
}

// ownHold refuses a hold that is not the asker's own lease.
func ownHold(s lokt.Snapshot, leaseID string, by lokt.Owner) error {
	h, in := s.Lock.Holder(leaseID)
	switch {
	case !in:
		return &lokt.GoneError{Name: s.Lock.Name, LeaseID: leaseID, Holders: s.Live()}
	case !by.Same(h.Owner):
		return &lokt.NotOwnerError{Name: s.Lock.Name, Holders: []lokt.Holder{h}}
	case h.Strict:
		return &lokt.NotOwnerError{Name: s.Lock.Name, Holders: []lokt.Holder{h}, Guard: true}
	}
	return nil
}

// endedWarning says what its owner should know of a hold that was ended, if anything.
func endedWarning(b *app.Backend, s lokt.Snapshot, h lokt.Holder, by lokt.Owner, forced bool) string {
	_, stale := s.Stale(h)
	switch {
	case !forced && by.Same(h.Owner) && !h.ExpiresAt.IsZero() && s.Now.After(h.ExpiresAt):
		return fmt.Sprintf("%s had expired %s ago: others may have entered since", h.Name, app.Short(s.Now.Sub(h.ExpiresAt)))
	case forced && !stale && h.Strict:
		return fmt.Sprintf("the guard of %s with pid %d is still running, and no longer has %s", h.Owner, pid(h.Claim), h.Name)
	}
	return ""
}

// notUnlocked explains why there was nothing to end.
func (a cmd) notUnlocked(b *app.Backend, s lokt.Snapshot, o unlockOptions, err error) error {
	var gone *lokt.GoneError
	var other *lokt.NotOwnerError
	var blocked *lokt.BlockedError
	switch {
	case errors.As(err, &blocked):
		if a.JSON {
			return a.denied(b, err, app.ExitBlocked, nil)
		}
		text := fmt.Sprintf("%q is not stale", o.name)
		for _, h := range blocked.Holders {
			text += fmt.Sprintf(": it is held by %s", holderText(b, h, blocked.Now))
		}
		a.Tell("%s; to end it all the same: %s", text, a.ByForce("unlock", o.name))
		return app.Exit(app.ExitBlocked)
	case errors.As(err, &gone):
		switch {
		case o.id != "":
			return app.Hint(app.Worded(lokt.ErrNotFound, "no hold of %q has the lock_id %s", o.name, o.id), "see: %s", a.CommandLine("status", o.name))
		case s.Lock.Corrupt != "":
			return app.Hint(notHeld(o.name), "its record is damaged (%s): %s", s.Lock.Corrupt, a.ByForce("unlock", o.name))
		case s.Frozen() != nil:
			return app.Hint(notHeld(o.name), "it is frozen: %s", a.CommandLine("unfreeze", o.name))
		case len(s.Lock.Holders) > 0 && !o.breakStale:
			return app.Hint(notHeld(o.name), "what was on record was stale, and has been removed")
		}
		return notHeld(o.name)
	case errors.As(err, &other) && other.Guard:
		return app.Hint(err, "to take the lock from it all the same: %s", a.ByForce("unlock", o.name))
	case errors.As(err, &other) && len(other.Holders) > 0 && b.Far != nil && namedLike(a.Asker(), other.Holders):
		return app.Hint(app.Worded(err, "lock %q is held by %s: yours by name, but taken with another token of the server", o.name, holderText(b, other.Holders[0], s.Now)), "use that one%s", a.OrForce())
	case errors.As(err, &other) && len(other.Holders) > 0:
		text := app.Worded(err, "lock %q is held by %s", o.name, holderText(b, other.Holders[0], s.Now))
		return app.Hint(text, "%s%s", app.SameAgent, a.OrForce())
	}
	return a.Repairable(err, o.name)
}

// namedLike reports whether one of the holders has the owner's name, behind that of another caller of the server.
func namedLike(o lokt.Owner, holders []lokt.Holder) bool {
	return slices.ContainsFunc(holders, func(h lokt.Holder) bool {
		_, id, found := strings.Cut(h.Owner.ID, "/")
		h.Owner.ID = id
		return found && o.Same(h.Owner)
	})
}

// notHeld is the error about a lock that nobody holds.
func notHeld(name string) error { return app.Worded(lokt.ErrNotFound, "nobody holds %q", name) }

// discard removes the records of a lock that cannot be read, and then ends what can.
func (a cmd) discard(ctx context.Context, b *app.Backend, o unlockOptions, by lokt.Owner) error {
	if o.id != "" {
		return app.Usagef("the record of %q cannot be read, so there is no telling whether it has the lock_id: leave out --id", o.name)
	}
	if b.Store == nil {
		return fmt.Errorf("the record of %q cannot be read here: run this where the locks are kept", o.name)
	}
	moved, err := b.Store.Discard(ctx, o.name, by)
	if err != nil {
		return err
	}
	v := unlockedJSON{Status: "released", Name: o.name, Released: []string{o.name}, Count: 1, Holds: []hold{}}
	for _, d := range moved {
		v.Removed = append(v.Removed, d.Path)
		a.Tell("warning: moved %s away, which could not be read: %s", d.Path, d.Problem)
	}
	s, err := b.Get(ctx, o.name)
	if err != nil {
		return err
	}
	if len(s.Lock.Holders) > 0 {
		ended, err := b.Release(ctx, lokt.Target{Name: o.name, Owner: by, Force: true})
		if err != nil && !errors.Is(err, lokt.ErrNotFound) {
			return err
		}
		for _, h := range ended {
			v.Holds = append(v.Holds, viewHold(b, s, h))
			if !a.JSON {
				a.Say("unlocked %s: ended the hold of %s", o.name, holderText(b, h, s.Now))
			}
		}
	}
	if a.JSON {
		return a.Print(v)
	}
	a.Say("unlocked %s: its record could not be read", o.name)
	return nil
}

// runUnlockMany ends the leases of one owner over all names.
func (a cmd) runUnlockMany(o unlockOptions) error {
	b, err := a.Backend()
	if err != nil {
		return err
	}
	ctx, by := context.Background(), a.Asker()
	if err := checkOwner(by); err != nil {
		return err
	}
	v := unlockedJSON{Status: "released", Released: []string{}, Holds: []hold{}}
	var failed error
	warn := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		v.Warnings = append(v.Warnings, text)
		a.Tell("warning: %s", text)
	}
	for s, err := range b.List(ctx, lokt.Filter{}) {
		if err != nil {
			failed = fmt.Errorf("not all locks could be looked at: %w", err)
			warn("%v", err)
			continue
		}
		before := len(v.Holds)
		for _, h := range s.Lock.Holders {
			mine := by.Same(h.Owner)
			if o.all && !mine || !o.all && h.Owner.ID != o.owner {
				continue
			}
			_, stale := s.Stale(h)
			switch {
			case o.breakStale && !stale:
				continue
			case h.Strict && !stale && !o.force:
				warn("%s is held by a running guard (pid %d), which ends it by itself: left alone", h.Name, pid(h.Claim))
				continue
			}
			t := lokt.Target{Name: s.Lock.Name, LeaseID: h.LeaseID, Owner: by, Force: o.force || !mine, Stale: o.breakStale || h.Strict && !o.force}
			if b.Far != nil && mine && !t.Force && !t.Stale {
				t.LeaseID = "" // what is shown of it proves nothing, so this ends all leases of the owner
			}
			ended, err := b.Release(ctx, t)
			if errors.Is(err, lokt.ErrNotFound) || errors.Is(err, lokt.ErrNotOwner) || errors.Is(err, lokt.ErrHeld) {
				continue // it ended, or came to life, since it was listed
			}
			if err != nil {
				failed = err
				warn("%s: %v", s.Lock.Name, err)
				continue
			}
			for _, h := range ended {
				v.Holds = append(v.Holds, viewHold(b, s, h))
				if w := endedWarning(b, s, h, by, o.force); w != "" {
					warn("%s", w)
				}
				if !a.JSON {
					a.Say("unlocked %s: ended the hold of %s", h.Name, holderText(b, h, s.Now))
				}
			}
		}
		if len(v.Holds) > before {
			v.Released = append(v.Released, s.Lock.Name)
		}
	}
	v.Count = len(v.Released)
	switch {
	case a.JSON:
		return errors.Join(a.Print(v), silentIf(failed))
	case v.Count == 0 && failed == nil:
		a.Tell("there was nothing to unlock")
	}
	return silentIf(failed)
}

// silentIf ends the program as an error does that was told already.
func silentIf(err error) error {
	if err == nil {
		return nil
	}
	_, code := app.Classify(err)
	return app.Exit(code)
}
