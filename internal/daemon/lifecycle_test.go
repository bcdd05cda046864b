//go:build unix

package daemon_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Promise S-95.
func TestReadyLineMeansThatRequestsAreAnswered(t *testing.T) {
	p := start(t, "--store", "memory:")
	a := p.api()
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/locks", scheduler + "/status"} {
		a.do(t, http.StatusOK, "GET", path, nil)
	}
	for _, path := range []string{"/readyz", "/metrics"} {
		if got := a.do(t, http.StatusMethodNotAllowed, "POST", path, nil).header.Get("Allow"); got != "GET, HEAD" {
			t.Errorf("Allow of %s is %q", path, got)
		}
	}
	p.stop()
	if _, err := net.DialTimeout("tcp", p.address(), time.Second); err == nil {
		t.Error("an ended daemon still listens")
	}
}

// Promise S-95.
func TestSignalHasRequestsThatWaitAnsweredAtOnce(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := start(t, "--store", "memory:")
		a := p.api()
		type end struct {
			answer
			vain bool // having waited as long as was asked for
		}
		ends := make(chan end, 2)
		var stopping atomic.Bool
		wait := func(method, path string, b any) {
			go func() {
				for {
					begun := time.Now()
					ans, err := a.try(method, path, b)
					vain := time.Since(begun) >= 30*time.Second
					if err != nil {
						ans.body = err.Error()
					}
					if err != nil || stopping.Load() || !vain {
						ends <- end{ans, vain}
						return
					} // or it has waited in vain, on a slow machine, and waits again
				}
			}()
		}
		a.do(t, http.StatusOK, "POST", locks+"x/leases", body{"owner": body{"id": "a"}, "ttl_ms": 600_000})
		wait("POST", scheduler+"/leases/request", body{"worker_id": "w", "wait_ms": 30_000})
		wait("POST", locks+"x/leases", body{"owner": body{"id": "b"}, "wait_ms": 30_000})
		eventually(t, "both wait", func() bool {
			m := a.metrics(t)
			return strings.Contains(m, `lokt_scheduler_parked{kind="lease"} 1`) && strings.Contains(m, `lokt_lock_queue_length{name="x"} 1`)
		})
		stopping.Store(true)
		p.signal(sig)
		vain := 0
		for range 2 {
			e := <-ends
			if e.vain {
				vain++
			} else if e.status != http.StatusOK && e.status != http.StatusServiceUnavailable {
				t.Errorf("after %v a request that waited was answered with %d %s", sig, e.status, e.body)
			}
		}
		if code := p.wait(); code != 0 {
			t.Errorf("after %v the exit code is %d; the log:\n%s", sig, code, p.log)
		}
		if vain == 2 {
			t.Errorf("after %v requests that wait are not answered at once", sig)
		}
	}
}

// statusFrom reads the status of an answer from a connection.
func statusFrom(c net.Conn) (int, error) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, nil
}

// slowly sends a request whose body is not complete, and returns what completes it, once the daemon waits for the body.
func slowly(t *testing.T, p *proc) (finish func() (status int, err error)) {
	t.Helper()
	c := p.dial()
	text := `{"payload":{}}`
	head := fmt.Sprintf("POST %s/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\r\n", scheduler, len(text))
	if _, err := io.WriteString(c, head); err != nil {
		t.Fatal(err)
	}
	goOn := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(c, goOn); err != nil || !strings.Contains(string(goOn), " 100 ") {
		t.Fatalf("the body is not asked for: %q, %v", goOn, err)
	}
	if _, err := io.WriteString(c, text[:1]); err != nil {
		t.Fatal(err)
	}
	return func() (int, error) {
		if _, err := io.WriteString(c, text[1:]); err != nil {
			return 0, err
		}
		return statusFrom(c)
	}
}

// Promise S-95.
func TestRequestsInFlightAreAnsweredBeforeTheEnd(t *testing.T) {
	p := start(t, "--store", "memory:", "--shutdown-timeout", "1h", "--body-timeout", "1h")
	finish := slowly(t, p)
	p.signal(syscall.SIGTERM)
	eventually(t, "the daemon is stopping", func() bool { return strings.Contains(p.log.String(), "stopping") })
	status, err := finish()
	if err != nil || status != http.StatusOK {
		t.Fatalf("answered with %d, %v; the log:\n%s", status, err, p.log)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Promise S-95.
func TestEndIsNotPutOffForEver(t *testing.T) {
	p := start(t, "--store", "memory:", "--shutdown-timeout", "200ms")
	slowly(t, p)
	p.stop()

	p = start(t, "--store", "memory:", "--shutdown-timeout", "1h", "--body-timeout", "1h")
	slowly(t, p)
	p.signal(syscall.SIGTERM)
	eventually(t, "the daemon is stopping", func() bool { return strings.Contains(p.log.String(), "stopping") })
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 1 {
		t.Errorf("after a second signal the exit code is %d", code)
	}
}

func TestMistakesInTheConfigurationAreNamed(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		env  []string
		args []string
		code int
		says string
	}{
		{nil, []string{"--no-such-flag"}, 64, "no-such-flag"},
		{nil, []string{"frobnicate"}, 64, "frobnicate"},
		{nil, []string{"serve", "extra"}, 64, "extra"},
		{nil, []string{"--lease-ttl", "soon"}, 64, "lease-ttl"},
		{nil, []string{"--capacity", "0x"}, 64, "capacity"},
		{nil, []string{"--reserve", "100"}, 64, "reserve"},
		{nil, []string{"--listen", "7117"}, 64, "HOST:PORT"},
		{nil, []string{"--listen", "unix:/run/loktd.sock"}, 64, "HOST:PORT"},
		{nil, []string{"--listen", "127.0.0.1:99999"}, 64, "HOST:PORT"},
		{nil, []string{"--listen", "0.0.0.0:0"}, 64, "--insecure"},
		{nil, []string{"--listen", "0.0.0.0:0", "--tokens", missing}, 64, "TLS"},
		{nil, []string{"--tls-cert", missing}, 64, "--tls-key"},
		{nil, []string{"check", "--tls-cert", missing}, 64, "--tls-key"},
		{nil, []string{"sevre"}, 64, "did you mean serve?"},
		{nil, []string{"--tls-cert", missing, "--tls-key", missing}, 1, missing},
		{nil, []string{"--client-ca", missing}, 64, "needs TLS"},
		{nil, []string{"--tokens", missing}, 1, missing},
		{nil, []string{"--store", "floppy:a"}, 64, "floppy"},
		{nil, []string{"--store", "floppy://user:secret@host/a"}, 64, "floppy"},
		{nil, []string{"--store", "postgres://user:secret@127.0.0.1:1/x?password=secret", "--listen", "127.0.0.1:0"}, 1, "PostgreSQL"},
		{nil, []string{"--store", "etcd://127.0.0.1:1"}, 64, "--jobs-store"},
		{nil, []string{"--store", "memory:", "--jobs-store", "etcd://127.0.0.1:1"}, 64, "--jobs-store"},
		{nil, []string{"--store", "sqlite:a.db", "--jobs-store", "sqlite:b.db"}, 64, "leave out --jobs-store"},
		{nil, []string{"--store", "none"}, 64, "none"},
		{nil, []string{"--log-format", "xml"}, 64, "xml"},
		{nil, []string{"--log-level", "loud"}, 64, "loud"},
		{nil, []string{"--max-body", "1"}, 64, "--max-body"},
		{nil, []string{"--listen", taken.Addr().String()}, 1, "cannot listen on " + taken.Addr().String()},
		{[]string{"LOKTD_LEASE_TTL=soon"}, nil, 64, "LOKTD_LEASE_TTL"},
		{[]string{"LOKTD_INSECURE=perhaps"}, nil, 64, "LOKTD_INSECURE"},
		{[]string{"LOKTD_CAPACITY=0"}, nil, 64, "--capacity"},
		{nil, []string{"--lease-ttl", "0s"}, 64, "--lease-ttl"},
		{nil, []string{"--ageing-step", "0"}, 64, "--ageing-step"},
		{nil, []string{"--reserve-after", "0"}, 64, "--reserve-after"},
		{nil, []string{"--keep-jobs", "0"}, 64, "--keep-jobs"},
		{nil, []string{"token", "create", "x"}, 64, "--tokens"},
		{nil, []string{"token"}, 64, "create"},
		{nil, []string{"--lease-tll", "5s"}, 64, "--lease-tll is no flag: see loktd --help"},
		{nil, []string{"completion"}, 64, "name one shell: bash"},
		{nil, []string{"completion", "nope"}, 64, "loktd completion --help"},
		{nil, []string{"completion", "bash", "more"}, 64, "loktd completion bash: it takes 0"},
		{nil, []string{"help", "token", "nope"}, 64, "loktd token --help"},
	} {
		args := c.args
		if len(args) == 0 || args[0] != "--store" {
			args = append(args, "--store", "memory:")
		}
		code, out, stderr := run(t, c.env, args...)
		if code != c.code || !strings.Contains(stderr, c.says) || strings.Contains(stderr, "secret") || strings.Contains(stderr, "goroutine ") || out != "" {
			t.Errorf("loktd %q with %q: exit code %d, standard output %q, standard error:\n%s", args, c.env, code, out, stderr)
		}
	}
}

func TestSettingsComeFromFlagsAndTheEnvironment(t *testing.T) {
	p := startWith(t, []string{"LOKTD_CAPACITY=7", "LOKTD_RESERVE=2", "LOKTD_STORE=memory:", "LOKTD_CAPASITY=9", "LOKTD_LEASE_TTL="}, "--capacity", "9")
	s := p.api().do(t, http.StatusOK, "GET", scheduler+"/status", nil)
	if s.text("total_capacity_units") != "9" || s.text("usable_capacity_units") != "7" {
		t.Errorf("status is %s", s.body)
	}
	if !strings.Contains(p.log.String(), "LOKTD_CAPASITY is set and means nothing") {
		t.Errorf("a variable that means nothing is not named:\n%s", p.log)
	}
	p.stop()
}

func TestHelpNamesEverySettingWithItsVariableAndDefault(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help"}, {"-h"}, {"token", "--help"}, {"help", "token", "create"}} {
		code, out, _ := run(t, nil, args...)
		flat := strings.Join(strings.Fields(out), " ")
		for _, want := range []string{
			"--listen HOST:PORT", "(LOKTD_LISTEN) (default \"127.0.0.1:7117\")", "--lease-ttl DURATION", "(LOKTD_LEASE_TTL) (default 1m0s)",
			"--heartbeat-grace", "--capacity", "--ageing-step", "--reserve-after", "--insecure", "(LOKTD_INSECURE)", "(default 1M)", "(default INFO)",
		} {
			if code != 0 || !strings.Contains(flat, want) {
				t.Errorf("loktd %v: exit code %d, and %q is not in\n%s", args, code, want, out)
			}
		}
	}
	if code, out, _ := run(t, nil, "completion", "bash"); code != 0 || !strings.Contains(out, "__start_loktd") {
		t.Errorf("completion: exit code %d, %.100q", code, out)
	}
	for _, args := range [][]string{{"version"}, {"--version"}} {
		if code, out, _ := run(t, nil, args...); code != 0 || !strings.HasPrefix(out, "loktd ") {
			t.Errorf("loktd %v: exit code %d, %q", args, code, out)
		}
	}
	code, out, _ := run(t, nil, "version", "--json")
	var built struct{ Version, Platform string }
	if err := json.Unmarshal([]byte(out), &built); err != nil || code != 0 || built.Version == "" || built.Platform != runtime.GOOS+"/"+runtime.GOARCH {
		t.Errorf("loktd version --json: exit code %d, %q: %v", code, out, err)
	}
}

func TestTerraformLocksItsState(t *testing.T) {
	p := start(t, "--store", "memory:")
	a := p.api()
	run := map[string]string{"ID": "5a3f", "Who": "ana@laptop"}
	a.do(t, http.StatusOK, "LOCK", "/v1/terraform/network", run)
	a.do(t, http.StatusLocked, "LOCK", "/v1/terraform/network", map[string]string{"ID": "77c1"})
	a.do(t, http.StatusOK, "UNLOCK", "/v1/terraform/network", run)
}

func TestCheckSaysWhatIsWrongWithoutServing(t *testing.T) {
	if code, out, stderr := run(t, nil, "check", "--store", "memory:"); code != 0 || !strings.Contains(out, "127.0.0.1:7117") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if code, _, stderr := run(t, nil, "check", "--store", "sqlite:"+missing+"?mode=rw"); code != 1 || !strings.Contains(stderr, "there is no "+missing) {
		t.Errorf("a database that must exist: exit code %d: %s", code, stderr)
	}
	for _, command := range []string{"check", "serve"} { // mistyped, that is no name for a new database
		code, _, stderr := run(t, nil, command, "--store", "sqlite:"+missing+"?mode=wr", "--listen", "127.0.0.1:0")
		if code != 64 || !strings.Contains(stderr, "?mode=rw") {
			t.Errorf("%s: exit code %d, %s", command, code, stderr)
		}
		if made, _ := filepath.Glob(missing + "*"); len(made) > 0 {
			t.Errorf("%s made %v", command, made)
		}
	}
	if code, _, stderr := run(t, nil, "check", "--store", "sqlite:"+missing); code != 0 {
		t.Errorf("a database that will be made: exit code %d: %s", code, stderr)
	}
	code, _, stderr := run(t, nil, "check", "--store", "floppy:", "--tokens", missing, "--capacity", "1", "--reserve", "1")
	for _, want := range []string{"floppy", missing, "reserve"} {
		if code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("exit code %d, and %q is not in\n%s", code, want, stderr)
		}
	}
}

func TestHealthCommandAsksTheDaemon(t *testing.T) {
	p := start(t, "--store", "memory:")
	eventually(t, "it is ready", func() bool { // a machine that stands still may keep it from answering in time
		code, out, stderr := run(t, nil, "health", "--listen", p.address())
		if code != 0 && !strings.Contains(stderr, "deadline") && !strings.Contains(stderr, "not ready") || code == 0 && out != "ready\n" {
			t.Fatalf("exit code %d: %s%s", code, out, stderr)
		}
		return code == 0
	})
	p.stop()
	if code, _, stderr := run(t, nil, "health", "--listen", p.address()); code != 1 || !strings.HasPrefix(stderr, "loktd: ") {
		t.Errorf("of an ended daemon: exit code %d: %s", code, stderr)
	}
}

func TestServiceManagerIsTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	if len(socket) > 100 {
		dir, err := os.MkdirTemp("", "lokt")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		socket = filepath.Join(dir, "notify")
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	_ = manager.SetReadDeadline(time.Now().Add(patience))
	told := func(want string) {
		t.Helper()
		b := make([]byte, 1024)
		for {
			n, err := manager.Read(b)
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if strings.HasPrefix(string(b[:n]), want) {
				return
			}
		}
	}
	p := startWith(t, []string{"NOTIFY_SOCKET=" + socket, "WATCHDOG_USEC=300000"}, "--store", "memory:")
	told("READY=1\nSTATUS=Listening on " + p.url)
	told("WATCHDOG=1")
	told("WATCHDOG=1")
	p.signal(syscall.SIGHUP)
	told("RELOADING=1")
	told("READY=1")
	p.signal(syscall.SIGTERM)
	told("STOPPING=1")
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestSignalEndsADaemonWhoseStoreDoesNotOpen(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	called := make(chan struct{})
	go func() {
		c, err := silent.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		close(called)
		_, _ = io.Copy(io.Discard, c)
	}()
	cmd := command(t, nil, "--store", "etcd://"+silent.Addr().String(), "--jobs-store", "none", "--listen", "127.0.0.1:0")
	log := &buffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-called
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil && !strings.Contains(log.String(), "deadline") { // it may have given up by itself
		t.Errorf("%v; the log:\n%s", err, log)
	}
}

// What the manual says about flags is true.
func TestManualNamesOnlyFlagsAndVariablesThatExist(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, manual, found := strings.Cut(string(text), "\n# Running loktd\n")
	if !found {
		t.Fatal("there is nothing about loktd")
	}
	_, help, _ := run(t, nil, "--help")
	_, token, _ := run(t, nil, "token", "create", "--help")
	help += token
	known := []string{
		"--on-lost", "--force", "--state", "--type", "--tag", "--lock", "--worker", "--text", "--since", "--plain", "--json", // of lokt
		"--now", "--reference", "--help", "--purge", "--name", "--set", // of systemctl, chown, dpkg, podman, helm
	}
	for _, pattern := range []string{`--[a-z][a-z-]+`, `LOKTD_[A-Z_]+`} {
		word := regexp.MustCompile(pattern)
		known = append(known, word.FindAllString(help, -1)...)
		named := word.FindAllString(manual, -1)
		unit, err := os.ReadFile("../../deploy/systemd/loktd.service")
		if err != nil {
			t.Fatal(err)
		}
		named = append(named, regexp.MustCompile(`LOKTD_[A-Z_]+`).FindAllString(string(unit), -1)...)
		if len(named) < 5 {
			t.Errorf("the manual names only %v", named)
		}
		for _, w := range named {
			if !strings.HasPrefix(w, pattern[:2]) {
				continue // of the other pattern
			}
			if !slices.Contains(known, strings.TrimSuffix(w, "_")) && w != "LOKTD_" {
				if !slices.Contains([]string{"--auto-compaction-retention", "--bump-revision", "--mark-compacted"}, w) { // flags of etcd
					t.Errorf("there is no %s", w)
				}
			}
		}
	}
}

// Without a home there is no place for a store, and not every command needs one.
func TestCommandsThatNeedNoStoreNeedNoHome(t *testing.T) {
	p := start(t, "--store", "memory:")
	tokens := filepath.Join(t.TempDir(), "tokens")
	for _, args := range [][]string{{"version"}, {"health", "--listen", p.address()}, {"token", "create", "a", "--tokens", tokens}, {"token", "list", "--tokens", tokens}} {
		if code, _, stderr := run(t, []string{"HOME="}, args...); code != 0 {
			t.Errorf("%s: exit code %d: %s", args, code, stderr)
		}
	}
	if code, _, stderr := run(t, []string{"HOME="}, "check"); code != 1 || !strings.Contains(stderr, "no place for the store") {
		t.Errorf("check: exit code %d: %s", code, stderr)
	}
	p.stop()
}

// Promise S-137.
func TestTheLogTellsANewDatabaseFromAnOldOne(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "loktd.db")
	code, _, stderr := run(t, nil, "--listen", "127.0.0.1:0", "--store", url+"?mode=rw")
	if code != 1 || !strings.Contains(stderr, "none is made") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	p := start(t, "--store", url)
	p.api().do(t, http.StatusOK, "POST", locks+"x/leases", body{"owner": body{"id": "a"}, "ttl_ms": 600_000})
	p.api().do(t, http.StatusOK, "POST", scheduler+"/jobs", body{})
	p.stop()
	if log := p.log.String(); !strings.Contains(log, "made a new database") {
		t.Errorf("the log of a new database is %s", log)
	}
	p = start(t, "--store", url+"?mode=rw")
	p.stop()
	if log := p.log.String(); !strings.Contains(log, "opened the database") || !strings.Contains(log, "locks=1\n") || !strings.Contains(log, "jobs=1\n") {
		t.Errorf("the log of an old database is %s", log)
	}
}

func TestEveryAnswerHasARequestID(t *testing.T) {
	p := start(t, "--store", "memory:")
	a := p.api()
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/v1/backup", "/v1/locks", scheduler + "/status", "/openapi.json", "/nothing"} {
		for _, method := range []string{"GET", "DELETE"} {
			for _, host := range []string{"", "evil.example"} {
				r, err := http.NewRequest(method, a.url+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if host != "" {
					r.Host = host
				}
				r.Header.Set("X-Request-Id", "mine-1")
				resp, err := a.client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if got := resp.Header.Values("X-Request-Id"); !slices.Equal(got, []string{"mine-1"}) {
					t.Errorf("%s %s at %q: %d with the ID %q", method, path, host, resp.StatusCode, got)
				}
			}
		}
	}
	p.stop()
}
