package dashboard_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/dashboard"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/store/memstore"
)

// form returns the hidden fields of the page's form that is sent there.
func (s *site) form(t testing.TB, path, action string) url.Values {
	t.Helper()
	_, after, found := strings.Cut(s.get(t, path), `action="`+action+`"`)
	if !found {
		t.Fatalf("%s has no form for %s", path, action)
	}
	text, _, _ := strings.Cut(after, "</form>")
	form := url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(text, -1) {
		form.Set(m[1], m[2])
	}
	return form
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// Promise S-370.
func TestAFreezeThatReplacedTheOneThatWasShownStays(t *testing.T) {
	s := newSite(t, nil)
	ctx, ana := t.Context(), lokt.Owner{ID: "ana"}
	if _, err := s.locks.Freeze(ctx, "db", lokt.Freeze{Owner: ana, Reason: "lunch"}); err != nil {
		t.Fatal(err)
	}
	form := s.form(t, "/locks/db", "/locks/db/unfreeze")
	if _, err := s.locks.Unfreeze(ctx, lokt.Target{Name: "db", Owner: ana}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.locks.Freeze(ctx, "db", lokt.Freeze{Owner: lokt.Owner{ID: "ben"}, Reason: "migration"}); err != nil {
		t.Fatal(err)
	}
	status, body, _ := do(t, "POST", s.url+"/locks/db/unfreeze", form)
	if status != http.StatusConflict || !strings.Contains(body, "ben") {
		t.Error(status, body)
	}
	if snap, err := s.locks.Get(ctx, "db"); err != nil || snap.Frozen() == nil {
		t.Error("another freeze was ended", snap, err)
	}
}

// Promise S-371.
func TestALeaseOfALaterAttemptIsNotRevoked(t *testing.T) {
	s := newSite(t, nil)
	one := spec("a", `{}`)
	one.MaxAttempts, one.RetryBackoff = 2, 0
	path := "/jobs/" + s.submit(t, one)[0]
	s.take(t, "a", nil)
	form := s.form(t, path, path+"/revoke")
	var shown struct{ Lease struct{ Token uint64 } }
	s.twin(t, path, &shown)
	j, err := s.jobs.Get(t.Context(), strings.TrimPrefix(path, "/jobs/"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.jobs.Complete(t.Context(), jobs.Completion{LeaseID: j.Lease.ID, WorkerID: "w1", Status: jobs.Failed}); err != nil {
		t.Fatal(err)
	}
	s.take(t, "a", nil)
	if status, body, _ := do(t, "POST", s.url+path+"/revoke", form); status != http.StatusConflict {
		t.Error(status, body)
	}
	if j, err = s.jobs.Get(t.Context(), j.Job.ID); err != nil || j.Lease == nil || j.Lease.Token == shown.Lease.Token {
		t.Fatal("the second attempt was revoked", j, err)
	}
	form.Set("token", fmt.Sprint(j.Lease.Token))
	if status, body, _ := do(t, "POST", s.url+path+"/revoke", form); status != http.StatusSeeOther {
		t.Error(status, body)
	}
}

// Promise S-371.
func TestManyJobsAreThoseThatWereCountedAndAFormSentTwiceIsOneAction(t *testing.T) {
	s := newSite(t, nil)
	ids := s.submit(t, spec("a", `{}`), spec("a", `{}`))
	form := s.form(t, "/bulk?action=cancel&type=a", "/bulk")
	form.Set("confirm", "2")
	if _, err := s.jobs.Cancel(t.Context(), ids[0], ""); err != nil {
		t.Fatal(err)
	}
	s.submit(t, spec("a", `{}`))
	if status, body, _ := do(t, "POST", s.url+"/bulk", form); status != http.StatusUnprocessableEntity || !strings.Contains(body, "others than were counted") {
		t.Error(status, body)
	}
	s.submit(t, spec("b", `{}`))
	s.fail(t, "b", "broken")
	for at, count := range map[string]string{"/bulk?action=cancel&type=a": "2", "/bulk?action=retry&type=b": "1"} { // counted now, though the page was shown a moment ago
		form = s.form(t, at, "/bulk")
		form.Set("confirm", count)
		status, body, first := do(t, "POST", s.url+"/bulk", form)
		if _, _, second := do(t, "POST", s.url+"/bulk", form); status != http.StatusSeeOther || first != second {
			t.Errorf("%s: %d, sent twice it leads to %q and %q\n%s", at, status, first, second, body)
		}
	}
}

// Promise S-371.
func TestAFormThatIsSentToTwoDaemonsSubmitsNothingTwice(t *testing.T) {
	at := func(c *dashboard.Config) { c.Undo = time.Millisecond }
	s := newSite(t, at)
	other := newSite(t, func(c *dashboard.Config) {
		at(c)
		c.Locks, c.Jobs = s.locks, s.jobs
	})
	s.submit(t, spec("a", `{}`), spec("a", `{}`))
	s.fail(t, "a", "broken")
	s.fail(t, "a", "broken")
	form := s.form(t, "/bulk?action=retry&type=a", "/bulk")
	form.Set("confirm", "2")
	for _, one := range []*site{s, other} {
		_, body, next := do(t, "POST", one.url+"/bulk", form)
		var ran struct{ Done int }
		for end := time.Now().Add(30 * time.Second); ran.Done < 2 && time.Now().Before(end); time.Sleep(time.Millisecond) {
			one.twin(t, next, &ran)
		}
		if ran.Done != 2 {
			t.Fatalf("%d are done: %s", ran.Done, body)
		}
	}
	if all, err := s.jobs.List(t.Context(), jobs.Filter{State: jobs.Queued}); err != nil || len(all.Jobs) != 2 {
		t.Errorf("there are %+v, %v", all.Jobs, err)
	}
}

// Promise S-98.
func TestAStreamEndsWithItsToken(t *testing.T) {
	var revoked atomic.Bool
	s := newSite(t, func(c *dashboard.Config) {
		people(c)
		enter := c.Enter
		c.Enter = func(r *http.Request) (dashboard.Caller, error) {
			if revoked.Load() {
				return nil, dashboard.ErrUnauthenticated
			}
			return enter(r)
		}
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Cookie", "lokt_token=reader")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buffer := make([]byte, 200); ; {
			if _, err := answer.Body.Read(buffer); err != nil {
				return
			}
		}
	}()
	revoked.Store(true)
	for limit := time.After(30 * time.Second); ; {
		h := s.hold(t, "build", "ana", lokt.Claim{TTL: time.Minute}) // something happens all the time
		if _, err := s.locks.Release(t.Context(), lokt.Target{Name: "build", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ended:
			return
		case <-limit:
			t.Fatal("the stream goes on without its token")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// told is an answer that is read while it is written.
type told struct {
	*httptest.ResponseRecorder
	mu sync.Mutex
}

func (w *told) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ResponseRecorder.Write(p)
}

func (w *told) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Body.String()
}

func TestAnOpenPageIsToldOfALockThatBecomesOverdue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks := lokt.NewManager(store)
		d := dashboard.New(dashboard.Config{Locks: locks, Events: store, Stop: t.Context()})
		if _, err := locks.Acquire(t.Context(), lokt.Claim{Name: "build", Owner: lokt.Owner{ID: "ana"}, TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
		answer := &told{ResponseRecorder: httptest.NewRecorder()}
		go d.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/live", nil))
		for _, want := range []int{1, 2} { // that it is connected, and that it is late
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if got := strings.Count(answer.text(), "event: changed"); got != want {
				t.Errorf("%d changes were told, not %d:\n%s", got, want, answer.text())
			}
		}
	})
}

func TestWhoWaitsForAFrozenLockIsToldNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		locks := lokt.NewManager(store)
		d := dashboard.New(dashboard.Config{Locks: locks, Events: store, Stop: t.Context()})
		claim := lokt.Claim{Name: "db", Owner: lokt.Owner{ID: "ana"}, TTL: time.Hour}
		h, err := locks.Acquire(t.Context(), claim)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if _, err := locks.Release(t.Context(), lokt.Target{Name: "db", LeaseID: h.LeaseID}); err != nil {
			t.Fatal(err)
		}
		if _, err := locks.Acquire(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		claim.Owner, claim.Wait = lokt.Owner{ID: "ben"}, time.Hour
		go func() { _, _ = locks.Acquire(t.Context(), claim) }()
		synctest.Wait()
		page := func() string {
			time.Sleep(time.Second) // what was shown just now is shown again
			answer := httptest.NewRecorder()
			d.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/locks/db", nil))
			return answer.Body.String()
		}
		if body := page(); !strings.Contains(body, "about 9 min 59 s") {
			t.Error("there is no estimate in", body)
		}
		if _, err := locks.Freeze(t.Context(), "db", lokt.Freeze{Owner: lokt.Owner{ID: "ops"}}); err != nil {
			t.Fatal(err)
		}
		if body := page(); !strings.Contains(body, "ben") || strings.Contains(body, "about ") {
			t.Error("a wait that a freeze may make as long as it likes is estimated in", body)
		}
	})
}

// damaged is a service whose records cannot be read.
type damaged struct{ lokt.Service }

func (damaged) Get(context.Context, string) (lokt.Snapshot, error) {
	return lokt.Snapshot{}, fmt.Errorf("%w: its checksum is another", lokt.ErrDamaged)
}

func (d damaged) Release(ctx context.Context, t lokt.Target) ([]lokt.Holder, error) {
	_, err := d.Get(ctx, t.Name)
	return nil, err
}

func TestALockThatCannotBeReadIsNotOfferedAsFree(t *testing.T) {
	s := newSite(t, func(c *dashboard.Config) { c.Locks = damaged{c.Locks} })
	body := s.get(t, "/locks/db")
	expect(t, body, "unreadable", "its checksum is another", "cannot be read, and nobody gets it")
	for _, wrong := range []string{"Take it", "Nobody waits", "<button>Freeze"} {
		if strings.Contains(body, wrong) {
			t.Errorf("it says %q:\n%s", wrong, body)
		}
	}
	if status, body, _ := do(t, "POST", s.url+"/locks/db/unlock", url.Values{"confirm": {"db"}}); status != http.StatusConflict || !strings.Contains(body, "checksum") {
		t.Error(status, body)
	}
}

func TestALoginThatComesTooSoonIsNotToldThatItsTokenIsUnknown(t *testing.T) {
	s := newSite(t, func(c *dashboard.Config) {
		c.Enter = func(*http.Request) (dashboard.Caller, error) { return nil, dashboard.ErrTooOften }
	})
	status, body, _ := do(t, "POST", s.url+"/login", url.Values{"token": {"reader"}})
	if status != http.StatusTooManyRequests || strings.Contains(body, "not known") {
		t.Error(status, body)
	}
}

func TestWhatIsHeardOfWithoutAChangeIsMarkedToBeFetchedAgain(t *testing.T) {
	s := newSite(t, nil)
	s.hold(t, "build", "ana", lokt.Claim{TTL: time.Hour})
	id := s.submit(t, spec("a", `{}`))[0]
	s.take(t, "a", nil)
	for path, want := range map[string]string{
		"/locks/build": `<div class="wide heard"`, "/jobs/" + id: `<span class="heard"><time`, "/workers": `<td class="n heard"><time`,
	} {
		expect(t, s.get(t, path), want)
	}
}

func TestEventsOfOtherLocksDoNotHideOlderOnes(t *testing.T) {
	s := newSite(t, people)
	s.hold(t, "ci.build", "ana", lokt.Claim{TTL: time.Hour})
	for i := range 150 {
		s.hold(t, fmt.Sprint("prod-", i), "ben", lokt.Claim{TTL: time.Hour})
	}
	_, body, _ := do(t, "GET", s.url+"/audit", nil, "Authorization", "Bearer operator")
	expect(t, body, "there are older ones", `<a href="/audit?before=`)
	if strings.Contains(body, "yet: what happens") {
		t.Error(body)
	}
}
