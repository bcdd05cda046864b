package httpapi_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/jobs/manager"
	"github.com/lokt-dev/lokt/store/memstore"
)

// A conversation is a list of requests, and what they are answered with: the bytes, but for what is never the same twice.
// Recorded ones are in testdata. LOKT_RECORD=URL asks the server there, which must be a new one, and writes them anew;
// LOKT_RECORD=here writes the answers of the handler that is tested.

// line is a request. What it starts with "&" is not waited for until a line that is "&" alone.
type line struct {
	method, path, body string
	header             string // "Name: value", or nothing
}

func post1(path, body string) line { return line{method: "POST", path: path, body: body} }
func get1(path string) line        { return line{method: "GET", path: path} }

// conversation replaces what changes from run to run by names, in order of appearance.
type conversation struct {
	t      *testing.T
	url    string
	client *http.Client
	names  map[string]string // from what is never the same to its name
	values map[string]string // and back
	later  chan func() string
}

var changing = []struct {
	kind string
	is   *regexp.Regexp // the part in parentheses is replaced
}{
	{"job", regexp.MustCompile(`"(?:job_id|id)":"([0-9a-z]{20,}|[0-9a-f-]{32,36})"`)},
	{"lease", regexp.MustCompile(`"(?:lease_id|id)":"((?:L-)?[0-9a-z]{20,}|[0-9a-f-]{32,36})"`)},
	{"cursor", regexp.MustCompile(`"next":"([^"]+)"`)},
}

// always are replaced by the same text each time.
var always = []struct{ is, by string }{
	{`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"`, `"<time>"`},
	{`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"`, `"<fine time>"`},
	{`"(age_s|since_update_s|avg_queue_wait_s|p95_runtime_s)":[0-9.]+`, `"$1":<s>`},
	{`"(busy_rating|timed_out_ms)":[0-9.]+`, `"$1":<n>`},
	{`"(heartbeat_in_ms)":\d+`, `"$1":<ms>`},
	{`"(held_ms|waited_ms)":"[0-9.]+"`, `"$1":"<n>"`},
	{`JSON decode error[^"]*`, `JSON decode error`}, // the rest is for people
	{`gave up after [0-9.]+[mµ]s`, `gave up after <n>`},
	{`"(retry_after_ms)":(?:[2-9]\d\d|[1-9]\d{3})(?:\D)`, `"$1":<ms>,`},
}

// said returns an answer with names for what changes.
func (c *conversation) said(text string) string {
	for _, ch := range changing {
		for _, m := range ch.is.FindAllStringSubmatch(text, -1) {
			if c.names[m[1]] == "" {
				name := ""
				for n := 1; name == "" || c.values[name] != ""; n++ {
					name = fmt.Sprintf("<%s-%d>", ch.kind, n)
				}
				c.names[m[1]], c.values[name] = name, m[1]
			}
		}
	}
	for _, value := range slices.SortedFunc(maps.Keys(c.names), func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) }) {
		text = strings.ReplaceAll(text, value, c.names[value])
	}
	for _, a := range always {
		text = regexp.MustCompile(a.is).ReplaceAllString(text, a.by)
	}
	return text
}

// meant returns a request's text with values for the names.
func (c *conversation) meant(text string) string {
	for name, value := range c.values {
		text = strings.ReplaceAll(text, name, value)
	}
	return text
}

// told are the headers that are compared.
var told = []string{"Allow", "Cache-Control", "Connection", "Content-Type", "Location", "Lokt-Reason", "Retry-After", "Www-Authenticate", "X-Content-Type-Options", "X-Request-Id"}

// ask sends a request and returns its answer: status, headers, body.
func (c *conversation) ask(l line) string {
	r, err := http.NewRequest(l.method, c.url, strings.NewReader(c.meant(l.body)))
	if err != nil {
		c.t.Fatal(err)
	}
	path, query, _ := strings.Cut(c.meant(l.path), "?")
	r.URL.Opaque, r.URL.RawQuery = path, query
	if l.body == "" {
		r.Body, r.ContentLength = nil, 0
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("X-Request-Id", "talk")
	if name, value, ok := strings.Cut(c.meant(l.header), ": "); ok {
		r.Header.Set(name, value)
	}
	a, err := c.client.Do(r)
	if err != nil {
		c.t.Fatalf("%+v: %v", l, err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		c.t.Fatalf("%+v: %v", l, err)
	}
	text := strconv.Itoa(a.StatusCode)
	for _, name := range told {
		if v := a.Header.Get(name); v != "" {
			text += "\n" + name + ": " + v
		}
	}
	return text + "\n" + strings.TrimSuffix(string(body), "\n") + "\n"
}

// run has the conversation.
func (c *conversation) run(lines []line) []string {
	var answers []string
	for _, l := range lines {
		switch method, background := strings.CutPrefix(l.method, "&"); {
		case background && method == "":
			answers = append(answers, c.said((<-c.later)()))
		case background:
			l.method = method
			c.later = make(chan func() string, 1)
			l.path, l.body = c.meant(l.path), c.meant(l.body)
			go func(later chan<- func() string) {
				a := c.ask(l)
				later <- func() string { return a }
			}(c.later)
			time.Sleep(100 * time.Millisecond) // one that comes too late is answered alike
			answers = append(answers, "later\n")
		default:
			answers = append(answers, c.said(c.ask(l)))
		}
	}
	return answers
}

// short returns a text as one line of at most some hundred bytes.
func short(text string) string {
	q := strconv.Quote(text)
	if len(q) > 1200 {
		q = fmt.Sprintf("%s … %d bytes", q[:600], len(text))
	}
	return q
}

// play has a conversation with a handler, and compares it with the recorded one. Those that differ for a reason are in changed.
func play(t *testing.T, file string, lines []line, handler http.Handler, changed map[string]string) {
	t.Helper()
	c := &conversation{t: t, names: map[string]string{}, values: map[string]string{}}
	if c.url = os.Getenv("LOKT_RECORD"); c.url == "" || c.url == "here" {
		server := httptest.NewServer(handler)
		defer server.Close()
		c.url = server.URL
	}
	addr := strings.TrimPrefix(c.url, "http://")
	transport := &http.Transport{MaxIdleConnsPerHost: 10, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("tcp", addr) }}
	defer transport.CloseIdleConnections()
	c.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var text bytes.Buffer
	for i, answer := range c.run(lines) {
		l := lines[i]
		fmt.Fprintf(&text, "# %d %s %s %s %s\n%s\n", i, l.method, short(l.path), short(l.body), l.header, answer)
	}
	path := "testdata/" + file
	if os.Getenv("LOKT_RECORD") != "" {
		if err := os.WriteFile(path, text.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	was, is := entries(t, want), entries(t, text.Bytes())
	if len(was) != len(is) {
		t.Fatalf("%s has %d answers, and there are %d", path, len(was), len(is))
	}
	for i := range was {
		if was[i] == is[i] {
			continue
		}
		request, _, _ := strings.Cut(was[i], "\n")
		why := ""
		for part, reason := range changed {
			if strings.Contains(was[i], part) {
				why = reason
			}
		}
		if why == "" {
			t.Errorf("%s\nwas answered with\n%s\nand is with\n%s", request, was[i], is[i])
		}
	}
}

// entries splits a recorded conversation.
func entries(t *testing.T, text []byte) []string {
	t.Helper()
	var all []string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "# ") {
			all = append(all, "")
		}
		all[len(all)-1] += lines.Text() + "\n"
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	return all
}

// schedulerTalk asks everything that the scheduler has an answer to.
func schedulerTalk() []line {
	p := scheduler
	var all []line
	say := func(l ...line) { all = append(all, l...) }
	body := func(path string, bodies ...string) {
		for _, b := range bodies {
			say(post1(p+path, b))
		}
	}
	long := strings.Repeat("x", 257)
	// One that is empty.
	for _, path := range []string{"/status", "/jobs", "/workers", "/history/stats", "/history/decisions"} {
		say(get1(p + path))
	}
	// Submission, whole and partly wrong.
	say(post1(p+"/jobs", `{}`), get1(p+"/jobs/<job-1>"))
	say(post1(p+"/jobs", ` { "type" : "odd" , "payload" : { "n" : 12345678901234567890.10 , "s" : "\u00e9é\/\"\n" , "l":[ 1 ,2.0, -0, 1e5 ,{ } ] } , "unknown": [ {} ] } `), get1(p+"/jobs/<job-2>"))
	say(post1(p+"/jobs", `{"type":"render","priority":"background","requested_units":1e1,"unique":true,"payload":{"x":1},"idempotency_key":"k","tags":["a","needs:gpu"],`+
		`"max_runtime_s":90.5,"max_attempts":3.0,"retry_backoff_s":0.25,"locks":["x","y.z"],"run_at":"2036-02-06T22:15:30.1234+02:00","Type":"no","PRIORITY":"no"}`), get1(p+"/jobs/<job-3>"))
	body("/jobs", `{"type":null,"priority":null,"requested_units":null,"unique":null,"payload":null,"idempotency_key":null,"tags":null,"max_runtime_s":null,`+
		`"max_attempts":null,"retry_backoff_s":null,"run_at":null,"locks":null,"jobs":null}`,
		`{"idempotency_key":"k","type":"render"}`, `{"idempotency_key":""}`,
		`{"jobs":[{"type":"a"},{"type":"b","priority":"high"},{"idempotency_key":"l","payload":{"a":1,"b":2.50}}],"type":5}`,
		`{"idempotency_key":"l","payload":{"b":25e-1,"a":1.0}}`, `{"jobs":[{},{"idempotency_key":"l"}]}`)
	for _, f := range []struct {
		name   string
		values []string
	}{
		{"type", []string{`""`, `5`, `["a"]`, `"` + long + `"`, `"a\u0000b"`, `"\ud800"`, `"\ud83d\ude00"`}},
		{"priority", []string{`"urgent"`, `"High"`, `""`, `1`, `{}`}},
		{"requested_units", []string{`0`, `-1`, `101`, `1.5`, `"1"`, `true`, `100000000000000000000000000`, `1e30`, `-1e300`, `[]`}},
		{"unique", []string{`1`, `"true"`, `[]`}},
		{"payload", []string{`[]`, `5`, `"x"`, `true`, `{"a":1e400}`}},
		{"idempotency_key", []string{`5`, `"` + long + `"`, `{}`}},
		{"tags", []string{`"a"`, `{}`, `5`, `["a",5]`, `["a",null]`, `["a","` + long + `"]`, `["a",["b"]]`, `[1,2,"\ud800"]`, `[` + strings.Repeat(`"a",`, 100) + `"a"]`}},
		{"max_runtime_s", []string{`0`, `-1`, `-0.0001`, `"5"`, `1e300`, `1e12`, `[]`, `0.0`, `-0`, `0.0001`}},
		{"max_attempts", []string{`0`, `1001`, `2.5`, `"3"`}},
		{"retry_backoff_s", []string{`-1`, `1e300`, `"1"`, `false`}},
		{"run_at", []string{`5`, `"tomorrow"`, `"2026-02-30T00:00:00Z"`, `"2026-01-01"`, `"10000-01-01T00:00:00Z"`, `""`, `"0000-01-01T00:00:00Z"`}},
		{"locks", []string{`"a"`, `["a/b"]`, `[""]`, `[5]`, `["a","a"]`, `["` + long + `"]`}},
		{"jobs", []string{`{}`, `[]`, `5`, `"x"`, `[{},5]`, `[{},null,[]]`, `[{"priority":"x"},{},{"type":"","requested_units":0}]`}},
	} {
		for _, v := range f.values {
			body("/jobs", fmt.Sprintf(`{%q:%s}`, f.name, v))
			if f.name != "jobs" && len(v) < 100 {
				body("/jobs", fmt.Sprintf(`{"jobs":[{},{%q:%s}]}`, f.name, v))
			}
		}
	}
	body("/jobs", `{"type":5,"priority":5,"tags":[5,5]}`, `{"type":"","requested_units":0}`, `{"type":"a","type":"b"}`, `{"jobs":[{"priority":"low","priority":"low"}]}`,
		`{"jobs":[`+strings.Repeat("{},", 1000)+`{}]}`)
	// Bodies that are none.
	routes := []string{"/jobs", "/leases/request", "/leases/heartbeat", "/leases/never/heartbeat", "/leases/never/complete", "/leases/never/report", "/jobs/never/cancel", "/leases/never/revoke", "/freeze", "/unfreeze"}
	for _, route := range routes {
		body(route, ` `, `{`, `{"a":1,}`, `{"a":NaN}`, `{"worker_id":Infinity}`, `{"a":1e400}`, `{"a":01}`, "{\"a\":\"\n\"}", `{} x`, "\ufeff{}", "{\"a\":\"\xff\"}", "{\"\xc0\xaf\":1}",
			`[1,2`, `{"a":`+strings.Repeat("[", 300)+strings.Repeat("]", 300)+`}`, strings.Repeat("[", 100_000), "\x00", `{"a":"`+strings.Repeat("x", 500), `[]`, `5`, `"x"`, `true`, `null`)
		say(line{method: "POST", path: p + route, body: `{}`, header: "Content-Type: text/plain"})
		say(line{method: "POST", path: p + route, body: `{}`, header: "Content-Encoding: gzip"})
		say(post1(p+route, ""))
	}
	say(line{method: "POST", path: p + "/jobs", body: `{}`, header: "Content-Type: Application/JSON; charset=utf-8"})
	say(line{method: "POST", path: p + "/jobs", body: `{}`, header: "Content-Type: application/vnd.x+json"})
	body("/leases/request", `{"worker_id":"w","x":"`+strings.Repeat("x", 1<<20)+`"}`)
	// Requests for jobs.
	body("/leases/request", `{}`, `{"worker_id":""}`, `{"worker_id":5}`, `{"worker_id":"`+long+`"}`, `{"worker_id":"w","max_units":0}`, `{"worker_id":"w","max_units":-1}`,
		`{"worker_id":"w","max_units":1.5}`, `{"worker_id":"w","types":"a"}`, `{"worker_id":"w","types":[1]}`, `{"worker_id":"w","wait_ms":-1}`, `{"worker_id":"w","wait_ms":30001}`,
		`{"worker_id":"w","wait_ms":"1"}`, `{"worker_id":"w","wait_ms":1e30}`, `{"worker_id":"w","request_id":5}`, `{"worker_id":"w","worker_id":"w"}`, `{"worker_id":5,"max_units":0,"types":[5],"wait_ms":-1}`,
		`{"worker_id":"w","types":["none"]}`, `{"worker_id":"w","types":["none"],"wait_ms":20}`, `{"worker_id":"w","types":["odd"],"request_id":"r1"}`, `{"worker_id":"w","types":["odd"],"request_id":"r1"}`)
	// Its lease.
	hb := "/leases/<lease-1>/heartbeat"
	body(hb, `{"worker_id":"w"}`, `{"worker_id":"v"}`, `{"worker_id":"w","progress":0.5,"checkpoint":{ "at" : [1, 2.0] }}`, `{"worker_id":"w","progress":1.5}`, `{"worker_id":"w","progress":"x"}`,
		`{"worker_id":"w","progress":-0.1,"wait_ms":5e9}`, `{"worker_id":"w","checkpoint":null,"progress":null,"wait_ms":null}`, `{"worker_id":"w","wait_ms":10}`, `{}`)
	body("/leases/<lease-1>/report", `{"worker_id":"w","progress":0.25,"metrics":[ 1e5 , "\u0041" ],"message":"so <far> & \t\"é\""}`, `{"worker_id":"v"}`, `{"worker_id":"w","message":5}`, `{"worker_id":"w","message":"a\u0000"}`,
		`{"worker_id":"w","progress":7}`)
	say(get1(p+"/jobs/<job-2>"), get1(p+"/status"), get1(p+"/workers"))
	body("/leases/heartbeat", `{"worker_id":"w","lease_ids":["<lease-1>","never","<lease-1>"]}`, `{"worker_id":"v","lease_ids":["<lease-1>"]}`, `{"worker_id":"w","lease_ids":[]}`, `{"worker_id":"w"}`, `{"lease_ids":["a"]}`,
		`{"worker_id":"w","lease_ids":"a"}`, `{"worker_id":"w","lease_ids":[5,"a",null]}`, `{"worker_id":"w","lease_ids":["`+long+`"]}`, `{"worker_id":"w","lease_ids":[`+strings.Repeat(`"a",`, 1000)+`"a"]}`,
		`{"worker_id":"w","lease_ids":["é<>\u2028\"\\"]}`)
	body("/leases/<lease-1>/complete", `{"worker_id":"v","status":"failed"}`, `{"worker_id":"w","status":"done"}`, `{"worker_id":"w","status":5}`, `{"worker_id":"w"}`, `{"status":"failed"}`,
		`{"worker_id":"w","status":"completed","result": { "a": [1,2 ] , "big": 123456789012345678901234567890 } , "error": null}`, `{"worker_id":"w","status":"failed"}`)
	body("/leases/never/complete", `{"worker_id":"w","status":"failed"}`)
	body(hb, `{"worker_id":"w"}`, `{"worker_id":"w","checkpoint":{"a":1,"a":2}}`)
	say(get1(p + "/jobs/<job-2>"))
	// Waiting.
	say(line{method: "&POST", path: p + "/leases/request", body: `{"worker_id":"p","types":["parked"],"wait_ms":9000}`}, post1(p+"/jobs", `{"type":"parked","tags":["t"]}`), line{method: "&"})
	say(line{method: "&POST", path: p + "/leases/<lease-2>/heartbeat", body: `{"worker_id":"p","wait_ms":9000}`}, post1(p+"/jobs/<job-17>/cancel", `{"reason":"enough"}`), line{method: "&"})
	body("/leases/<lease-2>/complete", `{"worker_id":"p","status":"failed","error":"no\tluck"}`)
	say(get1(p + "/jobs/<job-17>"))
	body("/jobs/<job-17>/cancel", `{}`, `null`, `{"reason":5}`, `{"reason":"`+strings.Repeat("x", 20_000)+`"}`)
	body("/jobs/<job-1>/cancel", `{"reason":"<b>&\u2028"}`)
	for _, id := range []string{"never", long, "%00%ff", "a%2Fb", "a%20b", "%zz"} {
		say(get1(p+"/jobs/"+id), post1(p+"/jobs/"+id+"/cancel", `{}`), post1(p+"/leases/"+id+"/heartbeat", `{"worker_id":"w"}`), post1(p+"/leases/"+id+"/revoke", ``))
	}
	// Revocation.
	body("/leases/request", `{"worker_id":"r","types":["a"],"capabilities":["gpu"],"max_units":5}`)
	body("/leases/<lease-3>/revoke", `{"reason":"off"}`, `{"reason":5}`)
	body("/leases/<lease-3>/heartbeat", `{"worker_id":"r"}`)
	body("/freeze", `{"type":"b"}`, `{"type":5}`, `{"type":"`+long+`"}`)
	body("/leases/request", `{"worker_id":"r","types":["b"]}`)
	body("/unfreeze", `{"type":"b"}`)
	// Lists and history.
	for _, q := range []string{
		"", "?limit=2", "?limit=0", "?limit=-5", "?limit=100000000000000000000000000", "?state=cancelled", "?state=queued&type=b", "?tag=t", "?tag=%3Cscript%3E", "?state=done", "?limit=x", "?limit=", "?limit=1.5", "?after=!",
		"?tag=" + long, "?type=%00", "?tag=%ff", "?tag=%zz", "?unknown=1", "?limit=2&after=<cursor-1>", "?state=&type=&tag=&after=",
	} {
		say(get1(p + "/jobs" + q))
	}
	for _, path := range []string{"/history/stats", "/history/decisions"} {
		for _, q := range []string{"", "?days=7", "?days=0", "?days=-1", "?days=3651", "?days=x", "?days=", "?days=1e1", "?days=100000000000000000000000000", "?days=%zz"} {
			say(get1(p + path + q))
		}
	}
	for _, q := range []string{"", "?days=0", "?days=x", "?days=99999999999999999999", "?days=100000", "?days=1"} {
		say(post1(p+"/history/cleanup"+q, ""))
	}
	// What is not there.
	for _, path := range []string{
		"", "/", "/job", "/jobs/", "/jobs//", "/jobs/a/b", "/jobs/a/cancel/", "/jobs//cancel", "/leases", "/leases/request/", "/leases/x/beat", "/leases//heartbeat", "/statuS", "//status", "/./status",
		"/../scheduler/status", "/history", "/status/x", "/jobs/a%2Fcancel/x",
	} {
		say(get1(p+path), post1(p+path, "{}"))
	}
	for _, path := range []string{"/jobs", "/jobs/x", "/jobs/x/cancel", "/leases/request", "/leases/heartbeat", "/leases/x/heartbeat", "/status", "/history/cleanup", "/freeze"} {
		for _, method := range []string{"DELETE", "PUT", "OPTIONS", "HEAD"} {
			say(line{method: method, path: p + path})
		}
	}
	return all
}

// locksTalk asks everything that the locks API has an answer to.
func locksTalk() []line {
	var all []line
	say := func(l ...line) { all = append(all, l...) }
	leases := "/v1/locks/x/leases"
	claim := func(bodies ...string) {
		for _, b := range bodies {
			say(post1(leases, b))
		}
	}
	own := func(method, path, body, lease string) line { return line{method, path, body, "Lokt-Lease: " + lease} }
	a, b := lokt.PublicID("lease-of-a"), lokt.PublicID("lease-of-b")
	say(get1("/v1/about"), get1("/v1/locks"), get1("/v1/locks/x"), get1("/v1/audit"))
	claim(`{"lease_id":"lease-of-a","owner":{"id":"a","session":"s","host":"h","process":{"pid":7,"start":8,"boot":"b","namespace":"n"}},"ttl_ms":3600000,"metadata":{"k":"v","K":"<&>"}}`,
		`{"lease_id":"lease-of-a","owner":{"id":"a","session":"s","host":"h"},"ttl_ms":3600000}`,
		`{"lease_id":"lease-of-b","owner":{"id":"b"}}`, `{"owner":{"id":"b"},"wait_ms":300}`, `{"lease_id":"lease-of-b","owner":{"id":"b"},"wait_ms":300,"stay":true,"priority":3,"within":["lease-of-a"]}`)
	say(get1("/v1/locks/x"), get1("/v1/locks"), get1("/v1/locks?prefix=y"), get1("/v1/locks?prefix=/"), get1("/v1/locks?queued"), get1("/v1/locks?queued=x"), get1("/v1/locks/x?seen=1&wait_ms=5"), get1("/v1/locks/x?seen=x"))
	for _, one := range []string{
		`{"name":"x","lease_id":"lease-of-a"}`, `{"name":"x","lease_id":"lease-of-a","owner":{"id":"a","session":"s"}}`, `{"name":"x","lease_id":"lease-of-a","owner":{"id":"b"}}`,
		`{"name":"x","lease_id":"lease-of-b"}`, `{"name":"x","lease_id":"lease-of-a"},{"name":"/","lease_id":"lease-of-a"},{"name":"x"},{"name":"x","lease_id":"` + a + `"}`,
		`{"name":"x","lease_id":"lease-of-a","owner":5}`, `{"name":"x","lease_id":"lease-of-a","own":5}`, ``,
	} {
		say(post1("/v1/leases/heartbeat", `{"leases":[`+one+`]}`))
	}
	claim(`{}`, `{"owner":{}}`, `{"owner":{"id":""}}`, `{"owner":5}`, `{"owner":{"id":5}}`, `{"owner":{"id":"c"},"limit":-1}`, `{"owner":{"id":"c"},"limit":"x"}`, `{"owner":{"id":"c"},"ttl_ms":-5}`, `{"owner":{"id":"c"},"ttl_ms":1e30}`,
		`{"owner":{"id":"c"},"ttl_ms":9223372036854775807}`, `{"owner":{"id":"c"},"wait_ms":-1}`, `{"owner":{"id":"c"},"stay":true}`, `{"owner":{"id":"c"},"tll_ms":5}`, `{"owner":{"id":"c","idd":5}}`, `{"owner":{"id":"c"},"metadata":{"a":5}}`,
		`{"owner":{"id":"c"},"owner":{"id":"d"}}`, `{"owner":{"id":"c"},"metadata":{"a":"1","a":"2"}}`, `{"owner":{"id":"c"},"lease_id":"a b"}`, `{"owner":{"id":"c"},"lease_id":"`+a+`"}`, `{"owner":{"id":"c"},"lease_id":"`+strings.Repeat("x", 300)+`"}`,
		`{"owner":{"id":"`+strings.Repeat("x", 300)+`"}}`, `{"Owner":{"id":"c"}}`, `[]`, `5`, `null`, `{`, ``, ` `, "{\"a\":\"\xff\"}", `{"a":`+strings.Repeat("[", 300)+strings.Repeat("]", 300)+`}`, `{"owner":{"id":"c"}} x`, `{"owner":{"id":"c"},"strict":"yes"}`,
		`{"owner":{"id":"c"},"within":[5]}`, `{"owner":{"id":"c"},"within":"a"}`, `{"owner":{"id":"c"},"process":{"pid":1}}`, `{"owner":{"id":"c"},"x":"`+strings.Repeat("x", 1<<20)+`"}`)
	say(line{method: "POST", path: leases, body: `{"owner":{"id":"c"}}`, header: "Content-Type: text/plain"}, line{method: "POST", path: leases, body: `{"owner":{"id":"c"}}`, header: "Lokt-Operation: " + strings.Repeat("x", 65)})
	say(post1("/v1/locks/a..b/leases", `{"owner":{"id":"c"}}`), get1("/v1/locks/a..b"), get1("/v1/locks/"+strings.Repeat("x", 201)), get1("/v1/locks/%2F"))
	say(line{method: "DELETE", path: leases + "?owner=b"}, line{method: "DELETE", path: leases}, line{method: "DELETE", path: leases + "/" + b + "?owner=b&stale=1"}, line{method: "DELETE", path: leases + "/" + a + "?force=2"},
		line{method: "DELETE", path: leases + "/" + b + "?owner=o&force=true"}, line{method: "DELETE", path: leases + "/L-00000000000000000000?owner=o&force=1"}, own("DELETE", leases+"/"+b, "", "lease-of-b"), line{method: "DELETE", path: leases + "?pid=x"})
	say(line{method: "&POST", path: leases, body: `{"lease_id":"lease-of-b","owner":{"id":"b"},"wait_ms":9000}`}, own("DELETE", leases+"/"+a+"?owner=a", "", "lease-of-a"), line{method: "&"}, own("DELETE", leases+"/"+a+"?owner=a", "", "lease-of-a"))
	say(line{method: "PUT", path: "/v1/locks/x/freeze", body: `{"owner":{"id":"f"},"reason":"why","ttl_ms":60000,"id":"the-freeze"}`}, get1("/v1/locks/x"), line{method: "PUT", path: "/v1/locks/x/freeze", body: `{"owner":{"id":"g"}}`})
	claim(`{"owner":{"id":"c"}}`)
	for _, body := range []string{`{}`, `{"owner":{"id":"f"},"ttl_ms":-1}`, `{"owner":{"id":"f"},"id":"` + strings.Repeat("x", 300) + `"}`, `{"owner":{"id":"f"},"why":1}`} {
		say(line{method: "PUT", path: "/v1/locks/x/freeze", body: body})
	}
	say(line{method: "DELETE", path: "/v1/locks/x/freeze?owner=g"}, line{method: "DELETE", path: "/v1/locks/x/freeze"}, line{method: "DELETE", path: "/v1/locks/x/freeze?owner=f"}, line{method: "DELETE", path: "/v1/locks/x/freeze?owner=f"})
	say(post1("/v1/locks/p/leases", `{"lease_id":"short","owner":{"id":"p"},"ttl_ms":1}`), line{method: "&GET", path: "/v1/locks/q"}, line{method: "&"}, get1("/v1/locks/p"), post1("/v1/locks/p/prune", ""), get1("/v1/locks/p"))
	say(post1("/v1/locks/q/leases", `{"lease_id":"one","owner":{"id":"q"},"limit":2,"strict":true,"attended":true,"max_hold_ms":60000,"ttl_ms":60000}`), post1("/v1/locks/q/leases", `{"lease_id":"two","owner":{"id":"r"},"limit":2}`), get1("/v1/locks/q"),
		line{method: "DELETE", path: "/v1/locks/q/leases?owner=q"}, line{method: "DELETE", path: "/v1/locks/q/leases?owner=o&force=1"})
	for _, q := range []string{"", "?limit=2", "?latest&limit=2", "?after=3&limit=1", "?before=3", "?name=q", "?prefix=q&type=acquire&type=deny", "?owner=b", "?since=2020-01-01T00:00:00Z&until=2020-01-01T00:00:00Z", "?since=x", "?limit=x", "?after=-1", "?name=/", "?owner=" + strings.Repeat("x", 300),
		"?after=1000&wait_ms=5", "?%zz", "?type=" + strings.Repeat("x", 65)} {
		say(get1("/v1/audit" + q))
	}
	say(line{method: "GET", path: "/v1/events", header: "Last-Event-ID: x"}, get1("/v1/events?name=/"))
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/locks/", "/v1/locks/x/", "/v1/locks//leases", "/v1/locks/x/lease", "/v1/./locks", "/v2/locks", "/openapi.jso"} {
		say(get1(path), post1(path, "{}"))
	}
	for _, path := range []string{"/v1/about", "/v1/locks", "/v1/locks/x", leases, leases + "/" + a, "/v1/locks/x/prune", "/v1/locks/x/freeze", "/v1/audit", "/openapi.json"} {
		say(line{method: "PATCH", path: path}, line{method: "HEAD", path: path})
	}
	return all
}

func TestTheLocksAPIAnswersAsItDid(t *testing.T) {
	t.Parallel()
	m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	store := memstore.New()
	play(t, "locks.txt", locksTalk(), httpapi.NewHandler(httpapi.Config{Jobs: m, Locks: lokt.NewManager(store), Events: store, About: httpapi.About{Version: "v", Store: "memory"}}), map[string]string{
		"/v1/about": "it is another version",
	})
}

// Promises S-75, S-76, S-77, S-80, S-81, S-82.
func TestTheSchedulerAnswersAsItDid(t *testing.T) {
	t.Parallel()
	m, err := manager.Open(t.Context(), memstore.NewJobs(), manager.Options{Locks: lokt.NewManager(memstore.New())})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	play(t, "scheduler.txt", schedulerTalk(), httpapi.NewHandler(httpapi.Config{Jobs: m, Locks: lokt.NewManager(memstore.New())}), nil)
}
