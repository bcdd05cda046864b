//go:build unix

package sqlstore

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// selfSigned returns a certificate of this host, and its key.
func selfSigned(t *testing.T) (cert, key []byte) {
	t.Helper()
	k, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err2 := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	keyDER, err3 := x509.MarshalPKCS8PrivateKey(k)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// Promise S-330.
func TestConnectionsToPostgresAreMadeWithWhatIsInTheFilesThen(t *testing.T) {
	t.Parallel()
	p := servers.NeedPostgres(t, "fsync=off")
	data := filepath.Join(p.Dir, "data")
	dir := t.TempDir()
	passfile, ca := filepath.Join(dir, "passfile"), filepath.Join(dir, "ca.pem")
	write := func(path string, text []byte) { // in place of the file that is there
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", text, 0o600), p.Own(path+".new"), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	do := func(sql ...string) {
		t.Helper()
		for _, s := range sql {
			if err := p.Exec(s); err != nil {
				t.Fatalf("%s: %v", s, err)
			}
		}
	}
	rotate := func(password string) {
		t.Helper()
		cert, key := selfSigned(t)
		write(filepath.Join(data, "server.crt"), cert)
		write(filepath.Join(data, "server.key"), key)
		do("ALTER ROLE worker PASSWORD '"+password+"'", "SELECT pg_reload_conf()")
		write(passfile, []byte("*:*:*:worker:"+password+"\n"))
		write(ca, cert)
	}
	cut := func() {
		t.Helper()
		do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'worker'")
	}
	hba, err := os.ReadFile(filepath.Join(data, "pg_hba.conf"))
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(data, "pg_hba.conf"), append([]byte("hostssl all worker 127.0.0.1/32 scram-sha-256\nhostnossl all worker all reject\n"), hba...))
	do("ALTER SYSTEM SET password_encryption = 'scram-sha-256'", "SELECT pg_reload_conf()") // as it is from 14 on
	do("CREATE ROLE worker LOGIN", "CREATE SCHEMA w AUTHORIZATION worker")
	rotate("first")
	do("ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()")
	where := "postgres://worker@" + p.Addr + "/postgres?search_path=w&sslmode=verify-full&sslrootcert=" + url.QueryEscape(ca) + "&passfile=" + url.QueryEscape(passfile)
	soon := func(what string, try func() error) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if err := try(); err == nil {
				return
			} else if time.Now().After(end) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	var db *DB
	soon("opening", func() (err error) {
		db, err = Open(t.Context(), where, Options{})
		return err
	})
	t.Cleanup(func() { _ = db.Close() })
	m := lokt.NewManager(db.Locks())
	works := func(when string) {
		t.Helper()
		soon(when, func() error {
			_, err := m.Acquire(t.Context(), claim(when, "a", time.Hour))
			return err
		})
	}
	works("first")
	for _, gone := range []string{passfile, ca} { // for a moment
		if err := os.Rename(gone, gone+".away"); err != nil {
			t.Fatal(err)
		}
		cut()
		works("without." + filepath.Base(gone))
		if err := os.Rename(gone+".away", gone); err != nil {
			t.Fatal(err)
		}
	}
	rotate("second")
	cut()
	works("replaced")
}
