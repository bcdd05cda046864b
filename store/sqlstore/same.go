package sqlstore

import (
	"maps"
	"slices"

	"github.com/lokt-dev/lokt"
)

// same reports whether two locks say the same, whatever their revisions.
func same(a, b *lokt.Lock) bool {
	return a.Token == b.Token && a.Corrupt == b.Corrupt && sameFreeze(a.Freeze, b.Freeze) &&
		slices.EqualFunc(a.Holders, b.Holders, sameHolder) && slices.EqualFunc(a.Queue, b.Queue, sameWaiter)
}

func sameHolder(a, b lokt.Holder) bool {
	return a.AcquiredAt.Equal(b.AcquiredAt) && a.ExpiresAt.Equal(b.ExpiresAt) && a.Renewals == b.Renewals && sameHold(&a, &b)
}

// sameHold compares all but what a renewal changes.
func sameHold(a, b *lokt.Holder) bool {
	return a.Token == b.Token && a.HeldSince.Equal(b.HeldSince) && a.Pending.Equal(b.Pending) && sameYield(a.Yield, b.Yield) &&
		sameClaim(&a.Claim, &b.Claim)
}

func sameWaiter(a, b *lokt.Waiter) bool { return a.Until.Equal(b.Until) && samePlace(a, b) }

// samePlace compares all but what asking again changes.
func samePlace(a, b *lokt.Waiter) bool {
	return a.Since.Equal(b.Since) && sameClaim(&a.Claim, &b.Claim)
}

func sameClaim(a, b *lokt.Claim) bool {
	return a.Name == b.Name && a.LeaseID == b.LeaseID && a.Owner == b.Owner && samePointed(a.Process, b.Process) &&
		a.Attended == b.Attended && a.Limit == b.Limit && a.Strict == b.Strict && a.Refresh == b.Refresh && a.TTL == b.TTL &&
		a.MaxHold == b.MaxHold && a.Priority == b.Priority && a.Preempt == b.Preempt && a.Wait == b.Wait &&
		maps.Equal(a.Metadata, b.Metadata) && slices.Equal(a.Within, b.Within)
}

func sameYield(a, b *lokt.Yield) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.To == b.To && a.AskedAt.Equal(b.AskedAt) && a.Grace == b.Grace && a.Deadline.Equal(b.Deadline)
}

func sameFreeze(a, b *lokt.Freeze) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ID == b.ID && a.Owner == b.Owner && a.Reason == b.Reason && a.At.Equal(b.At) && a.TTL == b.TTL &&
		a.ExpiresAt.Equal(b.ExpiresAt) && a.Damaged == b.Damaged
}

func samePointed[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// onlyRenewed reports whether a lock differs only by what says that somebody is still there: no more is lost with such a
// change than what is given again when the database is opened.
func onlyRenewed(was, is *lokt.Lock) bool {
	return was.Token == is.Token && was.Corrupt == is.Corrupt && sameFreeze(was.Freeze, is.Freeze) &&
		slices.EqualFunc(was.Holders, is.Holders, func(a, b lokt.Holder) bool { return sameHold(&a, &b) }) &&
		slices.EqualFunc(was.Queue, is.Queue, samePlace)
}
