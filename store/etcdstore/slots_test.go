package etcdstore

import (
	"strconv"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// The clock of a lock stands still when it is forgotten since when it is as it is, and a hold whose holder is gone does not end then.
//
// Promise S-297.
func TestNamesThatComeAndGoStopNoClock(t *testing.T) {
	s := &Store{slots: map[string]*slot{}}
	since := time.Now().Add(-time.Minute)
	sl := s.pin("held")
	sl.learn(&state{lock: lokt.Lock{Name: "held", Holders: []lokt.Holder{{}}}, mod: 5, known: since})
	s.unpin(sl)
	for i := range 20 * maxSlots {
		other := s.pin(strconv.Itoa(i))
		other.learn(&state{lock: lokt.Lock{Name: other.name}, free: 6, known: since})
		s.unpin(other)
	}
	if known := s.pin("held").glance(5, time.Now()); !known.Equal(since) {
		t.Errorf("it counts as known for %v only", time.Since(known))
	}
	if n := len(s.slots); n > maxSlots+1 {
		t.Errorf("%d names are remembered", n)
	}
}
