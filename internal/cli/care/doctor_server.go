package care

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/version"
)

const (
	doctorPatience = 5 * time.Second // for an answer
	slowAnswer     = time.Second     // a round trip that a TTL of a few seconds does not bear
	clockApart     = 5 * time.Second // clocks that far apart confuse people; nothing else depends on them
)

// checkServers checks the servers that are named, instead of files.
func (d *doctor) checkServers() error {
	switch {
	case d.fix:
		return app.Usagef("--fix repairs files: run it without a server, where the files are, or with --server ''")
	case d.prove:
		return app.Usagef("--prove tries files: run it without a server, or with --server ''")
	}
	d.servers = []app.ServerInfo{}
	s, err := d.Server()
	var usage *app.UsageError
	switch {
	case errors.As(err, &usage):
		return err
	case err != nil:
		d.fail("token", "correct LOKT_TOKEN_FILE, or set LOKT_SERVER_TOKEN", "%v", err)
	default:
		d.checkTokenFile()
		for _, url := range s.URLs {
			one := *s
			one.URLs = []string{url}
			d.checkServer(one)
		}
	}
	d.root = app.RootDir{Method: "server", Path: strings.ReplaceAll(app.ShownURLs(d.ServerURLs()), ", ", ",")}
	d.checkEnvironment()
	d.checkIdentity()
	return d.tellAll()
}

// checkServer looks at one server.
func (d *doctor) checkServer(s app.Server) {
	url := app.WithoutUser(s.URLs[0])
	v := app.ServerInfo{URL: url}
	defer func() { d.servers = append(d.servers, v) }()
	ctx, stop := context.WithTimeout(context.Background(), doctorPatience)
	defer stop()
	far, err := d.Dial(s)
	if err != nil {
		d.fail("server", "correct LOKT_SERVER, LOKT_CA_FILE, LOKT_CERT_FILE and LOKT_KEY_FILE", "%s: %v", url, err)
		return
	}
	defer func() { _ = far.Close() }() // every question has been answered
	info, err := far.Ask(ctx)
	if err != nil {
		_, advice := app.Explain(err)
		v.Reachable = advice != "" && !errors.Is(err, lokt.ErrUnavailable)
		if advice == "" {
			advice = "start loktd there, or correct the address"
		}
		d.fail("server", advice, "%s: %v", url, err)
		return
	}
	v = info
	v.URL, v.Reachable = url, true
	keeps := ""
	if info.Store != "" {
		keeps = ", which keeps its locks in " + info.Store
	}
	d.ok("server", "%s is loktd %s%s", url, info.Version, keeps)
	if mine := version.String(); info.Version != "" && mine != info.Version && mine != version.Unknown && info.Version != version.Unknown {
		d.warn("version", "use one release for both; the older of the two may not know what the other asks", "this is lokt %s, and the server is %s", mine, info.Version)
	}
	if info.Trouble != nil {
		d.fail("store", "see the server's log: its disk may be full, its database out of reach, or it is about to end", "%v", info.Trouble)
	}
	if info.RoundTrip > slowAnswer {
		d.warn("round-trip", "use a TTL of a minute or more, or a server that is nearer",
			"an answer took %s: a guard renews its lock every half TTL, and loses it if that does not come through in time", app.Short(info.RoundTrip))
	} else {
		d.ok("round-trip", "%s", info.RoundTrip.Round(10*time.Microsecond))
	}
	d.checkServerClock(info)
	d.checkConnection(url, s, info)
	d.checkScopes(info)
	d.checkServerLocks(ctx, far, info)
}

func (d *doctor) checkServerClock(info app.ServerInfo) {
	than := "ahead of"
	if info.Ahead < 0 {
		than = "behind"
	}
	switch apart := info.Ahead.Abs(); {
	case apart > clockApart+info.RoundTrip/2:
		d.warn("clock", "let NTP set both clocks", "the server's is %s %s this host's: times that are shown are the server's; "+
			"what expires is counted in durations, so no lock depends on it", app.Short(apart.Round(time.Millisecond)), than)
	case apart <= info.RoundTrip/2+time.Millisecond:
		d.ok("clock", "no difference to the server's that a round trip could show")
	default:
		d.ok("clock", "the server's is %s %s this host's, on which nothing depends", apart.Round(time.Millisecond), than)
	}
}

// checkConnection says who can listen.
func (d *doctor) checkConnection(url string, s app.Server, info app.ServerInfo) {
	can := "read and change what is asked"
	if s.Token != "" {
		can = "read the token and use it"
	}
	switch {
	case info.TLS != "":
		d.ok("tls", "%s", info.TLS)
	case loopback(url):
		d.ok("tls", "none, and the connection does not leave this host")
	default:
		d.warn("tls", "give loktd a certificate (--tls-cert, --tls-key) and name it by https://", "none: whoever is on the way to the server can %s", can)
	}
}

// loopback reports whether the host of the address is this one.
func loopback(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return addr.IsLoopback()
	}
	return u.Hostname() == "localhost" || strings.HasSuffix(u.Hostname(), ".localhost")
}

// checkScopes finds out what the caller may do.
func (d *doctor) checkScopes(info app.ServerInfo) {
	who := fmt.Sprintf("you are %q to the server, with the scopes %s", info.Caller, strings.Join(info.Scopes, ", "))
	var missing []string
	switch {
	case info.Anonymous:
		who = "the server asks nobody who they are"
	case len(info.Scopes) == 0:
		who = fmt.Sprintf("you are %q to the server, without any scope", info.Caller)
	}
	for _, scope := range []string{"read", "lock"} {
		if !info.Anonymous && !slices.Contains(info.Scopes, scope) && !slices.Contains(info.Scopes, "admin") {
			missing = append(missing, scope)
		}
	}
	switch {
	case len(missing) > 0 && info.Locks:
		d.warn("scopes", "ask whoever runs the server for a token with these scopes", "%s: taking locks needs %s too", who, strings.Join(missing, " and "))
	case info.Anonymous && !loopback(info.URL):
		d.warn("scopes", "run loktd with --tokens FILE", "%s, and others can reach it", who)
	default:
		d.ok("scopes", "%s", who)
	}
}

func (d *doctor) checkServerLocks(ctx context.Context, far app.Remote, info app.ServerInfo) {
	switch {
	case !info.Locks:
		d.warn("locks", "", "the server keeps no locks: guard, lock and the like do not work on it")
		return
	case !info.Events:
		d.warn("locks", "", "the server's store keeps no events: audit and metrics do not work on it")
		return
	}
	m, err := measure(ctx, &app.Backend{Service: far.Locks(), Far: far}, 0)
	switch {
	case err != nil:
		d.warn("locks", "", "they cannot be listed: %v", err)
	case m.Damaged > 0:
		d.fail("locks", "see the server's log", "%d can be read, %d cannot: nobody gets those", m.names, m.Damaged)
	default:
		d.ok("locks", "on record: %d", m.names)
	}
}

// checkTokenFile looks at who else may read the token.
func (d *doctor) checkTokenFile() {
	path := d.Getenv("LOKT_TOKEN_FILE")
	if path == "" || d.Getenv("LOKT_SERVER_TOKEN") != "" {
		return
	}
	fi, err := os.Stat(path)
	if err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o077&^fs.FileMode(0o040) != 0 {
		d.warn("token", "chmod 600 "+app.Quoted(path), "%s can be read by others (%v)", path, fi.Mode().Perm())
	}
}
