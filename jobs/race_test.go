//go:build race

package jobs

// raceEnabled: the race detector makes everything ten times as slow.
const raceEnabled = true
