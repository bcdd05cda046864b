package lokt

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Info describes a lock that is on record, held or stale.
type Info struct {
	Holders []Holder
	Queue   []*Waiter
	Stale   bool // no holder is live
	Mine    bool // one of the live holders is this Locker's owner
}

// Held reports whether anybody holds the named lock: a stale record is not a held lock.
func (k *Locker) Held(ctx context.Context, name string) (bool, error) {
	i, _, err := k.Info(ctx, name)
	return err == nil && !i.Stale, err
}

// HeldByMe reports whether the Locker's owner holds the named lock.
func (k *Locker) HeldByMe(ctx context.Context, name string) (bool, error) {
	i, _, err := k.Info(ctx, name)
	return i.Mine, err
}

// Info returns what is on record about the named lock, and whether anything is.
func (k *Locker) Info(ctx context.Context, name string) (Info, bool, error) {
	s, err := k.service.Get(ctx, name)
	if err != nil {
		return Info{}, false, err
	}
	return k.info(s), len(s.Lock.Holders) > 0, nil
}

func (k *Locker) info(s Snapshot) Info {
	live := s.Live()
	mine := slices.ContainsFunc(live, func(h Holder) bool { return k.owner.Same(h.Owner) })
	return Info{Holders: s.Lock.Holders, Queue: s.Lock.Queue, Stale: len(live) == 0, Mine: mine}
}

// All returns every lock that is on record, by name.
func (k *Locker) All(ctx context.Context) (map[string]Info, error) {
	all := map[string]Info{}
	var errs []error
	for s, err := range k.service.List(ctx, Filter{}) {
		if err != nil {
			errs = append(errs, err)
		} else if len(s.Lock.Holders) > 0 {
			all[s.Lock.Name] = k.info(s)
		}
	}
	return all, errors.Join(errs...)
}

// CleanupStale removes the records of stale holders and returns how many. What was renewed meanwhile stays, for it is
// judged again in the step that removes it.
func (k *Locker) CleanupStale(ctx context.Context) (int, error) {
	n := 0
	err := sweep(ctx, k.service, func(gone []Removed) {
		for _, r := range gone {
			if !r.Waiter {
				n++
			}
		}
	})
	return n, err
}

// Stats is a summary of the locks on record.
type Stats struct {
	Total            int // holds on record
	Mine             int // of them, live and of this Locker's owner
	Active           int // live
	Stale            int // expired or dead
	Waiting          int
	ActiveHeartbeats int // leases that this Locker renews
	Locks            []LockStats
}

// LockStats is one hold in Stats.
type LockStats struct {
	Name         string
	Owner        Owner
	Age          time.Duration // since it was granted
	HeartbeatAge time.Duration // since it was granted or last renewed
	Renewals     int
	Stale        bool
}

// Stats counts the locks on record, by the store's clock.
func (k *Locker) Stats(ctx context.Context) (Stats, error) {
	var st Stats
	var errs []error
	for s, err := range k.service.List(ctx, Filter{}) {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		st.Waiting += len(s.Lock.Queue)
		for _, h := range s.Lock.Holders {
			_, stale := s.Stale(h)
			st.Total++
			switch {
			case stale:
				st.Stale++
			case k.owner.Same(h.Owner):
				st.Mine++
			}
			st.Locks = append(st.Locks, LockStats{
				Name: s.Lock.Name, Owner: h.Owner, Age: s.Now.Sub(h.HeldSince), HeartbeatAge: s.Now.Sub(h.AcquiredAt),
				Renewals: h.Renewals, Stale: stale,
			})
		}
	}
	st.Active = st.Total - st.Stale
	for _, l := range k.Leases() {
		if l.Beating() {
			st.ActiveHeartbeats++
		}
	}
	return st, errors.Join(errs...)
}
