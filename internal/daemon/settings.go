package daemon

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lokt-dev/lokt/internal/auth"
)

// setting is one thing that can be set by a flag or by an environment variable, which is named after the flag: --lease-ttl
// is LOKTD_LEASE_TTL. The flag wins.
type setting struct {
	name   string // of the flag
	what   string // what kind of value it takes, for people; empty for one that is on or off
	normal string // the default
	help   string
	set    func(c *Config, value string) error
}

const envPrefix = "LOKTD_"

// env returns the name of the setting's variable.
func (s *setting) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// usageError is a mistake in how the program was called.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// Setters for kinds of values.

func text(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error { *field(c) = v; return nil }
}

func list(field func(*Config) *[]string) func(*Config, string) error {
	return func(c *Config, v string) error { *field(c) = splitList(v); return nil }
}

func duration(field func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil {
			return fmt.Errorf("%q is no duration: write 90s, 5m or 1h30m", v)
		}
		*field(c) = d
		return nil
	}
}

func number(field func(*Config) *int) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil {
			return fmt.Errorf("%q is no whole number", v)
		}
		*field(c) = n
		return nil
	}
}

// size reads bytes, with or without a unit.
func size(field func(*Config) *int64) func(*Config, string) error {
	return func(c *Config, v string) error {
		digits, factor := strings.TrimSuffix(strings.TrimSuffix(v, "B"), "i"), int64(1)
		for i, unit := range []string{"K", "M", "G"} {
			if d, ok := strings.CutSuffix(digits, unit); ok {
				digits, factor = d, 1<<(10*(i+1))
			}
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/factor {
			return fmt.Errorf("%q is no size: write 65536, 64K or 1M", v)
		}
		*field(c) = n * factor
		return nil
	}
}

func splitList(v string) []string {
	return slices.DeleteFunc(strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' }), func(s string) bool { return s == "" })
}

// settings returns everything that can be set.
func settings() []setting {
	return []setting{
		{"listen", "HOST:PORT", "127.0.0.1:7117", "address to listen on; port 0 takes a free one", text(func(c *Config) *string { return &c.Listen })},
		{"hosts", "NAMES", "", "names, beside those of loopback and of --listen, under which clients may address a daemon without authentication", list(func(c *Config) *[]string { return &c.Hosts })},
		{"store", "URL", "", "where locks and jobs are kept: sqlite:PATH (sqlite:PATH?mode=rw if it must exist), memory:, postgres://…, etcd://H1,H2/PREFIX (default: loktd.db in the user's state directory)", text(func(c *Config) *string { return &c.Store })},
		{"jobs-store", "URL", "", "where jobs are kept, if not in --store; none for no scheduler", text(func(c *Config) *string { return &c.JobsStore })},

		{"capacity", "UNITS", "100", "units of capacity that jobs share", number(func(c *Config) *int { return &c.Jobs.Total })},
		{"reserve", "UNITS", "0", "units of the capacity that are not handed out", number(func(c *Config) *int { return &c.Jobs.Reserve })},
		{"lease-ttl", "DURATION", "60s", "how long a job's lease lasts after a heartbeat", duration(func(c *Config) *time.Duration { return &c.Jobs.TTL })},
		{"heartbeat-grace", "DURATION", "0s", "added to the lease's TTL", duration(func(c *Config) *time.Duration { return &c.Jobs.Grace })},
		{"ageing-step", "DURATION", "10m", "by how much waiting a priority of jobs comes before the next", duration(func(c *Config) *time.Duration { return &c.Jobs.AgeingStep })},
		{"reserve-after", "DURATION", "2m", "how long a job that does not fit waits before capacity is kept for it", duration(func(c *Config) *time.Duration { return &c.Jobs.ReserveAfter })},
		{"keep-days", "DAYS", "30", "how long ended jobs and events are kept", number(func(c *Config) *int { return &c.KeepDays })},
		{"keep-jobs", "N", "1000000", "how many ended jobs are kept at most; negative for no limit", number(func(c *Config) *int { return &c.Jobs.KeepMost })},

		{"tokens", "FILE", "", "bearer tokens that callers must have; made by loktd token create, and read again when it changes", text(func(c *Config) *string { return &c.Tokens })},
		{"tls-cert", "FILE", "", "certificate chain, PEM; read again on SIGHUP", text(func(c *Config) *string { return &c.TLSCert })},
		{"tls-key", "FILE", "", "its private key, PEM", text(func(c *Config) *string { return &c.TLSKey })},
		{"client-ca", "FILE", "", "authorities whose client certificates are accepted instead of tokens, PEM", text(func(c *Config) *string { return &c.ClientCA })},
		{"client-scopes", "SCOPES", "read,lock,submit,work", "what holders of client certificates may do that the token file does not name", func(c *Config, v string) (err error) {
			c.ClientScopes, err = auth.ParseScopes(v)
			return err
		}},
		{"insecure", "", "false", "listen beyond loopback without TLS or authentication", func(c *Config, v string) (err error) {
			if c.Insecure, err = strconv.ParseBool(v); err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			return nil
		}},
		{"rate", "N", "0", "requests a second that each caller may make, in bursts of twice that; 0 for no limit", func(c *Config, v string) (err error) {
			if c.Rate, err = strconv.ParseFloat(v, 64); err != nil || math.IsNaN(c.Rate) || math.IsInf(c.Rate, 0) {
				return fmt.Errorf("%q is no number", v)
			}
			return nil
		}},

		{"max-parked", "N", "10000", "requests that may wait at the same time", number(func(c *Config) *int { return &c.MaxParked })},
		{"max-streams", "N", "1000", "streams of events that may be open at the same time", number(func(c *Config) *int { return &c.MaxStreams })},
		{"max-parked-each", "N", "0", "requests of one caller that may wait at the same time; 0 for half of --max-parked", number(func(c *Config) *int { return &c.MaxParkedEach })},
		{"max-streams-each", "N", "0", "streams of one caller that may be open at the same time; 0 for half of --max-streams", number(func(c *Config) *int { return &c.MaxStreamsEach })},
		{"max-body", "SIZE", "1M", "largest body of a request", size(func(c *Config) *int64 { return &c.MaxBody })},
		{"max-connections", "N", "20000", "connections at the same time; beyond, idle ones are closed", number(func(c *Config) *int { return &c.MaxConnections })},
		{"body-timeout", "DURATION", "30s", "for a request's body to arrive, and for part of an answer to be taken", duration(func(c *Config) *time.Duration { return &c.BodyTimeout })},
		{"shutdown-timeout", "DURATION", "10s", "for requests in flight to be answered after SIGTERM", duration(func(c *Config) *time.Duration { return &c.Shutdown })},

		{"log-level", "LEVEL", "info", "debug, info, warn or error; debug logs every request", func(c *Config, v string) error {
			if err := c.LogLevel.UnmarshalText([]byte(v)); err != nil {
				return fmt.Errorf("%q is none of debug, info, warn and error", v)
			}
			return nil
		}},
		{"log-format", "FORMAT", "text", "text or json, on standard error", text(func(c *Config) *string { return &c.LogFormat })},
	}
}

// parse reads defaults, the environment and arguments into a config, and returns what is left of the arguments: flags may
// stand before and after them. extra binds the flags of a command of its own. unknown are variables that look as if they
// were meant for the daemon and are not. The error is flag.ErrHelp if help is asked for.
func parse(args []string, environ []string, extra func(*flag.FlagSet)) (c *Config, rest, unknown []string, err error) {
	c = &Config{}
	fs := flag.NewFlagSet("loktd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	given := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, envPrefix) {
			given[name] = value
		}
	}
	getenv := func(name string) string {
		for _, e := range environ {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	}
	var fromEnv []error
	for _, s := range settings() {
		if s.normal != "" {
			if err := s.set(c, s.normal); err != nil {
				return nil, nil, nil, fmt.Errorf("default of --%s: %w", s.name, err)
			}
		}
		if v := given[s.env()]; v != "" {
			if err := s.set(c, v); err != nil {
				fromEnv = append(fromEnv, fmt.Errorf("%s: %w", s.env(), err))
			}
		}
		delete(given, s.env())
		if s.what == "" {
			fs.BoolFunc(s.name, s.help, func(v string) error { return s.set(c, v) })
		} else {
			fs.Func(s.name, s.help, func(v string) error { return s.set(c, v) })
		}
	}
	if extra != nil {
		extra(fs)
	}
	for {
		if err := fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, nil, nil, err
			}
			if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
				return nil, nil, nil, usagef("--%s is no flag: see loktd --help", name)
			}
			return nil, nil, nil, &usageError{err}
		}
		if fs.NArg() == 0 {
			break
		}
		rest = append(rest, fs.Arg(0))
		args = fs.Args()[1:]
	}
	for name := range given {
		unknown = append(unknown, name)
	}
	slices.Sort(unknown)
	if err := errors.Join(fromEnv...); err != nil {
		return nil, nil, nil, &usageError{err}
	}
	return c, rest, unknown, c.complete(getenv)
}

// logger returns the log that the config asks for.
func (c *Config) logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
