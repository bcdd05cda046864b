package httpapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// newerThan lets those in whose certificates have a higher serial number.
type newerThan struct {
	everybody
	serial *atomic.Int64
}

func (n newerThan) Enter(r *http.Request) (httpapi.Caller, error) {
	if r.TLS.PeerCertificates[0].SerialNumber.Int64() <= n.serial.Load() {
		return nil, httpapi.ErrUnauthenticated
	}
	return n, nil
}

// Promise S-330.
func TestACertificateThatEndsOnOpenConnectionsIsNotTheClientsLastWord(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var serial, refused atomic.Int64
	server := httptest.NewUnstartedServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New()), Gate: newerThan{serial: &refused}}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	c, err := httpapi.New(server.URL, httpapi.ClientOptions{TLSSource: func() *tls.Config {
		own := &x509.Certificate{SerialNumber: big.NewInt(serial.Load()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, own, own, &key.PublicKey, key)
		if err != nil {
			t.Error(err)
		}
		return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	for serial.Store(1); serial.Load() < 4; serial.Add(1) {
		refused.Store(serial.Load() - 1)
		if _, err := c.Get(t.Context(), "x"); err != nil {
			t.Errorf("with certificate %d: %v", serial.Load(), err)
		}
	}
	refused.Store(serial.Load())
	if _, err := c.Get(t.Context(), "x"); !errors.Is(err, httpapi.ErrUnauthenticated) {
		t.Errorf("with a certificate that is refused: %v", err)
	}
}
