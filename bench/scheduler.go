package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// base begins the paths of the scheduler's routes.
const base = "/api/system/scheduler"

// worker is a connection that leases jobs.
type worker struct {
	*httpConn
	id string
}

func newWorker(dial dialer, addr, id string) (*worker, error) {
	c, err := dialHTTP(dial, addr)
	if err != nil {
		return nil, err
	}
	return &worker{c, id}, nil
}

func (w *worker) submit() error {
	_, err := w.post(base+"/jobs", `{"payload":{"n":1}}`)
	return err
}

// request leases a job and returns the lease's ID.
func (w *worker) request() (string, error) {
	b, err := w.post(base+"/leases/request", `{"worker_id":"`+w.id+`"}`)
	if err != nil {
		return "", err
	}
	id := member(b, "lease_id")
	if id == "" {
		return "", fmt.Errorf("no lease: %s", b)
	}
	return id, nil
}

func (w *worker) beat(lease string) error {
	_, err := w.post(base+"/leases/"+lease+"/heartbeat", `{"worker_id":"`+w.id+`"}`)
	return err
}

func (w *worker) complete(lease string) error {
	_, err := w.post(base+"/leases/"+lease+"/complete", `{"worker_id":"`+w.id+`","status":"completed"}`)
	return err
}

// cycle submits a job, leases one, sends heartbeats and completes it.
func (w *worker) cycle(beats int) error {
	if err := w.submit(); err != nil {
		return err
	}
	lease, err := w.request()
	if err != nil {
		return err
	}
	for range beats {
		if err := w.beat(lease); err != nil {
			return err
		}
	}
	return w.complete(lease)
}

// submitMany submits n jobs, 1,000 at a time.
func submitMany(addr string, n int) error {
	c, err := dialHTTP(dial, addr)
	if err != nil {
		return err
	}
	defer c.close()
	for n > 0 {
		k := min(n, 1000)
		if _, err := c.post(base+"/jobs", `{"jobs":[`+strings.TrimSuffix(strings.Repeat(`{"payload":{"n":1}},`, k), ",")+`]}`); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// lease takes n leases, over 16 connections, for one worker.
func lease(addr string, n int) ([]string, error) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		ids   []string
		first error
	)
	for i := range 16 {
		wg.Go(func() {
			w, err := newWorker(dial, addr, "bench")
			var mine []string
			if err == nil {
				defer w.close()
				for range (n + 15 - i) / 16 {
					var id string
					if id, err = w.request(); err != nil {
						break
					}
					mine = append(mine, id)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, mine...)
			if first == nil {
				first = err
			}
		})
	}
	wg.Wait()
	return ids, first
}

// beatOnce sends the first heartbeat of each lease, which starts its job: that is stored, and what is measured is what follows.
func beatOnce(addr string, leases []string) error {
	c, err := dialHTTP(dial, addr)
	if err != nil {
		return err
	}
	defer c.close()
	for some := range slices.Chunk(leases, 100) {
		if _, err := c.post(base+"/leases/heartbeat", `{"worker_id":"bench","lease_ids":["`+strings.Join(some, `","`)+`"]}`); err != nil {
			return err
		}
	}
	return nil
}

// bareHandler serves, on a port of its own process's choice, what decodes a heartbeat and answers like one, and nothing
// else. It runs in this program started anew, so that it costs its own process as the daemon does.
func bareHandler() error {
	l, err := listen()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+base+"/leases/{id}/heartbeat", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			WorkerID string `json:"worker_id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.WorkerID == "" || r.PathValue("id") == "" {
			http.Error(w, "bad", http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct {
			OK        bool   `json:"ok"`
			ExpiresAt string `json:"expires_at"`
		}{true, time.Now().UTC().Format("2006-01-02T15:04:05.000Z")})
	})
	fmt.Printf("listening on http://%s \n", l.Addr())
	return (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).Serve(l)
}

// bareServer starts a bare handler.
func (e *env) bareServer() (*server, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s, _, err := startServer(e.dir, exe, "-bare")
	return s, err
}

// beats returns how many heartbeats per second the server answers on 16 connections that take turns through the leases.
func beats(addr string, leases []string, d time.Duration) (float64, error) {
	return load(16, d, func(dial dialer, i int) (func() error, func(), error) {
		w, err := newWorker(dial, addr, "bench")
		if err != nil {
			return nil, nil, err
		}
		at := i
		return func() error {
			at = (at + 16) % len(leases)
			return w.beat(leases[at])
		}, w.close, nil
	})
}

// fewRounds are for what is the same in one second as in another.
const fewRounds = 3

// rounds measures each rate in turn, so many times, which is an odd number, and returns the medians.
func rounds(times int, fs ...func() (float64, error)) ([]float64, error) {
	all := make([][]float64, len(fs))
	for range times {
		for i, f := range fs {
			r, err := f()
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], r)
		}
	}
	medians := make([]float64, len(fs))
	for i := range all {
		slices.Sort(all[i])
		medians[i] = all[i][times/2]
	}
	return medians, nil
}

func perSecond(r float64) string { return fmt.Sprintf("%.0f/s", r) }

func (e *env) span(full time.Duration) time.Duration {
	return max(300*time.Millisecond, time.Duration(float64(full)*e.scale))
}

func schedulerBeats(e *env) ([]result, error) {
	bare, err := e.bareServer()
	if err != nil {
		return nil, err
	}
	defer bare.stop()
	many := e.n(100_000)
	few, _, err := e.loktd("beats-few.db", "--capacity", "1000000", "--lease-ttl", "1h")
	if err != nil {
		return nil, err
	}
	defer few.stop()
	lots, _, err := e.loktd("beats-many.db", "--capacity", "1000000", "--lease-ttl", "1h")
	if err != nil {
		return nil, err
	}
	defer lots.stop()
	leases := map[*server][]string{}
	for s, n := range map[*server]int{few: 64, lots: many} {
		if err := submitMany(s.addr, n); err != nil {
			return nil, err
		}
		if leases[s], err = lease(s.addr, n); err != nil {
			return nil, err
		}
		if err := beatOnce(s.addr, leases[s]); err != nil {
			return nil, err
		}
		if err := s.settle(); err != nil { // until all that is stored
			return nil, err
		}
	}
	batch := `{"worker_id":"bench","lease_ids":["` + strings.Join(leases[lots][:min(100, many)], `","`) + `"]}`
	r, err := rounds(fewRounds,
		func() (float64, error) { return beats(bare.addr, leases[few], e.span(2*time.Second)) },
		func() (float64, error) { return beats(few.addr, leases[few], e.span(2*time.Second)) },
		func() (float64, error) { return beats(lots.addr, leases[lots], e.span(2*time.Second)) },
		func() (float64, error) {
			return load(16, e.span(2*time.Second), func(dial dialer, _ int) (func() error, func(), error) {
				w, err := newWorker(dial, lots.addr, "bench")
				if err != nil {
					return nil, nil, err
				}
				return func() error { _, err := w.post(base+"/leases/heartbeat", batch); return err }, w.close, nil
			})
		},
	)
	if err != nil {
		return nil, err
	}
	return []result{
		faster("heartbeats, 64 live leases, 16 connections", r[1], r[0], "bare net/http handler that decodes and answers the same JSON", 0.6),
		faster(fmt.Sprintf("heartbeats, %d live leases", many), r[2], r[1], "with 64", 0.8),
		{
			what: "batches of 100 heartbeats", ours: fmt.Sprintf("%.0f/s, %.2f million renewals/s", r[3], r[3]*100/1e6), theirs: perSecond(r[0]) + " (the bare handler)",
			ratio: r[3] / r[0], least: scaled(15_000), note: fmt.Sprintf("aim: 1.5 million renewals/s where the bare handler answers %d requests/s", reference),
		},
	}, nil
}

// faster returns a result for two rates, whose ratio should be at least the aim.
func faster(what string, ours, theirs float64, peer string, aim float64) result {
	return result{what: what, ours: perSecond(ours), theirs: perSecond(theirs) + " (" + peer + ")", ratio: ours / theirs, least: aim}
}

// schedulerGrants measures how long a parked worker waits from the moment that a job is submitted.
func schedulerGrants(e *env) ([]result, error) {
	d, _, err := e.loktd("grants.db")
	if err != nil {
		return nil, err
	}
	defer d.stop()
	w, err := newWorker(dial, d.addr, "parked")
	if err != nil {
		return nil, err
	}
	defer w.close()
	s, err := newWorker(dial, d.addr, "submitter")
	if err != nil {
		return nil, err
	}
	defer s.close()
	var waits []time.Duration
	for range e.n(1000) {
		type grant struct {
			at  time.Time
			id  string
			err error
		}
		granted := make(chan grant, 1)
		go func() {
			b, err := w.post(base+"/leases/request", `{"worker_id":"parked","wait_ms":20000}`)
			g := grant{at: time.Now(), err: err, id: member(b, "lease_id")}
			if err == nil && g.id == "" {
				g.err = fmt.Errorf("no lease: %s", b)
			}
			granted <- g
		}()
		time.Sleep(2 * time.Millisecond) // until it is parked
		begun := time.Now()
		if err := s.submit(); err != nil {
			return nil, err
		}
		g := <-granted
		if g.err != nil {
			return nil, g.err
		}
		waits = append(waits, g.at.Sub(begun))
		if err := s.completeFor("parked", g.id); err != nil {
			return nil, err
		}
	}
	slices.Sort(waits)
	at := func(p float64) float64 { return float64(waits[int(p*float64(len(waits)-1))]) / 1e6 }
	return []result{
		{what: "submit → a parked worker holds the lease, median", ours: fmt.Sprintf("%.2f ms", at(0.5)), theirs: "-", ratio: at(0.5), unit: "ms", aim: 2},
		{what: "the same, 99th percentile", ours: fmt.Sprintf("%.2f ms", at(0.99)), theirs: "-", ratio: at(0.99), unit: "ms", aim: 10},
	}, nil
}

func (w *worker) completeFor(id, lease string) error {
	return (&worker{w.httpConn, id}).complete(lease)
}
