package engine

// heap is a binary heap whose items know their place in it, so that any of them can be moved or taken out.
type heap[T any] struct {
	items  []T
	before func(a, b T) bool
	place  func(T) *int // where an item keeps its index plus one; 0 if it is in no heap
}

func (h *heap[T]) len() int { return len(h.items) }

// top returns the first item; the heap must not be empty.
func (h *heap[T]) top() T { return h.items[0] }

func (h *heap[T]) push(x T) {
	h.items = append(h.items, x)
	*h.place(x) = len(h.items)
	h.up(len(h.items) - 1)
}

// remove takes the item out, if it is in.
func (h *heap[T]) remove(x T) {
	i := *h.place(x) - 1
	if i < 0 {
		return
	}
	*h.place(x) = 0
	last := len(h.items) - 1
	moved := h.items[last]
	var zero T
	h.items[last] = zero
	h.items = h.items[:last]
	if i != last {
		h.items[i] = moved
		*h.place(moved) = i + 1
		h.down(i)
		h.up(i)
	}
}

// fix restores the order after the item's key has changed.
func (h *heap[T]) fix(x T) {
	if i := *h.place(x) - 1; i >= 0 {
		h.down(i)
		h.up(*h.place(x) - 1)
	}
}

func (h *heap[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.before(h.items[i], h.items[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *heap[T]) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h.items); child++ {
			if h.before(h.items[child], h.items[least]) {
				least = child
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

func (h *heap[T]) swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	*h.place(h.items[i]), *h.place(h.items[j]) = i+1, j+1
}

// link is an item's place in a chain.
type link[T any] struct {
	prev, next *T
	in         bool
}

// chain is a list whose items know their neighbours.
type chain[T any] struct {
	first, last *T
	n           int
	link        func(*T) *link[T]
}

func (c *chain[T]) pushFront(x *T) { c.insert(nil, x) }

// insert puts an item behind another one, or first.
func (c *chain[T]) insert(after, x *T) {
	l := c.link(x)
	*l = link[T]{prev: after, next: c.first, in: true}
	if after != nil {
		l.next = c.link(after).next
		c.link(after).next = x
	} else {
		c.first = x
	}
	if l.next != nil {
		c.link(l.next).prev = x
	} else {
		c.last = x
	}
	c.n++
}

// toFront makes the item the first, whether it is in or not.
func (c *chain[T]) toFront(x *T) {
	if c.first != x {
		c.remove(x)
		c.pushFront(x)
	}
}

// remove takes the item out, if it is in.
func (c *chain[T]) remove(x *T) {
	l := c.link(x)
	if !l.in {
		return
	}
	if l.prev != nil {
		c.link(l.prev).next = l.next
	} else {
		c.first = l.next
	}
	if l.next != nil {
		c.link(l.next).prev = l.prev
	} else {
		c.last = l.prev
	}
	*l = link[T]{}
	c.n--
}
