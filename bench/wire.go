//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// base begins the paths of the scheduler's routes.
const base = "/api/system/scheduler"

// dialer connects to an address.
type dialer func(addr string) (io.ReadWriteCloser, error)

// dial is the dialer of those that have no other.
func dial(addr string) (io.ReadWriteCloser, error) {
	return (&net.Dialer{Timeout: time.Minute}).DialContext(context.Background(), "tcp", addr)
}

// listen listens on a free port of loopback.
func listen() (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
}

// worker is one connection to the scheduler. The load comes from the machine that serves it, so it must cost little:
// requests are written with one call, and answers need a Content-Length.
type worker struct {
	io.Closer
	id   string
	w    io.Writer
	r    *bufio.Reader
	body []byte
}

func newWorker(dial dialer, addr, id string) (*worker, error) {
	c, err := dial(addr)
	if err != nil {
		return nil, err
	}
	return &worker{c, id, c, bufio.NewReaderSize(c, 32<<10), nil}, nil
}

// do sends a request and returns the body of the answer, which must be 200. It is good until the next call.
func (w *worker) do(method, path, body string) ([]byte, error) {
	const form = "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
	if _, err := fmt.Fprintf(w.w, form, method, path, len(body), body); err != nil {
		return nil, err
	}
	status, err := w.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	ok := bytes.HasPrefix(status, []byte("HTTP/1.1 200"))
	length := 0
	for {
		line, err := w.r.ReadSlice('\n')
		if err != nil {
			return nil, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(": ")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return nil, err
			}
		}
	}
	if cap(w.body) < length {
		w.body = make([]byte, length)
	}
	w.body = w.body[:length]
	if _, err := io.ReadFull(w.r, w.body); err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s %s %s is answered with %s", method, path, body, w.body)
	}
	return w.body, nil
}

func (w *worker) post(path, body string) error {
	_, err := w.do("POST", base+path, body)
	return err
}

func (w *worker) submit() error { return w.post("/jobs", `{"payload":{"n":1}}`) }

// request leases a job, waits for one if it is to, and returns the lease's ID.
func (w *worker) request(wait time.Duration) (string, error) {
	b, err := w.do("POST", base+"/leases/request", fmt.Sprintf(`{"worker_id":%q,"wait_ms":%d}`, w.id, wait.Milliseconds()))
	if err != nil {
		return "", err
	}
	_, rest, found := bytes.Cut(b, []byte(`"lease_id":"`))
	id, _, _ := bytes.Cut(rest, []byte{'"'})
	if !found {
		return "", fmt.Errorf("no lease: %s", b)
	}
	return string(id), nil
}

func (w *worker) beat(lease string) error {
	return w.post("/leases/"+lease+"/heartbeat", `{"worker_id":"`+w.id+`"}`)
}

func (w *worker) beatAll(leases []string) error {
	return w.post("/leases/heartbeat", `{"worker_id":"`+w.id+`","lease_ids":["`+strings.Join(leases, `","`)+`"]}`)
}

func (w *worker) complete(lease string) error {
	return w.post("/leases/"+lease+"/complete", `{"worker_id":"`+w.id+`","status":"completed"}`)
}

// work leases a job, sends heartbeats and completes it.
func (w *worker) work(beats int) error {
	lease, err := w.request(0)
	for range beats {
		if err == nil {
			err = w.beat(lease)
		}
	}
	if err == nil {
		err = w.complete(lease)
	}
	return err
}

// submitMany submits n jobs, 1,000 at a time.
func submitMany(addr string, n int) error {
	w, err := newWorker(dial, addr, "bench")
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	for ; n > 0; n -= 1000 {
		jobs := strings.TrimSuffix(strings.Repeat(`{"payload":{"n":1}},`, min(n, 1000)), ",")
		if err := w.post("/jobs", `{"jobs":[`+jobs+`]}`); err != nil {
			return err
		}
	}
	return nil
}

// lease takes n leases for the worker named bench, and sends the first heartbeat of each, which starts its job.
func lease(addr string, n int) ([]string, error) {
	ids := make(chan string, n)
	each := func(i int) (func() error, func(), error) {
		w, err := newWorker(dial, addr, "bench")
		if err != nil {
			return nil, nil, err
		}
		for range (n + 15 - i) / 16 {
			id, err := w.request(0)
			if err == nil {
				err = w.beat(id)
			}
			if err != nil {
				return nil, nil, err
			}
			ids <- id
		}
		return func() error { return nil }, func() { _ = w.Close() }, nil
	}
	if _, err := crowd(16, 0, each); err != nil {
		return nil, err
	}
	close(ids)
	var all []string
	for id := range ids {
		all = append(all, id)
	}
	return all, nil
}

// beanstalk is one connection to beanstalkd, whose protocol is lines of text.
type beanstalk struct {
	io.ReadWriteCloser
	r *bufio.Reader
}

// say sends a command and returns the answer's words, the first of which must be the one expected.
func (b *beanstalk) say(expect, format string, args ...any) ([]string, error) {
	if _, err := fmt.Fprintf(b, format+"\r\n", args...); err != nil {
		return nil, err
	}
	line, err := b.r.ReadString('\n')
	words := strings.Fields(line)
	if err == nil && (len(words) == 0 || words[0] != expect) {
		err = fmt.Errorf("beanstalkd answers %q", line)
	}
	return words, err
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
