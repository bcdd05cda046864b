// Package ports chooses ports for the servers of tests that must be known before the server listens, or that it must
// get again when it is started anew.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports that are chosen. Systems give connections, and listeners that ask for any port, those above: a port of theirs
// that is free now may be taken by the time that a server wants it.
const (
	lowest  = 10_000
	highest = 32_000
	tries   = 1000 // bounds how many ports are looked at
)

// Free returns so many different addresses of loopback on which nobody listens, and which nobody gets who does not ask
// for that very port.
func Free(n int) (addresses []string, err error) {
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
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(lowest+rand.IntN(highest-lowest)))) //nolint:noctx // it does not wait
		if err != nil {
			continue // somebody else's
		}
		held = append(held, l)
		addresses = append(addresses, l.Addr().String())
	}
	return nil, fmt.Errorf("found %d of %d free ports from %d to %d", len(held), n, lowest, highest)
}
