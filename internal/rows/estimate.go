package rows

import (
	"slices"
	"strconv"
	"time"

	"github.com/lokt-dev/lokt"
)

// Took adds how long a hold lasted, as an event's lokt.ExtraHeld says it; nothing if it says nothing.
func Took(took []time.Duration, held string) []time.Duration {
	if ms, err := strconv.ParseFloat(held, 64); err == nil {
		took = append(took, time.Duration(ms*float64(time.Millisecond)))
	}
	return took
}

// Typical returns the median of how long holds lasted; 0 of none.
func Typical(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	took = slices.Sorted(slices.Values(took))
	return took[len(took)/2]
}

// Estimate returns how long a claim may have to wait yet that has so many ahead of it in the queue, if holds go on to last
// what is typical. It is 0 if that is not known.
func Estimate(now time.Time, holders []lokt.Holder, ahead, limit int, typical time.Duration) time.Duration {
	left := time.Duration(ahead/max(limit, 1)) * typical
	if len(holders) > 0 {
		first := slices.MinFunc(holders, func(a, b lokt.Holder) int { return a.HeldSince.Compare(b.HeldSince) })
		left += max(typical-now.Sub(first.HeldSince), 0)
	}
	return left
}
