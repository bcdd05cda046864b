package httpapi

import (
	"sync"
	"time"

	"github.com/lokt-dev/lokt/internal/jitter"
)

// pace spreads the renewals of leases over time. Each answer with a lease is told when to renew it, and takes a place among the
// requests of that tenth of a second: no more than so many while a time can be found that the lease allows.
type pace struct {
	most  int // requests in a slot
	begun time.Time

	mu    sync.Mutex
	slots [1024]slot // those further away have few requests in any case: leases that live so long
}

// slot is a tenth of a second, and how many requests are expected in it.
type slot struct {
	at time.Duration // in slots
	n  int
}

const slotLength = 100 * time.Millisecond

func newPace(perSecond int) *pace {
	return &pace{most: max(perSecond*int(slotLength)/int(time.Second), 1), begun: time.Now()}
}

// next returns when a lease that lives so long is to be renewed: after a third of that, or up to half, so that there is time to try
// again, and then a quarter for a command to end. It is 0 for one that does not expire.
func (p *pace) next(life time.Duration) time.Duration {
	if life == 0 {
		return 0
	}
	spread := jitter.Float64()
	now := time.Since(p.begun)
	first, last := now+time.Duration(float64(life/3)*(1+spread/10)), now+life/2
	if first-now > slotLength*time.Duration(len(p.slots)) {
		return (first - now).Truncate(time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	best := p.slot(first / slotLength)
	for at := best.at + 1; best.n >= p.most && at <= min(last/slotLength, now/slotLength+time.Duration(len(p.slots)-1)); at++ {
		// Where all are full, the later ones are best.
		if s := p.slot(at); s.n < p.most || s.n < best.n || at < (first+last)/2/slotLength {
			best = s
		}
	}
	best.n++
	next := min(max(first, best.at*slotLength+time.Duration(spread*float64(slotLength))), last) - now
	return next.Truncate(time.Millisecond)
}

// slot returns a slot. What it was is over.
func (p *pace) slot(at time.Duration) *slot {
	s := &p.slots[int(at)%len(p.slots)]
	if s.at != at {
		*s = slot{at: at}
	}
	return s
}
