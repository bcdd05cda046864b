package dashboard

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/jobs"
)

// Config says what a dashboard shows, and to whom.
type Config struct {
	Locks  lokt.Service
	Events lokt.EventLog // nil: there is no history
	Jobs   jobs.Service  // nil: there are no jobs

	// Enter returns who makes the request. An error wraps ErrUnauthenticated if the person is to log in, ErrTooOften if
	// too much is asked. Nil: everybody may do everything.
	Enter func(r *http.Request) (Caller, error)

	URL     string // of the server, for command lines
	About   string // the version and the store, for the foot of each page
	TLS     bool   // cookies are for TLS only
	Streams int    // the most pages that follow what happens; 0 stands for 1,000

	StreamsEach int // the most of these of one person, if people are told apart; 0 stands for half

	Undo time.Duration // how long an action on many jobs can be undone before it begins; 0 stands for 30 s

	Log  *slog.Logger    // told of each action, and of who took it; nil: nobody is
	Stop context.Context // ends what follows; nil never does
}

// Caller is somebody who was let in.
type Caller interface {
	Name() string // for the audit log

	// May reports whether the caller may do things of that scope to the lock or to jobs with the tag. An empty name asks
	// whether there may be any.
	May(scope Scope, name string) bool
}

// Scope is a kind of thing that a caller may do, under the names of the API's tokens.
type Scope string

// The scopes that a person needs.
const (
	Read   Scope = "read"
	Lock   Scope = "lock"   // freeze, and end one's own freeze
	Force  Scope = "force"  // end what belongs to others
	Submit Scope = "submit" // submit and cancel jobs
	Admin  Scope = "admin"  // revoke, freeze types of jobs
)

// The errors that pages tell apart, beside those of locks and jobs.
var (
	ErrUnauthenticated = errors.New("not logged in")
	ErrTooOften        = errors.New("too many requests: wait a moment")
	errForbidden       = errors.New("your token does not allow this")
	errNoPage          = errors.New("there is no such page")
	errMethod          = errors.New("this is not a method of the page")
)

// Dashboard serves the pages.
type Dashboard struct {
	Config
	mux    *http.ServeMux
	guard  *http.CrossOriginProtection
	pages  *template.Template
	live   *live
	board  board
	waits  history
	runs   runs
	cached cache
}

//go:embed templates assets
var files embed.FS

// New returns a dashboard.
func New(c Config) *Dashboard {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Stop == nil {
		c.Stop = context.Background()
	}
	c.Streams, c.Undo = cmp.Or(c.Streams, 1000), cmp.Or(c.Undo, undoFor)
	c.StreamsEach = cmp.Or(c.StreamsEach, (c.Streams+1)/2)
	d := &Dashboard{Config: c, mux: http.NewServeMux(), guard: http.NewCrossOriginProtection()}
	d.pages = template.Must(template.New("").Funcs(functions()).ParseFS(files, "templates/*.html"))
	d.live = newLive(d)
	d.runs.all = map[string]*run{}
	d.cached.pages = map[string]cachedPage{}

	d.screen("/{$}", "overview", d.overview)
	d.screen("/locks/{name}", "lock", d.lock)
	d.screen("/audit", "audit", d.audit)
	d.action("/locks/{name}/unlock", d.unlock)
	d.action("/locks/{name}/freeze", d.freeze)
	d.action("/locks/{name}/unfreeze", d.unfreeze)
	d.action("/locks/{name}/ask", d.ask)
	if c.Jobs != nil {
		d.screen("/jobs", "jobs", d.jobs)
		d.screen("/jobs/{id}", "job", d.job)
		d.screen("/workers", "workers", d.workers)
		d.screen("/failures", "failures", d.failures)
		d.screen("/bulk", "bulk", d.bulk)
		d.screen("/runs/{id}", "run", d.showRun)
		d.action("/jobs/{id}/cancel", d.cancel)
		d.action("/jobs/{id}/retry", d.retry)
		d.action("/jobs/{id}/revoke", d.revoke)
		d.action("/jobs/types/freeze", d.freezeType)
		d.action("/jobs/types/unfreeze", d.unfreezeType)
		d.action("/bulk", d.startRun)
		d.action("/runs/{id}/undo", d.undoRun)
	}
	d.mux.HandleFunc("GET /live", d.live.serve)
	d.mux.HandleFunc("GET /login", d.login)
	d.mux.HandleFunc("POST /login", d.enter)
	d.mux.HandleFunc("POST /logout", d.logout)
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		panic(err) // it is part of the program
	}
	static := http.StripPrefix("/assets/", http.FileServerFS(assets))
	d.mux.HandleFunc("GET /assets/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=3600")
		static.ServeHTTP(w, r)
	})
	return d
}

// Owns reports whether the path is one of the dashboard's.
func (d *Dashboard) Owns(path string) bool {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "", "locks", "audit", "jobs", "workers", "failures", "bulk", "runs", "live", "login", "logout", "assets":
		return true
	}
	return false
}

// policy lets a page load what the dashboard serves, and nothing else from anywhere.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	h.Set("Vary", "Accept, Cookie, Authorization")
	if err := d.guard.Check(r); err != nil {
		d.fail(w, &visit{Dashboard: d, r: r}, fmt.Errorf("%w: a page of another site asks", errForbidden))
		return
	}
	if _, pattern := d.mux.Handler(r); pattern == "" {
		err := errNoPage
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			other := &http.Request{Method: method, URL: r.URL, Host: r.Host}
			if _, pattern := d.mux.Handler(other); pattern != "" && r.Method != http.MethodGet && r.Method != http.MethodHead {
				h.Add("Allow", method)
				err = errMethod
			}
		}
		d.fail(w, &visit{Dashboard: d, r: r}, err)
		return
	}
	d.mux.ServeHTTP(w, r)
}

// visit is one request of one person.
type visit struct {
	*Dashboard
	r      *http.Request
	caller Caller // nil if people are not told apart
}

// Who returns the name of the person, or nothing if people are not told apart.
func (v *visit) Who() string {
	if v.caller == nil {
		return ""
	}
	return v.caller.Name()
}

// May reports whether the person may do things of that scope to the lock or to jobs with the tag.
func (v *visit) May(scope Scope, name string) bool {
	return v.caller == nil || v.caller.May(scope, name)
}

// need returns an error unless the person may do things of that scope to all the names.
func (v *visit) need(scope Scope, names ...string) error {
	for _, name := range names {
		if !v.May(scope, name) {
			return fmt.Errorf("%w: it needs the scope %q for %q", errForbidden, scope, name)
		}
	}
	if !v.May(scope, "") {
		return fmt.Errorf("%w: it needs the scope %q", errForbidden, scope)
	}
	return nil
}

// owner is the person as the audit log names who did something.
func (v *visit) owner() lokt.Owner {
	if who := v.Who(); who != "" {
		return lokt.Owner{ID: who + "/dashboard", AnySession: true}
	}
	return lokt.Owner{ID: "dashboard", AnySession: true}
}

// page is what a template shows. Body is also the JSON twin.
type page struct {
	Title  string
	Line   string // the command that tells the same
	Of     string // the lock that it is about
	Notice string
	Body   any

	*visit
	Screen  string
	Now     time.Time
	Refused bool // of the login page: what was given is no token
}

// Nav are the screens that have a place in the navigation.
func (p *page) Nav() []link {
	all := []link{{"Locks", "/", p.Screen == "overview" || p.Screen == "lock"}}
	if p.Jobs != nil {
		all = append(all, link{"Jobs", "/jobs", p.Screen == "jobs" || p.Screen == "job"},
			link{"Workers", "/workers", p.Screen == "workers"}, link{"Failures", "/failures", p.Screen == "failures"})
	}
	return append(all, link{"Audit", "/audit", p.Screen == "audit"})
}

// Command is the line to type for the command.
func (p *page) Command() string {
	line, of := p.Line, ""
	if strings.HasPrefix(p.Of, "-") { // it would be taken for a flag
		of = " -- " + p.Of
	} else if p.Of != "" {
		line += " " + p.Of
	}
	if p.URL != "" {
		line += " --server " + p.URL
	}
	return line + of
}

type link struct {
	Text, URL string
	Here      bool
}

// Path is where the page is, to come back to.
func (p *page) Path() string { return p.r.URL.RequestURI() }

// visit returns who makes the request, or has answered it.
func (d *Dashboard) visit(w http.ResponseWriter, r *http.Request) *visit {
	v := &visit{Dashboard: d, r: r}
	if d.Enter == nil {
		return v
	}
	var err error
	if v.caller, err = d.Enter(withCookie(r)); err == nil {
		err = v.need(Read)
	}
	switch {
	case err == nil:
		return v
	case errors.Is(err, ErrUnauthenticated) && !wantsJSON(r) && r.Method == http.MethodGet:
		http.Redirect(w, r, "/login?next="+template.URLQueryEscaper(r.URL.RequestURI()), http.StatusSeeOther)
	default:
		v.caller = nobody{}
		d.fail(w, v, err)
	}
	return nil
}

// nobody is somebody who was not let in, for the page that says so.
type nobody struct{}

func (nobody) Name() string           { return "" }
func (nobody) May(Scope, string) bool { return false }

// screen serves a page.
func (d *Dashboard) screen(path, name string, show func(v *visit) (*page, error)) {
	d.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		v := d.visit(w, r)
		if v == nil {
			return
		}
		create := func() ([]byte, error) {
			p, err := show(v)
			if err != nil {
				return nil, err
			}
			p.visit, p.Screen, p.Now = v, name, time.Now()
			if wantsJSON(r) {
				return lokt.Marshal(p.Body)
			}
			return d.render(p)
		}
		// Two tokens may have one name, and other rights.
		key := fmt.Sprintf("%t %q %q %s", wantsJSON(r), v.Who(), withCookie(r).Header.Get("Authorization"), r.URL.RequestURI())
		if name == "bulk" { // what is acted on is counted now
			d.cached.forget(key)
		}
		text, err := d.cached.get(key, create)
		if err != nil {
			d.fail(w, v, err)
			return
		}
		write(w, r, http.StatusOK, text)
	})
}

// action serves what a form sends, and shows the page that do returns then.
func (d *Dashboard) action(path string, do func(v *visit) (next string, err error)) {
	d.mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		v := d.visit(w, r)
		if v == nil {
			return
		}
		sent := r.Body
		r.Body = http.MaxBytesReader(w, sent, 2<<20)
		err := r.ParseForm()
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(30 * time.Second))
			_, _ = io.CopyN(io.Discard, sent, 128<<20) // so that who is still sending hears the answer
		}
		if err != nil {
			err = fmt.Errorf("%w: %w", lokt.ErrInvalid, err)
		}
		var next string
		if err == nil {
			next, err = do(v)
		}
		d.Log.Info("dashboard", "action", r.URL.Path, "who", cmp.Or(v.Who(), "anybody"), "from", r.RemoteAddr, "err", err)
		d.cached.clear()
		switch {
		case err != nil:
			d.fail(w, v, err)
		case wantsJSON(r):
			text, _ := lokt.Marshal(done{true, next}) // two plain values
			write(w, r, http.StatusOK, text)
		default:
			http.Redirect(w, r, next, http.StatusSeeOther)
		}
	})
}

// done is the answer to programs whose action was carried out.
type done struct {
	OK   bool   `json:"ok"`
	Next string `json:"next"` // where to see what came of it
}

// render returns the page as HTML.
func (d *Dashboard) render(p *page) ([]byte, error) {
	var out bytes.Buffer
	err := d.pages.ExecuteTemplate(&out, p.Screen+".html", p)
	return out.Bytes(), err
}

func wantsJSON(r *http.Request) bool {
	accept := r.Header.Get("Accept")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}

func write(w http.ResponseWriter, r *http.Request, status int, text []byte) {
	mediaType := "text/html; charset=utf-8"
	if wantsJSON(r) {
		mediaType = "application/json"
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(status)
	_, _ = w.Write(text) // if it cannot be written nobody is there to read it
}

// problem is the body of a page that says what went wrong.
type problem struct {
	Status int    `json:"status"`
	Error  string `json:"error"`
}

// fail answers with an error.
func (d *Dashboard) fail(w http.ResponseWriter, v *visit, err error) {
	status, tooLarge := http.StatusInternalServerError, (*http.MaxBytesError)(nil)
	for _, known := range []struct {
		err    error
		status int
	}{
		{errNoPage, http.StatusNotFound}, {errMethod, http.StatusMethodNotAllowed}, {ErrUnauthenticated, http.StatusUnauthorized},
		{ErrTooOften, http.StatusTooManyRequests}, {errForbidden, http.StatusForbidden},
		{lokt.ErrInvalid, http.StatusUnprocessableEntity}, {lokt.ErrNotFound, http.StatusConflict},
		{lokt.ErrNotOwner, http.StatusConflict}, {lokt.ErrHeld, http.StatusConflict}, {lokt.ErrFrozen, http.StatusConflict}, {lokt.ErrDamaged, http.StatusConflict},
		{jobs.ErrJobNotFound, http.StatusNotFound},
		{jobs.ErrLeaseNotFound, http.StatusConflict}, {jobs.ErrConflict, http.StatusConflict}, {lokt.ErrUnavailable, http.StatusServiceUnavailable},
		{context.Canceled, http.StatusServiceUnavailable},
	} {
		if errors.Is(err, known.err) {
			status = known.status
			break
		}
	}
	if errors.As(err, &tooLarge) {
		status = http.StatusRequestEntityTooLarge
	}
	body := problem{status, err.Error()}
	if status == http.StatusInternalServerError {
		d.Log.Error("dashboard", "path", v.r.URL.Path, "err", err)
		body.Error = "something went wrong that was not expected: the server's log says what"
	}
	p := &page{Title: http.StatusText(status), Body: body, visit: v, Screen: "error", Now: time.Now()}
	text, bad := lokt.Marshal(body)
	if !wantsJSON(v.r) {
		text, bad = d.render(p)
	}
	if bad != nil {
		d.Log.Error("dashboard", "path", v.r.URL.Path, "err", bad)
	}
	write(w, v.r, status, text)
}

// freshFor is for how long a page that was made for a token is shown to the same token again: many open pages cost as
// much as one.
const freshFor = 500 * time.Millisecond

type cache struct {
	mu    sync.Mutex
	pages map[string]cachedPage
	round int
}

type cachedPage struct {
	at   time.Time
	text []byte
}

// get returns what was made for the key a moment ago, or creates it.
func (c *cache) get(key string, create func() ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	p, round := c.pages[key], c.round
	c.mu.Unlock()
	if time.Since(p.at) < freshFor {
		return p.text, nil
	}
	p.at = time.Now()
	var err error
	if p.text, err = create(); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pages) >= 100 {
		clear(c.pages)
	}
	if round == c.round { // nothing was changed by an action meanwhile
		c.pages[key] = p
	}
	return p.text, nil
}

func (c *cache) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pages, key)
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.pages)
	c.round++
}
