package locks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
)

// release gives the locks back. Locks that turn out to have been lost are told of now, if they were not before. A loss that
// is being dealt with comes first, so that nothing is taken again after this.
func (g *guardRun) release(signals *guard.Signals) error {
	g.losing.Lock()
	defer g.losing.Unlock()
	g.ended = true
	var err error
	if g.b.Store == nil {
		err = g.part(signals)
	} else {
		_, err = g.k.ReleaseAll(context.Background()) // which files bound
	}
	for _, l := range g.taken {
		if cause := l.Err(); errors.Is(cause, lokt.ErrLost) && !g.told[l] {
			g.Tell("warning: the lock %q was lost while the command ran: %s", l.Name(), lossText(l, cause))
		}
	}
	switch {
	case err == nil:
		return nil
	case g.b.Store == nil: // nothing of the command is lost, and nothing stays locked
		if g.allLost() {
			return nil
		}
		g.Tell("warning: the command has ended, but not everything could be given back, which expires within %s: %v", app.Short(g.o.ttl), err)
		return nil
	}
	return fmt.Errorf("the command has ended, but: %w", err)
}

// How long a server gets to take locks back: in all, for one answer, and between two tries.
const (
	partingTime    = 5 * time.Second
	partingAttempt = 2 * time.Second
	partingPause   = 200 * time.Millisecond
)

// part gives the locks back to a server. There is one try for locks that are lost anyway, and after a signal: it may be the
// one that has ended the command, and must not keep the lock from being free.
func (g *guardRun) part(signals *guard.Signals) error {
	whole, cancel := context.WithTimeout(context.Background(), partingTime)
	defer cancel()
	ctx, stop := signals.Context(whole)
	defer stop()
	for {
		attempt, done := context.WithTimeout(whole, partingAttempt)
		_, err := g.k.ReleaseAll(attempt)
		done()
		again := errors.Is(err, lokt.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
		if !again || g.allLost() || !app.Pause(ctx, partingPause) {
			return err
		}
	}
}

// allLost reports whether none of the locks is held any more.
func (g *guardRun) allLost() bool {
	return !slices.ContainsFunc(g.taken, func(l *lokt.Lease) bool { return l.State() != lokt.Lost })
}

// lost is told of a lease that ended while the command runs. A lock that only expired and that nobody took since is
// taken again.
func (g *guardRun) lost(l *lokt.Lease, err error) *lokt.Lease {
	g.losing.Lock()
	defer g.losing.Unlock()
	if g.ended || g.told[l] {
		return nil
	}
	g.told[l] = true
	var gone *lokt.GoneError
	taken := errors.As(err, &gone) && (gone.Cause == "" || len(gone.Holders) > 0)
	if g.o.onLost == OnLostWarn && !taken && g.o.maxHold == 0 {
		again, err := g.k.Reclaim(context.Background(), l) // whose end would be the lease's: the store bounds how long it takes
		if err == nil {
			g.taken = append(g.taken, again)
			since := "nobody took it"
			if again.Token() > l.Token()+1 {
				since = "others may have had it meanwhile"
			}
			g.Tell("warning: the lock %q was not renewed in time; %s, and it is held again", l.Name(), since)
			return again
		}
	}
	what := "the command goes on, and others may enter"
	if g.o.onLost == OnLostStop {
		what = "stopping the command"
	}
	g.Tell("warning: the lock %q was lost: %s: %s", l.Name(), lossText(l, err), what)
	return nil
}

// ending is told of a lease for whose sake the command is asked to end before it is lost.
func (g *guardRun) ending(l *lokt.Lease) {
	g.losing.Lock()
	defer g.losing.Unlock()
	if g.told[l] {
		return
	}
	g.told[l] = true
	g.Tell("warning: the lock %q is about to be lost: %s: stopping the command", l.Name(), lossText(l, nil))
}

// lossText says why a lease was lost, without saying again that it was, or why it will be if err is nil.
func lossText(l *lokt.Lease, err error) string {
	var gone *lokt.GoneError
	h := l.Holder()
	switch {
	case !errors.As(err, &gone) && h.MaxHold > 0 && !h.ExpiresAt.Before(h.HeldSince.Add(h.MaxHold)):
		return "its maximum hold is over"
	case err == nil:
		return "it could not be renewed in time"
	}
	return strings.TrimPrefix(err.Error(), lokt.ErrLost.Error()+": ")
}

// observe records what only this process knows.
func (g *guardRun) observe(e lokt.Event) {
	if err := g.b.Record(e); err != nil {
		g.Tell("warning: audit log: %v", err)
	}
	if e.Type == lokt.EventRenewFail {
		g.doubt(e.Name, e.Extra[lokt.ExtraReason])
	}
}

// doubt tells that a lock could not be renewed, once in a TTL.
func (g *guardRun) doubt(name, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.warned) > g.o.ttl {
		g.warned = time.Now()
		g.Tell("warning: the lock %q could not be renewed, trying again: %s", name, reason)
	}
}

// insistent is a Service on a server whose renewals are repeated for as long as their context lasts. One without an
// answer is soon sent again over another connection, because a connection may be dead while the server is well. The
// earlier ones are waited for, too, because the server may be well and slow.
type insistent struct {
	lokt.Service
	from    string                    // the server, for people
	attempt time.Duration             // how long an answer may take before it is asked for again
	failed  func(lokt.Renewal, error) // is told of each attempt that failed, though more will follow
}

// renewed is the answer to one attempt.
type renewed struct {
	lokt.Holder
	err error
}

// Renew implements lokt.Service.
func (s insistent) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan renewed)
	again := time.NewTimer(0)
	defer again.Stop()
	silent := fmt.Errorf("%w: no answer from %s within %v", lokt.ErrUnavailable, s.from, s.attempt)
	last := silent
	for under := 0; ; {
		select {
		case <-again.C:
			if under > 0 {
				s.failed(r, silent)
			}
			under++
			go func() {
				h, err := s.Service.Renew(ctx, r)
				select {
				case answers <- renewed{h, err}:
				case <-ctx.Done():
				}
			}()
			again.Reset(s.attempt)
		case a := <-answers:
			if a.err == nil || !errors.Is(a.err, lokt.ErrUnavailable) {
				return a.Holder, a.err
			}
			s.failed(r, a.err)
			last = a.err
			if under--; under == 0 {
				again.Reset(s.attempt / 10)
			}
		case <-ctx.Done():
			return lokt.Holder{}, last
		}
	}
}

// attemptTime is how long an answer to a guard with that TTL may take before it is asked for again.
func attemptTime(ttl time.Duration) time.Duration {
	return min(max(ttl/10, 250*time.Millisecond), 3*time.Second)
}
