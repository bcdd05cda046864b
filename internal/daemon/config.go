package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt/internal/auth"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// Config is everything that the daemon may be told; bind has its flags and defaults.
type Config struct {
	Listen    string   // address
	Hosts     []string // names, beside loopback's, under which clients without authentication may address the daemon
	Store     string   // URL of the store of locks, and of jobs too unless JobsStore says otherwise
	JobsStore string   // "none" for no jobs
	Jobs      manager.Options
	KeepDays  int

	AcceptLoss bool // of what was acknowledged, in databases of SQLite

	Tokens       string // file; empty for no tokens
	TLSCert      string // files
	TLSKey       string
	ClientCA     string
	ClientScopes []auth.Scope // of certificates without an entry in the token file
	Insecure     bool         // listen beyond loopback without TLS or authentication
	Rate         float64      // requests a second of each caller; 0 for no limit

	MaxParked      int // requests that wait at the same time
	MaxStreams     int // streams of events at the same time
	MaxParkedEach  int // of one caller; 0 for half
	MaxStreamsEach int // of one caller; 0 for half
	MaxBody        int64
	MaxConnections int
	BodyTimeout    time.Duration // for a request's body to arrive, and for a part of an answer to be taken
	Shutdown       time.Duration // from the signal to the end

	LogLevel  slog.Level
	LogFormat string // "text" or "json"
}

// stateDir returns the directory where the daemon keeps what is its own.
func stateDir() (string, error) {
	if dir, _, _ := strings.Cut(os.Getenv("STATE_DIRECTORY"), ":"); dir != "" { // systemd; several are separated by colons
		return dir, nil
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "loktd"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("no place for the store: %w; say --store sqlite:PATH", err)
	}
	return filepath.Join(home, ".local", "state", "loktd"), nil
}

// complete fills in what depends on other settings and on the environment.
func (c *Config) complete() error {
	if c.Store == "" {
		dir, err := stateDir()
		if err != nil {
			return err
		}
		c.Store = "sqlite:" + filepath.Join(dir, "loktd.db")
	}
	c.Jobs.Keep = time.Duration(c.KeepDays) * 24 * time.Hour
	return nil
}

// authenticates reports whether callers must say who they are.
func (c *Config) authenticates() bool { return c.Tokens != "" || c.ClientCA != "" }

// validate reports everything that is wrong with how settings go together.
func (c *Config) validate() error {
	errs := []error{c.checkStores()}
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	host, port, err := net.SplitHostPort(c.Listen)
	if err == nil {
		_, err = net.LookupPort("tcp", port) //nolint:noctx // no name server is asked
	}
	switch {
	case err != nil:
		wrong("--listen %q is no address: give HOST:PORT", c.Listen)
	case !isLoopback(host) && !c.Insecure && (c.TLSCert == "" || !c.authenticates()):
		wrong("--listen %s is reachable from other machines: that needs TLS (--tls-cert, --tls-key) and authentication "+
			"(--tokens or --client-ca), or --insecure if something else sees to both", c.Listen)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		wrong("--tls-cert and --tls-key belong together")
	}
	if c.ClientCA != "" && c.TLSCert == "" {
		wrong("--client-ca needs TLS: give --tls-cert and --tls-key")
	}
	if err := c.Jobs.Validate(); err != nil {
		wrong("scheduler: %w", err)
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		wrong("--log-format %q is neither text nor json", c.LogFormat)
	}
	for _, f := range []struct {
		flag string
		bad  bool
	}{
		{"--max-parked", c.MaxParked < 1}, {"--max-streams", c.MaxStreams < 1}, {"--max-parked-each", c.MaxParkedEach < 0}, {"--max-streams-each", c.MaxStreamsEach < 0}, {"--max-body", c.MaxBody < 1024},
		{"--max-connections", c.MaxConnections < 1}, {"--body-timeout", c.BodyTimeout <= 0}, {"--shutdown-timeout", c.Shutdown <= 0},
		{"--rate", !(c.Rate >= 0) || math.IsInf(c.Rate, 0)}, {"--keep-days", c.KeepDays < 1},
		// For the scheduler zero stands for its default, and a zero that somebody writes does not.
		{"--capacity", c.Jobs.Total == 0}, {"--lease-ttl", c.Jobs.TTL == 0}, {"--ageing-step", c.Jobs.AgeingStep == 0}, {"--reserve-after", c.Jobs.ReserveAfter == 0},
		{"--keep-jobs", c.Jobs.KeepMost == 0},
	} {
		if f.bad {
			wrong("%s is too small", f.flag)
		}
	}
	return errors.Join(errs...)
}

// isLoopback reports whether only this machine can reach the host.
func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// logger returns the log that the config asks for, and what waits for its end. Who does not take its lines holds up nobody.
func (c *Config) logger(w io.Writer) (log *slog.Logger, flush func()) {
	handler := func(w io.Writer) slog.Handler {
		o := &slog.HandlerOptions{Level: c.LogLevel}
		if c.LogFormat == "json" {
			return slog.NewJSONHandler(w, o)
		}
		return slog.NewTextHandler(w, o)
	}
	q := &lineQueue{lines: make(chan queuedLine, 1000)}
	go q.write(w, slog.New(handler(w)))
	return slog.New(handler(q)), q.flush
}

// lineQueue is a writer of lines that nobody waits for longer than a second. Those that do not fit are dropped.
type lineQueue struct {
	lines   chan queuedLine
	pending atomic.Int64 // lines that are not written
	dropped atomic.Int64
}

type queuedLine struct {
	text    []byte
	written chan struct{} // is closed then
}

// Write returns when the line is written, or at once if an earlier one is not.
func (q *lineQueue) Write(text []byte) (int, error) {
	line := queuedLine{bytes.Clone(text), make(chan struct{})}
	alone := q.pending.Add(1) == 1
	select {
	case q.lines <- line:
	default:
		q.pending.Add(-1)
		q.dropped.Add(1)
		alone = false
	}
	if alone {
		select {
		case <-line.written:
		case <-time.After(time.Second):
		}
	}
	return len(text), nil
}

// flush waits for a second until all lines are written.
func (q *lineQueue) flush() {
	for late := time.Now().Add(time.Second); q.pending.Load() > 0 && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
}

// write writes the lines, and tells how many are missing.
func (q *lineQueue) write(to io.Writer, log *slog.Logger) {
	for line := range q.lines {
		_, _ = to.Write(line.text) // there is nobody to tell
		if n := q.dropped.Swap(0); n > 0 {
			log.Warn("lines of the log were dropped, because nobody took them", "lines", n)
		}
		q.pending.Add(-1)
		close(line.written)
	}
}
