//go:build unix

package sqlstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/lokttest"
)

// postgres is a server of PostgreSQL for the tests of this process, in a directory of its own, reached through a socket there.
type postgres struct {
	once    sync.Once
	dir     string
	bin     string
	err     error
	account *syscall.Credential
	stdin   io.Closer // the server ends when this is closed, or this process ends
	process *exec.Cmd
	schemas atomic.Int64
}

var server postgres

// errNoPostgres says that there is none on this machine.
var errNoPostgres = errors.New("no initdb of PostgreSQL is found")

// programs returns the directory of the server's programs.
func programs() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(all) == 0 {
		return "", errNoPostgres
	}
	slices.Sort(all)
	return filepath.Dir(all[len(all)-1]), nil
}

func (p *postgres) start() error {
	var err error
	if p.bin, err = programs(); err != nil {
		return err
	}
	if p.dir, err = os.MkdirTemp("", "lokt-pg-"); err != nil {
		return err
	}
	if os.Getuid() == 0 { // the server refuses to be root's
		account, err := user.Lookup("nobody")
		if other, e := user.Lookup("postgres"); e == nil {
			account, err = other, nil
		}
		if err != nil {
			return err
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		if err := os.Chown(p.dir, uid, gid); err != nil {
			return err
		}
		p.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	data := filepath.Join(p.dir, "data")
	initdb := p.command(filepath.Join(p.bin, "initdb"), "-D", data, "-U", "lokt", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return p.run()
}

func (p *postgres) command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = p.dir
	c.SysProcAttr = &syscall.SysProcAttr{Credential: p.account}
	return c
}

// run starts the server on the data that are there.
func (p *postgres) run() error {
	script := `"$1" -D "$2" -k "$3" -c listen_addresses= -c fsync=off -c max_connections=200 -c shared_buffers=64MB >"$3/log" 2>&1 &
pid=$!; echo $pid; read -r line; kill -INT $pid; wait $pid`
	p.process = p.command("/bin/sh", "-c", script, "sh", filepath.Join(p.bin, "postgres"), filepath.Join(p.dir, "data"), p.dir)
	stdin, err := p.process.StdinPipe()
	if err != nil {
		return err
	}
	p.stdin = stdin
	var out bytes.Buffer
	p.process.Stdout = &out
	if err := p.process.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := pgx.Connect(context.Background(), p.url("public"))
		if err == nil {
			return c.Close(context.Background())
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(p.dir, "log"))
			return fmt.Errorf("%w: %s", err, log)
		}
	}
}

// crash kills the server and its children, and starts it again.
func (p *postgres) crash(t *testing.T) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(b))[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil { // at once, without writing anything
		t.Fatal(err)
	}
	_ = p.stdin.Close()
	_ = p.process.Wait()
	if err := p.run(); err != nil {
		t.Fatal(err)
	}
}

func (p *postgres) url(schema string) string {
	q := url.Values{"host": {p.dir}, "user": {"lokt"}, "search_path": {schema}, "sslmode": {"disable"}}
	return "postgres:///postgres?" + q.Encode()
}

// stopServer ends the server, if there is one.
func stopServer() {
	if server.stdin != nil {
		_ = server.stdin.Close()
		_ = server.process.Wait()
	}
	removeAll(server.dir)
}

func removeAll(dir string) {
	if dir != "" {
		_ = os.RemoveAll(dir)
	}
}

// schemaURL returns the URL of an empty schema.
func schemaURL(t testing.TB) string {
	t.Helper()
	server.once.Do(func() { server.err = server.start() })
	if errors.Is(server.err, errNoPostgres) && os.Getenv("CI") == "" {
		t.Skip(server.err)
	}
	if server.err != nil {
		t.Fatal(server.err)
	}
	name := fmt.Sprint("t", server.schemas.Add(1))
	sql(t, server.url("public"), "CREATE SCHEMA "+name)
	return server.url(name)
}

// sql runs statements.
func sql(t testing.TB, url string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
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

// share opens a database; the test closes it.
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

// closing makes a store of locks close its database.
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

func pgLocks(t testing.TB, url string, o Options) closingLocks {
	db := openPG(t, url, o)
	return closingLocks{db.Locks(), db}
}

func pgJobs(t testing.TB, url string) closingJobs {
	db := openPG(t, url, Options{})
	return closingJobs{db.Jobs(), db}
}

func TestLocksInPostgreSQLKeepWhatStoresPromise(t *testing.T) {
	t.Parallel()
	lokttest.TestStore(t, func(t *testing.T) lokt.Store { return pgLocks(t, schemaURL(t), Options{}) })
}

func TestLocksInPostgreSQLOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	lokttest.TestReopen(t, func(t *testing.T) func() lokt.Store {
		url := schemaURL(t)
		return func() lokt.Store { return pgLocks(t, url, Options{}) }
	})
}

func TestAnObserverOfLocksInPostgreSQLSeesEveryChange(t *testing.T) {
	t.Parallel()
	lokttest.TestObserver(t, func(t *testing.T, observe func([]lokt.Event)) lokt.Store {
		return pgLocks(t, schemaURL(t), Options{Events: observe})
	})
}

func TestEventsOfLocksInPostgreSQLAreKept(t *testing.T) {
	t.Parallel()
	lokttest.TestEventLog(t, func(t *testing.T) lokt.Store { return pgLocks(t, schemaURL(t), Options{}) })
}

func TestTheRulesHoldOverPostgreSQL(t *testing.T) {
	t.Parallel()
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service { return lokt.NewManager(pgLocks(t, schemaURL(t), Options{})) })
}

func TestJobsInPostgreSQLKeepWhatStoresPromise(t *testing.T) {
	t.Parallel()
	jobstest.TestStore(t, func(t *testing.T) jobs.Store { return pgJobs(t, schemaURL(t)) })
}

func TestJobsInPostgreSQLOutliveTheirProcess(t *testing.T) {
	t.Parallel()
	urls := map[string]string{}
	jobstest.TestReopen(t, func(t *testing.T, dir string) jobs.Store {
		if urls[dir] == "" {
			urls[dir] = schemaURL(t)
		}
		return pgJobs(t, urls[dir])
	})
}

func TestTheSchedulersRulesHoldOverPostgreSQL(t *testing.T) {
	t.Parallel()
	jobstest.TestServiceInRealTime(t, func(t *testing.T, c jobs.Config) jobs.Service {
		c.Shared = true
		m, err := jobs.Open(t.Context(), pgJobs(t, schemaURL(t)), jobs.Options{Config: c})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	})
}
