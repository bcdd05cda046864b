package sqlstore

import (
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// Promise S-172. Many that end together are forgotten in few transactions, while others are granted.
func TestManyThatEndTogetherAreForgottenTogether(t *testing.T) {
	var commits atomic.Int64
	db, err := Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "locks.db"), Options{Observe: func(op string, _ time.Duration, _ error) {
		if op == "commit" {
			commits.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	m := lokt.NewManager(db.Locks())
	var all sync.WaitGroup
	claim := func(name string, ttl time.Duration) {
		all.Go(func() {
			if _, err := m.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "a"}, TTL: ttl}); err != nil {
				t.Error(err)
			}
		})
	}
	const many = 3000
	for i := range many {
		claim(fmt.Sprint("short-", i), time.Second)
	}
	claim("long", time.Hour)
	all.Wait()
	time.Sleep(1100 * time.Millisecond)
	commits.Store(0)
	claim("new", time.Hour)
	n, err := m.Sweep(t.Context())
	all.Wait()
	if n != many || err != nil {
		t.Errorf("%d of %d are forgotten, %v", n, many, err)
	}
	if commits.Load() > many/2 {
		t.Errorf("that took %d transactions", commits.Load())
	}
	left := 0
	for s, err := range m.List(t.Context(), lokt.Filter{}) {
		if left++; err != nil || s.Lock.Name != "long" && s.Lock.Name != "new" {
			t.Errorf("%q is left, %v", s.Lock.Name, err)
		}
	}
	if left != 2 {
		t.Errorf("%d locks are left", left)
	}
}
