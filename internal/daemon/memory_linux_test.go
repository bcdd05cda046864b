package daemon_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

func TestMemoryThatIsNotNeededIsGivenBack(t *testing.T) {
	t.Parallel()
	p := start(t, "--store", "memory:")
	a := p.api()
	resident := func() (pages int) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
		if err == nil {
			_, err = fmt.Sscan(string(b), new(int), &pages)
		}
		if err != nil {
			t.Fatal(err)
		}
		return pages * os.Getpagesize()
	}
	const most = 12 << 20
	before, long := resident(), strings.Repeat("x", 64<<10)
	for range 300 {
		a.do(t, http.StatusBadRequest, "POST", locks+"x/leases", body{"owner": body{"id": long}, "ttl_ms": 60_000})
	}
	if grown := resident() - before; grown < most {
		t.Fatalf("there are %d bytes more, which shows nothing", grown)
	}
	eventually(t, "what was asked for costs nothing any more", func() bool { return resident()-before < most })
	p.stop()
}
