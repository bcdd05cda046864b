//go:build unix

package daemon_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/lokt-dev/lokt"
)

func TestBackupOfARunningDaemonCanBeRestored(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "tokens")
	admin, reader := newToken(t, file, "admin", "--scopes", "admin"), newToken(t, file, "reader", "--scopes", "read")
	url := "sqlite:" + filepath.Join(dir, "loktd.db")
	p := start(t, "--store", url, "--tokens", file)
	a := p.api()
	a.token = admin
	job := a.do(t, http.StatusOK, "POST", scheduler+"/jobs", body{}).text("job_id")
	lease := lokt.NewLeaseID()
	a.do(t, http.StatusOK, "POST", locks+"x/leases", body{"lease_id": lease, "owner": body{"id": "a"}, "ttl_ms": 600_000})

	var crew sync.WaitGroup
	done := make(chan struct{})
	crew.Go(func() { // the daemon is busy meanwhile
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				if ans, err := a.try("POST", scheduler+"/jobs", body{"payload": body{"x": strings.Repeat("x", 10_000)}}); err != nil || ans.status != http.StatusOK {
					t.Errorf("during a backup a job was answered with %d %s, %v", ans.status, ans.body, err)
					return
				}
			}
		}
	})
	copies := make([]string, 3)
	for i := range copies {
		copies[i] = filepath.Join(dir, fmt.Sprint("copy", i))
		code, out, stderr := run(t, []string{"LOKT_SERVER_TOKEN=" + admin}, "backup", copies[i], "--listen", p.address(), "--store", url)
		if code != 0 || !strings.Contains(out, copies[i]) {
			t.Fatalf("exit code %d: %s%s", code, out, stderr)
		}
		if info, err := os.Stat(copies[i]); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the copy is %+v, %v", info, err)
		}
	}
	close(done)
	crew.Wait()
	for _, c := range []struct{ env, path, says string }{
		{"LOKT_SERVER_TOKEN=" + admin, copies[0], "there already"},
		{"LOKT_SERVER_TOKEN=", filepath.Join(dir, "none", "no"), "no such file"}, // the daemon is not asked
		{"LOKT_SERVER_TOKEN=" + reader, filepath.Join(dir, "no"), "403 Forbidden: the scope admin, without a prefix, is missing; set LOKT_SERVER_TOKEN"},
		{"LOKT_SERVER_TOKEN=", filepath.Join(dir, "no"), "401 Unauthorized: who asks is not known: no token; set LOKT_SERVER_TOKEN"},
	} {
		code, _, stderr := run(t, []string{c.env}, "backup", c.path, "--listen", p.address(), "--store", url)
		if code != 1 || !strings.Contains(stderr, c.says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exit code %d, not because of %s: %s", code, c.says, stderr)
		}
	}
	token := a.do(t, http.StatusOK, "POST", locks+"y/leases", body{"owner": body{"id": "a"}, "ttl_ms": 60_000}).number("holder", "token")
	p.kill()

	for _, copied := range copies {
		q := start(t, "--store", "sqlite:"+copied)
		b := q.api()
		b.do(t, http.StatusOK, "GET", scheduler+"/jobs/"+job, nil)
		b.renew(t, http.StatusOK, "x", lease)
		if after := b.do(t, http.StatusOK, "POST", locks+"y/leases", body{"owner": body{"id": "a"}, "ttl_ms": 60_000}).number("holder", "token"); after <= token {
			t.Errorf("token %d of a restored store comes after %d of the lost one", after, token)
		}
		q.stop()
	}
	t.Chdir(dir)
	code, out, stderr := run(t, nil, "backup", "alone", "--listen", p.address(), "--store", url)
	if code != 0 || !strings.Contains(out, "no daemon runs") {
		t.Errorf("without a daemon: exit code %d: %s%s", code, out, stderr)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.sending")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Promise S-270.
func TestABackupIsOfOneAnswerOfADaemon(t *testing.T) {
	copied, second, first := bytes.Repeat([]byte("lokt"), 1<<16), make(chan struct{}), make(chan struct{})
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			_, _ = w.Write([]byte("<html>"))
			return
		}
		switch asked.Add(1) {
		case 1:
			w.Header().Set("Content-Type", "application/vnd.sqlite3")
			w.Header().Set("Content-Length", fmt.Sprint(len(copied)))
			_, _ = w.Write(copied[:len(copied)/2])
			_ = http.NewResponseController(w).Flush()
			<-second
			_, _ = w.Write(copied[len(copied)/2:])
		case 2:
			close(second)
			<-first
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = w.Write([]byte("<html>"))
		}
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "copy")
	backup := func(path string) (int, string) {
		code, out, stderr := run(t, nil, "backup", path, "--listen", server.Listener.Addr().String())
		return code, out + stderr
	}
	var crew sync.WaitGroup
	crew.Go(func() {
		defer close(first)
		code, says := backup(path)
		if text, err := os.ReadFile(path); code != 0 || err != nil || !bytes.Equal(text, copied) {
			t.Errorf("exit code %d, %s, and %d bytes of %d, or others: %v", code, says, len(text), len(copied), err)
		}
	})
	eventually(t, "the first backup is being sent", func() bool { return asked.Load() == 1 })
	if code, says := backup(path); code != 1 || !strings.Contains(says, "503") && !strings.Contains(says, "is there already") {
		t.Errorf("a second backup to the same path: exit code %d, %s", code, says)
	}
	crew.Wait()
	other := path + "2"
	if code, says := backup(other); code != 1 || !strings.Contains(says, "another program answers there") {
		t.Errorf("what another program answers is a backup: exit code %d, %s", code, says)
	}
	if code, _, stderr := run(t, nil, "health", "--listen", server.Listener.Addr().String()); code != 1 || !strings.Contains(stderr, "another program answers there") {
		t.Errorf("another program is ready: exit code %d, %s", code, stderr)
	}
	if left, _ := filepath.Glob(path + "?*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestABackupIsOfTheDatabaseOfSQLiteThatThereIs(t *testing.T) {
	dir := t.TempDir()
	jobs, copied := "sqlite:"+filepath.Join(dir, "jobs.db"), filepath.Join(dir, "copy.db")
	p := start(t, "--store", "memory:", "--jobs-store", jobs)
	address := p.address()
	p.stop()
	code, out, stderr := run(t, nil, "backup", copied, "--listen", address, "--store", "memory:", "--jobs-store", jobs)
	if _, err := os.Stat(copied); code != 0 || err != nil {
		t.Errorf("exit code %d, %s%s, %v", code, out, stderr, err)
	}
}

func TestABackupIsMadeForACertificateThatMayAdminister(t *testing.T) {
	servers, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	cert, key := servers.issue("loktd", 1)
	own, ownKey := clients.issue("operator", 2)
	dir := t.TempDir()
	store, copied := "sqlite:"+filepath.Join(dir, "db"), filepath.Join(dir, "copy.db")
	p := start(t, "--store", store, "--tls-cert", cert, "--tls-key", key, "--client-ca", clients.file("ca.pem"), "--client-scopes", "admin")
	code, out, stderr := run(t, []string{"LOKT_CERT_FILE=" + own, "LOKT_KEY_FILE=" + ownKey}, "backup", copied, "--listen", p.address(), "--tls-cert", cert)
	if code != 0 {
		t.Errorf("exit code %d, %s%s", code, out, stderr)
	}
	if code, _, stderr = run(t, nil, "backup", copied+"2", "--listen", p.address(), "--tls-cert", cert); code != 1 || !strings.Contains(stderr, "LOKT_CERT_FILE") {
		t.Errorf("without a certificate: exit code %d, %s", code, stderr)
	}
}

func TestABackupThatIsInterruptedLeavesNothing(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	dir := t.TempDir()
	cmd := command(t, nil, "backup", filepath.Join(dir, "copy"), "--listen", mute.Addr().String())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	c, err := mute.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("it ended with %v, and left behind: %v", err, left)
	}
}
