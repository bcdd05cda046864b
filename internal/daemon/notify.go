package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// notifier tells the service manager how the daemon is, by the protocol of sd_notify(3): a datagram to the socket that
// NOTIFY_SOCKET names. Without one it does nothing.
type notifier struct {
	socket string
	every  time.Duration // how often the watchdog wants to hear; 0 for never
}

// newNotifier reads what the service manager says in the environment.
func newNotifier(getenv func(string) string, pid int) notifier {
	n := notifier{socket: getenv("NOTIFY_SOCKET")}
	if n.socket != "" && n.socket[0] == '@' {
		n.socket = "\x00" + n.socket[1:] // of the abstract namespace
	}
	if p := getenv("WATCHDOG_PID"); p == "" || p == strconv.Itoa(pid) {
		if us, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
			n.every = time.Duration(us) * time.Microsecond / 3
		}
	}
	return n
}

// tell sends a state, such as "READY=1".
func (n notifier) tell(ctx context.Context, state string) error {
	if n.socket == "" {
		return nil
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixgram", n.socket)
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	_, err = conn.Write([]byte(state))
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

// watch tells the watchdog that all is well for as long as alive returns in time, until ctx ends. What hangs is restarted by the
// service manager; a store that answers with an error is not helped by that.
func (n notifier) watch(ctx context.Context, alive func(context.Context) error) {
	if n.socket == "" || n.every == 0 {
		return
	}
	tick := time.NewTicker(n.every)
	defer tick.Stop()
	for {
		probe, cancel := context.WithTimeout(ctx, n.every)
		_ = alive(probe)
		hung := probe.Err() != nil
		cancel()
		if !hung {
			_ = n.tell(ctx, "WATCHDOG=1") // nobody else could be told
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
