// Package ports chooses ports for the servers of tests that must be known before the server listens, or that it must
// get again when it is started anew.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// Ports that are chosen. The system gives connections, and listeners that ask for any port, those above: a port of
// theirs that is free now may be taken by the time that a server wants it.
const (
	lowest = 10_000
	top    = 32_000
)

// tries bounds how many ports are looked at.
const tries = 1000

// Free returns so many different addresses of loopback on which nobody listens, and which nobody gets who does not ask
// for that very port.
func Free(n int) (addresses []string, err error) {
	high := highest()
	var held []net.Listener
	defer func() {
		for _, l := range held {
			err = errors.Join(err, l.Close())
		}
	}()
	for range tries {
		if len(held) == n {
			return addresses, nil
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(lowest+rand.IntN(high-lowest+1)))) //nolint:noctx // it does not wait
		if err != nil {
			continue // somebody else's
		}
		held = append(held, l)
		addresses = append(addresses, l.Addr().String())
	}
	return nil, fmt.Errorf("found %d of %d free ports from %d to %d", len(held), n, lowest, high)
}

// highest returns the highest port to choose.
func highest() int {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return top // other systems begin higher
	}
	var first int
	if _, err := fmt.Sscan(string(data), &first); err != nil || first <= lowest+1000 {
		return top // there is nothing better
	}
	return min(first-1, top)
}
