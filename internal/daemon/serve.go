package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/auth"
	"github.com/lokt-dev/lokt/internal/machine"
	"github.com/lokt-dev/lokt/internal/terraform"
	"github.com/lokt-dev/lokt/internal/version"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/place"
)

// daemon is a running loktd.
type daemon struct {
	c      *Config
	log    *slog.Logger
	stores *stores
	locks  *lokt.Manager
	jobs   *manager.Manager // nil for no scheduler
	gate   *auth.Gate
	tls    *certificates // nil without TLS
	conns  atomic.Int64  // that are open
	meter  *meter
	url    string

	stopping atomic.Bool
	waits    context.Context    // ends when requests are no longer to wait
	stop     context.CancelFunc // ends it
	failures *rate.Limiter      // of lines in the log: when the store fails, so does every request
	memory   uint64             // bytes, that it may use; 0 if that is not known
	full     atomic.Bool        // most of it is in use
	copying  sync.Mutex         // held while a backup is made and sent

	probing sync.Mutex // for what the store answered a moment ago, so that who asks for that often does not ask it often
	probed  time.Time
	trouble error
}

// serve runs the daemon until ctx ends, whose cause is logged, and reads files again on each hangup. ready is called
// with the URL when requests are being answered.
func serve(ctx context.Context, c *Config, log *slog.Logger, hangup <-chan os.Signal, ready func(url string)) (err error) {
	d := &daemon{c: c, log: log, meter: newMeter(), failures: rate.NewLimiter(10, 10)}
	d.bound()
	d.collected(time.Now())
	d.waits, d.stop = context.WithCancel(context.Background())
	if c.TLSCert != "" {
		if d.tls, err = loadCertificates(c, log); err != nil {
			return err
		}
	}
	if d.gate, err = newGate(c, log); err != nil {
		return err
	}
	listener, err := d.open(ctx)
	switch {
	case listener == nil && ctx.Err() != nil:
		log.Info("stopped before the store was open", "reason", context.Cause(ctx))
		return nil
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	server := d.server()
	failed := make(chan error, 1)
	listener = netutil.LimitListener(listener, mostConnections(c, log))
	go func() {
		if d.tls != nil {
			failed <- server.ServeTLS(listener, "", "")
		} else {
			failed <- server.Serve(listener)
		}
	}()
	background, end := context.WithCancel(ctx)
	defer end()
	go watchdog(background, d.alive)
	go d.sweep(background)
	if err := notify("READY=1\nSTATUS=Listening on " + d.url); err != nil {
		log.Warn("service manager was not told", "err", err)
	}
	log.Info("listening", "url", d.url, "version", version.String(), "store", redact(c.Store), "authentication", c.authenticates(), "tls", d.tls != nil, "pid", os.Getpid())
	if c.Insecure && !c.authenticates() {
		log.Warn("everybody who can reach this address may do everything")
	}
	ready(d.url)
	for {
		select {
		case err := <-failed:
			return fmt.Errorf("serve: %w", err)
		case <-hangup:
			d.reload()
			continue
		case <-ctx.Done():
			log.Info("stopping", "reason", context.Cause(ctx))
		case <-d.stores.failed:
			log.Error("the store cannot be relied on any more: stopping, so that it is opened anew by the next process")
		}
		d.shutdown(context.WithoutCancel(ctx), server)
		return nil // closing the store says why it failed
	}
}

// collected follows the memory after a collection that began at that time. It lets as much garbage lie as is in use before it is collected,
// and 32 MiB more while that was done a moment ago: with little in use it would be done every few hundred requests, which takes a
// tenth of the processor time of a heartbeat, and a third of that of a batch of a hundred.
func (d *daemon) collected(last time.Time) {
	if d.stopping.Load() {
		return
	}
	inUse, _ := heap()
	if os.Getenv("GOGC")+os.Getenv("GOMEMLIMIT") == "" {
		seconds := max(1, uint64(time.Since(last).Seconds()))               // the longer ago it was, the less it costs
		debug.SetGCPercent(100 + int(100*(32<<20)/(inUse*seconds*seconds))) //nolint:gosec // 900 at most
	}
	most := d.memory / 5 * 3
	if d.full.Load() {
		most = d.memory / 2
	}
	if full := d.memory > 0 && inUse > most; full != d.full.Swap(full) {
		say := map[bool]string{true: "memory is nearly full: new jobs and locks are refused", false: "memory has room again"}
		d.log.Warn(say[full], "used", inUse, "of", d.memory)
	}
	runtime.AddCleanup(new([64]byte), d.collected, time.Now())
}

// bound finds out how much memory there is, so that garbage is collected in time where it is short.
func (d *daemon) bound() {
	limit := debug.SetMemoryLimit(-1)
	if d.memory = uint64(limit); limit == math.MaxInt64 {
		d.memory = uint64((machine.Machine{}).Memory()) // 0 if that is not known
		if d.memory > 0 {
			debug.SetMemoryLimit(int64(d.memory / 10 * 9)) //nolint:gosec // as above
		}
	}
}

// errMemory is told to who wants something new.
var errMemory = fmt.Errorf("%w: the memory of loktd is nearly full: new jobs and locks have to wait until some have ended", lokt.ErrUnavailable)

func (d *daemon) noRoom() error {
	if d.full.Load() {
		return errMemory
	}
	return nil
}

// heap returns how many bytes were no garbage at the last collection, or a few if there was none, and how many there are.
func heap() (inUse, all uint64) {
	m := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(m)
	return max(m[0].Value.Uint64(), 4<<20), m[1].Value.Uint64() + m[2].Value.Uint64()
}

// spareFiles is how many files are kept for other things than connections.
const spareFiles = 100

// mostConnections returns how many connections there may be: no more than there may be files, because then nobody could
// be let in any more, not even by closing the connection of somebody who is idle.
func mostConnections(c *Config, log *slog.Logger) int {
	limit := fileLimit()
	room := max(limit-spareFiles, limit/2)
	if limit == 0 || c.MaxConnections <= room {
		return c.MaxConnections
	}
	log.Warn("fewer connections than --max-connections, because of the limit on open files", "connections", room, "files", limit)
	return room
}

// open takes the address and opens the stores. The address comes first, because who is turned away by a store is told
// it; but if both are taken, it is the store that says more about why.
func (d *daemon) open(ctx context.Context) (_ net.Listener, err error) {
	listener, taken := (&net.ListenConfig{}).Listen(ctx, "tcp", d.c.Listen)
	if taken != nil {
		taken = fmt.Errorf("cannot listen on %s: %w", d.c.Listen, taken)
		if errors.Is(taken, syscall.EADDRINUSE) {
			taken = fmt.Errorf("%w: another program, maybe another loktd, has this address; --listen chooses another", taken)
		}
	} else {
		scheme := "http://"
		if d.tls != nil {
			scheme = "https://"
		}
		d.url = scheme + listener.Addr().String()
	}
	if d.stores, err = openStores(ctx, d.c, d.url, d.log, d.meter.database); err != nil {
		if listener != nil {
			_ = listener.Close() // nobody was answered
		}
		return nil, err
	}
	if taken != nil {
		return nil, errors.Join(taken, d.stores.Close())
	}
	if err = d.assemble(ctx); err != nil {
		_ = listener.Close() // nobody was answered
		return nil, errors.Join(err, d.close())
	}
	return listener, nil
}

// assemble puts services over the stores.
func (d *daemon) assemble(ctx context.Context) (err error) {
	if err := d.meter.start(d); err != nil {
		return err
	}
	d.locks = lokt.NewManager(d.meter.locks(d.stores.locks))
	if d.stores.jobs == nil {
		return nil
	}
	o := d.c.Jobs
	o.Locks, o.OneStore, o.MaxParked = d.locks, d.stores.one, d.c.MaxParked
	if d.jobs, err = manager.Open(ctx, d.meter.jobs(d.stores.jobs), o); err != nil {
		return fmt.Errorf("open the scheduler: %w", err)
	}
	has, err := d.jobs.Status(ctx)
	d.log.Info("opened the scheduler", "jobs", has.Queue.Sum()+has.ActiveLeases)
	return err
}

// server returns what answers requests.
func (d *daemon) server() *http.Server {
	kind, _, _ := strings.Cut(d.c.Store, ":") // the rest may be a secret
	config := httpapi.Config{
		About: httpapi.About{Version: version.String(), Store: kind}, Conditions: append(d.stores.places, place.Ask(d.conditions)),
		Locks: d.locks, Events: d.stores.events, Log: d.log, Observe: d.observe, Stop: d.waits, Full: d.noRoom,
		Limits: httpapi.Limits{
			Body: d.c.MaxBody, Parked: d.c.MaxParked, Streams: d.c.MaxStreams, ParkedEach: d.c.MaxParkedEach, StreamsEach: d.c.MaxStreamsEach,
			Request: d.c.BodyTimeout,
		},
	}
	if d.jobs != nil {
		config.Jobs = d.jobs
	}
	if d.c.authenticates() || d.c.Rate > 0 {
		config.Gate = d.gate
	}
	s := &http.Server{
		Handler:           d.route(terraform.Handler(httpapi.NewHandler(config))),
		ReadHeaderTimeout: min(headerTimeout, d.c.BodyTimeout), IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		HTTP2:     &http.HTTP2Config{SendPingTimeout: idleTimeout / 4, PingTimeout: headerTimeout}, // clients that are gone hold no places
		ConnState: d.follow,
		ErrorLog:  log.New(complaints{d.log}, "", 0),
	}
	if d.tls != nil {
		s.TLSConfig = d.tls.config()
	}
	return s
}

// complaints logs what an http.Server complains about: of clients that cannot speak HTTP or TLS only if every request
// is logged.
type complaints struct{ log *slog.Logger }

func (c complaints) Write(p []byte) (int, error) {
	level := slog.LevelDebug
	if bytes.Contains(p, []byte("panic")) || bytes.Contains(p, []byte("Accept error")) {
		level = slog.LevelError
	}
	c.log.Log(context.Background(), level, "http", "complaint", string(bytes.TrimSpace(p)))
	return len(p), nil
}

// observe counts a request, and logs it.
func (d *daemon) observe(r httpapi.Request) {
	d.meter.request(r)
	level := slog.LevelDebug
	if r.Status >= http.StatusInternalServerError && d.failures.Allow() {
		level = slog.LevelWarn
	}
	if !d.log.Enabled(context.Background(), level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("request_id", r.ID), slog.String("route", cmp.Or(r.Pattern, "none")),
		slog.String("caller", r.Caller), slog.Int("status", r.Status), slog.Duration("took", r.Duration), slog.Int64("bytes", r.Bytes),
	}
	if r.Reason != "" {
		attrs = append(attrs, slog.String("reason", r.Reason))
	}
	d.log.LogAttrs(context.Background(), level, "request", attrs...)
}

// route serves what is the daemon's own and hands the rest to the API.
func (d *daemon) route(api http.Handler) http.Handler {
	host, _, _ := net.SplitHostPort(d.c.Listen)
	names, sites, pages := append([]string{host}, d.c.Hosts...), http.NewCrossOriginProtection(), d.pages()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		own, why := path == "/healthz" || path == "/readyz", ""
		switch {
		case own || d.c.authenticates():
		case !auth.Ours(r, names):
			why = "the daemon is not known under this name; see --hosts"
		case sites.Check(&http.Request{Method: http.MethodPost, URL: r.URL, Host: r.Host, Header: r.Header}) != nil: // a backup is no small thing
			why = "a page of another site asks"
		}
		if own || why != "" || path == "/metrics" || path == backupPath {
			w.Header().Set("X-Request-Id", httpapi.RequestID(r))
		}
		switch {
		case own:
			d.health(w, r)
		case why != "":
			problem(w, http.StatusForbidden, "forbidden", why)
		case path == backupPath:
			d.backup(w, r)
		case path == "/metrics":
			d.metrics(w, r)
		case pages.Owns(path):
			pages.ServeHTTP(w, r)
		default:
			api.ServeHTTP(w, r)
		}
	})
}

// reload reads again what may have changed on disk.
func (d *daemon) reload() {
	_ = notify("RELOADING=1") // told best it can
	err := d.gate.Reload()
	if d.tls != nil {
		err = errors.Join(err, d.tls.reload())
	}
	if err != nil {
		d.log.Error("certificate or token file cannot be read, it stays as it was", "err", err)
	} else {
		d.log.Info("reloaded")
	}
	_ = notify("READY=1")
}

// shutdown stops accepting, has those who wait answered at once, and gives the rest some time.
func (d *daemon) shutdown(ctx context.Context, server *http.Server) {
	d.stopping.Store(true)
	_ = notify("STOPPING=1\nSTATUS=Answering requests in flight")
	ctx, cancel := context.WithTimeout(ctx, d.c.Shutdown)
	defer cancel()
	server.SetKeepAlivesEnabled(false)
	d.stop()
	if d.jobs != nil {
		if err := d.jobs.Drain(ctx); err != nil {
			d.log.Warn("scheduler was not drained", "err", err)
		}
	}
	if err := server.Shutdown(ctx); err != nil {
		d.log.Warn("some requests were not answered in time", "err", err)
		_ = server.Close() // they had their time
	}
}

// close ends the services and closes the stores.
func (d *daemon) close() error {
	var err error
	if d.jobs != nil {
		err = d.jobs.Close()
	}
	if d.stores != nil {
		err = errors.Join(err, d.stores.Close())
	}
	if err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	d.log.Info("stopped")
	return nil
}

// newGate returns the gate that the config asks for.
func newGate(c *Config, log *slog.Logger) (*auth.Gate, error) {
	return auth.NewGate(auth.Options{
		File: c.Tokens, Certificates: c.ClientCA != "", CertScopes: c.ClientScopes, Rate: c.Rate, Log: log,
	})
}

// Bounds on clients that are slow, or say nothing: with netutil.LimitListener, who comes when there are as many
// connections as there may be waits for one of these to end.
const (
	headerTimeout = 10 * time.Second // for a header to arrive; Config.BodyTimeout if that is less
	idleTimeout   = 30 * time.Second // between two requests
	maxHeader     = 16 << 10
)

// follow counts connections, as an http.Server's ConnState.
func (d *daemon) follow(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		d.conns.Add(1)
	case http.StateClosed, http.StateHijacked:
		d.conns.Add(-1)
	}
}

// sweep forgets what has expired and gives back memory that nobody needs, until ctx ends: every two seconds, but so that it
// takes at most a fiftieth of the time, because it looks at all locks; soon after it has forgotten many.
func (d *daemon) sweep(ctx context.Context) {
	for pause, last := time.Duration(0), (debug.GCStats{}); ; debug.ReadGCStats(&last) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		n, err := d.locks.Sweep(ctx)
		if err != nil && ctx.Err() == nil && d.failures.Allow() {
			d.log.Warn("expired locks cannot be forgotten", "err", err)
		}
		if inUse, all := heap(); (all > inUse*5/4 || d.full.Load()) && time.Since(last.LastGC) > 4*time.Second { // little is asked for
			debug.FreeOSMemory()
		}
		if pause = max(2*time.Second, 50*time.Since(begun)); n > 1000 {
			pause = min(pause, 10*time.Second)
		}
	}
}
