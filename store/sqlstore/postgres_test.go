//go:build unix

package sqlstore

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/lokttest"
)

// postgres is a server for the tests of this process.
type postgres struct{ servers.Shared }

var server postgres

// url names a schema of the server.
func (p *postgres) url(schema string) string { return p.URL(p.Addr, schema) }

// schemaURL returns the URL of an empty schema.
func schemaURL(t testing.TB) string {
	t.Helper()
	return server.url(server.Schema(t))
}

// runSQL runs statements.
func runSQL(t testing.TB, url string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(ctx) }()
	for _, s := range statements {
		if _, err := c.Exec(ctx, s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// openPG opens a database; the test closes it.
func openPG(t testing.TB, url string, o Options) *DB {
	t.Helper()
	db, err := Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return db
}

// closingLocks are locks that close their database.
type closingLocks struct {
	LockStore
	db *DB
}

func (s closingLocks) Close() error { return s.db.Close() }

type closingJobs struct {
	jobs.Store
	db *DB
}

func (s closingJobs) Close() error { return s.db.Close() }

func (s closingJobs) Changed() <-chan struct{} { return s.Store.(jobs.Sharer).Changed() }

func locksOfPG(t testing.TB, url string, o Options) closingLocks {
	db := openPG(t, url, o)
	return closingLocks{db.Locks(), db}
}

func jobsOfPG(t testing.TB, url string) closingJobs {
	db := openPG(t, url, Options{})
	return closingJobs{db.Jobs(), db}
}

func TestLocksInPostgreSQLKeepWhatStoresPromise(t *testing.T) {
	t.Parallel()
	lokttest.TestStore(t, func(t *testing.T) lokt.Store { return locksOfPG(t, schemaURL(t), Options{}) })
}

func TestLocksInPostgreSQLOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	lokttest.TestReopen(t, func(t *testing.T) func() lokt.Store {
		url := schemaURL(t)
		return func() lokt.Store { return locksOfPG(t, url, Options{}) }
	})
}

func TestEventsOfLocksInPostgreSQLAreKept(t *testing.T) {
	t.Parallel()
	lokttest.TestEventLog(t, func(t *testing.T) lokt.Store { return locksOfPG(t, schemaURL(t), Options{}) })
}

func TestTheRulesHoldOverPostgreSQL(t *testing.T) {
	t.Parallel()
	if os.Getenv("LOKT_SOAK") == "" {
		t.Skip("set LOKT_SOAK: two servers play the same, and one through a pooler")
	}
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service { return lokt.NewManager(locksOfPG(t, schemaURL(t), Options{})) })
}

func TestJobsInPostgreSQLKeepWhatStoresPromise(t *testing.T) {
	t.Parallel()
	jobstest.TestStore(t, func(t *testing.T) jobs.Store { return jobsOfPG(t, schemaURL(t)) })
}

func TestJobsInPostgreSQLOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	urls := map[string]string{}
	jobstest.TestReopen(t, func(t *testing.T, dir string) jobs.Store {
		if urls[dir] == "" {
			urls[dir] = schemaURL(t)
		}
		return jobsOfPG(t, urls[dir])
	})
}

// Promises S-140 and S-141.
func TestLocksOfJobsInPostgreSQLCanBeHadAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("separate", func(t *testing.T) {
		jobstest.TestLocks(t, false, func(t *testing.T) (jobs.Store, lokt.Service) {
			db := openPG(t, schemaURL(t), Options{})
			return closingJobs{db.Jobs(), db}, lokt.NewManager(start(t, spot(t), Options{}).Locks())
		})
	})
	t.Run("together", func(t *testing.T) {
		jobstest.TestLocks(t, true, func(t *testing.T) (jobs.Store, lokt.Service) {
			db := openPG(t, schemaURL(t), Options{})
			return closingJobs{db.Jobs(), db}, lokt.NewManager(db.Locks())
		})
	})
}
