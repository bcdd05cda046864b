package etcdstore

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// gate is a TCP proxy before a member's client address.
type gate struct {
	to string
	l  net.Listener

	mu     sync.Mutex
	open   bool          // connections are accepted
	mute   bool          // what the member says is swallowed, and then the connection is cut
	delay  time.Duration // of what the member says
	conns  map[net.Conn]struct{}
	closed bool
}

// newGate returns an open gate before the address.
func newGate(t testing.TB, to string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{to: to, l: l, open: true, conns: map[net.Conn]struct{}{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { g.pass(c) })
		}
	})
	t.Cleanup(func() {
		g.mu.Lock()
		g.closed = true
		g.mu.Unlock()
		_ = l.Close()
		g.cut()
		wg.Wait()
	})
	return g
}

func (g *gate) pass(c net.Conn) {
	defer func() { _ = c.Close() }()
	up, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	g.mu.Lock()
	if !g.open || g.closed {
		g.mu.Unlock()
		return
	}
	g.conns[c], g.conns[up] = struct{}{}, struct{}{}
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.conns, c)
		delete(g.conns, up)
		g.mu.Unlock()
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, c)
		_ = up.Close()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := up.Read(buffer)
		if n > 0 {
			g.mu.Lock()
			mute, delay := g.mute, g.delay
			g.mu.Unlock()
			if mute {
				break
			}
			time.Sleep(delay)
			if _, err := c.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = c.Close()
	_ = up.Close()
	<-done
}

// cut ends all connections; new ones may be made.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		_ = c.Close()
	}
}

// shut ends all connections and lets none in; unlock lets them in again.
func (g *gate) shut() {
	g.mu.Lock()
	g.open = false
	g.mu.Unlock()
	g.cut()
}

func (g *gate) unlock() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.mute, g.delay = true, false, 0
}

// swallow lets requests through, but not the answers: the connection is cut instead.
func (g *gate) swallow(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mute = on
}

// slow delays answers.
func (g *gate) slow(by time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.delay = by
}
