package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/place"
)

// Config says what a handler serves, and to whom. The zero Config serves nothing.
type Config struct {
	Locks  Locks         // nil: no locks API
	Events lokt.EventLog // nil: events and audit answer 404 with the code "no_events"
	Jobs   jobs.Service  // nil: no scheduler API

	About      About          // the version and the store to tell callers of; the rest of it is filled in
	Conditions []place.Teller // asked by who may read
	Gate       Gate           // nil: everybody may do everything
	Limits     Limits
	Log        *slog.Logger // told of panics and of answers with a status of 500; nil: nobody is

	// Observe is called after each request, by the goroutine that served it. It must be quick. It may be nil.
	Observe func(Request)

	// Full says why nothing new is taken in, neither jobs nor claims of locks that nobody has or waits for. It must be quick. It may
	// be nil.
	Full func() error

	// Stop, when it ends, ends what waits: parked requests are answered with 503, or as the scheduler's contract says, and
	// streams end at once. So are requests that would wait then. It may be nil.
	Stop context.Context
}

// Locks is a lokt.Service with what a server needs whose clients lose their connections. A lokt.Manager is one.
type Locks interface {
	lokt.Service

	// Poll is Acquire, but leaves a claim in the queue when ctx ends: see lokt.Manager.
	Poll(ctx context.Context, c *lokt.Claim) (*lokt.Holder, error)
}

// Limits bound what one request may cost. Zero fields stand for the defaults.
type Limits struct {
	Body    int64 // bytes of a request's body; 1 MiB
	Parked  int   // requests that wait at the same time; 10,000
	Streams int   // open event streams; 1,000

	// The same for each caller that a Gate tells from others; half of that.
	ParkedEach  int
	StreamsEach int

	Renewals int // requests per second to which renewals of locks are spread, as far as times to live allow; 20,000

	Wait    time.Duration // the longest that one request waits, whatever it asks for; 30 s
	Request time.Duration // for reading it, for work beside its wait, and for writing a piece of its answer; 30 s
}

func (l Limits) withDefaults() Limits {
	l.Renewals = cmp.Or(l.Renewals, 20_000)
	l.Body, l.Parked, l.Streams = cmp.Or(l.Body, 1<<20), cmp.Or(l.Parked, 10_000), cmp.Or(l.Streams, 1000)
	l.Wait, l.Request = cmp.Or(l.Wait, 30*time.Second), cmp.Or(l.Request, 30*time.Second)
	return l
}

// Scope is a kind of thing that a caller may be allowed to do.
type Scope string

// The scopes. The last argument of Caller.May is the name of a lock for the first three, and a job's tag for those of
// the scheduler.
const (
	ScopeRead   Scope = "read"   // look at locks, events, jobs
	ScopeLock   Scope = "lock"   // claim, renew, release, freeze, and end one's own freeze
	ScopeForce  Scope = "force"  // end what belongs to others
	ScopeSubmit Scope = "submit" // submit and cancel jobs
	ScopeWork   Scope = "work"   // be a worker
	ScopeAdmin  Scope = "admin"  // run the service: revoke, freeze job types, clean up
)

// Scopes returns all scopes.
func Scopes() []Scope {
	return []Scope{ScopeRead, ScopeLock, ScopeForce, ScopeSubmit, ScopeWork, ScopeAdmin}
}

// Gate decides who may do what.
type Gate interface {
	// Enter returns who makes the request. An error wraps ErrUnauthenticated, or a *RateLimitedError, or is answered
	// as an internal one. With a RateLimitedError there may be a caller, too, if it is known who asks too often: then
	// requests for a job are denied, with 200, what keeps or ends a lease is done all the same, and others are answered
	// with the error.
	Enter(r *http.Request) (Caller, error)
}

// Caller is somebody whom the Gate has let in.
type Caller interface {
	// Name tells callers apart. It is kept with what the caller claims, and shown.
	Name() string

	// May reports whether the caller may do things of that scope to the lock, or to jobs with the tag. An empty lock or
	// tag asks whether there may be any.
	May(s Scope, lockOrTag string) bool
}

// Request is what Observe is told of a request that has been answered.
type Request struct {
	ID       string        // the request ID, which the answer carries in X-Request-Id
	Pattern  string        // the route, as "GET /v1/locks/{name}"; empty if there is none
	Caller   string        // who asked, if there is a Gate
	Status   int           // 499 if the client hung up before it was answered
	Duration time.Duration // until the answer was written, waiting included
	Bytes    int64         // of the answer's body
	Reason   string        // why, if the status is 500 or more: for a log, without secrets
}

// statusHungUp stands for an answer that nobody was there to read.
const statusHungUp = 499

// server is the handler.
type server struct {
	Config
	mux     *http.ServeMux
	origins *http.CrossOriginProtection
	parked  *slots // of requests that wait
	streams *slots // of open streams
	claims  claims
	places  places
	pace    *pace
	large   atomic.Int64 // bytes of large answers that are being written
	readers sync.Pool    // of *reader
}

// NewHandler returns the handler of all routes. Paths are taken as they are: nothing is redirected. Requests that a
// browser makes for a page of another origin are refused, unless they only read.
func NewHandler(c Config) http.Handler {
	c.Limits = c.Limits.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Stop == nil {
		c.Stop = context.Background()
	}
	s := &server{
		Config: c, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		parked:  newSlots("requests that wait", c.Limits.Parked, c.Limits.ParkedEach),
		streams: newSlots("streams of events", c.Limits.Streams, c.Limits.StreamsEach),
		claims:  claims{running: map[string][]*attempt{}, takenBack: map[string]bool{}},
		places:  places{asking: map[[2]string]map[string]int{}},
		pace:    newPace(c.Limits.Renewals),
	}
	s.readers.New = newReader
	for _, r := range s.routes() {
		s.mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) {
			call := w.(*refusal).call // see ServeHTTP
			call.r, call.pattern = req, r.pattern
			if err := call.serve(&r); err != nil {
				call.fail(err)
			}
		})
	}
	return s
}

// refusal is what the mux answers with where there is no route: that there is none, or for other methods only, or a
// redirection.
type refusal struct {
	call   *call
	header http.Header
	status int
}

func (f *refusal) Header() http.Header         { return f.header }
func (f *refusal) WriteHeader(status int)      { f.status = status }
func (f *refusal) Write(p []byte) (int, error) { return len(p), nil }

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	c := &call{ResponseWriter: w, s: s, r: r, id: RequestID(r)}
	w.Header()["X-Request-Id"] = []string{c.id}
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler { //nolint:errorlint,err113 // panics are compared as they are
			s.Log.Error("panic", "request_id", c.id, "route", c.pattern, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if p = http.ErrAbortHandler; c.status == 0 {
				c.fail(errInternal)
				p = nil
			}
		}
		if s.Observe != nil {
			s.Observe(Request{
				ID: c.id, Pattern: c.pattern, Caller: c.who(), Status: cmp.Or(c.status, http.StatusOK),
				Duration: time.Since(begun), Bytes: c.bytes, Reason: c.reason,
			})
		}
		if p != nil {
			panic(p)
		}
	}()
	if err := c.enter(); err != nil {
		c.fail(err)
		return
	}
	refused := &refusal{call: c, header: http.Header{}}
	s.mux.ServeHTTP(refused, r)
	switch {
	case c.pattern != "":
	case c.often != nil:
		c.fail(c.often)
	case refused.status == http.StatusMethodNotAllowed:
		allow := refused.header.Get("Allow")
		if c.scheduled() { // it answers HEAD, too, but its contract does not tell
			allow = strings.Replace(allow, "GET, HEAD", "GET", 1)
		}
		w.Header().Set("Allow", allow)
		c.fail(errMethod)
	default:
		c.fail(errNoRoute)
	}
}

// call is one request on its way through the handler, and the ResponseWriter of its answer.
type call struct {
	http.ResponseWriter
	s       *server
	r       *http.Request
	id      string             // of the request, which the answer carries
	pattern string             // of the route; empty while there is none
	ctx     context.Context    // bounds what is to be answered at once
	done    context.CancelFunc // of ctx
	caller  Caller             // nil without a Gate
	often   error              // why the caller may do nothing at the moment but keep what it has; nil if it may
	lease   string             // the lease ID that the body names
	status  int                // of the answer; 0 while nothing has been written
	bytes   int64              // of the answer's body
	reason  string             // why the status is 500 or more

	takesBody bool // and not only a query
	arrived   bool // the body has been read to its end

	in []byte // the body
}

// WriteHeader implements http.ResponseWriter.
func (c *call) WriteHeader(status int) {
	if c.status == 0 && status >= 200 {
		c.status = status
	}
	c.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (c *call) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.status = http.StatusOK
	}
	n, err := c.ResponseWriter.Write(p)
	c.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController find the connection.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// scheduled reports whether the path is one of the scheduler's API, which has answers of its own form.
func (c *call) scheduled() bool {
	return c.s.Jobs != nil && strings.HasPrefix(c.r.URL.Path, jobsPrefix+"/")
}

// enter finds out who asks.
func (c *call) enter() error {
	if err := c.s.origins.Check(c.r); err != nil {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	if c.s.Gate == nil || c.r.URL.Path == openAPIPath {
		return nil
	}
	caller, err := c.s.Gate.Enter(c.r)
	if err != nil {
		if caller == nil || !errors.Is(err, ErrRateLimited) {
			return err
		}
		c.often = err
	}
	c.caller = caller
	return nil
}

// serve answers a request for the route.
func (c *call) serve(r *route) error {
	if c.often != nil && r.rules&(keeps|denies) == 0 {
		return c.often
	}
	if r.scope != "" {
		if err := c.may(r.scope, c.r.PathValue("name")); err != nil {
			return err
		}
	}
	if c.often != nil && r.rules&denies != 0 {
		return c.tooOften()
	}
	if c.takesBody = r.rules&body != 0; c.takesBody {
		if err := c.read(r.rules); err != nil {
			return err
		}
	}
	switch is := func(prefix string) bool { return strings.HasPrefix(c.r.URL.Path, prefix) }; {
	case c.s.Locks == nil && (is("/v1/locks") || is("/v1/leases")):
		return errNoLocks
	case c.s.Events == nil && (is("/v1/audit") || is("/v1/events")):
		return ErrNoEvents
	}
	c.bound()
	defer func() { c.done() }()
	return r.serve(c)
}

// bound makes c.ctx last for what is to be answered at once.
func (c *call) bound() { c.ctx, c.done = context.WithTimeout(c.r.Context(), c.s.Limits.Request) }

// may returns an error unless the caller may do things of that scope to the lock or tag.
func (c *call) may(s Scope, lockOrTag string) error {
	if c.caller == nil || c.caller.May(s, lockOrTag) {
		return nil
	}
	if lockOrTag == "" {
		return fmt.Errorf("%w: the scope %q is missing", ErrForbidden, s)
	}
	if c.caller.May(s, "") {
		return fmt.Errorf("%w: the token may %s what begins with another prefix, and not %q", ErrForbidden, s, lockOrTag)
	}
	return fmt.Errorf("%w: the scope %q is missing for %q", ErrForbidden, s, lockOrTag)
}

// who returns the name of the request's caller, if callers are told apart.
func (c *call) who() string {
	if c.caller == nil {
		return ""
	}
	return c.caller.Name()
}

// secret returns the lease ID that the request names, which no text may show.
func (c *call) secret() string { return cmp.Or(c.lease, c.r.Header.Get(headerLease)) }

// fail answers with an error, in the form of the API that the path belongs to.
func (c *call) fail(err error) {
	if c.status != 0 {
		panic(http.ErrAbortHandler)
	}
	c.unread()
	if c.r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		c.status = statusHungUp
		panic(http.ErrAbortHandler) // to return would mean 200 to a client that is there after all
	}
	k := kindOf(err)
	if k.status >= http.StatusInternalServerError {
		c.reason = scrub(err.Error(), c.secret())
	}
	if k.status == http.StatusInternalServerError {
		c.s.Log.Error("request failed", "request_id", c.id, "route", c.pattern, "error", c.reason)
	}
	if k.status == http.StatusUnauthorized {
		c.Header().Set("WWW-Authenticate", "Bearer")
	}
	if after := k.again(err); after > 0 {
		c.Header().Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
	if c.scheduled() {
		c.failJobs(k, err)
	} else {
		c.failLocks(err)
	}
}

// RequestID returns the ID that came with the request in X-Request-Id, if it is fit for logs, or a new one.
func RequestID(r *http.Request) string {
	given := r.Header.Get("X-Request-Id")
	const fit = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_."
	if given != "" && len(given) <= 64 && strings.Trim(given, fit) == "" {
		return given
	}
	return fmt.Sprintf("%016x", rand.Uint64())
}
