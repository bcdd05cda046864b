package locks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

func newStatus(a cmd) *cobra.Command {
	var prune, watch bool
	cmd := app.Describe("status", &cobra.Command{
		ValidArgsFunction: a.CompleteNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			if len(args) > 0 {
				if err := app.OneName(cmd, args); err != nil {
					return err
				}
			}
			if watch && prune {
				return app.Usagef("--watch only looks and --prune-expired removes: give one of them")
			}
			b, err := a.Backend()
			switch {
			case err != nil:
				return err
			case watch:
				return a.watch(cmd.Context(), b, name)
			case name != "":
				return a.statusOne(cmd.Context(), b, name, prune)
			}
			return a.statusAll(cmd.Context(), b, prune)
		},
	})
	cmd.Flags().BoolVar(&prune, "prune-expired", false, "remove what is stale first, and tell what that was")
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again whenever it changes, until interrupted")
	return cmd
}

// statusOne shows everything about one lock.
func (a cmd) statusOne(ctx context.Context, b *app.Backend, name string, prune bool) error {
	locks, err := a.views(ctx, b, name, prune)
	switch v := locks[0]; {
	case errors.Is(err, lokt.ErrDamaged):
		if a.JSON {
			return errors.Join(a.Print(v), silentIf(err))
		}
		return a.Repairable(err, name)
	case err != nil:
		return err
	case v.State == stateFree && len(v.Pruned) == 0:
		return app.Worded(lokt.ErrNotFound, "%q is free: nobody holds it, waits for it or froze it", name)
	case a.JSON:
		return a.Print(v)
	}
	text, err := app.Details(locks[0])
	return errors.Join(err, a.Write(text))
}

// statusAll shows a table of all locks.
func (a cmd) statusAll(ctx context.Context, b *app.Backend, prune bool) error {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // of ten thousand locks there is little to keep, and nothing for long
	locks, err := a.lookAtAll(ctx, b, prune)
	switch {
	case err != nil:
		return err
	case a.JSON:
		return a.Print(locks)
	case len(locks) == 0:
		a.Tell("no locks %s", b.Where())
		return nil
	}
	return a.Table(table(locks))
}

// views returns the view of one lock, or of all that are not free if it is not named. If a record cannot be read, the view says
// so; of the one that is named, the error does, too.
func (a cmd) views(ctx context.Context, b *app.Backend, name string, prune bool) ([]lockView, error) {
	if name == "" {
		return a.lookAtAll(ctx, b, prune)
	}
	s, err := b.Get(ctx, name)
	var pruned []removed
	if err == nil && prune {
		s, pruned, err = a.prune(ctx, b, s)
	}
	if err != nil {
		return []lockView{unreadable(name, err)}, err
	}
	v := view(b, s)
	v.Queue, v.Pruned = viewQueue(b, s), pruned
	return []lockView{v}, nil
}

// lookAtAll returns the views of all locks that are not free.
func (a cmd) lookAtAll(ctx context.Context, b *app.Backend, prune bool) ([]lockView, error) {
	locks := []lockView{}
	for s, err := range b.List(ctx, lokt.Filter{}) {
		var pruned []removed
		if err == nil && prune {
			s, pruned, err = a.prune(ctx, b, s)
		}
		switch {
		case errors.Is(err, lokt.ErrDamaged):
			locks = append(locks, unreadable(s.Lock.Name, err))
			continue
		case err != nil:
			return nil, err
		}
		v := view(b, s)
		if v.Pruned = pruned; v.State != stateFree || len(pruned) > 0 {
			locks = append(locks, v)
		}
	}
	return locks, nil
}

// unreadable is the view of a lock whose record cannot be read.
func unreadable(name string, err error) lockView {
	v := lockView{Name: name, Problem: err.Error()}
	v.State = stateUnreadable
	return v
}

// prune removes what is stale about a lock, and returns the lock as it is then, and what was removed.
func (a cmd) prune(ctx context.Context, b *app.Backend, s lokt.Snapshot) (lokt.Snapshot, []removed, error) {
	frozen := s.Lock.Freeze != nil && s.Frozen() == nil
	if !frozen && s.Lock.Corrupt == "" && len(s.Live()) == len(s.Lock.Holders) && len(waiting(s)) == len(s.Lock.Queue) {
		return s, nil, nil
	}
	gone, err := b.Prune(ctx, s.Lock.Name)
	if err != nil {
		return s, nil, err
	}
	var all []removed
	for _, r := range gone {
		v := removed{party: viewClaim(b, s.Now, r.Holder.Claim, r.Holder.HeldSince, r.Holder.ExpiresAt), What: r.Holder.Kind(), Reason: r.Reason}
		if r.Waiter {
			v.What = "waiter"
		}
		all = append(all, v)
	}
	if frozen {
		all = append(all, removed{party: viewFreeze(b, s.Lock.Freeze, s.Now).party, What: "freeze", Reason: lokt.ReasonExpired})
	}
	if s.Lock.Corrupt != "" {
		all = append(all, removed{What: "record", Reason: stateCorrupt})
	}
	for _, r := range all {
		who := ""
		if r.Owner != "" {
			who = " of " + lokt.Owner{ID: r.Owner, Host: r.Host}.String()
		}
		if r.PID != 0 {
			who += fmt.Sprintf(" (pid %d)", r.PID)
		}
		a.Tell("%s: removed the %s%s: %s", s.Lock.Name, r.What, who, r.Reason)
	}
	s, err = b.Get(ctx, s.Lock.Name)
	return s, all, err
}

// watched says all about locks that makes a new look worth showing: what is stored, and what became of it by time or death.
func watched(locks []lockView) string {
	var b strings.Builder
	for _, v := range locks {
		fmt.Fprintf(&b, "%s %x %s %s %d %d %v %q\n", v.Name, v.revision, v.State, v.PIDStatus, v.Waiters, v.Away, v.Freeze != nil, v.Problem)
		for _, h := range v.Holders {
			fmt.Fprintf(&b, "%s %s %s\n", h.LockID, h.State, h.PIDStatus)
		}
	}
	return b.String()
}

const (
	watchEvery  = 200 * time.Millisecond // how often to look, unless looking takes long
	watchServer = time.Second            // how often to ask a server
	watchShare  = 10                     // looking takes at most one part in so many of the time
	watchAges   = time.Second            // how often a terminal shows new ages
)

// watch shows one lock, or all if name is empty, again whenever something changes, until the program is interrupted. On a
// terminal it draws over what was there, about every second; elsewhere it writes a block, or a line of JSON, for each change.
func (a cmd) watch(ctx context.Context, b *app.Backend, name string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	ctx, done := app.WhileRead(ctx, a.Out)
	defer done()
	terminal := app.IsTerminal(a.Out) && !a.JSON
	every := watchEvery
	if b.Far != nil {
		every = watchServer
	}
	var shown string
	var drawn time.Time
	away := false
	for first := true; ; first = false {
		began := time.Now()
		locks, err := a.views(ctx, b, name, false)
		outage := err != nil && !first && b.Far != nil && errors.Is(err, lokt.ErrUnavailable)
		switch now := watched(locks); {
		case ctx.Err() != nil:
			return nil
		case outage && !away:
			a.Tell("warning: %v; trying again", err)
		case outage:
		case err != nil && !errors.Is(err, lokt.ErrDamaged): // which the view says
			return err
		case first || now != shown || terminal && time.Since(drawn) >= watchAges:
			shown, drawn = now, began
			if err := a.redraw(locks, name, terminal, first); err != nil {
				return err
			}
		}
		away = outage
		if !app.Pause(ctx, max(every, watchShare*time.Since(began))) {
			return nil
		}
	}
}

// redraw writes the views.
func (a cmd) redraw(locks []lockView, name string, terminal, first bool) (err error) {
	switch {
	case a.JSON && name != "":
		return a.Print(locks[0])
	case a.JSON:
		return a.Print(locks)
	}
	text := "no locks\n"
	if name != "" {
		text, err = app.Details(locks[0])
	} else if len(locks) > 0 {
		text = app.Table(table(locks))
	}
	stamp := time.Now().Format(time.DateTime) + "\n"
	switch {
	case terminal:
		text = "\x1b[H\x1b[J" + stamp + text // to the top, and clear from there
	case !first:
		text = "\n" + stamp + text
	}
	return errors.Join(err, a.Write(text))
}
