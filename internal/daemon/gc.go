package daemon

import "runtime/debug"

// ballastSize is memory that is never touched, so the system never provides it, but counts as in use: a daemon with
// little to keep would otherwise collect garbage many times a second under load.
const ballastSize = 32 << 20

// collectLess returns the ballast. The runtime collects nothing until started is called, unless that meets the limit on
// memory (GOMEMLIMIT): most of what is read at the start is kept.
func collectLess() (ballast []byte, started func()) {
	was := debug.SetGCPercent(-1)
	return make([]byte, ballastSize), func() { debug.SetGCPercent(was) }
}
