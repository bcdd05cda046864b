// Package talk has the commands that ask who holds a lock, answer, and pass a hold on.
package talk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
)

// Commands returns the commands of this package.
func Commands() []app.Command {
	return []app.Command{{Name: "ask", Build: newAsk}, {Name: "answer", Build: newAnswer}, {Name: "pass", Build: newPass}}
}

// told is how a question, an answer or a pass is told to programs.
type told struct {
	Status    string    `json:"status"` // asked, answered, passed, or passing while the old hold lasts
	Name      string    `json:"name"`
	ID        string    `json:"id,omitzero"`      // of the question
	LockID    string    `json:"lock_id,omitzero"` // of the hold that was asked, or that there is now
	Owner     string    `json:"owner,omitzero"`   // whose that is
	AgentID   string    `json:"agent_id,omitzero"`
	Token     uint64    `json:"token,omitzero"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Answer    string    `json:"answer,omitzero"`
}

func tell(b *app.Backend, status string, h lokt.Holder) told {
	return told{Status: status, Name: h.Name, LockID: b.Shown(h.LeaseID), Owner: h.Owner.ID, AgentID: h.Owner.Session, Token: h.Token, ExpiresAt: app.UTC(h.ExpiresAt)}
}

// withText builds a command about a lock and a text.
func withText(a *app.App, command string, run func(ctx context.Context, b *app.Backend, name, text string) error) *cobra.Command {
	return app.Describe(command, &cobra.Command{
		ValidArgsFunction: a.CompleteNames,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 || args[1] == "" {
				return app.Usagef("give the name of a lock and a text in quotes: lokt %s NAME TEXT", command)
			}
			b, err := a.Open(args[0])
			if err != nil {
				return err
			}
			ctx, stop := guard.Notify().Context(context.Background())
			defer stop()
			return a.Repairable(run(ctx, b, args[0], args[1]), args[0])
		},
	})
}

func newAsk(a *app.App) *cobra.Command {
	var id string
	var wait bool
	var timeout time.Duration
	cmd := withText(a, "ask", func(ctx context.Context, b *app.Backend, name, text string) error {
		m := lokt.Message{ID: lokt.NewLeaseID(), Text: text}
		h, err := b.Tell(ctx, lokt.Target{Name: name, LeaseID: id, Owner: a.Asker()}, m)
		switch {
		case id == "" && errors.Is(err, lokt.ErrNotFound):
			return app.Worded(lokt.ErrNotFound, "nobody holds %q", name)
		case id == "" && errors.Is(err, lokt.ErrNotOwner): // all holds are the owner's
			return app.Worded(lokt.ErrInvalid, "nobody but you holds %q", name)
		case err != nil:
			return err
		}
		v := tell(b, "asked", h)
		if v.ID = m.ID; !wait {
			return a.Answer(v, "asked %s; the answer will be in: %s", h.Owner, a.CommandLine("status", name))
		}
		a.Tell("asked %s, waiting for the answer", h.Owner)
		if timeout > 0 {
			var done context.CancelFunc
			ctx, done = context.WithTimeout(ctx, timeout)
			defer done()
		}
		return await(ctx, a, b, h, v)
	})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if timeout < 0 || cmd.Flags().Changed("timeout") && !wait {
			return app.Usagef("--timeout says how long to wait: it needs --wait, and is not negative")
		}
		return app.NotEmpty(cmd, "id")
	}
	cmd.Flags().StringVar(&id, "id", "", "ask the hold with this `lock_id`, instead of the first of another")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait for the answer, as long as the hold lasts")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "with --wait: give up after this long; 0 never does")
	return cmd
}

// await waits until the holder answers a question.
func await(ctx context.Context, a *app.App, b *app.Backend, h lokt.Holder, v told) error {
	for {
		s, err := b.Get(ctx, v.Name)
		if err == nil {
			i := slices.IndexFunc(s.Lock.Holders, func(now lokt.Holder) bool { return now.Token == h.Token })
			if i < 0 {
				return app.Hint(app.Worded(lokt.ErrNotFound, "%s does not hold %q any more, and has not answered", h.Owner, v.Name), "see: %s", a.CommandLine("status", v.Name))
			}
			for _, have := range s.Lock.Holders[i].Messages {
				if have.ID == v.ID && have.Answer != "" {
					v.Status, v.Answer = "answered", have.Answer
					return a.Answer(v, "%s: %s", h.Owner, app.OneLine(have.Answer))
				}
			}
			err = b.Wait(ctx, lokt.Watch{Name: v.Name, Seen: s.Lock.Revision})
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return app.Hint(app.Worded(lokt.ErrHeld, "there is no answer yet"), "it will be in: %s", a.CommandLine("status", v.Name))
		} else if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
}

func newAnswer(a *app.App) *cobra.Command {
	return withText(a, "answer", func(ctx context.Context, b *app.Backend, name, text string) error {
		by, open := a.Asker(), false
		s, err := b.Get(ctx, name)
		if err != nil {
			return err
		}
		for _, h := range s.Lock.Holders {
			open = open || by.Same(h.Owner) && slices.ContainsFunc(h.Messages, func(m lokt.Message) bool { return m.Answer == "" })
		}
		if !open {
			return app.Worded(lokt.ErrNotFound, "nobody waits for an answer of yours about %q", name)
		}
		h, err := b.Tell(ctx, lokt.Target{Name: name, Owner: by}, lokt.Message{Answer: text})
		if err != nil {
			return err
		}
		return a.Answer(tell(b, "answered", h), "answered what was asked about %s", name)
	})
}

func newPass(a *app.App) *cobra.Command {
	var recipient, session, note, id string
	var ttl time.Duration
	var force bool
	cmd := a.Named("pass", func(cmd *cobra.Command, b *app.Backend, name string) error {
		s, err := b.Get(cmd.Context(), name)
		switch {
		case err != nil:
			return err
		case len(s.Lock.Holders) == 0: // a request would pass on what is granted before it arrives
			return app.Worded(lokt.ErrNotFound, "nobody holds %q", name)
		}
		by := a.Asker()
		to := lokt.Owner{ID: cmp.Or(recipient, by.ID), Session: session, AnySession: session == ""}
		for _, w := range s.Lock.Queue {
			if session == "" && slices.Contains([]string{w.Owner.ID, w.Owner.String(), w.Owner.Session}, recipient) && !s.Away(w) {
				to = w.Owner
				break
			}
		}
		t := lokt.Target{Name: name, LeaseID: id, Owner: by, Force: force, UpTo: s.Lock.Token}
		h, err := b.Tell(cmd.Context(), t, lokt.Message{Text: note, Pass: &lokt.Claim{Owner: to, TTL: ttl}})
		switch {
		case errors.As(err, new(*lokt.NotOwnerError)):
			return app.Hint(err, "%s%s", app.SameAgent, a.OrForce())
		case errors.Is(err, lokt.ErrHeld):
			return fmt.Errorf("%s could not begin: %w", to, err)
		case err != nil:
			return err
		case to.ID == h.Owner.ID && to.Session == h.Owner.Session:
			return a.Answer(tell(b, "passed", h), "passed %s to %s", name, h.Owner)
		}
		return a.Answer(tell(b, "passing", h), "%s goes to %s when what %s runs under it has ended, which is told to end", name, to, h.Owner)
	})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if recipient == "" && session == "" {
			return app.Usagef("say to whom: --to OWNER, as lokt status names who waits, or lokt whoami says there")
		}
		ttl, err = a.TTL(ttl)
		return cmp.Or(err, app.NotEmpty(cmd, "id"))
	}
	cmd.Flags().StringVar(&recipient, "to", "", "the `OWNER` who gets it, or the session of one who waits (default: you, in the --session)")
	cmd.Flags().StringVar(&session, "session", "", "of that owner")
	cmd.Flags().StringVar(&note, "note", "", "`TEXT` that the new holder is shown")
	cmd.Flags().DurationVar(&ttl, "ttl", 10*time.Minute, "unless the owner waits: how long the new hold lasts; 0 is until it is unlocked")
	cmd.Flags().StringVar(&id, "id", "", "pass on the hold with this `lock_id`")
	cmd.Flags().BoolVar(&force, "force", false, "pass on the first hold, whoever's it is")
	return cmd
}
