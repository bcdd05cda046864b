package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/jitter"
	"github.com/lokt-dev/lokt/internal/process"
)

// ClientOptions say how to reach a server. The zero value is right for one on this host that wants no token.
type ClientOptions struct {
	// Token is sent with each request as "Authorization: Bearer". TokenSource, if set, is asked for it each time.
	Token       string
	TokenSource func() (string, error)

	// TLS configures https URLs; nil means the system's certificate authorities. TLSSource, if set, is asked for it for each
	// connection, or once if that is through a proxy.
	TLS       *tls.Config
	TLSSource func() *tls.Config

	// HTTPClient replaces the client's own. TLS and TLSSource are then not looked at. Its Timeout should be 0: it would end long waits.
	HTTPClient *http.Client

	// Attempt bounds how long one attempt at a request may take, beside what it waits on purpose; 10 s if 0. When it is
	// over, the request is sent again, over a new connection or to another server.
	Attempt time.Duration

	// Patience is how long a request goes on trying while no server can be reached; 5 s if 0, and at least
	// lokt.QueueTTL, or what it waits at most, for a claim that is in the queue. The context may end it earlier.
	Patience time.Duration

	// Look, if set, bounds how long a request that only reads, and does not wait, tries all servers for an answer to
	// begin. Patience must be less than half of it. An answer may take longer.
	Look time.Duration

	// UserAgent is sent with each request; "lokt" if empty.
	UserAgent string
}

// Client is a lokt.Service and a lokt.EventLog that asks a server. It is safe for concurrent use.
//
// A request that fails on the way is sent again, to the same server or the next, for as long as Patience and its
// context allow: all of them may be sent twice, because claimants choose their lease IDs. A claim that waits keeps its
// place in the queue while it does. What could not be asked is an error that wraps lokt.ErrUnavailable and names the
// server; so is a request to end something of which only a lost answer could have told whether it did.
//
// Of leases that others hold, the client sees the lokt.PublicID in place of the lease ID.
type Client struct {
	urls    []*url.URL
	current atomic.Uint32 // index of the server that answered last
	http    *http.Client
	o       ClientOptions
	elapsed func() time.Duration

	mu     sync.Mutex
	own    map[string]ownLease // by public ID
	tidied time.Time
	due    []*renewal // to be sent together
}

// ownLease is what a client knows about a lease that it chose the ID of.
type ownLease struct {
	id     string
	holder lokt.Holder // as last granted or renewed; zero while it waits
	ends   time.Time   // of the lease unless somebody ends it before, by this process's clock; zero if never

	operation string // of the claim that was granted
}

var (
	_ lokt.Service  = (*Client)(nil)
	_ lokt.EventLog = (*Client)(nil)
)

// New returns a client of the servers at urls, each with the scheme http or https: several, separated by commas, that
// share what they remember, of which it asks any that answers. It does not connect. The error wraps lokt.ErrInvalid.
func New(urls string, o ClientOptions) (*Client, error) {
	c := &Client{o: o, http: o.HTTPClient, elapsed: process.Elapsed(), own: map[string]ownLease{}}
	c.o.Attempt = cmp.Or(o.Attempt, 10*time.Second)
	c.o.Patience = cmp.Or(o.Patience, 5*time.Second)
	c.o.UserAgent = cmp.Or(o.UserAgent, "lokt")
	c.o.Token = strings.TrimSpace(o.Token) // a variable may end with the end of a line
	for _, text := range strings.FieldsFunc(urls, func(r rune) bool { return r == ',' || r == ' ' }) {
		u, err := url.Parse(text)
		switch {
		case err != nil:
			return nil, invalid("server: %v", errors.Unwrap(err)) // the whole error repeats the URL, and a password in it
		case u.Scheme != "http" && u.Scheme != "https":
			return nil, invalid("server %q does not begin with http:// or https://", u.Redacted())
		case u.Host == "" || u.RawQuery != "" || u.Fragment != "":
			return nil, invalid("server %q is not scheme://host:port", u.Redacted())
		}
		u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), ""
		c.urls = append(c.urls, u)
	}
	switch {
	case len(c.urls) == 0:
		return nil, invalid("no server is named")
	case strings.ContainsFunc(c.o.Token, func(r rune) bool { return r < ' ' || r > '~' }):
		return nil, invalid("the token has a character that a header may not have")
	}
	if c.http == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.MaxIdleConnsPerHost = 64
		// One request per connection at a time: to send it again takes another, and one that is dead without a word is
		// given up.
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP1(true)
		dialer := &net.Dialer{Timeout: min(c.o.Attempt, 5*time.Second), KeepAlive: 15 * time.Second}
		t.DialContext = dialer.DialContext
		if o.TLSSource != nil {
			o.TLS = o.TLSSource()
			t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				return (&tls.Dialer{NetDialer: dialer, Config: o.TLSSource()}).DialContext(ctx, network, addr)
			}
		}
		if o.TLS != nil {
			t.TLSClientConfig = o.TLS.Clone()
		}
		asIs := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		c.http = &http.Client{Transport: t, CheckRedirect: asIs}
	}
	return c, nil
}

// Elapsed implements lokt.Elapser: the time since the client was made.
func (c *Client) Elapsed() time.Duration { return c.elapsed() }

// URL returns the server that is asked next, without a password.
func (c *Client) URL() string { return c.server(c.current.Load()).Redacted() }

// HTTP returns what it asks with, for what else there is on its servers.
func (c *Client) HTTP() *http.Client { return c.http }

// Close closes connections that are not in use. The client can be used again.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

func (c *Client) server(i uint32) *url.URL { return c.urls[int(i)%len(c.urls)] }

// exchange is a request that may be sent several times.
type exchange struct {
	method string
	path   string // escaped
	query  url.Values
	header map[string]string
	body   []byte // nil for none
	jobs   bool   // it is for the scheduler
	lease  string
	once   bool // not to be sent again when it may have been carried out

	invalid error // why it cannot be sent

	// wait is how long the server may take on purpose; again, if set, is asked before each attempt for the body and
	// the wait, which may have grown shorter. The body can be written.
	wait  time.Duration
	again func() (body any, wait time.Duration)

	patience time.Duration // in place of the client's, if longer, once a server has seen the request
	most     time.Duration // how long a request that no server has seen is tried; 0: the client's patience, which is added once one has
	attempt  time.Duration // in place of the client's, if shorter; 0 if not

	anew     int                   // set: how often it was sent over a new connection because who asks was not known
	seen     bool                  // set: a server may have seen the request
	doubtful bool                  // set: an earlier attempt may have been carried out although no answer came
	sent     time.Time             // set: when the last attempt began
	last     atomic.Pointer[error] // set: why it failed, if it did
}

// looks reports whether the request only reads, and does not wait: ClientOptions.Look is for it.
func (x *exchange) looks() bool { return x.method == http.MethodGet && x.wait == 0 }

// encode returns the form of a body in the API that is asked.
func (x *exchange) encode(q any) ([]byte, error) {
	if x.jobs {
		return form.Marshal(q)
	}
	return lokt.Marshal(q)
}

// Pauses between attempts: they double, and are jittered by half.
const (
	firstPause = 50 * time.Millisecond
	mostPause  = 2 * time.Second
	waitPause  = time.Second // the same for who waits in a queue, and is passed over while away
)

// errGarbage says that what answered is no loktd. It grants nothing and ends nothing.
var errGarbage = errors.New("the answer is not one of loktd's (is a proxy in between, or the URL wrong?)")

// mostAnswer is the longest answer that is read, in bytes.
const mostAnswer = 64 << 20

var errTooLong = fmt.Errorf("%w: it is longer than %d MiB", errGarbage, mostAnswer>>20)

// do sends the request until it is answered, and has the answer read by into.
func (c *Client) do(ctx context.Context, x *exchange, into func(body io.Reader) error) error {
	var failing time.Time // since when
	var last error        // why the last attempt failed
	pause := firstPause
	first := c.current.Load()
	begun := time.Now()
	if x.looks() && c.o.Look > 0 { // each server once, and a single one twice: a connection may be dead
		x.attempt = c.o.Look / time.Duration(max(len(c.urls), 2))
	}
	for try := uint32(0); ; try++ {
		if ctx.Err() != nil {
			return ended(ctx, last)
		}
		at := first + try
		retry, after, err := c.attempt(ctx, x, at, into)
		if !retry {
			c.current.Store(at % uint32(len(c.urls))) //nolint:gosec // nobody has that many servers
			return err
		}
		if ctx.Err() != nil {
			late := errors.Is(ctx.Err(), context.DeadlineExceeded) && x.wait == 0 && x.again == nil
			if last == nil && late { // it should have been answered by then
				last = err
			}
			return ended(ctx, last)
		}
		last = err
		x.last.Store(&err)
		if x.once && x.doubtful {
			return err
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		if len(c.urls) > 1 && int(try+1)%len(c.urls) != 0 { // the next server at once
			continue
		}
		nap := max(pause/2+time.Duration(float64(pause)*jitter.Float64()), after)
		if pause = min(2*pause, mostPause); x.again != nil {
			pause = min(pause, waitPause)
		}
		left := c.o.Patience - time.Since(failing)
		switch {
		case x.seen:
			left = max(left, x.patience-time.Since(failing))
			if x.most > 0 {
				left = min(left, x.most+c.o.Patience-time.Since(begun))
			}
		case x.most > 0:
			left = min(left, x.most-time.Since(begun))
		}
		if left <= 0 || after > left {
			return c.silent(try+1, err)
		}
		select {
		case <-time.After(min(nap, left)):
		case <-ctx.Done():
			return ended(ctx, last)
		}
	}
}

// silent returns the error of a request that no server has answered. It names all that were tried.
func (c *Client) silent(tries uint32, last error) error {
	var asked []string
	for i := range min(int(tries), len(c.urls)) {
		asked = append(asked, c.urls[i].Redacted())
	}
	if len(asked) < 2 {
		return last
	}
	return fmt.Errorf("none of %s has answered; the last one: %w", strings.Join(asked, ", "), last)
}

// ended returns the cause with which ctx has ended, and with it what kept the request from being answered, if anything
// did.
func ended(ctx context.Context, why error) error {
	if why == nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), why)
}

// attempt sends the request once. It reports whether it may help to send it again, and when at the earliest.
func (c *Client) attempt(
	ctx context.Context, x *exchange, at uint32, into func(body io.Reader) error,
) (retry bool, after time.Duration, err error) {
	body, wait := x.body, x.wait
	if x.again != nil {
		var q any
		q, wait = x.again()
		body, _ = x.encode(q)
	}
	x.sent = time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := min(c.o.Attempt, cmp.Or(x.attempt, c.o.Attempt))
	watchdog := time.AfterFunc(limit+wait, func() { cancel(context.DeadlineExceeded) })
	defer watchdog.Stop()
	r, err := c.request(ctx, x, at, body)
	if err != nil {
		return false, 0, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if context.Cause(ctx) == context.DeadlineExceeded { //nolint:errorlint,err113 // the watchdog's own
			err = context.DeadlineExceeded
		}
		distrusted := notTrusted(err)
		x.doubtful = x.doubtful || !distrusted && !neverSent(err)
		x.seen = x.seen || x.doubtful
		return !distrusted || len(c.urls) > 1 || x.seen, 0, c.unreachable(at, err) // whom it has trusted before may be about to be again
	}
	defer func() { // so that its connection can be used again
		_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
		_ = resp.Body.Close()
	}()
	x.seen = true
	if resp.StatusCode < 300 {
		if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != "application/json" {
			x.doubtful = true
			return false, 0, c.unreachable(at, fmt.Errorf("%w: %s of type %q", errGarbage, resp.Status, media))
		}
		var answer io.Reader = resp.Body
		if x.looks() {
			answer = &watched{r: resp.Body, watchdog: watchdog, quiet: c.o.Attempt}
		}
		if err := into(answer); err != nil {
			if limited := (*RateLimitedError)(nil); errors.As(err, &limited) {
				return true, limited.RetryAfter, limited
			}
			x.doubtful = true
			return !errors.Is(err, errTooLong), 0, c.unreachable(at, err)
		}
		return false, 0, nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, mostAnswer)) // half an answer is none
	after, err = c.failure(x, resp, text)
	retry = errors.Is(err, ErrRateLimited)
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		x.doubtful, retry = true, true
	case http.StatusTooManyRequests:
		retry = retry || errors.Is(err, errGarbage) // of a proxy, which has passed nothing on
	case http.StatusUnauthorized: // the connection may be older than what is in the file of the certificate now
		if retry = c.o.TLSSource != nil && r.Header.Get("Authorization") == "" && x.anew < 3; retry {
			x.anew++
			c.http.CloseIdleConnections()
		}
	}
	switch {
	case errors.Is(err, errGarbage):
		x.doubtful = x.doubtful || resp.StatusCode != http.StatusTooManyRequests
		err = c.unreachable(at, fmt.Errorf("%w: %s: %.100q", err, resp.Status, text))
	case errors.Is(err, lokt.ErrUnavailable), errors.Is(err, lokt.ErrDamaged), errors.Is(err, errInternal):
		err = fmt.Errorf("%s: %w", c.server(at).Redacted(), err)
	}
	return retry, after, err
}

// retryAfter returns when an answer says to come again at the earliest: after half a minute at most, and 0 if it does
// not say so in seconds.
func retryAfter(h http.Header) time.Duration {
	seconds, _ := strconv.Atoi(h.Get("Retry-After"))
	return time.Duration(min(max(seconds, 0), 30)) * time.Second
}

// watched puts off the watchdog whenever something is read.
type watched struct {
	r        io.Reader
	watchdog *time.Timer
	quiet    time.Duration
}

func (w *watched) Read(p []byte) (int, error) {
	w.watchdog.Reset(w.quiet)
	return w.r.Read(p)
}

func (c *Client) request(ctx context.Context, x *exchange, at uint32, body []byte) (*http.Request, error) {
	u := c.server(at)
	target := u.Scheme + "://" + u.Host + u.EscapedPath() + x.path
	if len(x.query) > 0 {
		target += "?" + x.query.Encode()
	}
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, x.method, target, content)
	if err != nil {
		return nil, invalid("%v", err)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", c.o.UserAgent)
	token := c.o.Token
	if c.o.TokenSource != nil {
		if token, err = c.o.TokenSource(); err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
	}
	switch password, has := u.User.Password(); {
	case token != "":
		r.Header.Set("Authorization", "Bearer "+token)
	case has:
		r.SetBasicAuth(u.User.Username(), password)
	}
	for k, v := range x.header {
		r.Header.Set(k, v)
	}
	return r, nil
}

// unreachable wraps what went wrong with a server. It does not repeat a password in its URL.
func (c *Client) unreachable(at uint32, err error) error {
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("no answer in time")
	}
	return fmt.Errorf("%w: %s: %w", lokt.ErrUnavailable, c.server(at).Redacted(), err)
}

// neverSent reports whether an attempt failed before the server can have seen anything of it.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// notTrusted reports whether an attempt failed because what answered does not speak TLS, or has no certificate that
// counts.
func notTrusted(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(tls.RecordHeaderError)) || errors.Is(err, http.ErrSchemeMismatch)
}

// ask sends what is asked at the endpoint until it is answered, and returns the answer.
func (e endpoint[Q, A]) ask(ctx context.Context, c *Client, q *Q, path ...string) (A, error) {
	return e.send(ctx, c, e.to(q, path...))
}

// send does the same with a request to the endpoint. A check may refuse an answer.
func (e endpoint[Q, A]) send(ctx context.Context, c *Client, x *exchange, checks ...func(*A) error) (answer A, err error) {
	if x.invalid != nil {
		return answer, x.invalid
	}
	err = c.do(ctx, x, func(body io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(body, mostAnswer+1))
		answer = *new(A) // an earlier attempt may have read a part
		if len(data) > mostAnswer {
			return errTooLong
		}
		if err == nil {
			err = lokt.Unmarshal(data, &answer)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errGarbage, err)
		}
		for _, check := range checks {
			if err := check(&answer); err != nil {
				return err
			}
		}
		return nil
	})
	return answer, err
}
