package manager

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/jobs/engine"
)

// gathering runs gather for a manager whose last turn answered so many, and returns how long it took; meanwhile runs beside it.
func gathering(t *testing.T, answered int, meanwhile func(m *Manager)) (took time.Duration, m *Manager) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m = &Manager{
			poke: make(chan struct{}, 1), enough: make(chan struct{}, 1), calls: map[uint64]*call{}, ctx: t.Context(), answered: answered,
		}
		begun := time.Now()
		go func() {
			synctest.Wait() // until it waits
			meanwhile(m)
		}()
		m.gather()
		took = time.Since(begun)
		if m.want != 0 || len(m.enough) != 0 {
			t.Errorf("after gathering it wants %d requests and was told %d times that there are enough", m.want, len(m.enough))
		}
	})
	return took, m
}

func ask(t *testing.T, m *Manager, n int) {
	t.Helper()
	for range n {
		if _, err := m.send(context.Background(), engine.Status{}); err != nil {
			t.Error(err)
		}
	}
}

func TestATurnWaitsForAsManyAsTheLastOneAnsweredAndNoLonger(t *testing.T) {
	took, m := gathering(t, 5, func(m *Manager) {
		time.Sleep(gatherTime / 3)
		ask(t, m, 4)
		time.Sleep(gatherTime / 3)
		ask(t, m, 2)
	})
	if took != 2*(gatherTime/3) || len(m.queue) != 6 {
		t.Errorf("a turn took in %d requests after %v, want 6 when the fifth had come", len(m.queue), took)
	}
}

func TestATurnWaitsForABoundedTimeForThoseWhoDoNotComeBack(t *testing.T) {
	took, m := gathering(t, 5, func(m *Manager) { ask(t, m, 2) })
	if took != gatherTime || len(m.queue) != 2 {
		t.Errorf("a turn took in %d requests after %v, want 2 after %v", len(m.queue), took, gatherTime)
	}
}

func TestWhereThereAreFewRequestsNobodyWaitsForMore(t *testing.T) {
	took, _ := gathering(t, 4, func(*Manager) {})
	if took != 0 {
		t.Errorf("a turn after one that answered four waited for %v", took)
	}
}
