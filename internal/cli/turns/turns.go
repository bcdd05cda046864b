// Package turns has the guard that goes by what lokt.toml says of its locks. It is linked into a program of its own, which lokt guard
// becomes where a file has such rules.
//
// Turns that are over are remembered as holds that end by themselves, of locks beside the one that they are about: NAME.every is
// held for the period after a success, NAME.rate by each turn that counts. They are looked at and claimed while the lock
// itself is held, so that nobody comes between.
package turns

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/policy"
)

// Guard builds the command.
func Guard(a *app.App) *cobra.Command { return locks.Guard(a, &turns{App: a}) }

// Why builds the command that tells of the rules.
func Why(a *app.App) *cobra.Command {
	return locks.Why(a, func(name string) string {
		dir, _ := a.Dir() // without one there are no rules
		return policy.Rule(dir, name)
	})
}

// turns are those of one guard.
type turns struct {
	*app.App
	*locks.Asked
	rules []rule
}

// rule is what is said of one of the locks.
type rule struct {
	policy.Lock
	name, at string // at is the place of the rule
}

// Before finds the rules, and implements locks.Turns.
func (t *turns) Before(ctx context.Context, asked *locks.Asked) error {
	t.Asked = asked
	dir, err := t.Dir()
	if err != nil {
		return err
	}
	p, err := policy.Find(dir)
	if err != nil {
		if policy.Refuses(dir, err) {
			return err
		}
		t.Tell("warning: the rules for turns are left out: %v", err)
		return nil
	}
	t.Newest = true // if all of them are: a claim of several waits for one after the other
	for _, name := range t.Names {
		l := p.Lock(name)
		if l.Line > 0 {
			t.rules = append(t.rules, rule{l, name, p.Path + ":" + strconv.Itoa(l.Line)})
		}
		if t.Newest = t.Newest && l.Queue.Newest; l.Queue.Skip {
			t.Wait = 0
		}
	}
	return t.recent(ctx)
}

// Taken judges how the locks were claimed, and implements locks.Turns.
func (t *turns) Taken(ctx context.Context, err error) error {
	var blocked *lokt.BlockedError
	if errors.As(err, &blocked) && blocked.Freeze == nil {
		for _, r := range t.rules {
			switch {
			case r.name != blocked.Name:
			case r.Queue.Skip:
				return t.skipped(r, fmt.Sprintf("%s is held, and %s says to skip it then", r.name, r.at))
			case t.Newest && t.Wait != 0 && blocked.TimedOut == 0 && len(blocked.Cycle) == 0:
				return app.Hint(err, "a newer claim has come, and %s says that the newest wins", r.at)
			}
		}
	}
	if err == nil {
		err = t.recent(ctx)
	}
	for _, r := range t.rules {
		if err == nil && r.Rate.N > 0 {
			err = t.count(ctx, r)
		}
	}
	return err
}

// Succeeded remembers that the command has, and implements locks.Turns.
func (t *turns) Succeeded() {
	for _, r := range t.rules {
		if r.Every.Duration > 0 {
			if _, err := t.Service.Acquire(context.Background(), t.mark(r.name+".every", r.Every.Duration, lokt.Shared)); err != nil {
				t.Tell("warning: it is not remembered that %s was done: %v", r.name, err)
			}
		}
	}
}

// mark returns a claim that remembers something for that long. It is strict and of no process, so that neither the end of a session
// or of this program nor another claim of its owner ends it before.
func (t *turns) mark(name string, ttl time.Duration, limit int) lokt.Claim {
	owner := t.Owner
	owner.Process = lokt.Process{}
	return lokt.Claim{Name: name, LeaseID: lokt.NewLeaseID(), Owner: owner, Strict: true, TTL: ttl, Limit: limit}
}

// recent ends the guard if what it is about was done not long ago.
func (t *turns) recent(ctx context.Context) error {
	for _, r := range t.rules {
		if r.Every.Duration == 0 {
			continue
		}
		s, err := t.Service.Get(ctx, r.name+".every")
		if err != nil {
			return err
		}
		if live := s.Live(); len(live) > 0 {
			h := live[len(live)-1]
			return t.skipped(r, fmt.Sprintf("%s was done %s ago by %s, and %s says to do it once in %s",
				r.name, app.Short(s.Now.Sub(h.HeldSince)), h.Owner, r.at, app.Short(r.Every.Duration)))
		}
	}
	return nil
}

// count makes the turn count, or waits until fewer do.
func (t *turns) count(ctx context.Context, r rule) error {
	c := t.mark(r.name+".rate", r.Rate.Per, r.Rate.N)
	says := fmt.Sprintf("%s says that %s may begin %d times in %s", r.at, r.name, r.Rate.N, app.Short(r.Rate.Per))
	_, err := t.Service.Acquire(ctx, c)
	if errors.Is(err, lokt.ErrHeld) && t.Wait != 0 {
		t.Tell("waiting: %s, and it has", says)
		c.Wait = t.Wait
		_, err = t.Service.Acquire(ctx, c)
	}
	if errors.Is(err, lokt.ErrHeld) {
		return app.Hint(err, "%s; see: %s", says, t.CommandLine("why", c.Name, "--guard", "--slots", strconv.Itoa(r.Rate.N)))
	}
	return err
}

// skipped says why the command is not run, and ends the guard.
func (t *turns) skipped(r rule, why string) error {
	end := &app.SilentError{Code: app.ExitOK}
	if r.Skipped.Held {
		end.Code = t.ConflictCode
	}
	if !t.JSON {
		t.Tell("skipped: %s", why)
		return end
	}
	return errors.Join(t.Print(struct {
		Status  string `json:"status"` // "skipped"
		Name    string `json:"name"`
		Message string `json:"message"`
	}{"skipped", r.name, why}), end)
}
