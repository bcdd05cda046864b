package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/version"
)

// ServerURLs returns the addresses of the server that the command line or the environment names; none means files.
func (a *App) ServerURLs() []string {
	given := a.ServerFlag
	switch {
	case a.ServerGiven:
	case a.RootFlag != "": // said on this very command line, and a directory is no server's
	default:
		given = a.Getenv("LOKT_SERVER")
	}
	var urls []string
	for _, u := range strings.Split(given, ",") {
		if u = strings.TrimSpace(u); u != "" {
			urls = append(urls, u)
		}
	}
	return urls
}

// ShownURLs returns addresses for people.
func ShownURLs(urls []string) string {
	var all []string
	for _, u := range urls {
		all = append(all, WithoutUser(u))
	}
	return strings.Join(all, ", ")
}

// WithoutUser returns the address without the name and the password that it may have.
func WithoutUser(url string) string {
	scheme, rest, found := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); found && i >= 0 {
		return scheme + "://" + rest[i+1:]
	}
	return url
}

// Timeouts of requests.
const (
	patience = 2 * time.Second  // while no server answers: enough for one that is started again, short for a wrong address
	lookTime = 10 * time.Second // for a command that only looks, over all servers
)

// ClientOptions returns how the environment says to reach a server. Errors are about files and variables.
func (a *App) ClientOptions() (o httpapi.ClientOptions, err error) {
	o = httpapi.ClientOptions{UserAgent: "lokt/" + version.String(), Patience: patience, Look: lookTime}
	if o.Token, err = a.Token(); err != nil {
		return o, err
	}
	ca, cert, key := a.Getenv("LOKT_CA_FILE"), a.Getenv("LOKT_CERT_FILE"), a.Getenv("LOKT_KEY_FILE")
	switch {
	case (cert == "") != (key == ""):
		return o, Usagef("LOKT_CERT_FILE and LOKT_KEY_FILE belong together: set both or none")
	case ca == "" && cert == "":
		return o, nil
	}
	o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return o, fmt.Errorf("LOKT_CA_FILE: %w", err)
		}
		o.TLS.RootCAs = x509.NewCertPool()
		if !o.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return o, fmt.Errorf("LOKT_CA_FILE: %s has no certificate in PEM", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return o, fmt.Errorf("LOKT_CERT_FILE, LOKT_KEY_FILE: %w", err)
		}
		o.TLS.Certificates = []tls.Certificate{pair}
	}
	return o, nil
}

// Token returns what proves to a server who asks: of LOKT_SERVER_TOKEN and the file LOKT_TOKEN_FILE the first that is there.
func (a *App) Token() (string, error) {
	if t := a.Getenv("LOKT_SERVER_TOKEN"); t != "" {
		return t, nil
	}
	path := a.Getenv("LOKT_TOKEN_FILE")
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("LOKT_TOKEN_FILE: %w", err)
	}
	line, _, _ := strings.Cut(string(data), "\n")
	if line = strings.TrimSpace(line); line == "" {
		return "", fmt.Errorf("LOKT_TOKEN_FILE: the first line of %s is empty", path)
	}
	return line, nil
}

// errNoServer is the error of commands that work on a server only.
var errNoServer = errors.New("this takes a server")

// Client returns a client of the server that the command line or the environment names. It does not connect.
func (a *App) Client() (*httpapi.Client, error) {
	urls := a.ServerURLs()
	if a.client != nil || len(urls) == 0 {
		return a.client, nil
	}
	o, err := a.ClientOptions()
	if err != nil {
		return nil, err
	}
	if a.client, err = httpapi.New(strings.Join(urls, ","), o); err != nil {
		return nil, Usage(err)
	}
	return a.client, nil
}

// CheckPlace refuses a command line that names two places, or none for a command that needs a server.
func (a *App) CheckPlace(p Place) error {
	if a.ServerFlag != "" && a.RootFlag != "" {
		return Usagef("--root is about files and --server about a server: give one of them")
	}
	if p == OnServer && len(a.ServerURLs()) == 0 {
		return Hint(errNoServer, "say which with LOKT_SERVER or --server, such as http://127.0.0.1:7117; loktd runs one")
	}
	return nil
}

// Reached adds to an error of a server that cannot be reached, or will not have the caller, what to do.
func (a *App) Reached(err error) error {
	var known *HintError
	urls := a.ServerURLs()
	if len(urls) == 0 || !errors.Is(err, lokt.ErrUnavailable) || errors.As(err, &known) {
		return err
	}
	return Hint(err, "is loktd running there, and is the address right, http or https (%s)? See: %s", ShownURLs(urls), a.CommandLine("doctor", ""))
}
