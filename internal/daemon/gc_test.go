package daemon

import (
	"runtime/debug"
	"testing"
)

func TestNothingIsCollectedBeforeTheStartIsOver(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(77))
	_, started := collectLess()
	if p := debug.SetGCPercent(-1); p != -1 {
		t.Errorf("during the start there may be %d %% of garbage", p)
	}
	started()
	if p := debug.SetGCPercent(77); p != 77 {
		t.Errorf("afterwards there may be %d %%", p)
	}
}
