package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// replica starts a daemon on a store that others may share.
func (e *env) replica(flags ...string) (*server, error) {
	args := append([]string{"serve", "--listen", "127.0.0.1:0", "--capacity", "100000"}, flags...)
	s, _, err := startServer(e.dir, filepath.Join(e.dir, "loktd"), args...)
	return s, err
}

// cyclers is how many connections submit, request and complete jobs, and how many goroutines insert them for River: enough that both are
// limited by what they do, not by how long each waits for the disk.
const cyclers = 128

// kill ends the process at once.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// replicas measures several daemons on one store.
func replicas(e *env) ([]result, error) {
	pg, err := startPostgres()
	if err != nil {
		return nil, err
	}
	results := []result{{what: "replicas on PostgreSQL", ours: "-", theirs: "PostgreSQL is not installed", note: "not measured"}}
	if pg != nil {
		defer pg.stop()
		if results, err = replicasOnPostgres(e, pg); err != nil {
			return nil, err
		}
	}
	failover, err := etcdFailover(e)
	return append(results, failover...), err
}

func replicasOnPostgres(e *env, pg *postgres) ([]result, error) {
	groups := map[int][]*server{}
	for _, n := range []int{1, 3} {
		url, err := pg.schema(fmt.Sprint("replicas", n))
		if err != nil {
			return nil, err
		}
		for range n {
			s, err := e.replica("--store", url)
			if err != nil {
				return nil, err
			}
			defer s.stop()
			groups[n] = append(groups[n], s)
		}
	}
	measures := []func() (float64, error){e.jobCycles(groups[1]), e.jobCycles(groups[3]), e.lockTurns(groups[1]), e.lockTurns(groups[3])}
	river, err := pg.schema("river")
	if err != nil {
		return nil, err
	}
	_, noPeers := e.peers()
	if noPeers == nil {
		measures = append(measures, func() (float64, error) {
			r, _, err := e.byPeer("river", river)(cyclers, e.span(3*time.Second))
			return r, err
		})
	}
	r, err := rounds(fewRounds, measures...)
	if err != nil {
		return nil, err
	}
	peer := result{what: "durable job cycles against River", ours: perSecond(r[0]), theirs: "bench/peers cannot be built here", ratio: r[0], unit: "/s", note: "not compared"}
	if noPeers == nil {
		peer = faster(fmt.Sprintf("submit + request + complete over HTTP, PostgreSQL, %d connections", cyclers), r[0], r[4],
			fmt.Sprintf("River on the same server: %d goroutines insert one job each time, 200 work, in one process", cyclers), 0)
	}
	const shared = "the replicas, the database and the load share this machine's CPUs: growth would need machines of their own"
	jobs := faster("the same cycles by three replicas", r[1], r[0], "by one", 0)
	locks := faster("acquire + release over HTTP, PostgreSQL, 16 at a time, by three replicas", r[3], r[2], "by one", 0)
	jobs.note, locks.note = shared, shared
	inProcess, err := replicaTurns(e, pg)
	if err != nil {
		return nil, err
	}
	failover, err := failovers(e, pg)
	return append([]result{peer, jobs, locks, inProcess}, failover...), err
}

// jobCycles returns what measures cycles of jobs over connections to all of the replicas.
func (e *env) jobCycles(all []*server) func() (float64, error) {
	return func() (float64, error) {
		return rate(cyclers, e.span(3*time.Second), func(i int) (func() error, func(), error) {
			w, err := newWorker(dial, all[i%len(all)].addr, fmt.Sprint("bench-", i))
			if err != nil {
				return nil, nil, err
			}
			return func() error { return w.cycle(0) }, w.close, nil
		})
	}
}

// lockTurns returns what measures acquiring and releasing through all of the replicas.
func (e *env) lockTurns(all []*server) func() (float64, error) {
	return func() (float64, error) {
		var clients []*httpapi.Client
		for _, s := range all {
			c, err := httpapi.New("http://"+s.addr, httpapi.ClientOptions{})
			if err != nil {
				return 0, err
			}
			defer func() { _ = c.Close() }()
			clients = append(clients, c)
		}
		return rate(16, e.span(2*time.Second), func(i int) (func() error, func(), error) {
			return turns(clients[i%len(clients)])(i)
		})
	}
}

// renewals renews a lease as fast as it may until told to stop, and returns the longest time between two that went well.
func renewals(c *httpapi.Client, stop <-chan struct{}) (longest time.Duration, err error) {
	ctx := context.Background()
	owner := lokt.Owner{ID: "bench", Host: "bench"}
	h, err := c.Acquire(ctx, lokt.Claim{
		Name: "failover-" + lokt.NewLeaseID(), LeaseID: lokt.NewLeaseID(), Owner: owner, Strict: true, Attended: true, TTL: 30 * time.Second,
	})
	if err != nil {
		return 0, err
	}
	for last := time.Now(); ; {
		if _, err := c.Renew(ctx, lokt.Renewal{Name: h.Name, LeaseID: h.LeaseID}); err != nil && !errors.Is(err, lokt.ErrUnavailable) {
			return 0, err
		} else if err == nil {
			longest, last = max(longest, time.Since(last)), time.Now()
		}
		select {
		case <-stop:
			_, err := c.Release(ctx, lokt.Target{Name: h.Name, LeaseID: h.LeaseID, Owner: owner})
			return longest, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// gap measures the longest time without a renewal while something breaks.
func gap(urls string, breaks func(c *httpapi.Client) error) (time.Duration, error) {
	c, err := httpapi.New(urls, httpapi.ClientOptions{})
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	stop := make(chan struct{})
	type outcome struct {
		longest time.Duration
		err     error
	}
	done := make(chan outcome, 1)
	go func() {
		longest, err := renewals(c, stop)
		done <- outcome{longest, err}
	}()
	time.Sleep(500 * time.Millisecond)
	err = breaks(c)
	time.Sleep(4 * time.Second)
	close(stop)
	o := <-done
	return o.longest, errors.Join(err, o.err)
}

// failovers measures what a replica that is killed costs a client that knows two.
func failovers(e *env, pg *postgres) ([]result, error) {
	url, err := pg.schema("failover")
	if err != nil {
		return nil, err
	}
	var gaps []time.Duration
	for range e.n(5) {
		d, err := func() (time.Duration, error) {
			var both []*server
			for range 2 {
				s, err := e.replica("--store", url)
				if err != nil {
					return 0, err
				}
				defer s.kill()
				both = append(both, s)
			}
			return gap("http://"+both[0].addr+",http://"+both[1].addr, func(c *httpapi.Client) error {
				for _, s := range both {
					if strings.HasSuffix(c.URL(), s.addr) {
						s.kill()
					}
				}
				return nil
			})
		}()
		if err != nil {
			return nil, err
		}
		gaps = append(gaps, d)
	}
	worst := slices.Max(gaps)
	return []result{{
		what: fmt.Sprintf("kill -9 of the replica that a client with two URLs uses: longest time between two renewals, worst of %d", len(gaps)),
		ours: ms(worst), theirs: "median " + ms(median(gaps)), ratio: worst.Seconds(), unit: "s", aim: 1,
	}}, nil
}

// etcdMember is one process of an etcd cluster.
type etcdMember struct {
	cmd  *exec.Cmd
	addr string // of clients
}

// etcdCluster starts three members whose elections are short, or none if etcd is not installed.
func (e *env) etcdCluster(name string) (all []*etcdMember, err error) {
	path, err := exec.LookPath("etcd")
	if err != nil {
		return nil, nil
	}
	var addrs, urls []string
	for range 6 {
		l, err := listen()
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		addrs = append(addrs, l.Addr().String())
	}
	for i := range 3 {
		urls = append(urls, fmt.Sprintf("m%d=http://%s", i, addrs[i]))
	}
	log, err := os.Create(filepath.Join(e.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	for i := range 3 {
		peer, client := "http://"+addrs[i], "http://"+addrs[3+i]
		m := &etcdMember{addr: addrs[3+i], cmd: exec.Command(path, "--name", fmt.Sprint("m", i), "--data-dir", filepath.Join(e.dir, fmt.Sprint(name, i)), //nolint:noctx // killed by hand
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--listen-client-urls", client, "--advertise-client-urls", client,
			"--initial-cluster", strings.Join(urls, ","), "--heartbeat-interval", "50", "--election-timeout", "500")}
		m.cmd.Stdout, m.cmd.Stderr = log, log
		all = append(all, m)
	}
	return all, nil
}

// leader asks a member who leads, which is 0 if it knows of none.
func leader(ctx context.Context, c *clientv3.Client, addr string) (leads uint64, self uint64) {
	limited, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	s, err := c.Status(limited, addr)
	if err != nil {
		return 0, 0
	}
	return s.Leader, s.Header.MemberId
}

// etcdFailover measures what the death of etcd's leader costs beyond the election of the next.
func etcdFailover(e *env) ([]result, error) {
	what := "kill -9 of etcd's leader: longest time between two renewals, less the election"
	var beyond, gaps, elections []time.Duration
	for i := range e.n(5) {
		all, err := e.etcdCluster(fmt.Sprintf("cluster-%d-", i))
		if err != nil {
			return nil, err
		}
		if all == nil {
			return []result{{what: what, ours: "-", theirs: "etcd is not installed", note: "not measured"}}, nil
		}
		g, election, err := leaderDies(e, all)
		if err != nil {
			return nil, err
		}
		gaps, elections, beyond = append(gaps, g), append(elections, election), append(beyond, max(g-election, 0))
	}
	worst := slices.Max(beyond)
	return []result{{
		what: fmt.Sprintf("%s, worst of %d", what, len(gaps)), ours: "gaps up to " + ms(slices.Max(gaps)), theirs: "elections up to " + ms(slices.Max(elections)),
		ratio: worst.Seconds(), unit: "s", aim: 1,
	}}, nil
}

// leaderDies starts the cluster and a daemon on it, and kills the leader.
func leaderDies(e *env, all []*etcdMember) (longest, election time.Duration, err error) {
	var addrs []string
	for _, m := range all {
		addrs = append(addrs, m.addr)
		if err := m.cmd.Start(); err != nil {
			return 0, 0, err
		}
		defer func() {
			_ = m.cmd.Process.Kill()
			_ = m.cmd.Wait()
		}()
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: addrs, DialTimeout: 10 * time.Second})
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = c.Close() }()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err = c.Get(e.ctx, "/"); err == nil {
			break
		}
		if time.Now().After(end) {
			return 0, 0, err
		}
	}
	s, err := e.replica("--store", "etcd://"+strings.Join(addrs, ",")+"/failover", "--jobs-store", "none")
	if err != nil {
		return 0, 0, err
	}
	defer s.stop()
	longest, err = gap("http://"+s.addr, func(*httpapi.Client) error {
		begun, old := time.Now(), uint64(0)
		rest := slices.Clone(addrs)
		for i, m := range all {
			if leads, self := leader(e.ctx, c, m.addr); leads != 0 && leads == self {
				old, begun = self, time.Now()
				rest = slices.Delete(rest, i, i+1)
				if err := m.cmd.Process.Signal(syscall.SIGKILL); err != nil {
					return err
				}
				break
			}
		}
		if old == 0 {
			return errors.New("nobody leads the cluster")
		}
		for time.Since(begun) < 20*time.Second {
			for _, addr := range rest {
				if now, _ := leader(e.ctx, c, addr); now != 0 && now != old {
					election = time.Since(begun)
					return nil
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		return errors.New("nobody was elected")
	})
	return longest, election, err
}
