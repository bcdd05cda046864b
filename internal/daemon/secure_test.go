//go:build unix

package daemon_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/easy"
	"github.com/lokt-dev/lokt/httpapi"
)

// newToken adds a token to the file and returns it.
func newToken(t *testing.T, file, name string, args ...string) string {
	t.Helper()
	code, out, stderr := run(t, nil, append([]string{"token", "create", name, "--tokens", file}, args...)...)
	if code != 0 || !strings.HasPrefix(out, "lokt_") {
		t.Fatalf("exit code %d: %s%s", code, out, stderr)
	}
	return strings.TrimSpace(out)
}

// Promise S-98.
func TestScopesSayWhatATokenMayDo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	tokens := map[string]string{"none": "", "unknown": "lokt_" + strings.Repeat("A", 43)}
	for _, scope := range []string{"read", "lock", "force", "submit", "work", "admin"} {
		tokens[scope] = newToken(t, file, scope, "--scopes", scope)
	}
	tokens["both"] = newToken(t, file, "both", "--scopes", "lock,force")
	tokens["expired"] = newToken(t, file, "expired", "--scopes", "admin", "--expires", "1ns")
	tokens["prefix"] = newToken(t, file, "prefix", "--scopes", "read,lock,force", "--prefix", "team.")
	p := start(t, "--store", "memory:", "--tokens", file)
	a := p.api()
	claim := body{"owner": body{"id": "a"}, "ttl_ms": 60_000}
	a.token = tokens["admin"]
	job := a.do(t, 200, "POST", scheduler+"/jobs", body{}).text("job_id")
	a.do(t, 200, "POST", locks+"held/leases", claim)
	for _, c := range []struct {
		method, path string
		body         any
		may          string // scopes that may, admin apart
	}{
		{"GET", "/v1/locks/held", nil, "read"},
		{"GET", "/v1/locks/team.x", nil, "read prefix"},
		{"GET", "/metrics", nil, "read"},
		{"GET", "/v1/backup", nil, ""},
		{"POST", locks + "held/leases", claim, "lock both"},
		{"POST", locks + "team.x/leases", claim, "lock both prefix"},
		{"DELETE", locks + "none/leases?force=true&owner=b", nil, "both"},
		{"POST", scheduler + "/jobs", body{}, "submit"},
		{"GET", scheduler + "/status", nil, "read prefix"},
		{"GET", scheduler + "/jobs/" + job, nil, "read prefix"},
		{"POST", scheduler + "/leases/request", body{"worker_id": "w"}, "work"},
		{"POST", scheduler + "/leases/none/revoke", body{}, ""},
		{"POST", scheduler + "/history/cleanup?days=30", nil, ""},
	} {
		for name, token := range tokens {
			a.token = token
			ans, err := a.try(c.method, c.path, c.body)
			if err != nil {
				t.Fatal(err)
			}
			known := name != "none" && name != "unknown" && name != "expired"
			may := name == "admin" || strings.Contains(" "+c.may+" ", " "+name+" ")
			switch {
			case !known && (ans.status != http.StatusUnauthorized || ans.header.Get("Www-Authenticate") != "Bearer"):
				t.Errorf("%s %s with token %s: %d %s", c.method, c.path, name, ans.status, ans.body)
			case known && !may && ans.status != http.StatusForbidden:
				t.Errorf("%s %s with token %s: %d %s", c.method, c.path, name, ans.status, ans.body)
			case known && may && (ans.status == http.StatusForbidden && ans.text("code") == "forbidden" || ans.status == http.StatusUnauthorized || ans.status >= 500):
				t.Errorf("%s %s with token %s: %d %s", c.method, c.path, name, ans.status, ans.body)
			}
		}
	}
	a.token = tokens["prefix"]
	if got := a.do(t, 200, "GET", "/v1/audit", nil).body; strings.Contains(got, `"held"`) || !strings.Contains(got, `"team.x"`) {
		t.Errorf("a token for team. sees what happened: %s", got)
	}
	if got := a.do(t, 200, "GET", "/v1/locks", nil).body; strings.Contains(got, `"name":"held"`) || !strings.Contains(got, `"name":"team.x"`) {
		t.Errorf("a token for team. sees %s", got)
	}
	a.token = ""
	for _, path := range []string{"/healthz", "/readyz"} {
		a.do(t, 200, "GET", path, nil)
	}
	p.stop()
	text := p.log.String()
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, token := range tokens {
		if token != "" && (strings.Contains(text, token[5:]) || strings.Contains(string(kept), token[5:])) {
			t.Errorf("token %s shows in the log or in the file", name)
		}
	}
}

// Promise S-98.
func TestTokenFileIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	first := newToken(t, file, "first")
	p := start(t, "--store", "memory:", "--tokens", file)
	a := p.api()
	status := func(token string) int {
		a.token = token
		ans, err := a.try("GET", "/v1/locks", nil)
		if err != nil {
			t.Fatal(err)
		}
		return ans.status
	}
	if got := status(first); got != 200 {
		t.Fatalf("the first token: %d", got)
	}
	second := newToken(t, file, "second")
	eventually(t, "a new token is known", func() bool { return status(second) == 200 })
	if code, _, stderr := run(t, nil, "token", "revoke", "first", "--tokens", file); code != 0 {
		t.Fatal(stderr)
	}
	eventually(t, "a revoked token is refused", func() bool { return status(first) == 401 })
	if code, out, _ := run(t, nil, "token", "list", "--tokens", file); code != 0 || strings.Contains(out, "first") || !strings.Contains(out, "second") {
		t.Errorf("exit code %d, list:\n%s", code, out)
	}
	if code, _, stderr := run(t, nil, "token", "create", "brief", "--expires", "1ns", "--tokens", file); code != 0 {
		t.Error(stderr)
	}
	if code, out, _ := run(t, nil, "token", "list", "--tokens", file); code != 0 || !strings.Contains(out, "brief") || !strings.Contains(out, "(expired)") {
		t.Errorf("exit code %d, list:\n%s", code, out)
	}
	if code, _, stderr := run(t, nil, "token", "revoke", "first", "--tokens", file); code != 1 {
		t.Errorf("revoked twice: exit code %d, %s", code, stderr)
	}
	for _, v := range []string{"30", "soon", "1h30d", "3xd", "NaNd", "-1d", "40000d"} {
		if code, out, stderr := run(t, nil, "token", "create", "x", "--expires", v, "--tokens", file); code != 64 || out != "" || !strings.Contains(stderr, "30d") {
			t.Errorf("--expires %s: exit code %d, %s%s", v, code, out, stderr)
		}
	}
	if code, _, stderr := run(t, nil, "token", "create", "x", "--certificate", "--tokens", file); code != 0 || !strings.Contains(stderr, "certificate of the name x may read") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, stderr := run(t, nil, "token", "create", "x", "--tokens", file); code != 1 || out != "" || !strings.Contains(stderr, "nothing was made: token file "+file+", line 1") {
		t.Errorf("with a broken file a token is made that counts nowhere: exit code %d, %s%s", code, out, stderr)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "{" {
		t.Errorf("the broken file is now %q, %v", text, err)
	}
	p.signal(syscall.SIGHUP)
	eventually(t, "the broken file is noticed", func() bool { return strings.Contains(p.log.String(), "token file cannot be read") })
	if got := status(second); got != 200 {
		t.Errorf("with a broken file a good token: %d", got)
	}
	if got := status(first); got != 401 {
		t.Errorf("with a broken file a revoked token: %d", got)
	}
	p.stop()
	if strings.Contains(p.log.String(), "msg=reloaded") {
		t.Errorf("a file that cannot be read was reloaded:\n%s", p.log)
	}
}

// Promises S-98, S-150.
func TestCallersAreHeldToTheirRate(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	busy, calm := newToken(t, file, "busy"), newToken(t, file, "calm")
	p := start(t, "--store", "memory:", "--tokens", file, "--rate", "3")
	a := p.api()
	count := func(token string, n int) map[int]int { // many at a time, so that they are too many for a second on a slow machine, too
		a.token = token
		var mu sync.Mutex
		got := map[int]int{}
		var crew sync.WaitGroup
		for w := range 50 {
			crew.Go(func() {
				for range (n + 49 - w) / 50 {
					ans, err := a.try("GET", "/v1/locks", nil)
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					got[ans.status]++
					mu.Unlock()
				}
			})
		}
		crew.Wait()
		return got
	}
	if got := count(busy, 100); got[200] == 0 || got[429] == 0 || got[200]+got[429] != 100 {
		t.Errorf("one who asks too often is answered %v", got)
	}
	a.token = busy
	eventually(t, "the scheduler is asked too often", func() bool {
		codes := make(chan string, 20)
		for range cap(codes) {
			go func() {
				ans, err := a.try("POST", scheduler+"/leases/request", body{"worker_id": "w"})
				if err != nil || ans.status != http.StatusOK {
					t.Errorf("answered with %d %s, %v", ans.status, ans.body, err)
				}
				codes <- ans.text("code")
			}()
		}
		limited := false
		for range cap(codes) {
			limited = <-codes == "rate_limited" || limited
		}
		return limited
	})
	if got := count("", 300); got[401] == 0 || got[429] == 0 || got[401]+got[429] != 300 {
		t.Errorf("strangers are answered %v", got)
	}
	if got := count(calm, 5); got[200] != 5 {
		t.Errorf("others are answered %v", got)
	}
	p.stop()
}

// Promise S-99.
func TestPagesInBrowsersCannotUseADaemonWithoutAuthentication(t *testing.T) {
	p := start(t, "--store", "memory:", "--hosts", "locks.example,10.1.2.3")
	_, port, err := net.SplitHostPort(p.address())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host   string
		header []string
		want   int
	}{
		{"localhost:" + port, nil, 200},
		{"127.0.0.1:" + port, nil, 200},
		{"127.0.0.1", nil, 200},
		{"[::1]:" + port, nil, 200},
		{"locks.example", nil, 200},
		{"LOCKS.example.:80", nil, 200},
		{"10.1.2.3:80", nil, 200},
		{"evil.example:" + port, nil, 403},
		{"127.0.0.1.evil.example", nil, 403},
		{"10.9.9.9", nil, 403},
		{"localhost:" + port, []string{"Origin", "http://localhost:" + port}, 200},
		{"localhost:" + port, []string{"Origin", "http://localhost:1"}, 403},
		{"localhost:" + port, []string{"Origin", "https://evil.example"}, 403},
		{"localhost:" + port, []string{"Origin", "null"}, 403},
		{"localhost:" + port, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"localhost:" + port, []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"localhost:" + port, []string{"Sec-Fetch-Site", "none"}, 200},
	} {
		for _, method := range []string{"GET", "POST"} {
			path, text := "/metrics", ""
			if method == "POST" {
				path, text = scheduler+"/jobs", "{}"
			}
			r, err := http.NewRequest(method, p.url+path, strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			r.Host = c.host
			if c.header != nil {
				r.Header.Set(c.header[0], c.header[1])
			}
			resp, err := p.api().client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.want {
				t.Errorf("%s for %s with %v: %d, not %d", method, c.host, c.header, resp.StatusCode, c.want)
			}
		}
	}
	p.stop()
}

// authority makes certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	end  time.Time // of what it issues
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), end: time.Now().Add(time.Hour)}
	a.key = a.newKey()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	return key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// issue writes NAME.pem and NAME.key.
func (a *authority) issue(name string, serial int64) (cert, key string) {
	a.t.Helper()
	private := a.newKey()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: a.end,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &private.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	if der, err = x509.MarshalECPrivateKey(private); err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".key", "EC PRIVATE KEY", der)
	return a.file(name + ".pem"), a.file(name + ".key")
}

// client returns an API client that trusts the authority and shows a certificate, if it is given one.
func (a *authority) client(p *proc, cert, key string) *api {
	a.t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	config := &tls.Config{RootCAs: pool}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			a.t.Fatal(err)
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil } // asked for or not
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	a.t.Cleanup(transport.CloseIdleConnections)
	return &api{url: p.url, client: &http.Client{Transport: transport, Timeout: patience}}
}

// Promises S-98, S-99, S-271, S-311, S-330.
func TestCallersAreKnownByTheirCertificates(t *testing.T) {
	t.Parallel()
	server, clients := newAuthority(t, "servers"), newAuthority(t, "clients")
	cert, key := server.issue("server", 2)
	file := filepath.Join(t.TempDir(), "tokens")
	token := newToken(t, file, "holder", "--scopes", "read")
	for _, name := range []string{"boss", "gone"} {
		scopes := map[string]string{"boss": "admin", "gone": "read"}[name]
		if code, _, stderr := run(t, nil, "token", "create", name, "--certificate", "--scopes", scopes, "--tokens", file); code != 0 {
			t.Fatal(stderr)
		}
	}
	p := start(t, "--store", "memory:", "--tls-cert", cert, "--tls-key", key, "--client-ca", clients.file("ca.pem"), "--tokens", file, "--client-scopes", "read")
	if !strings.HasPrefix(p.url, "https://") {
		t.Fatalf("URL is %s", p.url)
	}
	status := func(a *api, method, path string, b any) int {
		t.Helper()
		ans, err := a.try(method, path, b)
		if err != nil {
			t.Fatal(err)
		}
		return ans.status
	}
	boss, bossKey := clients.issue("boss", 3)
	worker, workerKey := clients.issue("worker", 4)
	stranger, strangerKey := server.issue("boss", 5)
	with := func(a *api, token string) *api { a.token = token; return a }
	for _, c := range []struct {
		who           string
		a             *api
		read, cleanup int
	}{
		{"with a certificate in the file", server.client(p, boss, bossKey), 200, 200},
		{"with a certificate that is not", server.client(p, worker, workerKey), 200, 403},
		{"with a token", with(server.client(p, "", ""), token), 200, 403},
		{"with a token and a certificate, of which the token counts", with(server.client(p, boss, bossKey), token), 200, 403},
		{"with a bad token and a good certificate", with(server.client(p, boss, bossKey), "lokt_x"), 401, 401},
		{"with nothing", server.client(p, "", ""), 401, 401},
	} {
		if got := status(c.a, "GET", "/v1/locks", nil); got != c.read {
			t.Errorf("%s, reading: %d", c.who, got)
		}
		if got := status(c.a, "POST", scheduler+"/history/cleanup?days=30", nil); got != c.cleanup {
			t.Errorf("%s, cleaning up: %d", c.who, got)
		}
	}
	if ans, err := server.client(p, stranger, strangerKey).try("GET", "/healthz", nil); err == nil {
		t.Errorf("a certificate of another authority was accepted: %+v", ans)
	}
	if _, err := p.api().try("GET", "/healthz", nil); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a client that does not know the authority: %v", err)
	}
	if code, out, stderr := run(t, nil, "health", "--listen", p.address(), "--tls-cert", cert, "--tls-key", key); code != 0 {
		t.Errorf("health: exit code %d: %s%s", code, out, stderr)
	}
	for _, args := range [][]string{{"health"}, {"backup", filepath.Join(t.TempDir(), "copy")}} {
		if code, _, stderr := run(t, nil, append(args, "--listen", p.address())...); code != 1 || !strings.Contains(stderr, "give --tls-cert") {
			t.Errorf("%s of a daemon with TLS, without: exit code %d: %s", args[0], code, stderr)
		}
	}

	o, err := easy.ClientOptions(func(name string) string {
		return map[string]string{"LOKT_CA_FILE": server.file("ca.pem"), "LOKT_CERT_FILE": worker, "LOKT_KEY_FILE": workerKey}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := httpapi.New(p.url, o)
	if err != nil {
		t.Fatal(err)
	}
	claim := lokt.Claim{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "ann"}, TTL: time.Minute}
	if _, err := c.Acquire(t.Context(), claim); !errors.Is(err, httpapi.ErrForbidden) {
		t.Errorf("a worker takes a lock: %v", err)
	}
	for from, to := range map[string]string{boss: worker, bossKey: workerKey} {
		if err := errors.Join(os.Remove(to), os.Link(from, to), c.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Acquire(t.Context(), claim); err != nil {
		t.Errorf("with the certificate that is in the file now: %v", err)
	}

	a := server.client(p, boss, bossKey)
	serial := func() string {
		a.client.CloseIdleConnections()
		resp, err := a.client.Get(p.url + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return fmt.Sprint(resp.TLS.PeerCertificates[0].SerialNumber)
	}
	if got := serial(); got != "2" {
		t.Errorf("the certificate has serial number %s", got)
	}
	server.issue("server", 7)
	p.signal(syscall.SIGHUP)
	eventually(t, "the new certificate is used", func() bool { return serial() == "7" })
	server.write("server.key", "EC PRIVATE KEY", nil) // half of a renewal
	eventually(t, "it is said", func() bool { return serial() == "7" && strings.Contains(p.log.String(), "cannot be used") })
	server.issue("server", 8)
	eventually(t, "the next certificate is used, without a signal", func() bool { return serial() == "8" })

	next := newAuthority(t, "next")
	nextCert, nextKey := next.issue("server", 9)
	for _, r := range [][2]string{{nextCert, cert}, {nextKey, key}, {next.file("ca.pem"), server.file("ca.pem")}} {
		if err := os.Rename(r[0], r[1]); err != nil {
			t.Fatal(err)
		}
	}
	a = next.client(p, boss, bossKey)
	a.client.Transport.(*http.Transport).TLSClientConfig.RootCAs.AddCert(server.cert)
	eventually(t, "the certificate of the next authority is used", func() bool { return serial() == "9" })
	for _, half := range []string{worker, workerKey} { // what can be used last goes on
		if err := errors.Join(c.Close(), os.Truncate(half, 20)); err != nil {
			t.Fatal(err)
		}
		if held, err := c.Acquire(t.Context(), claim); err != nil || held.LeaseID != claim.LeaseID {
			t.Errorf("with the authority that is in the file now, and half of %s: %v", filepath.Base(half), err)
		}
	}
	p.stop()
}

func TestACertificateThatHasExpiredIsNamed(t *testing.T) {
	server := newAuthority(t, "servers")
	server.end = time.Now().Add(-time.Minute)
	cert, key := server.issue("server", 2)
	if code, _, stderr := run(t, nil, "check", "--store", "memory:", "--tls-cert", cert, "--tls-key", key); code != 1 || !strings.Contains(stderr, "is valid from") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	p := start(t, "--store", "memory:", "--tls-cert", cert, "--tls-key", key)
	other, otherKey := newAuthority(t, "others").issue("server", 3)
	good := start(t, "--store", "memory:", "--tls-cert", other, "--tls-key", otherKey)
	plain := start(t, "--store", "memory:")
	for _, command := range [][]string{{"health"}, {"backup", filepath.Join(t.TempDir(), "copy")}} {
		for _, c := range []struct{ address, cert, key, says string }{
			{p.address(), cert, key, "is valid from"},
			{good.address(), cert, key, "has another certificate than " + cert},
			{p.address(), server.file("server.key"), key, "has no certificate in PEM"},
			{plain.address(), cert, key, "leave --tls-cert out"},
		} {
			code, _, stderr := run(t, nil, append(command, "--listen", c.address, "--tls-cert", c.cert, "--tls-key", c.key)...)
			if code != 1 || !strings.Contains(stderr, c.says) {
				t.Errorf("%s, which is to say that it %q: exit code %d: %s", command[0], c.says, code, stderr)
			}
		}
	}
	plain.stop()
	good.stop()
	p.stop()
	if !strings.Contains(p.log.String(), "is valid from") {
		t.Errorf("the log:\n%s", p.log)
	}
}

// Promise S-99.
func TestAddressThatOthersReachNeedsTLSAndAuthentication(t *testing.T) {
	server := newAuthority(t, "servers")
	cert, key := server.issue("server", 2)
	file := filepath.Join(t.TempDir(), "tokens")
	newToken(t, file, "x")
	for _, args := range [][]string{
		{"--tls-cert", cert, "--tls-key", key},
		{"--tokens", file},
		{},
	} {
		if code, _, stderr := run(t, nil, append(args, "--store", "memory:", "--listen", ":0")...); code != 64 || !strings.Contains(stderr, "--insecure") {
			t.Errorf("loktd %v: exit code %d: %s", args, code, stderr)
		}
	}
	for _, args := range [][]string{
		{"--tls-cert", cert, "--tls-key", key, "--tokens", file},
		{"--tls-cert", cert, "--tls-key", key, "--client-ca", server.file("ca.pem")},
		{"--insecure"},
	} {
		start(t, append(args, "--store", "memory:", "--listen", "0.0.0.0:0")...).stop()
	}
}
