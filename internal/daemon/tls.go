package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/internal/renewed"
)

// certificates are the daemon's own, and those of the authorities whose clients it knows. They are read again when their
// files have changed, and when somebody says so.
type certificates struct {
	c   *Config
	log *slog.Logger

	mu      sync.Mutex // for the fields below
	current *tls.Config
	files   renewed.Files
	failed  bool // to read them
	looked  time.Time
}

// lookEvery is how often the files are looked at for changes.
const lookEvery = time.Second

func loadCertificates(c *Config, log *slog.Logger) (*certificates, error) {
	t := &certificates{c: c, log: log, files: renewed.Files{Paths: []string{c.TLSCert, c.TLSKey, c.ClientCA}}}
	if err := t.reload(); err != nil {
		return nil, err
	}
	if err := t.expired(); err != nil {
		log.Warn("clients will refuse the certificate", "err", err)
	}
	return t, nil
}

// expired returns an error if it is not the time of the daemon's certificate.
func (t *certificates) expired() error {
	leaf, now := t.current.Certificates[0].Leaf, time.Now()
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return fmt.Errorf("TLS certificate %s is valid from %s to %s", t.c.TLSCert, leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339))
	}
	return nil
}

// reload reads the files.
func (t *certificates) reload() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.files.Changed()
	return t.load()
}

// look returns what is current for one connection. What is wrong with files that have changed is said once.
func (t *certificates) look() *tls.Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.looked) < lookEvery {
		return t.current
	}
	t.looked = time.Now()
	changed := t.files.Changed()
	if !changed && !t.failed { // what was in the way need not be in the files
		return t.current
	}
	err := t.load()
	t.failed = err != nil
	if err == nil {
		err = t.expired()
	}
	if err != nil && changed {
		t.log.Error("certificate files have changed, and cannot be used", "err", err)
	} else if err == nil {
		t.log.Info("certificate files read again")
	}
	return t.current
}

// load reads the files. If one cannot be used, everything stays as it was.
func (t *certificates) load() error {
	pair, err := renewed.KeyPair(t.c.TLSCert, t.c.TLSKey)
	if err != nil {
		return fmt.Errorf("TLS certificate %s with key %s: %w", t.c.TLSCert, t.c.TLSKey, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	if t.c.ClientCA != "" {
		pem, err := renewed.Read(t.c.ClientCA)
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
	t.current = config
	return nil
}

// config returns what a server needs: each connection goes by the configuration that is current when it is made.
func (t *certificates) config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return t.look(), nil },
	}
}
