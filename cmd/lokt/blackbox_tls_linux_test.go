package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// file returns the path of one of its files: name.pem or name.key.
func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// issue writes a certificate, and its key, to files with that name.
func (a *authority) issue(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(a.t, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	check(a.t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	check(a.t, err)
	check(a.t, os.WriteFile(a.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	check(a.t, os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	cert, err := x509.ParseCertificate(der)
	check(a.t, err)
	return cert, key
}

func TestServersWithTLSAreTrustedByTheirAuthorityAndClientsByTheirs(t *testing.T) {
	p := newPlace(t)
	ca := newAuthority(t, p.dir)
	ca.issue("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	ca.issue("ann", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	d := &daemon{store: "sqlite:" + filepath.Join(p.dir, "loktd.db"), args: []string{
		"--tls-cert", ca.file("server.pem"), "--tls-key", ca.file("server.key"), "--client-ca", ca.file("ca.pem"), "--client-scopes", "read,lock",
	}}
	t.Cleanup(d.kill)
	check(t, d.up())
	if !strings.HasPrefix(d.url, "https://") {
		t.Fatalf("listening on %s", d.url)
	}
	p = p.with("LOKT_SERVER=" + d.url)
	contains(t, p.want(1, "lock", "x").stderr, "LOKT_CA_FILE")
	trusting := p.with("LOKT_CA_FILE=" + ca.file("ca.pem"))
	contains(t, trusting.want(1, "lock", "x").stderr, "set LOKT_SERVER_TOKEN")
	q := trusting.with("LOKT_CERT_FILE="+ca.file("ann.pem"), "LOKT_KEY_FILE="+ca.file("ann.key"))
	q.want(0, "guard", "x", "--", "true")
	r := q.want(0, "doctor")
	contains(t, r.out, "TLS 1.3", `you are "ann" to the server, with the scopes read, lock`)
	contains(t, q.with("LOKT_KEY_FILE="+ca.file("ca.key")).want(1, "lock", "x").stderr, "LOKT_CERT_FILE, LOKT_KEY_FILE")
	contains(t, q.with("LOKT_CA_FILE="+ca.file("ann.key")).want(1, "lock", "x").stderr, "no certificate in PEM")
	plain := "LOKT_SERVER=" + strings.Replace(d.url, "https:", "http:", 1)
	contains(t, q.with(plain).want(1, "lock", "x").stderr, "http or https")
	byName := "LOKT_SERVER=" + strings.Replace(d.url, "127.0.0.1", "localhost", 1)
	contains(t, q.with(byName).want(1, "lock", "x").stderr, "name the server as its certificate does")
}

// Promise S-330.
func TestAGuardAndAWaiterSurviveThatTheAuthorityOfTheirServerIsReplaced(t *testing.T) {
	p := newPlace(t)
	usual := &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	old, next := newAuthority(t, p.dir), newAuthority(t, t.TempDir())
	old.issue("server", usual)
	next.issue("server", usual)
	d := &daemon{store: "sqlite:" + filepath.Join(p.dir, "loktd.db"), args: []string{
		"--tls-cert", old.file("server.pem"), "--tls-key", old.file("server.key"),
	}}
	t.Cleanup(d.kill)
	check(t, d.up())
	p = p.with("LOKT_SERVER="+d.url, "LOKT_CA_FILE="+old.file("ca.pem"))
	h := p.as("first").hold("x", "--ttl", "20s")
	w := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--ttl", "20s", "--", "sh", "-c", loop))
	p.waits("x", "second")
	for _, name := range []string{"server.pem", "server.key"} {
		check(t, os.Rename(next.file(name), old.file(name)))
	}
	d.kill()
	check(t, d.up())
	contains(t, p.want(1, "status", "x").stderr, "LOKT_CA_FILE")
	check(t, os.Rename(next.file("ca.pem"), old.file("ca.pem")))
	was := p.status("x")
	p.eventually("it is renewed", func() bool { return p.status("x").Renewals > was.Renewals })
	p.waits("x", "second")
	if r := h.end(); r.code != 0 || strings.Contains(r.stderr, "lost") {
		t.Error(r)
	}
	if r := w.running().end(); r.code != 0 {
		t.Error(r)
	}
}
