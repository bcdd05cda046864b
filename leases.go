package lokt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Leases are locks that were acquired together.
type Leases []*Lease

// AcquireAll takes all the named locks or none. It takes them in the order of their names, whatever order they are
// given in, so that two who take overlapping sets cannot wait for each other. With o.Wait, the wait for all of them
// together is that long. Without, it asks first whether all can be had, so that a set that cannot does not disturb
// others.
func (k *Locker) AcquireAll(ctx context.Context, names []string, o Options) (Leases, error) {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) == 0 {
		return nil, invalid("no lock is named")
	}
	o, err := o.withDefaults(k.defaults)
	if err != nil {
		return nil, err
	}
	if o.Wait == 0 && len(names) > 1 {
		for _, name := range names {
			s, err := k.service.Get(ctx, name)
			if err == nil {
				err = s.WouldGrant(k.claim(ctx, name, o))
			}
			if err != nil {
				return nil, err
			}
		}
	}
	begun, wait := time.Now(), o.Wait
	leases := make(Leases, 0, len(names))
	for _, name := range names {
		if wait > 0 {
			o.Wait = max(wait-time.Since(begun), time.Nanosecond)
		}
		l, err := k.acquire(ctx, k.claim(ctx, name, o), o)
		if err == nil {
			leases, o.Within = append(leases, l), append(slices.Clip(o.Within), l.id) // which is released only after the next
			err = leases.Err()                                                        // an earlier one may have been lost meanwhile
		}
		if err != nil {
			undo, done := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer done()
			return nil, errors.Join(err, leases.Release(undo))
		}
	}
	return leases, nil
}

// Release gives all of them back, the last taken first.
func (ls Leases) Release(ctx context.Context) error {
	ctx, enough := beyond(ctx, ls...)
	defer enough()
	var errs []error
	for _, l := range slices.Backward(ls) {
		errs = append(errs, l.Release(ctx))
	}
	return errors.Join(errs...)
}

// Err returns nil while all of them can be relied on, and otherwise why the first that cannot be cannot.
func (ls Leases) Err() error {
	for _, l := range ls {
		if err := l.Err(); err != nil {
			return fmt.Errorf("lock %q: %w", l.name, err)
		}
	}
	return nil
}

// Context returns a context that ends when the first of the leases does, with its cause; the returned function frees it
// earlier. It comes from each of theirs: see Lease.Context.
func (ls Leases) Context(parent context.Context) (context.Context, context.CancelFunc) {
	for _, l := range ls {
		parent = &leaseContext{Context: parent, lease: l}
	}
	ctx, cancel := context.WithCancelCause(parent)
	stops := make([]func() bool, 0, len(ls))
	for _, l := range ls {
		stops = append(stops, context.AfterFunc(l.Context(), func() { cancel(context.Cause(l.Context())) }))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}
