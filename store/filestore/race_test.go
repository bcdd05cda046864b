//go:build race

package filestore

// raceEnabled: the race detector makes everything ten times as slow.
const raceEnabled = true
