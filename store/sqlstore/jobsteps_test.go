package sqlstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// What has begun to be written in steps is left alone while there is no room, and neither forgotten nor tried again and again.
func TestStepsWaitUntilThereIsRoom(t *testing.T) {
	t.Parallel()
	var folds atomic.Int64
	db := start(t, place(t), Options{Observe: func(op string, _ time.Duration, _ error) {
		if op == "fold" {
			folds.Add(1)
		}
	}})
	ask := func(r *request) {
		t.Helper()
		if err := db.group.perform(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	until := func(again time.Time) *request {
		return &request{write: func(context.Context, querier) error {
			db.jobs.stepSize, db.foldAgain, db.foldError = 1, again, cramped{lokt.ErrUnavailable}
			return nil
		}}
	}
	ask(until(time.Time{}))
	turns := turnsOf(rand.New(rand.NewPCG(3, 1)))
	for _, c := range turns {
		ask(&request{turn: func(jobs.Facts) jobs.Changes { return *c }})
	}
	ask(&request{step: true})
	ask(until(time.Now().Add(time.Hour)))
	if err := db.group.perform(t.Context(), &request{step: true}); !errors.Is(err, lokt.ErrUnavailable) {
		t.Errorf("a step without room: %v", err)
	}
	folds.Store(0)
	db.group.idle()
	time.Sleep(10 * time.Millisecond)
	if n := folds.Load(); n > 0 || len(db.jobs.unfolded()) == 0 {
		t.Errorf("%d steps were written without room, %d turns are left", n, len(db.jobs.unfolded()))
	}
	ask(until(time.Time{}))
	for deadline := time.Now().Add(time.Minute); len(db.jobs.unfolded()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the tables do not follow when there is room")
		}
	}
}
