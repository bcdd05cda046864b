package sim

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

// database is a store that several processes share, as PostgreSQL and etcd are: requests to it may be refused, take
// long, meet a conflict, be carried out without an answer, or be carried out after who asked has given up.
type database struct {
	w *world
	a *actor // which carries out what nobody waits for any more
	*memstore.Store
	behind time.Duration // of its clock
}

func newDatabase(w *world) *database {
	d := &database{w: w}
	d.a = w.newActor("store", w.late)
	d.Store = memstore.NewWith(memstore.Options{Keep: []int{0, 0, 8}[w.o.Seed%3], Observe: func(events []lokt.Event) {
		w.log, w.grown = append(w.log, events...), w.now()
		for _, e := range events {
			w.countEvent(e)
			if e.Type != lokt.EventRenew || w.o.All {
				w.say(d.a, "%s", tell(e))
			}
		}
	}})
	return d
}

// session is the database as one process sees it.
type session struct {
	*database
	a *actor
}

var _ lokt.Store = session{}

// failure is what a request that was not answered looks like.
func failure(ctx context.Context, f fault) error {
	switch f {
	case refused:
		return fmt.Errorf("%w: connection refused", lokt.ErrUnavailable)
	case lost:
		return fmt.Errorf("%w: connection reset, outcome unknown", lokt.ErrUnavailable)
	case dead:
		return fmt.Errorf("%w: this process is dead", lokt.ErrUnavailable)
	case abandoned:
		return context.Cause(ctx)
	}
	return nil
}

// Update implements lokt.Store.
func (s session) Update(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	switch f := s.a.pass(ctx, pointChange, "changes lock "+name); f {
	case fine:
	case twice: // what it saw is there no more when it is to be stored
		snap, err := s.View(ctx, name)
		if err != nil {
			return err
		}
		change(snap)
		if f := s.a.pass(ctx, pointChange, "changes lock "+name+" again"); f != fine && f != twice {
			return failure(ctx, f)
		}
	case abandoned:
		if s.w.allowed[lateCommit] {
			s.later(ctx, s.a, name, change)
		}
		return failure(ctx, f)
	default:
		return failure(ctx, f)
	}
	if err := s.commit(ctx, name, change); err != nil {
		return err
	}
	return failure(ctx, s.a.pass(ctx, pointAnswer, "hears that lock "+name+" is changed"))
}

// later carries out a change of which nobody waits for the answer, if at all.
func (d *database) later(ctx context.Context, by *actor, name string, change func(lokt.Snapshot) lokt.Change) {
	d.w.running.Go(func() {
		if d.a.pass(context.WithoutCancel(ctx), pointChange, "changes lock "+name+" after "+by.name+" gave up") == fine {
			d.w.count(lateCommit)
			d.w.vague = d.w.vague || d.w.net // a claim that was made again since is in the history once
			_ = d.commit(ctx, name, change)
		}
	})
}

// commit stores a change, and looks at what became of the lock.
func (d *database) commit(ctx context.Context, name string, change func(lokt.Snapshot) lokt.Change) error {
	var before lokt.Snapshot
	var made lokt.Change
	err := d.Store.Update(context.Background(), name, func(s lokt.Snapshot) lokt.Change {
		s.Now = s.Now.Add(-d.behind)
		before, made = s, change(s)
		return made
	})
	d.w.changed(before, made)
	d.w.checkEnds(before, made)
	d.w.checkTicket(ctx, before, &made.Lock)
	return err
}

// View implements lokt.Store.
func (s session) View(ctx context.Context, name string) (lokt.Snapshot, error) {
	if f := s.a.pass(ctx, pointRead, "reads lock "+name); f != fine {
		return lokt.Snapshot{}, failure(ctx, f)
	}
	return s.look(name), nil
}

// List implements lokt.Store.
func (d *database) List(ctx context.Context, f lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		f.Spent = f.Spent && d.behind == 0 // which is about another clock
		for s, err := range d.Store.List(ctx, f) {
			if s.Now = s.Now.Add(-d.behind); !yield(s, err) {
				return
			}
		}
	}
}

// set sets the clock. What a lock has of times goes along, as in stores that see it and give everybody a full time at least.
func (d *database) set(by time.Duration) {
	move := func(all ...*time.Time) {
		for _, t := range all {
			if !t.IsZero() {
				*t = t.Add(by)
			}
		}
	}
	d.behind -= by
	for name := range lockNames {
		_ = d.Store.Update(context.Background(), name, func(s lokt.Snapshot) lokt.Change {
			l := lokt.Lock{Name: name, Revision: s.Lock.Revision, Token: s.Lock.Token, Holders: slices.Clone(s.Lock.Holders)} // as if it were read
			for i := range l.Holders {
				h := &l.Holders[i]
				if move(&h.HeldSince, &h.AcquiredAt, &h.ExpiresAt, &h.Pending); h.Yield != nil {
					y := *h.Yield
					move(&y.Deadline)
					h.Yield = &y
				}
			}
			for _, q := range s.Lock.Queue {
				moved := *q
				move(&moved.Until)
				l.Queue = append(l.Queue, &moved)
			}
			if s.Lock.Freeze != nil {
				f := *s.Lock.Freeze
				move(&f.ExpiresAt)
				l.Freeze = &f
			}
			return lokt.Change{Lock: l}
		})
	}
}

// look reads a lock without asking for leave.
func (d *database) look(name string) lokt.Snapshot {
	snap, _ := d.Store.View(context.Background(), name)
	snap.Now = snap.Now.Add(-d.behind)
	return snap
}

// Wait implements lokt.Store.
func (s session) Wait(ctx context.Context, watch lokt.Watch) error {
	if f := s.a.pass(ctx, pointRead, "watches lock "+watch.Name); f != fine {
		return failure(ctx, f)
	}
	if err := s.Store.Wait(ctx, watch); err != nil {
		return err
	}
	return failure(ctx, s.a.pass(ctx, pointReply, "hears that lock "+watch.Name+" has changed"))
}

// ReadEvents implements lokt.EventLog.
func (s session) ReadEvents(ctx context.Context, q lokt.EventQuery) (lokt.EventPage, error) {
	if f := s.a.pass(ctx, pointRead, "reads events"); f != fine {
		return lokt.EventPage{}, failure(ctx, f)
	}
	return s.Store.ReadEvents(ctx, q)
}

// tell says an event in words.
func tell(e lokt.Event) string {
	text := fmt.Sprintf("%s: %s of %s/%s, token %d", e.Name, e.Type, e.Owner.ID, e.Owner.Session, e.Token)
	for _, k := range []string{lokt.ExtraOutcome, lokt.ExtraReason, lokt.ExtraDisplaced} {
		if v := e.Extra[k]; v != "" && len(v) < 40 {
			text += ", " + v
		}
	}
	return text
}
