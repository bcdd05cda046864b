// Package renewed has what is in files that others replace while the program runs, as certificates are: by a rename, by a
// link that points elsewhere, or by writing into them. Halfway through, what was there before goes on.
package renewed

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// MaxFile is how many bytes a file with tokens or certificates may have.
const MaxFile = 16 << 20

// Read returns what is in a file, which may be a pipe, and has no more than MaxFile.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err == nil && len(text) > MaxFile {
		err = fmt.Errorf("%s has more than %d MiB", path, MaxFile>>20)
	}
	return text, err
}

// FirstLine returns the first line of a file, which must not be empty: a token.
func FirstLine(path string) (string, error) {
	text, err := Read(path)
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSpace(line); line == "" && err == nil {
		err = fmt.Errorf("the first line of %s is empty", path)
	}
	return line, err
}

// KeyPair reads a certificate and its key.
func KeyPair(cert, key string) (tls.Certificate, error) {
	certPEM, err1 := Read(cert)
	keyPEM, err2 := Read(key)
	if err := errors.Join(err1, err2); err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(certPEM, keyPEM)
}

// Files are files that are read together. An empty path stands for none. It is for one goroutine at a time.
type Files struct {
	Paths []string
	found []fs.FileInfo
}

// Changed reports whether other files are there than at the last call. Where one is a pipe, never: who reads that twice may wait
// for ever.
func (f *Files) Changed() (changed bool) {
	piped, found := false, make([]fs.FileInfo, len(f.Paths))
	for i, path := range f.Paths {
		is, err := os.Stat(path)
		was := fs.FileInfo(nil)
		if f.found != nil {
			was = f.found[i]
		}
		switch {
		case err != nil: // that it is not there is a change as well
			changed = changed || was != nil
			continue
		case !is.Mode().IsRegular():
			piped = true
		case was == nil || !os.SameFile(is, was) || is.Size() != was.Size() || !is.ModTime().Equal(was.ModTime()):
			changed = true
		}
		found[i] = is
	}
	f.found = found
	return changed && !piped
}

// TLS is how a client connects by what PEM files have: authorities in place of the system's, and a certificate of its own. It is
// safe for concurrent use.
type TLS struct {
	ca, cert, key string

	mu     sync.Mutex // for the fields below
	files  Files
	failed bool           // to read them
	roots  *x509.CertPool // nil for the system's
	own    tls.Certificate
}

// NewTLS reads the files, of which ca, or cert and key, may be empty.
func NewTLS(ca, cert, key string) (*TLS, error) {
	t := &TLS{ca: ca, cert: cert, key: key, files: Files{Paths: []string{ca, cert, key}}}
	t.files.Changed()
	return t, t.load()
}

// load reads what can be read.
func (t *TLS) load() error {
	var errs [2]error
	if t.ca != "" {
		pem, err := Read(t.ca)
		roots := x509.NewCertPool()
		if err == nil && !roots.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s has no certificate in PEM", t.ca)
		}
		if errs[0] = err; err == nil {
			t.roots = roots
		}
	}
	if t.cert != "" || t.key != "" {
		own, err := KeyPair(t.cert, t.key)
		if errs[1] = err; err == nil {
			t.own = own
		}
	}
	return errors.Join(errs[:]...)
}

// Config returns the configuration for a connection that is made now.
func (t *TLS) Config() *tls.Config {
	roots, _ := t.look()
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	if t.cert != "" {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // for one that is made later, too
			_, own := t.look()
			return &own, nil
		}
	}
	return c
}

func (t *TLS) look() (*x509.CertPool, tls.Certificate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files.Changed() || t.failed { // what was in the way need not be in the files
		t.failed = t.load() != nil
	}
	return t.roots, t.own
}
