package care

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

// What doctor makes of a server.
const (
	doctorPatience = 5 * time.Second // for an answer
	slowAnswer     = time.Second     // a round trip that a TTL of a few seconds does not bear
	clockApart     = 5 * time.Second // clocks that far apart confuse people; nothing else depends on them
)

// runDoctorServer checks the servers that are named, instead of files.
func (a cmd) runDoctorServer(o doctorOptions) error {
	switch {
	case o.fix:
		return app.Usagef("--fix repairs files: run it without a server, where the files are, or with --server ''")
	case o.prove:
		return app.Usagef("--prove tries files: run it without a server, or with --server ''")
	}
	d := &doctor{cmd: a, servers: []app.ServerInfo{}}
	s, err := a.Server()
	var usage *app.UsageError
	switch {
	case errors.As(err, &usage):
		return err
	case err != nil:
		d.add(checkFail, "token", "%v", err).Fix = "correct LOKT_TOKEN_FILE, or set LOKT_SERVER_TOKEN"
	default:
		d.checkTokenFile()
		for _, url := range s.URLs {
			one := *s
			one.URLs = []string{url}
			d.checkServer(one)
		}
	}
	d.root = app.RootDir{Method: "server", Path: strings.ReplaceAll(app.ShownURLs(a.ServerURLs()), ", ", ",")}
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
		d.add(checkFail, "server", "%s: %v", url, err).Fix = "correct LOKT_SERVER, LOKT_CA_FILE, LOKT_CERT_FILE and LOKT_KEY_FILE"
		return
	}
	defer func() { _ = far.Close() }() // all that was asked has been answered
	info, err := far.Ask(ctx)
	if err != nil {
		c := d.add(checkFail, "server", "%s: %v", url, err)
		c.Fix = "start loktd there, or correct the address"
		if _, advice := app.Explain(err); advice != "" {
			v.Reachable = !errors.Is(err, lokt.ErrUnavailable)
			c.Fix = advice
		}
		return
	}
	v = info
	v.URL, v.Reachable = url, true
	what := "loktd " + info.Version
	if info.Store != "" {
		what += ", which keeps its locks in " + info.Store
	}
	d.add(checkOK, "server", "%s is %s", url, what)
	if mine := app.Version(); info.Version != "" && mine != info.Version && mine != app.UnknownVersion && info.Version != app.UnknownVersion {
		d.add(checkWarn, "version", "this is lokt %s, and the server is %s", mine, info.Version).Fix = "use one release for both; the older of the two may not know what the other asks"
	}
	if info.Trouble != nil {
		d.add(checkFail, "store", "%v", info.Trouble).Fix = "see the server's log: its disk may be full, its database out of reach, or it is about to end"
	}
	d.checkRoundTrip(info)
	d.checkServerClock(info)
	d.checkConnection(url, s, info)
	d.checkScopes(ctx, far, info)
}

func (d *doctor) checkRoundTrip(info app.ServerInfo) {
	if info.RoundTrip > slowAnswer {
		d.add(checkWarn, "round-trip", "an answer took %s: a guard renews its lock every half TTL, and loses it if that does not come through in time", app.Short(info.RoundTrip)).
			Fix = "use a TTL of a minute or more, or a server that is nearer"
		return
	}
	d.add(checkOK, "round-trip", "%s", info.RoundTrip.Round(10*time.Microsecond))
}

func (d *doctor) checkServerClock(info app.ServerInfo) {
	ahead, than := info.Ahead, "ahead of"
	if ahead < 0 {
		ahead, than = -ahead, "behind"
	}
	switch apart := ahead.Round(time.Millisecond); {
	case ahead > clockApart+info.RoundTrip/2:
		d.add(checkWarn, "clock", "the server's is %s %s this host's: times that are shown are the server's; what expires is counted in durations, so no lock depends on it", app.Short(apart), than).
			Fix = "let NTP set both clocks"
	case ahead <= info.RoundTrip/2+time.Millisecond:
		d.add(checkOK, "clock", "no difference to the server's that a round trip could show")
	default:
		d.add(checkOK, "clock", "the server's is %s %s this host's, on which nothing depends", apart, than)
	}
}

// checkConnection says who can listen.
func (d *doctor) checkConnection(url string, s app.Server, info app.ServerInfo) {
	switch {
	case info.TLS != "":
		d.add(checkOK, "tls", "%s", info.TLS)
	case loopback(url):
		d.add(checkOK, "tls", "none, and the connection does not leave this host")
	case s.Token != "":
		d.add(checkWarn, "tls", "none: whoever is on the way to the server can read the token and use it").Fix = "give loktd a certificate (--tls-cert, --tls-key) and name it by https://"
	default:
		d.add(checkWarn, "tls", "none: whoever is on the way to the server can read and change what is asked").Fix = "give loktd a certificate (--tls-cert, --tls-key) and name it by https://"
	}
}

// loopback reports whether the host of the address is this one.
func loopback(url string) bool {
	_, host, _ := strings.Cut(url, "://")
	host, _, _ = strings.Cut(host, "/")
	if addr, err := netip.ParseAddrPort(host); err == nil {
		return addr.Addr().IsLoopback()
	}
	if addr, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return addr.IsLoopback()
	}
	name, _, _ := strings.Cut(host, ":")
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}

// checkScopes finds out what the caller may do.
func (d *doctor) checkScopes(ctx context.Context, far app.Remote, info app.ServerInfo) {
	who := "the server asks nobody who they are"
	if !info.Anonymous {
		who = fmt.Sprintf("you are %q to the server, with the scopes %s", info.Caller, strings.Join(info.Scopes, ", "))
		if len(info.Scopes) == 0 {
			who = fmt.Sprintf("you are %q to the server, without any scope", info.Caller)
		}
	}
	var missing []string
	for _, scope := range []string{"read", "lock"} {
		if !info.Anonymous && !slices.Contains(info.Scopes, scope) && !slices.Contains(info.Scopes, "admin") {
			missing = append(missing, scope)
		}
	}
	switch {
	case len(missing) > 0 && info.Locks:
		d.add(checkWarn, "scopes", "%s: taking locks needs %s too", who, strings.Join(missing, " and ")).Fix = "ask whoever runs the server for a token with these scopes"
	case info.Anonymous && !loopback(info.URL):
		d.add(checkWarn, "scopes", "%s, and others can reach it", who).Fix = "run loktd with --tokens FILE"
	default:
		d.add(checkOK, "scopes", "%s", who)
	}
	switch {
	case !info.Locks:
		d.add(checkWarn, "locks", "the server keeps no locks: guard, lock and the like do not work on it")
		return
	case !info.Events:
		d.add(checkWarn, "locks", "the server's store keeps no events: audit and metrics do not work on it")
		return
	}
	n, damaged := 0, 0
	for _, err := range far.Locks().List(ctx, lokt.Filter{}) {
		switch {
		case errors.Is(err, lokt.ErrDamaged):
			damaged++
		case err != nil:
			d.add(checkWarn, "locks", "they cannot be listed: %v", err)
			return
		default:
			n++
		}
	}
	if damaged > 0 {
		d.add(checkFail, "locks", "%d can be read, %d cannot: nobody gets those", n, damaged).Fix = "see the server's log"
		return
	}
	d.add(checkOK, "locks", "on record: %d", n)
}

// checkTokenFile looks at who else may read the token.
func (d *doctor) checkTokenFile() {
	path := d.Getenv("LOKT_TOKEN_FILE")
	if path == "" || d.ServerToken() != "" {
		return
	}
	fi, err := os.Stat(path)
	if err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o077&^fs.FileMode(0o040) != 0 {
		d.add(checkWarn, "token", "%s can be read by others (%v)", path, fi.Mode().Perm()).Fix = "chmod 600 " + app.Quoted(path)
	}
}
