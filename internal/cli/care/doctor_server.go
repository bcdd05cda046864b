package care

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/quote"
	"github.com/lokt-dev/lokt/internal/version"
	"github.com/lokt-dev/lokt/store/place"
)

const (
	doctorPatience = 5 * time.Second // for an answer
	slowAnswer     = time.Second     // a round trip that a TTL of a few seconds does not bear
	clockApart     = 5 * time.Second // clocks that far apart confuse people; nothing else depends on them
)

// serverInfo is what a server says of itself, and what its answer shows of the connection. What is not known is zero.
type serverInfo struct {
	URL       string `json:"url"`
	Reachable bool   `json:"reachable"`
	httpapi.About
	TLS       string        `json:"tls,omitzero"`
	RoundTrip time.Duration `json:"round_trip_ms,omitzero"`
	Ahead     time.Duration `json:"clock_ahead_ms"` // of this host's, give or take half the round trip

	token      bool // the caller has one
	conditions []place.Condition
}

// checkServers checks the servers that are named, instead of files.
func (d *doctor) checkServers() error {
	switch {
	case d.fix:
		return app.Usagef("--fix repairs files: run it without a server, where the files are, or with --server ''")
	case d.prove:
		return app.Usagef("--prove tries files: run it without a server, or with --server ''")
	}
	d.servers = []serverInfo{}
	_, err := d.Client()
	switch {
	case errors.As(err, new(*app.UsageError)):
		return err
	case err != nil:
		d.fail("server", "correct what it names", "%v", err)
	default:
		d.checkTokenFile()
		for _, url := range d.ServerURLs() {
			d.servers = append(d.servers, d.checkServer(url))
		}
		d.checkShared()
	}
	d.root = app.RootDir{Method: "server", Path: strings.ReplaceAll(app.ShownURLs(d.ServerURLs()), ", ", ",")}
	d.found = append(append(d.found, place.Rate()), place.Commands()...)
	d.checkEnvironment()
	d.checkIdentity()
	return d.tellAll()
}

// checkShared warns of servers that do not share what they remember, though a client asks any of them.
func (d *doctor) checkShared() {
	for _, s := range d.servers {
		if alone := s.Store == "sqlite" || s.Store == "memory"; len(d.servers) > 1 && alone {
			d.warn("servers", "name one daemon, or give all of them one store: --store postgres://… or etcd://…",
				"%s keeps its locks for itself, in %s: unless all addresses are those of one daemon, two can hold a lock at once", s.URL, s.Store)
		}
	}
}

// checkServer looks at one server.
func (d *doctor) checkServer(url string) serverInfo {
	ctx, stop := context.WithTimeout(context.Background(), doctorPatience)
	defer stop()
	info := serverInfo{URL: app.WithoutUser(url)}
	o, err := d.ClientOptions()
	if err == nil {
		var c *httpapi.Client
		if c, err = httpapi.New(url, o); err == nil {
			defer func() { _ = c.Close() }() // every question has been answered
			info.token = o.Token != ""
			if err = info.ask(ctx, c); err == nil {
				d.checkInfo(info)
				d.checkServerLocks(ctx, c, info)
				return info
			}
		}
	}
	_, _, advice := app.Classify(err)
	info.Reachable = advice != "" && !errors.Is(err, lokt.ErrUnavailable)
	d.fail("server", cmp.Or(advice, "start loktd there, or correct the address"), "%s: %v", info.URL, err)
	return info
}

// ask asks the server what it is. It asks twice, because the first answer takes the time to connect as well.
func (i *serverInfo) ask(ctx context.Context, c *httpapi.Client) error {
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) { i.TLS = secured(got.Conn) }})
	if _, err := c.About(traced); err != nil {
		return err
	}
	sent := time.Now()
	about, err := c.About(traced)
	if err != nil {
		return err
	}
	took := time.Since(sent)
	i.Reachable, i.About = true, about
	i.RoundTrip, i.Ahead = took.Round(10*time.Microsecond), about.Now.Sub(sent.Add(took/2)).Round(10*time.Microsecond)
	i.conditions, err = c.Conditions(ctx)
	return err
}

// secured says how a connection is; nothing if it is not.
func secured(conn net.Conn) string {
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

// checkInfo judges what a server said.
func (d *doctor) checkInfo(info serverInfo) {
	keeps := ""
	if info.Store != "" {
		keeps = ", which keeps its locks in " + info.Store
	}
	d.ok("server", "%s is loktd %s%s", info.URL, info.Version, keeps)
	if mine := version.String(); info.Version != "" && mine != info.Version && mine != version.Unknown && info.Version != version.Unknown {
		d.warn("version", "use one release for both; the older of the two may not know what the other asks", "this is lokt %s, and the server is %s", mine, info.Version)
	}
	for _, c := range info.conditions {
		c.Name = "server." + c.Name
		d.found = append(d.found, c)
	}
	if info.RoundTrip > slowAnswer {
		d.warn("round-trip", "use a TTL of a minute or more, or a server that is nearer",
			"an answer took %s: a guard renews its lock every half TTL, and loses it if that does not come through in time", app.Short(info.RoundTrip))
	} else {
		d.ok("round-trip", "%s", info.RoundTrip)
	}
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
	can := "read and change what is asked"
	if info.token {
		can = "read the token and use it"
	}
	switch {
	case info.TLS != "":
		d.ok("tls", "%s", info.TLS)
	case loopback(info.URL):
		d.ok("tls", "none, and the connection does not leave this host")
	default:
		d.warn("tls", "give loktd a certificate (--tls-cert, --tls-key) and name it by https://", "none: whoever is on the way to the server can %s", can)
	}
	d.checkScopes(info)
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
func (d *doctor) checkScopes(info serverInfo) {
	who := fmt.Sprintf("you are %q to the server, with the scopes %s", info.Caller, strings.Join(app.Strings(info.Scopes), ", "))
	if len(info.Scopes) == 0 {
		who = fmt.Sprintf("you are %q to the server, without any scope", info.Caller)
	}
	var missing []string
	for _, scope := range []httpapi.Scope{"read", "lock"} {
		if !slices.Contains(info.Scopes, scope) && !slices.Contains(info.Scopes, "admin") {
			missing = append(missing, string(scope))
		}
	}
	switch {
	case info.Anonymous && !loopback(info.URL):
		d.warn("scopes", "run loktd with --tokens FILE", "the server asks nobody who they are, and others can reach it")
	case info.Anonymous:
		d.ok("scopes", "the server asks nobody who they are")
	case len(missing) > 0 && info.Locks:
		d.warn("scopes", "ask whoever runs the server for a token with these scopes", "%s: taking locks needs %s too", who, strings.Join(missing, " and "))
	default:
		d.ok("scopes", "%s", who)
	}
}

func (d *doctor) checkServerLocks(ctx context.Context, c *httpapi.Client, info serverInfo) {
	switch {
	case !info.Locks:
		d.warn("locks", "", "the server keeps no locks: guard, lock and the like do not work on it")
		return
	case !info.Events:
		d.warn("locks", "", "the server's store keeps no events: audit and metrics do not work on it")
		return
	}
	m, err := measure(ctx, c, 0)
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
		d.warn("token", "chmod 600 "+quote.Word(path), "%s can be read by others (%v)", path, fi.Mode().Perm())
	}
}
