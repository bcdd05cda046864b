//go:build unix

package scenarios

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/testkit/ports"
	"github.com/lokt-dev/lokt/internal/testkit/programs"
	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// paths are those of what is built.
type paths struct{ lokt, loktd string }

func build(t *testing.T) paths {
	t.Helper()
	dir, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return paths{filepath.Join(dir, "lokt"), filepath.Join(dir, "loktd")}
}

// free returns an address that nobody listens at.
func free(t *testing.T) string {
	t.Helper()
	all, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	return all[0]
}

// stage is a loktd, and a proxy in front of it.
type stage struct {
	t      *testing.T
	loktd  string
	args   []string
	addr   string
	url    string // without the proxy
	proxy  *servers.Proxy
	daemon *exec.Cmd
	token  string
	open   func(t *testing.T, server, token string) client
}

func (s *stage) start() {
	s.t.Helper()
	s.daemon = exec.CommandContext(s.t.Context(), s.loktd, s.args...)
	s.daemon.Env = clean()
	if err := s.daemon.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(25 * time.Millisecond) {
		if r, err := http.Get(s.url + "/readyz"); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
	}
	s.t.Fatal("loktd is not ready")
}

func (s *stage) kill() {
	_ = s.daemon.Process.Kill()
	_ = s.daemon.Wait() // killed
}

// near and far are clients: one that reaches the server, and one that does through the proxy.
func (s *stage) near() client { return s.open(s.t, s.url, s.token) }
func (s *stage) far() client  { return s.open(s.t, "http://"+s.proxy.Addr(), s.token) }

// call does what no client is tested for, and returns the answer.
func (s *stage) call(method, path string, body any) map[string]any {
	s.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, bytes.NewReader(b))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var v map[string]any
	if err := json.NewDecoder(answer.Body).Decode(&v); err != nil {
		s.t.Fatal(err)
	}
	return v
}

const scheduler = "/api/system/scheduler"

func (s *stage) submit(spec map[string]any) string {
	s.t.Helper()
	return s.call(http.MethodPost, scheduler+"/jobs", spec)["job_id"].(string)
}

func (s *stage) job(id string) (state string, attempt int) {
	s.t.Helper()
	v := s.call(http.MethodGet, scheduler+"/jobs/"+id, nil)
	return v["state"].(string), int(v["attempt"].(float64))
}

// until waits for a job to come to a state.
func (s *stage) until(id, want string) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if state, _ := s.job(id); state == want {
			return
		}
	}
	seen, workers := s.call(http.MethodGet, scheduler+"/jobs/"+id, nil), s.call(http.MethodGet, scheduler+"/workers", nil)
	s.t.Fatalf("job is not %s: %v; workers: %v", want, seen, workers)
}

func (s *stage) holders() int {
	s.t.Helper()
	return len(s.call(http.MethodGet, "/v1/locks/db", nil)["holders"].([]any))
}

// renewed waits for the next renewal of the lock's hold.
func (s *stage) renewed() {
	s.t.Helper()
	renewals := func() float64 {
		n := 0.0
		for _, h := range s.call(http.MethodGet, "/v1/locks/db", nil)["holders"].([]any) {
			more, _ := h.(map[string]any)["renewals"].(float64)
			n += more
		}
		return n
	}
	before := renewals()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if renewals() > before {
			return
		}
	}
	s.t.Fatal("the lock is not renewed")
}

// lost waits for the end of a hold, and says when it was seen.
func lost(c client, most time.Duration) (time.Time, bool) {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c.state() == "lost" {
			return time.Now(), true
		}
	}
	return time.Time{}, false
}

// heard waits for what is to be told of handlers, and returns what is.
func heard(c client, want string) (told string) {
	for end := time.Now().Add(time.Minute); told != want && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		told = strings.Join(c.told(), ",")
	}
	return told
}

func got(token int, why string) string {
	if why != "" {
		return why
	}
	if token > 0 {
		return "granted"
	}
	return "without a token"
}

// A machine may stand still for a second and more: what has to last lives for ttl, what is to end for brief.
const (
	ttl   = 8 * time.Second
	brief = 3 * time.Second
	long  = time.Minute
)

// scenarios are the script: each returns what was seen, which must be the same for every client.
var scenarios = []struct {
	name, want string
	play       func(s *stage) string
}{
	{"contention", "granted; held; granted later with a higher token", func(s *stage) string {
		a, b := s.near(), s.near()
		first, why := a.acquire("db", ttl, 0)
		said := got(first, why)
		said += "; " + got(b.acquire("db", ttl, 0))
		released := make(chan struct{})
		go func() {
			defer close(released)
			s.renewed()
			a.release()
		}()
		second, why := b.acquire("db", ttl, long)
		<-released
		if why == "" && second > first {
			return said + "; granted later with a higher token"
		}
		return fmt.Sprint(said, "; ", second, why)
	}},
	{"the holder is killed", "free when the time to live is over, not before", func(s *stage) string {
		a, b := s.near(), s.near()
		a.acquire("db", ttl, 0)
		a.signal(syscall.SIGKILL)
		killed := time.Now()
		token, why := b.acquire("db", ttl, long)
		// The last renewal was at most half a TTL before the kill, and the kill took the machine up to two seconds.
		if took := time.Since(killed); why != "" || token == 0 || took < ttl/2-2*time.Second || took > ttl+30*time.Second {
			return fmt.Sprint(got(token, why), " after ", took)
		}
		return "free when the time to live is over, not before"
	}},
	{"the holder is stopped beyond its time", "lost; the other holds", func(s *stage) string {
		a, b := s.near(), s.near()
		a.acquire("db", brief, 0)
		a.signal(syscall.SIGSTOP)
		if _, why := b.acquire("db", ttl, long); why != "" {
			return why
		}
		a.signal(syscall.SIGCONT)
		if _, ok := lost(a, long); !ok {
			return "not told"
		}
		s.renewed()
		return "lost; the other " + map[string]string{"held": "holds"}[b.state()]
	}},
	{"a short partition", "held", func(s *stage) string {
		a := s.far()
		a.acquire("db", ttl, 0)
		s.proxy.Hole()
		time.Sleep(ttl / 4)
		s.proxy.Heal()
		s.renewed()
		return a.state()
	}},
	{"a long partition", "lost before the other enters", func(s *stage) string {
		a, b := s.far(), s.near()
		a.acquire("db", ttl, 0)
		s.proxy.Hole()
		if _, why := b.acquire("db", ttl, long); why != "" {
			return "the other never entered: " + why
		}
		return a.state() + " before the other enters"
	}},
	{"the server is killed and started again", "held", func(s *stage) string {
		a := s.near()
		a.acquire("db", ttl, 0)
		s.kill()
		s.start()
		s.renewed()
		return a.state()
	}},
	{"the answer to a claim is lost", "granted, one holder; none after its release", func(s *stage) string {
		a := s.far()
		s.proxy.Swallow()
		go func() {
			time.Sleep(300 * time.Millisecond)
			s.proxy.Heal()
		}()
		said := got(a.acquire("db", ttl, 0))
		holders := s.holders()
		a.release()
		if holders == 1 && s.holders() == 0 {
			return said + ", one holder; none after its release"
		}
		return fmt.Sprint(said, holders, s.holders())
	}},
	{"a slow server", "held", func(s *stage) string {
		a := s.far()
		s.proxy.Delay(200 * time.Millisecond)
		a.acquire("db", ttl, 0)
		s.renewed()
		return a.state()
	}},
	{"the lock is taken away by force", "lost", func(s *stage) string {
		a := s.near()
		a.acquire("db", ttl, 0)
		s.call(http.MethodDelete, "/v1/locks/db/leases?owner=root&force=true", nil)
		if _, ok := lost(a, long); !ok {
			return a.state()
		}
		return "lost"
	}},
	{"the lock is frozen", "frozen", func(s *stage) string {
		s.call(http.MethodPut, "/v1/locks/db/freeze", map[string]any{"owner": map[string]any{"id": "root"}, "ttl_ms": 60000})
		return got(s.near().acquire("db", ttl, 0))
	}},
	{"a worker is drained", "its job completed, the next queued", func(s *stage) string {
		w := s.near()
		first := s.submit(map[string]any{"payload": map[string]any{"seconds": 10}}) // longer than a lease lasts
		w.work()
		s.until(first, "running")
		second := s.submit(map[string]any{})
		w.drain()
		a, _ := s.job(first)
		b, _ := s.job(second)
		if a != "completed" {
			a += fmt.Sprint(" ", s.call(http.MethodGet, scheduler+"/jobs/"+first, nil)["error"])
		}
		return "its job " + a + ", the next " + b
	}},
	{"a worker is killed", "completed in attempt 2", func(s *stage) string {
		w := s.near()
		w.work()
		id := s.submit(map[string]any{"payload": map[string]any{"seconds": 3}, "max_attempts": 2, "retry_backoff_s": 0})
		s.until(id, "running")
		w.signal(syscall.SIGKILL)
		other := s.near()
		other.work()
		s.until(id, "completed")
		_, attempt := s.job(id)
		return fmt.Sprintf("completed in attempt %d", attempt)
	}},
	{"the server is killed under a job", "completed in attempt 1", func(s *stage) string {
		w := s.near()
		w.work()
		id := s.submit(map[string]any{"payload": map[string]any{"seconds": 6}, "max_attempts": 2})
		s.until(id, "running")
		s.kill()
		s.start()
		s.until(id, "completed")
		_, attempt := s.job(id)
		return fmt.Sprintf("completed in attempt %d", attempt)
	}},
	{"a job is cancelled", "began,stopped, the job cancelled", func(s *stage) string {
		w := s.near()
		w.work()
		id := s.submit(map[string]any{"payload": map[string]any{"seconds": 30}})
		heard(w, "began")
		s.call(http.MethodPost, scheduler+"/jobs/"+id+"/cancel", map[string]any{})
		s.until(id, "cancelled")
		return heard(w, "began,stopped") + ", the job cancelled"
	}},
	{"a lock of a job is lost", "began,stopped, the job failed", func(s *stage) string {
		w := s.near()
		w.work()
		id := s.submit(map[string]any{"payload": map[string]any{"seconds": 30}, "locks": []string{"db"}})
		heard(w, "began")
		s.call(http.MethodDelete, "/v1/locks/db/leases?owner=root&force=true", nil)
		s.until(id, "failed")
		return heard(w, "began,stopped") + ", the job failed"
	}},
}

func TestEveryClientComesToTheSameVerdicts(t *testing.T) {
	t.Parallel()
	p := build(t)
	all := clients(t, p)
	for name, open := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, sc := range scenarios {
				t.Run(strings.ReplaceAll(sc.name, " ", "_"), func(t *testing.T) {
					t.Parallel()
					addr := free(t)
					s := &stage{t: t, loktd: p.loktd, addr: addr, url: "http://" + addr, open: open}
					s.args = []string{"--listen", addr, "--store", "sqlite:" + filepath.Join(t.TempDir(), "db"), "--lease-ttl", "8s"}
					s.start()
					t.Cleanup(s.kill)
					s.proxy = servers.NewProxy(t, addr)
					if verdict := sc.play(s); verdict != sc.want {
						t.Errorf("verdict: %s; want: %s", verdict, sc.want)
					}
				})
			}
		})
	}
}

// What cannot be used is refused with the same word everywhere, and one line that says what is wrong.
func TestEveryClientSaysWhatIsWrongWithWhatItWasGiven(t *testing.T) {
	t.Parallel()
	p := build(t)
	addr, tokens := free(t), filepath.Join(t.TempDir(), "tokens")
	expired, err := exec.CommandContext(t.Context(), p.loktd, "token", "create", "x", "--tokens", tokens, "--expires", "1ms").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{t: t, loktd: p.loktd, url: "http://" + addr, args: []string{"--listen", addr, "--store", "memory:", "--tokens", tokens}}
	s.start()
	t.Cleanup(s.kill)
	answering := func(status int, media, body string) string {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body)) // who asks may be gone
		}))
		t.Cleanup(other.Close)
		return other.URL
	}
	const noSuchRoute = `{"type":"about:blank","title":"No such route","status":404,"code":"no_route","detail":"no such route"}`
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that fail
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for _, given := range []struct{ what, server, token, why, says string }{
		{"no URL", "locks.example:7117", "", "invalid", `locks\.example.*http://`},
		{"the URL of something else", "ftp://locks.example", "", "invalid", `ftp://locks\.example.*http://`},
		{"an address at which nobody listens", "http://" + free(t), "", "unavailable", `127\.0\.0\.1:\d+: .*refused`},
		{"https where there is http", "https://" + addr, "", "unavailable", addr + `: .*(TLS|HTTPS client)`},
		{"http where there is https", "http://" + secure.Listener.Addr().String(), "", "incompatible", `HTTPS server`},
		{"a certificate that nobody vouches for", secure.URL, "", "unavailable", secure.Listener.Addr().String() + `: .*certificate.*(CA|authority)`},
		{"no token", s.url, "", "forbidden", `no token`},
		{"a token that nobody knows", s.url, "lokt_wrong", "forbidden", `unknown token`},
		{"a token that has expired", s.url, strings.TrimSpace(string(expired)), "forbidden", `token has expired`},
		{"what is no loktd", answering(200, "text/html", "<html>\n</html>"), "", "incompatible", `127\.0\.0\.1:\d+.*loktd`},
		{"a loktd without this API", answering(404, "application/problem+json", noSuchRoute), "", "incompatible", `127\.0\.0\.1:\d+.*no such route`},
		{"a proxy that knows no such path", answering(404, "application/json", `{"code":"not_found","detail":"no such path"}`), "", "incompatible", `127\.0\.0\.1:\d+.*loktd`},
		{"a loktd that answers otherwise", answering(200, "application/json", `{"lock":{}}`), "", "incompatible", `127\.0\.0\.1:\d+.*loktd`},
	} {
		t.Run(strings.ReplaceAll(given.what, " ", "_"), func(t *testing.T) {
			t.Parallel()
			for name, open := range clients(t, p) {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					c := open(t, given.server, given.token)
					why := got(c.acquire("db", ttl, 0))
					if said := c.said(); why != given.why || !regexp.MustCompile(given.says).MatchString(said) || strings.Contains(said, "\n") {
						t.Errorf("%s, want %s:\n%s\nwant %s", why, given.why, said, given.says)
					}
				})
			}
		})
	}
}
