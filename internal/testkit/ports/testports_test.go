package ports_test

import (
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/lokt-dev/lokt/internal/testkit/ports"
)

func TestPortsAreFreeDifferentAndNotThoseOfConnections(t *testing.T) {
	all, err := ports.Free(50)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(all); len(slices.Compact(all)) != 50 {
		t.Fatalf("chosen are %v", all)
	}
	any, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer any.Close()
	for _, address := range all {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Error(err)
			continue
		}
		_ = l.Close()
		if _, port, err := net.SplitHostPort(address); err != nil || len(port) != 5 {
			t.Errorf("%s, %v", address, err)
		} else if n, err := strconv.Atoi(port); err != nil || n >= any.Addr().(*net.TCPAddr).Port {
			t.Errorf("port %d is not below those that the system chooses", n)
		}
	}
}
