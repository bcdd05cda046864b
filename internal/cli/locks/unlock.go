package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

// unlocking is one run of the command: its flags, and what came of them.
type unlocking struct {
	cmd
	name              string // empty with all or an owner
	force, breakStale bool
	all               bool
	owner, id         string

	b  *app.Backend
	by lokt.Owner
	v  unlocked
}

// unlocked is how ended holds are told to programs.
type unlocked struct {
	Status   string   `json:"status"` // "released"
	Name     string   `json:"name,omitzero"`
	Released []string `json:"released"` // names
	Count    int      `json:"count"`    // of released
	Holds    []hold   `json:"holds"`
	Removed  []string `json:"removed_records,omitempty"` // files that could not be read
	Warnings []string `json:"warnings,omitempty"`
}

func newUnlock(a cmd) *cobra.Command {
	u := &unlocking{cmd: a}
	cmd := app.Describe("unlock", &cobra.Command{
		ValidArgsFunction: a.CompleteNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := app.NotEmpty(cmd, "owner", "id"); err != nil {
				return err
			}
			owner := u.owner != ""
			many := u.all || owner
			switch {
			case u.all && owner:
				return app.Usagef("--all is about your own leases, --owner about somebody's: give one of them")
			case u.force && u.breakStale:
				return app.Usagef("--force ends every hold, --break-stale only what is stale: give one of them")
			case many && len(args) > 0:
				return app.Usagef("give either the name of a lock or --all or --owner")
			case many && u.id != "":
				return app.Usagef("--id needs the name of the lock: lokt unlock NAME --id LOCK_ID")
			case !many:
				if err := app.OneName(cmd, args); err != nil {
					return err
				}
				u.name = args[0]
			}
			return u.run(cmd.Context(), args...)
		},
	})
	fs := cmd.Flags()
	fs.BoolVar(&u.force, "force", false, "end every hold, whoever's it is, running guards' too; remove a record that cannot be read")
	fs.BoolVar(&u.breakStale, "break-stale", false, "end only what has expired or whose process is dead, whoever's it is")
	fs.BoolVar(&u.all, "all", false, "end all your leases, of all names (guards only with --force)")
	fs.StringVar(&u.owner, "owner", "", "end all leases of this `owner`, of all names (guards only with --force)")
	fs.StringVar(&u.id, "id", "", "end only the hold with this `lock_id`")
	return cmd
}

// run ends holds of one lock, or of all if it is not named.
func (u *unlocking) run(ctx context.Context, names ...string) (err error) {
	if u.b, err = u.Open(names...); err != nil {
		return err
	}
	u.by, u.v = u.Asker(), unlocked{Status: "released", Name: u.name}
	if err := (lokt.Claim{Name: "x", Owner: u.by}).Validate(); err != nil {
		return err
	}
	if len(names) == 0 {
		return u.many(ctx)
	}
	return u.Repairable(u.one(ctx), u.name)
}

func (u *unlocking) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	u.v.Warnings = append(u.v.Warnings, text)
	u.Tell("warning: %s", text)
}

// ended takes note of holds that were ended, and tells of them if others than their owner might want to know.
func (u *unlocking) ended(s lokt.Snapshot, holders []lokt.Holder, tell bool) {
	for _, h := range holders {
		u.v.Holds = append(u.v.Holds, viewHold(u.b, s, h))
		_, stale := s.Stale(h)
		switch {
		case !u.force && u.by.Same(h.Owner) && !h.ExpiresAt.IsZero() && s.Now.After(h.ExpiresAt):
			u.warn("%s had expired %s ago: others may have entered since", h.Name, app.Short(s.Now.Sub(h.ExpiresAt)))
		case u.force && !stale && h.Strict && (pid(h.Claim) > 0 || h.Attended):
			with := strings.TrimSuffix(fmt.Sprintf(" with pid %d", pid(h.Claim)), " with pid 0") // which Terraform does not tell
			u.warn("the guard of %s%s is still running, and no longer has %s", h.Owner, with, h.Name)
		}
		if tell && !u.JSON {
			u.Say("unlocked %s: ended the hold of %s", s.Lock.Name, holderText(u.b, h, s.Now))
		}
	}
}

// one ends holds of one lock.
func (u *unlocking) one(ctx context.Context) error {
	mine := !u.force && !u.breakStale
	if u.b.Far != nil && u.id != "" && secret(u.b, u.id) != "" { // a lease ID, which proves whose the hold is
		u.b.Far.Know(u.id)
	}
	s, err := u.b.Get(ctx, u.name)
	switch {
	case errors.Is(err, lokt.ErrDamaged) && u.force:
		return u.discard(ctx)
	case err != nil:
		return err
	case s.Lock.Free():
		return u.failed(s, &lokt.GoneError{Name: u.name})
	}
	t := lokt.Target{Name: u.name, LeaseID: u.id, Owner: u.by, Force: u.force, Stale: u.breakStale, UpTo: s.Lock.Token}
	if u.id != "" && mine {
		if t.LeaseID, err = u.own(s); err != nil {
			return u.failed(s, err)
		}
	}
	ended, err := u.b.Release(ctx, t)
	if gone, ok := errors.AsType[*lokt.GoneError](err); ok && u.breakStale {
		if h, in := (lokt.Lock{Holders: gone.Holders}).Holder(u.id); in { // it is there, but not stale
			err = &lokt.BlockedError{Name: u.name, Holders: []lokt.Holder{h}, Now: s.Now}
		}
	}
	if err != nil {
		return u.failed(s, err)
	}
	u.ended(s, ended, !mine)
	if u.JSON {
		return u.print(u.name)
	}
	switch {
	case len(ended) == 0 && u.id != "":
		u.Say("removed %s from the queue of %s; if its command still waits, it asks again, and comes last", u.id, u.name)
	case len(ended) == 0:
		u.Say("unlocked %s: its record was damaged", u.name)
	case mine:
		u.Say("unlocked %s", u.name)
	}
	return nil
}

// print tells programs which names were released.
func (u *unlocking) print(names ...string) error {
	u.v.Released, u.v.Count = names, len(names)
	return u.Print(u.v)
}

// own returns the lease ID to end the asker's own lease by that is meant; none if the owner names it. It refuses what is
// none. On a server, what others see of a lease ID proves nothing.
func (u *unlocking) own(s lokt.Snapshot) (leaseID string, err error) {
	h, in := s.Lock.Holder(u.id)
	switch {
	case !in:
		return "", &lokt.GoneError{Name: u.name, LeaseID: u.id, Holders: s.Live()}
	case !u.by.Same(h.Owner) || h.Strict:
		return "", &lokt.NotOwnerError{Name: u.name, Holders: []lokt.Holder{h}, Guard: u.by.Same(h.Owner)}
	case u.b.Far == nil || secret(u.b, u.id) != "":
		return u.id, nil
	}
	mine := slices.DeleteFunc(slices.Clone(s.Lock.Holders), func(h lokt.Holder) bool { return h.Strict || !u.by.Same(h.Owner) })
	if len(mine) > 1 {
		return "", app.Hint(fmt.Errorf("%w: you have %d leases of %q, and %s only shows which one you mean", lokt.ErrInvalid, len(mine), u.name, u.id),
			"prove that it is yours with the lease_id that `lokt lock --json` gave, or use --force")
	}
	return "", nil
}

// failed explains why there was nothing to end.
func (u *unlocking) failed(s lokt.Snapshot, err error) error {
	var other *lokt.NotOwnerError
	var blocked *lokt.BlockedError
	free := app.Worded(lokt.ErrNotFound, "nobody holds %q", u.name)
	switch {
	case errors.As(err, &blocked) && u.JSON:
		return u.denied(u.b, err, app.ExitBlocked, nil)
	case errors.As(err, &blocked):
		text, by := fmt.Sprintf("%q has passed to another meanwhile", u.name), ": it is held by "
		if u.breakStale {
			text = fmt.Sprintf("%q is not stale", u.name)
		}
		for _, h := range blocked.Holders {
			text, by = text+by+holderText(u.b, h, blocked.Now), ", and by "
		}
		u.Tell("%s; to end it all the same: %s", text, u.ByForce("unlock", u.name))
		return app.Exit(app.ExitBlocked)
	case errors.As(err, new(*lokt.GoneError)):
		switch {
		case u.id != "":
			return app.Hint(app.Worded(lokt.ErrNotFound, "no hold of %q has the lock_id %s", u.name, u.id), "see: %s", u.CommandLine("status", u.name))
		case s.Lock.Corrupt != "":
			return app.Hint(free, "its record is damaged (%s): %s", s.Lock.Corrupt, u.ByForce("unlock", u.name))
		case s.Frozen() != nil:
			return app.Hint(free, "it is frozen: %s", u.CommandLine("unfreeze", u.name))
		case len(s.Lock.Holders) > 0 && !u.breakStale:
			return app.Hint(free, "what was on record was stale, and has been removed")
		}
		return free
	case errors.As(err, &other) && other.Guard:
		return app.Hint(err, "to take the lock from it all the same: %s", u.ByForce("unlock", u.name))
	case errors.As(err, &other) && len(other.Holders) > 0:
		text := app.Worded(err, "lock %q is held by %s", u.name, holderText(u.b, other.Holders[0], s.Now))
		return u.others(u.b, text, other.Holders, cmp.Or(ofJob(other.Holders[0]), app.SameAgent))
	}
	return err
}

// others says what can be done about what others hold: it may be the asker's by name, behind that of another caller of the server.
func (a cmd) others(b *app.Backend, err error, holders []lokt.Holder, advice string) error {
	by := a.Asker()
	if b.Far != nil && slices.ContainsFunc(holders, func(h lokt.Holder) bool {
		_, id, found := strings.Cut(h.Owner.ID, "/")
		h.Owner.ID = id
		return found && by.Same(h.Owner)
	}) {
		err, advice = app.Worded(err, "%v: yours by name, but taken with another token of the server", err), "use that one"
	}
	return app.Hint(err, "%s%s", advice, a.OrForce())
}

// discard removes the records of a lock that cannot be read, and then ends what can.
func (u *unlocking) discard(ctx context.Context) error {
	if u.id != "" {
		return app.Usagef("the record of %q cannot be read, so there is no telling whether it has the lock_id: leave out --id", u.name)
	}
	if u.b.Store == nil {
		return fmt.Errorf("the server cannot read the record of %q, and keeps it: %s", u.name, u.Remove(u.name))
	}
	moved, err := u.b.Store.Discard(ctx, u.name, u.by)
	if err != nil {
		return err
	}
	for _, d := range moved {
		u.v.Removed = append(u.v.Removed, d.Path)
		u.Tell("warning: moved %s away, which could not be read: %s", d.Path, d.Problem)
	}
	s, err := u.b.Get(ctx, u.name)
	if err == nil && len(s.Lock.Holders) > 0 {
		var ended []lokt.Holder
		if ended, err = u.b.Release(ctx, lokt.Target{Name: u.name, Owner: u.by, Force: true}); errors.Is(err, lokt.ErrNotFound) {
			err = nil
		}
		u.ended(s, ended, true)
	}
	switch {
	case err != nil:
		return err
	case u.JSON:
		return u.print(u.name)
	}
	u.Say("unlocked %s: its record could not be read", u.name)
	return nil
}

// many ends the leases of one owner over all names.
func (u *unlocking) many(ctx context.Context) error {
	var failed error
	var names []string
	for s, err := range u.b.List(ctx, lokt.Filter{}) {
		if err != nil {
			failed = fmt.Errorf("not all locks could be looked at: %w", err)
			u.warn("%v", err)
			continue
		}
		before := len(u.v.Holds)
		for _, h := range s.Lock.Holders {
			mine := u.by.Same(h.Owner)
			_, stale := s.Stale(h)
			switch {
			case u.all && !mine, !u.all && h.Owner.ID != u.owner, u.breakStale && !stale:
				continue
			case h.Strict && !stale && !u.force && pid(h.Claim) == 0:
				u.warn("%s is held for no process that is known, and ends by itself: left alone", h.Name)
				continue
			case h.Strict && !stale && !u.force:
				u.warn("%s is held by a running guard (pid %d), which ends it by itself: left alone", h.Name, pid(h.Claim))
				continue
			}
			t := lokt.Target{Name: s.Lock.Name, LeaseID: h.LeaseID, Owner: u.by, Force: u.force || !mine, Stale: u.breakStale || h.Strict && !u.force, UpTo: s.Lock.Token}
			if u.b.Far != nil && mine && !t.Force && !t.Stale {
				t.LeaseID = "" // what is shown of it proves nothing, so this ends all leases of the owner
			}
			ended, err := u.b.Release(ctx, t)
			switch {
			case errors.Is(err, lokt.ErrNotFound), errors.Is(err, lokt.ErrNotOwner), errors.Is(err, lokt.ErrHeld): // it ended, or came to life, since it was listed
			case err != nil:
				failed = err
				u.warn("%s: %v", s.Lock.Name, err)
			default:
				u.ended(s, ended, true)
			}
		}
		if len(u.v.Holds) > before {
			names = append(names, s.Lock.Name)
		}
	}
	switch {
	case u.JSON:
		return errors.Join(u.print(names...), silentIf(failed))
	case len(names) == 0 && failed == nil:
		u.Tell("there was nothing to unlock")
	}
	return silentIf(failed)
}

// silentIf ends the program as an error does that was told already.
func silentIf(err error) error {
	if err == nil {
		return nil
	}
	_, code, _ := app.Classify(err)
	return app.Exit(code)
}
