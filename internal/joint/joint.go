// Package joint lets those who read the same at once share a read: a crowd that waits for a lock looks whenever it changes, and the
// more there are, the longer is its record.
package joint

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Reads are reads by key. The zero value is ready.
type Reads[T any] struct {
	mu   sync.Mutex
	next map[string]*read[T] // by key, while there is one under way: the one after it, nil if nobody has asked for it
}

type read[T any] struct {
	from func() (T, error)
	done chan struct{} // closed when the rest is set
	is   T
	err  error

	panicked any // what the read panicked with, and where
}

// Do returns what a read that begins after its call says. If there is one under way, it waits for the next, together with all others.
// from ends after atMost. Nobody waits for longer than that and a fifth: not for two that hang. If a read panics, all that share it do.
func (r *Reads[T]) Do(ctx context.Context, key string, atMost time.Duration, from func() (T, error)) (T, error) {
	r.mu.Lock()
	mine, busy := r.next[key]
	if mine == nil {
		mine = &read[T]{from: from, done: make(chan struct{})}
		if r.next == nil {
			r.next = map[string]*read[T]{}
		}
		r.next[key] = mine
	}
	r.mu.Unlock()
	if !busy {
		go r.serve(key)
	}
	ctx, cancel := context.WithTimeout(ctx, atMost+atMost/5)
	defer cancel()
	select {
	case <-mine.done:
		if mine.panicked != nil {
			panic(mine.panicked)
		}
		return mine.is, mine.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// serve reads for those who have asked, and then for those who have asked meanwhile.
func (r *Reads[T]) serve(key string) {
	r.mu.Lock()
	mine := r.next[key]
	r.next[key] = nil
	if mine == nil {
		delete(r.next, key)
	}
	r.mu.Unlock()
	if mine == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			mine.panicked = fmt.Sprintf("%v, in a read that is shared:\n%s", p, debug.Stack())
		}
		close(mine.done)
		go r.serve(key)
	}()
	mine.err = errors.New("the read ended its goroutine") // stays if it does
	mine.is, mine.err = mine.from()
}
