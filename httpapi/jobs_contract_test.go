package httpapi_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// withConfig sets the numbers that the rules go by.
func withConfig(c jobs.Config) func(*manager.Options, *httpapi.Config) {
	return func(o *manager.Options, _ *httpapi.Config) { o.Config = c }
}

// beat sends a heartbeat, which must be accepted, and returns the new end of the lease.
func (s *site) beat(lease, worker string) time.Time {
	s.Helper()
	v := s.ok("POST", "/leases/"+lease+"/heartbeat", fmt.Sprintf(`{"worker_id":%q}`, worker))
	if v["ok"] != true {
		s.Errorf("a heartbeat was answered with %v", v)
	}
	return s.moment(v["expires_at"])
}

// lost checks that a heartbeat of the lease finds nothing.
func (s *site) lost(lease, worker string) {
	s.Helper()
	s.refused(404, "lease_not_found", "POST", "/leases/"+lease+"/heartbeat", fmt.Sprintf(`{"worker_id":%q}`, worker))
}

// complete ends a lease, and checks whether that counted.
func (s *site) complete(lease, worker, status string, applied bool) {
	s.Helper()
	v := s.ok("POST", "/leases/"+lease+"/complete", fmt.Sprintf(`{"worker_id":%q,"status":%q}`, worker, status))
	if v["ok"] != true || v["applied"] != applied {
		s.Errorf("completion was answered with %v", v)
	}
}

// capacity checks the snapshot's numbers.
func (s *site) capacity(leased, available, active int) {
	s.Helper()
	v := s.ok("GET", "/status", "")
	got := fmt.Sprintf("%v, %v, %v", v["leased_capacity_units"], v["available_capacity_units"], v["active_leases"])
	if want := fmt.Sprintf("%d, %d, %d", leased, available, active); got != want {
		s.Errorf("leased, available and active are %s, not %s", got, want)
	}
}

// Promises S-75, S-76.
func TestHeartbeatContract(t *testing.T) {
	t.Run("a grant has expires_at, and a heartbeat extends it to now plus TTL and grace", func(t *testing.T) {
		bubbled(t, func(s *site) {
			s.submit(`{}`)
			lease, g := s.lease("worker-123")
			now := time.Now()
			if got := s.moment(s.dig(g, "lease", "expires_at")); !got.Equal(now.Add(70 * time.Second).Truncate(time.Millisecond)) {
				s.Errorf("granted at %v until %v", now, got)
			}
			for range 5 {
				time.Sleep(69*time.Second + 999*time.Millisecond)
				if got, want := s.beat(lease, "worker-123"), time.Now().Add(70*time.Second).Truncate(time.Millisecond); !got.Equal(want) {
					s.Errorf("extended to %v, not to %v", got, want)
				}
			}
		}, withConfig(jobs.Config{Grace: 10 * time.Second}))
	})
	t.Run("the answer is ok and a time with three digits", func(t *testing.T) {
		s := newSite(t)
		s.submit(`{}`)
		lease, _ := s.lease("w")
		v := s.ok("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"w"}`)
		s.has("true", v, "ok")
		s.moment(v["expires_at"])
		s.has("15", v, "heartbeat_interval_s")
	})
	t.Run("the first heartbeat makes leased running, and only the first", func(t *testing.T) {
		s := newSite(t)
		id := s.submit(`{}`)
		s.state(id, "queued")
		lease, _ := s.lease("w")
		s.state(id, "leased")
		for range 3 {
			s.beat(lease, "w")
			s.state(id, "running")
		}
	})
	t.Run("any number of heartbeats is safe, and expires_at never moves back", func(t *testing.T) {
		s := newSite(t)
		id := s.submit(`{}`)
		lease, _ := s.lease("w")
		last := time.Time{}
		for range 50 {
			at := s.beat(lease, "w")
			if at.Before(last) {
				s.Errorf("%v follows %v", at, last)
			}
			last = at
		}
		s.has(last.Format("2006-01-02T15:04:05.000Z"), s.job(id), "lease", "expires_at")
	})
	t.Run("without heartbeats the lease expires, leased or running, and its capacity is free", func(t *testing.T) {
		bubbled(t, func(s *site) {
			for _, beats := range []int{0, 2} {
				id := s.submit(`{"requested_units":40}`)
				lease, _ := s.lease("w")
				for range beats {
					time.Sleep(30 * time.Second)
					s.beat(lease, "w")
				}
				time.Sleep(time.Minute - time.Nanosecond)
				s.capacity(40, 60, 1)
				time.Sleep(time.Nanosecond)
				s.capacity(0, 100, 0) // seen at the deadline, by who only reads
				s.state(id, "expired")
				s.has("lease_expired", s.job(id), "code")
				s.lost(lease, "w")
			}
		})
	})
	t.Run("a lease that is not there is 404 for whatever reason", func(t *testing.T) {
		s := newSite(t)
		for range 3 {
			s.submit(`{}`)
		}
		done, _ := s.lease("w")
		s.complete(done, "w", "completed", true)
		failed, _ := s.lease("w")
		s.complete(failed, "w", "failed", true)
		revoked, _ := s.lease("w")
		s.ok("POST", "/leases/"+revoked+"/revoke", "")
		for _, lease := range []string{done, failed, revoked, "never", strings.Repeat("x", 10_000), "a%2Fb", "%00", "%ff", "heartbeat"} {
			s.lost(lease, "w")
			s.lost(lease, "another") // the lease comes before the worker
		}
	})
	t.Run("another worker's heartbeat is 403 and changes nothing", func(t *testing.T) {
		bubbled(t, func(s *site) {
			id := s.submit(`{}`)
			lease, _ := s.lease("w")
			before := s.get("/jobs/" + id).body
			s.refused(403, "worker_mismatch", "POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"thief","progress":0.5,"checkpoint":1}`)
			s.refused(403, "worker_mismatch", "POST", "/leases/"+lease+"/complete", `{"worker_id":"thief","status":"completed"}`)
			s.refused(403, "worker_mismatch", "POST", "/leases/"+lease+"/report", `{"worker_id":"thief","progress":1}`)
			if after := s.get("/jobs/" + id).body; after != before {
				s.Errorf("the job was %s and is %s", before, after)
			}
			time.Sleep(30 * time.Second)
			s.refused(403, "worker_mismatch", "POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"thief"}`)
			time.Sleep(30 * time.Second)
			s.state(id, "expired")
		})
	})
	t.Run("capacity is held for the life of the lease", func(t *testing.T) {
		s := newSite(t)
		s.submit(`{"requested_units":30}`)
		s.submit(`{"requested_units":20}`)
		a, _ := s.lease("w")
		s.capacity(30, 70, 1)
		b, _ := s.lease("v")
		s.capacity(50, 50, 2)
		s.beat(a, "w")
		s.capacity(50, 50, 2)
		s.complete(a, "w", "completed", true)
		s.capacity(20, 80, 1)
		s.complete(b, "v", "failed", true)
		s.capacity(0, 100, 0)
	})
	t.Run("the advertised interval is below the TTL", func(t *testing.T) {
		s := newSite(t, withConfig(jobs.Config{TTL: 6 * time.Second}))
		s.submit(`{}`)
		_, g := s.lease("w")
		s.has("6", g, "lease", "lease_ttl_s")
		s.has("2", g, "lease", "heartbeat_interval_s")
	})
	t.Run("the server goes away and comes back: the lease has a full life from then", func(t *testing.T) {
		bubbled(t, func(s *site) {
			id := s.submit(`{}`)
			lease, _ := s.lease("w")
			time.Sleep(50 * time.Second)
			if err := s.manager.Close(); err != nil {
				s.Fatal(err)
			}
			time.Sleep(time.Hour)
			m, err := manager.Open(s.Context(), s.store, manager.Options{})
			if err != nil {
				s.Fatal(err)
			}
			defer m.Close()
			if v, err := m.Get(s.Context(), id); err != nil || v.Lease == nil || v.Lease.ID != lease || !v.Lease.ExpiresAt.Equal(time.Now().Truncate(time.Millisecond).Add(time.Minute)) {
				s.Errorf("afterwards it is %+v, %v", v, err)
			}
		})
	})
}

// Promise S-77.
func TestCompletionMayBeRepeatedAndNeverFailsAfterTheWork(t *testing.T) {
	s := newSite(t)
	first := s.submit(`{}`)
	lease, _ := s.lease("w")
	s.complete(lease, "w", "completed", true) // without any heartbeat
	s.state(first, "completed")
	s.has("map[completed:1 granted:1 running:1 submitted:1]", s.ok("GET", "/history/decisions", ""), "events")
	s.complete(lease, "w", "completed", false)
	s.complete(lease, "w", "failed", false) // the first end wins
	s.complete(lease, "another", "failed", false)
	s.complete("never", "w", "failed", false)
	s.complete(strings.Repeat("x", 5000), "w", "failed", false)
	s.state(first, "completed")

	second := s.submit(`{}`)
	lease, _ = s.lease("w")
	s.refused(403, "worker_mismatch", "POST", "/leases/"+lease+"/complete", `{"worker_id":"v","status":"failed"}`)
	s.state(second, "leased")
	r := s.post("/leases/"+lease+"/complete", `{"worker_id":"w","status":"failed","result":{"a": [1,2]} , "error": "no\tluck"}`)
	if r.status != 200 || r.body != `{"ok":true,"applied":true}` {
		t.Errorf("completion was answered with %d %s", r.status, r.body)
	}
	v := s.job(second)
	s.has("failed", v, "state")
	s.has("map[a:[1 2]]", v, "result")
	s.has("no\tluck", v, "error")
	s.has("no\tluck", v, "attempts", 0, "error")
	s.has("failed", v, "attempts", 0, "state")
	for _, status := range []string{`"done"`, `"expired"`, `"cancelled"`, `"Completed"`, `""`, `5`, `null`} {
		s.invalid("POST", "/leases/never/complete", `{"worker_id":"w","status":`+status+`}`, "body status")
	}
	s.invalid("POST", "/leases/never/complete", `{"status":"completed"}`, "body worker_id")
}

func TestJobsAreSubmittedWithDefaultsOrWithEverything(t *testing.T) {
	s := newSite(t)
	plain := s.job(s.submit(`{}`))
	for name, want := range map[string]string{
		"type": "generic", "priority": "normal", "requested_units": "1", "unique": "false", "payload": "map[]", "idempotency_key": "<nil>",
		"tags": "[]", "max_runtime_s": "<nil>", "lease_id": "<nil>", "state": "queued", "max_attempts": "1", "retry_backoff_s": "1",
		"run_at": "<nil>", "locks": "[]", "attempts": "[]", "result": "<nil>", "error": "<nil>", "progress": "<nil>",
	} {
		s.has(want, plain, name)
	}
	s.moment(plain["created_at"])
	s.moment(plain["updated_at"])
	nulls := s.job(s.submit(`{"type":null,"priority":null,"requested_units":null,"unique":null,"payload":null,"idempotency_key":null,"tags":null,
		"max_runtime_s":null,"max_attempts":null,"retry_backoff_s":null,"run_at":null,"locks":null,"jobs":null}`))
	for _, name := range []string{"type", "priority", "requested_units", "unique", "payload", "idempotency_key", "tags", "max_runtime_s", "max_attempts", "retry_backoff_s", "run_at", "locks"} {
		s.has(fmt.Sprint(plain[name]), nulls, name)
	}
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	full := s.job(s.submit(`{"type":"render","priority":"background","requested_units":1e2,"unique":true,"payload":{"x":1},"idempotency_key":"k",
		"tags":["a","needs:gpu"],"max_runtime_s":90.5,"max_attempts":3.0,"retry_backoff_s":0,"locks":["x","y.z"],"run_at":"` +
		at.In(time.FixedZone("", 7200)).Format(time.RFC3339) + `","unknown":{"deep":[1]},"Type":"no","PRIORITY":"no"}`))
	for name, want := range map[string]string{
		"type": "render", "priority": "background", "requested_units": "100", "unique": "true", "payload": "map[x:1]", "idempotency_key": "k",
		"tags": "[a needs:gpu]", "max_runtime_s": "90.5", "max_attempts": "3", "retry_backoff_s": "0", "locks": "[x y.z]",
		"run_at": at.Format("2006-01-02T15:04:05.000Z"), "waiting_for": "run_at",
	} {
		s.has(want, full, name)
	}
	s.has("<nil>", s.job(s.submit(`{"idempotency_key":""}`)), "idempotency_key")
	s.refused(404, "job_not_found", "GET", "/jobs/unknown", "")
	s.refused(404, "job_not_found", "GET", "/jobs/"+strings.Repeat("x", 257), "")
	s.refused(404, "job_not_found", "GET", "/jobs/%00%ff", "")
}

func TestWrongJobsAreRefusedWithThePlace(t *testing.T) {
	s := newSite(t)
	s.invalid("POST", "/jobs", `{"locks":["x"],"limits":{"x":5}}`, "body limits x")
	s.invalid("POST", "/jobs", `{"locks":["x"],"limits":{"x":{"slots":-1},"y":{"starts":1}}}`, "body limits x slots", "body limits y", "body limits y")
	long := strings.Repeat("x", 257)
	for field, values := range map[string][]string{
		"type":             {`""`, `5`, `["a"]`, `"` + long + `"`, `"a\u0000b"`, `"\ud800"`},
		"priority":         {`"urgent"`, `"High"`, `""`, `1`, `{}`},
		"requested_units":  {`0`, `-1`, `101`, `1.5`, `"1"`, `true`, `100000000000000000000000000`, `1e30`, `-1e300`, `[]`},
		"unique":           {`1`, `"true"`, `"false"`, `[]`},
		"payload":          {`[]`, `5`, `"x"`, `true`},
		"limits":           {`[]`, `5`, `"x"`, `true`},
		"limits x":         {`{"x":{}}`},
		"idempotency_key":  {`5`, `"` + long + `"`, `{}`},
		"tags":             {`"a"`, `{}`, `5`},
		"tags 1":           {`["a",5]`, `["a",null]`, `["a","` + long + `"]`, `["a",["b"]]`},
		"max_runtime_s":    {`0`, `-1`, `-0.0001`, `"5"`, `1e300`, `1e12`, `[]`, `0.0`, `-0`},
		"max_attempts":     {`0`, `1001`, `2.5`, `"3"`},
		"retry_backoff_s":  {`-1`, `1e300`, `"1"`, `false`},
		"run_at":           {`5`, `"tomorrow"`, `"2026-02-30T00:00:00Z"`, `"2026-01-01"`, `"2026-01-01T00:00:00"`, `"10000-01-01T00:00:00Z"`, `""`, `"0000-01-01T00:00:00Z"`},
		"locks":            {`"a"`, `{}`},
		"locks 0":          {`["a/b"]`, `[""]`, `[5]`, `["` + long + `"]`},
		"locks 1":          {`["a","a"]`},
		"max_attempts 1":   nil,
		"retry_backoff_s ": nil,
	} {
		for _, value := range values {
			name, _, _ := strings.Cut(field, " ")
			s.invalid("POST", "/jobs", fmt.Sprintf(`{%q:%s}`, name, value), "body "+field)
			s.invalid("POST", "/jobs", fmt.Sprintf(`{"jobs":[{},{},{%q:%s}]}`, name, value), "body jobs 2 "+field)
		}
	}
	s.invalid("POST", "/jobs", `{"type":5,"priority":5,"tags":[5,5]}`, "body type", "body priority", "body tags 0", "body tags 1")
	s.invalid("POST", "/jobs", `{"type":"","requested_units":0}`, "body type", "body requested_units")
	s.invalid("POST", "/jobs", `{"type":"a","type":"b"}`, "body type")
	s.invalid("POST", "/jobs", `{"tags":[`+strings.Repeat(`"a",`, 100)+`"a"]}`, "body tags")
	s.has("map[background:0 high:0 low:0 normal:0]", s.ok("GET", "/status", ""), "queue_depths")
}

// Promise S-82.
func TestListsOfJobsAreAllOrNone(t *testing.T) {
	s := newSite(t)
	v := s.ok("POST", "/jobs", `{"jobs":[{"type":"a"},{"type":"b","priority":"high"},{"type":"c"}],"type":"ignored"}`)
	var ids []string
	for i := range 3 {
		s.has("queued", v, "jobs", i, "state")
		ids = append(ids, s.dig(v, "jobs", i, "job_id").(string))
		s.has(string(rune('a'+i)), s.job(ids[i]), "type")
	}
	for _, i := range []int{1, 0, 2} { // by class, and in order within
		if _, g := s.lease("w"); s.dig(g, "job", "job_id") != ids[i] {
			t.Errorf("granted %v, not %s", g, ids[i])
		}
	}
	s.invalid("POST", "/jobs", `{"jobs":[{},{"priority":"x"},{},{"priority":"y","requested_units":0}]}`, "body jobs 1 priority", "body jobs 3 priority", "body jobs 3 requested_units")
	s.invalid("POST", "/jobs", `{"jobs":[]}`, "body jobs")
	s.invalid("POST", "/jobs", `{"jobs":{}}`, "body jobs")
	s.invalid("POST", "/jobs", `{"jobs":[{},5]}`, "body jobs 1")
	s.invalid("POST", "/jobs", `{"jobs":[{},null,[]]}`, "body jobs 1", "body jobs 2")
	s.invalid("POST", "/jobs", `{"jobs":[`+strings.Repeat("{},", 1000)+`{}]}`, "body jobs")
	s.has("map[background:0 high:0 low:0 normal:0]", s.ok("GET", "/status", ""), "queue_depths")
	if v := s.ok("POST", "/jobs", `{"jobs":[`+strings.Repeat("{},", 999)+`{}]}`); len(v["jobs"].([]any)) != 1000 {
		t.Errorf("a thousand jobs were answered with %v", v)
	}

	one := s.submit(`{"idempotency_key":"k","payload":{"a":1,"b":2.50}}`)
	again := s.ok("POST", "/jobs", `{"jobs":[{"payload":{"b":25e-1,"a":1.0},"idempotency_key":"k","type":"generic","tags":[]}]}`)
	s.has(one, again, "jobs", 0, "job_id")
	before := s.get("/status").body
	s.refused(409, "idempotency_conflict", "POST", "/jobs", `{"idempotency_key":"k","payload":{"a":2}}`)
	s.refused(409, "idempotency_conflict", "POST", "/jobs", `{"jobs":[{},{"idempotency_key":"k"}]}`)
	if after := s.get("/status").body; after != before {
		t.Errorf("a conflict changed the status from %s to %s", before, after)
	}
}

func TestKeysAreRememberedForADayAfterTheJobsEnd(t *testing.T) {
	bubbled(t, func(s *site) {
		id := s.submit(`{"idempotency_key":"k"}`)
		lease, _ := s.lease("w")
		s.has("leased", s.ok("POST", "/jobs", `{"idempotency_key":"k"}`), "state")
		s.complete(lease, "w", "completed", true)
		time.Sleep(24*time.Hour - time.Second)
		v := s.ok("POST", "/jobs", `{"idempotency_key":"k"}`)
		s.has(id, v, "job_id")
		s.has("completed", v, "state")
		time.Sleep(2 * time.Second)
		if s.submit(`{"idempotency_key":"k","priority":"low"}`) == id {
			s.Error("the key was not forgotten")
		}
	})
}

// Promise S-81.
func TestValuesThatArePassedOnAreKeptByteForByte(t *testing.T) {
	s := newSite(t)
	value := `{"big": 123456789012345678901234567890, "f":1.10,"e":1E+2, "s":"\u0041\/<&>é\u2028", "n":[ ],"z":-0, "dup":1,"dup":2,"nested":[[[{"a" : null}]]]}`
	id := s.submit(`{"max_attempts":2,"retry_backoff_s":0,"payload": ` + value + ` }`)
	contains := func(r reply, name string) {
		t.Helper()
		if r.status != 200 || !strings.Contains(r.body, fmt.Sprintf(`%q:%s`, name, value)) {
			t.Errorf("%s is not kept in %d %s", name, r.status, r.body)
		}
	}
	g := s.post("/leases/request", `{"worker_id":"w"}`)
	contains(g, "payload")
	contains(s.get("/jobs/"+id), "payload")
	contains(s.get("/jobs"), "payload")
	lease := s.dig(g.value, "lease", "lease_id").(string)
	s.ok("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"w","progress":0.25,"checkpoint":`+value+`}`)
	s.ok("POST", "/leases/"+lease+"/report", `{"worker_id":"w","message":"half \"way\"","metrics":`+value+`}`)
	for _, name := range []string{"checkpoint", "metrics"} {
		contains(s.get("/jobs/"+id), name)
	}
	s.ok("POST", "/leases/"+lease+"/complete", `{"worker_id":"w","status":"failed","error":`+value+`}`)
	contains(s.get("/jobs/"+id), "error")
	g = s.post("/leases/request", `{"worker_id":"w"}`)
	contains(g, "checkpoint") // handed back to the next attempt
	s.has("2", g.value, "lease", "attempt")
	lease = s.dig(g.value, "lease", "lease_id").(string)
	s.ok("POST", "/leases/"+lease+"/complete", `{"worker_id":"w","status":"completed","result":`+value+`}`)
	contains(s.get("/jobs/"+id), "result")
	for _, scalar := range []string{`null`, `5`, `"x"`, `true`, `[1, 2]`, `1.0`} {
		s.submit(`{}`)
		lease, g := s.lease("w")
		s.ok("POST", "/leases/"+lease+"/complete", `{"worker_id":"w","status":"completed","result":`+scalar+`}`)
		if r := s.get("/jobs/" + s.dig(g, "job", "job_id").(string)); !strings.Contains(r.body, `"result":`+scalar+`,`) {
			t.Errorf("result %s is not kept in %s", scalar, r.body)
		}
	}
}

// Promise S-79.
func TestDeniedRequestsAreAnsweredWith200(t *testing.T) {
	s := newSite(t)
	denied := func(body, code string) map[string]any {
		t.Helper()
		v := s.ok("POST", "/leases/request", body)
		s.has("true", v, "denied")
		s.has(code, v, "code")
		if reason, _ := v["reason"].(string); reason == "" || strings.Contains(reason, "0x") {
			t.Errorf("the reason is %v", v["reason"])
		}
		if v["lease"] != nil || v["job"] != nil {
			t.Errorf("denied with %v", v)
		}
		return v
	}
	s.has("1500", denied(`{"worker_id":"w"}`, "queue_empty"), "retry_after_ms")
	s.submit(`{"type":"a","requested_units":60}`)
	s.submit(`{"type":"a","requested_units":60}`)
	s.has("1500", denied(`{"worker_id":"w","types":["b"]}`, "no_eligible_job"), "retry_after_ms")
	denied(`{"worker_id":"w","max_units":59}`, "no_eligible_job") // passed over, not shrunk
	s.lease("w")
	v := denied(`{"worker_id":"w","max_units":null,"types":null,"capabilities":null,"wait_ms":null,"request_id":null}`, "no_capacity")
	s.has("5000", v, "retry_after_ms")
	for body, loc := range map[string]string{
		`{}`: "body worker_id", `{"worker_id":""}`: "body worker_id", `{"worker_id":5}`: "body worker_id", `{"worker_id":null}`: "body worker_id",
		`{"Worker_id":"w"}`: "body worker_id", `{"WORKER_ID":"w"}`: "body worker_id",
		`{"worker_id":"` + strings.Repeat("x", 257) + `"}`: "body worker_id",
		`{"worker_id":"w","max_units":0}`:                  "body max_units", `{"worker_id":"w","max_units":-1}`: "body max_units", `{"worker_id":"w","max_units":"1"}`: "body max_units",
		`{"worker_id":"w","types":"a"}`: "body types", `{"worker_id":"w","types":["a",1]}`: "body types 1", `{"worker_id":"w","capabilities":{}}`: "body capabilities",
		`{"worker_id":"w","wait_ms":-1}`: "body wait_ms", `{"worker_id":"w","wait_ms":30001}`: "body wait_ms", `{"worker_id":"w","wait_ms":1e30}`: "body wait_ms",
		`{"worker_id":"w","wait_ms":1e15}`: "body wait_ms", `{"worker_id":"w","wait_ms":0.5}`: "body wait_ms", `{"worker_id":"w","request_id":[]}`: "body request_id",
	} {
		s.invalid("POST", "/leases/request", body, loc)
	}
	s.ok("POST", "/leases/request", `{"worker_id":"`+strings.Repeat("x", 256)+`"}`)
	s.ok("POST", "/leases/request", `{"worker\u005fid":"w"}`) // the same name, written otherwise
}

func TestGrantShowsLeaseAndJob(t *testing.T) {
	s := newSite(t)
	id := s.submit(`{"requested_units":7,"max_runtime_s":10}`)
	lease, g := s.lease("w")
	s.has(lease, g, "job", "lease_id")
	s.has("leased", g, "job", "state")
	for name, want := range map[string]string{
		"job_id": id, "worker_id": "w", "capacity_units": "7", "token": "1", "attempt": "1", "lease_ttl_s": "60", "heartbeat_interval_s": "15",
		"last_heartbeat": s.dig(g, "lease", "issued_at").(string),
	} {
		s.has(want, g, "lease", name)
	}
	if want := []string{
		"attempt", "capacity_units", "expires_at", "first_heartbeat", "heartbeat_interval_s", "issued_at", "job_id", "last_heartbeat", "lease_id", "lease_ttl_s",
		"run_until", "token", "worker_id",
	}; !slices.Equal(slices.Sorted(maps.Keys(s.dig(g, "lease").(map[string]any))), want) {
		t.Errorf("a lease has other members than %v: %v", want, g["lease"])
	}
	if d := s.moment(s.dig(g, "lease", "expires_at")).Sub(s.moment(s.dig(g, "lease", "issued_at"))); d != time.Minute {
		t.Errorf("the lease lasts %v", d)
	}
	s.has(lease, s.job(id), "lease", "lease_id")
	again := s.ok("POST", "/leases/request", `{"worker_id":"w","request_id":"r"}`)
	s.has("true", again, "denied")
	s.submit(`{}`)
	one := s.ok("POST", "/leases/request", `{"worker_id":"w","request_id":"r"}`)
	two := s.ok("POST", "/leases/request", `{"worker_id":"w","request_id":"r"}`)
	s.has(fmt.Sprint(s.dig(one, "lease", "lease_id")), two, "lease", "lease_id")
	s.has("true", s.ok("POST", "/leases/request", `{"worker_id":"v","request_id":"r"}`), "denied")
}

// Promise S-140.
func TestGrantTellsTheTokensOfLocks(t *testing.T) {
	locks := lokt.NewManager(memstore.New())
	s := newSite(t, func(o *manager.Options, _ *httpapi.Config) { o.Locks = locks })
	for range 2 { // holds of b, which a does not have in common with it
		if _, err := locks.Acquire(t.Context(), lokt.Claim{Name: "b", Owner: lokt.Owner{ID: "o"}, Limit: 2}); err != nil {
			t.Fatal(err)
		}
	}
	id := s.submit(`{"locks":["b","a"],"limits":{"b":{"slots":2}}}`)
	g := s.ok("POST", "/leases/request", `{"worker_id":"w","wait_ms":30000}`)
	s.has("map[a:1 b:3]", g, "lease", "lock_tokens")
	s.has("map[a:1 b:3]", s.job(id), "lease", "lock_tokens")
	for name, want := range map[string]string{"a": "1", "b": "3"} {
		if l, err := locks.Get(t.Context(), name); err != nil || fmt.Sprint(l.Lock.Token) != want {
			t.Errorf("the lock is %+v, %v", l.Lock, err)
		}
	}
	both, err := httpapi.New(s.url, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := both.Jobs()
	if v, err := c.Get(t.Context(), id); err != nil || len(v.Lease.LockTokens) != 2 || v.Lease.LockTokens["b"] != 3 {
		t.Errorf("the client sees %+v, %v", v.Lease, err)
	}
}

func TestParkedRequestIsAnsweredTheMomentAJobCanBeGranted(t *testing.T) {
	bubbled(t, func(s *site) {
		granted := make(chan map[string]any)
		go func() { granted <- s.ok("POST", "/leases/request", `{"worker_id":"w","wait_ms":30000}`) }()
		time.Sleep(20 * time.Second)
		begin := time.Now()
		id := s.submit(`{}`)
		s.has(id, <-granted, "job", "job_id")
		if d := time.Since(begin); d != 0 {
			s.Errorf("that took %v", d)
		}
		begin = time.Now()
		s.has("true", s.ok("POST", "/leases/request", `{"worker_id":"w","wait_ms":7000}`), "denied")
		if d := time.Since(begin); d != 7*time.Second {
			s.Errorf("denied after %v", d)
		}
	})
}

func TestParkedHeartbeatTellsOfACancellationAtOnce(t *testing.T) {
	bubbled(t, func(s *site) {
		id := s.submit(`{}`)
		lease, _ := s.lease("w")
		told := make(chan map[string]any)
		go func() { told <- s.ok("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"w","wait_ms":30000}`) }()
		time.Sleep(10 * time.Second)
		s.state(id, "running") // it was applied at once
		begin := time.Now()
		s.has("running", s.ok("POST", "/jobs/"+id+"/cancel", `{"reason":"enough"}`), "state")
		s.has("true", <-told, "cancel_requested")
		if d := time.Since(begin); d != 0 {
			s.Errorf("that took %v", d)
		}
		s.complete(lease, "w", "failed", true)
		s.state(id, "cancelled")
		s.has("enough", s.job(id), "reason")

		s.submit(`{}`)
		lease, _ = s.lease("w")
		begin = time.Now()
		if v := s.ok("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"w","wait_ms":9000}`); v["cancel_requested"] != nil || time.Since(begin) != 9*time.Second {
			s.Errorf("answered with %v after %v", v, time.Since(begin))
		}
	})
}

func TestHeartbeatsAndReportsSayHowFarTheJobIs(t *testing.T) {
	s := newSite(t)
	id := s.submit(`{}`)
	lease, g := s.lease("w")
	if r := s.post("/leases/"+lease+"/report", `{"worker_id":"w","progress":0.1,"message":"so far","metrics":[1]}`); r.body != `{"ok":true}` {
		t.Errorf("a report was answered with %s", r.body)
	}
	v := s.job(id)
	s.has("leased", v, "state") // a report is no heartbeat
	s.has(s.dig(g, "lease", "expires_at").(string), v, "lease", "expires_at")
	s.has("0.1", v, "progress")
	s.has("so far", v, "message")
	s.ok("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"w","progress":1,"checkpoint":{"at":3}}`)
	s.has("1", s.job(id), "progress")
	s.has("map[at:3]", s.job(id), "checkpoint")
	for _, path := range []string{"/leases/" + lease + "/heartbeat", "/leases/" + lease + "/report", "/leases/never/heartbeat", "/leases/never/report"} {
		for _, progress := range []string{`1.01`, `-0.01`, `"0.5"`, `1e300`, `true`} {
			s.invalid("POST", path, `{"worker_id":"w","progress":`+progress+`}`, "body progress") // the body comes first
		}
		s.invalid("POST", path, `{"worker_id":""}`, "body worker_id")
		s.invalid("POST", path, `{}`, "body worker_id")
	}
	s.invalid("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"w","wait_ms":30001}`, "body wait_ms")
	s.invalid("POST", "/leases/"+lease+"/report", `{"worker_id":"w","message":5}`, "body message")
	s.refused(404, "lease_not_found", "POST", "/leases/never/report", `{"worker_id":"w"}`)
}

func TestManyHeartbeatsAreAnsweredOneByOne(t *testing.T) {
	s := newSite(t)
	for range 3 {
		s.submit(`{}`)
	}
	a, _ := s.lease("w")
	b, g := s.lease("w")
	other, _ := s.lease("v")
	s.ok("POST", "/jobs/"+s.dig(g, "job", "job_id").(string)+"/cancel", "")
	v := s.ok("POST", "/leases/heartbeat", fmt.Sprintf(`{"worker_id":"w","lease_ids":[%q,"never",%q,%q]}`, a, other, b))
	for i, want := range []string{a + " true <nil> <nil>", "never false lease_not_found <nil>", other + " false worker_mismatch <nil>", b + " true <nil> true"} {
		l := s.dig(v, "leases", i).(map[string]any)
		if got := fmt.Sprint(l["lease_id"], " ", l["ok"], " ", l["code"], " ", l["cancel_requested"]); got != want {
			t.Errorf("heartbeat %d is %s, not %s", i, got, want)
		}
		if l["ok"] == true {
			s.moment(l["expires_at"])
		}
	}
	s.has("15", v, "heartbeat_interval_s")
	s.invalid("POST", "/leases/heartbeat", `{"worker_id":"w","lease_ids":[]}`, "body lease_ids")
	s.invalid("POST", "/leases/heartbeat", `{"worker_id":"w"}`, "body lease_ids")
	s.invalid("POST", "/leases/heartbeat", `{"worker_id":"w","lease_ids":["a",5]}`, "body lease_ids 1")
	s.invalid("POST", "/leases/heartbeat", `{"worker_id":"w","lease_ids":["`+strings.Repeat("x", 257)+`"]}`, "body lease_ids 0")
	s.invalid("POST", "/leases/heartbeat", `{"lease_ids":["a"]}`, "body worker_id")
	s.invalid("POST", "/leases/heartbeat", `{"worker_id":"w","lease_ids":[`+strings.Repeat(`"a",`, 1000)+`"a"]}`, "body lease_ids")
	if v := s.ok("POST", "/leases/heartbeat", `{"worker_id":"w","lease_ids":[`+strings.Repeat(`"a",`, 999)+`"a"]}`); len(v["leases"].([]any)) != 1000 {
		t.Errorf("a thousand heartbeats were answered with %v", v)
	}
}

func TestJobsAreCancelledAndLeasesRevoked(t *testing.T) {
	s := newSite(t)
	queued := s.submit(`{}`)
	if r := s.post("/jobs/"+queued+"/cancel", ""); r.body != `{"ok":true,"state":"cancelled"}` {
		t.Errorf("cancelling was answered with %s", r.body)
	}
	s.has("cancelled", s.ok("POST", "/jobs/"+queued+"/cancel", `{"reason":null}`), "state")
	s.refused(404, "job_not_found", "POST", "/jobs/unknown/cancel", `{}`)
	s.refused(404, "job_not_found", "POST", "/jobs/%FF/cancel", `{}`)
	s.invalid("POST", "/jobs/unknown/cancel", `{"reason":5}`, "body reason")

	stubborn := s.submit(`{"max_attempts":5}`)
	lease, _ := s.lease("w")
	s.has("leased", s.ok("POST", "/jobs/"+stubborn+"/cancel", `{}`), "state")
	s.has("true", s.ok("POST", "/leases/"+lease+"/heartbeat", `{"worker_id":"w"}`), "cancel_requested")
	s.complete(lease, "w", "completed", true)
	s.state(stubborn, "completed") // completed stays completed

	id := s.submit(`{"requested_units":9,"max_attempts":5}`)
	lease, _ = s.lease("w")
	s.capacity(9, 91, 1)
	if r := s.post("/leases/"+lease+"/revoke", `{"reason":"off with it"}`); r.status != 200 || r.body != `{"ok":true}` {
		t.Errorf("revoking was answered with %d %s", r.status, r.body)
	}
	s.capacity(0, 100, 0)
	v := s.job(id)
	s.has("failed", v, "state")
	s.has("off with it", v, "reason")
	s.has("revoked", v, "code")
	s.refused(404, "lease_not_found", "POST", "/leases/"+lease+"/revoke", "")
	s.refused(404, "lease_not_found", "POST", "/leases/never/revoke", `{}`)
	s.invalid("POST", "/leases/never/revoke", `{"reason":[]}`, "body reason")
}

func TestFrozenTypesAreNotHandedOut(t *testing.T) {
	s := newSite(t)
	a := s.submit(`{"type":"a"}`)
	s.submit(`{"type":"b"}`)
	s.ok("POST", "/freeze", `{"type":"a"}`)
	s.has("frozen", s.job(a), "waiting_for")
	_, g := s.lease("w")
	s.has("b", g, "job", "type")
	s.ok("POST", "/freeze", "")
	s.ok("POST", "/unfreeze", `{"type":"a"}`)
	s.has("no_eligible_job", s.ok("POST", "/leases/request", `{"worker_id":"w"}`), "code")
	s.ok("POST", "/unfreeze", `{}`)
	s.lease("w")
	s.invalid("POST", "/freeze", `{"type":7}`, "body type")
	s.invalid("POST", "/freeze", `[]`, "body")
}

func TestListIsFilteredPagedAndClamped(t *testing.T) {
	s := newSite(t)
	for i := range 25 {
		s.submit(fmt.Sprintf(`{"type":"t%d","tags":["x%d","all"]}`, i%2, i%5))
	}
	lease, _ := s.lease("w")
	s.beat(lease, "w")
	count := func(query string, want int) map[string]any {
		t.Helper()
		v := s.ok("GET", "/jobs"+query, "")
		if n := len(v["jobs"].([]any)); n != want {
			t.Errorf("%s lists %d jobs, not %d", query, n, want)
		}
		return v
	}
	v := count("", 25)
	s.moment(v["now"])
	s.has("<nil>", v, "next")
	s.has("running", v, "jobs", 0, "job", "state") // newest update first
	s.has("false", v, "jobs", 0, "in_queue")
	s.has(lease, v, "jobs", 0, "lease", "lease_id")
	s.has("<nil>", v, "jobs", 1, "lease")
	s.has("true", v, "jobs", 1, "in_queue")
	s.has("24", v, "queue_depths", "normal")
	s.has("24", v, "snapshot", "queue_depths", "normal")
	s.dig(v, "jobs", 0, "age_s")
	s.dig(v, "jobs", 0, "since_update_s")
	for query, want := range map[string]int{
		"?limit=0": 1, "?limit=-5": 1, "?limit=1001": 25, "?limit=100000000000000000000000000": 25, "?limit=-100000000000000000000000000": 1, "?limit=7": 7,
		"?state=running": 1, "?state=queued": 24, "?state=failed": 0, "?type=t1": 12, "?tag=x0": 5, "?tag=all&type=t0": 13, "?tag=none": 0,
		"?unknown=1": 25, "?state=&type=&tag=&after=": 25, "?tag=%3Cscript%3E": 0,
	} {
		count(query, want)
	}
	seen := map[any]bool{}
	for next, pages := "", 0; ; pages++ {
		v := s.ok("GET", "/jobs?limit=4&after="+next, "")
		for i := range v["jobs"].([]any) {
			seen[s.dig(v, "jobs", i, "job", "job_id")] = true
		}
		if v["next"] == nil {
			if pages != 6 {
				t.Errorf("the list has %d pages of 4", pages+1)
			}
			break
		}
		next = v["next"].(string)
	}
	if len(seen) != 25 {
		t.Errorf("pages list %d jobs", len(seen))
	}
	for query, loc := range map[string]string{
		"?state=done": "query state", "?limit=x": "query limit", "?limit=": "query limit", "?limit=1.5": "query limit", "?after=!": "query after",
		"?tag=" + strings.Repeat("x", 257): "query tag", "?type=%00": "query type", "?tag=%ff": "query tag", "?tag=%zz": "query",
	} {
		s.invalid("GET", "/jobs"+query, "", loc)
	}
}

func TestAJobThatRunsAfterAnotherWaitsInTheQueueFromThenOn(t *testing.T) {
	bubbled(t, func(s *site) {
		s.ok("POST", "/jobs", `{"jobs":[{"type":"a"},{"type":"b","after":["#0"]}]}`)
		for _, wait := range []time.Duration{2 * time.Second, 4 * time.Second} {
			time.Sleep(wait)
			lease, _ := s.lease("w")
			time.Sleep(10 * time.Second)
			s.complete(lease, "w", "completed", true)
		}
		v := s.ok("GET", "/history/stats", "")
		s.has("3", v, "avg_queue_wait_s")
		s.has("4", v, "by_type", "b", "avg_queue_wait_s")
	})
}

func TestHistoryIsCountedAndCleaned(t *testing.T) {
	bubbled(t, func(s *site) {
		for i := range 4 {
			s.submit(fmt.Sprintf(`{"type":"t%d","tags":["x"]}`, i/3))
			time.Sleep(time.Second)
			lease, _ := s.lease("w")
			time.Sleep(10 * time.Second)
			s.complete(lease, "w", []string{"completed", "failed"}[i/3], true)
		}
		v := s.ok("GET", "/history/stats", "")
		for name, want := range map[string]string{
			"total": "4", "totals_by_state": "map[cancelled:0 completed:3 expired:0 failed:1]", "success_rate": "0.75", "avg_queue_wait_s": "1", "p95_runtime_s": "10",
		} {
			s.has(want, v, name)
		}
		s.has("1", v, "by_type", "t1", "total")
		s.has("0", v, "by_type", "t1", "success_rate")
		s.has("30", v, "range", "days")
		s.moment(s.dig(v, "range", "from"))
		s.moment(s.dig(v, "range", "to"))
		s.has("7", s.ok("GET", "/history/stats?days=7", ""), "range", "days")
		v = s.ok("GET", "/history/decisions?days=1", "")
		s.has("1", v, "days")
		s.has("4", v, "events", "submitted")
		s.has("3", v, "tags", "x", "completed")
		v = s.ok("GET", "/workers", "")
		s.has("w", v, "workers", 0, "worker_id")
		s.has("0", v, "workers", 0, "leases")
		s.moment(s.dig(v, "workers", 0, "last_seen"))
		for _, path := range []string{"/history/stats", "/history/decisions"} {
			for _, days := range []string{"0", "-1", "3651", "x", "", "1e1", "100000000000000000000000000"} {
				s.invalid("GET", path+"?days="+days, "", "query days")
			}
		}
		for _, query := range []string{"", "?days=0", "?days=-5", "?days=x", "?days=99999999999999999999"} {
			s.invalid("POST", "/history/cleanup"+query, "", "query days")
		}
		time.Sleep(48 * time.Hour)
		living := s.submit(`{}`)
		for days, want := range map[string]string{"100000": "0", "3": "0"} {
			s.has(want, s.ok("POST", "/history/cleanup?days="+days, ""), "deleted")
		}
		if r := s.post("/history/cleanup?days=1", ""); r.body != `{"ok":true,"deleted":4,"days":1}` {
			s.Errorf("cleaning up was answered with %s", r.body)
		}
		s.state(living, "queued")
	})
}

func TestStatusShowsTheCapacity(t *testing.T) {
	s := newSite(t, withConfig(jobs.Config{Total: 50, Reserve: 10}))
	v := s.ok("GET", "/status", "")
	if want := []string{
		"active_leases", "available_capacity_units", "busy_rating", "draining", "leased_capacity_units", "queue_depths", "total_capacity_units",
		"usable_capacity_units",
	}; !slices.Equal(slices.Sorted(maps.Keys(v)), want) {
		t.Errorf("the status has other members than %v: %v", want, v)
	}
	s.has("50", v, "total_capacity_units")
	s.has("40", v, "usable_capacity_units")
	s.capacity(0, 40, 0)
	s.submit(`{"requested_units":50}`) // at most the total, if never handed out
	s.invalid("POST", "/jobs", `{"requested_units":51}`, "body requested_units")
	s.has("1", s.ok("GET", "/status", ""), "queue_depths", "normal")
}

func TestUnknownRoutesMethodsAndMediaTypes(t *testing.T) {
	s := newSite(t)
	for _, path := range []string{
		"/", "/job", "/jobs/", "/jobs//", "/jobs/a/b", "/jobs/a/cancel/", "/jobs//cancel", "/leases", "/leases/request/", "/leases/x/beat", "/leases//heartbeat",
		"/statuS", "//status", "/./status", "/../scheduler/status", "/history", "/status/x", "/Jobs", "/jobs/a%2Fcancel/x",
	} {
		for _, method := range []string{"GET", "POST"} {
			if r := s.send(method, scheduler+path, ""); r.status != 404 || r.body != `{"detail":"not_found"}` {
				t.Errorf("%s %s was answered with %d %s", method, path, r.status, r.body)
			}
		}
	}
	for path, allow := range map[string]string{
		"/jobs": "GET, POST", "/jobs/x": "GET", "/jobs/x/cancel": "POST", "/leases/request": "POST", "/leases/heartbeat": "POST", "/leases/x/heartbeat": "POST",
		"/leases/x/complete": "POST", "/leases/x/report": "POST", "/leases/x/revoke": "POST", "/status": "GET", "/workers": "GET", "/history/stats": "GET",
		"/history/decisions": "GET", "/history/cleanup": "POST", "/freeze": "POST", "/unfreeze": "POST",
	} {
		for _, method := range []string{"DELETE", "PUT", "PATCH", "OPTIONS"} {
			if r := s.refused(405, "method_not_allowed", method, path, ""); r.header.Get("Allow") != allow {
				t.Errorf("%s %s is answered with Allow: %s, not %s", method, path, r.header.Get("Allow"), allow)
			}
		}
	}
	of := func(name, value string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Del("Content-Type")
			if value != "" {
				r.Header.Set(name, value)
			}
		}
	}
	for _, media := range []string{"", "application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json", "application/problem+json;a=b"} {
		if r := s.send("POST", "/jobs", "{}", of("Content-Type", media)); r.status != 200 {
			t.Errorf("a body of type %q was answered with %d %s", media, r.status, r.body)
		}
	}
	for _, media := range []string{"text/plain", "application/x-www-form-urlencoded", "text/json", "application/jsonx", "application/xml", "*/*", "json", ";"} {
		s.refused(415, "unsupported_media_type", "POST", "/jobs", "{}", of("Content-Type", media))
		s.refused(415, "unsupported_media_type", "POST", "/leases/never/heartbeat", "{}", of("Content-Type", media))
	}
	s.refused(415, "unsupported_media_type", "POST", "/jobs", "{}", of("Content-Encoding", "gzip"))
}

// Promise S-80.
func TestBrokenBodiesAreRefusedBeforeAnythingIsLookedAt(t *testing.T) {
	s := newSite(t)
	var paths []string
	for _, p := range []string{"/jobs", "/leases/request", "/leases/heartbeat", "/leases/never/heartbeat", "/leases/never/complete", "/leases/never/report"} {
		paths = append(paths, p)
		s.invalid("POST", p, " ", "body")
		if r := s.post(p, ""); r.status != 422 {
			t.Errorf("no body at %s was answered with %d %s", p, r.status, r.body)
		}
	}
	deep := strings.Repeat("[", 100_000)
	for _, path := range append(paths, "/jobs/unknown/cancel", "/leases/never/revoke", "/freeze") {
		for _, body := range []string{
			`{`, `}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{'a':1}`, `{"a":NaN}`, `{"a":Infinity}`, `{"a":-Infinity}`, `{"a":1e400}`, `{"a":-1e400}`,
			`{"a":01}`, `{"a":+1}`, `{"a":.5}`, `{"a":1.}`, `{"a":0x10}`, `{"a":"\x"}`, "{\"a\":\"\n\"}", `{"a":"\u12"}`, `{"a":tru}`, `{}{}`, `{} x`, `nul`, "\ufeff{}",
			"{\"a\":\"\xff\"}", "{\"\xc0\xaf\":1}", `[1,2`, deep, `{"a":` + deep, `{"a":` + deep + strings.Repeat("]", 100_000) + `}`, "\x00", `{"a":"` + strings.Repeat("x", 1000),
			`{"a":` + strings.Repeat("9", 400) + `}`, `{"a":1e-}`,
		} {
			s.invalid("POST", path, body, "body")
		}
		for _, body := range []string{`[]`, `5`, `"x"`, `true`, `[{"worker_id":"w"}]`} {
			s.invalid("POST", path, body, "body")
		}
	}
	for _, path := range paths {
		if r := s.post(path, `null`); r.status != 422 {
			t.Errorf("null at %s was answered with %d %s", path, r.status, r.body)
		}
	}
	large := `{"worker_id":"w","x":"` + strings.Repeat("x", 1<<20)
	for _, path := range paths {
		s.refused(413, "body_too_large", "POST", path, large+`"}`)
		s.refused(413, "body_too_large", "POST", path, large+`"}`, func(r *http.Request) { r.ContentLength = -1 })
	}
	s.refused(413, "body_too_large", "POST", "/jobs", strings.Repeat(large, 20))
	just := `{"payload":{"x":"` + strings.Repeat("x", 1<<20-20) + `"}}`
	s.submit(just[:17] + just[17+len(just)-1<<20:])
	s.has("map[background:0 high:0 low:0 normal:1]", s.ok("GET", "/status", ""), "queue_depths")
}
