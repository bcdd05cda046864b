package httpapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// moody has locks that cannot be renewed: one at which the store hangs, and one whose rules panic.
type moody struct{ httpapi.Locks }

func (m moody) Renew(ctx context.Context, r lokt.Renewal) (lokt.Holder, error) {
	switch r.Name {
	case "open.hangs":
		<-ctx.Done()
		return lokt.Holder{}, ctx.Err()
	case "open.panics":
		panic("at the disco")
	}
	return m.Locks.Renew(ctx, r)
}

// prefixed is a caller who may lock what begins with open.
type prefixed struct{}

func (prefixed) Enter(*http.Request) (httpapi.Caller, error) { return prefixed{}, nil }
func (prefixed) Name() string                                { return "c" }
func (prefixed) May(s httpapi.Scope, name string) bool {
	return s == httpapi.ScopeLock && (name == "" || strings.HasPrefix(name, "open"))
}

// Promise S-233.
func TestALeaseThatCannotBeRenewedHarmsNoOtherOfItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := lokt.NewManager(memstore.New())
		handler := httpapi.NewHandler(httpapi.Config{Locks: moody{locks}, Gate: prefixed{}})
		for name, c := range map[string]lokt.Claim{
			"open.a": {LeaseID: "a", Owner: lokt.Owner{ID: "c/ann"}, TTL: time.Minute}, "open.b": {LeaseID: "b", Owner: lokt.Owner{ID: "c/ann"}, TTL: time.Minute},
			"open.c": {LeaseID: "other", Owner: lokt.Owner{ID: "c/bob"}}, "shut": {LeaseID: "shut", Owner: lokt.Owner{ID: "c/ann"}, TTL: time.Minute},
			"open.low": {LeaseID: "low", Owner: lokt.Owner{ID: "c/ann"}, TTL: time.Minute}, "open.forever": {LeaseID: "f", Owner: lokt.Owner{ID: "c/ann"}},
		} {
			c.Name = name
			if _, err := locks.Acquire(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		wanting, cancel := context.WithCancel(t.Context())
		go func() {
			_, _ = locks.Acquire(wanting, lokt.Claim{Name: "open.low", Owner: lokt.Owner{ID: "c/boss"}, Priority: 9, Preempt: 5 * time.Second, Wait: -1})
		}()
		synctest.Wait()
		begun := time.Now()
		one := func(list string) (int, string) {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/leases/heartbeat", strings.NewReader(`{"leases":[`+list+`]}`)))
			return w.Code, w.Body.String()
		}
		status, body := one(`{"name":"open.a","lease_id":"a","owner":{"id":"ann"}},{"name":"open.hangs","lease_id":"h"},{"name":"shut","lease_id":"shut"},{"name":"open.c","lease_id":"c"},` +
			`{"name":"open.free","lease_id":"gone"},{"name":"../x","lease_id":"x"},{"name":"open.b","lease_id":"b","owner":{"id":"eve"}},{"name":"open.panics","lease_id":"p"},{"name":"open.low","lease_id":"low"},` +
			`{"name":"open.forever","lease_id":"f"},{"name":"open.b","lease_id":"b"}`)
		if took := time.Since(begun); status != http.StatusOK || took > 2*time.Second {
			t.Errorf("the batch is answered %d after %v: %s", status, took, body)
		}
		var got struct {
			Leases []struct {
				Holder *lokt.Holder   `json:"holder"`
				Error  map[string]any `json:"error"`
			} `json:"leases"`
		}
		if err := lokt.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		want := []string{"", "unavailable", "forbidden", "not_owner", "not_found", "invalid", "not_owner", "internal", "", "", ""}
		if len(got.Leases) != len(want) {
			t.Fatalf("%d answers: %s", len(got.Leases), body)
		}
		for i, l := range got.Leases {
			switch {
			case want[i] == "" && (l.Holder == nil || l.Error != nil || l.Holder.HeartbeatIn == 0 != (l.Holder.TTL == 0)),
				want[i] != "" && (l.Error == nil || l.Holder != nil || l.Error["code"] != want[i] || l.Error["status"].(float64) < 400):
				t.Errorf("lease %d is answered %+v, %+v, and not %q", i, l.Holder, l.Error, want[i])
			}
		}
		if y := got.Leases[8].Holder; y.Yield == nil || y.Yield.Deadline.IsZero() {
			t.Errorf("one that is asked to leave is told %+v", y)
		}
		if s, _ := locks.Get(t.Context(), "shut"); s.Lock.Holders[0].Renewals != 0 {
			t.Error("what the caller may not lock was renewed")
		}
		for list, want := range map[string]int{
			`{"name":"open.hangs","lease_id":"h"}`: 503, `{"name":"open.hangs","lease_id":"h"},{"name":"open.hangs","lease_id":"i"}`: 503, `{"name":"shut","lease_id":"shut"}`: 403,
			`{"name":"open.free","lease_id":"gone"}`: 404, ``: 400, strings.Repeat(`{"name":"open.a","lease_id":"a"},`, 100) + `{"name":"open.a","lease_id":"a"}`: 400,
			strings.Repeat(`{"name":"open.a","lease_id":"a"},`, 99) + `{"name":"open.a","lease_id":"a"}`: 200,
		} {
			if status, body := one(list); status != want || strings.Contains(body, `"gone"`) && strings.Contains(list, `"gone"`) && !strings.Contains(body, "not held") {
				t.Errorf("%.100s is answered %d %s", list, status, body)
			}
		}
		cancel()
		synctest.Wait()
	})
}

// wire counts the requests to a handler, and what leases they renew, and may lose answers.
type wire struct {
	handler http.Handler

	mu       sync.Mutex
	renewals []int // leases in each request
	lose     func(n int, body string) bool
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	lost := false
	if strings.HasSuffix(r.URL.Path, "/heartbeat") {
		w.mu.Lock()
		w.renewals = append(w.renewals, bytes.Count(body, []byte(`"lease_id"`)))
		lost = w.lose != nil && w.lose(len(w.renewals), string(body))
		w.mu.Unlock()
	}
	if lost {
		<-r.Context().Done()
		return nil, context.Cause(r.Context())
	}
	in := r.Clone(r.Context())
	in.Body, in.RequestURI = io.NopCloser(bytes.NewReader(body)), r.URL.RequestURI()
	out := httptest.NewRecorder()
	w.handler.ServeHTTP(out, in)
	return out.Result(), nil
}

func (w *wire) sent() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.renewals
	w.renewals = nil
	return all
}

// talk returns a client of a handler over memory, and the wire between them.
func talk(t *testing.T, o httpapi.ClientOptions) (*httpapi.Client, *wire) {
	w := &wire{handler: httpapi.NewHandler(memory())}
	o.HTTPClient = &http.Client{Transport: w}
	c, err := httpapi.New("http://server", o)
	if err != nil {
		t.Fatal(err)
	}
	return c, w
}

// Promises S-233, S-234.
func TestLeasesOfOneProcessAreRenewedTogetherWhenTheServerSays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, w := talk(t, httpapi.ClientOptions{})
		k, err := lokt.NewLocker(c, lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: func(e lokt.Event) { t.Errorf("%+v", e) }})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			if _, err := k.Acquire(t.Context(), fmt.Sprint("lock-", i), lokt.Options{TTL: 30 * time.Second}); err != nil {
				t.Fatal(err)
			}
		}
		own, err := k.Acquire(t.Context(), "own", lokt.Options{TTL: 30 * time.Second, Interval: 20 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		sent, leases := w.sent(), 0
		for _, n := range sent {
			leases += n
		}
		// In 120 s there are 12 intervals of 10 s, 10 requests in each, and not all of them are full.
		if len(sent) > 160 || leases < 1000*10 || leases > 1000*14 {
			t.Errorf("%d requests renewed %d leases: %v", len(sent), leases, sent)
		}
		if n := own.Holder().Renewals; n < 5 || n > 7 {
			t.Errorf("a lease with an interval of its own was renewed %d times", n)
		}
		if n, err := k.ReleaseAll(t.Context()); n != 1001 || err != nil {
			t.Errorf("%d were held, %v", n, err)
		}
	})
}

// Promise S-233.
func TestARenewalThatIsLateGoesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := talk(t, httpapi.ClientOptions{})
		var lost sync.Map
		k, err := lokt.NewLocker(c, lokt.Owner{ID: "a"}, lokt.LockerOptions{Observe: func(e lokt.Event) {
			if e.Type == lokt.EventLost {
				lost.Store(e.Name, true)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			if _, err := k.Acquire(t.Context(), fmt.Sprint("lock-", i), lokt.Options{TTL: 30 * time.Second}); err != nil {
				t.Fatal(err)
			}
		}
		// No answer comes to a request that renews the first lock, alone or with others.
		w.mu.Lock()
		w.lose = func(_ int, body string) bool { return strings.Contains(body, `"lock-0"`) }
		w.mu.Unlock()
		time.Sleep(5 * time.Minute)
		lost.Range(func(name, _ any) bool {
			if name != "lock-0" {
				t.Errorf("%v was lost", name)
			}
			return true
		})
		if _, is := lost.Load("lock-0"); !is {
			t.Error("what could not be renewed is not lost")
		}
		if n, err := k.ReleaseAll(t.Context()); n != 9 || err != nil {
			t.Errorf("%d were held, %v", n, err)
		}
	})
}

// Promise S-233.
func TestARenewalIsNotSentAgainWhenNobodyWantsItAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w := talk(t, httpapi.ClientOptions{Attempt: time.Second, Patience: time.Minute})
		for _, name := range []string{"a", "b"} {
			if _, err := c.Acquire(t.Context(), lokt.Claim{Name: name, LeaseID: "of-" + name, Owner: lokt.Owner{ID: "o"}, TTL: time.Hour}); err != nil {
				t.Fatal(err)
			}
		}
		w.lose = func(n int, _ string) bool { return n == 1 }
		var all sync.WaitGroup
		gone, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		all.Go(func() {
			begun := time.Now()
			if _, err := c.Renew(gone, lokt.Renewal{Name: "a", LeaseID: "of-a"}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 500*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(begun))
			}
		})
		all.Go(func() {
			if h, err := c.Renew(t.Context(), lokt.Renewal{Name: "b", LeaseID: "of-b"}); err != nil || h.Name != "b" || h.LeaseID != "of-b" || h.Renewals != 1 {
				t.Errorf("%+v, %v", h, err)
			}
		})
		all.Wait()
		if sent := w.sent(); len(sent) != 2 || sent[0] != 2 || sent[1] != 1 {
			t.Errorf("requests renewed %v leases", sent)
		}
	})
}

// Promise S-234.
func TestAMillionLeasesCostNoMoreRequestsThanTheyMay(t *testing.T) {
	scale := 100 // of a million leases, and of 20,000 requests: what is spread is the same
	if os.Getenv("LOKT_SOAK") != "" {
		scale = 10
	}
	for _, c := range []struct {
		ttl   time.Duration
		least time.Duration // between two renewals
		most  int           // requests per second
	}{
		{15 * time.Minute, 5 * time.Minute, 20_000}, {3 * time.Minute, time.Minute, 20_000}, {100 * time.Second, 33 * time.Second, 20_000}, {60 * time.Second, 20 * time.Second, 40_000}, {30 * time.Second, 10 * time.Second, 80_000},
	} {
		synctest.Test(t, func(t *testing.T) {
			const slot = 100 * time.Millisecond
			next := httpapi.NewPace(20_000 / scale)
			due := map[int]int{} // by slot
			begun := time.Now()
			for i := range 600 { // granted within a minute
				due[i] += 1_000_000 / scale / 600
			}
			worst := 0
			for at, second := 0, 0; at < int(10*time.Minute/slot); at++ {
				time.Sleep(time.Until(begun.Add(time.Duration(at) * slot)))
				for range due[at] {
					in := next(c.ttl)
					if in < c.least || in > c.ttl/2 {
						t.Fatalf("with a TTL of %v the next renewal is wanted after %v", c.ttl, in)
					}
					due[int((time.Since(begun)+in)/slot)]++
				}
				if second += due[at] - due[at-10]; at > int(5*time.Minute/slot) {
					worst = max(worst, second)
				}
			}
			if worst > c.most/scale*11/10 || worst == 0 {
				t.Errorf("with a TTL of %v there are up to %d requests in a second", c.ttl, worst)
			}
		})
	}
	if in := httpapi.NewPace(1)(0); in != 0 {
		t.Errorf("a lease that does not end is to be renewed after %v", in)
	}
}
