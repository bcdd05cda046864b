package dashboard_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// BenchmarkOpenPages tells which part of a core a loktd takes for 500 pages that are open: each follows what happens and is
// fetched again when something has changed, as a browser does. Run it with -benchtime 1x: each takes 20 seconds.
func BenchmarkOpenPages(b *testing.B) {
	for _, c := range []struct {
		name  string
		pages int
		every time.Duration // between two changes; 0: there are none
	}{{"no page", 0, 0}, {"500 pages, no change", 500, 0}, {"500 pages, a change every 10 s", 500, 10 * time.Second}} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				share := openPages(b, c.pages, c.every)
				b.ReportMetric(100*share, "%core")
			}
		})
	}
}

// openPages returns the part of a core that a daemon takes for so many pages.
func openPages(b *testing.B, pages int, every time.Duration) float64 {
	dir, err := programs.Dir()
	if err != nil {
		b.Fatal(err)
	}
	c := exec.Command(filepath.Join(dir, "loktd"), "--listen", "127.0.0.1:0", "--store", "sqlite:"+filepath.Join(b.TempDir(), "loktd.db"))
	out, err := c.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), "listening on ")
	if err != nil || !ok {
		b.Fatal(line, err)
	}
	client, err := httpapi.New(url, httpapi.ClientOptions{})
	if err != nil {
		b.Fatal(err)
	}
	change := func(name string) {
		if _, err := client.Acquire(b.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "ana", AnySession: true}, TTL: time.Hour}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 50 {
		change(fmt.Sprintf("lock-%d", i))
	}
	ctx, stop := context.WithCancel(b.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var fetched atomic.Int64
	browser := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: pages}}
	for range pages {
		all.Go(func() { page(ctx, b, browser, url, &fetched) })
	}
	for fetched.Load() < int64(pages) {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(2 * time.Second) // what opening them took is not meant
	const long = 20 * time.Second
	before, began, first := cpu(b, c.Process.Pid), time.Now(), fetched.Load()
	for i := 0; time.Since(began) < long; i++ {
		if every == 0 {
			time.Sleep(long)
			continue
		}
		change(fmt.Sprintf("change-%d", i))
		time.Sleep(every)
	}
	share := float64(cpu(b, c.Process.Pid)-before) / float64(time.Since(began))
	if every > 0 && fetched.Load() == first {
		b.Error("no page was fetched again")
	}
	return share
}

// page follows what happens and fetches the page, as its script does, until ctx ends.
func page(ctx context.Context, b *testing.B, browser *http.Client, url string, fetched *atomic.Int64) {
	get := func(path string) *http.Response {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
		if err != nil {
			b.Error(err)
			return nil
		}
		r.Header.Set("Accept", "text/html")
		answer, err := browser.Do(r)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			b.Error(err)
			return nil
		}
		return answer
	}
	stream := get("/live")
	if stream == nil {
		return
	}
	defer stream.Body.Close()
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
		if lines.Text() != "event: changed" {
			continue
		}
		if answer := get("/"); answer != nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
			fetched.Add(1)
		}
	}
}

// cpu returns what the process has taken so far, to 10 ms: see proc(5).
func cpu(b *testing.B, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
