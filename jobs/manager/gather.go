package manager

import (
	"runtime"
	"time"

	"github.com/lokt-dev/lokt/jobs/engine"
)

// A turn waits for requests for gatherTime at the longest, of which systems with coarse timers may make a millisecond, and only after a
// turn that answered so many that one more turn costs more than that.
const (
	gatherTime = 500 * time.Microsecond
	gatherFrom = 5
)

// gather lets those who are about to ask for something be in time for this turn: those who were answered by the last one often are,
// and what it costs to store a turn hardly depends on how many have a part in it. Where there are few, nobody waits.
func (m *Manager) gather() {
	runtime.Gosched()
	if m.answered < gatherFrom {
		return
	}
	m.mu.Lock()
	if len(m.queue) >= m.answered {
		m.mu.Unlock()
		return
	}
	m.want = m.answered
	m.mu.Unlock()
	late := time.NewTimer(gatherTime)
	defer late.Stop()
	select {
	case <-m.enough:
		return
	case <-late.C:
	case <-m.ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.want == 0 { // just now
		<-m.enough
	}
	m.want = 0
}

// turnWeight bounds what a turn takes in, so that no more has to be stored as one step than takes a moment, however many ask
// at once.
const turnWeight = 4096

// take takes from the queue what is for this turn: the oldest, and one at least.
func (m *Manager) take() []*call {
	n, weight := 0, 0
	for n < len(m.queue) {
		if weight += engine.Weight(m.queue[n].op); n > 0 && weight > turnWeight {
			break
		}
		n++
	}
	batch := m.queue[:n:n]
	if m.queue = m.queue[n:]; len(m.queue) == 0 {
		m.queue = nil
	}
	return batch
}
