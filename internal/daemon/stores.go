package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/etcdstore"
	"github.com/lokt-dev/lokt/store/memstore"
	"github.com/lokt-dev/lokt/store/place"
	"github.com/lokt-dev/lokt/store/sqlstore"
)

// stores are where the daemon keeps things.
type stores struct {
	locks     lokt.Store
	events    lokt.EventLog // nil if the store keeps none
	jobs      jobs.Store    // nil if there is no scheduler
	one       bool          // one store keeps locks and jobs
	databases []*sqlstore.DB
	places    []place.Teller
	pings     []func(context.Context) error
	failed    <-chan struct{} // closed when the database of SQLite, of which there is one at most, cannot be relied on any more by this process
	close     []func() error
}

// Close closes all of them, last opened first.
func (s *stores) Close() error {
	var errs []error
	for _, c := range slices.Backward(s.close) {
		errs = append(errs, c())
	}
	s.close = nil
	return errors.Join(errs...)
}

// file returns the database that is in a file, which can be backed up; nil if there is none.
func (s *stores) file() *sqlstore.DB {
	for _, db := range s.databases {
		if filepath.IsAbs(db.Path()) {
			return db
		}
	}
	return nil
}

// observer is told what a database was asked for, how long it took and how it ended.
type observer = func(string, time.Duration, error)

// openStores opens what the config names. address is told to those that a store turns away because this daemon has it.
func openStores(ctx context.Context, c *Config, address string, log *slog.Logger, observe observer) (s *stores, err error) {
	s = &stores{one: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	o := sqlstore.Options{
		Describe: "at " + address, Observe: observe, AcceptLoss: c.AcceptLoss,
		Warn: func(err error) { log.Warn("the database is not as it should be", "err", err) },
	}
	if s.locks, s.jobs, err = s.open(ctx, c.Store, o, log); err != nil {
		return s, err
	}
	s.events, _ = s.locks.(lokt.EventLog)
	name := "--store"
	switch c.JobsStore {
	case "none":
		s.jobs = nil
		return s, nil
	case "", c.Store:
	default:
		name, s.one = "--jobs-store", false
		if _, s.jobs, err = s.open(ctx, c.JobsStore, o, log); err != nil {
			return s, err
		}
		if c.ownJobs() {
			log.Warn("jobs are this daemon's own: others that share the store of locks know nothing of them, and clients are to ask this one only", "jobs", redact(c.JobsStore))
		}
	}
	if s.jobs == nil {
		return s, usagef("%s keeps no jobs: %s", name, namesJobs)
	}
	return s, nil
}

// open opens one store, whose password is in no error.
func (s *stores) open(ctx context.Context, url string, o sqlstore.Options, log *slog.Logger) (lokt.Store, jobs.Store, error) {
	locks, jobs, err := s.openURL(ctx, url, o, log)
	if err != nil && strings.Contains(err.Error(), url) {
		err = errors.New(strings.ReplaceAll(err.Error(), url, redact(url)))
	}
	return locks, jobs, err
}

func (s *stores) openURL(ctx context.Context, url string, o sqlstore.Options, log *slog.Logger) (lokt.Store, jobs.Store, error) {
	switch kind, _, _ := strings.Cut(url, ":"); kind {
	case "memory":
		s.places = append(s.places, place.Ask(place.Memory))
		locks := memstore.New()
		s.close = append(s.close, locks.Close)
		return locks, locks.Jobs(), nil
	case "sqlite", "postgres", "postgresql":
		db, err := sqlstore.Open(ctx, url, o)
		if err != nil {
			return nil, nil, err
		}
		s.failed = cmp.Or(s.failed, db.Failed())
		s.databases, s.places, s.close = append(s.databases, db), append(s.places, db), append(s.close, db.Close)
		s.pings = append(s.pings, db.Ping)
		return db.Locks(), db.Jobs(), tellContents(ctx, db, url, log)
	case "etcd", "etcds":
		locks, err := etcdstore.Open(ctx, url, etcdstore.Options{})
		if err != nil {
			return nil, nil, fmt.Errorf("open %s: %w", redact(url), err)
		}
		s.places, s.pings, s.close = append(s.places, locks), append(s.pings, locks.Ping), append(s.close, locks.Close)
		return locks, nil, nil
	}
	return nil, nil, unknownStore(url)
}

// tellContents logs what is in a database: somebody who mistyped its path sees that it is a new one.
func tellContents(ctx context.Context, db *sqlstore.DB, url string, log *slog.Logger) error {
	has, err := db.Contents(ctx)
	if err == nil && has.Created {
		log.Info("made a new database, which is empty", "store", redact(url), "path", db.Path())
	} else if err == nil {
		log.Info("opened the database", "store", redact(url), "path", db.Path(), "locks", has.Locks)
	}
	return err
}

// namesJobs says what to do about a store without jobs.
const namesJobs = "name a store that does with --jobs-store (postgres://…, or for one daemon alone sqlite:PATH), or none for no scheduler"

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
			} else if url != c.Store && strings.HasPrefix(c.Store, "sqlite:") {
				errs = append(errs, errors.New("a database of SQLite keeps locks and jobs, in one backup: leave out --jobs-store"))
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

// ownJobs reports whether other daemons may have the same locks, but none the same jobs.
func (c *Config) ownJobs() bool {
	alone := func(url string) bool { return strings.HasPrefix(url, "sqlite:") || strings.HasPrefix(url, "memory:") }
	return alone(c.JobsStore) && !alone(c.Store)
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
