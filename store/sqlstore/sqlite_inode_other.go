//go:build !linux

package sqlstore

import "github.com/gofrs/flock"

// lockFile does nothing: here a lock on the file would be in the way of SQLite's.
func lockFile(string) (*flock.Flock, error) { return nil, nil }
