package sim

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
)

// daemon is a server over the database, as loktd is.
type daemon struct {
	*actor
	handler http.Handler
	turns   *turns        // nil without jobs
	leave   chan struct{} // closed when it is told to end; nil before it serves jobs, and then
}

// start makes a process that serves, once its scheduler, if it has one, has loaded its jobs.
func (d *daemon) start(a *actor) {
	d.actor = a
	locks := lokt.NewManager(session{d.w.db, d.actor})
	c := httpapi.Config{Locks: locks, Stop: d.ctx, Events: session{d.w.db, d.actor}}
	if d.handler = nil; d.w.board == nil {
		d.handler = httpapi.NewHandler(c)
		return
	}
	b, leave := d.w.board, make(chan struct{})
	d.turns, d.leave = &turns{Store: b.store, a: a, changed: make(chan struct{}, 1)}, nil
	store, o := jobs.Store(d.turns), manager.Options{Config: b.config, Keep: b.keep, Locks: leased{locks, d.w}, OneStore: d.w.o.Seed%3 > 0, Observe: d.w.countJobs}
	if b.config.Shared {
		store = sharer{d.turns}
	}
	d.w.running.Go(func() {
		m, err := manager.Open(a.ctx, store, o)
		for ; err != nil && a.ctx.Err() == nil; m, err = manager.Open(a.ctx, store, o) {
			time.Sleep(time.Second)
		}
		if err != nil {
			return
		}
		c.Jobs = m
		d.handler, d.leave = httpapi.NewHandler(c), leave
		select {
		case <-a.ctx.Done():
			_ = m.Close()
		case <-leave: // as loktd does
			_ = m.Drain(a.ctx)
			time.Sleep(time.Second)
			_ = m.Close()
			a.pass(a.ctx, pointWork, "ends") // after those who are answered by then have heard
			a.exit()
		}
	})
}

// reach returns the daemons as a process sees them.
func (w *world) reach(me *actor) *httpapi.Client {
	var urls []string
	for i := range w.daemons {
		if w.board != nil { // each begins with another
			i = (i + me.index) % len(w.daemons)
		}
		urls = append(urls, "http://"+w.daemons[i].name)
	}
	c, err := httpapi.New(strings.Join(urls, ","), httpapi.ClientOptions{HTTPClient: &http.Client{Transport: wire{w, me}}})
	if err != nil {
		panic(err)
	}
	return c
}

// wire is the network between a process and the daemons.
type wire struct {
	w  *world
	me *actor
}

var errReset = errors.New("connection reset by peer")

// RoundTrip implements http.RoundTripper.
func (n wire) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	ctx, what := r.Context(), fmt.Sprintf("%s %s at %s", r.Method, shape(r.URL.Path), r.URL.Host)
	if bytes.Contains(body, []byte(`"name":"a"`)) { // of two renewals at a time
		what += " of a"
	}
	f := n.me.pass(ctx, pointSend, "sends "+what)
	var d *daemon
	for _, have := range n.w.daemons {
		if have.name == r.URL.Host {
			d = have
		}
	}
	switch {
	case f == lost:
		return nil, errReset
	case f == vanished:
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case f == refused || (f == fine || f == twice) && (d.died || d.handler == nil):
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errReset}
	case f != fine && f != twice:
		return nil, failure(ctx, f)
	}
	at, h := d.actor, d.handler
	origin, _ := ctx.Value(originKey{}).(string)
	known := context.WithValue(context.WithValue(at.ctx, originKey{}, cmp.Or(origin, n.me.name)+"'s "+r.Method), ticketKey{}, ctx.Value(ticketKey{}))
	here, hangUp := context.WithCancel(known)
	defer hangUp()
	if r.URL.Path == "/v1/events" { // which ends when the connection does
		defer time.AfterFunc(randomly(rand.New(rand.NewPCG(n.w.o.Seed, 1<<46+uint64(n.w.gate.round))), time.Millisecond, 30*time.Second), hangUp).Stop()
	}
	answer := make(chan *http.Response, 1)
	n.w.running.Go(func() {
		answer <- at.serve(here, h, r, body) //nolint:bodyclose // it is in memory
		if f == twice && n.w.strike != nil {
			select {
			case <-n.w.strike:
			case <-time.After(randomly(rand.New(rand.NewPCG(n.w.o.Seed, 1<<45+uint64(n.w.gate.round))), time.Millisecond, 30*time.Second)):
			}
		}
		if f == twice && at.pass(at.ctx, pointWork, "gets a copy of "+what) == fine { // which nobody waits for any more
			n.w.vague = n.w.vague || r.Method == http.MethodPost
			at.serve(known, h, r, body) //nolint:bodyclose // it is in memory
		}
	})
	var resp *http.Response
	select {
	case resp = <-answer:
	case <-at.ctx.Done():
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if resp == nil || at.ctx.Err() != nil {
		n.me.pass(ctx, pointWork, "finds its connection cut, for "+what)
		return nil, errReset
	}
	if f := n.me.pass(ctx, pointReply, "hears of "+what); f != fine {
		return nil, failure(ctx, f)
	}
	return resp, nil
}

// serve has the daemon answer a request; nil if it hangs up instead.
func (a *actor) serve(ctx context.Context, h http.Handler, r *http.Request, body []byte) (resp *http.Response) {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint,err113 // panics are compared as they are
			a.w.broke("panic", "%s: %v", a.name, p)
		}
	}()
	in := r.Clone(ctx)
	in.Body, in.RequestURI, in.RemoteAddr = io.NopCloser(bytes.NewReader(body)), r.URL.RequestURI(), a.name
	out := httptest.NewRecorder()
	h.ServeHTTP(out, in)
	return out.Result()
}

// shape is the path without the IDs in it, which say nothing to people.
func shape(path string) string {
	all := strings.Split(path, "/")
	for i, s := range all {
		if len(s) > 12 {
			all[i] = "…"
		}
	}
	return strings.Join(all, "/")
}
