package httpapi_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// goodRequests are requests as they go over a connection, one for each route of the locks API.
func goodRequests() []string {
	request := func(line, body string, headers ...string) string {
		text := line + " HTTP/1.1\r\nHost: lokt.example\r\n"
		for _, h := range headers {
			text += h + "\r\n"
		}
		if body != "" {
			text += fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
		}
		return text + "\r\n" + body
	}
	secret := "0123456789abcdef0123456789abcdef"
	lease := "/v1/locks/x/leases/" + lokt.PublicID(secret)
	return []string{
		request("GET /v1/locks?prefix=x&queued=true", ""),
		request("GET /v1/locks/x?seen=1&wait_ms=1", ""),
		request("POST /v1/locks/x/leases", `{"lease_id":"`+secret+`","owner":{"id":"a","session":"s","any_session":true,"host":"h","process":{"pid":1,"start":2,"boot":"b","namespace":"n"}},`+
			`"limit":2,"strict":true,"attended":true,"refresh":true,"ttl_ms":60000,"max_hold_ms":120000,"priority":1,"preempt_ms":1,"wait_ms":1,"stay":true,"metadata":{"k":"v"},"within":["l"]}`,
			"Lokt-Operation: 1234", "X-Request-Id: r-1"),
		request("POST /v1/leases/heartbeat", `{"leases":[{"name":"x","lease_id":"`+secret+`","owner":{"id":"a"}},{"name":"y","lease_id":"l"}]}`),
		request("DELETE "+lease+"?owner=a&session=s&host=h&pid=1", "", "Lokt-Lease: "+secret, "Lokt-Cancels: 1234"),
		request("DELETE "+lease+"?owner=root&force=true&stale=false", ""),
		request("DELETE /v1/locks/x/leases?owner=a&any_session=true", ""),
		request("POST /v1/locks/x/prune", ""),
		request("PUT /v1/locks/x/freeze", `{"id":"f","owner":{"id":"a"},"reason":"why","ttl_ms":5}`),
		request("DELETE /v1/locks/x/freeze?owner=a&force=true", ""),
		request("GET /v1/audit?after=1&before=9&name=x&prefix=x&owner=a&type=acquire&type=deny&since=2026-01-01T00:00:00Z&until=2027-01-01T00:00:00.5Z&limit=3&latest=true&wait_ms=1", ""),
		request("HEAD /v1/events?after=0", "", "Last-Event-ID: 3"),
	}
}

// mutateText changes some bytes of a request: at random, or to what parsers stumble over.
func mutateText(random *rand.Rand, text []byte) []byte {
	pieces := []string{
		"\x00", "\xff\xfe", "-1", "1e400", "99999999999999999999999999", "9223372036854775807", "9223372036854", "null", "{}", "[", `"`, `\u0000`, `\ud800`, "%00", "%2e%2e", "%2F",
		"/", "//", "..", "?", "&", "=", ";", " ", "\r\n", strings.Repeat("[", 200), strings.Repeat("a", 5000), "true", "NaN", "é", "\t", "L-00000000000000000000",
	}
	text = bytes.Clone(text)
	for range 1 + random.IntN(4) {
		if len(text) == 0 {
			break
		}
		at := random.IntN(len(text))
		switch random.IntN(5) {
		case 0:
			text[at] = byte(random.IntN(256))
		case 1:
			text = append(text[:at], text[min(len(text), at+1+random.IntN(8)):]...)
		case 2:
			end := min(len(text), at+random.IntN(20))
			text = append(text[:end:end], text[at:]...)
		default:
			p := pieces[random.IntN(len(pieces))]
			text = append(text[:at:at], append([]byte(p), text[min(len(text), at+random.IntN(3)):]...)...)
		}
	}
	return text
}

// serveText has the handler answer what was sent, if net/http passes that on at all, and reports whether it did.
func serveText(t testing.TB, handler http.Handler, text []byte) bool {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
	if err != nil {
		return false
	}
	if strings.HasPrefix(r.URL.Path, "/v1/events") { // they would stream for ever
		r.Method = http.MethodHead
	}
	r.RemoteAddr = "192.0.2.1:1234"
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code >= 500 || w.Code >= 300 && w.Code < 400 {
		t.Errorf("%q is answered %d %s", text, w.Code, w.Body)
	}
	if w.Code >= 400 && w.Header().Get("Content-Type") != "application/problem+json" && !strings.HasPrefix(r.URL.Path, "/api/") {
		t.Errorf("%q is answered %d of type %s", text, w.Code, w.Header().Get("Content-Type"))
	}
	return true
}

func mutationHandler() http.Handler {
	store := memstore.New()
	return httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(store), Events: store, Limits: httpapi.Limits{Body: 64 << 10, Wait: time.Millisecond}})
}

// Promise S-72.
func TestMutatedRequestsAreNeverTheServersFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // a machine that is slow is no fault
		handler := mutationHandler()
		good := goodRequests()
		for _, text := range good {
			if !serveText(t, handler, []byte(text)) {
				t.Errorf("not passed on: %s", text)
			}
		}
		random := rand.New(rand.NewPCG(1, 2))
		served := 0
		for i := 0; served < 10_000; i++ {
			if serveText(t, handler, mutateText(random, []byte(good[i%len(good)]))) {
				served++
			}
			if t.Failed() {
				return
			}
		}
	})
}

func FuzzRequests(f *testing.F) {
	for _, text := range goodRequests() {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		synctest.Test(t, func(t *testing.T) { serveText(t, mutationHandler(), text) })
	})
}
