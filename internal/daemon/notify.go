package daemon

import (
	"context"
	"fmt"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
)

// notify tells the service manager a state, such as "READY=1", if there is one that wants to know (sd_notify(3)).
func notify(state string) error {
	if _, err := systemd.SdNotify(false, state); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

// watchdog tells the service manager that all is well for as long as alive returns in time, until ctx ends. What hangs
// is restarted; a store that answers with an error is not helped by that.
func watchdog(ctx context.Context, alive func(context.Context) error) {
	limit, err := systemd.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return
	}
	for ctx.Err() == nil {
		next := time.After(limit / 3)
		probe, cancel := context.WithTimeout(ctx, limit/3)
		_ = alive(probe)
		if probe.Err() == nil {
			_ = notify(systemd.SdNotifyWatchdog) // nobody else could be told
		}
		cancel()
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}
