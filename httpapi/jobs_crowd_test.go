package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// errDied says that a plain worker has ended its process.
var errDied = errors.New("the worker died")

// plainWorker works as the programs do that know only the plain contract: it asks for jobs, sends its first heartbeat
// one interval after the grant, completes, and dies on any answer but 200. A completion that fails it answers with
// "failed", once. work says how long a job takes and how it ends. It returns when nothing is queued.
func (s *site) plainWorker(worker string, waitMS int, work func(job map[string]any) (time.Duration, string)) error {
	post := func(path string, body map[string]any) (map[string]any, error) {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r, err := http.NewRequestWithContext(s.Context(), http.MethodPost, s.url+scheduler+path, strings.NewReader(string(text)))
		if err != nil {
			return nil, err
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := s.client.Do(r)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		var v map[string]any
		if err := json.NewDecoder(answer.Body).Decode(&v); err != nil || answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%w: %s %v answered with %d %v, %w", errDied, path, body, answer.StatusCode, v, err)
		}
		return v, nil
	}
	ask := map[string]any{"worker_id": worker, "max_units": 100}
	if waitMS > 0 {
		ask["wait_ms"] = waitMS // those that know of it do
	}
	for {
		v, err := post("/leases/request", ask)
		if err != nil {
			return err
		}
		if v["denied"] == true {
			if v["code"] == "queue_empty" {
				return nil
			}
			if waitMS > 0 {
				continue
			}
			time.Sleep(time.Duration(v["retry_after_ms"].(float64)) * time.Millisecond)
			continue
		}
		lease := v["lease"].(map[string]any)
		path := "/leases/" + lease["lease_id"].(string)
		takes, status := work(v["job"].(map[string]any))
		interval := time.Duration(lease["heartbeat_interval_s"].(float64) * float64(time.Second))
		for takes > interval {
			time.Sleep(interval)
			takes -= interval
			if _, err := post(path+"/heartbeat", map[string]any{"worker_id": worker}); err != nil {
				return err
			}
		}
		time.Sleep(takes)
		if _, err := post(path+"/complete", map[string]any{"worker_id": worker, "status": status, "result": map[string]any{"by": worker}}); err != nil {
			return err
		}
	}
}

func TestPlainWorkersRunJobsOfAllKinds(t *testing.T) {
	bubbled(t, func(s *site) {
		kinds := []struct{ submit, status, ends string }{
			{`{}`, "completed", "completed"},
			{`{"type":"quick","priority":"high"}`, "completed", "completed"},
			{`{"type":"long","priority":"low","requested_units":60}`, "completed", "completed"},
			{`{"priority":"background","unique":true,"tags":["x"]}`, "completed", "completed"},
			{`{"type":"bad"}`, "failed", "failed"},
			{`{"type":"bad","max_attempts":3,"retry_backoff_s":5}`, "failed", "failed"},
			{`{"idempotency_key":"k","locks":["a"]}`, "completed", "completed"},
			{`{"idempotency_key":"l","locks":["a"]}`, "completed", "completed"},
			{`{"max_runtime_s":600}`, "completed", "completed"},
			{`{"type":"never"}`, "failed", "expired"}, // it outlives its worker's patience for heartbeats
			{`{"run_at":"` + time.Now().Add(40*time.Second).UTC().Format(time.RFC3339) + `"}`, "completed", "completed"},
		}
		want := map[string]string{}
		for range 3 {
			for _, k := range kinds[:9] {
				if strings.Contains(k.submit, "idempotency_key") {
					id := s.ok("POST", "/jobs", k.submit)["job_id"].(string)
					want[id] = k.ends
					continue
				}
				want[s.submit(k.submit)] = k.ends
			}
			want[s.submit(kinds[10].submit)] = "completed"
		}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				err := s.plainWorker(fmt.Sprint("w", i), 0, func(job map[string]any) (time.Duration, string) {
					switch job["type"] {
					case "quick":
						return time.Millisecond, "completed"
					case "long":
						return 10 * time.Minute, "completed"
					case "bad":
						return 20 * time.Second, "failed"
					}
					return 47 * time.Second, "completed"
				})
				if err != nil {
					s.Error(err)
				}
			})
		}
		wg.Wait()
		for id, state := range want {
			s.state(id, state)
		}
		s.capacity(0, 100, 0)
		if n := len(s.dig(s.ok("GET", "/jobs?limit=1000", ""), "jobs").([]any)); n != len(want) {
			s.Errorf("there are %d jobs, not %d", n, len(want))
		}
	})
}

// Promise S-78.
func TestOfManyRequestsForOneJobExactlyOneIsGranted(t *testing.T) {
	s := newSite(t)
	for range 20 {
		start, granted := make(chan struct{}), make(chan string, 64)
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				<-start
				v := s.post("/leases/request", fmt.Sprintf(`{"worker_id":"w%d"}`, i))
				if v.status != 200 {
					s.Errorf("a request was answered with %d %s", v.status, v.body)
				} else if v.value["denied"] == false {
					granted <- fmt.Sprintf(`/leases/%v/complete w%d`, s.dig(v.value, "lease", "lease_id"), i)
				}
			})
		}
		id := s.submit(`{"requested_units":100}`)
		close(start)
		wg.Wait()
		if len(granted) != 1 {
			t.Fatalf("%d requests were granted one job", len(granted))
		}
		s.capacity(100, 0, 1)
		path, worker, _ := strings.Cut(<-granted, " ")
		s.ok("POST", path, fmt.Sprintf(`{"worker_id":%q,"status":"completed"}`, worker))
		s.state(id, "completed")
	}
}

// Promise S-78.
func TestSampledCapacityIsTheSumOverActiveLeasesWhileManyWork(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var specs []string
	for i := range 300 {
		specs = append(specs, fmt.Sprintf(`{"requested_units":%d,"priority":%q,"max_attempts":2,"retry_backoff_s":0}`, 1+i*7%40, []string{"high", "normal", "low", "background"}[i%4]))
	}
	s.ok("POST", "/jobs", `{"jobs":[`+strings.Join(specs, ",")+`]}`)
	ctx, stop := context.WithCancel(t.Context())
	samples := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			v := s.ok("GET", "/jobs?limit=1000", "") // the jobs and the snapshot of one moment
			leased, active := 0, 0
			for _, j := range s.dig(v, "jobs").([]any) {
				if state := s.dig(j, "job", "state"); state == "leased" || state == "running" {
					units, err := s.dig(j, "lease", "capacity_units").(json.Number).Int64()
					if err != nil {
						s.Error(err)
					}
					leased += int(units)
					active++
				}
			}
			for name, want := range map[string]int{"leased_capacity_units": leased, "available_capacity_units": 100 - leased, "active_leases": active} {
				s.has(fmt.Sprint(want), v, "snapshot", name)
			}
			n++
		}
		samples <- n
	}()
	var mu sync.Mutex
	done := map[string]int{}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			err := s.plainWorker(fmt.Sprint("w", i), 2000, func(job map[string]any) (time.Duration, string) {
				mu.Lock()
				defer mu.Unlock()
				if job["attempt"].(float64) == 1 && len(done)%5 == 0 {
					return 0, "failed"
				}
				done[job["job_id"].(string)]++
				return 0, "completed"
			})
			if err != nil {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	stop()
	if n := <-samples; n == 0 {
		t.Error("nothing was sampled")
	}
	for id, times := range done {
		if times != 1 {
			t.Errorf("job %s was done %d times", id, times)
		}
	}
	if len(done) != 300 {
		t.Errorf("%d jobs were done", len(done))
	}
	s.capacity(0, 100, 0)
}

func TestHeartbeatsThatRaceACompletionAgreeOnTheEnd(t *testing.T) {
	s := newSite(t)
	for range 30 {
		id := s.submit(`{}`)
		lease, _ := s.lease("w")
		var mu sync.Mutex
		var ends []string
		var wg sync.WaitGroup
		for _, status := range []string{"completed", "failed"} {
			wg.Go(func() {
				r := s.post("/leases/"+lease+"/complete", fmt.Sprintf(`{"worker_id":"w","status":%q}`, status))
				mu.Lock()
				defer mu.Unlock()
				if r.status != 200 {
					s.Errorf("completion was answered with %d %s", r.status, r.body)
				} else if r.value["applied"] == true {
					ends = append(ends, status)
				}
			})
			wg.Go(func() {
				for range 5 {
					if r := s.post("/leases/"+lease+"/heartbeat", `{"worker_id":"w"}`); r.status != 200 && r.body != `{"detail":"lease_not_found"}` {
						s.Errorf("a heartbeat was answered with %d %s", r.status, r.body)
					}
				}
			})
		}
		wg.Wait()
		if len(ends) != 1 {
			t.Fatalf("a lease ended %d times", len(ends))
		}
		s.state(id, ends[0])
		s.lost(lease, "w")
	}
}

func TestHeartbeatsThatRaceTheDeadlineWinOrLoseForGood(t *testing.T) {
	s := newSite(t, withConfig(jobs.Config{TTL: 200 * time.Millisecond}))
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			worker := fmt.Sprint("w", i)
			id := s.submit(fmt.Sprintf(`{"type":%q}`, worker))
			v := s.ok("POST", "/leases/request", fmt.Sprintf(`{"worker_id":%q,"types":[%q]}`, worker, worker))
			lease := s.dig(v, "lease", "lease_id").(string)
			time.Sleep(200*time.Millisecond + time.Duration(i-30)*time.Millisecond/4)
			r := s.post("/leases/"+lease+"/heartbeat", fmt.Sprintf(`{"worker_id":%q}`, worker))
			state := s.job(id)["state"]
			switch {
			case r.status == 200:
				if s.moment(r.value["expires_at"]).Before(s.moment(s.dig(v, "lease", "expires_at"))) {
					s.Errorf("expires_at moved back: %s after %v", r.body, v)
				}
			case r.body == `{"detail":"lease_not_found"}` && state == "expired":
			default:
				s.Errorf("a heartbeat was answered with %d %s, and the job is %v", r.status, r.body, state)
			}
		})
	}
	wg.Wait()
	for v := s.ok("GET", "/status", ""); v["active_leases"] != json.Number("0"); v = s.ok("GET", "/status", "") {
		time.Sleep(10 * time.Millisecond)
	}
	s.capacity(0, 100, 0)
}

func TestRequestsThatWaitAreAnsweredWhenTheServerStops(t *testing.T) {
	var stop context.CancelFunc
	bubbled(t, func(s *site) {
		s.submit(`{}`)
		lease, _ := s.lease("v")
		answers := make(chan map[string]any)
		for i := range 3 {
			go func() {
				answers <- s.ok("POST", "/leases/request", fmt.Sprintf(`{"worker_id":"w%d","wait_ms":30000}`, i))
			}()
		}
		beat := make(chan map[string]any)
		go func() { beat <- s.ok("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"v","wait_ms":30000}`) }()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		begin := time.Now()
		stop()
		for range 3 {
			v := <-answers
			s.has("true", v, "denied")
			s.has("no_eligible_job", v, "code")
		}
		s.has("true", <-beat, "drain")
		s.has("true", s.ok("POST", "/leases/request", `{"worker_id":"w","wait_ms":30000}`), "denied")
		if d := time.Since(begin); d != 0 {
			s.Errorf("that took %v", d)
		}
	}, func(_ *manager.Options, c *httpapi.Config) {
		c.Stop, stop = context.WithCancel(context.Background()) // in the bubble
	})
}

func TestDrainingManagerDeniesAndTellsWorkers(t *testing.T) {
	bubbled(t, func(s *site) {
		s.submit(`{}`)
		lease, _ := s.lease("v")
		answer := make(chan map[string]any)
		go func() { answer <- s.ok("POST", "/leases/request", `{"worker_id":"w","wait_ms":30000}`) }()
		time.Sleep(time.Second)
		if err := s.manager.Drain(s.Context()); err != nil {
			s.Fatal(err)
		}
		s.has("true", <-answer, "denied")
		s.has("true", s.ok("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"v"}`), "drain")
		s.has("true", s.ok("GET", "/status", ""), "draining")
		s.complete(lease, "v", "completed", true)
	})
}

func TestRequestOfAClientThatHungUpIsGrantedNothing(t *testing.T) {
	seen := make(chan httpapi.Request, 1)
	s := newSite(t, func(_ *manager.Options, c *httpapi.Config) {
		c.Observe = func(r httpapi.Request) {
			if r.Status != http.StatusOK {
				seen <- r
			}
		}
	})
	ctx, hangUp := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+scheduler+"/leases/request", strings.NewReader(`{"worker_id":"w","wait_ms":30000}`))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		answer, err := s.client.Do(r)
		if err == nil {
			answer.Body.Close()
		}
		done <- err
	}()
	for len(s.dig(s.ok("GET", "/workers", ""), "workers").([]any)) == 0 {
		time.Sleep(time.Millisecond)
	}
	hangUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatalf("hanging up: %v", err)
	}
	if o := <-seen; o.Status != 499 || o.Pattern != "POST "+scheduler+"/leases/request" { // the server has learnt of it
		t.Errorf("the request that was hung up on is seen as %+v", o)
	}
	id := s.submit(`{}`)
	s.state(id, "queued")
	s.capacity(0, 100, 0)
}

// failingJobs is a store that fails when it is told to.
type failingJobs struct {
	jobs.Store
	mu   sync.Mutex
	fail bool
}

func (f *failingJobs) set(fail bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fail
}

func (f *failingJobs) Update(ctx context.Context, turn func(jobs.Facts) jobs.Changes) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail {
		return fmt.Errorf("%w: write /var/secret: %w", lokt.ErrUnavailable, syscall.ENOSPC)
	}
	return f.Store.Update(ctx, turn)
}

// Promise S-79.
func TestWhileTheStoreIsAwayWorkersAreDeniedAndKeepTheirLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failingJobs{Store: memstore.NewJobs()}
		m, err := manager.Open(t.Context(), store, manager.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		l, server := newPipeListener(), &http.Server{Handler: httpapi.NewHandler(httpapi.Config{Jobs: m}), ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(l) }()
		defer server.Close()
		transport := &http.Transport{DialContext: l.dial}
		defer transport.CloseIdleConnections()
		s := &site{T: t, url: "http://x", client: &http.Client{Transport: transport}}
		both, err := httpapi.New("http://x", httpapi.ClientOptions{HTTPClient: s.client})
		if err != nil {
			t.Fatal(err)
		}
		client := both.Jobs()
		s.submit(`{}`)
		s.submit(`{}`)
		lease, _ := s.lease("w")
		s.beat(lease, "w")
		store.set(true)
		for range 3 {
			v := s.ok("POST", "/leases/request", `{"worker_id":"w"}`)
			s.has("true", v, "denied")
			s.has("unavailable", v, "code")
			s.has("what is granted cannot be stored at the moment: no space left on device", v, "reason")
			s.has("5000", v, "retry_after_ms")
			if r := s.refused(503, "unavailable", "POST", "/jobs", `{}`); r.header.Get("Retry-After") != "1" ||
				r.header.Get("Lokt-Reason") != "no space left on device" {
				t.Errorf("who is to come again is told so by %v", r.header)
			}
			s.beat(lease, "w")
			time.Sleep(20 * time.Second)
		}
		if _, err := client.Request(t.Context(), jobs.Request{WorkerID: "w"}); !errors.Is(err, lokt.ErrUnavailable) || jobs.Code(err) != "unavailable" {
			t.Errorf("the client says %v", err)
		}
		store.set(false)
		time.Sleep(10 * time.Second)
		s.lease("w")
		s.complete(lease, "w", "completed", true)
	})
}

func TestNothingInAnswersNamesWhatIsInside(t *testing.T) {
	s := newSite(t)
	s.submit(`{}`)
	s.lease("w")
	for _, path := range []string{"/jobs", "/status", "/workers", "/history/stats", "/history/decisions"} {
		if r := s.get(path); strings.Contains(r.body, "0x") || strings.Contains(r.body, "ord") || strings.Contains(r.body, "revision") || strings.Contains(r.body, "request_id") {
			t.Errorf("%s shows %s", path, r.body)
		}
	}
	id := "my-request.1"
	r := s.send("GET", "/status", "", func(r *http.Request) { r.Header.Set("X-Request-Id", id) })
	if got := r.header.Get("X-Request-Id"); got != id {
		t.Errorf("the request's ID is answered with %q", got)
	}
	if !slices.Equal(r.header["Content-Type"], []string{"application/json"}) {
		t.Errorf("the answer's type is %q", r.header["Content-Type"])
	}
}
