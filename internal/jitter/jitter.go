// Package jitter spreads what many would do at the same time.
package jitter

import (
	"crypto/rand"
	"encoding/binary"
)

// Float64 returns a random number of at least 0 and below 1. It comes from crypto/rand, which a simulation can make
// repeat itself.
func Float64() float64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return float64(binary.LittleEndian.Uint64(b[:])>>11) / (1 << 53)
}
