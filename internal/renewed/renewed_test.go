package renewed_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/renewed"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// server returns a server, and its certificate in PEM.
func server(t *testing.T) (address string, ca []byte) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}

// trusts reports whether a connection that is made now trusts the server.
func trusts(t *testing.T, files *renewed.TLS, address string) bool {
	t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Minute}, "tcp", address, files.Config())
	if err == nil {
		_ = c.Close()
	} else if !errors.As(err, new(x509.UnknownAuthorityError)) {
		t.Fatal(err)
	}
	return err == nil
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	check(t, os.WriteFile(path, text, 0o600))
}

// Promise S-340. The files are sparse.
func TestAFileWithoutAnEndIsNotReadToIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "large")
	write(t, path, []byte("a token\n"))
	check(t, os.Truncate(path, renewed.MaxFile+1))
	_, ca := renewed.NewTLS(path, "", "")
	_, pair := renewed.NewTLS("", path, path)
	_, line := renewed.FirstLine(path)
	for what, err := range map[string]error{"ca": ca, "pair": pair, "line": line} {
		if err == nil || !strings.Contains(err.Error(), path+" has more than 16 MiB") {
			t.Errorf("%s: %v", what, err)
		}
	}
	check(t, os.Truncate(path, renewed.MaxFile))
	if token, err := renewed.FirstLine(path); token != "a token" || err != nil {
		t.Errorf("%q, %v", token, err)
	}
}

// Promise S-330.
func TestANewConnectionGoesByTheFilesHoweverTheyAreReplaced(t *testing.T) {
	t.Parallel()
	address, right := server(t)
	other, err := os.ReadFile("testdata/other.pem")
	check(t, err)
	for how, replace := range map[string]func(t *testing.T, dir string, to []byte){
		"written over": func(t *testing.T, dir string, to []byte) { write(t, filepath.Join(dir, "ca.pem"), to) },
		"renamed": func(t *testing.T, dir string, to []byte) {
			write(t, filepath.Join(dir, "ca.new"), to)
			check(t, os.Rename(filepath.Join(dir, "ca.new"), filepath.Join(dir, "ca.pem")))
		},
		"a link to a directory that is swapped": func(t *testing.T, dir string, to []byte) {
			next, err := os.MkdirTemp(dir, "..20")
			check(t, err)
			write(t, filepath.Join(next, "ca.pem"), to)
			check(t, os.Symlink(filepath.Base(next), filepath.Join(dir, "..tmp")))
			check(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
			_ = os.Remove(filepath.Join(dir, "ca.pem"))
			check(t, os.Symlink("..data/ca.pem", filepath.Join(dir, "ca.pem")))
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "ca.pem")
			replace(t, dir, other)
			files, err := renewed.NewTLS(path, "", "")
			check(t, err)
			if trusts(t, files, address) {
				t.Fatal("the other authority's file is not read")
			}
			replace(t, dir, right)
			if !trusts(t, files, address) {
				t.Fatal("the new file is not read")
			}
			for what, text := range map[string][]byte{"half of a file": other[:len(other)/2], "an empty file": nil} {
				replace(t, dir, text)
				if !trusts(t, files, address) {
					t.Errorf("%s breaks what works", what)
				}
			}
			check(t, os.Remove(path))
			if !trusts(t, files, address) {
				t.Error("a missing file breaks what works")
			}
			replace(t, dir, other)
			if trusts(t, files, address) {
				t.Error("a file that is there again is not read")
			}
		})
	}
}
