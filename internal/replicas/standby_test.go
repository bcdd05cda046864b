//go:build unix

package replicas_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/testkit/ports"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// clock is a shim before PostgreSQL's own: functions of the same names, which are found first by the search path.
type clock struct {
	pg   *servers.Postgres
	path string // the search path of those who go by it
}

func newClock(pg *servers.Postgres) (*clock, error) {
	sql := `CREATE SCHEMA lokt; CREATE TABLE lokt.stepped (by interval NOT NULL); INSERT INTO lokt.stepped VALUES ('0')`
	for name, kind := range map[string]string{"clock_timestamp": "VOLATILE", "statement_timestamp": "STABLE"} {
		sql += fmt.Sprintf("; CREATE FUNCTION lokt.%[1]s() RETURNS timestamptz LANGUAGE sql %[2]s AS 'SELECT pg_catalog.%[1]s() + by FROM lokt.stepped'", name, kind)
	}
	return &clock{pg, "lokt,pg_catalog"}, pg.Exec(sql)
}

// step sets the clock forward, or back.
func (c *clock) step(by time.Duration) error {
	return c.pg.Exec(fmt.Sprintf("UPDATE lokt.stepped SET by = by + '%d microseconds'", by.Microseconds()))
}

// node is a server of PostgreSQL of a pair, which ends with the test.
type node struct {
	addr, data string
	process    *exec.Cmd
	stdin      io.Closer // the server ends at once when this is closed, or this process ends
}

// pair is a PostgreSQL whose commits wait for a standby, which takes its place when it dies.
type pair struct {
	*servers.Postgres // which the first primary is a copy of
	primary, standby  *node
	made              int
}

func startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{Postgres: servers.NeedPostgres(t)}
	if err := p.Exec("CREATE SCHEMA lokt"); err != nil {
		t.Fatal(err)
	}
	var err error
	if p.primary, err = p.join(t, p.Addr); err == nil {
		err = p.promote(p.primary)
	}
	if err == nil {
		p.standby, err = p.join(t, p.primary.addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// bin is where the programs of PostgreSQL are.
func (p *pair) bin(name string) string {
	all, _ := filepath.Glob(filepath.Join("/usr/lib/postgresql/*/bin", name))
	return append([]string{name}, all...)[len(all)]
}

// join copies a server and starts the copy as its standby.
func (p *pair) join(t *testing.T, from string) (*node, error) {
	t.Helper()
	addresses, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	p.made++
	n := &node{addr: addresses[0], data: filepath.Join(p.Dir, fmt.Sprint("node-", p.made))}
	host, port, _ := net.SplitHostPort(from)
	copied := p.Command(p.bin("pg_basebackup"), "-D", n.data, "-d", fmt.Sprintf("host=%s port=%s user=lokt application_name=standby", host, port),
		"-R", "-X", "stream", "--checkpoint=fast", "--no-sync")
	if out, err := copied.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("pg_basebackup: %w: %s", err, out)
	}
	_, port, _ = net.SplitHostPort(n.addr)
	n.process = p.Command("/bin/sh", "-c", `"$@" >>log 2>&1 & pid=$!; read -r line; kill -QUIT $pid; wait $pid`, "sh", p.bin("postgres"),
		"-D", n.data, "-k", p.Dir, "-p", port, "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=300",
		"-c", "shared_buffers=64MB", "-c", "synchronous_standby_names=standby")
	if n.stdin, err = n.process.StdinPipe(); err != nil {
		return nil, err
	}
	if err := n.process.Start(); err != nil {
		return nil, err
	}
	t.Cleanup(n.kill)
	return n, p.eventually(n, "SELECT 1")
}

// eventually runs SQL on a node until it succeeds.
func (p *pair) eventually(n *node, sql string) (err error) {
	at := *p.Postgres
	at.Addr = n.addr
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = at.Exec(sql); err == nil {
			return nil
		}
	}
	return err
}

// kill ends a node at once, without letting it write anything.
func (n *node) kill() {
	_ = n.stdin.Close()
	_ = n.process.Wait()
}

// promote makes a standby a primary.
func (p *pair) promote(n *node) error {
	return p.eventually(n, "DO $$ BEGIN IF NOT pg_promote() THEN RAISE 'it is no primary yet'; END IF; END $$")
}

// failOver kills the primary, has the standby take over, and gives it another standby. Until then no commit is answered.
func (p *pair) failOver(t *testing.T, turn func(addr string)) error {
	t.Helper()
	p.primary.kill()
	gone := p.primary.data
	if err := p.promote(p.standby); err != nil {
		return err
	}
	p.primary = p.standby
	turn(p.primary.addr)
	var err error
	p.standby, err = p.join(t, p.primary.addr)
	return errors.Join(err, os.RemoveAll(gone))
}
