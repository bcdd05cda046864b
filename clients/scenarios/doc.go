// Package scenarios has tests only: one script of contention, expiry, death, partition and restart, played against a real
// loktd by every client there is, with the same verdicts.
package scenarios
