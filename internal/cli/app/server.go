package app

import (
	"errors"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/easy"
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
	if o, err = easy.ClientOptions(a.Getenv); errors.Is(err, lokt.ErrInvalid) {
		err = Usage(err)
	}
	o.UserAgent, o.Patience, o.Look = "lokt/"+version.String(), patience, lookTime
	return o, err
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
