package lokt

import (
	"errors"
	"testing"
)

func TestAStepCollectsOneChangeForEachLock(t *testing.T) {
	l := newLab(t)
	l.grant(as("a"))
	views := 0
	s := NewStep(func(name string) (Snapshot, error) {
		if views++; name == "x" {
			return l.s, nil
		}
		return Snapshot{Lock: Lock{Name: name}, Now: l.s.Now}, nil
	})
	other := as("b")
	other.Name = "y"
	if _, err := s.Acquire(other, as("b")); !errors.Is(err, ErrHeld) || len(s.Changes()) > 0 {
		t.Errorf("a lock that is held is answered %v, and leaves %+v", err, s.Changes())
	}
	if ended, err := s.Release(Target{Name: "x", LeaseID: "a"}); err != nil || len(ended) != 1 {
		t.Errorf("ended %v, %v", ended, err)
	}
	if _, err := s.Acquire(as("b"), Claim{Name: "no/name"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a name that is none is answered %v", err)
	}
	all, err := s.Acquire(as("b"), other)
	if err != nil || len(all) != 2 || all[0].Token != 2 || all[1].Name != "y" {
		t.Errorf("after its release it is answered %+v, %v", all, err)
	}
	changes := s.Changes()
	if len(changes) != 2 || views != 2 || changes[1].Lock.Name != "y" || len(changes[0].Lock.Holders) != 1 || changes[0].Lock.Holders[0].LeaseID != "b" {
		t.Errorf("%d views, changes %+v", views, changes)
	}
	told(t, &decision{Change: changes[0]}, EventRelease, EventAcquire)
	if l.s.Lock.Holders[0].LeaseID != "a" {
		t.Error("the store's lock has changed")
	}
}
