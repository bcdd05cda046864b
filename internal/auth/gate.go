// Package auth decides who may do what at the daemon: callers prove who they are with a bearer token, of which the
// daemon keeps a hash in a file, or with a client certificate. What they may do is a list of scopes, and for locks a
// prefix of their names.
//
// Whoever proves nothing gets nothing. A token that was revoked or has expired opens nothing from the first request a
// second after the change on. A file that cannot be read changes nothing. Tokens are as secret as the connection.
package auth

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/lokt-dev/lokt/httpapi"
)

// Scope is a kind of thing that a caller may do.
type Scope = httpapi.Scope

// ParseScopes reads scopes separated by commas; "none" stands for none at all.
func ParseScopes(list string) ([]Scope, error) {
	if list == "none" {
		return nil, nil
	}
	var scopes []Scope
	for word := range strings.SplitSeq(list, ",") {
		s := Scope(strings.TrimSpace(word))
		if err := checkScope(s); err != nil {
			return nil, err
		}
		scopes = append(scopes, s)
	}
	return scopes, nil
}

func checkScope(s Scope) error {
	if !slices.Contains(httpapi.Scopes(), s) {
		return fmt.Errorf("%q is no scope: there are %s", s, strings.Trim(fmt.Sprint(httpapi.Scopes()), "[]"))
	}
	return nil
}

// Options say how a Gate tells callers apart. Without tokens and certificates everybody may do everything.
type Options struct {
	File         string  // of tokens; empty for none
	Certificates bool    // accept verified client certificates
	CertScopes   []Scope // of those that the file does not name
	Rate         float64 // requests a second of each caller; 0 for no limit
	Log          *slog.Logger
}

// Gate is an httpapi.Gate. It is safe for concurrent use.
type Gate struct {
	o      Options
	failed atomic.Int64 // times the file could not be read again

	mu      sync.Mutex  // for the fields below
	known   *table      // what the file said when it could be read last
	read    fs.FileInfo // of the file as it was read, or tried; nil if there was none
	broken  string      // why it could not be read; empty if it was
	looked  time.Time
	callers *limits
	failing *limits
}

var _ httpapi.Gate = (*Gate)(nil)

// table is what the token file says.
type table struct {
	tokens map[string]*Entry // by the hash, in hexadecimal
	certs  map[string]*Entry // by name
}

// lookEvery is how often the token file is looked at for changes.
const lookEvery = time.Second

// Failed attempts that an address may make: a second, and in a burst.
const (
	failRate  = 10
	failBurst = 50
)

// NewGate returns a gate. It fails if the token file cannot be read.
func NewGate(o Options) (*Gate, error) {
	g := &Gate{o: o, known: &table{}, failing: newLimits(failRate, failBurst)}
	g.callers = newLimits(rate.Limit(o.Rate), int(max(1, 2*o.Rate)))
	if g.o.Log == nil {
		g.o.Log = slog.New(slog.DiscardHandler)
	}
	return g, g.Reload()
}

// Reload reads the token file again. If it cannot be read, everything stays as it was.
func (g *Gate) Reload() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reload(time.Now())
}

func (g *Gate) reload(now time.Time) error {
	g.looked, g.broken = now, ""
	if g.o.File == "" {
		return nil
	}
	g.read, _ = os.Stat(g.o.File)
	// With those that have expired: they are refused as what they are, and a certificate whose entry has expired does not
	// become one that the file does not name.
	entries, err := ReadFile(g.o.File, time.Time{})
	if err != nil {
		g.broken = err.Error()
		g.failed.Add(1)
		return err
	}
	t := &table{tokens: map[string]*Entry{}, certs: map[string]*Entry{}}
	for i := range entries {
		e := &entries[i]
		if !e.Cert {
			t.tokens[strings.ToLower(e.SHA256)] = e
		} else if t.certs[e.Name] == nil || !e.expired(now) {
			t.certs[e.Name] = e
		}
	}
	g.known = t
	return nil
}

// look returns what the file says. It reads it again if it has changed, or could not be read: what was in the way need
// not be in the file. It says so, once.
func (g *Gate) look(now time.Time) *table {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.o.File == "" || now.Sub(g.looked) < lookEvery {
		return g.known
	}
	g.looked = now
	was := g.broken
	if info, err := os.Stat(g.o.File); was == "" && err == nil && g.read != nil && os.SameFile(info, g.read) &&
		info.Size() == g.read.Size() && info.ModTime().Equal(g.read.ModTime()) {
		return g.known
	}
	if err := g.reload(now); err == nil {
		g.o.Log.Info("token file read again", "tokens", len(g.known.tokens), "certificates", len(g.known.certs))
	} else if err.Error() != was {
		g.o.Log.Error("token file cannot be read, tokens stay as they were", "err", err)
	}
	return g.known
}

// Failures returns how often the token file could not be read again.
func (g *Gate) Failures() int64 { return g.failed.Load() }

// caller is somebody who may do something.
type caller struct {
	name   string
	scopes []Scope
	prefix string
}

// Name implements httpapi.Caller. It is empty for callers who need not say who they are.
func (c *caller) Name() string { return c.name }

// May implements httpapi.Caller. The prefix is one of locks: for the scheduler's scopes it does not matter.
func (c *caller) May(s Scope, name string) bool {
	if !slices.Contains(c.scopes, s) && !slices.Contains(c.scopes, httpapi.ScopeAdmin) {
		return false
	}
	switch s {
	case httpapi.ScopeRead, httpapi.ScopeLock, httpapi.ScopeForce:
		return name == "" || strings.HasPrefix(name, c.prefix)
	}
	return true
}

// Enter implements httpapi.Gate. The error is httpapi.ErrUnauthenticated, or httpapi.ErrRateLimited for a caller who
// asks too often, who is returned as well, or an address from which too many unknown ones ask.
func (g *Gate) Enter(r *http.Request) (httpapi.Caller, error) {
	now := time.Now()
	c, err := g.identify(r, g.look(now), now)
	addr, later := address(r), &httpapi.RateLimitedError{RetryAfter: time.Second}
	switch {
	case err != nil && !g.failing.allow(addr):
		return nil, fmt.Errorf("too many attempts without a valid token: %w", later)
	case err != nil:
		g.o.Log.Info("refused", "address", addr, "why", err)
		return nil, fmt.Errorf("%w: %w", httpapi.ErrUnauthenticated, err)
	case g.o.Rate > 0 && !g.callers.allow(cmp.Or(c.name, addr)):
		return c, fmt.Errorf("more than %g requests a second: %w", g.o.Rate, later)
	}
	return c, nil
}

// identify finds out who makes the request.
func (g *Gate) identify(r *http.Request, known *table, now time.Time) (*caller, error) {
	if g.o.File == "" && !g.o.Certificates {
		return &caller{scopes: []Scope{httpapi.ScopeAdmin}}, nil
	}
	if h := r.Header.Values("Authorization"); len(h) > 0 {
		return known.bearer(h, now)
	}
	if g.o.Certificates && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return known.certificate(r.TLS.VerifiedChains[0][0], g.o.CertScopes, now)
	}
	return nil, errors.New("no token")
}

// bearer finds out whose token the header has.
func (t *table) bearer(header []string, now time.Time) (*caller, error) {
	scheme, token, _ := strings.Cut(header[0], " ")
	if len(header) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return nil, errors.New("authorization is not a bearer token")
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	e := t.tokens[hex.EncodeToString(sum[:])] // its time tells of hashes at most, and nobody can make a token for one
	if e == nil {
		return nil, errors.New("unknown token")
	}
	if e.expired(now) {
		return nil, errors.New("token has expired")
	}
	return &caller{name: e.Name, scopes: e.Scopes, prefix: e.Prefix}, nil
}

// certificate finds out who has the certificate, which was verified when the connection was made, and has the scopes
// unless the file says otherwise.
func (t *table) certificate(leaf *x509.Certificate, scopes []Scope, now time.Time) (*caller, error) {
	if now.After(leaf.NotAfter) {
		return nil, errors.New("certificate has expired")
	}
	name := leaf.Subject.CommonName
	switch {
	case name != "":
	case len(leaf.URIs) > 0:
		name = leaf.URIs[0].String()
	case len(leaf.DNSNames) > 0:
		name = leaf.DNSNames[0]
	}
	if err := ValidateName(name); err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	c := &caller{name: name, scopes: scopes}
	if e := t.certs[name]; e != nil {
		if e.expired(now) {
			return nil, errors.New("certificate's entry has expired")
		}
		c.scopes, c.prefix = e.Scopes, e.Prefix
	}
	return c, nil
}
