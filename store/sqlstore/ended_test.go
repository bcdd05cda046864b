//go:build unix

package sqlstore

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// endings runs changes that panic or end their goroutine, among others that do not.
func endings(t *testing.T, db *DB) {
	m := lokt.NewManager(db.Locks())
	var crew sync.WaitGroup
	var mu sync.Mutex
	ended := map[string]int{}
	count := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		ended[what]++
	}
	const rounds = 20
	for g := range 4 {
		crew.Go(func() {
			for i := range rounds {
				name := fmt.Sprintf("lock-%d-%d", g, i)
				if _, err := m.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "a"}, TTL: time.Minute}); err != nil {
					t.Error(err)
				}
				if err := db.Jobs().Update(t.Context(), func(jobs.Facts) jobs.Changes { return jobs.Changes{} }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for what, end := range map[string]func(){"panic": func() { panic("on cue") }, "exit": runtime.Goexit} {
		for range rounds {
			for _, update := range []func(){
				func() {
					_ = db.Locks().Update(t.Context(), "other", func(lokt.Snapshot) lokt.Change { end(); return lokt.Change{} })
				},
				func() {
					_ = db.Jobs().Update(t.Context(), func(jobs.Facts) jobs.Changes { end(); return jobs.Changes{} })
				},
			} {
				crew.Go(func() { // of a goroutine, because it ends with the change
					over := make(chan struct{})
					go func() {
						defer close(over)
						defer func() {
							if p := recover(); p == "on cue" && what == "panic" || p == nil && what == "exit" {
								count(what)
							}
						}()
						update()
						t.Errorf("a change that ends with %s returns", what)
					}()
					<-over
				})
			}
		}
	}
	crew.Wait()
	if ended["panic"] != 2*rounds || ended["exit"] != 2*rounds {
		t.Errorf("they ended so: %v", ended)
	}
	for g := range 4 {
		for i := range rounds {
			name := fmt.Sprintf("lock-%d-%d", g, i)
			if s, err := db.Locks().View(t.Context(), name); err != nil || len(s.Lock.Holders) != 1 || s.Lock.Token != s.Lock.Holders[0].Token {
				t.Errorf("%s is %+v, %v", name, s.Lock, err)
			}
		}
	}
	if err := db.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// Promise S-138.
func TestAChangeThatPanicsOrEndsItsGoroutineEndsOnlyItself(t *testing.T) {
	t.Parallel()
	db, err := Open(t.Context(), "sqlite:"+spot(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	endings(t, db)
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// Promise S-138.
func TestAChangeThatPanicsOrEndsItsGoroutineEndsOnlyItselfOnPostgreSQL(t *testing.T) {
	t.Parallel()
	endings(t, openPG(t, schemaURL(t), Options{}))
}
