package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/etcdstore"
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
	backup *backend           // that which can be backed up; nil if there is none
	failed [2]<-chan struct{} // closed when one cannot be relied on any more by this process
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
	db     *sqlstore.DB // nil for stores of other kinds
	locks  lokt.Store
	jobs   jobs.Store
	ping   func(context.Context) error                  // may be nil
	backup func(ctx context.Context, path string) error // nil for a store that cannot
	path   string                                       // of the store's file, if it has a backup
	failed <-chan struct{}                              // closed when it cannot be relied on any more; may be nil
	close  func() error
}

// openStores opens what the config names. address is what those are told whom the store turns away because this daemon
// has it. observe is told what a database was asked for.
func openStores(ctx context.Context, c *Config, address string, log *slog.Logger, observe observer) (*stores, error) {
	s := &stores{}
	main, err := openBackend(ctx, c.Store, c.options(address, log, observe))
	if err != nil {
		return nil, err
	}
	s.add(main)
	if err := tellContents(ctx, main, c.Store, log); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.locks = main.locks
	s.events, _ = main.locks.(lokt.EventLog)
	other, name := main, "--store"
	switch c.JobsStore {
	case "none":
		return s, nil
	case "", c.Store:
	default:
		name = "--jobs-store"
		o := c.options(address, log, observe)
		o.JobsOnly = true
		if other, err = openBackend(ctx, c.JobsStore, o); err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.add(other)
		if err := tellContents(ctx, other, c.JobsStore, log); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	if other.jobs == nil {
		return nil, errors.Join(usagef("%s keeps no jobs: %s", name, namesJobs), s.Close())
	}
	s.jobs = other.jobs
	_, s.shared = other.jobs.(jobs.Sharer)
	return s, nil
}

// observer is told what a database was asked for, how long it took and how it ended.
type observer = func(operation string, took time.Duration, err error)

func (s *stores) add(b *backend) {
	s.failed[len(s.close)] = b.failed
	s.close = append(s.close, b.close)
	if b.ping != nil {
		s.pings = append(s.pings, b.ping)
	}
	if b.backup != nil && s.backup == nil {
		s.backup = b
	}
}

// options are those of databases.
func (c *Config) options(address string, log *slog.Logger, observe observer) sqlstore.Options {
	return sqlstore.Options{
		Describe: "at " + address, Observe: observe, AcceptLoss: c.AcceptLoss,
		Warn: func(err error) { log.Warn("the database is not as it should be", "err", err) },
	}
}

func openBackend(ctx context.Context, url string, o sqlstore.Options) (*backend, error) {
	b, err := openURL(ctx, url, o)
	if err != nil && strings.Contains(err.Error(), url) {
		return nil, &redactedError{err, url}
	}
	return b, err
}

// redactedError is an error without the password that is in a store's URL.
type redactedError struct {
	err error
	url string
}

func (e *redactedError) Error() string {
	return strings.ReplaceAll(e.err.Error(), e.url, redact(e.url))
}
func (e *redactedError) Unwrap() error { return e.err }

func openURL(ctx context.Context, url string, o sqlstore.Options) (*backend, error) {
	kind, _, _ := strings.Cut(url, ":")
	switch kind {
	case "memory":
		locks := memstore.New()
		b := &backend{locks: locks, jobs: locks.Jobs(), close: locks.Close}
		if o.JobsOnly {
			jobs := memstore.NewJobs()
			b.jobs, b.close = jobs, jobs.Close
		}
		return b, nil
	case "sqlite", "postgres", "postgresql":
		db, err := sqlstore.Open(ctx, url, o)
		if err != nil {
			return nil, err
		}
		b := &backend{db: db, locks: db.Locks(), jobs: db.Jobs(), ping: db.Ping, failed: db.Failed(), close: db.Close}
		if kind == "sqlite" {
			b.backup, b.path = db.Backup, db.Path()
		}
		return b, nil
	case "etcd", "etcds":
		s, err := etcdstore.Open(ctx, url, etcdstore.Options{})
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", redact(url), err)
		}
		return &backend{locks: s, close: s.Close}, nil
	}
	return nil, unknownStore(url)
}

// tellContents logs what is in a database: somebody who mistyped its path sees that it is a new one.
func tellContents(ctx context.Context, b *backend, url string, log *slog.Logger) error {
	if b.db == nil {
		return nil
	}
	db := b.db
	has, err := db.Contents(ctx)
	if err != nil {
		return err
	}
	if has.Created {
		log.Info("made a new database, which is empty", "store", redact(url), "path", db.Path())
	} else {
		log.Info("opened the database", "store", redact(url), "path", db.Path(), "locks", has.Locks, "jobs", has.Jobs)
	}
	return nil
}

// namesJobs says what to do about a store without jobs.
const namesJobs = "name a store that does with --jobs-store (sqlite:PATH, memory:), or none for no scheduler"

func unknownStore(url string) error {
	return usagef("%q is no store: give sqlite:PATH (sqlite:PATH?mode=rw if it must exist), memory:, postgres://… or etcd://…", redact(url))
}

// checkStores reports what can be seen to be wrong with the stores without opening them.
func (c *Config) checkStores() error {
	var errs []error
	for _, url := range []string{c.Store, c.JobsStore} {
		kind, _, _ := strings.Cut(url, ":")
		switch kind {
		case "memory", "postgres", "postgresql", "":
		case "sqlite":
			if _, _, ok := sqlstore.File(url); !ok {
				errs = append(errs, unknownStore(url))
			}
		case "none":
			if url == c.Store {
				errs = append(errs, errors.New("--store cannot be none"))
			}
		case "etcd", "etcds":
			if c.JobsStore == "" || url == c.JobsStore {
				errs = append(errs, fmt.Errorf("etcd keeps no jobs: %s", namesJobs))
			}
		default:
			errs = append(errs, unknownStore(url))
		}
	}
	return errors.Join(errs...)
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
