package sim

import (
	"slices"
	"testing"
	"time"
)

// Shrink returns a course as small as it finds within that time in which the same kind of promise is broken: with fewer wild
// decisions, and fewer actions.
func Shrink(t *testing.T, r *Result, most time.Duration) *Result {
	end := time.Now().Add(most)
	best := r
	try := func(m Mask) bool {
		if time.Now().After(end) {
			return false
		}
		o := r.Options
		o.World, o.Mask = r.World, m
		again := Play(t, o)
		if again.Violation == nil || again.Violation.Kind != r.Violation.Kind {
			return false
		}
		best = again
		return true
	}
	if r.Mask.Tame || try(Mask{Tame: true, Keep: r.used, Idle: r.Mask.Idle}) {
		for before := -1; before != len(best.Mask.Keep)+100*len(best.Mask.Idle); {
			before = len(best.Mask.Keep) + 100*len(best.Mask.Idle)
			for _, id := range slices.Backward(best.actions) {
				m := best.Mask
				m.Idle = append(slices.Clone(m.Idle), id)
				try(m)
			}
			without(best.Mask.Keep, func(keep []int) bool { return try(Mask{Tame: true, Keep: keep, Idle: best.Mask.Idle}) })
		}
	}
	return best
}

// without looks for what can be left out of a list, large parts first.
func without(all []int, holds func([]int) bool) {
	for size := len(all); size >= 1; size /= 2 {
		for at := 0; at < len(all); {
			rest := slices.Delete(slices.Clone(all), at, min(at+size, len(all)))
			if holds(rest) {
				all = rest
			} else {
				at += size
			}
		}
	}
}
