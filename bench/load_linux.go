package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"syscall"
	"time"
	"unsafe"
)

// load does what rate does, for work that waits for nothing but answers on a connection that it has been given the means to dial. All of it takes
// turns in one thread, which waits for the answers to all of it with one call of the system (epoll(7)), and Go's scheduler is told of none of those
// calls: what it does about goroutines that wait for the network, and about threads that are in the system, is otherwise two fifths of what a load
// costs, which comes from the machine that serves it.
func load(workers int, d time.Duration, start func(dial dialer, worker int) (work func() error, stop func(), err error)) (float64, error) {
	poll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return 0, err
	}
	defer func() { _ = syscall.Close(poll) }()
	var (
		until time.Time
		total int
		first error
		by    = map[int32]*turn{} // by the connection that they wait for
		turns []*turn
	)
	for i := range workers {
		t := &turn{}
		work, stop, err := start(func(addr string) (link, error) {
			c, err := t.dial(addr, poll)
			if err == nil {
				by[int32(c.fd)] = t //nolint:gosec // descriptors are small
			}
			return c, err
		}, i)
		if err != nil {
			return 0, err
		}
		defer stop()
		next, halt := iter.Pull(func(yield func(struct{}) bool) {
			t.yield = yield
			for time.Now().Before(until) {
				if err := work(); err != nil {
					first = errors.Join(first, err)
					return
				}
				total++
			}
		})
		defer halt()
		t.next = next
		turns = append(turns, t)
	}
	begun := time.Now()
	until = begun.Add(d)
	open := 0
	for _, t := range turns {
		if _, goesOn := t.next(); goesOn {
			open++
		}
	}
	events := make([]syscall.EpollEvent, workers)
	for heard := begun; open > 0; {
		const patience = 10 * time.Millisecond // others of this process may wait for this thread
		n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(&events[0])), uintptr(workers), uintptr(patience.Milliseconds()), 0, 0)
		switch {
		case e != 0 && e != syscall.EINTR:
			return 0, e
		case e != 0 || n == 0:
			if time.Since(heard) > time.Minute {
				return 0, errors.Join(first, errors.New("nothing was answered for a minute"))
			}
			continue
		}
		heard = time.Now()
		for _, event := range events[:n] {
			if _, goesOn := by[event.Fd].next(); !goesOn {
				open--
			}
		}
	}
	return float64(total) / time.Since(begun).Seconds(), first
}

// turn is a worker that takes turns with others.
type turn struct {
	next  func() (struct{}, bool) // lets it go on until it waits again, or reports that it has ended
	yield func(struct{}) bool     // lets the others go on until there is an answer
}

// turnConn is a worker's connection.
type turnConn struct {
	turn *turn
	fd   int
}

// dial connects to an address of loopback.
func (t *turn) dial(addr string, poll int) (*turnConn, error) {
	a, err := net.ResolveTCPAddr("tcp4", addr)
	if err != nil {
		return nil, err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		syscall.Connect(fd, &syscall.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())}),
		syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1),
		syscall.EpollCtl(poll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)}), //nolint:gosec // descriptors are small
	); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", addr, err), syscall.Close(fd))
	}
	return &turnConn{t, fd}, nil
}

// Read implements link: it lets the others go on until something has come.
func (c *turnConn) Read(b []byte) (int, error) {
	if !c.turn.yield(struct{}{}) {
		return 0, io.ErrClosedPipe
	}
	n, _, e := syscall.RawSyscall(syscall.SYS_READ, uintptr(c.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	switch {
	case e != 0:
		return 0, e
	case n == 0:
		return 0, io.EOF
	}
	return int(n), nil
}

// Write implements link. What is written is small, so there is room for it.
func (c *turnConn) Write(b []byte) (int, error) {
	n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, uintptr(c.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if e != 0 {
		return 0, e
	}
	if int(n) < len(b) {
		return int(n), io.ErrShortWrite
	}
	return int(n), nil
}

// Close implements link.
func (c *turnConn) Close() error { return syscall.Close(c.fd) }

// SetDeadline implements link: load has a limit of its own.
func (*turnConn) SetDeadline(time.Time) error { return nil }
