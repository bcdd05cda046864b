package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Config says what a handler serves, and to whom. The zero Config serves nothing.
type Config struct {
	Locks  lokt.Service  // nil: no locks API
	Events lokt.EventLog // nil: events and audit answer 404 with the code "no_events"
	Jobs   jobs.Service  // nil: no scheduler API

	About  About // the version and the store to tell callers of; the rest of it is filled in
	Gate   Gate  // nil: everybody may do everything
	Limits Limits
	Log    *slog.Logger // told of panics and of answers with a status of 500; nil: nobody is

	// Observe is called after each request, by the goroutine that served it. It must be quick. It may be nil.
	Observe func(Request)

	// Stop, when closed, ends what waits: parked requests are answered with 503, or as the scheduler's contract says, and
	// streams end at once. So are requests that would wait then. It may be nil.
	Stop <-chan struct{}
}

// Limits bound what one request may cost. Zero fields stand for the defaults.
type Limits struct {
	Body    int64 // bytes of a request's body; 1 MiB
	Parked  int   // requests that wait at the same time; 10,000
	Streams int   // open event streams; 1,000

	// The same for each caller that a Gate tells from others; half of that.
	ParkedEach  int
	StreamsEach int

	Wait    time.Duration // the longest that one request waits, whatever it asks for; 30 s
	Request time.Duration // for reading a request, for working on it beside its wait, and for writing one piece of its answer; 30 s
}

func (l Limits) withDefaults() Limits {
	l.Body = orDefault(l.Body, 1<<20)
	l.Parked = orDefault(l.Parked, 10_000)
	l.Streams = orDefault(l.Streams, 1000)
	l.Wait = orDefault(l.Wait, 30*time.Second)
	l.Request = orDefault(l.Request, 30*time.Second)
	return l
}

func orDefault[T int | int64 | time.Duration](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

// Scope is a kind of thing that a caller may be allowed to do.
type Scope string

// The scopes. The last argument of Caller.May is the name of a lock for the first three, and a job's tag for those of the
// scheduler.
const (
	ScopeRead   Scope = "read"   // look at locks, events, jobs
	ScopeLock   Scope = "lock"   // claim, renew, release, freeze, and end one's own freeze
	ScopeForce  Scope = "force"  // end what belongs to others
	ScopeSubmit Scope = "submit" // submit and cancel jobs
	ScopeWork   Scope = "work"   // be a worker
	ScopeAdmin  Scope = "admin"  // run the service: revoke, freeze job types, clean up
)

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
	Method   string        // as in Pattern, or "other"
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
	polls   polls
	large   budget // of answers that are being written

	scheduler *jobsAPI // nil: none
	patterns  []string // of the routes that the mux has
}

// NewHandler returns the handler of all routes. Paths are taken as they are: nothing is redirected. Requests that a
// browser makes for a page of another origin are refused, unless they only read.
func NewHandler(c Config) http.Handler {
	c.Limits = c.Limits.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &server{
		Config: c, mux: http.NewServeMux(), origins: http.NewCrossOriginProtection(),
		parked:  newSlots("requests that wait", c.Limits.Parked, c.Limits.ParkedEach),
		streams: newSlots("streams of events", c.Limits.Streams, c.Limits.StreamsEach),
	}
	s.routeAbout()
	s.routeLocks()
	s.routeEvents()
	s.routeJobs()
	s.routeOpenAPI()
	return s
}

// call is one request on its way through the handler.
type call struct {
	s      *server
	w      *answer
	r      *http.Request
	id     string
	caller Caller // nil without a Gate
	often  error  // why the caller may do nothing at the moment but keep what it has; nil if it may
	lease  string // the lease ID that the body names

	arrived bool // the body has been read to its end

	answer   answer    // what w is
	idHeader [1]string // the ID, as a header has it
}

// callKey finds the call in a request's context.
type callKey struct{}

// route registers what serves a pattern of http.ServeMux. An error that serve returns before it has written anything is
// answered by fail; after that, it breaks the connection, so that the client sees that the answer is not complete.
func (s *server) route(pattern string, serve func(c *call) error) {
	s.patterns = append(s.patterns, pattern)
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(callKey{}).(*call)
		c.r = r
		c.w.pattern = r.Pattern
		if err := serve(c); err != nil {
			c.fail(err)
		}
	})
}

// fail answers with an error, in the form of the API that the path belongs to.
func (c *call) fail(err error) {
	if c.w.status == 0 {
		c.unread()
	}
	switch {
	case c.w.status != 0:
		panic(http.ErrAbortHandler)
	case c.r.Context().Err() != nil && errors.Is(err, context.Canceled):
		c.w.status = statusHungUp
		panic(http.ErrAbortHandler) // to return would mean 200 to a client that is there after all
	case strings.HasPrefix(c.r.URL.Path, jobsPrefix+"/"):
		failJobs(c, err)
	default:
		failLocks(c, err)
	}
	if c.w.status >= http.StatusInternalServerError {
		c.w.reason = scrub(err.Error(), c.secret())
	}
	if c.w.status == http.StatusInternalServerError {
		c.s.Log.Error("request failed", "request_id", c.id, "route", c.w.pattern, "error", scrub(err.Error(), c.secret()))
	}
}

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

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	c := &call{s: s, r: r, answer: answer{ResponseWriter: w}, idHeader: [1]string{RequestID(r)}}
	c.w, c.id = &c.answer, c.idHeader[0]
	w.Header()["X-Request-Id"] = c.idHeader[:]
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler { //nolint:errorlint,err113 // panics are compared as they are
			s.Log.Error("panic", "request_id", c.id, "route", c.w.pattern, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			if c.w.status == 0 {
				c.fail(errInternal)
				p = nil
			} else {
				p = http.ErrAbortHandler
			}
		}
		s.observe(c, time.Since(begun))
		if p != nil {
			panic(p)
		}
	}()
	if err := s.serve(c); err != nil {
		c.fail(err)
	}
}

// errInternal stands for a panic.
var errInternal = errors.New("internal error")

// serve finds out who asks for what.
func (s *server) serve(c *call) error {
	scheduled := s.scheduler != nil && strings.HasPrefix(c.r.URL.Path, jobsPrefix+"/")
	if !scheduled && !cleanPath(c.r.URL.EscapedPath()) { // the mux would redirect
		return errNoRoute
	}
	if err := s.origins.Check(c.r); err != nil {
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	if s.Gate != nil && c.r.URL.Path != openAPIPath {
		caller, err := s.Gate.Enter(c.r)
		if err != nil {
			if caller == nil || !errors.Is(err, ErrRateLimited) {
				return err
			}
			c.often = err
		}
		c.caller = caller
		c.w.caller = caller.Name()
	}
	if scheduled {
		return s.scheduler.serve(c)
	}
	h, pattern := s.mux.Handler(c.r)
	if c.often != nil && !keeps(pattern) {
		return c.often
	}
	if pattern == "" {
		var probe answer
		probe.ResponseWriter = headerOnly{}
		h.ServeHTTP(&probe, c.r)
		if probe.status == http.StatusMethodNotAllowed {
			c.w.Header().Set("Allow", probe.Header().Get("Allow"))
			return errMethod
		}
		return errNoRoute
	}
	s.mux.ServeHTTP(c.w, c.r.WithContext(context.WithValue(c.r.Context(), callKey{}, c)))
	return nil
}

// headerOnly is a ResponseWriter that keeps the header and throws away the rest.
type headerOnly http.Header

func (h headerOnly) Header() http.Header       { return http.Header(h) }
func (headerOnly) Write(p []byte) (int, error) { return len(p), nil }
func (headerOnly) WriteHeader(int)             {}

// cleanPath reports whether a path has no empty, "." or ".." elements, and is absolute.
func cleanPath(path string) bool {
	if !strings.HasPrefix(path, "/") {
		return false
	}
	elements := strings.Split(path[1:], "/")
	for i, e := range elements {
		if e == "." || e == ".." || e == "" && i < len(elements)-1 {
			return false
		}
	}
	return true
}

// observe tells Observe how the request went.
func (s *server) observe(c *call, took time.Duration) {
	if s.Observe == nil {
		return
	}
	method, _, routed := strings.Cut(c.w.pattern, " ")
	if !routed {
		method = "other"
	}
	o := Request{ID: c.id, Method: method, Pattern: c.w.pattern, Status: c.w.status, Duration: took, Bytes: c.w.bytes, Caller: c.w.caller, Reason: c.w.reason}
	if o.Status == 0 {
		o.Status = http.StatusOK
	}
	s.Observe(o)
}

// RequestID returns the ID that came with the request in X-Request-Id, if it is fit for logs, or a new one.
func RequestID(r *http.Request) string {
	given := r.Header.Get("X-Request-Id")
	fit := given != "" && len(given) <= 64
	for i := range len(given) {
		b := given[i]
		fit = fit && (b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == '.')
	}
	if fit {
		return given
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}

// answer is a ResponseWriter that remembers what was answered.
type answer struct {
	http.ResponseWriter
	pattern string
	caller  string
	reason  string
	status  int // 0 while nothing has been written
	bytes   int64
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController find the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
