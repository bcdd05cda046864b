//go:build unix

package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt/internal/testkit/ports"
)

// ErrNoPostgres says that PostgreSQL is not installed on this machine.
var ErrNoPostgres = errors.New("no initdb of PostgreSQL is found")

// Postgres is a server of PostgreSQL with data of its own. It trusts everybody, and its user is lokt.
type Postgres struct {
	Addr string // where it listens: an address of loopback
	Dir  string // the directory of its socket, whose port is that of Addr; it goes when the server is stopped

	bin      string
	settings []string
	account  *syscall.Credential
	stdin    io.Closer // the server ends when this is closed, or this process ends
	process  *exec.Cmd
}

// NeedPostgres starts a server, which ends with the test. Without PostgreSQL the test is skipped, unless the
// environment variable CI is set: then it fails.
func NeedPostgres(t testing.TB, settings ...string) *Postgres {
	t.Helper()
	p, err := StartPostgres(settings...)
	Need(t, err)
	t.Cleanup(p.Stop)
	return p
}

// Shared is a server that the tests of a package share, started by the first that needs it. Nothing is flushed, and connections are in
// its log.
type Shared struct {
	*Postgres
	mu      sync.Mutex
	session *pgx.Conn
	err     error
	schemas int
}

// Run runs SQL, in a session that lasts.
func (s *Shared) Run(t testing.TB, sql string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.session == nil && s.err == nil {
		if s.Postgres, s.err = StartPostgres("fsync=off", "log_connections=on"); s.err == nil {
			s.session, s.err = pgx.Connect(ctx, s.URL(s.Addr, "public"))
		}
	}
	Need(t, s.err)
	_, err := s.session.Exec(ctx, sql)
	Need(t, err)
}

// Schema returns the name of an empty schema.
func (s *Shared) Schema(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	s.schemas++
	name := fmt.Sprint("t", s.schemas)
	s.mu.Unlock()
	s.Run(t, "CREATE SCHEMA "+name)
	return name
}

// Stop ends the server, if there is one: it is for TestMain.
func (s *Shared) Stop() {
	if s.Postgres != nil {
		s.Postgres.Stop()
	}
}

// Need ends the test if there is an error: it is skipped if PostgreSQL is not installed and CI is not set, and has
// failed otherwise.
func Need(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, ErrNoPostgres) && os.Getenv("CI") == "" {
		t.Skipf("%v: install the package postgresql", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// StartPostgres makes new data in a temporary directory, and starts a server on them, with settings like "fsync=off": such data are in
// memory, if there is plenty.
func StartPostgres(settings ...string) (*Postgres, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	p := &Postgres{bin: bin, settings: settings}
	in, memory := "", syscall.Statfs_t{}
	if syscall.Statfs("/dev/shm", &memory) == nil && uint64(memory.Bavail)*uint64(memory.Bsize) > 4<<30 && slices.Contains(settings, "fsync=off") {
		in = "/dev/shm"
	}
	if p.Dir, err = os.MkdirTemp(in, "lokt-pg-"); err != nil {
		return nil, err
	}
	if err := p.init(); err != nil {
		p.Stop()
		return nil, err
	}
	return p, nil
}

// programs returns the directory of the server's programs.
func programs() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(all) == 0 {
		return "", ErrNoPostgres
	}
	slices.Sort(all)
	return filepath.Dir(all[len(all)-1]), nil
}

func (p *Postgres) init() error {
	if os.Getuid() == 0 { // the server refuses to be root's
		account, err := user.Lookup("postgres")
		if err != nil {
			if account, err = user.Lookup("nobody"); err != nil {
				return err
			}
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		p.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := p.Own(p.Dir); err != nil {
			return err
		}
	}
	addresses, err := ports.Free(1)
	if err != nil {
		return err
	}
	p.Addr = addresses[0]
	initdb := p.Command(filepath.Join(p.bin, "initdb"), "-D", p.data(), "-U", "lokt", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return p.run()
}

func (p *Postgres) data() string { return filepath.Join(p.Dir, "data") }

// Command returns a command that runs in Dir as the account of the server, which is not root's.
func (p *Postgres) Command(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...) //nolint:noctx // ended by its standard input
	c.Dir = p.Dir
	c.SysProcAttr = &syscall.SysProcAttr{Credential: p.account}
	return c
}

// run starts the server on the data that are there, and waits until it answers. A shell stands between, which stops the
// server when its standard input ends, so that it does not outlive this process.
func (p *Postgres) run() error {
	_, port, _ := net.SplitHostPort(p.Addr)
	script := `"$1" -D "$2" -k "$3" -p "$4" -c listen_addresses=127.0.0.1 -c max_connections=300 -c shared_buffers=64MB $5 >>"$3/log" 2>&1 &
pid=$!; read -r line; kill -INT $pid; wait $pid`
	var settings strings.Builder
	for _, s := range p.settings {
		settings.WriteString(" -c " + s)
	}
	p.process = p.Command("/bin/sh", "-c", script, "sh", filepath.Join(p.bin, "postgres"), p.data(), p.Dir, port, settings.String())
	stdin, err := p.process.StdinPipe()
	if err != nil {
		return err
	}
	p.stdin = stdin
	if err := p.process.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := p.Exec(`SELECT 1`)
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(p.Dir, "log"))
			return fmt.Errorf("PostgreSQL does not answer: %w: %s", err, log)
		}
	}
}

// Own gives a file to the account of the server.
func (p *Postgres) Own(path string) error {
	if p.account == nil {
		return nil
	}
	return os.Chown(path, int(p.account.Uid), int(p.account.Gid))
}

// Exec runs SQL.
func (p *Postgres) Exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, p.URL(p.Addr, "public"))
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, sql)
	return errors.Join(err, c.Close(ctx))
}

// URL names the server, as seen at the address, which may be a proxy's, with a schema to work in.
func (p *Postgres) URL(addr, schema string) string {
	return fmt.Sprintf("postgres://lokt@%s/postgres?sslmode=disable&search_path=%s", addr, schema)
}

// Crash kills the server with all its processes, without letting it write anything, and starts it again.
func (p *Postgres) Crash() error {
	b, err := os.ReadFile(filepath.Join(p.data(), "postmaster.pid"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.Fields(string(b))[0])
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil { // it ends at once, and so do its children
		return err
	}
	_ = p.stdin.Close() // until when the shell leaves it a zombie
	_ = p.process.Wait()
	return p.run()
}

// Stop ends the server and removes its data.
func (p *Postgres) Stop() {
	if p.stdin != nil {
		_ = p.stdin.Close()
		_ = p.process.Wait()
	}
	_ = os.RemoveAll(p.Dir)
}
