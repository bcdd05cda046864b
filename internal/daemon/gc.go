package daemon

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// How much garbage there may be between two collections: as much as is in use, as usual, but while little is in use so much
// more, as long as it is less than spareGarbage. A daemon that has little to keep otherwise collects many times a second under
// load.
const (
	usualPercent = 100
	mostPercent  = 400
	spareGarbage = 128 << 20
)

// garbagePercent returns how much garbage there may be, in percent of the bytes in use.
func garbagePercent(live uint64) int {
	return int(max(usualPercent, min(mostPercent, spareGarbage*100/max(live, 1))))
}

// CollectLess makes the runtime collect no garbage until it is told that the daemon has started, unless that meets the limit on memory
// (GOMEMLIMIT): most of what is read when it starts is kept. After that it collects less often while little memory is in use. GOGC
// changes all of that. The second function puts back what was there before.
func CollectLess(gogc string) (started, restore func()) {
	if gogc != "" {
		return func() {}, func() {}
	}
	var (
		mu     sync.Mutex
		over   bool
		was    = debug.SetGCPercent(-1)
		set    = mostPercent
		sample = []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		look   func(*sentinel)
	)
	look = func(s *sentinel) {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		if metrics.Read(sample); sample[0].Value.Kind() == metrics.KindUint64 {
			if p := garbagePercent(sample[0].Value.Uint64()); p != set { // setting it stops everything for a moment
				set = p
				debug.SetGCPercent(p)
			}
		}
		runtime.SetFinalizer(s, look)
	}
	runtime.SetFinalizer(&sentinel{}, look)
	started = func() {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			debug.SetGCPercent(set)
		}
	}
	return started, func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		debug.SetGCPercent(was)
	}
}

// sentinel is something that nobody uses: its finalizer runs after each collection.
type sentinel struct{ _ [32]byte }
