package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/lokt-dev/lokt"
)

// Owners are who they say they are; callers are not. So with a Gate, the name of the caller and a slash stand before the ID
// of every owner in the store: nobody enters, ends or thaws as the owner of another caller. The caller itself is told of its own
// owners as it named them, everybody else of "caller/owner".

// maxCaller bounds what stands before an owner's ID, so that the rest has room for an ID that is long enough for anybody.
const maxCaller = lokt.MaxIDLen / 2

// view is how a caller sees owners: what stands before the IDs of its own. It is empty for who need not say who they are.
type view string

// viewOf returns what stands before the IDs of the owners of the caller with the name. It is different for different names:
// it has its only slash at its end.
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
func (c *call) view() view { return viewOf(c.w.caller) }

// stored returns the owner of the caller as stores know it.
func (v view) stored(o lokt.Owner) (lokt.Owner, error) {
	switch {
	case o.ID == "":
		return o, invalid("owner is empty")
	case v == "":
	case len(v)+len(o.ID) > lokt.MaxIDLen:
		return o, invalid("owner has %d bytes, more than the %d that are left beside the caller's name", len(o.ID), lokt.MaxIDLen-len(v))
	}
	o.ID = string(v) + o.ID
	return o, checkOwner(o)
}

// id returns the text, which begins with an owner's ID, as the caller sees it.
func (v view) id(text string) string { return strings.TrimPrefix(text, string(v)) }

func (v view) owner(o lokt.Owner) lokt.Owner {
	o.ID = v.id(o.ID)
	return o
}

func (v view) holder(h lokt.Holder) lokt.Holder {
	h.Owner = v.owner(h.Owner)
	if h.Yield != nil {
		y := *h.Yield
		y.To = v.owner(y.To)
		h.Yield = &y
	}
	return h
}

func (v view) holders(all []lokt.Holder) []lokt.Holder {
	if v == "" {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		all[i] = v.holder(all[i])
	}
	return all
}

func (v view) waiters(all []*lokt.Waiter) []*lokt.Waiter {
	if v == "" {
		return all
	}
	all = slices.Clone(all)
	for i, w := range all {
		seen := *w
		seen.Owner = v.owner(w.Owner)
		all[i] = &seen
	}
	return all
}

func (v view) freeze(f *lokt.Freeze) *lokt.Freeze {
	if f == nil || v == "" {
		return f
	}
	seen := *f
	seen.Owner = v.owner(f.Owner)
	return &seen
}

func (v view) snapshot(s lokt.Snapshot) lokt.Snapshot {
	s.Lock.Holders, s.Lock.Queue, s.Lock.Freeze = v.holders(s.Lock.Holders), v.waiters(s.Lock.Queue), v.freeze(s.Lock.Freeze)
	return s
}

func (v view) event(e lokt.LoggedEvent) lokt.LoggedEvent {
	if v == "" {
		return e
	}
	e.Owner, e.Extra = v.owner(e.Owner), maps.Clone(e.Extra)
	for _, key := range []string{lokt.ExtraDisplaced, lokt.ExtraBy, "holder", "frozen_by"} {
		if who, ok := e.Extra[key]; ok {
			e.Extra[key] = v.id(who)
		}
	}
	return e
}

// error returns the error as the caller sees it. Its kind stays the same.
func (v view) error(err error) error {
	if v == "" {
		return err
	}
	var seen error
	var blocked *lokt.BlockedError
	var gone *lokt.GoneError
	var notOwner *lokt.NotOwnerError
	switch {
	case errors.As(err, &blocked):
		b := *blocked
		b.Freeze, b.Holders, b.Ahead, b.Cycle = v.freeze(b.Freeze), v.holders(b.Holders), v.waiters(b.Ahead), slices.Clone(b.Cycle)
		for i := 0; i < len(b.Cycle); i += 2 { // owner, lock, owner
			b.Cycle[i] = v.id(b.Cycle[i])
		}
		seen = &b
	case errors.As(err, &gone):
		g := *gone
		g.Holders = v.holders(g.Holders)
		seen = &g
	case errors.As(err, &notOwner):
		n := *notOwner
		n.Freeze, n.Holders = v.freeze(n.Freeze), v.holders(n.Holders)
		seen = &n
	default:
		return err
	}
	return seen
}
