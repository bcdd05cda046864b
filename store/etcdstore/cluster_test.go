package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/testkit/ports"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// patience is how long tests wait for what must happen.
const patience = 60 * time.Second

// contextFor returns a context that ends after the time, or with the test.
func contextFor(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// member is one etcd server in this process. Its client address passes through a gate, so that it can be cut off.
type member struct {
	name    string
	config  *embed.Config
	running *embed.Etcd
	gate    *servers.Proxy
	front   string // the gate's address
}

// cluster is an etcd.
type cluster struct {
	t       testing.TB
	members []*member
	prefix  atomic.Int64
}

// startCluster starts so many members. Nothing is flushed to the disk unless durable is set: then members keep what they
// promise when they are stopped at any moment.
func startCluster(t testing.TB, size int, durable bool, edits ...func(*embed.Config)) *cluster {
	t.Helper()
	c := &cluster{t: t}
	dir := t.TempDir()
	if !durable {
		if shm, err := os.MkdirTemp("/dev/shm", "lokt-etcd-"); err == nil {
			t.Cleanup(func() { _ = os.RemoveAll(shm) })
			dir = shm
		}
	}
	addresses, err := ports.Free(2 * size)
	if err != nil {
		t.Fatal(err)
	}
	var initial []string
	for i := range size {
		initial = append(initial, fmt.Sprintf("m%d=http://%s", i, addresses[2*i]))
	}
	for i := range size {
		cfg := embed.NewConfig()
		cfg.Name = fmt.Sprint("m", i)
		cfg.Dir = filepath.Join(dir, cfg.Name)
		peer, client := url.URL{Scheme: "http", Host: addresses[2*i]}, url.URL{Scheme: "http", Host: addresses[2*i+1]}
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		cfg.InitialCluster = strings.Join(initial, ",")
		cfg.TickMs, cfg.ElectionMs = 20, 200
		if size > 1 { // several members and their clients share two cores with other tests
			cfg.TickMs, cfg.ElectionMs = 50, 500
		}
		cfg.UnsafeNoFsync = !durable
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		cfg.LogLevel = "fatal"
		for _, edit := range edits {
			edit(cfg)
		}
		c.members = append(c.members, &member{name: cfg.Name, config: cfg, gate: servers.NewProxy(t, client.Host)})
		last := c.members[i]
		last.front = last.gate.Addr()
	}
	c.start(c.members...)
	t.Cleanup(func() {
		for _, m := range c.members {
			m.stop()
		}
	})
	return c
}

// start starts members together, and waits until they are ready.
func (c *cluster) start(members ...*member) {
	c.t.Helper()
	for _, m := range members {
		e, err := embed.StartEtcd(m.config)
		if err != nil {
			c.t.Fatalf("start %s: %v", m.name, err)
		}
		m.running = e
		m.gate.Heal()
	}
	for _, m := range members {
		select {
		case <-m.running.Server.ReadyNotify():
		case <-time.After(patience):
			c.t.Fatalf("%s is not ready", m.name)
		}
	}
}

// stop stops the member at once, as far as that can be done in one process: it does not hand over its leadership.
func (m *member) stop() {
	if m.running == nil {
		return
	}
	m.gate.Refuse()
	m.running.Server.HardStop()
	m.running.Close()
	m.running = nil
}

// leader returns the member that all running ones follow.
func (c *cluster) leader() *member {
	c.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if m := c.leading(); m != nil {
			return m
		}
	}
	c.t.Fatal("there is no leader")
	return nil
}

// leading returns the member that all running ones follow at the moment, or nil.
func (c *cluster) leading() *member {
	votes := map[types.ID]int{}
	running := 0
	for _, m := range c.members {
		if m.running != nil {
			running++
			votes[m.running.Server.Leader()]++
		}
	}
	for _, m := range c.members {
		if m.running != nil && votes[m.running.Server.MemberID()] == running {
			return m
		}
	}
	return nil
}

// others returns the running members but one.
func (c *cluster) others(m *member) []*member {
	return slices.DeleteFunc(slices.Clone(c.members), func(o *member) bool { return o == m || o.running == nil })
}

// isolate cuts the member off from the others, but not from its clients; rejoin undoes that.
func (c *cluster) isolate(m *member) {
	for _, o := range c.others(m) {
		m.running.Server.CutPeer(o.running.Server.MemberID())
		o.running.Server.CutPeer(m.running.Server.MemberID())
	}
}

func (c *cluster) rejoin(m *member) {
	for _, o := range c.others(m) {
		m.running.Server.MendPeer(o.running.Server.MemberID())
		o.running.Server.MendPeer(m.running.Server.MemberID())
	}
}

// url names all members and a prefix of its own.
func (c *cluster) url() string { return c.urlAt(fmt.Sprint("test-", c.prefix.Add(1))) }

func (c *cluster) urlAt(prefix string, members ...*member) string {
	var hosts []string
	if len(members) == 0 {
		members = c.members
	}
	for _, m := range members {
		hosts = append(hosts, m.front)
	}
	return "etcd://" + strings.Join(hosts, ",") + "/" + prefix
}

// open opens a store that the test need not close.
func (c *cluster) open(t testing.TB, url string, o Options) *Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := Open(ctx, url, o)
	for errors.Is(err, lokt.ErrUnavailable) && ctx.Err() == nil { // its timeout may be short, and this machine slow
		s, err = Open(ctx, url, o)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// client returns a client of etcd's own.
func (c *cluster) client(t testing.TB) *clientv3.Client {
	t.Helper()
	var at []string
	for _, m := range c.members {
		at = append(at, "http://"+m.front)
	}
	cl, err := clientv3.New(clientv3.Config{Endpoints: at, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return cl
}
