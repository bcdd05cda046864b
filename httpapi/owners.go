package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/lokt-dev/lokt"
)

// Owners are who they say they are; callers are not. So with a Gate, the name of the caller and a slash stand before
// the ID of every owner in the store: nobody enters, ends or thaws as the owner of another caller. The caller itself is
// told of its own owners as it named them, everybody else of "caller/owner".

// maxCaller bounds what stands before an owner's ID, so that the rest has room for an ID that is long enough for
// anybody.
const maxCaller = lokt.MaxIDLen / 2

// view is how a caller sees owners: what stands before the IDs of its own. It is empty for who need not say who they
// are.
type view string

// viewOf returns what stands before the IDs of the owners of the caller with the name. It is different for different
// names: it has its only slash at its end.
func viewOf(caller string) view {
	if caller == "" {
		return ""
	}
	name := strings.NewReplacer("%", "%25", "/", "%2F").Replace(caller)
	if len(name) >= maxCaller {
		sum := sha256.Sum256([]byte(caller))
		name = strings.ToValidUTF8(name[:maxCaller-30], "") + "%~" + hex.EncodeToString(sum[:10])
	}
	return view(name + "/")
}

// view returns how the caller of the request sees owners.
func (c *call) view() view { return viewOf(c.who()) }

// stored returns the owner of the caller as stores know it.
func (v view) stored(o lokt.Owner) (lokt.Owner, error) {
	switch {
	case o.ID == "":
		return o, invalid("owner is empty")
	case v == "":
	case len(v)+len(o.ID) > lokt.MaxIDLen:
		const text = "owner has %d bytes, more than the %d that are left beside the caller's name"
		return o, invalid(text, len(o.ID), lokt.MaxIDLen-len(v))
	}
	o.ID = string(v) + o.ID
	return o, checkOwner(o)
}

// id returns the text, which begins with an owner's ID, as the caller sees it.
func (v view) id(text string) string { return strings.TrimPrefix(text, string(v)) }

// lock returns the lock as the caller sees it: without secrets, and without what only the host of a process can look
// at.
func (v view) lock(l lokt.Lock) lokt.Lock {
	l = l.Public()
	for i := range l.Holders {
		h := &l.Holders[i]
		h.Owner.ID, h.Process, h.Messages = v.id(h.Owner.ID), nil, slices.Clone(h.Messages)
		for i := range h.Messages {
			h.Messages[i].From.ID = v.id(h.Messages[i].From.ID)
		}
		if h.Yield != nil {
			y := *h.Yield
			y.To.ID = v.id(y.To.ID)
			h.Yield = &y
		}
	}
	for _, w := range l.Queue { // which are Public's own
		w.Owner.ID, w.Ousted, w.Process = v.id(w.Owner.ID), v.id(w.Ousted), nil
	}
	if l.Freeze != nil {
		l.Freeze.Owner.ID = v.id(l.Freeze.Owner.ID)
	}
	return l
}

func (v view) freeze(f *lokt.Freeze) *lokt.Freeze { return v.lock(lokt.Lock{Freeze: f}).Freeze }

// own returns the holder as who named the lease ID sees it.
func (v view) own(h *lokt.Holder, leaseID string) *lokt.Holder {
	seen := &v.lock(lokt.Lock{Holders: []lokt.Holder{*h}}).Holders[0]
	if h.LeaseID == leaseID {
		seen.LeaseID = leaseID
	}
	return seen
}

func (v view) event(e lokt.LoggedEvent) lokt.LoggedEvent {
	e.Event = e.Public()
	e.Owner.ID = v.id(e.Owner.ID)
	if v != "" {
		e.Extra = maps.Clone(e.Extra)
		for _, key := range []string{lokt.ExtraDisplaced, lokt.ExtraBy, lokt.ExtraTo, "holder", "frozen_by"} {
			if who, ok := e.Extra[key]; ok {
				e.Extra[key] = v.id(who)
			}
		}
	}
	return e
}
