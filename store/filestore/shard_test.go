package filestore

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/internal/ahead"
)

// Promise S-412.
func TestHoldersGoBeforeACrowdOfClaimsOfTheirProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh, order := newShard(), make(chan string, 200)
		enter := func(ctx context.Context, who string) {
			if err := sh.enter(&patience{ctx: ctx, limit: time.Minute, since: time.Now()}); err != nil {
				t.Error(err)
			}
			order <- who
			time.Sleep(time.Millisecond)
			sh.leave()
		}
		for range 100 {
			go enter(t.Context(), "claim")
		}
		synctest.Wait()
		go enter(ahead.Of(t.Context()), "holder")
		time.Sleep(time.Second)
		for n := range 3 {
			if <-order == "holder" {
				return
			} else if n == 2 {
				t.Error("a renewal waited for three claims")
			}
		}
	})
}
