package daemon

import (
	"context"
	"time"
)

// Bounds on how often expired locks are forgotten: sweeping lists them all, and takes at most a fiftieth of the time.
const (
	sweepPause  = 2 * time.Second
	sweepFactor = 50
)

// sweep forgets what has expired, until ctx ends.
func (d *daemon) sweep(ctx context.Context) {
	for {
		begun := time.Now()
		n, err := d.locks.Sweep(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && d.failures.Allow():
			d.log.Warn("expired locks cannot be forgotten", "err", err)
		case n > 0:
			d.log.Debug("forgot what had expired", "locks", n)
		}
		pause := time.NewTimer(max(sweepPause, sweepFactor*time.Since(begun)))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}
