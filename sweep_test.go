package lokt_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Promise S-172.
func TestSweepForgetsWhatIsOverAndKeepsTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		m := lokt.NewManager(store)
		claim := func(name string, ttl time.Duration) lokt.Claim {
			return lokt.Claim{Name: name, LeaseID: name, Owner: lokt.Owner{ID: "a"}, TTL: ttl}
		}
		for i := range 5000 {
			if _, err := m.Acquire(t.Context(), claim(fmt.Sprint("short-", i), time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := m.Acquire(t.Context(), claim("long", time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		over := 0
		for s, err := range m.List(t.Context(), lokt.Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if s.Over() {
				over++
			}
		}
		if n, err := m.Sweep(t.Context()); n != 5000 || over != 5000 || err != nil {
			t.Errorf("%d were over, %d are swept, %v", over, n, err)
		}
		for s, err := range m.List(t.Context(), lokt.Filter{}) {
			if s.Lock.Name != "long" || err != nil {
				t.Fatalf("%q is still listed, %v", s.Lock.Name, err)
			}
		}
		if h, err := m.Acquire(t.Context(), claim("short-7", time.Second)); h.Token != 2 || err != nil {
			t.Errorf("granted again with token %d, %v", h.Token, err)
		}
	})
}
