package heap_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lokt-dev/lokt/internal/heap"
)

type item struct{ key, at int }

func TestTheFirstIsOnTopWhateverIsMovedOrTakenOut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	h := heap.New(func(x *item) *int { return &x.at }, func(a, b *item) bool { return a.key < b.key })
	var in []*item
	for step := range 20_000 {
		switch n := rng.IntN(4); {
		case n < 2 && len(in) < 50 || len(in) == 0:
			x := &item{key: rng.IntN(30)}
			h.Push(x)
			in = append(in, x)
		case n == 2:
			x := in[rng.IntN(len(in))]
			x.key = rng.IntN(30)
			h.Fix(x)
		default:
			i := rng.IntN(len(in))
			h.Remove(in[i])
			h.Remove(in[i]) // it is out
			h.Fix(in[i])
			if in[i].at != 0 {
				t.Fatalf("step %d: what was taken out has the place %d", step, in[i].at)
			}
			in = slices.Delete(in, i, i+1)
		}
		if h.Len() != len(in) || len(h.All()) != len(in) {
			t.Fatalf("step %d: there are %d, not %d", step, h.Len(), len(in))
		}
		for i, x := range h.All() {
			if x.at != i+1 || x.key < h.All()[i/2].key && i > 0 && x.key < h.All()[(i-1)/2].key || x.key < h.Top().key {
				t.Fatalf("step %d: %d is at %d, out of order", step, x.key, i)
			}
		}
	}
}
