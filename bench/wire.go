package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// link is a connection as far as a load needs it.
type link interface {
	io.ReadWriteCloser
	SetDeadline(t time.Time) error
}

// dialer connects to an address.
type dialer func(addr string) (link, error)

// dial is the dialer of those who have no other.
func dial(addr string) (link, error) {
	return (&net.Dialer{Timeout: time.Minute}).DialContext(context.Background(), "tcp", addr)
}

// listen listens on a free port of loopback.
func listen() (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
}

// httpConn is one connection to an HTTP server. The load comes from the same machine that serves it, so it must cost little:
// requests are written with one call, answers are read with a Content-Length only.
type httpConn struct {
	c    link
	r    *bufio.Reader
	out  []byte
	body []byte
	due  time.Time // the connection's deadline
}

func dialHTTP(dial dialer, addr string) (*httpConn, error) {
	c, err := dial(addr)
	if err != nil {
		return nil, err
	}
	return &httpConn{c: c, r: bufio.NewReaderSize(c, 32<<10)}, nil
}

func (h *httpConn) close() { _ = h.c.Close() }

// do sends a request and returns the status and the body, which is good until the next call.
func (h *httpConn) do(method, path, body string) (int, []byte, error) {
	h.out = append(h.out[:0], method...)
	h.out = append(append(append(h.out, ' '), path...), " HTTP/1.1\r\nHost: 127.0.0.1\r\n"...)
	if body != "" {
		h.out = append(h.out, "Content-Type: application/json\r\nContent-Length: "...)
		h.out = append(strconv.AppendInt(h.out, int64(len(body)), 10), "\r\n"...)
	}
	h.out = append(append(h.out, "\r\n"...), body...)
	if now := time.Now(); h.due.Sub(now) < time.Minute { // not for every request
		h.due = now.Add(2 * time.Minute)
		if err := h.c.SetDeadline(h.due); err != nil {
			return 0, nil, err
		}
	}
	if _, err := h.c.Write(h.out); err != nil {
		return 0, nil, err
	}
	line, err := h.r.ReadSlice('\n')
	if err != nil {
		return 0, nil, err
	}
	if len(line) < 12 {
		return 0, nil, fmt.Errorf("answer begins with %q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0, nil, err
	}
	length := -1
	for {
		if line, err = h.r.ReadSlice('\n'); err != nil {
			return 0, nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(": ")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, nil, err
			}
		}
	}
	if length < 0 {
		return 0, nil, errors.New("answer without a length")
	}
	if cap(h.body) < length {
		h.body = make([]byte, length)
	}
	h.body = h.body[:length]
	_, err = io.ReadFull(h.r, h.body)
	return status, h.body, err
}

// post sends JSON and expects 200.
func (h *httpConn) post(path, body string) ([]byte, error) {
	status, answer, err := h.do("POST", path, body)
	if err == nil && status != 200 {
		err = fmt.Errorf("POST %s %s: %d %s", path, body, status, answer)
	}
	return answer, err
}

// member returns the string member of a JSON object that was written without spaces.
func member(object []byte, name string) string {
	_, rest, ok := bytes.Cut(object, []byte(`"`+name+`":"`))
	if !ok {
		return ""
	}
	value, _, _ := bytes.Cut(rest, []byte{'"'})
	return string(value)
}

// beanstalk is one connection to beanstalkd, whose protocol is lines of text.
type beanstalk struct {
	c link
	r *bufio.Reader
}

func dialBeanstalk(dial dialer, addr string) (*beanstalk, error) {
	c, err := dial(addr)
	if err != nil {
		return nil, err
	}
	return &beanstalk{c: c, r: bufio.NewReader(c)}, nil
}

// say sends a command and returns the answer's words; the first of them must be the one expected.
func (b *beanstalk) say(expect, format string, args ...any) ([]string, error) {
	if _, err := fmt.Fprintf(b.c, format+"\r\n", args...); err != nil {
		return nil, err
	}
	line, err := b.r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != expect {
		return nil, fmt.Errorf("beanstalkd answers %q", line)
	}
	return words, nil
}

// cycle puts a job of the given body, reserves one, touches and deletes it.
func (b *beanstalk) cycle(body string) error {
	if _, err := b.say("INSERTED", "put 0 0 60 %d\r\n%s", len(body), body); err != nil {
		return err
	}
	words, err := b.say("RESERVED", "reserve")
	if err != nil {
		return err
	}
	if _, err := b.r.ReadString('\n'); err != nil { // the body
		return err
	}
	if _, err := b.say("TOUCHED", "touch %s", words[1]); err != nil {
		return err
	}
	_, err = b.say("DELETED", "delete %s", words[1])
	return err
}

// rate runs work in so many goroutines for the given time and returns how often it was done per second. Each goroutine
// calls start for its own work function, which is called again and again, and then stop. For work on plain connections see load.
func rate(workers int, d time.Duration, start func(worker int) (work func() error, stop func(), err error)) (float64, error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total int
		first error
		ready sync.WaitGroup
		begin = make(chan struct{})
		until time.Time
	)
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = err
		}
	}
	ready.Add(workers)
	for i := range workers {
		wg.Go(func() {
			work, stop, err := start(i)
			ready.Done()
			if err != nil {
				fail(err)
				return
			}
			defer stop()
			<-begin
			n := 0
			for time.Now().Before(until) {
				if err := work(); err != nil {
					fail(err)
					break
				}
				n++
			}
			mu.Lock()
			total += n
			mu.Unlock()
		})
	}
	ready.Wait()
	until = time.Now().Add(d)
	begun := time.Now()
	close(begin)
	wg.Wait()
	return float64(total) / time.Since(begun).Seconds(), first
}
