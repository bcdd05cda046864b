package dashboard_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/dashboard"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// site is a dashboard over services in memory.
type site struct {
	locks *lokt.Manager
	jobs  *manager.Manager
	url   string
}

func newSite(t testing.TB, change func(*dashboard.Config)) *site {
	store := memstore.New()
	s := &site{locks: lokt.NewManager(store)}
	var err error
	if s.jobs, err = manager.Open(t.Context(), memstore.NewJobs(), manager.Options{Locks: s.locks}); err != nil {
		t.Fatal(err)
	}
	stop, end := context.WithCancel(context.Background())
	c := dashboard.Config{Locks: s.locks, Events: store, Jobs: s.jobs, About: "test", Stop: stop}
	if change != nil {
		change(&c)
	}
	server := httptest.NewServer(dashboard.New(c))
	s.url = server.URL
	t.Cleanup(func() {
		end()
		server.CloseClientConnections()
		server.Close()
		if err := s.jobs.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// do makes a request without following where it leads, and returns its status, its body and where that is.
func do(t testing.TB, method, at string, form url.Values, header ...string) (status int, body, next string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if policy := answer.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("%s %s has the policy %q", method, at, policy)
	}
	return answer.StatusCode, string(text), answer.Header.Get("Location")
}

func (s *site) get(t testing.TB, path string) string {
	t.Helper()
	status, body, _ := do(t, "GET", s.url+path, nil)
	if status != http.StatusOK {
		t.Fatalf("GET %s: %d\n%s", path, status, body)
	}
	return body
}

// twin reads the page as a program does.
func (s *site) twin(t testing.TB, path string, into any) {
	t.Helper()
	status, body, _ := do(t, "GET", s.url+path, nil, "Accept", "application/json")
	if status != http.StatusOK {
		t.Fatalf("GET %s: %d\n%s", path, status, body)
	}
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatalf("GET %s: %v in %s", path, err, body)
	}
}

func (s *site) hold(t testing.TB, name, owner string, c lokt.Claim) lokt.Holder {
	t.Helper()
	c.Name, c.Owner = name, lokt.Owner{ID: owner, AnySession: true}
	h, err := s.locks.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// wait queues a claim, and returns when it is in the queue.
func (s *site) wait(t testing.TB, name, owner string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		_, _ = s.locks.Acquire(ctx, lokt.Claim{Name: name, Owner: lokt.Owner{ID: owner, AnySession: true}, Wait: time.Hour, TTL: time.Minute})
	}()
	for {
		snap, err := s.locks.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range snap.Lock.Queue {
			if w.Owner.ID == owner {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *site) submit(t testing.TB, specs ...jobs.Spec) (ids []string) {
	t.Helper()
	all, err := s.jobs.Submit(t.Context(), specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		ids = append(ids, r.JobID)
	}
	return ids
}

func spec(jobType, payload string) jobs.Spec {
	s := jobs.NewSpec()
	s.Type, s.Payload = jobType, jsontext.Value(payload)
	return s
}

// fail has a worker take the next job of the type, and fail.
func (s *site) fail(t testing.TB, jobType, text string) {
	t.Helper()
	g, err := s.jobs.Request(t.Context(), jobs.Request{WorkerID: "w1", Types: []string{jobType}, MaxUnits: 1})
	if err != nil || g.Denied != nil {
		t.Fatal(g, err)
	}
	encoded, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.jobs.Complete(t.Context(), jobs.Completion{LeaseID: g.Lease.ID, WorkerID: "w1", Status: jobs.Failed, Error: encoded}); err != nil {
		t.Fatal(err)
	}
}

// take has a worker take the next job of the type, print something from where the job left off, and end as it says.
func (s *site) take(t testing.TB, jobType string, end *jobs.Completion, texts ...string) {
	t.Helper()
	g, err := s.jobs.Request(t.Context(), jobs.Request{WorkerID: "w1", Types: []string{jobType}})
	if err != nil || g.Denied != nil {
		t.Fatal(g, err)
	}
	p := jobs.Progress{LeaseID: g.Lease.ID, WorkerID: "w1"}
	if g.Job.Output != nil {
		p.Offset = g.Job.Output.Printed
	}
	for _, p.Text = range texts {
		if err := s.jobs.Report(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		p.Offset += int64(len(p.Text))
	}
	if end != nil {
		end.LeaseID, end.WorkerID = g.Lease.ID, "w1"
		if _, err := s.jobs.Complete(t.Context(), *end); err != nil {
			t.Fatal(err)
		}
	}
}

// Promise S-199.
func TestAJobShowsWhatItPrintsByAttempt(t *testing.T) {
	s := newSite(t, nil)
	one := spec("talk", `{}`)
	one.MaxAttempts, one.RetryBackoff = 2, 0
	path := "/jobs/" + s.submit(t, one)[0]
	if body := s.get(t, "/jobs/"+s.submit(t, spec("quiet", `{}`))[0]); strings.Contains(body, "job logs") {
		t.Error("what did not print has an output:", body)
	}
	s.take(t, "talk", &jobs.Completion{Status: jobs.Failed}, "first ", "try\n")
	s.take(t, "talk", nil, strings.Repeat("é", 10_000)+"\n", "the end")
	expect(t, s.get(t, path), "lokt job logs -f ", "<h3>Attempt 2</h3><pre>é", "é\nthe end</pre>", "7730 bytes before this are not shown")
	var b struct{ Log []jobs.Piece }
	if s.twin(t, path, &b); len(b.Log) != 1 || b.Log[0].Attempt != 2 || len(b.Log[0].Text) != 12<<10 || b.Log[0].End() != 20_018 {
		t.Errorf("%d pieces: %.100v", len(b.Log), b.Log)
	}
}

func expect(t testing.TB, body string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(body, part) {
			t.Errorf("%q is missing in:\n%s", part, body)
		}
	}
}

func TestTheOverviewShowsWhatNeedsAttentionFirst(t *testing.T) {
	s := newSite(t, nil)
	s.hold(t, "quiet", "ana", lokt.Claim{TTL: time.Minute})
	s.hold(t, "build", "ana", lokt.Claim{TTL: time.Minute})
	s.wait(t, "build", "ben")
	if _, err := s.locks.Freeze(t.Context(), "deploy", lokt.Freeze{Owner: lokt.Owner{ID: "ops"}, Reason: "release"}); err != nil {
		t.Fatal(err)
	}
	var twin struct {
		Locks []struct {
			Name, State, Holder string
			Waiting             int
		}
	}
	s.twin(t, "/", &twin)
	if got := fmt.Sprint(twin.Locks); got != "[{deploy frozen  0} {build waited for ana 1} {quiet held ana 0}]" {
		t.Error(got)
	}
	expect(t, s.get(t, "/"), `href="/locks/build"`, "release", "lokt status", "<b>1</b> waited for")
	s.twin(t, "/?q=BUI", &twin)
	if len(twin.Locks) != 1 || twin.Locks[0].Name != "build" {
		t.Error(twin.Locks)
	}
}

func TestALockShowsHoldersQueueEstimateAndWhatHappened(t *testing.T) {
	s := newSite(t, nil)
	h := s.hold(t, "gpu", "ana", lokt.Claim{TTL: time.Minute, Limit: 3})
	s.hold(t, "gpu", "ben", lokt.Claim{TTL: time.Minute, Limit: 3, Metadata: map[string]string{"run": "42"}})
	body := s.get(t, "/locks/gpu")
	expect(t, s.get(t, "/locks/-x"), "<code>lokt status -- -x</code>")
	expect(t, body, ">ana<", ">ben<", ">free<", ">run<", "lokt status gpu", "<svg", "acquire")
	if strings.Contains(body, h.LeaseID) {
		t.Error("the page shows a lease ID, which lets everybody end the hold")
	}
	if _, err := s.locks.Release(t.Context(), lokt.Target{Name: "gpu", LeaseID: h.LeaseID}); err != nil {
		t.Fatal(err)
	}
	s.hold(t, "db", "ana", lokt.Claim{TTL: time.Minute})
	s.wait(t, "db", "ben")
	var twin struct {
		Queue []struct{ Position int }
	}
	s.twin(t, "/locks/db", &twin)
	if len(twin.Queue) != 1 || twin.Queue[0].Position != 1 {
		t.Error(twin.Queue)
	}
}

func TestAJobSaysWhichLockItWaitsForAndWhoHasIt(t *testing.T) {
	s := newSite(t, nil)
	s.hold(t, "db", "ana", lokt.Claim{TTL: time.Minute})
	one := spec("migrate", `{}`)
	one.Locks = []string{"db"}
	id := s.submit(t, one)[0]
	_, _ = s.jobs.Request(t.Context(), jobs.Request{WorkerID: "w1", Types: []string{"migrate"}, MaxUnits: 1, Wait: 200 * time.Millisecond}) // a worker must have asked
	expect(t, s.get(t, "/jobs/"+id), "waits for lock db, held by ana", `href="/locks/db"`)
	expect(t, s.get(t, "/jobs"), "waits for lock db, held by ana")
	expect(t, s.get(t, "/jobs?lock=db"), id)
	expect(t, s.get(t, "/jobs?lock=other"), "No job matches")
}

func TestFailuresAreGroupedByTypeAndFirstLine(t *testing.T) {
	s := newSite(t, nil)
	for i := range 3 {
		s.submit(t, spec("thumb", fmt.Sprintf(`{"n":%d}`, i)))
		s.fail(t, "thumb", "no such file\nat line "+fmt.Sprint(i))
	}
	s.submit(t, spec("mail", `{}`))
	s.fail(t, "mail", "refused")
	var twin struct {
		Groups []struct {
			Type, Error string
			Count       int
			URL         string
		}
	}
	s.twin(t, "/failures", &twin)
	if len(twin.Groups) != 2 || twin.Groups[0].Count != 3 || twin.Groups[0].Error != "no such file" {
		t.Fatalf("%+v", twin.Groups)
	}
	var list struct{ Jobs []struct{ Type string } }
	s.twin(t, twin.Groups[0].URL, &list)
	if len(list.Jobs) != 3 || list.Jobs[0].Type != "thumb" {
		t.Errorf("%s lists %+v", twin.Groups[0].URL, list.Jobs)
	}
	s.twin(t, "/jobs?q=REFUSED", &list)
	if len(list.Jobs) != 1 || list.Jobs[0].Type != "mail" {
		t.Errorf("%+v", list.Jobs)
	}
}

func TestAHoldEndsOnlyWhenItsLocksNameIsTyped(t *testing.T) {
	s := newSite(t, nil)
	s.hold(t, "build", "ana", lokt.Claim{TTL: time.Minute})
	if status, body, _ := do(t, "POST", s.url+"/locks/build/unlock", url.Values{"confirm": {"bulid"}}); status != http.StatusUnprocessableEntity {
		t.Error(status, body)
	}
	if snap, err := s.locks.Get(t.Context(), "build"); err != nil || len(snap.Lock.Holders) != 1 {
		t.Error(snap, err)
	}
	if status, body, next := do(t, "POST", s.url+"/locks/build/unlock", url.Values{"confirm": {"build"}}); status != http.StatusSeeOther || next != "/locks/build" {
		t.Error(status, body, next)
	}
	expect(t, s.get(t, "/audit?name=build"), "force-break", "dashboard")
}

// Promise S-285.
func TestWhatWasGrantedAfterThePersonLookedStays(t *testing.T) {
	s := newSite(t, nil)
	seen := s.hold(t, "build", "ana", lokt.Claim{TTL: time.Hour})
	expect(t, s.get(t, "/locks/build"), fmt.Sprintf(`name="up_to" value="%d"`, seen.Token))
	if _, err := s.locks.Release(t.Context(), lokt.Target{Name: "build", LeaseID: seen.LeaseID}); err != nil {
		t.Fatal(err)
	}
	s.hold(t, "build", "ben", lokt.Claim{TTL: time.Hour})
	form := url.Values{"confirm": {"build"}, "up_to": {fmt.Sprint(seen.Token)}}
	if status, body, _ := do(t, "POST", s.url+"/locks/build/unlock", form); status != http.StatusConflict {
		t.Error(status, body)
	}
	if snap, err := s.locks.Get(t.Context(), "build"); err != nil || len(snap.Lock.Holders) != 1 {
		t.Errorf("the later hold was ended: %+v, %v", snap.Lock, err)
	}
}

func TestAFreezeOfAnotherIsNamedToWhoFreezes(t *testing.T) {
	s := newSite(t, nil)
	if _, err := s.locks.Freeze(t.Context(), "build", lokt.Freeze{Owner: lokt.Owner{ID: "ben"}}); err != nil {
		t.Fatal(err)
	}
	if status, body, _ := do(t, "POST", s.url+"/locks/build/freeze", url.Values{"reason": {"x"}}); status != http.StatusConflict || !strings.Contains(body, "ben") {
		t.Error(status, body)
	}
}

func TestTheHolderIsAskedAndTheAnswerIsShown(t *testing.T) {
	s := newSite(t, nil)
	s.hold(t, "gpu", "ana", lokt.Claim{Limit: 3, TTL: time.Hour})
	ben := s.hold(t, "gpu", "ben", lokt.Claim{Limit: 3, TTL: time.Hour})
	ask := func(holder, text string) (int, string) {
		status, body, _ := do(t, "POST", s.url+"/locks/gpu/ask", url.Values{"holder": {holder}, "text": {text}})
		return status, body
	}
	if status, body := ask(lokt.PublicID(ben.LeaseID), "soon? <b>"); status != http.StatusSeeOther {
		t.Fatal(status, body)
	}
	expect(t, s.get(t, "/locks/gpu"), "Asked of ben", "soon? &lt;b&gt;", "no answer yet", "<option")
	if _, err := s.locks.Tell(t.Context(), lokt.Target{Name: "gpu", Owner: ben.Owner}, lokt.Message{Answer: "at noon"}); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); !strings.Contains(s.get(t, "/locks/gpu"), "at noon"); time.Sleep(20 * time.Millisecond) { // a page is shown for half a second
		if time.Since(began) > 20*time.Second {
			t.Fatal("the answer did not come")
		}
	}
	var twin struct {
		Holds []struct{ Messages []lokt.Message }
	}
	s.twin(t, "/locks/gpu", &twin)
	if m := twin.Holds[1].Messages; len(twin.Holds[0].Messages) != 0 || len(m) != 1 || m[0].Text != "soon? <b>" || m[0].From.ID != "dashboard" {
		t.Errorf("%+v", twin)
	}
	for text, want := range map[string]int{" ": http.StatusUnprocessableEntity, "\x1b[2J": http.StatusUnprocessableEntity, strings.Repeat("x", 300): http.StatusUnprocessableEntity} {
		if status, _ := ask("", text); status != want {
			t.Errorf("%q was answered with %d", text, status)
		}
	}
	if status, _ := ask("L-00000000000000000000", "anybody?"); status != http.StatusConflict {
		t.Errorf("a hold that there is not was asked: %d", status)
	}
}

func TestALockWithVeryManyHoldersShowsTheFirst(t *testing.T) {
	s := newSite(t, nil)
	for i := range 250 {
		s.hold(t, "shared", fmt.Sprintf("owner-%d", i), lokt.Claim{Limit: lokt.Shared, TTL: time.Hour})
	}
	page := s.get(t, "/locks/shared")
	if expect(t, page, "owner-99", "… and 150 more"); strings.Contains(page, `<th scope="row">owner-100`) || len(page) > 60_000 {
		t.Errorf("the page has %d bytes: %s", len(page), page)
	}
}

func TestAFreezeIsMadeAndEnded(t *testing.T) {
	s := newSite(t, nil)
	for _, wrong := range []string{"soon", "-5m", "0s"} {
		if status, body, _ := do(t, "POST", s.url+"/locks/build/freeze", url.Values{"ttl": {wrong}}); status != http.StatusUnprocessableEntity {
			t.Error(wrong, status, body)
		}
	}
	do(t, "POST", s.url+"/locks/build/freeze", url.Values{"ttl": {"15m"}, "reason": {"release"}})
	expect(t, s.get(t, "/locks/build"), "Frozen by dashboard", "release", "Unfreeze")
	do(t, "POST", s.url+"/locks/build/unfreeze", url.Values{})
	if snap, err := s.locks.Get(t.Context(), "build"); err != nil || snap.Frozen() != nil {
		t.Error(snap, err)
	}
}

func TestAJobIsSubmittedAgainOnceWithAnEditedPayload(t *testing.T) {
	s := newSite(t, nil)
	id := s.submit(t, spec("thumb", `{"n":1}`))[0]
	s.fail(t, "thumb", "broken")
	form := url.Values{"payload": {`{"n":2}`}, "key": {"k1"}}
	_, _, first := do(t, "POST", s.url+"/jobs/"+id+"/retry", form)
	_, _, second := do(t, "POST", s.url+"/jobs/"+id+"/retry", form)
	if first != second || !strings.HasPrefix(first, "/jobs/") {
		t.Errorf("a form that was sent twice led to %q and %q", first, second)
	}
	expect(t, s.get(t, first), "queued", "&#34;n&#34;: 2")
	form.Set("payload", `{"n":3}`)
	if status, body, _ := do(t, "POST", s.url+"/jobs/"+id+"/retry", form); status != http.StatusConflict || !strings.Contains(body, "sent with another payload") {
		t.Error(status, body)
	}
	if status, body, _ := do(t, "POST", s.url+first+"/retry", url.Values{}); status != http.StatusUnprocessableEntity || !strings.Contains(body, "has not ended") {
		t.Error(status, body)
	}
	if status, body, _ := do(t, "POST", s.url+"/jobs/"+id+"/retry", url.Values{"payload": {`[1]`}}); status != http.StatusUnprocessableEntity {
		t.Error(status, body)
	}
}

func TestManyJobsAreCancelledOnlyAfterTheirNumberIsTypedAndCanBeUndone(t *testing.T) {
	s := newSite(t, nil)
	s.submit(t, spec("a", `{}`), spec("a", `{}`), spec("b", `{}`))
	expect(t, s.get(t, "/jobs?lock=db&q=a+b&since=2h&worker=w"), "lokt job list --lock db --text &#39;a b&#39; --since 2h0m0s --worker w")
	expect(t, s.get(t, "/audit?name=x&type=deny"), "lokt audit --name x --event deny")
	expect(t, s.get(t, "/bulk?action=cancel&type=a&q=%7B"), "<b>2</b> jobs", "begins 30 s after", "lokt job cancel --text &#39;{&#39; --type a")
	form := url.Values{"action": {"cancel"}, "type": {"a"}, "confirm": {"3"}}
	if status, body, _ := do(t, "POST", s.url+"/bulk", form); status != http.StatusUnprocessableEntity {
		t.Error(status, body)
	}
	form.Set("confirm", "2")
	status, body, at := do(t, "POST", s.url+"/bulk", form)
	if status != http.StatusSeeOther {
		t.Fatal(status, body)
	}
	expect(t, s.get(t, at), "It begins in", "Undo")
	expect(t, s.get(t, "/jobs"), "Cancel 2 jobs: type a", `<a href="`+at+`">It begins in `)
	do(t, "POST", s.url+at+"/undo", url.Values{})
	expect(t, s.get(t, at), "Undone: nothing was changed")
	var list struct{ Jobs []struct{ State string } }
	s.twin(t, "/jobs?state=queued", &list)
	if len(list.Jobs) != 3 {
		t.Error(list.Jobs)
	}
}

func TestManyEndedJobsAreCountedForARetry(t *testing.T) {
	s := newSite(t, nil)
	for range 3 {
		s.submit(t, spec("a", `{}`))
		s.fail(t, "a", "no such file")
	}
	s.submit(t, spec("b", `{}`))
	s.fail(t, "b", "no room")
	s.submit(t, spec("a", `{}`)) // waits
	for which, want := range map[string]string{"": "4", "&state=failed&type=a": "3", "&type=b": "1", "&state=expired": "0", "&state=completed": "0", "&state=failed&q=room": "1"} {
		expect(t, s.get(t, "/bulk?action=retry"+which), "<b>"+want+"</b> jobs")
	}
	var some struct {
		Count int
		Some  bool
	}
	specs := make([]jobs.Spec, 1000)
	for i := range specs {
		specs[i] = spec("c", `{"x":1}`)
	}
	for range 11 {
		s.submit(t, specs...)
	}
	s.submit(t, spec("d", `{}`)) // changed last: the list begins with it
	s.twin(t, "/bulk?action=cancel&q=x", &some)
	if some.Count >= 11_000 || !some.Some {
		t.Errorf("of 11,000 jobs %+v are looked at for a page", some)
	}
	expect(t, s.get(t, "/bulk?action=cancel&q=x"), `<a href="/bulk?action=cancel&amp;q=x&amp;all=1">look through all</a>`)
	expect(t, s.get(t, "/bulk?action=cancel&q=x&all=1"), "<b>11000</b> jobs", `name="all"`)
	form := url.Values{"action": {"retry"}, "state": {"failed"}, "confirm": {"4"}}
	if status, body, _ := do(t, "POST", s.url+"/bulk", form); status != http.StatusSeeOther {
		t.Error(status, body)
	}
}

// holder of a token.
type person struct {
	name   string
	scopes string
	prefix string
}

func (p person) Name() string { return p.name }
func (p person) May(s dashboard.Scope, name string) bool {
	return strings.Contains(p.scopes, string(s)) && strings.HasPrefix(name, p.prefix) || name == "" && strings.Contains(p.scopes, string(s))
}

func people(c *dashboard.Config) {
	c.Enter = func(r *http.Request) (dashboard.Caller, error) {
		switch r.Header.Get("Authorization") {
		case "Bearer reader":
			return person{"rita", "read", ""}, nil
		case "Bearer operator":
			return person{"omar", "read lock submit", "ci."}, nil
		case "Bearer admin":
			return person{"ada", "read lock force submit admin", ""}, nil
		}
		return nil, dashboard.ErrUnauthenticated
	}
}

func TestWhoHasNoTokenSeesTheLoginPageOnly(t *testing.T) {
	s := newSite(t, people)
	s.hold(t, "ci.build", "ana", lokt.Claim{TTL: time.Minute})
	for _, path := range []string{"/", "/locks/ci.build", "/jobs", "/audit", "/workers", "/failures"} {
		status, body, next := do(t, "GET", s.url+path, nil)
		if status != http.StatusSeeOther || next != "/login?next="+url.QueryEscape(path) || strings.Contains(body, "ana") {
			t.Error(path, status, next, body)
		}
		if status, body, _ = do(t, "GET", s.url+path, nil, "Accept", "application/json"); status != http.StatusUnauthorized {
			t.Error(path, status, body)
		}
	}
	if status, _, _ := do(t, "GET", s.url+"/live", nil, "Accept", "text/event-stream, application/json"); status != http.StatusUnauthorized {
		t.Error("somebody without a token may follow: ", status)
	}
	if status, body, _ := do(t, "POST", s.url+"/login", url.Values{"token": {"wrong"}}); status != http.StatusUnauthorized || !strings.Contains(body, "not known") {
		t.Error(status, body)
	}
	for _, next := range []string{"//evil.example", "https://evil.example", "/\\evil.example", ""} {
		if _, _, to := do(t, "POST", s.url+"/login", url.Values{"token": {"reader"}, "next": {next}}); to != "/" {
			t.Errorf("after the login, next=%q leads to %q", next, to)
		}
	}
	var cookie string
	client := &http.Client{CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		cookie = r.Response.Header.Get("Set-Cookie")
		return http.ErrUseLastResponse
	}}
	answer, err := client.PostForm(s.url+"/login", url.Values{"token": {"reader"}})
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if !strings.Contains(cookie, "lokt_token=reader") || !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") {
		t.Error(cookie)
	}
}

func TestRightsAreThoseOfTheToken(t *testing.T) {
	s := newSite(t, people)
	s.hold(t, "ci.build", "ana", lokt.Claim{TTL: time.Minute})
	s.hold(t, "prod.db", "ana", lokt.Claim{TTL: time.Minute})
	as := func(token string) []string { return []string{"Cookie", "lokt_token=" + token} }
	_, body, _ := do(t, "GET", s.url+"/locks/ci.build", nil, as("reader")...)
	if strings.Contains(body, "Freeze") || strings.Contains(body, "End all holds") {
		t.Error("who may only read is offered more")
	}
	_, body, _ = do(t, "GET", s.url+"/", nil, as("operator")...)
	expect(t, body, "ci.build")
	if strings.Contains(body, "prod.db") {
		t.Error("a token for ci. shows another lock")
	}
	for _, c := range []struct {
		token, path string
		status      int
	}{
		{"reader", "/locks/ci.build/freeze", http.StatusForbidden}, {"reader", "/locks/ci.build/unlock", http.StatusForbidden},
		{"reader", "/locks/ci.build/ask", http.StatusForbidden}, {"operator", "/locks/prod.db/ask", http.StatusForbidden},
		{"operator", "/locks/ci.build/unlock", http.StatusForbidden}, {"operator", "/locks/prod.db/freeze", http.StatusForbidden},
		{"operator", "/jobs/types/freeze", http.StatusForbidden}, {"operator", "/locks/ci.build/freeze", http.StatusSeeOther},
		{"admin", "/locks/ci.build/unlock", http.StatusSeeOther}, {"admin", "/jobs/types/freeze", http.StatusSeeOther},
	} {
		if status, body, _ := do(t, "POST", s.url+c.path, url.Values{"confirm": {"ci.build"}}, as(c.token)...); status != c.status {
			t.Error(c, status, body)
		}
	}
	_, body, _ = do(t, "GET", s.url+"/audit", nil, as("admin")...)
	expect(t, body, "omar/dashboard", "ada/dashboard")
	if status, body, _ := do(t, "GET", s.url+"/locks/prod.db", nil, as("operator")...); status != http.StatusForbidden {
		t.Error(status, body)
	}
}

func TestLoggingOutIsOfferedToWhoHasLoggedIn(t *testing.T) {
	s := newSite(t, func(c *dashboard.Config) {
		c.Enter = func(*http.Request) (dashboard.Caller, error) { return person{"sam", "read", ""}, nil } // as with a certificate
	})
	for path, status := range map[string]int{"/": http.StatusOK, "/locks/a%20b": http.StatusUnprocessableEntity} {
		_, body, _ := do(t, "GET", s.url+path, nil, "Cookie", "lokt_token=sam")
		expect(t, body, "sam", "Log out")
		if got, body, _ := do(t, "GET", s.url+path, nil); got != status || !strings.Contains(body, "sam") || strings.Contains(body, "Log out") {
			t.Errorf("%s: without a token it is offered: %d %s", path, got, body)
		}
	}
}

func TestTwoTokensOfOneNameDoNotShareAPage(t *testing.T) {
	s := newSite(t, func(c *dashboard.Config) {
		c.Enter = func(r *http.Request) (dashboard.Caller, error) {
			if r.Header.Get("Authorization") == "Bearer wide" {
				return person{"sam", "read", ""}, nil
			}
			return person{"sam", "read", "ci."}, nil
		}
	})
	s.hold(t, "prod.db", "ana", lokt.Claim{TTL: time.Minute})
	_, body, _ := do(t, "GET", s.url+"/", nil, "Cookie", "lokt_token=wide")
	expect(t, body, "prod.db")
	if _, body, _ = do(t, "GET", s.url+"/", nil, "Cookie", "lokt_token=narrow"); strings.Contains(body, "prod.db") {
		t.Error("a token for ci. is shown what was made for another of the same name")
	}
}

func TestAPageOfAnotherSiteCanDoNothing(t *testing.T) {
	s := newSite(t, nil)
	s.hold(t, "build", "ana", lokt.Claim{TTL: time.Minute})
	for _, header := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Origin", "https://evil.example"}} {
		if status, body, _ := do(t, "POST", s.url+"/locks/build/unlock", url.Values{"confirm": {"build"}}, header...); status != http.StatusForbidden {
			t.Error(header, status, body)
		}
	}
}

func TestWhatOthersHaveChosenIsShownAndNotRun(t *testing.T) {
	s := newSite(t, nil)
	evil := `"><script>alert(1)</script>` + "\u202e"
	s.hold(t, "build", evil, lokt.Claim{TTL: time.Minute, Metadata: map[string]string{evil: evil}})
	if _, err := s.locks.Freeze(t.Context(), "build", lokt.Freeze{Owner: lokt.Owner{ID: evil}, Reason: evil}); err != nil {
		t.Fatal(err)
	}
	one := spec(evil, `{"x":`+string(must(json.Marshal(evil)))+`}`)
	one.Tags = []string{evil}
	id := s.submit(t, one)[0]
	s.fail(t, evil, evil+strings.Repeat("x", 1<<20))
	noisy := s.submit(t, spec("noisy", `{}`))[0]
	s.take(t, "noisy", nil, evil+strings.Repeat("<", 60_000)+evil+"\x1b[2J")
	for _, path := range []string{"/", "/?q=" + url.QueryEscape(evil), "/locks/build", "/jobs", "/jobs?q=" + url.QueryEscape(evil), "/jobs/" + id, "/jobs/" + noisy, "/failures", "/audit", "/workers"} {
		body := inputs.ReplaceAllString(s.get(t, path), "") // what is being searched for stays as it is
		if strings.Contains(body, "<script>alert") || strings.Contains(body, "\u202e") {
			t.Errorf("%s shows it as it is:\n%s", path, body)
		}
		if len(body) > 60_000 {
			t.Errorf("%s has %d bytes", path, len(body))
		}
	}
}

var inputs = regexp.MustCompile(`<input [^>]*>|<option[^>]*>`)

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestWhatThereIsNotIsSaidSo(t *testing.T) {
	s := newSite(t, nil)
	for path, want := range map[string]int{
		"/nowhere": 404, "/locks/a/b": 404, "/jobs/none": 404, "/runs/none": 404, "/locks/a..b": 422, "/jobs?state=odd": 422,
		"/jobs?since=soon": 422, "/audit?before=x": 422, "/audit?before=12x": 422, "/bulk?action=burn": 422, "/locks/" + strings.Repeat("a", 300): 422,
	} {
		status, body, _ := do(t, "GET", s.url+path, nil)
		if status != want || !strings.Contains(body, `role="alert"`) {
			t.Errorf("GET %s: %d, want %d\n%s", path, status, want, body)
		}
	}
	for path, want := range map[string]int{"/jobs": 405, "/live": 405, "/locks/x/unlock": 405, "/jobs/none/other": 404} {
		status, body, _ := do(t, "DELETE", s.url+path, nil, "Accept", "application/json")
		if status != want || !strings.HasPrefix(body, `{"status":`) {
			t.Errorf("DELETE %s: %d, want %d\n%s", path, status, want, body)
		}
	}
	expect(t, s.get(t, "/"), "Nobody holds or waits for a lock", "lokt guard demo")
	expect(t, s.get(t, "/jobs"), "There is no job", "lokt job submit")
	expect(t, s.get(t, "/workers"), "lokt worker")
	expect(t, s.get(t, "/failures"), "No job has failed")
	_, gone, _ := do(t, "GET", s.url+"/runs/none", nil)
	expect(t, gone, "the list of jobs says what was done")
}

func TestTheVendoredScriptIsTheOneOfItsRelease(t *testing.T) {
	s := newSite(t, nil)
	const released = "4cbd535caf7663a51eda9bce6595371c384fc430d54b8d414e29a61167f19f96" // dist/idiomorph.min.js of npm's 0.8.0
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(s.get(t, "/assets/idiomorph.min.js")))); sum != released {
		t.Error(sum)
	}
}

func TestAnOpenPageIsToldOfAChangeWithinASecond(t *testing.T) {
	s := newSite(t, nil)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r) //nolint:bodyclose // it is closed below
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	buffer := make([]byte, 200)
	n, err := answer.Body.Read(buffer) // the first tells that it is connected
	if err != nil || !strings.Contains(string(buffer[:n]), "event: changed") {
		t.Fatal(string(buffer[:n]), err)
	}
	told := make(chan string, 1)
	go func() {
		n, err := answer.Body.Read(buffer)
		told <- fmt.Sprint(string(buffer[:n]), err)
	}()
	for i := range 60 { // whoever looks may not have looked yet at how it was
		s.hold(t, fmt.Sprint("build-", i), "ana", lokt.Claim{TTL: time.Minute})
		select {
		case text := <-told:
			if !strings.Contains(text, "event: changed") {
				t.Fatal(text)
			}
			return
		case <-time.After(time.Second):
		}
	}
	t.Fatal("nothing is told")
}

// Promise S-127.
func TestOnePersonHasAShareOfThePagesThatFollowOnly(t *testing.T) {
	s := newSite(t, func(c *dashboard.Config) { people(c); c.Streams = 4 })
	follow := func(token string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/live", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer.StatusCode
	}
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests} {
		if status := follow("reader"); status != want {
			t.Errorf("page %d of one person: %d, not %d", i+1, status, want)
		}
	}
	if status := follow("admin"); status != http.StatusOK {
		t.Errorf("another is kept from following: %d", status)
	}
}

// circle is a service of two locks whose holders wait for each other.
type circle struct{ lokt.Service }

func (circle) List(context.Context, lokt.Filter) iter.Seq2[lokt.Snapshot, error] {
	return func(yield func(lokt.Snapshot, error) bool) {
		now := time.Now()
		for _, l := range [][3]string{{"ci.a", "ana", "ben"}, {"b", "ben", "ana"}} {
			claim := func(owner, lease string, within ...string) lokt.Claim {
				return lokt.Claim{Name: l[0], LeaseID: lease, Owner: lokt.Owner{ID: owner, AnySession: true}, Within: within}
			}
			ok := yield(lokt.Snapshot{Now: now, Lock: lokt.Lock{
				Name: l[0], Holders: []lokt.Holder{{Claim: claim(l[1], l[1]+"-holds"), Token: 1, HeldSince: now}},
				Queue: []*lokt.Waiter{{Claim: claim(l[2], l[2]+"-waits", l[2]+"-holds"), Since: now, Until: now.Add(lokt.QueueTTL + lokt.PresenceTTL)}},
			}}, nil)
			if !ok {
				return
			}
		}
	}
}

func TestACircleOfClaimsIsShownToWhoMaySeeAllOfIt(t *testing.T) {
	s := newSite(t, func(c *dashboard.Config) {
		people(c)
		c.Locks = circle{c.Locks}
	})
	_, body, _ := do(t, "GET", s.url+"/", nil, "Authorization", "Bearer reader")
	expect(t, body, "A circle: ", "waits for ci.a, kept by", "waits for b, kept by")
	if _, body, _ = do(t, "GET", s.url+"/", nil, "Authorization", "Bearer operator"); strings.Contains(body, "A circle") {
		t.Error(body)
	}
}

func TestClaimsThatGaveWayInACircleAreCounted(t *testing.T) {
	s := newSite(t, nil)
	a, b := s.hold(t, "a", "ana", lokt.Claim{TTL: time.Minute}), s.hold(t, "b", "ben", lokt.Claim{TTL: time.Minute})
	ctx, stop := context.WithCancel(t.Context())
	gave := make(chan error, 2)
	for _, c := range []lokt.Claim{
		{Name: "b", Owner: a.Owner, Within: []string{a.LeaseID}, Wait: time.Hour, TTL: time.Minute},
		{Name: "a", Owner: b.Owner, Within: []string{b.LeaseID}, Wait: time.Hour, TTL: time.Minute},
	} {
		go func() {
			_, err := s.locks.Acquire(ctx, c)
			gave <- err
		}()
	}
	if err := <-gave; !errors.Is(err, lokt.ErrDeadlock) {
		t.Fatal(err)
	}
	var twin struct {
		Contention []struct {
			Name    string
			Circles int
		}
	}
	s.twin(t, "/", &twin)
	if len(twin.Contention) != 1 || twin.Contention[0].Circles != 1 {
		t.Error(twin)
	}
	stop()
	if err := <-gave; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestJobsAreFoundByNamesWithBlanksAtTheirEnds(t *testing.T) {
	s := newSite(t, nil)
	odd := spec(" a ", "{}")
	odd.Tags, odd.Locks = []string{"tag "}, nil
	id := s.submit(t, odd, spec("a", "{}"))[0]
	for _, filter := range []url.Values{{"type": {" a "}}, {"tag": {"tag "}}} {
		if body := s.get(t, "/jobs?"+filter.Encode()); !strings.Contains(body, id) {
			t.Errorf("%v does not find it", filter)
		}
	}
}

func TestAFormThatIsMuchTooLargeIsAnswered(t *testing.T) {
	s := newSite(t, nil)
	address := strings.TrimPrefix(s.url, "http://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 64 << 20
	if _, err := fmt.Fprintf(conn, "POST /locks/x/freeze HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n", address, size); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(bytes.Repeat([]byte("a"), size)); err != nil { // all of it, before anything is read
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("the answer is %s", answer.Status)
	}
}
