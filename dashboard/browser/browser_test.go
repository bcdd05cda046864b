// Package browser tests the dashboard of a real loktd in a real browser. It is a module of its own, so that nobody who uses
// lokt has to do with what drives a browser.
package browser

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// server is a loktd, with a person's token if it wants one.
type server struct {
	url, token string
	t          *testing.T
	process    *os.Process
}

func programs(t *testing.T) string {
	dir, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "loktd")); err != nil {
		t.Fatal("run make build first: ", err)
	}
	return dir
}

func start(t *testing.T, args ...string) *server {
	c := exec.Command(filepath.Join(programs(t), "loktd"), append([]string{"--listen", "127.0.0.1:0", "--store", "memory:"}, args...)...)
	var said bytes.Buffer
	c.Stderr = &said
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil || strings.Contains(said.String(), "ERROR") {
			t.Errorf("loktd: %v\n%s", err, said.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	_, at, ok := strings.Cut(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		t.Fatal(line, err, said.String())
	}
	return &server{url: at, t: t, process: c.Process}
}

// lokt runs a command, and returns what it wrote.
func (s *server) lokt(args ...string) string {
	s.t.Helper()
	out, err := s.command(args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("lokt %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func (s *server) command(args ...string) *exec.Cmd {
	c := exec.Command(filepath.Join(programs(s.t), "lokt"), args...)
	c.Env = append(os.Environ(), "LOKT_SERVER="+s.url, "LOKT_SERVER_TOKEN="+s.token)
	return c
}

// spawn runs a command until the test ends.
func (s *server) spawn(args ...string) {
	s.t.Helper()
	c := s.command(args...)
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
	})
}

// tab is a page in a browser.
type tab struct {
	ctx context.Context
	t   *testing.T
}

// open starts a browser.
func open(t *testing.T) *tab {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	return newTab(t, ctx)
}

func newTab(t *testing.T, parent context.Context) *tab {
	ctx, cancel := chromedp.NewContext(parent)
	t.Cleanup(cancel)
	b := &tab{ctx, t}
	b.do(chromedp.EmulateViewport(1200, 900))
	b.ctx, cancel = context.WithTimeout(ctx, 5*time.Minute) // the browser is not to end with the first action
	t.Cleanup(cancel)
	if err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *page.EventJavascriptDialogOpening:
			t.Errorf("a page said %q", e.Message)
		case *runtime.EventExceptionThrown:
			t.Errorf("a script failed: %+v", e.ExceptionDetails)
		case *log.EventEntryAdded:
			if e.Entry.Source == log.EntrySourceSecurity {
				t.Errorf("a page broke its policy: %+v", e.Entry)
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// run returns what the action does.
func run[T any](b *tab, a chromedp.Action[T]) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, a)
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// call runs a command of the browser's protocol.
func call[P, R any](b *tab, c cdp.Command[P, R], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, c, params); err != nil {
		b.t.Fatal(err)
	}
}

// text returns what the page shows.
func (b *tab) text() string {
	b.t.Helper()
	return run(b, chromedp.Evaluate[string](`document.body ? document.body.innerText : ''`))
}

// sees waits until the page shows the text.
func (b *tab) sees(text string) {
	b.t.Helper()
	b.within(time.Minute, text)
}

func (b *tab) within(limit time.Duration, text string) {
	b.t.Helper()
	deadline := time.Now().Add(limit)
	for !strings.Contains(b.text(), text) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%q did not come; the page shows:\n%s", text, b.text())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (b *tab) at() string {
	b.t.Helper()
	return run(b, chromedp.Evaluate[string](`location.pathname`))
}

// tabTo presses the tabulator until the focus is on what the selector names.
func (b *tab) tabTo(selector string) {
	b.t.Helper()
	for range 100 {
		b.do(chromedp.KeyEvent(kb.Tab))
		if run(b, chromedp.Evaluate[bool](fmt.Sprintf(`document.activeElement.matches(%q)`, selector))) {
			return
		}
	}
	b.t.Fatalf("%s cannot be reached by keyboard", selector)
}

func TestALockTakenElsewhereAppearsInEveryTabAndWhatWasTypedStays(t *testing.T) {
	s := start(t)
	one := open(t)
	two := newTab(t, one.ctx)
	one.do(chromedp.Navigate(s.url + "/"))
	two.do(chromedp.Navigate(s.url + "/locks/build"))
	one.sees("Nobody holds or waits for a lock")
	two.sees("Nobody holds it")
	one.do(chromedp.SendKeys(`input[name=q]`, "bui"))
	s.spawn("guard", "build", "--ttl", "1m", "--", "sleep", "600")
	call(two, page.BringToFront, cdp.Empty{})
	two.sees("guard")
	call(one, page.BringToFront, cdp.Empty{})
	one.sees("held")
	typed := run(one, chromedp.Evaluate[string](`document.querySelector('input[name=q]').value`))
	focus := run(one, chromedp.Evaluate[string](`document.activeElement.name`))
	if typed != "bui" || focus != "q" {
		t.Errorf("after the page changed, %q was typed and %q has the focus", typed, focus)
	}
	one.do(chromedp.KeyEvent(kb.Enter))
	one.sees("Show all")
}

func TestAPageComesBackAfterAnswersThatAreNoStream(t *testing.T) {
	s := start(t)
	there, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(there)
	var away atomic.Bool
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if away.Load() {
			http.Error(w, "no server behind this proxy", http.StatusBadGateway)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close) // after the browser
	b := open(t)
	b.do(chromedp.Navigate(front.URL + "/"))
	b.sees("Nobody holds or waits for a lock")
	away.Store(true)
	front.CloseClientConnections()
	b.sees("no connection")
	time.Sleep(3 * time.Second) // it has tried, and was answered
	away.Store(false)
	b.sees("live")
	s.spawn("guard", "build", "--ttl", "1m", "--", "sleep", "600")
	b.sees("held")
}

func TestAPageSaysThatNothingComesOverItsConnection(t *testing.T) {
	s := start(t)
	b := open(t)
	b.do(chromedp.Navigate(s.url + "/"))
	b.sees("live")
	time.Sleep(2 * time.Second) // it has fetched what it fetches first
	signal := func(n syscall.Signal) {
		t.Helper()
		if err := s.process.Signal(n); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	t.Cleanup(func() { _ = s.process.Signal(syscall.SIGCONT) })
	b.within(90*time.Second, "no connection")
	signal(syscall.SIGCONT)
	b.sees("live")
	s.spawn("guard", "build", "--ttl", "1m", "--", "sleep", "600")
	b.sees("held")
}

func TestAPageWhoseTokenIsRevokedShowsTheLogin(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	program := filepath.Join(programs(t), "loktd")
	out, err := exec.Command(program, "token", "create", "rita", "--tokens", tokens, "--scopes", "read").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "--tokens", tokens)
	b := open(t)
	b.do(chromedp.Navigate(s.url + "/"))
	b.sees("Your token")
	b.do(chromedp.SendKeys(`input[name=token]`, strings.TrimSpace(string(out))+kb.Enter))
	b.sees("Nobody holds or waits for a lock")
	if said, err := exec.Command(program, "token", "revoke", "rita", "--tokens", tokens).CombinedOutput(); err != nil {
		t.Fatal(string(said), err)
	}
	b.within(time.Minute, "Your token") // nothing happens, so the stream finds out when it says that it is alive
}

func TestAllIsDoneByKeyboardAlone(t *testing.T) {
	s := start(t)
	s.spawn("guard", "build", "--ttl", "1m", "--", "sleep", "600")
	b := open(t)
	b.do(chromedp.Navigate(s.url + "/"))
	b.sees("build")
	b.tabTo(`a[href="/locks/build"]`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("End all holds")
	b.tabTo(`input[name=text]`)
	b.do(chromedp.KeyEvent("five minutes before noon?" + kb.Enter))
	b.sees("Asked of")
	b.sees("no answer yet")
	s.lokt("answer", "build", "at noon")
	b.sees("at noon")
	b.tabTo(`input[name=reason]`)
	b.do(chromedp.KeyEvent("release 1.0"))
	b.tabTo(`input[name=ttl]`)
	b.do(chromedp.KeyEvent("15m" + kb.Enter))
	b.sees("Frozen by dashboard")
	b.sees("release 1.0")
	b.tabTo(`form[action="/locks/build/unfreeze"] button`)
	b.do(chromedp.KeyEvent(kb.Enter))
	b.sees("Keeps everybody out who is not in already")
	b.tabTo(`input[name=confirm]`)
	b.do(chromedp.KeyEvent("build" + kb.Enter))
	b.sees("Nobody holds it")
	out := s.lokt("audit", "--name", "build", "--json")
	for _, want := range []string{"force-break", `"by":"dashboard"`, "five minutes before noon?", `"answer"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the audit log has no %s: %s", want, out)
		}
	}
}

func TestEverythingWorksWithoutJavaScript(t *testing.T) {
	s := start(t)
	id := strings.TrimSpace(s.lokt("job", "submit", "--type", "thumb", "--payload", `{"n":1}`))
	s.lokt("lock", "db", "--ttl", "10m")
	b := open(t)
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.do(chromedp.Navigate(s.url + "/jobs"))
	click := func(selector string) {
		t.Helper()
		b.do(chromedp.Click(selector), chromedp.WaitReady("footer"))
	}
	reads := func(want string) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for html := ""; !strings.Contains(html, want); html = run(b, chromedp.OuterHTML("html")) {
			if time.Now().After(deadline) {
				t.Fatalf("%q did not come in %s", want, html)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	reads(id)
	click(fmt.Sprintf(`a[href="/jobs/%s"]`, id))
	reads("Cancel the job")
	click(fmt.Sprintf(`form[action="/jobs/%s/cancel"] button`, id))
	reads("s-cancelled")
	click(fmt.Sprintf(`form[action="/jobs/%s/retry"] button`, id))
	reads("s-queued")
	b.do(chromedp.Navigate(s.url + "/bulk?action=cancel&state=queued"))
	reads("Type 1 to confirm")
	b.do(chromedp.SendKeys(`input[name=confirm]`, "1"))
	click(`form[action="/bulk"] button`)
	reads("It begins in")
	click(`form button`)
	reads("Undone: nothing was changed")
	b.do(chromedp.Navigate(s.url + "/locks/db"))
	reads("End all holds")
	b.do(chromedp.SendKeys(`input[name=text]`, "soon?"))
	click(`form[action="/locks/db/ask"] button`)
	reads("no answer yet")
	b.do(chromedp.SendKeys(`input[name=confirm]`, "db"))
	click(`form[action="/locks/db/unlock"] button`)
	reads("Nobody holds it")
}

func TestATokenLogsInShowsWhatItMayAndLogsOut(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	token := func(name, scopes string) string {
		out, err := exec.Command(filepath.Join(programs(t), "loktd"), "token", "create", name, "--tokens", tokens, "--scopes", scopes).Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	reader, admin := token("rita", "read"), token("ada", "read,lock,force,submit,work,admin")
	s := start(t, "--tokens", tokens)
	s.token = admin
	s.spawn("guard", "build", "--ttl", "1m", "--", "sleep", "600")
	b := open(t)
	login := func(with string) {
		t.Helper()
		b.do(chromedp.SendKeys(`input[name=token]`, with+kb.Enter))
	}
	b.do(chromedp.Navigate(s.url + "/locks/build"))
	b.sees("Your token")
	login("nonsense")
	b.sees("not known here")
	login(reader)
	b.sees("rita")
	if b.at() != "/locks/build" {
		t.Error("the login leads to ", b.at())
	}
	if text := b.text(); strings.Contains(text, "End all holds") || strings.Contains(text, "Ask the holder") {
		t.Error("who may only read is offered more")
	}
	if cookie := run(b, chromedp.Evaluate[string](`document.cookie`)); cookie != "" {
		t.Error("a script can read ", cookie)
	}
	b.do(chromedp.Click(`form[action="/logout"] button`))
	b.sees("Your token")
	b.do(chromedp.Navigate(s.url + "/jobs"))
	b.sees("Your token")
	login(admin)
	b.sees("ada")
	b.do(chromedp.Navigate(s.url + "/locks/build"))
	b.sees("End all holds")
	b.do(chromedp.SendKeys(`input[name=text]`, "done soon?"+kb.Enter))
	b.sees("ada/dashboard, ")
	b.sees("done soon?")
	if out, err := exec.Command(filepath.Join(programs(t), "loktd"), "token", "revoke", "ada", "--tokens", tokens).CombinedOutput(); err != nil {
		t.Fatal(string(out), err)
	}
	deadline := time.Now().Add(30 * time.Second)
	for b.at() != "/login" { // the daemon looks at its file every few seconds
		if time.Now().After(deadline) {
			t.Fatal("a revoked token still shows ", b.text())
		}
		b.do(chromedp.Navigate(s.url + "/"))
		time.Sleep(200 * time.Millisecond)
	}
}

// fill makes something of everything, much of it hostile.
func fill(s *server) (job string) {
	evil := `"><script>alert(1)</script><img src=x onerror=alert(2)>`
	s.spawn("guard", "build", "--ttl", "1m", "--meta", "note="+evil, "--", "sleep", "600")
	s.spawn("guard", "gpu", "--slots", "3", "--ttl", "1m", "--", "sleep", "600")
	for strings.Count(s.lokt("status"), "guard") < 2 {
		time.Sleep(20 * time.Millisecond)
	}
	s.spawn("guard", "build", "--ttl", "1m", "--wait", "--", "sleep", "600")
	s.lokt("freeze", "deploy", "--ttl", "15m", "--reason", evil)
	ask := func(text string) {
		c := s.command("ask", "gpu", text)
		c.Env = append(c.Env, "LOKT_OWNER="+evil)
		if out, err := c.CombinedOutput(); err != nil {
			s.t.Fatal(string(out))
		}
	}
	ask(evil + "\u202e?")
	s.lokt("answer", "gpu", evil)
	ask(strings.Repeat("x", 256))
	payload, err := json.Marshal(map[string]string{"x": evil, "long": strings.Repeat("y", 1<<19)})
	if err != nil {
		s.t.Fatal(err)
	}
	file := filepath.Join(s.t.TempDir(), "payload")
	if err := os.WriteFile(file, payload, 0o600); err != nil {
		s.t.Fatal(err)
	}
	job = strings.TrimSpace(s.lokt("job", "submit", "--type", evil, "--payload", "@"+file))
	s.spawn("worker", "--type", evil, "--", "sh", "-c", "exit 3")
	for !strings.Contains(s.lokt("job", "show", job), "failed") {
		time.Sleep(20 * time.Millisecond)
	}
	s.lokt("job", "submit", "--type", "later", "--lock", "build", "--payload", "{}")
	return job
}

func screens(job string) []string {
	return []string{
		"/", "/?state=frozen", "/locks/build", "/locks/gpu", "/locks/deploy", "/locks/free", "/jobs", "/jobs/" + job, "/jobs?state=queued", "/workers",
		"/failures", "/audit", "/bulk?action=cancel", "/bulk?action=retry&state=failed", "/jobs/none",
	}
}

func TestWhatIsHostileIsShownAndNotRun(t *testing.T) {
	s := start(t)
	job := fill(s)
	b := open(t)
	for _, path := range screens(job) {
		b.do(chromedp.Navigate(s.url+path), chromedp.WaitReady("footer"))
		if run(b, chromedp.Evaluate[int](`document.images.length`)) != 0 {
			t.Error(path, " has become a page with an image")
		}
	}
	b.do(chromedp.Navigate(s.url + "/jobs/" + job))
	b.sees("<script>alert(1)</script>")
}

func TestTheCommandOfEachPageRuns(t *testing.T) {
	s := start(t)
	job := fill(s)
	b := open(t)
	for _, path := range screens(job) {
		b.do(chromedp.Navigate(s.url+path), chromedp.WaitReady("footer"))
		line := run(b, chromedp.Evaluate[string](`document.querySelector('footer code')?.textContent ?? ''`))
		if line == "" && strings.HasSuffix(path, "/none") {
			continue
		}
		c := exec.Command("sh", "-c", line)
		c.Env = append(os.Environ(), "PATH="+programs(t)+":"+os.Getenv("PATH"))
		out, err := c.CombinedOutput()
		switch code := c.ProcessState.ExitCode(); {
		case code == 3 && strings.Contains(string(out), "is free"), code == 64 && strings.Contains(string(out), "confirm it with --count"):
			err = nil
		}
		if err != nil || !strings.Contains(line, s.url) {
			t.Errorf("%s: %s: %v\n%s", path, line, err, out)
		}
	}
}

// barriers returns what axe-core finds on the page.
func (b *tab) barriers() string {
	b.t.Helper()
	axe, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		b.t.Fatal("run npm ci in dashboard/browser first: ", err)
	}
	b.do(chromedp.Evaluate[chromedp.Void](string(axe)))
	const judge = `axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']}).then(r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html.slice(0, 200) + ' ' + n.failureSummary).join('; ')).join('\n'))`
	return run(b, chromedp.Evaluate[string](judge, chromedp.EvalAwaitPromise))
}

func (b *tab) light(look string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look}}})
}

// The check finds what is broken on purpose, in either light.
func TestTheCheckFindsBarriers(t *testing.T) {
	s := start(t)
	s.lokt("lock", "db", "--ttl", "10m")
	b := open(t)
	for want, breaking := range map[string]string{
		"label":                   `document.querySelector('input[name=reason]').closest('label').replaceWith(document.querySelector('input[name=reason]'))`,
		"color-contrast":          `document.querySelectorAll('h2').forEach(h => h.setAttribute('hidden', '')); document.querySelector('footer').append(Object.assign(document.createElement('p'), {textContent: 'pale', id: 'pale'})); document.getElementById('pale').style.color = matchMedia('(prefers-color-scheme: dark)').matches ? '#333' : '#ddd'`,
		"scrollable-region-focus": `document.querySelectorAll('.wide').forEach(w => { w.removeAttribute('tabindex'); w.style.width = '80px'; w.style.overflow = 'auto' })`,
		"html-has-lang":           `document.documentElement.removeAttribute('lang')`,
	} {
		for _, look := range []string{"light", "dark"} {
			b.light(look)
			b.do(chromedp.Navigate(s.url+"/locks/db"), chromedp.WaitReady("footer"))
			if found := b.barriers(); found != "" {
				t.Fatalf("before it was broken: %s", found)
			}
			const keep = `document.getElementById('main').dataset.typed = '1';` // lest the page be brought up to date meanwhile
			b.do(chromedp.Evaluate[chromedp.Void](keep + breaking))
			if found := b.barriers(); !strings.Contains(found, want) {
				t.Errorf("%s, %s: it found %q", want, look, found)
			}
		}
	}
}

func TestNoPageHasABarrier(t *testing.T) {
	s := start(t)
	job := fill(s)
	b := open(t)
	for _, look := range []string{"light", "dark"} {
		for _, path := range screens(job) {
			b.light(look)
			b.do(chromedp.Navigate(s.url+path), chromedp.WaitReady("footer"))
			if found := b.barriers(); found != "" {
				t.Errorf("%s, %s: %s", path, look, found)
			}
		}
	}
}

func TestNothingIsCutOffOnAPhone(t *testing.T) {
	s := start(t)
	job := fill(s)
	b := open(t)
	b.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	for _, path := range screens(job) {
		b.do(chromedp.Navigate(s.url+path), chromedp.WaitReady("footer"))
		if wider := run(b, chromedp.Evaluate[int](`document.documentElement.scrollWidth - document.documentElement.clientWidth`)); wider > 0 {
			t.Errorf("%s is %d points wider than the screen", path, wider)
		}
	}
}

// TestPicturesAreMade makes the pictures of the docs anew, in the directory that LOKT_PICTURES names: see make pictures.
func TestPicturesAreMade(t *testing.T) {
	dir := os.Getenv("LOKT_PICTURES")
	if dir == "" {
		dir = t.TempDir()
	}
	s := start(t)
	as := func(who string, args ...string) {
		c := s.command(args...)
		c.Env = append(c.Env, "LOKT_OWNER="+who)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = c.Process.Signal(syscall.SIGTERM)
			_ = c.Wait()
		})
	}
	have := func(who string) { // among those who hold or wait
		for seen := ""; !strings.Contains(seen, `"`+who+`"`); time.Sleep(20 * time.Millisecond) {
			out, _ := s.command("status", "build", "--json").Output() // fails while it is free
			seen = string(out)
		}
	}
	seen := filepath.Join(t.TempDir(), "seen")
	for _, who := range []string{"ana", "ben", "ci-7"} {
		as(who, "guard", "build", "--ttl", "30s", "--wait", "--", "sh", "-c", `until [ -e "$1" ]; do sleep 0.1; done; sleep 0.7`, "sh", seen)
		have(who)
	}
	if err := os.WriteFile(seen, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for s.lokt("status", "--json") != "[]\n" {
		time.Sleep(50 * time.Millisecond)
	}
	for _, who := range []string{"ana", "agent-3", "ci-8"} {
		as(who, "guard", "build", "--ttl", "30s", "--wait", "--", "sleep", "600")
		have(who) // they come in this order
	}
	as("trainer", "guard", "gpu", "--slots", "3", "--ttl", "30s", "--", "sleep", "600")
	as("notebook", "guard", "gpu", "--slots", "3", "--ttl", "30s", "--", "sleep", "600")
	s.lokt("freeze", "deploy", "--ttl", "2h", "--reason", "release 1.4 is being tested")
	for i := range 3 {
		s.lokt("job", "submit", "--type", "thumbnail", "--payload", fmt.Sprintf(`{"file":"a%d.png"}`, i))
	}
	job := strings.TrimSpace(s.lokt("job", "submit", "--type", "migrate", "--lock", "build", "--payload", `{"to":42}`))
	as("w1", "worker", "--type", "thumbnail", "--", "sh", "-c", "exit 3")
	as("w2", "worker", "--type", "migrate", "--", "true")
	for !strings.Contains(s.lokt("job", "show", job), "lock:build") {
		time.Sleep(50 * time.Millisecond)
	}
	b := open(t)
	b.do(chromedp.EmulateViewport(1100, 720))
	for name, path := range map[string]string{"locks": "/", "lock": "/locks/build", "jobs": "/jobs"} {
		b.do(chromedp.Navigate(s.url+path), chromedp.WaitReady("footer"))
		b.sees("live")
		picture := run(b, chromedp.CaptureScreenshot())
		if len(picture) < 10_000 {
			t.Errorf("the picture of %s has %d bytes", path, len(picture))
		}
		if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
