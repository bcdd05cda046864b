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
	if _, err := s.Acquire(as("b")); !errors.Is(err, ErrHeld) {
		t.Errorf("a lock that is held is answered %v", err)
	}
	if ended, err := s.Release(Target{Name: "x", LeaseID: "a"}); err != nil || len(ended) != 1 {
		t.Errorf("ended %v, %v", ended, err)
	}
	h, err := s.Acquire(as("b"))
	if err != nil || h.Token != 2 {
		t.Errorf("after its release it is answered %+v, %v", h, err)
	}
	other := as("b")
	other.Name = "y"
	if _, err := s.Acquire(other); err != nil {
		t.Error(err)
	}
	all := s.Changes()
	if len(all) != 2 || views != 2 || len(all[0].Lock.Holders) != 1 || all[0].Lock.Holders[0].LeaseID != "b" || all[1].Lock.Name != "y" {
		t.Errorf("%d views, changes %+v", views, all)
	}
	told(t, &decision{Change: all[0]}, EventDeny, EventRelease, EventAcquire)
	if l.s.Lock.Holders[0].LeaseID != "a" {
		t.Error("the store's lock has changed")
	}
	if _, err := s.Acquire(Claim{Name: "no/name"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("a name that is none is answered %v", err)
	}
}
