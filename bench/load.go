//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// start begins a worker: its work is called again and again, and stop in the end.
type start = func(i int) (work func() error, stop func(), err error)

// crowd does work in so many goroutines for a time and returns how often it was done per second.
func crowd(workers int, d time.Duration, start start) (float64, error) {
	var (
		ready, all sync.WaitGroup
		begin      = make(chan time.Time)
		counts     = make([]int, workers)
		errs       = make([]error, workers)
	)
	ready.Add(workers)
	for i := range workers {
		all.Go(func() {
			work, stop, err := start(i)
			ready.Done()
			until := <-begin
			if err == nil {
				defer stop()
			}
			for err == nil && time.Now().Before(until) {
				err = work()
				counts[i]++
			}
			errs[i] = err
		})
	}
	ready.Wait()
	begun := time.Now()
	for range workers {
		begin <- begun.Add(d)
	}
	all.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(begun).Seconds(), errors.Join(errs...)
}

// load is crowd for work that waits for nothing but answers on one connection. All of it takes turns in one thread,
// which waits with one call of the system (epoll(7)). Goroutines that wait for the network would cost two fifths more,
// from the processors of the server that is measured.
func load(workers int, d time.Duration, start func(dialer, int) (func() error, func(), error)) (float64, error) {
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
	)
	for i := range workers {
		t := &turn{}
		work, stop, err := start(func(addr string) (io.ReadWriteCloser, error) {
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
			for ; time.Now().Before(until); total++ {
				if err := work(); err != nil {
					first = errors.Join(first, err)
					return
				}
			}
		})
		defer halt()
		t.next = next
	}
	begun := time.Now()
	until = begun.Add(d)
	open := 0
	for _, t := range by {
		if _, goesOn := t.next(); goesOn {
			open++
		}
	}
	events := make([]syscall.EpollEvent, workers)
	for heard := begun; open > 0; {
		const patience = 10 // milliseconds: others of this process may wait for this thread
		at := uintptr(unsafe.Pointer(&events[0]))
		n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(poll), at, uintptr(workers), patience, 0, 0)
		switch {
		case e != 0 && e != syscall.EINTR:
			return 0, e
		case e == 0 && n > 0:
			heard = time.Now()
		case time.Since(heard) > time.Minute:
			return 0, errors.Join(first, errors.New("nothing was answered for a minute"))
		default:
			continue
		}
		for _, event := range events[:n] {
			if _, goesOn := by[event.Fd].next(); !goesOn {
				open--
			}
		}
	}
	return float64(total) / time.Since(begun).Seconds(), first
}

// turn is a worker of load.
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
	event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(fd)} //nolint:gosec // descriptors are small
	if err := errors.Join(
		syscall.Connect(fd, &syscall.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())}),
		syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1),
		syscall.EpollCtl(poll, syscall.EPOLL_CTL_ADD, fd, &event),
	); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", addr, err), syscall.Close(fd))
	}
	return &turnConn{t, fd}, nil
}

// Read lets the others go on until something has come.
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

// Write writes what is small, so there is room for all of it.
func (c *turnConn) Write(b []byte) (int, error) { return syscall.Write(c.fd, b) }

// Close closes the connection.
func (c *turnConn) Close() error { return syscall.Close(c.fd) }
