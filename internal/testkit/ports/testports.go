// Package ports chooses ports for the servers of tests that must be known before the server listens, or that it must
// get again when it is started anew.
package ports

import (
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

// Free returns so many different addresses of loopback on which nobody listens, and which nobody gets who does not ask for that very
// port. A socket for datagrams has its number as long as this process lives, lest another test choose it.
func Free(n int) (addresses []string, err error) {
	for range tries {
		if len(addresses) == n {
			return addresses, nil
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(lowest+rand.IntN(highest-lowest)))
		mark, err := net.ListenPacket("udp", address) //nolint:noctx // it does not wait
		if err != nil {
			continue // another test's
		}
		l, err := net.Listen("tcp", address) //nolint:noctx // it does not wait
		if err != nil {
			_ = mark.Close()
			continue // somebody else's
		}
		_ = l.Close()
		go func() { // which keeps it
			for err == nil {
				_, _, err = mark.ReadFrom(make([]byte, 1))
			}
		}()
		addresses = append(addresses, address)
	}
	return nil, fmt.Errorf("found %d of %d free ports from %d to %d", len(addresses), n, lowest, highest)
}
