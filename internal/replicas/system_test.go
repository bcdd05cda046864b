//go:build unix

package replicas_test

import (
	"bufio"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/lokt-dev/lokt/internal/cli"
	"github.com/lokt-dev/lokt/internal/daemon"
	"github.com/lokt-dev/lokt/internal/testkit/parallel"
	"github.com/lokt-dev/lokt/internal/testkit/ports"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// The processes of these tests are this test's own binary in other roles.
func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "":
		code := parallel.Run(m, 4)
		shared.Stop()
		os.Exit(code)
	case "daemon":
		os.Exit(daemon.Main(os.Args[1:], daemon.System()))
	case "lokt":
		os.Exit(cli.Main(os.Args[1:]))
	case "contender":
		if err := contend(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "contender:", err)
			os.Exit(1)
		}
	case "etcd":
		if err := etcdMember(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
			fmt.Fprintln(os.Stderr, "etcd:", err)
			os.Exit(1)
		}
	}
}

// patience is how long anything may take on a machine that is busy with other things.
const patience = 60 * time.Second

// process is something that can be killed, stopped and started again.
type process struct {
	mu   sync.Mutex
	make func() *exec.Cmd
	cmd  *exec.Cmd
	line string // the first that it wrote, once it is ready
	done chan struct{}
}

// start runs the process and waits for its first line.
func (p *process) start(t *testing.T) error {
	t.Helper()
	cmd := p.make()
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	done, ready := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(done)
		lines := bufio.NewReader(out)
		line, _ := lines.ReadString('\n')
		ready <- line
		_, _ = io.Copy(io.Discard, lines)
		_ = cmd.Wait()
	}()
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	select {
	case p.line = <-ready:
	case <-time.After(patience):
	}
	if p.line == "" {
		_ = cmd.Process.Kill()
		<-done
		return fmt.Errorf("%v did not become ready", cmd.Args[1:])
	}
	return nil
}

// signal sends a signal, unless the process has ended.
func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Signal(s)
}

// kill ends the process and waits until it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// replica is a daemon, with proxies on both sides.
type replica struct {
	process
	front *servers.Proxy   // clients come through it
	back  []*servers.Proxy // to the store
}

// startReplica starts a daemon whose store's addresses are reached through proxies of its own.
func startReplica(t *testing.T, addresses []string, flags func(addresses []string) []string) *replica {
	t.Helper()
	r := &replica{}
	var through []string
	for _, a := range addresses {
		p := servers.NewProxy(t, a)
		r.back = append(r.back, p)
		through = append(through, p.Addr())
	}
	args := append([]string{"serve", "--listen", "127.0.0.1:0", "--log-level", "error", "--lease-ttl", "3s", "--reserve-after", "2s"}, flags(through)...)
	r.make = func() *exec.Cmd { return command(t, "daemon", args...) }
	if err := r.start(t); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.signal(syscall.SIGCONT)
		r.kill()
	})
	r.front = servers.NewProxy(t, r.address())
	return r
}

func (r *replica) address() string {
	_, u, _ := strings.Cut(strings.TrimSpace(r.line), " listening on ")
	return strings.TrimPrefix(u, "http://")
}

// restart starts a daemon that was killed again.
func (r *replica) restart(t *testing.T) error {
	t.Helper()
	if err := r.start(t); err != nil {
		return err
	}
	r.front.To(r.address())
	return nil
}

// heal ends whatever was done to the replica, short of killing it.
func (r *replica) heal() {
	r.signal(syscall.SIGCONT)
	r.front.Heal()
	for _, p := range r.back {
		p.Heal()
	}
}

// urls returns where clients find the replicas.
func urls(replicas []*replica) string {
	var all []string
	for _, r := range replicas {
		all = append(all, "http://"+r.front.Addr())
	}
	return strings.Join(all, ",")
}

// etcdMember runs a member of a cluster in this process, until that is killed.
func etcdMember(name, dir, peer, client, cluster string) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = name, dir
	p, c := url.URL{Scheme: "http", Host: peer}, url.URL{Scheme: "http", Host: client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{p}, []url.URL{p}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{c}, []url.URL{c}
	cfg.InitialCluster = cluster
	cfg.TickMs, cfg.ElectionMs = 50, 500
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.LogLevel = "fatal"
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	go func() {
		<-e.Server.ReadyNotify()
		fmt.Println("ready")
	}()
	return <-e.Err()
}

// etcdCluster is an etcd of three processes.
type etcdCluster struct {
	members []*process
	clients []string // addresses
	etcd    *clientv3.Client
}

func startEtcd(t *testing.T) *etcdCluster {
	t.Helper()
	addresses, err := ports.Free(6)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var cluster []string
	for i := range 3 {
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, addresses[i]))
	}
	c := &etcdCluster{clients: addresses[3:]}
	var wg sync.WaitGroup
	for i := range 3 {
		m := &process{make: func() *exec.Cmd {
			name := fmt.Sprint("m", i)
			return command(t, "etcd", name, filepath.Join(dir, name), addresses[i], addresses[3+i], strings.Join(cluster, ","))
		}}
		c.members = append(c.members, m)
		wg.Go(func() {
			if err := m.start(t); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, m := range c.members {
			m.signal(syscall.SIGCONT)
			m.kill()
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: c.clients, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	c.etcd = client
	return c
}

// leader returns the member that leads, or the first.
func (c *etcdCluster) leader(t *testing.T) *process {
	t.Helper()
	for i, addr := range c.clients {
		ctx, cancel := contextWithin(t, 2*time.Second)
		s, err := c.etcd.Status(ctx, addr)
		cancel()
		if err == nil && s.Leader == s.Header.MemberId {
			return c.members[i]
		}
	}
	return c.members[0]
}
