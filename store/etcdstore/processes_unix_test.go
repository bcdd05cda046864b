//go:build unix

package etcdstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/parallel"
	"github.com/lokt-dev/lokt/internal/testkit/ports"
)

// memberVariable makes this program a member of etcd, of the configuration that it has.
const memberVariable = "LOKT_TEST_ETCD_MEMBER"

// memberConfig is what a member's process is told.
type memberConfig struct{ Name, Dir, Peer, Client, Cluster string }

func TestMain(m *testing.M) {
	if text := os.Getenv(memberVariable); text != "" {
		if err := beMember(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(parallel.Run(m, 6))
}

// beMember runs a member of etcd until the test that started it closes its input, or ends.
func beMember(text string) error {
	var c memberConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster = c.Name, c.Dir, c.Cluster
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: c.Peer}}
	cfg.ListenClientUrls = []url.URL{{Scheme: "http", Host: c.Client}}
	cfg.AdvertisePeerUrls, cfg.AdvertiseClientUrls = cfg.ListenPeerUrls, cfg.ListenClientUrls
	cfg.TickMs, cfg.ElectionMs = 50, 500
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	e.Close()
	return err
}

// processes is an etcd of which every member is a process.
type processes struct {
	t       *testing.T
	configs []memberConfig
	running []*exec.Cmd
	input   []io.Closer
	clients []*clientv3.Client // of each member only
}

func startProcesses(t *testing.T, size int) *processes {
	t.Helper()
	p := &processes{t: t, running: make([]*exec.Cmd, size), input: make([]io.Closer, size)}
	at, err := ports.Free(2 * size)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range size {
		all = append(all, fmt.Sprintf("m%d=http://%s", i, at[2*i]))
	}
	dir := t.TempDir()
	for i := range size {
		name := fmt.Sprint("m", i)
		p.configs = append(p.configs, memberConfig{name, filepath.Join(dir, name), at[2*i], at[2*i+1], strings.Join(all, ",")})
		cl, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + at[2*i+1]}, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cl.Close() })
		p.clients = append(p.clients, cl)
		p.start(i)
	}
	t.Cleanup(func() {
		for i := range p.running {
			p.kill(i)
		}
	})
	return p
}

func (p *processes) start(i int) {
	p.t.Helper()
	text, err := json.Marshal(p.configs[i])
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	if p.input[i], err = cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.running[i] = cmd
}

// kill ends the process at once.
func (p *processes) kill(i int) {
	if p.running[i] == nil {
		return
	}
	_ = p.running[i].Process.Kill()
	_ = p.running[i].Wait() // it was killed
	_ = p.input[i].Close()
	p.running[i] = nil
}

// leader returns which member leads.
func (p *processes) leader() int {
	p.t.Helper()
	found := 0
	eventually(p.t, "there is a leader", func() bool {
		for i, cl := range p.clients {
			ctx, cancel := contextFor(p.t, time.Second)
			st, err := cl.Status(ctx, "http://"+p.configs[i].Client)
			cancel()
			if err == nil && st.Leader == st.Header.MemberId {
				found = i
				return true
			}
		}
		return false
	})
	return found
}

// Members are killed and stopped as processes are, while replicas change a lock and a hold is renewed.
//
// Promises S-110, S-111, S-114.
func TestWhatWasAcknowledgedOutlivesMembersThatAreKilledAndStopped(t *testing.T) {
	t.Parallel()
	p := startProcesses(t, 3)
	var at []string
	for _, c := range p.configs {
		at = append(at, c.Client)
	}
	target := "etcd://" + strings.Join(at, ",") + "/test"
	var stores []*Store
	for range 2 {
		ctx, cancel := contextFor(t, patience)
		s, err := Open(ctx, target, Options{Timeout: longTimeout})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		stores = append(stores, s)
	}
	m := lokt.NewManager(stores[0])
	const ttl = 20 * time.Second
	h := acquire(t, m, claimOf("held", "a", ttl))

	var done atomic.Bool
	var clients sync.WaitGroup
	var mu sync.Mutex
	acknowledged, longest := map[string]bool{}, time.Duration(0)
	for i := range 4 {
		clients.Go(func() {
			for n := 0; !done.Load(); n++ {
				id, asked := fmt.Sprintf("%d-%d", i, n), time.Now()
				err := stores[i%2].Update(t.Context(), fmt.Sprint("x", i%2), addHolder(id))
				mu.Lock()
				longest = max(longest, time.Since(asked))
				if err == nil {
					acknowledged[id] = true
				} else if !errors.Is(err, lokt.ErrUnavailable) {
					t.Error(err)
				}
				mu.Unlock()
				time.Sleep(10 * time.Millisecond) // records grow with every change
			}
		})
	}
	clients.Go(func() {
		for !done.Load() {
			asked := time.Now()
			if _, err := m.Renew(t.Context(), lokt.Renewal{Name: "held", LeaseID: h.LeaseID}); err != nil && (!errors.Is(err, lokt.ErrUnavailable) || time.Since(asked) < longTimeout) {
				t.Errorf("renewal: %v", err)
			}
			if snap, err := stores[1].View(t.Context(), "held"); err == nil && len(snap.Live()) != 1 {
				t.Errorf("held by %+v", snap.Lock.Holders)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	for range 2 {
		leader := p.leader()
		p.kill(leader)
		next := p.leader()
		p.start(leader)
		eventually(t, "the member answers again", func() bool {
			ctx, cancel := contextFor(t, time.Second)
			defer cancel()
			_, err := p.clients[leader].Get(ctx, "any")
			return err == nil
		})
		if err := p.running[next].Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another one leads", func() bool { return p.leader() != next })
		if err := p.running[next].Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	done.Store(true)
	clients.Wait()
	times := map[string]int{}
	for _, name := range []string{"x0", "x1"} {
		snap, err := stores[1].View(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for i, in := range snap.Lock.Holders {
			times[in.LeaseID]++
			if i > 0 && in.Token <= snap.Lock.Holders[i-1].Token {
				t.Errorf("token %d follows %d", in.Token, snap.Lock.Holders[i-1].Token)
			}
		}
	}
	for id := range acknowledged {
		if times[id] != 1 {
			t.Errorf("%s was acknowledged and is there %d times", id, times[id])
		}
	}
	t.Logf("%d changes were acknowledged; the longest took %v", len(acknowledged), longest)
	if again, err := m.Renew(t.Context(), lokt.Renewal{Name: "held", LeaseID: h.LeaseID}); err != nil || again.Token != h.Token {
		t.Errorf("renewed %+v, %v", again, err)
	}
}
