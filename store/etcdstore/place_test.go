package etcdstore

import (
	"testing"
	"time"

	"github.com/lokt-dev/lokt/store/place"
)

// members returns how the members came out.
func (s *Store) membersFound(t *testing.T) place.Condition {
	t.Helper()
	for _, c := range s.Conditions(t.Context()) {
		if c.Status == place.Unknown {
			t.Errorf("not found: %+v", c)
		}
		if c.Name == "members" {
			return c
		}
	}
	t.Fatal("etcd says nothing of its members")
	return place.Condition{}
}

// Promise S-226.
func TestEtcdSaysHowManyMembersAnswer(t *testing.T) {
	t.Parallel()
	alone := startCluster(t, 1, false)
	if got := alone.open(t, alone.url(), Options{}).membersFound(t); got.Status != place.Warn {
		t.Errorf("of one member: %+v", got)
	}
	c := startCluster(t, 3, false)
	s := c.open(t, c.url(), Options{})
	if got := s.membersFound(t); got.Status != place.OK {
		t.Errorf("of three: %+v", got)
	}
	c.others(c.leader())[0].stop()
	for end := time.Now().Add(patience); s.membersFound(t).Status != place.Warn; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a member that has ended is not told: %+v", s.Conditions(t.Context()))
		}
	}
}
