// Package kernel is what a store of files asks of the operating system, so that a simulation can put another in its place.
package kernel

import (
	"context"
	"iter"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/vfs"
	"github.com/lokt-dev/lokt/lockfile"
)

// System is an operating system as one process sees it.
type System struct {
	FS    vfs.FS
	Log   Log
	Host  string
	Clock func() lockfile.Now
	Boot  func() string
	Self  func() lokt.Process
	Check func(p lokt.Process, sameHost bool) process.State
	Flock func(f process.Descriptor, lock bool) (done bool, err error) // does not wait

	LockByte   func(f process.Descriptor, off int64) error
	ByteLocked func(f process.Descriptor, off int64) (bool, error)

	Watch func(gone func(path string)) (Watcher, error) // calls gone for files that are removed
}

// Log is an audit log, as *audit.Log is.
type Log interface {
	Append(lines []byte) error
	Read(ctx context.Context, q audit.Query) iter.Seq2[audit.Entry, error]
}

// Watcher watches files, as *fsnotify.Watcher does.
type Watcher interface {
	Add(path string) error
	Remove(path string) error
	Close() error
}
