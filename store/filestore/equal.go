package filestore

import (
	"maps"
	"slices"

	"github.com/lokt-dev/lokt"
)

// What did not change is not written again; these tell, of everything that a record says. Times that are equal but not the
// same count as different.

func sameHolder(a, b *lokt.Holder) bool {
	return a.Token == b.Token && a.HeldSince == b.HeldSince && a.AcquiredAt == b.AcquiredAt && a.ExpiresAt == b.ExpiresAt &&
		a.Renewals == b.Renewals && a.Pending == b.Pending && samePtr(a.Yield, b.Yield) && sameClaim(&a.Claim, &b.Claim)
}

func sameClaim(a, b *lokt.Claim) bool {
	return a.Name == b.Name && a.LeaseID == b.LeaseID && a.Owner == b.Owner && samePtr(a.Process, b.Process) &&
		a.Attended == b.Attended && a.Limit == b.Limit && a.Strict == b.Strict && a.Refresh == b.Refresh && a.TTL == b.TTL &&
		a.MaxHold == b.MaxHold && a.Priority == b.Priority && a.Preempt == b.Preempt && a.Wait == b.Wait &&
		maps.Equal(a.Metadata, b.Metadata) && slices.Equal(a.Within, b.Within)
}

func sameWaiter(a, b *lokt.Waiter) bool {
	return a.Since == b.Since && a.Until == b.Until && sameClaim(&a.Claim, &b.Claim)
}

func samePtr[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// sameAll reports whether the two have the same elements in the same order.
func sameAll[T any](a, b []T, same func(a, b *T) bool) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !same(&a[i], &b[i]) {
			return false
		}
	}
	return true
}
