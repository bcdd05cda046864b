//go:build unix

package sqlstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// laterVersions returns what a later program knows, whose migrations are beside these versions.
func laterVersions(t *testing.T, beside ...int64) versions {
	t.Helper()
	known, err := knownVersions()
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range beside {
		n := int64(len(known.migrations) + 1)
		known.migrations = append(known.migrations, migration{n, "ALTER TABLE locks ADD COLUMN more_" + string(rune('a'+n)) + " BIGINT; ALTER TABLE jobs ADD COLUMN more BIGINT", b})
	}
	known.wait, known.pause, known.atMost = 50*time.Millisecond, 10*time.Millisecond, 200*time.Millisecond
	return known
}

func openAs(t *testing.T, url string, known versions) (*DB, error) {
	t.Helper()
	d, err := openServerAs(t.Context(), url, Options{KeepEvents: 1000, KeepEventsFor: time.Hour}, known)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = d.Close() })
	return &DB{d}, nil
}

// Promise S-121.
func TestProgramsGoOnBesideNewerOnesThatAllowIt(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	old := openPG(t, url, Options{})
	m := openManager(t, url, 10)
	if err := raise(t.Context(), old.Locks(), "x"); err != nil {
		t.Fatal(err)
	}
	own := laterVersions(t)
	newer, err := openAs(t, url, laterVersions(t, int64(len(own.migrations))))
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{tokens: map[string]uint64{}}
	again := openPG(t, url, Options{}) // an old one that is started anew
	for _, db := range []*DB{old, newer, again} {
		if err := errors.Join(db.Ping(t.Context()), raise(t.Context(), db.Locks(), "x")); err != nil {
			t.Error(err)
		}
		f.read(t, db.Locks())
	}
	if _, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil || f.n != 4 {
		t.Errorf("%d events are read, %v", f.n, err)
	}
}

// Promise S-122.
func TestProgramsRefuseToChangeADatabaseThatIsTooNewForThem(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	old := openPG(t, url, Options{})
	oldJobs := openPG(t, url, Options{})
	m, err := manager.Open(t.Context(), oldJobs.Jobs(), manager.Options{Config: jobs.Config{Total: 10, Shared: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if err := raise(t.Context(), old.Locks(), "x"); err != nil {
		t.Fatal(err)
	}
	before, err := m.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	own := int64(len(laterVersions(t).migrations))
	newer, err := openAs(t, url, laterVersions(t, own+1))
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"change": raise(t.Context(), old.Locks(), "x"),
		"ping":   old.Ping(t.Context()),
		"turn": func() error {
			_, err := m.Submit(t.Context(), []jobs.Spec{jobs.NewSpec()})
			return err
		}(),
		"read": func() error {
			_, err := old.Locks().View(t.Context(), "x")
			return err
		}(),
		"events": func() error {
			_, err := old.Locks().ReadEvents(t.Context(), lokt.EventQuery{})
			return err
		}(),
		"cleaning": func() error {
			_, err := oldJobs.Jobs().Trim(t.Context(), time.Now(), 0, 10)
			return err
		}(),
	} {
		if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "newer program") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Open(t.Context(), url, Options{}); !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), "newer program") {
		t.Errorf("it is opened: %v", err)
	}
	snap, err := newer.Locks().View(t.Context(), "x")
	if err != nil || snap.Lock.Token != 1 {
		t.Errorf("the lock is %+v, %v", snap.Lock, err)
	}
	rows, err := newer.Jobs().Load(t.Context())
	if err != nil || len(rows.Jobs) != before.Queue.Sum() {
		t.Errorf("the jobs are %+v, %v", rows.Jobs, err)
	}
	if err := raise(t.Context(), newer.Locks(), "x"); err != nil {
		t.Error(err)
	}
}

// Promise S-122: no migration comes between what a change has read and its commit.
func TestAMigrationWaitsForChangesThatHaveBegun(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	old := openPG(t, url, Options{})
	known := laterVersions(t)
	known = laterVersions(t, int64(len(known.migrations)+1))
	known.wait, known.atMost = time.Minute, time.Minute
	begun, proceed, changed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		changed <- old.Locks().Update(t.Context(), "x", func(s lokt.Snapshot) lokt.Change {
			close(begun)
			<-proceed
			s.Lock.Token++
			return lokt.Change{Lock: s.Lock}
		})
	}()
	<-begun
	migrated := make(chan error, 1)
	go func() {
		d, err := openServerAs(t.Context(), url, Options{KeepEvents: 1000, KeepEventsFor: time.Hour}, known)
		if err == nil {
			err = d.Close()
		}
		migrated <- err
	}()
	c := session(t, url)
	for waiting := 0; waiting == 0; time.Sleep(time.Millisecond) {
		if err := c.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
			WHERE c.relname = 'state' AND c.relnamespace = current_schema()::regnamespace AND l.mode = 'AccessExclusiveLock' AND NOT l.granted`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	close(proceed)
	if err := errors.Join(<-changed, <-migrated); err != nil {
		t.Fatal(err)
	}
	if err := raise(t.Context(), old.Locks(), "x"); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "newer program") {
		t.Errorf("a change after it: %v", err)
	}
}

// Promise S-123.
func TestAMigrationGivesWayToThoseWhoUseTheTables(t *testing.T) {
	t.Parallel()
	url := schemaURL(t)
	old := openPG(t, url, Options{})
	backup := session(t, url)
	run(t, backup, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "SELECT count(*) FROM state")
	known := laterVersions(t)
	known = laterVersions(t, int64(len(known.migrations)))
	if _, err := openAs(t, url, known); !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(err.Error(), "backup") {
		t.Fatalf("opened during a backup: %v", err)
	}
	if err := raise(t.Context(), old.Locks(), "x"); err != nil {
		t.Error(err)
	}
	known.atMost = time.Minute
	opened := make(chan error, 1)
	go func() {
		d, err := openServerAs(t.Context(), url, Options{KeepEvents: 1000, KeepEventsFor: time.Hour}, known)
		if err == nil {
			err = d.Close()
		}
		opened <- err
	}()
	for range 5 { // everybody else goes on
		if err := raise(t.Context(), old.Locks(), "x"); err != nil {
			t.Error(err)
		}
	}
	run(t, backup, "COMMIT")
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

func TestMigrationsOfPostgreSQLSayBesideWhichProgramsTheyWork(t *testing.T) {
	t.Parallel()
	all, err := listMigrations("postgres")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all[1:] {
		if !strings.Contains(m.text, "\n-- beside: ") || m.beside < 1 || m.beside > m.version {
			t.Errorf("migration %d is beside %d", m.version, m.beside)
		}
	}
}
