package wait

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
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		m := lokt.NewManager(memstore.New())
		claim := func(id string, wait time.Duration) lokt.Claim {
			return lokt.Claim{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: id}, Wait: wait}
		}
		if _, err := m.Acquire(t.Context(), claim("zoe", 0)); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = m.Acquire(t.Context(), claim("bob", time.Hour)) }()
		synctest.Wait()
		var said bytes.Buffer
		a := &app.App{Streams: app.Streams{Err: &said, Getenv: func(name string) string { return map[string]string{"LOKT_AGENT_ID": "a-1"}[name] }}, Words: []string{"lock", "x"}}
		f := &Flags{Wait: true}
		waits := f.Service(a, &app.Backend{Service: m}, func(e *lokt.BlockedError) string { return "it is held by " + e.Holders[0].Owner.ID })
		if _, err := waits.Acquire(t.Context(), claim("ann", 95*time.Second)); err == nil {
			t.Error("it was granted")
		}
		id, line := f.Ticket()
		if id == "" || line != "lokt wait --ticket "+id {
			t.Errorf("the ticket is %q, to go on with %q", id, line)
		}
		lines := strings.Split(strings.TrimSpace(said.String()), "\n")
		if len(lines) != 4 {
			t.Errorf("in 95 s it said %q", lines)
		}
		for _, said := range lines {
			if !strings.HasPrefix(said, `lokt: waiting, 2nd in the queue: it is held by zoe`) || !strings.HasSuffix(said, line) {
				t.Errorf("it said %q", said)
			}
		}
	})
}
