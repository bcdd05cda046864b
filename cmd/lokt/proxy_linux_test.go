package main

import (
	"net"
	"sync"
	"testing"
)

// proxy passes connections on to a server, until it is told not to.
type proxy struct {
	to string
	ln net.Listener

	mu    sync.Mutex
	held  chan struct{} // closed while nothing is held back
	conns map[net.Conn]bool
	dead  bool // connections are refused
}

// newProxy returns a proxy for the address, which lasts as long as the test.
func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{to: to, ln: ln, held: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(p.held)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close() // all that matters is that nothing more comes
		p.cut()
		p.mend()
		serving.Wait()
	})
	return p
}

// url is where the server can be reached through the proxy.
func (p *proxy) url() string { return "http://" + p.ln.Addr().String() }

func (p *proxy) serve(down net.Conn) {
	defer down.Close()
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer up.Close()
	if !p.add(down, up) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.pass(up, down) })
	both.Go(func() { p.pass(down, up) })
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, down)
	delete(p.conns, up)
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		return false
	}
	for _, c := range conns {
		p.conns[c] = true
	}
	return true
}

// pass copies, as long as nothing is held back.
func (p *proxy) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		held := p.held
		p.mu.Unlock()
		<-held
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// swallow holds back everything from now on: connections stay, and nothing comes through.
func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = make(chan struct{})
}

// cut breaks all connections and refuses new ones.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
	for c := range p.conns {
		_ = c.Close() // it may be closed already
	}
}

// mend lets everything through again, what was held back too.
func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = false
	select {
	case <-p.held:
	default:
		close(p.held)
	}
}
