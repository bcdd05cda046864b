package daemon

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestLittleMemoryInUseIsCollectedLessOften(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 8 << 20: 400, 32 << 20: 400, 64 << 20: 200, 128 << 20: 100, 1 << 30: 100} {
		if p := garbagePercent(live); p != want {
			t.Errorf("with %d bytes in use: %d, want %d", live, p, want)
		}
	}
}

// percent returns how much garbage there may be at the moment.
func percent() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func TestTheCollectorFollowsWhatIsInUseUntilItIsPutBack(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(77))
	started, restore := CollectLess("")
	if p := percent(); p < 10_000 {
		t.Errorf("during the start there may be %d %% of garbage only", p)
	}
	started()
	kept := make([]byte, 160<<20)
	for deadline := time.Now().Add(time.Minute); percent() != usualPercent; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("160 MiB are in use, and there may be %d %% of garbage", percent())
		}
		runtime.GC() // the finalizer runs some time after it
	}
	runtime.KeepAlive(kept)
	restore()
	if p := percent(); p != 77 {
		t.Errorf("afterwards it is %d", p)
	}
	started, restore = CollectLess("50")
	started()
	restore()
	if p := percent(); p != 77 {
		t.Errorf("although GOGC is set, it became %d", p)
	}
}
