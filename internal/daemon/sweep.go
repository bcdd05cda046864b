package daemon

import (
	"context"
	"time"
)

// sweep forgets what has expired, until ctx ends: every two seconds, but so that it takes at most a fiftieth of the
// time, because it lists all locks.
func (d *daemon) sweep(ctx context.Context) {
	for pause := time.Duration(0); ; {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		if _, err := d.locks.Sweep(ctx); err != nil && ctx.Err() == nil && d.failures.Allow() {
			d.log.Warn("expired locks cannot be forgotten", "err", err)
		}
		pause = max(2*time.Second, 50*time.Since(begun))
	}
}
