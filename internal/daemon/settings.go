package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/auth"
)

// bind makes every setting a flag: this is the one table of them, with their defaults. Each can also be set by the
// environment variable that variable names. The flag wins.
func (c *Config) bind(fs *pflag.FlagSet) {
	fs.StringVar(&c.Listen, "listen", "127.0.0.1:7117", "address to listen on, `HOST:PORT`; port 0 takes a free one")
	fs.Func("hosts", "`NAMES`, beside those of loopback and of --listen, under which clients may address a daemon without authentication", func(v string) error {
		c.Hosts = strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
		return nil
	})
	fs.StringVar(&c.Store, "store", "", "`URL` of the store of locks, and of jobs too: sqlite:PATH (sqlite:PATH?mode=rw if it must exist), memory:, "+
		"postgres://…, etcd://H1,H2/PREFIX (default: loktd.db in the user's state directory)")
	fs.StringVar(&c.JobsStore, "jobs-store", "", "`URL` of the store of jobs, if it is not --store; none for no scheduler")
	fs.BoolVar(&c.AcceptLoss, "accept-loss", false, "open a database of SQLite though less is there than was acknowledged; "+
		"tokens go on far above any that were given")

	fs.IntVar(&c.Jobs.Total, "capacity", 100, "`UNITS` of capacity that jobs share")
	fs.IntVar(&c.Jobs.Reserve, "reserve", 0, "`UNITS` of the capacity that are not handed out")
	fs.DurationVar(&c.Jobs.TTL, "lease-ttl", time.Minute, "`DURATION` of a job's lease after a heartbeat")
	fs.DurationVar(&c.Jobs.Grace, "heartbeat-grace", 0, "`DURATION` added to the lease's TTL")
	fs.DurationVar(&c.Jobs.AgeingStep, "ageing-step", 10*time.Minute, "`DURATION` of waiting by which a priority of jobs comes before the next")
	fs.DurationVar(&c.Jobs.ReserveAfter, "reserve-after", 2*time.Minute, "`DURATION` that a job waits before capacity, or its locks, are kept for it")
	fs.IntVar(&c.KeepDays, "keep-days", 30, "`DAYS` that ended jobs, and their events, are kept")
	fs.IntVar(&c.Jobs.KeepMost, "keep-jobs", 1_000_000, "`NUMBER` of ended jobs that are kept at most; negative for no limit")

	fs.StringVar(&c.Tokens, "tokens", "", "`FILE` of the bearer tokens that callers must have; loktd token create makes it, and it is read again when it changes")
	fs.StringVar(&c.TLSCert, "tls-cert", "", "`FILE` of the certificate chain, PEM; read again when it changes")
	fs.StringVar(&c.TLSKey, "tls-key", "", "`FILE` of its private key, PEM")
	fs.StringVar(&c.ClientCA, "client-ca", "", "`FILE` of authorities whose client certificates are accepted instead of tokens, PEM")
	c.ClientScopes = []auth.Scope{httpapi.ScopeRead, httpapi.ScopeLock, httpapi.ScopeSubmit, httpapi.ScopeWork}
	fs.Func("client-scopes", "`SCOPES` of client certificates that the token file does not name (default read,lock,submit,work)",
		func(v string) (err error) { c.ClientScopes, err = auth.ParseScopes(v); return err })
	fs.BoolVar(&c.Insecure, "insecure", false, "listen beyond loopback without TLS or authentication")
	fs.Float64Var(&c.Rate, "rate", 0, "`NUMBER` of requests a second that each caller may make, in bursts of twice that; 0 for no limit")

	fs.IntVar(&c.MaxParked, "max-parked", 10_000, "`NUMBER` of requests that may wait at the same time")
	fs.IntVar(&c.MaxStreams, "max-streams", 1000, "`NUMBER` of streams of events that may be open at the same time")
	fs.IntVar(&c.MaxParkedEach, "max-parked-each", 0, "`NUMBER` of requests of one caller that may wait; 0 for half of --max-parked")
	fs.IntVar(&c.MaxStreamsEach, "max-streams-each", 0, "`NUMBER` of streams of one caller that may be open; 0 for half of --max-streams")
	c.MaxBody = 1 << 20
	fs.Func("max-body", "`SIZE` of the largest body of a request (default 1M)", func(v string) (err error) { c.MaxBody, err = size(v); return err })
	fs.IntVar(&c.MaxConnections, "max-connections", 20_000, "`NUMBER` of connections at the same time; who comes then waits for one to end")
	fs.DurationVar(&c.BodyTimeout, "body-timeout", 30*time.Second, "`DURATION` for a request's body to arrive, and for part of an answer to be taken")
	fs.DurationVar(&c.Shutdown, "shutdown-timeout", 10*time.Second, "`DURATION` for requests in flight to be answered after SIGTERM")

	fs.TextVar(&c.LogLevel, "log-level", slog.LevelInfo, "`LEVEL`: debug, info, warn or error; debug logs every request")
	fs.StringVar(&c.LogFormat, "log-format", "text", "`FORMAT` of the log, on standard error: text or json")
	fs.VisitAll(func(f *pflag.Flag) { f.Usage += " (" + variable(f) + ")" })
}

const envPrefix = "LOKTD_"

// variable returns the environment variable of a flag: that of --lease-ttl is LOKTD_LEASE_TTL.
func variable(f *pflag.Flag) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// fromEnvironment sets flags by their variables. unknown are variables that look like those of the daemon and are none.
func fromEnvironment(fs *pflag.FlagSet, environ []string) (unknown []string, err error) {
	given := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && strings.HasPrefix(name, envPrefix) {
			given[name] = value
		}
	}
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		v := given[variable(f)]
		delete(given, variable(f))
		if v == "" {
			return
		}
		if err := f.Value.Set(v); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", variable(f), plainly(f, v, err)))
		}
	})
	for name := range given {
		unknown = append(unknown, name)
	}
	slices.Sort(unknown)
	return unknown, errors.Join(errs...)
}

// plainly says what the value of a flag should be, where err says what a parser of Go stumbled over.
func plainly(f *pflag.Flag, v string, err error) error {
	should := map[string]string{
		"bool": "neither true nor false", "int": "no whole number", "float64": "no number", "duration": "no duration: write 90s, 5m or 1h30m",
	}[f.Value.Type()]
	if f.Name == "log-level" {
		should = "none of debug, info, warn and error"
	}
	if should == "" {
		return err
	}
	return fmt.Errorf("%q is %s", v, should)
}

// flagError says what is wrong with a flag on the command line.
func flagError(err error) error {
	var value *pflag.InvalidValueError
	var name *pflag.NotExistError
	switch {
	case errors.As(err, &value):
		f := value.GetFlag()
		return usagef("--%s: %w", f.Name, plainly(f, value.GetValue(), errors.Unwrap(value)))
	case errors.As(err, &name) && name.GetSpecifiedShortnames() == "":
		return usagef("--%s is no flag: see loktd --help", name.GetSpecifiedName())
	}
	return &usageError{err}
}

// usageError is a mistake in how the program was called.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// size reads bytes, with or without a unit.
func size(v string) (int64, error) {
	digits, factor := strings.TrimSuffix(strings.TrimSuffix(v, "B"), "i"), int64(1)
	for i, unit := range []string{"K", "M", "G"} {
		if d, ok := strings.CutSuffix(digits, unit); ok {
			digits, factor = d, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q is no size: write 65536, 64K or 1M", v)
	}
	return n * factor, nil
}
