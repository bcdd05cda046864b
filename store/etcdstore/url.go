package etcdstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

// target is what a URL says.
type target struct {
	endpoints []string
	prefix    string // begins with a slash, does not end with one
	user      string
	password  string
	tls       *tls.Config // nil for plain connections
}

const (
	defaultPort   = "2379"
	defaultPrefix = "/lokt"
)

// parse reads a URL: etcd://[user:password@]host[:port][,host[:port]…][/prefix], or etcds:// for TLS, where the query may
// name files: ca, cert and key. Errors do not repeat the URL: it may have a password in it.
//
// It is not left to package net/url, which takes a list of hosts for a malformed port.
func parse(text string) (target, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || scheme != "etcd" && scheme != "etcds" {
		return target{}, errors.New("the URL of an etcd store begins with etcd:// or etcds://")
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, prefix, _ := strings.Cut(rest, "/")
	t := target{prefix: defaultPrefix}
	if p := strings.Trim(prefix, "/"); p != "" {
		p, err := url.PathUnescape(p)
		if err != nil {
			return target{}, errors.New("the prefix in the URL of the etcd store has a malformed escape")
		}
		t.prefix = "/" + p
	}
	if i := strings.LastIndexByte(hosts, '@'); i >= 0 {
		user, password, _ := strings.Cut(hosts[:i], ":")
		var err1, err2 error
		t.user, err1 = url.PathUnescape(user)
		t.password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil || t.user == "" {
			return target{}, errors.New("the user in the URL of the etcd store is malformed")
		}
		hosts = hosts[i+1:]
	}
	for h := range strings.SplitSeq(hosts, ",") {
		e, err := endpoint(h)
		if err != nil {
			return target{}, err
		}
		t.endpoints = append(t.endpoints, scheme+"://"+e)
	}
	values, err := url.ParseQuery(query)
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
		t.tls, err = files(values.Get("ca"), values.Get("cert"), values.Get("key"))
	case len(values) > 0:
		err = errors.New("files for TLS need a URL that begins with etcds://")
	}
	t.dial()
	return t, err
}

// dial turns the scheme into what the client knows.
func (t *target) dial() {
	for i, e := range t.endpoints {
		if rest, ok := strings.CutPrefix(e, "etcds://"); ok {
			t.endpoints[i] = "https://" + rest
		} else {
			t.endpoints[i] = "http://" + strings.TrimPrefix(e, "etcd://")
		}
	}
}

// endpoint completes a host with the port.
func endpoint(h string) (string, error) {
	host, port, err := net.SplitHostPort(h)
	if err != nil {
		if host, port, err = net.SplitHostPort(h + ":" + defaultPort); err != nil {
			return "", fmt.Errorf("%q is no host, with or without a port", h)
		}
	}
	if host == "" || port == "" || strings.ContainsAny(host, " \t\n\\") {
		return "", fmt.Errorf("%q is no host, with or without a port", h)
	}
	return net.JoinHostPort(host, port), nil
}

// files makes a TLS configuration of PEM files: authorities instead of the system's, and a certificate of the client's own.
func files(ca, cert, key string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificates in %s", ca)
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
