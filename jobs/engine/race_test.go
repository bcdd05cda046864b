//go:build race

package engine

// raceEnabled: the race detector makes everything ten times as slow.
const raceEnabled = true
