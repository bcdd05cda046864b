package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"
)

// certificates are the daemon's own, and those of the authorities whose clients it knows. They can be read again while
// connections are made.
type certificates struct {
	c       *Config
	current atomic.Pointer[tls.Config]
}

func loadCertificates(c *Config) (*certificates, error) {
	t := &certificates{c: c}
	return t, t.load()
}

// load reads the files. If one cannot be used, everything stays as it was.
func (t *certificates) load() error {
	pair, err := tls.LoadX509KeyPair(t.c.TLSCert, t.c.TLSKey)
	if err != nil {
		return fmt.Errorf("TLS certificate %s with key %s: %w", t.c.TLSCert, t.c.TLSKey, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if t.c.ClientCA != "" {
		pem, err := os.ReadFile(t.c.ClientCA)
		if err != nil {
			return fmt.Errorf("client CA: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("client CA %s has no certificate", t.c.ClientCA)
		}
		config.ClientAuth = tls.VerifyClientCertIfGiven // who gives none may have a token
		config.SessionTicketsDisabled = true            // every connection is judged by the authorities of its day
	}
	t.current.Store(config)
	return nil
}

// config returns what a server needs: each connection goes by the configuration that is current when it is made.
func (t *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.current.Load(), nil },
	}
}
