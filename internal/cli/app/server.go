package app

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/lokt-dev/lokt"
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

// Server returns how to reach the server, or nil if none is named.
func (a *App) Server() (*Server, error) {
	urls := a.ServerURLs()
	if len(urls) == 0 {
		return nil, nil
	}
	for _, u := range urls {
		if !strings.HasPrefix(u, "http://") && !strings.HasPrefix(u, "https://") {
			return nil, Usagef("the server %q does not begin with http:// or https://", WithoutUser(u))
		}
	}
	s := &Server{
		URLs: urls, CAFile: a.Getenv("LOKT_CA_FILE"), CertFile: a.Getenv("LOKT_CERT_FILE"), KeyFile: a.Getenv("LOKT_KEY_FILE"),
		Agent: "lokt/" + version.String(),
	}
	if (s.CertFile == "") != (s.KeyFile == "") {
		return nil, Usagef("LOKT_CERT_FILE and LOKT_KEY_FILE belong together: set both or none")
	}
	var err error
	s.Token, err = a.token()
	return s, err
}

// token returns what proves to a server who asks: of LOKT_SERVER_TOKEN and the file LOKT_TOKEN_FILE the first that is there.
func (a *App) token() (string, error) {
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

// Remote returns the server, for commands that work on one only.
func (a *App) Remote() (Remote, error) {
	if a.Dialled != nil {
		return a.Dialled, nil
	}
	s, err := a.Server()
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return nil, Hint(errNoServer, "say which with LOKT_SERVER or --server, such as http://127.0.0.1:7117; loktd runs one")
	}
	a.Dialled, err = a.Dial(*s)
	return a.Dialled, err
}

// CheckPlace refuses a command line that names two places, or none for a command that needs a server.
func (a *App) CheckPlace(p Place) error {
	if a.ServerFlag != "" && a.RootFlag != "" {
		return Usagef("--root is about files and --server about a server: give one of them")
	}
	if p == OnServer {
		_, err := a.Remote()
		return err
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
