package etcdstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/lokt-dev/lokt/internal/renewed"
)

// target is what a URL says.
type target struct {
	endpoints []string
	prefix    string // begins with a slash, does not end with one
	user      string
	password  string
	tls       *renewed.TLS // nil for plain connections
}

const (
	defaultPort   = "2379"
	defaultPrefix = "/lokt"
)

// parse reads a URL: etcd://[user:password@]host[:port][,host[:port]…][/prefix], or etcds:// for TLS, where the query
// may name files: ca, cert and key. Errors do not repeat the URL: it may have a password in it.
//
// Package net/url takes a list of hosts for a malformed port, so they are cut out before it reads the rest.
func parse(text string) (target, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "etcd" && scheme != "etcds" {
		return target{}, errors.New("the URL of an etcd store begins with etcd:// or etcds://")
	}
	end := len(rest)
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		end = i
	}
	begin := strings.LastIndexByte(rest[:end], '@') + 1
	u, err := url.Parse(scheme + "://" + rest[:begin] + "hosts" + rest[end:])
	if err != nil || begin > 0 && u.User.Username() == "" {
		return target{}, errors.New("the URL of the etcd store has a malformed user, prefix or query")
	}
	t := target{prefix: defaultPrefix, user: u.User.Username()}
	t.password, _ = u.User.Password()
	if p := strings.Trim(u.Path, "/"); p != "" {
		t.prefix = "/" + p
	}
	for h := range strings.SplitSeq(rest[begin:end], ",") {
		e, err := endpoint(h)
		if err != nil {
			return target{}, err
		}
		t.endpoints = append(t.endpoints, map[string]string{"etcd": "http://", "etcds": "https://"}[scheme]+e)
	}
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return target{}, errors.New("the query in the URL of the etcd store is malformed")
	}
	for key := range values {
		if key != "ca" && key != "cert" && key != "key" {
			return target{}, fmt.Errorf("the URL of an etcd store has no parameter %q", key)
		}
	}
	switch {
	case scheme == "etcds":
		t.tls, err = renewed.NewTLS(values.Get("ca"), values.Get("cert"), values.Get("key"))
	case len(values) > 0:
		err = errors.New("files for TLS need a URL that begins with etcds://")
	}
	return t, err
}

// endpoint completes a host with the port.
func endpoint(h string) (string, error) {
	u, err := url.Parse("//" + h)
	if err != nil || u.Hostname() == "" || u.Host != h || strings.HasSuffix(h, ":") {
		return "", fmt.Errorf("%q is no host, with or without a port", h)
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultPort)), nil
}

// handshake is TLS with what is in the files when a connection is made.
type handshake struct {
	credentials.TransportCredentials
	files *renewed.TLS
}

func (t handshake) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(t.files.Config()).ClientHandshake(ctx, authority, c)
}

func (t handshake) Clone() credentials.TransportCredentials { return t }

// silence explains an error by how far one gets with each endpoint, if none has answered: etcd's client says no more than that.
func (t *target) silence(ctx context.Context, cause, err error) error {
	if !transient(cause) || ctx.Err() != nil {
		return err
	}
	for _, e := range t.endpoints {
		_, address, _ := strings.Cut(e, "://")
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		c, failed := net.Conn(nil), error(nil)
		if t.tls == nil {
			c, failed = (&net.Dialer{}).DialContext(ctx, "tcp", address)
		} else {
			c, failed = (&tls.Dialer{Config: t.tls.Config()}).DialContext(ctx, "tcp", address)
		}
		if cancel(); failed == nil {
			_ = c.Close()
			failed = errors.New("connected, but it does not answer as an etcd does that has a leader")
		}
		err = fmt.Errorf("%w; %s: %w", err, address, failed)
	}
	return err
}
