package lane_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/lane"
)

// site is a server with a lane, and one without.
type site struct {
	*testing.T
	lane    *lane.Listener
	simple  string // the address of the one with
	server  *http.Server
	log     bytes.Buffer // of a connection, to be read once it is known to be closed
	mu      sync.Mutex
	states  map[http.ConnState]int
	waiting int // requests
}

const patience = 2 * time.Minute

func newSite(t *testing.T, h http.Handler, change func(*lane.Options)) *site {
	t.Helper()
	return newSiteOn(t, listen(t), listen(t), h, change)
}

func newSiteOn(t *testing.T, simple, plain net.Listener, h http.Handler, change func(*lane.Options)) *site {
	t.Helper()
	s := &site{T: t, states: map[http.ConnState]int{}}
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Lane", strconv.FormatBool(isSimple(w)))
		h.ServeHTTP(w, r)
	})
	o := lane.Options{
		Handler: counted, Takes: func(path string) bool { return !strings.HasPrefix(path, "/stream") },
		ConnState: func(_ net.Conn, state http.ConnState) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.states[state]++
		},
		Begin: func(net.Conn) func() {
			s.count(1)
			return func() { s.count(-1) }
		},
		First: patience, Idle: patience, Part: patience, Log: slog.New(slog.NewTextHandler(&s.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	s.lane = lane.Listen(simple, o)
	quiet := log.New(io.Discard, "", 0)
	s.server = &http.Server{Handler: counted, ReadHeaderTimeout: patience, ErrorLog: quiet}
	other := &http.Server{Handler: counted, ReadHeaderTimeout: patience, ErrorLog: quiet}
	s.simple = s.lane.Addr().String()
	go func() { _ = s.server.Serve(s.lane) }()
	go func() { _ = other.Serve(plain) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_ = s.lane.Shutdown(ctx)
		_ = s.server.Close()
		_ = other.Close()
	})
	return s
}

// isSimple reports whether the writer is the lane's.
func isSimple(w http.ResponseWriter) bool { return strings.Contains(fmt.Sprintf("%T", w), "lane.") }

func (s *site) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting += n
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type client struct {
	net.Conn
	t  *testing.T
	in *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &client{c, t, bufio.NewReader(c)}
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
}

// receipt is what an answer is to its client, but for when it was made.
type receipt struct {
	status int
	header http.Header
	body   string
	close  bool
}

func (c *client) receive() (receipt, error) {
	a, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return receipt{}, err
	}
	b, err := io.ReadAll(a.Body)
	_ = a.Body.Close()
	if _, ok := a.Header["Date"]; !ok && a.StatusCode != http.StatusBadRequest { // net/http dates no answer to what is no HTTP
		err = errors.Join(err, errors.New("no date"))
	}
	delete(a.Header, "Date")
	delete(a.Header, "Content-Length") // or none, if the answer comes in chunks
	return receipt{a.StatusCode, a.Header, string(b), a.Close}, err
}

func (c *client) must() receipt {
	c.t.Helper()
	r, err := c.receive()
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// echo answers with what it was asked, as the path says.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	h := w.Header()
	h.Del("Lane") // the same from both
	told := fmt.Sprintf("%s %s %s %v %s %v %v %d %q %v", r.Method, r.RequestURI, r.URL.Path, r.URL.Query(), r.Host, r.Header, r.Proto, r.ContentLength, body, err)
	switch r.URL.Path {
	case "/none":
		w.WriteHeader(http.StatusNoContent)
		return
	case "/silent":
		return
	case "/typed":
		h.Set("Content-Type", "application/json")
		h.Set("X-Lines", "a\r\nb: c")
		h.Add("X-Two", "1")
		h.Add("X-Two", "2")
		w.WriteHeader(http.StatusConflict)
		w.WriteHeader(http.StatusOK)
	case "/large":
		told = strings.Repeat(told, 20_000/len(told)+1)
		h.Set("Content-Length", strconv.Itoa(len(told)))
	case "/last":
		h.Set("Connection", "close")
	case "/abort":
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(w, told)
}

// Whatever comes is answered as net/http alone would answer it: the bytes of requests of many kinds, whole and damaged, one
// after another, and cut into pieces anywhere.
func TestAnswersAreThoseOfNetHTTP(t *testing.T) {
	simple, plain := &recorded{Listener: listen(t)}, &recorded{Listener: listen(t)}
	newSiteOn(t, simple, plain, http.HandlerFunc(echo), nil)
	random := rand.New(rand.NewPCG(1, 2))
	paths := []string{"/a", "/a/b", "/none", "/silent", "/typed", "/a?b=c&d=%2Fe+f", "/large", "/last", "/abort", "/stream/x", "/a%2Fb", "/a?b", "/none?b=;", "/a?%zz&b", "/a??", "//a", "/a/../b", "*"}
	methods := []string{"POST", "POST", "POST", "GET", "PUT", "DELETE", "PATCH", "BREW"}
	fields := []string{
		"Accept: */*", "user-agent: x", "Authorization: Bearer a b", "X-Request-Id: 1", "X-Other: 1", "Connection: keep-alive",
		"Connection: close", "Accept:", "Accept: é", "Cookie: a", "Expect: 100-continue", "Host: i", "Content-Length: 1", "Accept : 1", " folded",
	}
	one := func() string {
		method, path := methods[random.IntN(len(methods))], paths[random.IntN(len(paths))]
		if random.IntN(3) > 0 {
			path = paths[random.IntN(6)]
		}
		head := method + " " + path + " HTTP/1.1\r\nHost: h\r\n"
		for range random.IntN(3) {
			n := 6
			if random.IntN(6) == 0 {
				n = len(fields)
			}
			head += fields[random.IntN(n)] + "\r\n"
		}
		body := strings.Repeat("b", []int{0, 0, 1, 10, 5000, 70_000}[random.IntN(6)])
		switch {
		case method == "GET" || random.IntN(8) == 0:
			return head + "\r\n"
		case random.IntN(8) == 0:
			return head + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body)+1, body+"b")
		}
		return head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	for round := range 300 {
		var all string
		for range 1 + random.IntN(4) {
			all += one()
		}
		if random.IntN(4) == 0 { // damaged
			at := random.IntN(len(all))
			all = all[:at] + string(rune(random.IntN(256))) + all[at+random.IntN(2):]
		}
		var cuts []int
		for range random.IntN(4) {
			cuts = append(cuts, random.IntN(len(all)))
		}
		with, without := exchange(t, simple, all, cuts), exchange(t, plain, all, nil)
		if !reflect.DeepEqual(with, without) {
			t.Fatalf("round %d: %.400q, cut at %v\nis answered with\n%.700s\nand by net/http with\n%.700s", round, all, cuts, fmt.Sprintf("%+v", with), fmt.Sprintf("%+v", without))
		}
	}
}

// recorded is a listener that keeps what is written to its connections: a client that sends more than is read may not get it all.
type recorded struct {
	net.Listener
	conns sync.Map // of *recording, by the client's address
}

type recording struct {
	net.Conn
	mu     sync.Mutex
	said   bytes.Buffer
	once   sync.Once
	closed chan struct{}
}

func (l *recorded) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	r := &recording{Conn: c, closed: make(chan struct{})}
	l.conns.Store(c.RemoteAddr().String(), r)
	return r, nil
}

func (r *recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	r.said.Write(p)
	r.mu.Unlock()
	_, _ = r.Conn.Write(p)
	return len(p), nil // also if the client is gone
}

func (r *recording) CloseWrite() error { return r.Conn.(*net.TCPConn).CloseWrite() }

func (r *recording) Close() error {
	r.once.Do(func() { close(r.closed) })
	return r.Conn.Close()
}

// exchange sends bytes, in pieces, and the end of them, and returns what was answered.
func exchange(t *testing.T, l *recorded, all string, cuts []int) (answers []receipt) {
	t.Helper()
	c := dial(t, l.Addr().String())
	go func() { _, _ = io.Copy(io.Discard, c) }()
	sent := 0
	for _, cut := range append(cuts, len(all)) {
		if cut > sent {
			_, _ = io.WriteString(c, all[sent:cut]) // who answers may not read to the end
			time.Sleep(time.Millisecond)
			sent = cut
		}
	}
	_ = c.Conn.(*net.TCPConn).CloseWrite()
	var r *recording
	for r == nil {
		if v, ok := l.conns.Load(c.LocalAddr().String()); ok {
			r = v.(*recording)
		}
	}
	select {
	case <-r.closed:
	case <-time.After(patience):
		t.Fatalf("after %.400q the connection is not closed", all)
	}
	c.in = bufio.NewReader(&r.said)
	for {
		a, err := c.receive()
		if err != nil {
			return answers
		}
		answers = append(answers, a)
	}
}

func TestSimpleRequestsAreAnsweredByTheLane(t *testing.T) {
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s", r.URL.Path, b)
	}), nil)
	c := dial(t, s.simple)
	for i, step := range []struct {
		send, body string
		simple     bool
	}{
		{post("/a", "1"), "/a 1", true},
		{post("/b", strings.Repeat("2", 60_000)), "/b " + strings.Repeat("2", 60_000), true},
		{"GET /c HTTP/1.1\r\nHost: h\r\n\r\n", "/c ", true},
		{post("/d", strings.Repeat("3", 70_000)), "/d " + strings.Repeat("3", 70_000), false},
		{post("/e", "4"), "/e 4", false}, // the connection stays with the http.Server
	} {
		c.send(step.send)
		if a := c.must(); a.status != http.StatusOK || a.body != step.body || a.header.Get("Lane") != strconv.FormatBool(step.simple) {
			t.Errorf("step %d: %d %v %.100s", i, a.status, a.header, a.body)
		}
	}
	if s.mu.Lock(); s.states[http.StateNew] != 1 || s.states[http.StateHijacked] != 1 || s.waiting != 0 {
		t.Errorf("states %v, %d requests", s.states, s.waiting)
	}
	s.mu.Unlock()
	c = dial(t, s.simple)
	c.send("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
	if a := c.must(); a.header.Get("Lane") != "false" {
		t.Errorf("what the lane does not take: %+v", a)
	}
	c = dial(t, s.simple) // header and body come apart, and slowly
	whole := post("/f", "12345")
	for i, piece := range []string{whole[:10], whole[10 : len(whole)-5], whole[len(whole)-5:]} {
		c.send(piece)
		if i < 2 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	if a := c.must(); a.body != "/f 12345" {
		t.Errorf("in pieces: %+v", a)
	}
}

// Whoever sends a part of a request and no more is left to the http.Server, and loses nothing by it.
func TestTheSlowAreLeftToTheServer(t *testing.T) {
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
	}), func(o *lane.Options) { o.Part = 50 * time.Millisecond })
	for _, cut := range []int{1, 20, len(post("/a", "12345")) - 2} {
		c := dial(t, s.simple)
		whole := post("/a", "12345")
		c.send(whole[:cut])
		s.until("the connection is handed over", func() bool { return s.states[http.StateHijacked] > 0 })
		c.send(whole[cut:])
		if a := c.must(); a.body != "12345" || a.header.Get("Lane") != "false" {
			t.Errorf("cut at %d: %+v", cut, a)
		}
		s.mu.Lock()
		clear(s.states)
		s.mu.Unlock()
	}
}

// until waits for a condition, which may look at what the site's mutex guards.
func (s *site) until(what string, condition func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		ok := condition()
		s.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(end) {
			s.Fatal("in vain: ", what)
		}
	}
}

// A request whose client hangs up is cancelled, however long it waits, and no other is; what is sent ahead is not lost.
func TestWaitingRequestsNoticeThatTheirClientIsGone(t *testing.T) {
	var mu sync.Mutex
	ended := map[string]error{}
	release := make(chan struct{})
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			b, _ := io.ReadAll(r.Body)
			select {
			case <-r.Context().Done():
			case <-release:
			}
			mu.Lock()
			ended[string(b)] = r.Context().Err()
			mu.Unlock()
		}
		_, _ = io.WriteString(w, r.URL.Path)
	}), nil)
	gone, half, patient := dial(t, s.simple), dial(t, s.simple), dial(t, s.simple)
	for name, c := range map[string]*client{"gone": gone, "half": half, "patient": patient} {
		c.send(post("/first", ""))
		c.must()
		c.send(post("/wait", name))
	}
	s.until("three wait", func() bool { return s.waiting == 3 })
	patient.send(post("/next", "1")[:1])
	time.Sleep(50 * time.Millisecond)
	patient.send(post("/next", "1")[1:] + post("/after", ""))
	_ = gone.Close()
	_ = half.Conn.(*net.TCPConn).CloseWrite()
	s.until("two are cancelled", func() bool { return s.waiting == 1 })
	close(release)
	for _, want := range []string{"/wait", "/next", "/after"} {
		if a := patient.must(); a.body != want || a.header.Get("Lane") != "true" {
			t.Errorf("%+v, want %s", a, want)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if !errors.Is(ended["gone"], context.Canceled) || !errors.Is(ended["half"], context.Canceled) || ended["patient"] != nil || len(ended) != 3 {
		t.Errorf("requests ended with %v", ended)
	}
}

// The context of a request ends with it.
func TestContextsEnd(t *testing.T) {
	kept := make(chan *http.Request, 1)
	s := newSite(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if a, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); !ok || !a.IP.IsLoopback() || r.RemoteAddr == "" {
			t.Errorf("local address %v, remote %q", a, r.RemoteAddr)
		}
		kept <- r
	}), nil)
	c := dial(t, s.simple)
	c.send(post("/a", "secret"))
	c.must()
	r := <-kept
	<-r.Context().Done()
	if _, err := r.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("a body that is read too late: %v", err)
	}
}

func TestPanicsEndTheConnectionOnly(t *testing.T) {
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			_, _ = io.WriteString(w, "half of")
			panic("out of order")
		}
	}), nil)
	c := dial(t, s.simple)
	c.send(post("/panic", ""))
	if a, err := c.receive(); err == nil {
		t.Errorf("answered: %+v", a)
	}
	s.until("it is closed", func() bool { return s.states[http.StateClosed] == 1 })
	if !strings.Contains(s.log.String(), "out of order") {
		t.Errorf("log: %s", &s.log)
	}
	c = dial(t, s.simple)
	c.send(post("/good", ""))
	c.must()
	s.until("one is closed", func() bool { return s.states[http.StateClosed] == 1 && s.waiting == 0 })
}

// Shutdown answers what is being worked on, tells those clients that it was the last answer, and closes what is idle.
func TestShutdown(t *testing.T) {
	release := make(chan struct{})
	s := newSite(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			<-release
		}
	}), nil)
	quiet, used, busy, partly := dial(t, s.simple), dial(t, s.simple), dial(t, s.simple), dial(t, s.simple)
	used.send(post("/a", ""))
	used.must()
	busy.send(post("/wait", ""))
	s.until("one waits", func() bool { return s.waiting == 1 && s.states[http.StateNew] == 4 })
	whole := post("/a", "1")
	partly.send(whole[:len(whole)-1])
	s.until("a part has come", func() bool { return s.states[http.StateActive] == 3 })
	time.Sleep(50 * time.Millisecond) // so that it is noted
	done := make(chan error, 1)
	go func() { done <- s.lane.Shutdown(context.Background()) }()
	for _, c := range []*client{quiet, used} {
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
			t.Errorf("an idle connection says %q, %v", b, err)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("shut down with %v while a request waits", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if a := busy.must(); a.status != http.StatusOK || !a.close {
		t.Errorf("%+v", a)
	}
	partly.send(whole[len(whole)-1:])
	partly.must()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.simple); err == nil {
		t.Error("the socket is still open")
	}
	if err := s.server.Shutdown(context.Background()); err != nil {
		t.Error("the server's own shutdown:", err)
	}
}

func TestShutdownWaitsNoLongerThanItsContext(t *testing.T) {
	s := newSite(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), nil)
	c := dial(t, s.simple)
	c.send(post("/wait", ""))
	s.until("it waits", func() bool { return s.waiting == 1 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.lane.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if a, err := c.receive(); err == nil {
		t.Errorf("answered: %+v", a)
	}
	s.until("the request is cancelled", func() bool { return s.waiting == 0 })
}

// Who sends nothing has no place for ever.
func TestIdleConnectionsAreClosed(t *testing.T) {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	quiet := dial(t, newSite(t, nothing, func(o *lane.Options) { o.First = 30 * time.Millisecond }).simple)
	used := dial(t, newSite(t, nothing, func(o *lane.Options) { o.Idle = 30 * time.Millisecond }).simple)
	used.send(post("/a", ""))
	used.must()
	for _, c := range []*client{quiet, used} {
		if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
			t.Errorf("%q, %v", b, err)
		}
	}
}

// An answer can have a deadline; the next one has it no more.
func TestClientsThatDoNotRead(t *testing.T) {
	failed := make(chan error, 1)
	var soon atomic.Int64 // how long there is for an answer: long enough for this machine to give it
	soon.Store(int64(time.Millisecond))
	large := strings.Repeat("x", 64<<20)
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			w.Header().Set("Content-Length", strconv.Itoa(len(large)))
			if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Error(err)
			}
			_, err := io.WriteString(w, large)
			failed <- err
			return
		}
		if r.URL.Path == "/late" {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Duration(soon.Load())))
			_, _ = io.WriteString(w, "a")
		}
	}), nil)
	c := dial(t, s.simple)
	c.send(post("/large", ""))
	var late net.Error
	if err := <-failed; !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("writing ended with %v", err)
	}
	for {
		c = dial(t, s.simple)
		c.send(post("/late", ""))
		if _, err := c.receive(); err == nil {
			break
		}
		if soon.Store(4 * soon.Load()); soon.Load() > int64(patience) {
			t.Fatal("no answer comes in time")
		}
	}
	time.Sleep(time.Duration(soon.Load()) + 10*time.Millisecond)
	c.send(post("/a", ""))
	c.must()
}

// failing accepts nothing.
type failing struct {
	net.Listener
	mu  sync.Mutex
	err error
	n   int
}

func (f *failing) Accept() (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return nil, f.err
}

// Errors of the socket are the server's to see, one at a time.
func TestErrorsOfTheSocketReachTheServer(t *testing.T) {
	broken := errors.New("broken")
	f := &failing{Listener: listen(t), err: broken}
	l := lane.Listen(f, lane.Options{})
	for range 3 {
		if _, err := l.Accept(); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) && !errors.Is(err, broken) {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Error("closed twice:", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n > 6 {
		t.Errorf("the socket was asked %d times", f.n)
	}
}
