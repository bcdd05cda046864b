package engine

import "container/heap"

// queue is a heap whose items know their place in it, so that any of them can be moved or taken out.
type queue[T any] struct {
	items  []T
	before func(a, b T) bool
	place  func(T) *int // where an item keeps its index plus one; 0 if it is in no queue
}

func newQueue[T any](place func(T) *int, before func(a, b T) bool) *queue[T] {
	return &queue[T]{place: place, before: before}
}

// top returns the first item; the queue must not be empty.
func (q *queue[T]) top() T { return q.items[0] }

func (q *queue[T]) push(x T) { heap.Push(q, x) }

// remove takes the item out, if it is in.
func (q *queue[T]) remove(x T) {
	if i := *q.place(x) - 1; i >= 0 {
		heap.Remove(q, i)
	}
}

// fix restores the order after the item's key has changed.
func (q *queue[T]) fix(x T) {
	if i := *q.place(x) - 1; i >= 0 {
		heap.Fix(q, i)
	}
}

// Len implements heap.Interface, as the methods below do.
func (q *queue[T]) Len() int { return len(q.items) }

func (q *queue[T]) Less(i, j int) bool { return q.before(q.items[i], q.items[j]) }

func (q *queue[T]) Swap(i, j int) {
	q.items[i], q.items[j] = q.items[j], q.items[i]
	*q.place(q.items[i]), *q.place(q.items[j]) = i+1, j+1
}

func (q *queue[T]) Push(x any) {
	q.items = append(q.items, x.(T))
	*q.place(x.(T)) = len(q.items)
}

func (q *queue[T]) Pop() any {
	last := len(q.items) - 1
	x := q.items[last]
	*q.place(x) = 0
	clear(q.items[last:])
	q.items = q.items[:last]
	return x
}
