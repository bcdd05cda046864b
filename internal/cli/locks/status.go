package locks

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/jsonline"
)

type statusOptions struct {
	name  string // empty for all locks
	prune bool
	watch bool
}

func newStatus(a cmd) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show who holds which lock",
		Long: "Show all locks that are held, waited for or frozen, or everything about one. What is stale, because it expired or\n" +
			"its process is dead, is nobody's any more: the next claimant gets it.",
		Example: "  lokt status\n  lokt status build --json\n  lokt status --watch",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return app.OneName(cmd, args)
		},
		ValidArgsFunction: a.CompleteNames,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.name = args[0]
				if err := app.ValidNames(o.name); err != nil {
					return err
				}
			}
			if o.watch && o.prune {
				return app.Usagef("--watch only looks and --prune-expired removes: give one of them")
			}
			return a.runStatus(o)
		},
	}
	cmd.Flags().BoolVar(&o.prune, "prune-expired", false, "remove what is stale first, and tell what that was")
	cmd.Flags().BoolVar(&o.watch, "watch", false, "show it again whenever it changes, until interrupted")
	return cmd
}

func (a cmd) runStatus(o statusOptions) error {
	b, err := a.Backend()
	if err != nil {
		return err
	}
	ctx := context.Background()
	switch {
	case o.watch:
		return a.watch(ctx, b, o.name)
	case o.name != "":
		return a.statusOne(ctx, b, o)
	}
	return a.statusAll(ctx, b, o)
}

// statusOne shows everything about one lock.
func (a cmd) statusOne(ctx context.Context, b *app.Backend, o statusOptions) error {
	v, err := a.look(ctx, b, o.name, o.prune)
	switch {
	case errors.Is(err, lokt.ErrDamaged):
		if a.JSON {
			return errors.Join(a.Print(v), silentIf(err))
		}
		return a.Repairable(err, o.name)
	case err != nil:
		return err
	case v.State == stateFree && len(v.Pruned) == 0:
		return app.Worded(lokt.ErrNotFound, "%q is free: nobody holds it, waits for it or froze it", o.name)
	case a.JSON:
		return a.Print(v)
	}
	if _, err = a.Out.Write(v.appendDetail(nil)); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// statusAll shows a table of all locks.
func (a cmd) statusAll(ctx context.Context, b *app.Backend, o statusOptions) error {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // of ten thousand locks there is little to keep, and nothing for long
	var out []byte
	var err error
	if a.JSON {
		out, err = appendArray(out, a.lookAtAll(ctx, b, o.prune))
	} else {
		var t table
		for v, e := range a.lookAtAll(ctx, b, o.prune) {
			if err = e; err != nil {
				break
			}
			t.add(v)
		}
		if len(t.rows) == 0 && err == nil {
			a.Tell("no locks %s", b.Where())
		}
		out = t.append(out)
	}
	if err != nil {
		return err
	}
	if _, err := a.Out.Write(out); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// appendArray appends a line of JSON, an array of locks.
func appendArray(b []byte, locks iter.Seq2[*lockJSON, error]) ([]byte, error) {
	o := jsonline.Object{B: append(b, '[')}
	for v, err := range locks {
		if err != nil {
			return b, err
		}
		if o.B[len(o.B)-1] == '}' {
			o.B = append(o.B, ',')
		}
		if cap(o.B)-len(o.B) < 4096 {
			o.B = slices.Grow(o.B, max(cap(o.B), 1<<16))
		}
		v.append(&o)
	}
	return append(o.B, "]\n"...), nil
}

// look returns what is to be shown of one lock. If its record cannot be read, that is in the view, too.
func (a cmd) look(ctx context.Context, b *app.Backend, name string, prune bool) (lockJSON, error) {
	s, err := b.Get(ctx, name)
	if err == nil && prune {
		var pruned []removedJSON
		if s, pruned, err = a.prune(ctx, b, s); err == nil {
			v := view(b, s)
			v.Queue, v.Pruned = viewQueue(b, s), pruned
			return v, nil
		}
	}
	if err != nil {
		return unreadable(name, err), err
	}
	v := view(b, s)
	v.Queue = viewQueue(b, s)
	return v, nil
}

// lookAtAll returns what is to be shown of all locks that are not free. A view is good until the next one.
func (a cmd) lookAtAll(ctx context.Context, b *app.Backend, prune bool) iter.Seq2[*lockJSON, error] {
	return func(yield func(*lockJSON, error) bool) {
		var v lockJSON
		for s, err := range b.List(ctx, lokt.Filter{}) {
			var pruned []removedJSON
			if err == nil && prune {
				s, pruned, err = a.prune(ctx, b, s)
			}
			switch {
			case errors.Is(err, lokt.ErrDamaged):
				v = unreadable(s.Lock.Name, err)
			case err != nil:
				yield(nil, err)
				return
			default:
				v = view(b, s)
				if v.Pruned = pruned; v.State == stateFree && len(pruned) == 0 {
					continue
				}
			}
			if !yield(&v, nil) {
				return
			}
		}
	}
}

// unreadable is the view of a lock whose record cannot be read.
func unreadable(name string, err error) lockJSON {
	v := lockJSON{Name: name, Problem: err.Error()}
	v.State = stateUnreadable
	return v
}

// prune removes what is stale about a lock, and returns the lock as it is then, and what was removed.
func (a cmd) prune(ctx context.Context, b *app.Backend, s lokt.Snapshot) (lokt.Snapshot, []removedJSON, error) {
	frozen := s.Lock.Freeze != nil && s.Frozen() == nil
	if !frozen && s.Lock.Corrupt == "" && len(s.Live()) == len(s.Lock.Holders) && len(waiting(s)) == len(s.Lock.Queue) {
		return s, nil, nil
	}
	gone, err := b.Prune(ctx, s.Lock.Name)
	if err != nil {
		return s, nil, err
	}
	var removed []removedJSON
	for _, r := range gone {
		v := removedJSON{
			LockID: b.Shown(r.Holder.LeaseID), Owner: r.Holder.Owner.ID, Host: r.Holder.Owner.Host, PID: pid(r.Holder),
			AgentID: r.Holder.Owner.Session, What: r.Holder.Kind(), Reason: r.Reason,
		}
		if r.Waiter {
			v.What = "waiter"
		}
		removed = append(removed, v)
	}
	if frozen {
		f := s.Lock.Freeze
		removed = append(removed, removedJSON{
			LockID: f.ID, Owner: f.Owner.ID, Host: f.Owner.Host, PID: f.Owner.Process.PID, AgentID: f.Owner.Session,
			What: "freeze", Reason: lokt.ReasonExpired,
		})
	}
	if s.Lock.Corrupt != "" {
		removed = append(removed, removedJSON{What: "record", Reason: stateCorrupt})
	}
	for _, r := range removed {
		a.Tell("%s: removed the %s%s: %s", s.Lock.Name, r.What, of(r), r.Reason)
	}
	s, err = b.Get(ctx, s.Lock.Name)
	return s, removed, err
}

// of says whose it was that was removed.
func of(r removedJSON) string {
	if r.Owner == "" {
		return ""
	}
	who := lokt.Owner{ID: r.Owner, Host: r.Host}.String()
	if r.PID != 0 {
		who += fmt.Sprintf(" (pid %d)", r.PID)
	}
	return " of " + who
}

// watched says all about locks that makes a new look worth showing: what is stored, and what became of it by time or death.
func watched(locks []lockJSON) string {
	var b strings.Builder
	for _, v := range locks {
		fmt.Fprintf(&b, "%s %x %s %s %d %d %v %q\n", v.Name, v.revision, v.State, v.PIDStatus, v.Waiters, v.Away, v.Freeze != nil, v.Problem)
		for _, h := range v.Holders {
			fmt.Fprintf(&b, "%s %s %s\n", h.LockID, h.State, h.PIDStatus)
		}
	}
	return b.String()
}
