package sqlstore

import (
	"sync"
	"testing"
	"testing/synctest"
)

func TestRequestsThatWereStoredAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(func([]*request) error { return nil })
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if err := g.perform(t.Context(), &request{}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // all of them are stored together
		go g.loop()
		all.Wait()
		g.close()
		for _, r := range g.busy[:cap(g.busy)] {
			if r != nil {
				t.Fatal("a request is kept, and with it what it made of its lock")
			}
		}
	})
}
