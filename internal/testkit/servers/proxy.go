package servers

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy passes TCP connections on to an address, as well or badly as it is told.
type Proxy struct {
	listener net.Listener

	mu      sync.Mutex
	changed *sync.Cond
	to      string
	refuse  bool
	hole    bool
	swallow bool
	delay   time.Duration
	closed  bool
	conns   map[net.Conn]struct{}
}

// NewProxy returns a proxy to the address, which may change, until the test ends.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, to: to, conns: map[net.Conn]struct{}{}}
	p.changed = sync.NewCond(&p.mu)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { p.pass(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.set(func() { p.closed = true })
		p.Cut()
		wg.Wait()
	})
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// To makes new connections go to another address.
func (p *Proxy) To(addr string) { p.set(func() { p.to = addr }) }

// Refuse ends all connections, and new ones at once.
func (p *Proxy) Refuse() {
	p.set(func() { p.refuse = true })
	p.Cut()
}

// Hole lets connections be, and be made, but nothing through in either direction: what a cable that is pulled out does.
func (p *Proxy) Hole() { p.set(func() { p.hole = true }) }

// Swallow lets requests through, but no answers: when the first one comes, its connection is cut.
func (p *Proxy) Swallow() { p.set(func() { p.swallow = true }) }

// Delay holds everything up that goes through, in each direction.
func (p *Proxy) Delay(d time.Duration) { p.set(func() { p.delay = d }) }

// Heal ends Refuse, Hole, Swallow and Delay. Connections that were in a hole are cut: their ends gave them up, or
// should.
func (p *Proxy) Heal() {
	p.mu.Lock()
	hole := p.hole
	p.mu.Unlock()
	if hole {
		p.Cut()
	}
	p.set(func() { p.refuse, p.hole, p.swallow, p.delay = false, false, false, 0 })
}

// Cut ends all connections. New ones may be made.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
	p.changed.Broadcast()
}

func (p *Proxy) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	p.changed.Broadcast()
}

// keep remembers the connection so that it can be cut, unless there are to be none.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.refuse {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Proxy) drop(c net.Conn) {
	_ = c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
	p.changed.Broadcast()
}

func (p *Proxy) pass(c net.Conn) {
	defer p.drop(c)
	if !p.keep(c) || !p.through(c) {
		return
	}
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	up, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
	if err != nil {
		return
	}
	defer p.drop(up)
	if !p.keep(up) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.copy(up, c, false)
	}()
	p.copy(c, up, true)
	<-done
}

func (p *Proxy) swallows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallow
}

// through waits while there is a hole, and then for the delay. It returns false if the connection is cut meanwhile.
func (p *Proxy) through(c net.Conn) bool {
	p.mu.Lock()
	for p.hole && !p.closed {
		if _, ok := p.conns[c]; !ok {
			break
		}
		p.changed.Wait()
	}
	_, ok := p.conns[c]
	delay := p.delay
	ok = ok && !p.closed
	p.mu.Unlock()
	time.Sleep(delay)
	return ok
}

func (p *Proxy) copy(to, from net.Conn, answers bool) {
	defer func() { p.drop(to); p.drop(from) }()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !p.through(from) || answers && p.swallows() {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
