package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/wait"
	"github.com/lokt-dev/lokt/internal/guard"
)

type reserveOptions struct {
	wait.Flags
	why                    string
	shared, check, release bool
	ttl                    time.Duration
}

func newReserve(a cmd) *cobra.Command {
	var o reserveOptions
	cmd := app.Describe("reserve", &cobra.Command{})
	cmd.RunE = func(_ *cobra.Command, args []string) (err error) {
		claims := o.why != "" || o.shared || o.Wait || o.ttl != 0
		if o.ttl, err = a.TTL(o.ttl); err != nil {
			return err
		}
		if err := o.Check(cmd); err != nil {
			return err
		}
		switch {
		case o.check && o.release:
			return app.Usagef("--check looks and --release gives back: give one of them")
		case (o.check || o.release) && claims:
			return app.Usagef("--check and --release do not reserve anything: they go with no other flag")
		case o.check && len(args) == 0:
			return app.Usagef("give the paths to look at: lokt reserve --check PATH")
		case len(args) == 0 && claims:
			return app.Usagef("give what to reserve: lokt reserve 'src/auth/**'")
		}
		return a.runReserve(o, args)
	}
	fs := cmd.Flags()
	fs.StringVar(&o.why, "why", "", "say what for: `TEXT` that others are shown")
	fs.BoolVar(&o.shared, "shared", false, "share with others that share; exclude those that do not")
	o.Bind(cmd, "all of it is free")
	fs.DurationVar(&o.ttl, "ttl", 0, "end it after this long, unless it is reserved again; without, only --release ends it")
	fs.BoolVar(&o.check, "check", false, "reserve nothing, say which paths somebody else has reserved, and end with 2 if one is")
	fs.BoolVar(&o.release, "release", false, "give these patterns back, or all of yours")
	return cmd
}

func (a cmd) runReserve(o reserveOptions, args []string) error {
	dir, err := a.Dir()
	if err != nil {
		return err
	}
	c, err := a.checkout(dir)
	if err != nil {
		return err
	}
	var patterns []string
	for _, arg := range args {
		p, err := c.pattern(resolve(dir), arg)
		if err != nil {
			return app.Usage(err)
		}
		patterns = append(patterns, p)
	}
	slices.Sort(patterns)
	patterns = slices.Compact(patterns)
	switch {
	case o.check:
		return c.look(patterns)
	case o.release:
		return c.giveBack(patterns)
	case len(patterns) == 0:
		return c.list()
	}
	return c.reserve(o, patterns)
}

// reservation is how a reservation is told to programs.
type reservation struct {
	LockID    string    `json:"lock_id"`
	Owner     string    `json:"owner"`
	Host      string    `json:"host,omitzero"`
	AgentID   string    `json:"agent_id,omitzero"`
	Paths     []string  `json:"paths"`
	Shared    bool      `json:"shared,omitzero"`
	Why       string    `json:"why,omitzero"`
	Mine      bool      `json:"mine"`
	Token     uint64    `json:"token"`
	HeldSince time.Time `json:"held_since"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

func (c *checkout) views(all []lokt.Holder) []reservation {
	views := []reservation{}
	for _, h := range all {
		views = append(views, reservation{
			LockID: c.b.Shown(h.LeaseID), Owner: h.Owner.ID, Host: h.Owner.Host, AgentID: h.Owner.Session, Paths: slices.Concat([]string{}, h.Paths),
			Shared: h.Limit == lokt.Shared, Why: h.Metadata[metaWhy], Mine: c.Asker().Same(h.Owner), Token: h.Token, HeldSince: app.UTC(h.HeldSince),
			ExpiresAt: app.UTC(h.ExpiresAt),
		})
	}
	return views
}

func (c *checkout) reserve(o reserveOptions, patterns []string) error {
	claim := lokt.Claim{
		Name: c.lock, LeaseID: lokt.NewLeaseID(), Owner: c.Asker(), Refresh: true, Limit: lokt.Exclusive, TTL: o.ttl, Paths: patterns,
	}
	if o.why != "" {
		claim.Metadata = map[string]string{metaWhy: o.why}
	}
	if o.shared {
		claim.Limit = lokt.Shared
	}
	if err := claim.Validate(); err != nil {
		return app.Usage(err)
	}
	c.MakeRoot(c.b)
	h, err := o.Acquire(context.Background(), c.App, c.b, claim, inTheWay)
	var signal *guard.SignalError
	var blocked *lokt.BlockedError
	switch {
	case errors.As(err, &signal):
		return o.Left(c.App, signal)
	case errors.As(err, &blocked):
		return c.denied(blocked, o)
	case err != nil:
		return err
	}
	how, until, secret := "reserved", "until it is released", h.LeaseID
	if h.Renewals > 0 {
		how = "reserved again"
	}
	if !h.ExpiresAt.IsZero() {
		until = "for " + app.Short(h.ExpiresAt.Sub(h.AcquiredAt))
	}
	if c.b.Far == nil {
		secret = ""
	}
	return c.Granted(c.b, h, struct {
		Status  string `json:"status"` // "acquired"
		Name    string `json:"name"`
		LeaseID string `json:"lease_id,omitzero"` // on a server: proves whose it is
		reservation
		Refreshed bool `json:"refreshed,omitzero"`
	}{"acquired", h.Name, secret, c.views([]lokt.Holder{h})[0], h.Renewals > 0}, "%s %s %s", how, strings.Join(patterns, " "), until)
}

// inTheWay says what keeps a claim of paths out.
func inTheWay(e *lokt.BlockedError) string {
	switch {
	case len(e.Holders) > 0:
		var all []string
		for _, h := range e.Holders {
			paths := strings.Join(h.Paths, " ")
			if paths == "" {
				paths = "everything"
			}
			all = append(all, fmt.Sprintf("%s is reserved by %s", app.OneLine(paths), whoText(h, e.Now)))
		}
		return strings.Join(all, "; ")
	case e.Freeze != nil:
		return freezeText(e.Freeze, e.Now)
	case len(e.Ahead) > 0:
		return fmt.Sprintf("%s waits already for %s", e.Ahead[0].Owner, app.OneLine(strings.Join(e.Ahead[0].Paths, " ")))
	}
	return "there is no room for more reservations in this repository"
}

// denied says what keeps a claim of paths out, and ends the program with the code for it.
func (c *checkout) denied(e *lokt.BlockedError, o reserveOptions) error {
	text := wait.Outcome(e, inTheWay(e))
	ticket, line := o.Ticket()
	if ticket != "" {
		text += "; " + wait.GoOn(line)
	} else if !o.Wait {
		text += "; wait with --wait"
	}
	if c.JSON {
		return errors.Join(c.Print(struct {
			Status  string        `json:"status"` // "blocked"
			Name    string        `json:"name"`
			Holders []reservation `json:"holders"`
			Ahead   int           `json:"ahead"` // waiting claims that come first
			Frozen  bool          `json:"frozen"`
			Message string        `json:"message"`
			Ticket  string        `json:"ticket,omitzero"`
			GoOn    string        `json:"go_on,omitzero"`
		}{"blocked", c.lock, c.views(e.Holders), len(e.Ahead), e.Freeze != nil, text, ticket, line}), app.Exit(app.ExitBlocked))
	}
	c.Tell("%s", text)
	return app.Exit(app.ExitBlocked)
}

// look says which of the paths somebody else has reserved.
func (c *checkout) look(patterns []string) error {
	all, err := c.refusals(context.Background(), c.Asker(), patterns)
	if err != nil {
		return err
	}
	status, end := "free", app.Exit(app.ExitOK)
	if len(all) > 0 {
		status, end = "blocked", app.Exit(app.ExitBlocked)
	}
	type one struct {
		Path    string        `json:"path"`
		Holders []reservation `json:"holders"`
		Frozen  bool          `json:"frozen"`
	}
	text, list := []string{}, []one{}
	for _, r := range all {
		text, list = append(text, r.text()), append(list, one{r.path, c.views(r.Holders), r.Freeze != nil})
	}
	return errors.Join(c.Answer(struct {
		Status  string `json:"status"` // free or blocked
		Blocked []one  `json:"blocked"`
	}{status, list}, "%s", cmp.Or(strings.Join(text, "\n"), "nobody else has reserved that")), end)
}

// list shows all reservations.
func (c *checkout) list() error {
	s, err := c.b.Get(context.Background(), c.lock)
	if err != nil {
		return err
	}
	text := ""
	for _, h := range s.Live() {
		text += fmt.Sprintf("%s: %s\n", app.OneLine(strings.Join(h.Paths, " ")), whoText(h, s.Now))
	}
	return c.Answer(struct {
		Name         string        `json:"name"`
		Reservations []reservation `json:"reservations"`
		Waiters      int           `json:"waiters"`
	}{c.lock, c.views(s.Live()), len(s.Lock.Queue)}, "%s", cmp.Or(strings.TrimSpace(text), "nothing is reserved"))
}

// giveBack ends reservations of one's own: those of exactly these patterns, or all.
func (c *checkout) giveBack(patterns []string) error {
	ctx, by := context.Background(), c.Asker()
	s, err := c.b.Get(ctx, c.lock)
	if err != nil {
		return err
	}
	mine := slices.DeleteFunc(s.Live(), func(h lokt.Holder) bool { return h.Strict || !by.Same(h.Owner) })
	ended := slices.DeleteFunc(slices.Clone(mine), func(h lokt.Holder) bool { return len(patterns) > 0 && !slices.Equal(h.Paths, patterns) })
	switch {
	case len(ended) == 0:
		return app.Hint(app.Worded(lokt.ErrNotFound, "you have no such reservation"), "see: lokt reserve")
	case len(ended) == len(mine):
		ended, err = c.b.Release(ctx, lokt.Target{Name: c.lock, Owner: by, UpTo: s.Lock.Token})
	case c.b.Far != nil: // which does not tell the lease ID, and it alone proves which is meant
		return app.Hint(fmt.Errorf("%w: you have %d reservations, and the server cannot tell which of them you mean", lokt.ErrInvalid, len(mine)),
			"give it back with the lease_id that lokt reserve --json gave: lokt unlock %s --id LEASE_ID", c.lock)
	default:
		for _, h := range ended {
			if _, err = c.b.Release(ctx, lokt.Target{Name: c.lock, LeaseID: h.LeaseID, Owner: by}); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	var paths []string
	for _, h := range ended {
		paths = append(paths, h.Paths...)
	}
	return c.Answer(struct {
		Status   string        `json:"status"` // "released"
		Released []reservation `json:"released"`
	}{"released", c.views(ended)}, "released %s", strings.Join(paths, " "))
}
