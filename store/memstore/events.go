package memstore

import (
	"context"
	"slices"

	"github.com/lokt-dev/lokt"
)

// log keeps events. Its caller holds the mutex.
func (s *Store) log(events []lokt.Event) {
	for _, e := range events {
		s.last++
		s.events = append(s.events, lokt.LoggedEvent{Seq: s.last, Event: e})
	}
	if n := len(s.events) - s.keep; n > s.keep {
		s.events = slices.Clone(s.events[n:])
	}
	close(s.grown)
	s.grown = make(chan struct{})
}

// kept returns the events that are remembered. Its caller holds the mutex.
func (s *Store) kept() []lokt.LoggedEvent { return s.events[max(len(s.events)-s.keep, 0):] }

// Events returns the newest events, oldest first: as many as Options.Keep.
func (s *Store) Events() []lokt.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []lokt.Event
	for _, e := range s.kept() {
		all = append(all, e.Event)
	}
	return all
}

// ReadEvents implements lokt.EventLog.
func (s *Store) ReadEvents(ctx context.Context, q lokt.EventQuery) (lokt.EventPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil {
		return lokt.EventPage{}, err
	}
	limit := lokt.MaxEvents
	if q.Limit > 0 {
		limit = min(q.Limit, limit)
	}
	kept := s.kept()
	page := lokt.EventPage{Newest: s.last}
	if len(kept) > 0 {
		page.Oldest = kept[0].Seq
	}
	for i := range kept {
		if q.Latest {
			i = len(kept) - 1 - i
		}
		if !q.Matches(&kept[i]) {
			continue
		}
		if len(page.Events) == limit {
			page.More = true
			break
		}
		page.Events = append(page.Events, kept[i])
	}
	if q.Latest {
		slices.Reverse(page.Events)
	}
	return page, nil
}

// WaitEvents implements lokt.EventLog.
func (s *Store) WaitEvents(ctx context.Context, after uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx); err != nil || s.last > after {
		return err
	}
	return s.await(ctx, s.grown)
}
