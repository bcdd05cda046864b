// Package history judges events of locks without the locks: whether nobody was let in who had to stay out, and whether anybody was
// let in before whose turn it was. It also takes out of events what others are not to know.
//
// Who may enter is asked of the function that decided it, for the holders and waiters that the events leave: see
// [lokt.Snapshot.WouldGrant]. So it finds what went wrong around the rules: two stores that both granted, a change that got lost,
// a file system that kept no locks.
package history

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
)

// Finding is a pair of events that cannot both be right.
type Finding struct {
	Broken string      `json:"broken"` // exclusion, order, freeze or token
	First  audit.Entry `json:"first"`
	Second audit.Entry `json:"second"`
}

// Judge takes the events of locks, those of each in the order of its changes. The zero Judge knows nothing.
type Judge struct {
	Events   int       `json:"events"`
	Grants   int       `json:"grants"`
	Unknown  int       `json:"unknown"` // grants of which the events do not tell in whose place they were, or of what
	Findings []Finding `json:"findings"`

	locks map[string]*lock
	begin time.Time
}

// lock is what events leave of one.
type lock struct {
	lokt.Lock
	last  map[string]audit.Entry // of each lease: how it came to hold or wait, or how it ended; of "freeze" and "token", who did that
	vague map[string]bool        // leases and owners whose place in the queue the events do not tell
}

// Take judges the next event.
func (j *Judge) Take(e audit.Entry) {
	if j.Events++; j.locks == nil {
		j.locks, j.begin = map[string]*lock{}, e.TS
	}
	l := j.locks[e.Name]
	if l == nil {
		l = &lock{Lock: lokt.Lock{Name: e.Name}, last: map[string]audit.Entry{}, vague: map[string]bool{}}
		j.locks[e.Name] = l
	}
	c := claim(e)
	token := number(e, audit.ExtraToken)
	_, holds := l.Holder(c.LeaseID)
	switch was, known := l.last[c.LeaseID]; lokt.EventType(e.Event) {
	case lokt.EventRenew:
		if known && !holds && token <= l.Token {
			j.find("exclusion", was, e)
		} else if known && !holds { // a hold that had gone stale is taken up again
			j.grant(l, c, token, e)
		}
		l.hold(c, token, e)
		for _, w := range l.Queue { // which may have waited to renew this
			l.vague[w.LeaseID] = l.vague[w.LeaseID] || !w.Strict && w.Owner.Same(c.Owner)
		}
	case lokt.EventAcquire:
		j.grant(l, c, token, e)
		l.hold(c, token, e)
	case lokt.EventRelease, lokt.EventForceBreak, lokt.EventStaleBreak, lokt.EventAutoPrune, lokt.EventLost:
		if l.leave(c.LeaseID); !known { // so its owner held it before the first event, and had not to wait
			j.forget(e)
		}
		l.last[c.LeaseID], l.vague[c.LeaseID] = e, true // it may be given its place back
	case lokt.EventCorruptBreak: // nobody knows who held it
		l.Holders, l.Queue = nil, nil
	case lokt.EventFreeze:
		l.Freeze, l.last["freeze"] = &lokt.Freeze{}, e
	case lokt.EventUnfreeze, lokt.EventForceThaw:
		l.Freeze = nil
	case lokt.EventPass:
		l.vague[extra(e, lokt.ExtraTo)] = true
	case lokt.EventWait:
		switch extra(e, lokt.ExtraOutcome) {
		case "started":
			l.Queue, l.last[c.LeaseID] = append(l.Queue, &lokt.Waiter{Claim: c}), e
			delete(l.vague, c.LeaseID)
			slices.SortStableFunc(l.Queue, func(a, b *lokt.Waiter) int { return b.Priority - a.Priority })
		case "granted":
			if e.TS.Add(-time.Duration(number(e, lokt.ExtraWaited)) * time.Millisecond).Before(j.begin) { // it came before the first event
				j.forget(e)
			}
		default:
			l.leave(c.LeaseID)
			l.vague[c.LeaseID] = true // its ticket may keep its place
		}
	}
}

func (j *Judge) find(broken string, first, second audit.Entry) {
	j.Findings = append(j.Findings, Finding{broken, first, second})
}

// forget takes back that the owner was let in too early.
func (j *Judge) forget(e audit.Entry) {
	j.Findings = slices.DeleteFunc(j.Findings, func(f Finding) bool {
		return f.Broken == "order" && f.Second.Name == e.Name && f.Second.Owner == e.Owner
	})
}

// leave takes a hold or a waiter away.
func (l *lock) leave(id string) {
	l.Holders = slices.DeleteFunc(slices.Clone(l.Holders), func(h lokt.Holder) bool { return h.LeaseID == id })
	l.Queue = slices.DeleteFunc(slices.Clone(l.Queue), func(w *lokt.Waiter) bool { return w.LeaseID == id })
}

// hold makes the claim a hold.
func (l *lock) hold(c lokt.Claim, token uint64, e audit.Entry) {
	l.leave(c.LeaseID)
	l.Holders, l.last[c.LeaseID] = append(l.Holders, lokt.Holder{Claim: c, Token: token}), e
	if delete(l.vague, c.LeaseID); token > l.Token {
		l.Token, l.last["token"] = token, e
	}
}

// grant judges a grant.
func (j *Judge) grant(l *lock, c lokt.Claim, token uint64, e audit.Entry) {
	j.Grants++
	if token <= l.Token {
		j.find("token", l.last["token"], e)
	}
	s, passed := lokt.Snapshot{Lock: l.Lock, Now: e.TS}, strings.Fields(extra(e, lokt.ExtraPassed))
	s.Lock.Queue = nil
	hidden := func(c lokt.Claim) bool { return slices.Contains(c.Paths, leftOut) }
	s.Lock.Holders = slices.DeleteFunc(slices.Clone(l.Holders), func(h lokt.Holder) bool { return hidden(h.Claim) })
	var blocked *lokt.BlockedError
	switch {
	case hidden(c) || !errors.As(s.WouldGrant(c), &blocked):
	case blocked.Freeze != nil:
		j.find("freeze", l.last["freeze"], e)
	case len(blocked.Holders) > 0: // not if its terms are such as no claim has
		first := blocked.Holders[0].LeaseID
		j.find("exclusion", l.last[first], e)
		l.leave(first) // it is told once
	}
	if hidden(c) || l.vague[c.LeaseID] || l.vague[(lokt.Owner{ID: e.Owner, Host: e.Host}).String()] {
		j.Unknown++
		return
	}
	for _, w := range l.Queue {
		if there := *w; !slices.Contains(passed, w.LeaseID) && !hidden(w.Claim) && !l.vague[w.LeaseID] {
			there.Until = e.TS.Add(time.Hour)
			s.Lock.Queue = append(s.Lock.Queue, &there)
		}
	}
	s.Lock.Holders, s.Lock.Freeze = l.Holders, &lokt.Freeze{} // so that nobody is let in, and it is said who comes before
	if errors.As(s.WouldGrant(c), &blocked) && len(blocked.Ahead) > 0 {
		j.find("order", l.last[blocked.Ahead[0].LeaseID], e)
	}
}

// claim returns the claim that the event is about, under its public ID.
func claim(e audit.Entry) lokt.Claim {
	c := lokt.Claim{Name: e.Name, LeaseID: shown(e.LockID), Owner: lokt.Owner{ID: e.Owner, Host: e.Host, Session: e.AgentID}, Paths: strings.Fields(extra(e, "paths"))}
	_, _ = fmt.Sscanf(extra(e, lokt.ExtraTerms), lokt.TermsForm, &c.Limit, &c.Strict, &c.Priority, &c.Weight.Takes, &c.Weight.Of, &c.Owner.AnySession) // if it has any
	return c
}

func extra(e audit.Entry, key string) string {
	if v, ok := e.Extra[key]; ok {
		return fmt.Sprint(v)
	}
	return ""
}

func number(e audit.Entry, key string) uint64 {
	n, _ := strconv.ParseUint(extra(e, key), 10, 64) // absent from some
	return n
}

// shown returns the public ID of a lease, of whichever is given.
func shown(id string) string {
	if id == "" || strings.HasPrefix(id, "L-") {
		return id
	}
	return lokt.PublicID(id)
}
