package ports_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
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

const chooses = "LOKT_TEST_CHOOSES_PORTS"

func TestNoTwoProcessesAreGivenOnePort(t *testing.T) {
	const n = 400 // of which two processes would have some in common, if they knew nothing of each other
	all, err := ports.Free(n)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(chooses) != "" {
		fmt.Println(strings.Join(all, "\n"))
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	c.Env = append(os.Environ(), chooses+"=1")
	out, err := c.Output()
	if lines := strings.Fields(string(out)); err != nil || len(lines) < n {
		t.Fatalf("%v: %s", err, out)
	}
	for _, address := range strings.Fields(string(out)) {
		if slices.Contains(all, address) {
			t.Errorf("%s is given to both", address)
		}
	}
}
