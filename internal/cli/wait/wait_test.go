package wait

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/store/memstore"
)

// zoeHoldsAndBobWaits returns a lock in a bubble, and what makes claims to it.
func zoeHoldsAndBobWaits(t *testing.T) (*lokt.Manager, func(id string, wait time.Duration) lokt.Claim) {
	t.Helper()
	m := lokt.NewManager(memstore.New())
	claim := func(id string, wait time.Duration) lokt.Claim {
		return lokt.Claim{Name: "x", LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: id}, Wait: wait}
	}
	if _, err := m.Acquire(t.Context(), claim("zoe", 0)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = m.Acquire(t.Context(), claim("bob", time.Hour)) }()
	synctest.Wait()
	return m, claim
}

func TestAClaimThatWaitsSaysForWhatAtOnceAndEvery30Seconds(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		m, claim := zoeHoldsAndBobWaits(t)
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

// ousted is a service at which the first who waits was sent away, and has not heard of it yet.
type ousted struct{ lokt.Service }

func (o ousted) Get(ctx context.Context, name string) (lokt.Snapshot, error) {
	s, err := o.Service.Get(ctx, name)
	if len(s.Lock.Queue) > 0 {
		first := *s.Lock.Queue[0]
		first.Ousted = "cid"
		s.Lock.Queue = append([]*lokt.Waiter{&first}, s.Lock.Queue[1:]...)
	}
	return s, err
}

func TestWhoWasSentAwayIsNotAheadInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, claim := zoeHoldsAndBobWaits(t)
		go func() { _, _ = m.Acquire(t.Context(), claim("cid", time.Hour)) }()
		synctest.Wait()
		var said bytes.Buffer
		a := &app.App{Streams: app.Streams{Err: &said, Getenv: func(string) string { return "" }}}
		waits := (&Flags{}).Service(a, &app.Backend{Service: ousted{m}}, func(*lokt.BlockedError) string { return "it is held" })
		if _, err := waits.Acquire(t.Context(), claim("ann", time.Second)); err == nil {
			t.Error("it was granted")
		}
		if !strings.HasPrefix(said.String(), "lokt: waiting, 2nd in the queue: it is held") {
			t.Errorf("behind one who waits it said %q", said.String())
		}
	})
}
