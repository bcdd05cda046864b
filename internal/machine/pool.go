package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// Pool is a range of numbers of which each holder has one of its own.
type Pool struct {
	Name        string
	First, Last int
}

// largestPool is how many numbers a pool may have: each is a lock.
const largestPool = 10_000

// ParsePool reads port=3000-3099.
func ParsePool(text string) (p Pool, err error) {
	f := regexp.MustCompile(`^([a-z0-9_]{1,50})=(\d{1,9})-(\d{1,9})$`).FindStringSubmatch(text)
	if f == nil {
		return p, fmt.Errorf("%q is no pool of numbers, such as port=3000-3099", text)
	}
	p.Name = f[1]
	p.First, _ = strconv.Atoi(f[2])
	p.Last, _ = strconv.Atoi(f[3])
	switch {
	case p.Last < p.First || p.Last-p.First >= largestPool:
		return p, fmt.Errorf("the pool %q has no number, or more than %d: %s", p.Name, largestPool, text)
	case p.ports() && (p.First == 0 || p.Last > 65535):
		return p, fmt.Errorf("the pool %q has numbers that are no ports: those are 1 to 65535", p.Name)
	}
	return p, nil
}

// ports reports whether the numbers are ports: those of a pool whose name says so.
func (p Pool) ports() bool { return p.Name == "port" || strings.HasSuffix(p.Name, "_port") }

// Lock returns the name of the lock that stands for a number.
func (p Pool) Lock(n int) string { return fmt.Sprintf("pool.%s.%d", p.Name, n) }

// Variable returns the name of the variable that tells a command its number.
func (p Pool) Variable() string {
	if p.Name == "port" {
		return "LOKT_PORT"
	}
	return "LOKT_POOL_" + strings.ToUpper(p.Name)
}

// Usable reports whether the number can be used: a port is tried by binding it to the loopback addresses and to all together.
func (p Pool) Usable(n int) bool {
	if !p.ports() {
		return true
	}
	for _, host := range []string{"127.0.0.1", "::1", ""} {
		l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(n)))
		if err == nil {
			_ = l.Close()
		} else if host != "::1" || errors.Is(err, syscall.EADDRINUSE) { // which not every machine has
			return false
		}
	}
	return true
}
