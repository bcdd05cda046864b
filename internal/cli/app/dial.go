package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http/httptrace"
	"os"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
)

// Server says how to reach a server: what the flag --server and the environment say of it.
type Server struct {
	URLs     []string // at least one; the first that answers is used
	Token    string   // proves who asks; empty without one. It is not shown to anybody
	CAFile   string   // certificates to trust, in PEM, instead of the system's
	CertFile string   // certificate that proves who asks, in PEM
	KeyFile  string   // its key
	Agent    string   // name and version of the program, for the server's log
}

// Remote is a server as commands see it. Errors wrap lokt.ErrUnavailable if it cannot be reached.
type Remote interface {
	Locks() lokt.Service
	Events() lokt.EventLog
	Jobs() jobs.Service

	// Know tells of leases that the caller holds, though another process acquired them: they are shown under their own
	// IDs from then on, as the leases acquired here are.
	Know(leaseIDs ...string)

	// Shown returns what others see instead of a lease ID, which is a secret of whoever acquired it. What is shown already
	// stays as it is.
	Shown(leaseID string) string

	// Ask asks the server what it is, and looks at the connection.
	Ask(ctx context.Context) (ServerInfo, error)

	Close() error
}

// ServerInfo is what a server says of itself, and what its answer shows of the connection. What is not known is zero.
type ServerInfo struct {
	URL       string        `json:"url"` // of the server that answered
	Reachable bool          `json:"reachable"`
	Version   string        `json:"version,omitzero"`
	Store     string        `json:"store,omitzero"` // the kind of store that it keeps its locks in
	TLS       string        `json:"tls,omitzero"`
	RoundTrip time.Duration `json:"round_trip_ms,omitzero"`
	Ahead     time.Duration `json:"clock_ahead_ms"`  // of this host's, give or take half the round trip
	Caller    string        `json:"caller,omitzero"` // who the server takes the caller for
	Anonymous bool          `json:"anonymous"`       // it asks nobody who they are
	Scopes    []string      `json:"scopes"`
	Locks     bool          `json:"locks"` // it serves locks,
	Events    bool          `json:"events"`
	Jobs      bool          `json:"jobs"`
	Trouble   error         `json:"-"` // what it says of its store, if that is not ready
}

// patience is how long a request goes on trying while no server answers: long enough for one that is started again, and
// short enough for whoever sits before a command with a wrong address.
const patience = 2 * time.Second

// lookTime is how long a command that only looks tries all servers.
const lookTime = 10 * time.Second

// client is a Remote.
type client struct{ *httpapi.Client }

// Dial makes a client of the server. It does not connect. Errors are about files and addresses.
func Dial(s Server) (Remote, error) {
	conf, err := tlsConfig(s)
	if err != nil {
		return nil, err
	}
	o := httpapi.ClientOptions{
		Token: s.Token, UserAgent: s.Agent, Patience: patience, Look: lookTime, TLS: conf,
	}
	c, err := httpapi.New(strings.Join(s.URLs, ","), o)
	if err != nil {
		return nil, err
	}
	return client{c}, nil
}

// tlsConfig returns nil if nothing is asked for but what is usual.
func tlsConfig(s Server) (*tls.Config, error) {
	if s.CAFile == "" && s.CertFile == "" {
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.CAFile != "" {
		pem, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("LOKT_CA_FILE: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("LOKT_CA_FILE: %s has no certificate in PEM", s.CAFile)
		}
	}
	if s.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("LOKT_CERT_FILE, LOKT_KEY_FILE: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}

func (c client) Locks() lokt.Service         { return c.Client }
func (c client) Events() lokt.EventLog       { return c.Client }
func (c client) Jobs() jobs.Service          { return c.Client.Jobs() }
func (c client) Shown(leaseID string) string { return httpapi.Shown(leaseID) }

// readyPatience is how long a server may take to say that its store is ready.
const readyPatience = 2 * time.Second

// Ask implements Remote. It asks twice, because the first answer takes the time to connect as well.
func (c client) Ask(ctx context.Context) (ServerInfo, error) {
	var secured string
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		secured = describe(got.Conn)
	}})
	if _, err := c.About(traced); err != nil {
		return ServerInfo{}, err
	}
	sent := time.Now()
	about, err := c.About(traced)
	if err != nil {
		return ServerInfo{}, err
	}
	took := time.Since(sent)
	info := ServerInfo{
		URL: c.URL(), Reachable: true, Version: about.Version, Store: about.Store, Caller: about.Caller, Anonymous: about.Anonymous,
		Locks: about.Locks, Events: about.Events, Jobs: about.Jobs, TLS: secured,
		RoundTrip: took.Round(10 * time.Microsecond), Ahead: about.Now.Sub(sent.Add(took / 2)).Round(10 * time.Microsecond),
	}
	short, done := context.WithTimeout(ctx, readyPatience)
	defer done()
	info.Trouble = c.Ready(short)
	for _, scope := range about.Scopes {
		info.Scopes = append(info.Scopes, string(scope))
	}
	return info, nil
}

// describe says how a connection is secured; nothing if it is not.
func describe(conn net.Conn) string {
	c, ok := conn.(*tls.Conn)
	if !ok {
		return ""
	}
	state := c.ConnectionState()
	text := tls.VersionName(state.Version) + ", " + tls.CipherSuiteName(state.CipherSuite)
	if len(state.PeerCertificates) > 0 {
		text += ", certificate until " + state.PeerCertificates[0].NotAfter.UTC().Format(time.DateOnly)
	}
	return text
}

// Explain says of an error of a server what it is, as a stable code, and what can be done about it. Both are empty for an
// error that it does not know.
func Explain(err error) (code, advice string) {
	for _, known := range []struct {
		is           error
		code, advice string
	}{
		{httpapi.ErrUnauthenticated, "unauthenticated", "set LOKT_SERVER_TOKEN, or LOKT_TOKEN_FILE, to a token that the server knows"},
		{httpapi.ErrForbidden, "forbidden", "ask whoever runs the server for a token that may do this"},
		{httpapi.ErrRateLimited, "rate_limited", "ask less often, or ask whoever runs the server for a higher limit"},
		{httpapi.ErrBodyTooLarge, "body_too_large", "keep large data elsewhere and say where it is, or raise the server's --max-body"},
		{httpapi.ErrNoEvents, "no_events", "the server's store keeps none: see the log of whoever runs it"},
	} {
		if errors.Is(err, known.is) {
			return known.code, known.advice
		}
	}
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var notTLS tls.RecordHeaderError
	switch {
	case errors.Is(err, lokt.ErrUnavailable) && httpapi.Answered(err):
		return "", "the server is there, but its store is not: see its log, or try again later"
	case errors.As(err, &unknown):
		return "", "name the certificate of the authority that signed the server's with LOKT_CA_FILE"
	case errors.As(err, &host), errors.As(err, &invalid):
		return "", "name the server as its certificate does, or renew the certificate"
	case errors.As(err, &notTLS):
		return "", "it speaks no TLS: name it by http:// instead of https://"
	}
	return "", ""
}
