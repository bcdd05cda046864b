package httpapi

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// parking knows the requests that wait, so that they can be answered when the server is about to end.
type parking struct {
	stop   <-chan struct{} // nil: never
	mu     sync.Mutex
	parked map[*context.CancelCauseFunc]bool
	empty  chan struct{} // closed when nothing is parked any more
}

// stopping reports whether the server is about to end.
func (p *parking) stopping() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// park returns a context that also ends, with errStopping, when the server is about to end, and what to call when the
// request waits no longer.
func (p *parking) park(ctx context.Context) (context.Context, func()) {
	if p.stop == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.parked) == 0 {
		p.parked, p.empty = map[*context.CancelCauseFunc]bool{}, make(chan struct{})
		go p.watch(p.empty)
	}
	p.parked[&cancel] = true
	if p.stopping() { // perhaps since the watch was over
		cancel(errStopping)
	}
	return ctx, func() {
		cancel(nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		if delete(p.parked, &cancel); len(p.parked) == 0 {
			close(p.empty)
		}
	}
}

// watch waits for the end of the server for as long as anything is parked.
func (p *parking) watch(empty <-chan struct{}) {
	select {
	case <-p.stop:
		p.mu.Lock()
		defer p.mu.Unlock()
		for cancel := range p.parked {
			(*cancel)(errStopping)
		}
	case <-empty:
	}
}

// busyRating returns how busy the machine is, from 0 to 10: 10 is as many processes that want a CPU as there are, or
// more, over the last minute. Where the system does not tell, it is 0.
func busyRating() int {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return max(0, min(10, int(10*load/float64(runtime.NumCPU())+0.5)))
}
