package locks

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/store/memstore"
)

func TestAClaimThatWaitsSaysForWhatAtOnceAndEvery30Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(id string, wait time.Duration) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: id}, Wait: wait}
		}
		if _, err := m.Acquire(t.Context(), claim("zoe", 0)); err != nil {
			t.Fatal(err)
		}
		first, second := claim("bob", time.Hour), claim("ann", 95*time.Second)
		go func() { _, _ = m.Acquire(t.Context(), first) }()
		synctest.Wait()
		var said bytes.Buffer
		a := cmd{&app.App{Streams: app.Streams{Err: &said}}}
		stop := a.announce(t.Context(), &app.Backend{Service: m}, second)
		if _, err := m.Acquire(t.Context(), second); err == nil {
			t.Error("it was granted")
		}
		stop()
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		if len(lines) != 4 {
			t.Errorf("in 95 s it said %q", lines)
		}
		for _, line := range lines {
			if !strings.HasPrefix(line, `lokt: waiting, 2nd in the queue: "x" is held by zoe`) {
				t.Errorf("it said %q", line)
			}
		}
	})
}
