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
	now     state
	conns   map[net.Conn]struct{}
}

// state is what a proxy does.
type state struct {
	to      string
	refuse  bool
	hole    bool
	swallow bool
	delay   time.Duration
}

// NewProxy returns a proxy to the address, which may change, until the test ends.
func NewProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, now: state{to: to}, conns: map[net.Conn]struct{}{}}
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
		p.Refuse()
		wg.Wait()
	})
	return p
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// To makes new connections go to another address.
func (p *Proxy) To(addr string) { p.set(false, func(s *state) { s.to = addr }) }

// Refuse ends all connections, and new ones at once.
func (p *Proxy) Refuse() { p.set(true, func(s *state) { s.refuse = true }) }

// Hole lets connections be, and be made, but nothing through in either direction: what a cable that is pulled out does.
func (p *Proxy) Hole() { p.set(false, func(s *state) { s.hole = true }) }

// Swallow lets requests through, but no answers: when the first one comes, its connection is cut.
func (p *Proxy) Swallow() { p.set(false, func(s *state) { s.swallow = true }) }

// Delay holds everything up that goes through, in each direction.
func (p *Proxy) Delay(d time.Duration) { p.set(false, func(s *state) { s.delay = d }) }

// Heal ends Refuse, Hole, Swallow and Delay. Connections that were in a hole are cut: their ends gave them up, or
// should.
func (p *Proxy) Heal() {
	p.set(p.state().hole, func(s *state) { *s = state{to: s.to} })
}

// Cut ends all connections. New ones may be made.
func (p *Proxy) Cut() { p.set(true, func(*state) {}) }

func (p *Proxy) set(cut bool, change func(*state)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.now)
	for c := range p.conns {
		if cut {
			_ = c.Close()
			delete(p.conns, c)
		}
	}
	p.changed.Broadcast()
}

func (p *Proxy) state() state {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// keep remembers the connection so that it can be cut, unless there are to be none.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.now.refuse {
		p.conns[c] = struct{}{}
	}
	return !p.now.refuse
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
	up, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", p.state().to)
	if err != nil {
		return
	}
	defer p.drop(up)
	if !p.keep(up) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { p.copy(up, c, false) })
	p.copy(c, up, true)
	wg.Wait()
}

// through waits while there is a hole, and then for the delay. It returns false if the connection is cut meanwhile.
func (p *Proxy) through(c net.Conn) bool {
	p.mu.Lock()
	_, ok := p.conns[c]
	for ; ok && p.now.hole; _, ok = p.conns[c] {
		p.changed.Wait()
	}
	delay := p.now.delay
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
			if !p.through(from) || answers && p.state().swallow {
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
