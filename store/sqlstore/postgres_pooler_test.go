//go:build unix

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/jobstest"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/lokttest"
)

// pooler starts PgBouncer in transaction mode before the tests' server, and returns what makes an empty schema and the URL
// that leads to it through the pooler. A schema is chosen by a user of its own: PgBouncer takes no search path.
func pooler(t *testing.T) func(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/pgbouncer") // where Debian has it, which is not in everybody's PATH
	}
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		if os.Getenv("CI") == "" {
			t.Skip("no pgbouncer is found: install the package pgbouncer")
		}
		t.Fatal("no pgbouncer is found: install the package pgbouncer")
	}
	if err != nil {
		t.Fatal(err)
	}
	server.Run(t, "")                          // or there is no server at all
	dir, err := os.MkdirTemp("", "lokt-pool-") // its socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := server.Own(dir); err != nil { // the pooler refuses to be root's
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	user := "pooled_" + dir[strings.LastIndexByte(dir, '-')+1:]
	config := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%s
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = %s
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = 20
max_client_conn = 500
server_lifetime = 2
server_idle_timeout = 1
`, port, dir, filepath.Join(dir, "users"))
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var users strings.Builder
	const most = 100
	for i := range most {
		fmt.Fprintf(&users, "\"%s_%d\" \"\"\n", user, i)
	}
	if err := os.WriteFile(filepath.Join(dir, "users"), []byte(users.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	launch := func() (*exec.Cmd, error) {
		_ = os.Remove(filepath.Join(dir, ".s.PGSQL.6432")) // of one that was killed
		cmd := server.Command(path, config)
		cmd.Stdout, cmd.Stderr = log, log
		return cmd, cmd.Start()
	}
	cmd, err := launch()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	over, ended := false, make(chan struct{})
	go func() { // version 1.18 ends now and then with "server in bad state", when a request is called back
		defer close(ended)
		for {
			_ = cmd.Wait()
			time.Sleep(20 * time.Millisecond) // not too often, if it cannot run at all
			mu.Lock()
			next, err := cmd, error(nil)
			if !over {
				next, err = launch()
			}
			done := over || err != nil
			cmd = next
			mu.Unlock()
			if done {
				return
			}
		}
	}()
	t.Cleanup(func() {
		mu.Lock()
		over = true
		_ = cmd.Process.Kill()
		mu.Unlock()
		<-ended
		_ = log.Close()
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("the pooler says: %s", b[max(0, len(b)-4000):])
		}
	})
	var n atomic.Int64
	return func(t testing.TB) string {
		t.Helper()
		i := n.Add(1) - 1
		if i >= most {
			t.Fatal("more schemas than the pooler has users")
		}
		name := fmt.Sprintf("%s_%d", user, i)
		server.Run(t, "CREATE ROLE "+name+" LOGIN; CREATE SCHEMA "+name+" AUTHORIZATION "+name)
		url := fmt.Sprintf("postgres:///postgres?host=%s&port=6432&user=%s&sslmode=disable&default_query_exec_mode=exec", dir, name)
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
			c, err := pgx.Connect(t.Context(), url)
			if err == nil {
				_ = c.Close(t.Context())
				return url
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
}

func TestLocksKeepTheirPromisesThroughAPooler(t *testing.T) {
	t.Parallel()
	lokttest.TestStore(t, func(t *testing.T) lokt.Store { return locksOfPG(t, pooler(t)(t), Options{}) })
}

func TestTheRulesHoldThroughAPooler(t *testing.T) {
	t.Parallel()
	lokttest.TestServiceInRealTime(t, func(t *testing.T) lokt.Service {
		return patient{lokt.NewManager(locksOfPG(t, pooler(t)(t), Options{}))}
	})
}

// patient is a service that is asked again when the pooler has ended, and is about to be there again: any request may be sent twice.
type patient struct{ lokt.Service }

func retried[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		answer, err := ask()
		if !errors.Is(err, lokt.ErrUnavailable) || ctx.Err() != nil || time.Now().After(end) {
			return answer, err
		}
	}
}

func (p patient) Acquire(ctx context.Context, c lokt.Claim) (lokt.Holder, error) {
	if c.LeaseID == "" {
		c.LeaseID = lokt.NewLeaseID()
	}
	return retried(ctx, func() (lokt.Holder, error) { return p.Service.Acquire(ctx, c) })
}

func (p patient) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	return retried(ctx, func() (lokt.Holder, error) { return p.Service.Renew(ctx, r) })
}

func (p patient) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	return retried(ctx, func() ([]lokt.Holder, error) { return p.Service.Release(ctx, t) })
}

func (p patient) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	return retried(ctx, func() (lokt.Snapshot, error) { return p.Service.Get(ctx, name) })
}

func TestJobsKeepTheirPromisesThroughAPooler(t *testing.T) {
	t.Parallel()
	jobstest.TestStore(t, func(t *testing.T) jobs.Store { return jobsOfPG(t, pooler(t)(t)) })
}

// Notifications do not come through a pooler: what another process changes is seen when those who wait look again.
func TestWhoWaitsThroughAPoolerLooksAgain(t *testing.T) {
	t.Parallel()
	url := pooler(t)(t)
	store := locksOfPG(t, url, Options{})
	a, b := lokt.NewManager(store), lokt.NewManager(locksOfPG(t, url, Options{}))
	h, err := a.Acquire(t.Context(), claim("x", "a", time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	waits := claim("x", "b", time.Hour)
	waits.Wait = time.Minute
	got := make(chan error, 1)
	go func() {
		_, err := b.Acquire(t.Context(), waits)
		got <- err
	}()
	for {
		snap, err := store.View(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if len(snap.Lock.Queue) == 1 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := a.Release(t.Context(), lokt.Target{Name: "x", LeaseID: h.LeaseID, Owner: h.Owner}); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("who waited through the pooler: %v", err)
	}
}

func TestWorkersThatWaitThroughAPoolerAreGrantedWhatWasSubmittedElsewhere(t *testing.T) {
	t.Parallel()
	url := pooler(t)(t)
	var all []*manager.Manager
	for range 2 {
		m, err := manager.Open(t.Context(), jobsOfPG(t, url), manager.Options{Config: jobs.Config{Shared: true}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		all = append(all, m)
	}
	granted := make(chan error, 1)
	go func() {
		g, err := all[1].Request(t.Context(), jobs.Request{WorkerID: "w", Wait: 30 * time.Second})
		if err == nil && g.Denied != nil {
			err = fmt.Errorf("denied: %+v", g.Denied)
		}
		granted <- err
	}()
	select {
	case err := <-granted:
		t.Fatalf("granted before anything was submitted: %v", err)
	case <-time.After(500 * time.Millisecond): // it is parked by now, or finds the job when it comes
	}
	if _, err := all[0].Submit(t.Context(), []jobs.Spec{jobs.NewSpec()}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-granted:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the job waits although somebody waits for it, until that one has waited half a minute")
	}
}

func TestAPoolerOfWhichTheURLSaysNothingIsNamed(t *testing.T) {
	t.Parallel()
	db := openPG(t, schemaURL(t), Options{})
	err := serverJobsOf(db).db.using(t.Context(), "test", func(ctx context.Context, c *pgx.Conn) error {
		var one int
		look := func() error { return c.QueryRow(ctx, "SELECT version FROM lokt_schema").Scan(&one) }
		if err := look(); err != nil {
			return err
		}
		if _, err := c.Exec(ctx, "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol); err != nil { // as if it were another's connection
			return err
		}
		return look()
	})
	if !errors.Is(err, lokt.ErrUnavailable) || !strings.Contains(fmt.Sprint(err), "default_query_exec_mode=exec") {
		t.Errorf("it says %v", err)
	}
}
