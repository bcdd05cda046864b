// Package remote is the command line's way to a server: it makes the clients of package httpapi that internal/cli knows as
// cli.Remote. It is apart from both, so that the command line links no network where it needs none.
//
// Tokens and keys are read here and sent; they are in no error and in no text for people.
package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli"
	"github.com/lokt-dev/lokt/jobs"
)

// Main runs the command line with a way to servers and returns its exit code.
func Main(args []string) int {
	caller := os.Getenv(cli.CallerVariable)
	_ = os.Unsetenv(cli.CallerVariable) // which can only fail for a name that there cannot be
	return cli.Main(args, cli.System(), cli.Options{Dial: Dial, Explain: Explain, Caller: caller})
}

// patience is how long a request goes on trying while no server answers: long enough for one that is started again, and
// short enough for whoever sits before a command with a wrong address.
const patience = 2 * time.Second

// lookTime is how long a command that only looks tries all servers.
const lookTime = 10 * time.Second

// dialTime is how long a connection may take to be made.
const dialTime = 5 * time.Second

// server is a cli.Remote.
type server struct {
	client *httpapi.Client
}

// Dial makes a client of the server. It does not connect. Errors are about files and addresses.
func Dial(_ context.Context, s cli.Server) (cli.Remote, error) {
	conf, err := tlsConfig(s)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = conf
	transport.MaxIdleConnsPerHost = 64
	transport.DialContext = (&net.Dialer{Timeout: dialTime, KeepAlive: 15 * time.Second}).DialContext
	// Requests share an HTTP/2 connection, and go on using one that is dead without a word; HTTP/1 makes a new one after
	// each request that was given up.
	transport.Protocols = &http.Protocols{}
	transport.Protocols.SetHTTP1(true)
	o := httpapi.ClientOptions{
		Token: s.Token, UserAgent: s.Agent, Patience: patience, Look: lookTime,
		HTTPClient: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	client, err := httpapi.New(strings.Join(s.URLs, ","), o)
	if err != nil {
		return nil, err
	}
	return &server{client}, nil
}

// tlsConfig returns nil if nothing is asked for but what is usual.
func tlsConfig(s cli.Server) (*tls.Config, error) {
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

func (s *server) Locks() lokt.Service         { return s.client }
func (s *server) Events() lokt.EventLog       { return s.client }
func (s *server) Jobs() jobs.Service          { return s.client.Jobs() }
func (s *server) Know(leaseIDs ...string)     { s.client.Know(leaseIDs...) }
func (s *server) Shown(leaseID string) string { return httpapi.Shown(leaseID) }
func (s *server) Close() error                { return s.client.Close() }

// readyPatience is how long a server may take to say that its store is ready.
const readyPatience = 2 * time.Second

// Ask implements cli.Remote. It asks twice, because the first answer takes the time to connect as well.
func (s *server) Ask(ctx context.Context) (cli.ServerInfo, error) {
	var secured string
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		secured = describe(got.Conn)
	}})
	if _, err := s.client.About(traced); err != nil {
		return cli.ServerInfo{}, err
	}
	sent := time.Now()
	about, err := s.client.About(traced)
	if err != nil {
		return cli.ServerInfo{}, err
	}
	took := time.Since(sent)
	info := cli.ServerInfo{
		URL: s.client.URL(), Version: about.Version, Store: about.Store, Caller: about.Caller, Anonymous: about.Anonymous,
		Locks: about.Locks, Events: about.Events, Jobs: about.Jobs, TLS: secured,
		RoundTrip: took, Ahead: about.Now.Sub(sent.Add(took / 2)),
	}
	short, done := context.WithTimeout(ctx, readyPatience)
	defer done()
	info.Trouble = s.client.Ready(short)
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

// Explain implements cli.Options.
func Explain(err error) (code, advice string) {
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var notTLS tls.RecordHeaderError
	switch {
	case errors.Is(err, httpapi.ErrUnauthenticated):
		return "unauthenticated", "set LOKT_TOKEN, or LOKT_TOKEN_FILE, to a token that the server knows"
	case errors.Is(err, httpapi.ErrForbidden):
		return "forbidden", "ask whoever runs the server for a token that may do this"
	case errors.Is(err, httpapi.ErrRateLimited):
		return "rate_limited", "ask less often, or ask whoever runs the server for a higher limit"
	case errors.Is(err, httpapi.ErrBodyTooLarge):
		return "body_too_large", "keep large data elsewhere and say where it is, or raise the server's --max-body"
	case errors.Is(err, httpapi.ErrNoEvents):
		return "no_events", "the server's store keeps none: see the log of whoever runs it"
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
