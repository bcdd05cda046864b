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
	"slices"
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
	return locks.Why(a, func(ctx context.Context, service lokt.Service, name string) (t locks.Turn, err error) {
		dir, _ := a.Dir() // without one there are no rules
		t.Rule = policy.Rule(dir, name)
		p, bad := policy.Find(dir)
		if bad != nil { // which the rule says
			return t, nil
		}
		r := newRule(p, p.Lock(name), name) // with neither period nor rate if there is none
		t.Mark = r.every()
		if t.Kept, t.Until, err = r.done(ctx, service); t.Kept == "" && err == nil {
			t.Mark, t.Waits = r.rate(), true
			t.Kept, t.Until, err = r.begun(ctx, service)
		}
		return t, a.Repairable(err, t.Mark)
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

func newRule(p *policy.Policy, l policy.Lock, name string) rule {
	return rule{l, name, p.Path + ":" + strconv.Itoa(l.Line)}
}

// every and rate return the names of the locks that remember turns.
func (r rule) every() string { return r.name + ".every" }
func (r rule) rate() string  { return r.name + ".rate" }

// done says who has done not long ago what the lock is about, and until when it is not done again; nothing if nobody has.
func (r rule) done(ctx context.Context, service lokt.Service) (text string, until time.Time, err error) {
	if r.Every.Duration == 0 {
		return "", until, nil
	}
	s, err := service.Get(ctx, r.every())
	if live := s.Live(); len(live) > 0 {
		h := slices.MaxFunc(live, func(a, b lokt.Holder) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
		text, until = fmt.Sprintf("%s was done %s ago by %s, and %s says to do it once in %s",
			r.name, app.Short(s.Now.Sub(h.HeldSince)), h.Owner, r.at, app.Short(r.Every.Duration)), h.ExpiresAt
	}
	return text, until, err
}

// begun says that as many turns have begun as may, and until when no more do; nothing if it is not so.
func (r rule) begun(ctx context.Context, service lokt.Service) (text string, until time.Time, err error) {
	if r.Rate.N == 0 {
		return "", until, nil
	}
	s, err := service.Get(ctx, r.rate())
	if live := s.Live(); len(live) >= r.Rate.N {
		slices.SortFunc(live, func(a, b lokt.Holder) int { return a.ExpiresAt.Compare(b.ExpiresAt) })
		text, until = r.says()+", and it has", live[len(live)-r.Rate.N].ExpiresAt
	}
	return text, until, err
}

func (r rule) says() string {
	return fmt.Sprintf("%s says that %s may begin %d times in %s", r.at, r.name, r.Rate.N, app.Short(r.Rate.Per))
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
			t.rules = append(t.rules, newRule(p, l, name))
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
			case blocked.Ousted != "":
				return app.Hint(err, "%s says that the newest wins", r.at)
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
			if _, err := t.Service.Acquire(context.Background(), t.mark(r.every(), r.Every.Duration, lokt.Shared)); err != nil {
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
		if text, _, err := r.done(ctx, t.Service); err != nil {
			return t.Repairable(err, r.every())
		} else if text != "" {
			return t.skipped(r, text)
		}
	}
	return nil
}

// count makes the turn count, or waits until fewer do.
func (t *turns) count(ctx context.Context, r rule) error {
	c := t.mark(r.rate(), r.Rate.Per, r.Rate.N)
	_, err := t.Service.Acquire(ctx, c)
	if errors.Is(err, lokt.ErrHeld) && t.Wait != 0 {
		t.Tell("waiting: %s, and it has", r.says())
		c.Wait = t.Wait
		_, err = t.Service.Acquire(ctx, c)
	}
	if errors.Is(err, lokt.ErrHeld) {
		return app.Hint(err, "%s; see: %s", r.says(), t.CommandLine("why", c.Name, "--guard", "--slots", strconv.Itoa(r.Rate.N)))
	}
	return t.Repairable(err, c.Name)
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
