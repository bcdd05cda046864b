// Package heap keeps things in order of what comes first. They know their place in it, so that any of them can be moved or
// taken out.
package heap

// Heap is a heap. It is not safe for use by several goroutines.
type Heap[T any] struct {
	items  []T
	before func(a, b T) bool
	place  func(T) *int
}

// New returns an empty heap. place returns where an item keeps its place, which is above 0 while it is in; of items that
// were never in, it must be 0.
func New[T any](place func(T) *int, before func(a, b T) bool) *Heap[T] {
	return &Heap[T]{place: place, before: before}
}

// Len returns how many items there are.
func (h *Heap[T]) Len() int { return len(h.items) }

// All returns the items, the first of them first and the others in no order. The caller must not change them.
func (h *Heap[T]) All() []T { return h.items }

// Top returns the first item; the heap must not be empty.
func (h *Heap[T]) Top() T { return h.items[0] }

// Push puts in an item that is not in.
func (h *Heap[T]) Push(x T) {
	h.items = append(h.items, x)
	h.settle(len(h.items)-1, x)
}

// Remove takes the item out, if it is in.
func (h *Heap[T]) Remove(x T) {
	i, last := *h.place(x)-1, len(h.items)-1
	if i < 0 {
		return
	}
	moved := h.items[last]
	clear(h.items[last:])
	h.items = h.items[:last]
	if i < last {
		h.settle(i, moved)
	}
	*h.place(x) = 0
}

// Fix restores the order after it has changed for an item, if that is in.
func (h *Heap[T]) Fix(x T) {
	if i := *h.place(x) - 1; i >= 0 {
		h.settle(i, x)
	}
}

// settle puts an item where it belongs, by way of a place that is free.
func (h *Heap[T]) settle(i int, x T) {
	for i > 0 && h.before(x, h.items[(i-1)/2]) {
		h.put(i, h.items[(i-1)/2])
		i = (i - 1) / 2
	}
	for child := 2*i + 1; child < len(h.items); child = 2*i + 1 {
		if child+1 < len(h.items) && h.before(h.items[child+1], h.items[child]) {
			child++
		}
		if !h.before(h.items[child], x) {
			break
		}
		h.put(i, h.items[child])
		i = child
	}
	h.put(i, x)
}

func (h *Heap[T]) put(i int, x T) {
	h.items[i] = x
	*h.place(x) = i + 1
}
