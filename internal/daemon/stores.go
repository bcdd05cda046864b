package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/memstore"
	"github.com/lokt-dev/lokt/store/sqlstore"
)

// stores are where the daemon keeps things.
type stores struct {
	locks  lokt.Store
	events lokt.EventLog // nil if the store keeps none
	jobs   jobs.Store    // nil if there is no scheduler
	shared bool          // other daemons may use the jobs at the same time
	pings  []func(context.Context) error
	backup *backend // that which can be backed up; nil if there is none
	close  []func() error
}

// Close closes all of them, last opened first.
func (s *stores) Close() error {
	var errs []error
	for i := len(s.close) - 1; i >= 0; i-- {
		errs = append(errs, s.close[i]())
	}
	s.close = nil
	return errors.Join(errs...)
}

// backend is one opened store, which has locks or jobs or both.
type backend struct {
	locks  lokt.Store
	jobs   jobs.Store
	shared bool
	ping   func(context.Context) error                  // may be nil
	backup func(ctx context.Context, path string) error // nil for a store that cannot
	path   string                                       // of the store's file, if it has a backup
	close  func() error
}

// openStores opens what the config names. address is what those are told whom the store turns away because this daemon
// has it. observe is told what a database was asked for.
func openStores(ctx context.Context, c *Config, address string, observe observer) (*stores, error) {
	s := &stores{}
	main, err := openBackend(ctx, c.Store, address, observe)
	if err != nil {
		return nil, err
	}
	s.add(main)
	s.locks = main.locks
	s.events, _ = main.locks.(lokt.EventLog)
	other, name := main, "--store"
	switch c.JobsStore {
	case "none":
		return s, nil
	case "", c.Store:
	default:
		name = "--jobs-store"
		if other, err = openBackend(ctx, c.JobsStore, address, observe); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.add(other)
	}
	if other.jobs == nil {
		return nil, errors.Join(usagef("what %s names keeps no jobs: name a store that does with --jobs-store, or none", name), s.Close())
	}
	s.jobs, s.shared = other.jobs, other.shared
	return s, nil
}

// observer is told what a database was asked for, how long it took and how it ended.
type observer = func(operation string, took time.Duration, err error)

func (s *stores) add(b *backend) {
	s.close = append(s.close, b.close)
	if b.ping != nil {
		s.pings = append(s.pings, b.ping)
	}
	if b.backup != nil && s.backup == nil {
		s.backup = b
	}
}

func openBackend(ctx context.Context, url, address string, observe observer) (*backend, error) {
	kind, _, _ := strings.Cut(url, ":")
	switch kind {
	case "memory":
		locks, jobs := memstore.New(), memstore.NewJobs()
		return &backend{locks: locks, jobs: jobs, close: func() error { return errors.Join(locks.Close(), jobs.Close()) }}, nil
	case "sqlite":
		db, err := sqlstore.Open(ctx, url, sqlstore.Options{Describe: "at " + address, Observe: observe})
		if err != nil {
			return nil, err
		}
		return &backend{locks: db.Locks(), jobs: db.Jobs(), ping: db.Ping, backup: db.Backup, path: db.Path(), close: db.Close}, nil
	}
	return nil, unknownStore(url)
}

func unknownStore(url string) error {
	return usagef("%q is no store: give sqlite:PATH, memory:, postgres://… or etcd://…", redact(url))
}

// checkStore reports what can be seen to be wrong with a store without opening it.
func checkStore(url string) error {
	kind, _, _ := strings.Cut(url, ":")
	if !slices.Contains([]string{"memory", "sqlite"}, kind) {
		return unknownStore(url)
	}
	return nil
}

// redact returns the URL without what may be a password.
func redact(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return url
	}
	rest, _, _ = strings.Cut(rest, "?")
	authority, path, slash := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		authority = "…" + authority[i:]
	}
	if slash {
		path = "/" + path
	}
	return fmt.Sprintf("%s://%s%s", scheme, authority, path)
}
