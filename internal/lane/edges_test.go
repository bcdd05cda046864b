package lane_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A connection is busy until its handler has returned, and no longer for a client that does not take in the answer.
func TestAnswersThatAreNotTakenInKeepNothingBusy(t *testing.T) {
	returned := make(chan struct{})
	large := make([]byte, 64<<20)
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(large)
		close(returned)
	}), nil)
	c := dial(t, s.simple)
	c.send(post("/large", ""))
	<-returned
	s.until("nothing is busy", func() bool { return s.waiting == 0 })
}

// Whoever sends a part of a request and says that this was all is told the same as by net/http.
func TestRequestsThatEndEarly(t *testing.T) {
	simple, plain := &recorded{Listener: listen(t)}, &recorded{Listener: listen(t)}
	newSiteOn(t, simple, plain, http.HandlerFunc(echo), nil)
	whole := post("/a", "12345")
	for _, before := range []string{"", post("/b", "1")} {
		for cut := range len(whole) {
			if before == "" && cut < 4 { // net/http answers these if nothing went before
				continue
			}
			all := before + whole[:cut]
			with, without := exchange(t, simple, all, nil), exchange(t, plain, all, nil)
			if !reflect.DeepEqual(with, without) {
				t.Errorf("%q is answered with\n%+v\nand by net/http with\n%+v", all, with, without)
			}
		}
	}
}

// Old clients send line ends behind the body of a POST.
func TestLineEndsBehindABody(t *testing.T) {
	simple, plain := &recorded{Listener: listen(t)}, &recorded{Listener: listen(t)}
	newSiteOn(t, simple, plain, http.HandlerFunc(echo), nil)
	const get, put = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n", "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n1"
	for _, before := range []string{"", get, put, post("/b", ""), post("/b", "1"), post("/b", "1") + "\r\n" + get, post("/stream", "1")} {
		for _, ends := range []string{"\r\n", "\n", "\r\n\r\n", "\r\n\r\n\n"} {
			all := before + ends + post("/c", "2") + get
			with, without := exchange(t, simple, all, []int{len(before), len(before) + 1}), exchange(t, plain, all, nil)
			if !reflect.DeepEqual(with, without) {
				t.Errorf("%q is answered with\n%+v\nand by net/http with\n%+v", all, with, without)
			}
		}
	}
}

// halves tells when the server ends its half of a connection.
type halves struct {
	net.Listener
	ended chan struct{}
}

type half struct {
	net.Conn
	ended chan struct{}
}

func (l *halves) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &half{c, l.ended}, err
}

func (c *half) CloseWrite() error {
	c.ended <- struct{}{}
	return c.Conn.(*net.TCPConn).CloseWrite()
}

// A client that is answered before it has sent all of its request sees at once that this was the last answer.
func TestTheServerCanEndItsHalf(t *testing.T) {
	l := &halves{listen(t), make(chan struct{}, 1)}
	newSiteOn(t, l, listen(t), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }), nil)
	c := dial(t, l.Addr().String())
	c.send(fmt.Sprintf("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n1", 1<<20))
	if a := c.must(); a.status != http.StatusTeapot || !a.close {
		t.Errorf("%+v", a)
	}
	if _, err := io.ReadAll(c.in); err != nil {
		t.Error(err)
	}
	select {
	case <-l.ended:
	default:
		t.Error("only the whole connection was ended")
	}
}

// Whoever keeps a part of a path does not keep the rest of the header with it.
func TestPathsDoNotKeepTheHeader(t *testing.T) {
	const many, filler = 2000, 3800
	kept := make([]string, 0, many)
	s := newSite(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { kept = append(kept, r.URL.Path[1:]) }), nil)
	c := dial(t, s.simple)
	request := "GET /name HTTP/1.1\r\nHost: h\r\nAccept: " + strings.Repeat("a", filler) + "\r\n\r\n"
	before := heap()
	for range many {
		c.send(request)
		c.must()
	}
	if grown := heap() - before; grown > many*filler/2 {
		t.Errorf("%d names keep %d bytes", len(kept), grown)
	}
	runtime.KeepAlive(kept)
}

// heap returns how many bytes are in use.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far from that
}

// Who only announces a large request costs no more than others.
func TestAnnouncementsCostNothing(t *testing.T) {
	const many = 300
	s := newSite(t, http.HandlerFunc(echo), nil)
	clients := make([]*client, many)
	for i := range clients {
		clients[i] = dial(t, s.simple)
	}
	s.until("all are there", func() bool { return s.states[http.StateNew] == many })
	before := heap()
	for _, c := range clients {
		c.send("POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 60000\r\n\r\n1")
	}
	s.until("all have begun", func() bool { return s.states[http.StateActive] == many })
	time.Sleep(50 * time.Millisecond) // so that they read on
	if grown := heap() - before; grown > many*30_000 {
		t.Errorf("%d announced requests take %d bytes", many, grown)
	}
}
