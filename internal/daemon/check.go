package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/lokt-dev/lokt/internal/renewed"
	"github.com/lokt-dev/lokt/store/sqlstore"
)

// runCheck reports everything that is wrong with the configuration, as far as that can be seen without serving, and
// all damage to databases of SQLite.
func runCheck(ctx context.Context, s Streams, c *Config, _ []string) error {
	wrong := c.validate()
	errs := []error{wrong}
	if c.TLSCert != "" && c.TLSKey != "" {
		own, err := loadCertificates(c, slog.New(slog.DiscardHandler))
		if err == nil {
			err = own.expired()
		}
		errs = append(errs, err)
	}
	if c.Tokens != "" {
		_, err := newGate(c, nil)
		errs = append(errs, err)
	}
	for _, store := range []string{c.Store, c.JobsStore} {
		file, must, ok := sqlstore.File(store)
		if ok && must && !exists(file) {
			errs = append(errs, fmt.Errorf("store %s: there is no %s", store, file))
		} else if ok && exists(file) {
			errs = append(errs, sqlstore.CheckFile(ctx, file))
		}
	}
	if err := errors.Join(errs...); wrong != nil {
		return &usageError{err}
	} else if err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "loktd would listen on %s, with its store in %s\n", c.Listen, redact(c.Store))
	return nil
}

// runHealth asks the daemon at the configured address whether it is ready.
func runHealth(ctx context.Context, s Streams, c *Config, _ []string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, err := c.ask(ctx, "/readyz", "", "not ready", "application/json")
	if err != nil {
		return err
	}
	_ = answer.Body.Close()
	fmt.Fprintln(s.Out, "ready")
	return nil
}

// refused is the error of an answer other than the one that was asked for.
func refused(what string, answer *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 4096)) // what there is of it
	if strings.Contains(string(body), "HTTP request to an HTTPS server") {
		return fmt.Errorf("%s: the daemon there speaks TLS: give --tls-cert, as it has it", what)
	}
	says := "another program answers there"
	var p struct{ Detail string }
	if json.Unmarshal(body, &p) == nil && p.Detail != "" {
		says = p.Detail
	}
	if answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden {
		says += "; set LOKT_SERVER_TOKEN, or LOKT_TOKEN_FILE, to a token that may do this, or LOKT_CERT_FILE and LOKT_KEY_FILE to a certificate"
	}
	return fmt.Errorf("%s: %s: %s", what, answer.Status, says)
}

// ask sends a request to the daemon that listens, on this machine, as the config says. An answer of another media type, or other than success, is an
// error that begins with what that means.
func (c *Config) ask(ctx context.Context, path, token, otherwise, mediaType string) (*http.Response, error) {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return nil, usagef("--listen %q is no address: give HOST:PORT", c.Listen)
	}
	switch host {
	case "", "0.0.0.0":
		host = "127.0.0.1" // without a look at /etc/hosts, which containers may lack
	case "::":
		host = "::1"
	}
	scheme := "http"
	transport := &http.Transport{DisableKeepAlives: true}
	if c.TLSCert != "" {
		scheme = "https"
		if transport.TLSClientConfig, err = ownCertificateOnly(c.TLSCert); err != nil {
			return nil, err
		}
		if cert, key := os.Getenv("LOKT_CERT_FILE"), os.Getenv("LOKT_KEY_FILE"); cert != "" && key != "" { // as lokt takes them
			pair, err := renewed.KeyPair(cert, key)
			if err != nil {
				return nil, fmt.Errorf("LOKT_CERT_FILE, LOKT_KEY_FILE: %w", err)
			}
			transport.TLSClientConfig.Certificates = []tls.Certificate{pair}
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+path, nil)
	if err != nil {
		return nil, err
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if errors.Is(err, http.ErrSchemeMismatch) {
		err = errors.New("the daemon there speaks no TLS: leave --tls-cert out")
	}
	if err == nil && (answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Type") != mediaType) {
		defer answer.Body.Close()
		return nil, refused(otherwise, answer)
	}
	return answer, err
}

// ownCertificateOnly returns a client's configuration that trusts a server with the very certificate in the file,
// whatever the name by which it is reached: who asks is on the same machine and has the file.
func ownCertificateOnly(file string) (*tls.Config, error) {
	pem, err := renewed.Read(file)
	if err != nil {
		return nil, err
	}
	own := x509.NewCertPool()
	if !own.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s has no certificate in PEM: give the file that the daemon has as --tls-cert", file)
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // for the name; VerifyConnection looks at the certificate
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf := state.PeerCertificates[0]
			_, err := leaf.Verify(x509.VerifyOptions{Roots: own})
			var invalid x509.CertificateInvalidError
			switch {
			case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
				return fmt.Errorf("the daemon's certificate is valid from %s to %s: renew it; the daemon reads its files again by itself",
					leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339))
			case err != nil:
				return fmt.Errorf("the daemon there has another certificate than %s: name its own with --tls-cert, or see in its log why it has not read this one (%w)", file, err)
			}
			return nil
		},
	}, nil
}
