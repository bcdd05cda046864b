package auth_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/auth"
)

// tokenFile returns the path of a new token file with one entry per name, and their tokens.
func tokenFile(t *testing.T, entries ...auth.Entry) (path string, tokens []string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "tokens")
	for _, e := range entries {
		token := ""
		if !e.Cert {
			token, e.SHA256 = auth.NewToken()
		}
		tokens = append(tokens, token)
		if err := auth.Append(path, e); err != nil {
			t.Fatal(err)
		}
	}
	return path, tokens
}

func gate(t *testing.T, o auth.Options) *auth.Gate {
	t.Helper()
	g, err := auth.NewGate(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func request(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func TestTokensAreRandomAndOnlyTheirHashesAreKept(t *testing.T) {
	path, tokens := tokenFile(t, auth.Entry{Name: "a", Scopes: httpapi.Scopes()}, auth.Entry{Name: "b", Scopes: httpapi.Scopes()})
	if tokens[0] == tokens[1] || len(tokens[0]) != len("lokt_")+43 || !strings.HasPrefix(tokens[0], "lokt_") {
		t.Errorf("tokens are %q", tokens)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v, %v", info.Mode(), err)
	}
	for _, token := range tokens {
		if strings.Contains(string(text), token[5:]) {
			t.Errorf("the file has a token:\n%s", text)
		}
	}
}

// Promise S-98.
func TestOnlyBearersOfAKnownTokenEnter(t *testing.T) {
	path, tokens := tokenFile(t, auth.Entry{Name: "a", Scopes: []auth.Scope{httpapi.ScopeRead}})
	g := gate(t, auth.Options{File: path})
	for _, header := range [][]string{
		nil, {""}, {"Bearer"}, {"Bearer "}, {"Bearer x"}, {"Basic " + tokens[0]}, {tokens[0]}, {"Bearer " + tokens[0] + "x"}, {"Bearer " + tokens[0][1:]},
		{"Bearer " + strings.ToUpper(tokens[0])}, {"Bearer x", "Bearer " + tokens[0]}, {"Bearer " + tokens[0], "Bearer " + tokens[0]},
	} {
		r := request("")
		if header != nil {
			r.Header["Authorization"] = header
		}
		if c, err := g.Enter(r); !errors.Is(err, httpapi.ErrUnauthenticated) {
			t.Errorf("with %q entered %v, %v", header, c, err)
		} else if strings.Contains(err.Error(), tokens[0][5:]) {
			t.Errorf("the error has the token: %v", err)
		}
	}
	for _, scheme := range []string{"Bearer ", "bearer ", "BEARER  "} {
		r := request("")
		r.Header.Set("Authorization", scheme+tokens[0])
		if c, err := g.Enter(r); err != nil || c.Name() != "a" || !c.May(httpapi.ScopeRead, "x") || c.May(httpapi.ScopeLock, "x") || c.May(httpapi.ScopeAdmin, "") {
			t.Errorf("with %q entered %v, %v", scheme, c, err)
		}
	}
}

func TestAdminIncludesAllScopesAndPrefixesBoundLocksOnly(t *testing.T) {
	path, tokens := tokenFile(t,
		auth.Entry{Name: "admin", Scopes: []auth.Scope{httpapi.ScopeAdmin}},
		auth.Entry{Name: "team", Scopes: []auth.Scope{httpapi.ScopeLock, httpapi.ScopeSubmit, httpapi.ScopeForce}, Prefix: "team."})
	g := gate(t, auth.Options{File: path})
	admin, err := g.Enter(request(tokens[0]))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range httpapi.Scopes() {
		if !admin.May(s, "anything") {
			t.Errorf("an admin may not %s", s)
		}
	}
	team, err := g.Enter(request(tokens[1]))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		scope auth.Scope
		name  string
		may   bool
	}{
		{httpapi.ScopeLock, "team.x", true}, {httpapi.ScopeLock, "team", false}, {httpapi.ScopeLock, "other", false}, {httpapi.ScopeLock, "", true},
		{httpapi.ScopeForce, "team.x", true}, {httpapi.ScopeForce, "x", false}, {httpapi.ScopeRead, "team.x", false},
		{httpapi.ScopeSubmit, "needs:gpu", true}, {httpapi.ScopeWork, "", false},
	} {
		if got := team.May(c.scope, c.name); got != c.may {
			t.Errorf("%s of %q: %v", c.scope, c.name, got)
		}
	}
}

// Promise S-98.
func TestTokenOpensNothingAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		soon := time.Now().Add(time.Hour)
		path, tokens := tokenFile(t, auth.Entry{Name: "a", Scopes: httpapi.Scopes(), Expires: &soon})
		g := gate(t, auth.Options{File: path})
		if _, err := g.Enter(request(tokens[0])); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if _, err := g.Enter(request(tokens[0])); !errors.Is(err, httpapi.ErrUnauthenticated) {
			t.Errorf("an hour later: %v", err)
		}
	})
}

// Promise S-98.
func TestFileIsReadAgainOnlyWhenItChanged(t *testing.T) {
	path, tokens := tokenFile(t, auth.Entry{Name: "a", Scopes: httpapi.Scopes()})
	g := gate(t, auth.Options{File: path})
	token, hash := auth.NewToken()
	if err := auth.Append(path, auth.Entry{Name: "b", SHA256: hash, Scopes: httpapi.Scopes()}); err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Enter(request(token)); err != nil {
		t.Errorf("after reloading: %v", err)
	}
	if n, _, err := auth.Revoke(path, "b", time.Now()); n != 1 || err != nil {
		t.Fatalf("%d were revoked, %v", n, err)
	}
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Enter(request(token)); err == nil {
		t.Error("a revoked token opens")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := g.Reload(); err == nil || g.Failures() != 1 {
		t.Errorf("without a file: %v, %d failures", err, g.Failures())
	}
	if _, err := g.Enter(request(tokens[0])); err != nil {
		t.Errorf("without a file a token that was good: %v", err)
	}
}

// A file that could not be read because of its permissions does not change when these do. Promise S-98.
func TestAFileThatCouldNotBeReadIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, tokens := tokenFile(t, auth.Entry{Name: "a", Scopes: httpapi.Scopes()})
		var log bytes.Buffer
		g := gate(t, auth.Options{File: path, Log: slog.New(slog.NewTextHandler(&log, nil))})
		if n, _, err := auth.Revoke(path, "a", time.Now()); n != 1 || err != nil {
			t.Fatalf("%d were revoked, %v", n, err)
		}
		if err := os.Chmod(path, 0o666); err != nil { // which is refused
			t.Fatal(err)
		}
		for range 5 {
			time.Sleep(2 * time.Second)
			if _, err := g.Enter(request(tokens[0])); err != nil {
				t.Fatalf("while the file cannot be read: %v", err)
			}
		}
		if n := strings.Count(log.String(), "cannot be read"); n != 1 || g.Failures() != 5 {
			t.Errorf("it was told %d times, and counted %d times: %s", n, g.Failures(), log.String())
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if _, err := g.Enter(request(tokens[0])); err == nil {
			t.Error("a revoked token opens, although the file can be read again")
		}
	})
}

func TestTwoWhoAppendDoNotUndoEachOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "tokens")
	var crew sync.WaitGroup
	for i := range 50 {
		crew.Go(func() {
			_, hash := auth.NewToken()
			if err := auth.Append(path, auth.Entry{Name: fmt.Sprint("n", i), SHA256: hash, Scopes: httpapi.Scopes()}); err != nil {
				t.Error(err)
			}
		})
	}
	crew.Wait()
	all, err := auth.ReadFile(path, time.Now())
	if err != nil || len(all) != 50 {
		t.Errorf("%d entries, %v", len(all), err)
	}
}

// Promise S-139.
func TestNoPartOfTheFileRevivesWhoWasRevoked(t *testing.T) {
	path, _ := tokenFile(t, auth.Entry{Name: "a", Scopes: httpapi.Scopes()}, auth.Entry{Name: "b", Scopes: httpapi.Scopes()},
		auth.Entry{Name: "a", Cert: true, Scopes: httpapi.Scopes()})
	now := time.Now().UTC().Truncate(time.Second)
	if n, _, err := auth.Revoke(path, "nobody", now); n != 0 || err != nil {
		t.Errorf("of nobody %d were revoked, %v", n, err)
	}
	if n, certificate, err := auth.Revoke(path, "a", now); n != 2 || !certificate || err != nil {
		t.Errorf("%d were revoked, %v, %v", n, certificate, err)
	}
	_, hash := auth.NewToken()
	if err := auth.Append(path, auth.Entry{Name: "a", SHA256: hash, Scopes: httpapi.Scopes()}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	for n := range lines {
		part := strings.Join(lines[:n], "")
		cut := filepath.Join(t.TempDir(), "cut")
		if err := os.WriteFile(cut, []byte(part), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := auth.ReadFile(cut, time.Time{})
		if err != nil {
			t.Errorf("the first %d lines cannot be read: %v\n%s", n, err, part)
		}
		for _, e := range all {
			if e.Name == "a" && e.SHA256 != hash {
				t.Errorf("the first %d lines revive %+v", n, e)
			}
		}
	}
	if all, err := auth.ReadFile(path, time.Time{}); err != nil || len(all) != 2 {
		t.Errorf("in the whole file there is %v, %v", all, err)
	}
}

// Promise S-98.
func TestWhatHasExpiredIsRefusedAsThatAfterARestart(t *testing.T) {
	over, later := time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	path, tokens := tokenFile(t,
		auth.Entry{Name: "a", Scopes: httpapi.Scopes(), Expires: &over},
		auth.Entry{Name: "guest", Cert: true, Scopes: []auth.Scope{httpapi.ScopeRead}, Expires: &over},
		auth.Entry{Name: "boss", Cert: true, Scopes: []auth.Scope{httpapi.ScopeAdmin}, Expires: &later},
		auth.Entry{Name: "boss", Cert: true, Scopes: []auth.Scope{httpapi.ScopeRead}, Expires: &over})
	g := gate(t, auth.Options{File: path, Certificates: true, CertScopes: []auth.Scope{httpapi.ScopeLock}})
	if _, err := g.Enter(request(tokens[0])); !errors.Is(err, httpapi.ErrUnauthenticated) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("with a token that has expired: %v", err)
	}
	guest := x509.Certificate{Subject: pkix.Name{CommonName: "guest"}, NotAfter: later}
	if c, err := g.Enter(withCertificate(&guest)); !errors.Is(err, httpapi.ErrUnauthenticated) || !strings.Contains(err.Error(), "expired") {
		t.Errorf("a certificate whose entry has expired entered as %v: %v", c, err)
	}
	boss := x509.Certificate{Subject: pkix.Name{CommonName: "boss"}, NotAfter: later}
	if c, err := g.Enter(withCertificate(&boss)); err != nil || !c.May(httpapi.ScopeAdmin, "") {
		t.Errorf("an entry that has expired is in the way of one that has not: %v", err)
	}
	if all, err := auth.ReadFile(path, time.Now()); err != nil || len(all) != 1 {
		t.Errorf("of what has not expired there is %v, %v", all, err)
	}
}

func TestTokenFilesThatCannotBeTrustedAreRefused(t *testing.T) {
	_, hash := auth.NewToken()
	good := `{"name":"a","sha256":"` + hash + `","scopes":["read"]}`
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		says string
	}{
		"not JSON":        {good + "\n{", 0o600, "line 2"},
		"no name":         {`{"sha256":"` + hash + `","scopes":["read"]}`, 0o600, "name"},
		"a bad name":      {`{"name":"a b","sha256":"` + hash + `","scopes":["read"]}`, 0o600, "name"},
		"no hash":         {`{"name":"a","scopes":["read"]}`, 0o600, "sha256"},
		"a short hash":    {`{"name":"a","sha256":"abcd","scopes":["read"]}`, 0o600, "sha256"},
		"no scopes":       {`{"name":"a","sha256":"` + hash + `"}`, 0o600, "scopes"},
		"unknown scopes":  {`{"name":"a","sha256":"` + hash + `","scopes":["root"]}`, 0o600, "root"},
		"a bad prefix":    {`{"name":"a","sha256":"` + hash + `","scopes":["read"],"prefix":"../x"}`, 0o600, ".."},
		"both":            {`{"name":"a","sha256":"` + hash + `","scopes":["read"],"certificate":true}`, 0o600, "not both"},
		"writable by all": {good, 0o602, "everybody"},
		"a long line":     {`{"name":"` + strings.Repeat("a", 100_000), 0o600, "token"},
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := auth.NewGate(auth.Options{File: path}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := auth.NewGate(auth.Options{File: t.TempDir()}); err == nil {
		t.Error("a directory is taken for a token file")
	}
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("# people\n\n"+good+"\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	if all, err := auth.ReadFile(path, time.Now()); err != nil || len(all) != 1 {
		t.Errorf("with comments: %v, %v", all, err)
	}
}

// Promise S-98.
func TestStrangersAreSlowedDownByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, tokens := tokenFile(t, auth.Entry{Name: "a", Scopes: httpapi.Scopes()})
		g := gate(t, auth.Options{File: path, Rate: 10})
		from := func(addr, token string) error {
			r := request(token)
			r.RemoteAddr = addr
			_, err := g.Enter(r)
			return err
		}
		limited := 0
		for range 100 {
			if errors.Is(from("[2001:db8::1]:1", "guess"), httpapi.ErrRateLimited) {
				limited++
			}
		}
		if limited != 50 {
			t.Errorf("of 100 guesses %d were limited", limited)
		}
		if err := from("[2001:db8::2:2]:1", "guess"); !errors.Is(err, httpapi.ErrRateLimited) {
			t.Errorf("from the same network: %v", err)
		}
		if err := from("[2001:db8:0:1::1]:1", "guess"); !errors.Is(err, httpapi.ErrUnauthenticated) {
			t.Errorf("from another network: %v", err)
		}
		if err := from("[2001:db8::1]:1", tokens[0]); err != nil {
			t.Errorf("one with a token among strangers: %v", err)
		}
		good := 0
		for range 100 {
			if from("192.0.2.1:1", tokens[0]) == nil {
				good++
			}
		}
		if good != 19 {
			t.Errorf("%d requests beyond the first in a burst of 20", good)
		}
		time.Sleep(time.Second)
		if err := from("192.0.2.1:1", tokens[0]); err != nil {
			t.Errorf("a second later: %v", err)
		}
	})
}

func TestManyStrangersCostLittleAndLimitEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, _ := tokenFile(t, auth.Entry{Name: "a", Scopes: httpapi.Scopes()})
		g := gate(t, auth.Options{File: path})
		limited := 0
		for i := range 20_000 {
			r := request("guess")
			r.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255)
			if _, err := g.Enter(r); errors.Is(err, httpapi.ErrRateLimited) {
				limited++
			}
		}
		if limited == 0 {
			t.Error("20,000 addresses at once were not limited together")
		}
		time.Sleep(time.Minute)
		if _, err := g.Enter(request("guess")); !errors.Is(err, httpapi.ErrUnauthenticated) {
			t.Errorf("a minute later: %v", err)
		}
	})
}

// withCertificate returns a request over a connection whose client has a verified certificate.
func withCertificate(c *x509.Certificate) *http.Request {
	r := request("")
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c}}}
	return r
}

// Promise S-98.
func TestCertificatesHaveNames(t *testing.T) {
	path, _ := tokenFile(t, auth.Entry{Name: "boss", Cert: true, Scopes: []auth.Scope{httpapi.ScopeAdmin}})
	o := auth.Options{File: path, Certificates: true, CertScopes: []auth.Scope{httpapi.ScopeRead}}
	g := gate(t, o)
	later := time.Now().Add(time.Hour)
	id, err := url.Parse("spiffe://example/worker")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cert  x509.Certificate
		name  string // empty: refused
		admin bool
	}{
		{x509.Certificate{Subject: pkix.Name{CommonName: "boss"}, NotAfter: later}, "boss", true},
		{x509.Certificate{Subject: pkix.Name{CommonName: "worker"}, NotAfter: later}, "worker", false},
		{x509.Certificate{URIs: []*url.URL{id}, DNSNames: []string{"x"}, NotAfter: later}, "spiffe://example/worker", false},
		{x509.Certificate{DNSNames: []string{"worker.example"}, NotAfter: later}, "worker.example", false},
		{x509.Certificate{NotAfter: later}, "", false},
		{x509.Certificate{Subject: pkix.Name{CommonName: "a\nb"}, NotAfter: later}, "", false},
		{x509.Certificate{Subject: pkix.Name{CommonName: "boss"}, NotAfter: time.Now().Add(-time.Second)}, "", false},
	} {
		caller, err := g.Enter(withCertificate(&c.cert))
		switch {
		case c.name == "" && !errors.Is(err, httpapi.ErrUnauthenticated):
			t.Errorf("%v entered: %v", c.cert.Subject, err)
		case c.name != "" && (err != nil || caller.Name() != c.name || caller.May(httpapi.ScopeAdmin, "") != c.admin || !caller.May(httpapi.ScopeRead, "")):
			t.Errorf("%v entered as %v, %v", c.cert.Subject, caller, err)
		}
	}
	o.Certificates = false
	boss := x509.Certificate{Subject: pkix.Name{CommonName: "boss"}, NotAfter: later}
	if _, err := gate(t, o).Enter(withCertificate(&boss)); !errors.Is(err, httpapi.ErrUnauthenticated) {
		t.Errorf("where certificates do not count: %v", err)
	}
	r := withCertificate(&boss)
	r.TLS.VerifiedChains = nil
	if _, err := g.Enter(r); !errors.Is(err, httpapi.ErrUnauthenticated) {
		t.Errorf("with a certificate that was not verified: %v", err)
	}
}

func TestScopesAreParsed(t *testing.T) {
	if got, err := auth.ParseScopes("read, lock"); err != nil || fmt.Sprint(got) != "[read lock]" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := auth.ParseScopes("none"); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "read,", "root", "read lock"} {
		if got, err := auth.ParseScopes(bad); err == nil {
			t.Errorf("%q gives %v", bad, got)
		}
	}
}

func TestWithoutTokensAndCertificatesEverybodyMay(t *testing.T) {
	g := gate(t, auth.Options{Rate: 1})
	c, err := g.Enter(request(""))
	if err != nil || c.Name() != "" || !c.May(httpapi.ScopeAdmin, "x") {
		t.Errorf("%v, %v", c, err)
	}
	for range 3 {
		_, err = g.Enter(request(""))
	}
	if !errors.Is(err, httpapi.ErrRateLimited) {
		t.Errorf("beyond the rate: %v", err)
	}
}
