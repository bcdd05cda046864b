package httpapi

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// jobsPrefix is where the scheduler's routes are.
const jobsPrefix = "/api/system/scheduler"

// jobsAPI serves the scheduler's routes.
type jobsAPI struct {
	jobs    jobs.Service
	busy    func() int                         // how busy the machine is, from 0 to 10
	routes  map[jobsPath]map[string]*jobsRoute // by path and method
	parking parking
	calls   sync.Pool
}

// jobsRoute is one method on one path.
type jobsRoute struct {
	method  string
	path    string // below the prefix, with the name of the ID in braces if there is one
	scope   Scope
	body    bodyRule
	waits   bool                  // it may wait: it ends in time by itself, or with its client
	denies  bool                  // it is answered with a denial where others are with an error
	keeps   bool                  // it keeps a lease, or ends it: it is answered however often its caller asks
	answer  func(*jobsCall) error // appends the answer to the call's out
	pattern string                // method and whole path, for logs and metrics
}

// bodyRule says whether a route reads a body.
type bodyRule int

const (
	bodyNone bodyRule = iota
	bodyOptional
	bodyNeeded
)

// jobsPath is a path below the prefix, but for the ID in it.
type jobsPath struct {
	first, last string // what stands before and behind the ID; all of it in first if there is none
	id          bool
}

// jobsRoutes returns all routes.
func jobsRoutes() []jobsRoute {
	return []jobsRoute{
		{method: "POST", path: "/jobs", scope: ScopeSubmit, body: bodyNeeded, answer: (*jobsCall).submit},
		{method: "GET", path: "/jobs", scope: ScopeRead, answer: (*jobsCall).list},
		{method: "GET", path: "/jobs/{job_id}", scope: ScopeRead, answer: (*jobsCall).get},
		{method: "POST", path: "/jobs/{job_id}/cancel", scope: ScopeSubmit, body: bodyOptional, answer: (*jobsCall).cancel},
		{method: "POST", path: "/leases/request", scope: ScopeWork, body: bodyNeeded, waits: true, denies: true, answer: (*jobsCall).ask},
		{method: "POST", path: "/leases/heartbeat", scope: ScopeWork, body: bodyNeeded, keeps: true, answer: (*jobsCall).beatAll},
		{method: "POST", path: "/leases/{lease_id}/heartbeat", scope: ScopeWork, body: bodyNeeded, waits: true, keeps: true, answer: (*jobsCall).beat},
		{method: "POST", path: "/leases/{lease_id}/complete", scope: ScopeWork, body: bodyNeeded, keeps: true, answer: (*jobsCall).complete},
		{method: "POST", path: "/leases/{lease_id}/report", scope: ScopeWork, body: bodyNeeded, answer: (*jobsCall).report},
		{method: "POST", path: "/leases/{lease_id}/revoke", scope: ScopeAdmin, body: bodyOptional, answer: (*jobsCall).revoke},
		{method: "GET", path: "/status", scope: ScopeRead, answer: (*jobsCall).status},
		{method: "GET", path: "/workers", scope: ScopeRead, answer: (*jobsCall).workers},
		{method: "GET", path: "/history/stats", scope: ScopeRead, answer: (*jobsCall).stats},
		{method: "GET", path: "/history/decisions", scope: ScopeRead, answer: (*jobsCall).decisions},
		{method: "POST", path: "/history/cleanup", scope: ScopeAdmin, answer: (*jobsCall).cleanup},
		{method: "POST", path: "/freeze", scope: ScopeAdmin, body: bodyOptional, answer: (*jobsCall).freeze},
		{method: "POST", path: "/unfreeze", scope: ScopeAdmin, body: bodyOptional, answer: (*jobsCall).unfreeze},
	}
}

// routeJobs makes the server serve the scheduler, if it has one.
func (s *server) routeJobs() {
	if s.Jobs == nil {
		return
	}
	a := &jobsAPI{jobs: s.Jobs, busy: busyRating, routes: map[jobsPath]map[string]*jobsRoute{}, parking: parking{stop: s.Stop}}
	a.calls.New = func() any { return new(jobsCall) }
	s.scheduler = a
	for _, route := range jobsRoutes() {
		route.pattern = route.method + " " + jobsPrefix + route.path
		at := jobsPath{first: route.path}
		if before, rest, ok := strings.Cut(route.path, "/{"); ok {
			_, behind, _ := strings.Cut(rest, "}")
			at = jobsPath{first: before, last: behind, id: true}
		}
		if a.routes[at] == nil {
			a.routes[at] = map[string]*jobsRoute{}
		}
		a.routes[at][route.method] = &route
	}
}

// find returns the routes on a path, by method, and the ID in the path.
func (a *jobsAPI) find(u *url.URL) (map[string]*jobsRoute, string) {
	path, escaped := u.Path, u.RawPath != ""
	if escaped {
		path = u.RawPath
	}
	path, ok := strings.CutPrefix(path, jobsPrefix)
	if !ok {
		return nil, ""
	}
	if m := a.routes[jobsPath{first: path}]; m != nil {
		return m, ""
	}
	slash := strings.IndexByte(path[min(1, len(path)):], '/') + 1
	if slash == 0 {
		return nil, ""
	}
	first, id, last := path[:slash], path[slash+1:], ""
	if i := strings.IndexByte(id, '/'); i >= 0 {
		id, last = id[:i], id[i:]
	}
	if escaped {
		var err error
		if id, err = url.PathUnescape(id); err != nil {
			return nil, ""
		}
	}
	if id == "" {
		return nil, ""
	}
	return a.routes[jobsPath{first, last, true}], id
}

// serve answers a request whose path begins with the prefix. Its paths need no cleaning and no mux.
func (a *jobsAPI) serve(c *call) error {
	methods, id := a.find(c.r.URL)
	method := c.r.Method
	if method == http.MethodHead { // the server keeps the body of the answer back
		method = http.MethodGet
	}
	route := methods[method]
	if c.often != nil && (route == nil || !route.denies && !route.keeps) {
		return c.often
	}
	if methods == nil {
		return errNoRoute
	}
	if route == nil {
		c.w.Header().Set("Allow", allowed(methods))
		return errMethod
	}
	c.w.pattern = route.pattern
	if err := c.may(route.scope, ""); err != nil {
		return err
	}
	j := a.calls.Get().(*jobsCall)
	defer a.release(j)
	j.call, j.api, j.pathID, j.ctx = c, a, id, c.r.Context()
	if c.often != nil && route.denies {
		j.out = appendGrant(j.out[:0], &jobs.Grant{Denied: tooOften(c.often)})
		j.send(http.StatusOK)
		return nil
	}
	if !route.waits {
		var done context.CancelFunc
		j.ctx, done = c.brief()
		defer done()
	}
	if err := j.read(route.body); err != nil {
		return err
	}
	if err := route.answer(j); err != nil {
		if route.body == bodyNone {
			return inQuery{err}
		}
		return err
	}
	j.send(http.StatusOK)
	return nil
}

// inQuery is an error about a request without a body.
type inQuery struct{ error }

func (e inQuery) Unwrap() error { return e.error }

func allowed(methods map[string]*jobsRoute) string {
	var all []string
	for m := range methods {
		all = append(all, m)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// jobsCall is a request to the scheduler. Its buffers are used again for later ones, so nothing may keep parts of them.
type jobsCall struct {
	*call
	api    *jobsAPI
	pathID string // in the path
	ctx    context.Context
	in     []byte // the body
	out    []byte // the answer
}

// keptBuffer is the largest buffer that is used again.
const keptBuffer = 64 << 10

func (a *jobsAPI) release(j *jobsCall) {
	in, out := j.in[:0], j.out[:0]
	if cap(in) > keptBuffer {
		in = nil
	}
	if cap(out) > keptBuffer {
		out = nil
	}
	*j = jobsCall{in: in, out: out}
	a.calls.Put(j)
}

// read reads the body.
func (c *jobsCall) read(rule bodyRule) error {
	if rule == bodyNone {
		return nil
	}
	if !jsonMedia(c.r.Header) {
		return errMediaType
	}
	c.bodyDeadline()
	most := c.s.Limits.Body
	if c.r.ContentLength <= most {
		var err error
		if c.in, err = readMost(c.r.Body, c.in[:0], most+1); err != nil {
			_ = c.bodyLost(err)
			return &jobs.InvalidError{Problems: []jobs.Problem{{Type: "json_invalid", Msg: "the body could not be read to its end"}}}
		}
	}
	if c.r.ContentLength > most || int64(len(c.in)) > most {
		_, _ = io.CopyN(io.Discard, c.r.Body, 32*most) // so that who is still sending hears the answer
		return errBodyTooLarge
	}
	c.bodyArrived()
	if rule == bodyOptional && len(c.in) == 0 {
		c.in = append(c.in, "{}"...)
	}
	return nil
}

// readMost appends what can be read to b, until that has so many bytes.
func readMost(r io.Reader, b []byte, most int64) ([]byte, error) {
	if cap(b) == 0 {
		b = make([]byte, 0, 512)
	}
	for int64(len(b)) < most {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// jsonMedia reports whether a body is said to be JSON, or nothing is said of it.
func jsonMedia(h http.Header) bool {
	if e := h.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return false
	}
	said := h.Get("Content-Type")
	if said == "application/json" || said == "" {
		return true
	}
	media, _, err := mime.ParseMediaType(said)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return false
	}
	return media == "application/json" || strings.HasPrefix(media, "application/") && strings.HasSuffix(media, "+json")
}

// send answers with what was appended to out.
func (c *jobsCall) send(status int) {
	h := c.w.Header()
	h["Content-Type"] = jsonContent
	if len(c.out) > 2000 { // net/http counts short ones itself
		h.Set("Content-Length", strconv.Itoa(len(c.out)))
		c.writeDeadline()
	}
	if status != http.StatusOK {
		c.w.WriteHeader(status)
	}
	_, _ = c.w.Write(c.out)
}

// jsonContent is a header's value that need not be made anew for each answer.
var jsonContent = []string{"application/json"}

// reasonHeader says more than the code: of a lease that was not found, where it is known, and of what is not allowed.
const reasonHeader = "Lokt-Reason"

// failJobs answers with an error of the scheduler's API.
func failJobs(c *call, err error) {
	status, code := jobsError(err)
	h := c.w.Header()
	h["Content-Type"] = jsonContent
	var limited *RateLimitedError
	switch {
	case status == http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case errors.As(err, &limited):
		h.Set("Retry-After", strconv.FormatInt(max(int64((limited.RetryAfter+time.Second-1)/time.Second), 1), 10))
	case status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	case errors.Is(err, jobs.ErrRevoked):
		h.Set(reasonHeader, "revoked")
	case status == http.StatusForbidden && errors.Is(err, ErrForbidden):
		h.Set(reasonHeader, strings.TrimPrefix(err.Error(), ErrForbidden.Error()+": "))
	}
	body := append(appendString([]byte(`{"detail":`), code), '}')
	if status == http.StatusUnprocessableEntity {
		body = appendProblems(nil, err)
	}
	if len(body) > 2000 {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	c.w.WriteHeader(status)
	_, _ = c.w.Write(body)
}

// jobsError returns what an error is on the scheduler's wire.
func jobsError(err error) (status int, code string) {
	switch code := jobs.Code(err); code {
	case "job_not_found", "lease_not_found":
		return http.StatusNotFound, code
	case "worker_mismatch":
		return http.StatusForbidden, code
	case "idempotency_conflict":
		return http.StatusConflict, code
	case "invalid":
		return http.StatusUnprocessableEntity, code
	}
	if errors.Is(err, errNoRoute) {
		return http.StatusNotFound, "not_found"
	}
	k := kindOf(err)
	return k.status, k.code
}

// mostProblems bounds how many problems of a body are told.
const mostProblems = 1000

// appendProblems appends what is wrong with a request.
func appendProblems(b []byte, err error) []byte {
	where := "body"
	if errors.As(err, &inQuery{}) {
		where = "query"
	}
	all := []jobs.Problem{{Type: "value_error", Msg: err.Error()}}
	var wrong *jobs.InvalidError
	if errors.As(err, &wrong) {
		all = wrong.Problems
	}
	b = append(b, `{"detail":[`...)
	for i, p := range all[:min(len(all), mostProblems)] {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"type":`...)
		b = appendString(b, p.Type)
		b = append(b, `,"loc":[`...)
		b = appendString(b, where)
		for _, l := range p.Loc {
			b = append(b, ',')
			switch l := l.(type) {
			case int:
				b = strconv.AppendInt(b, int64(l), 10)
			case string:
				b = appendString(b, l)
			}
		}
		b = append(b, `],"msg":`...)
		b = append(appendString(b, p.Msg), '}')
	}
	return append(b, "]}"...)
}

// plausible reports whether a job could have the ID: stores need not cope with others.
func plausible(id string) bool {
	return len(id) <= jobs.MaxIDLen && lokt.ValidateName(id) == nil
}
