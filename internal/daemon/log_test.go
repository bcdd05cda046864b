//go:build unix

package daemon_test

import (
	"bufio"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestDaemonOutlivesWhoReadsItsLog(t *testing.T) {
	cmd := command(t, nil, "--store", "memory:", "--listen", "127.0.0.1:0", "--log-level", "debug")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := launch(t, cmd, w)
	w.Close()
	r.Close()
	for range 3 {
		p.api().do(t, http.StatusOK, "POST", scheduler+"/jobs", body{})
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// Promise S-272.
func TestALogThatNobodyTakesHoldsUpNobody(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := launch(t, command(t, nil, "--store", "memory:", "--listen", "127.0.0.1:0", "--log-level", "debug"), w)
	w.Close()
	a := p.api()
	ask := func() { a.do(t, http.StatusNotFound, "GET", "/"+strings.Repeat("x", 100), nil) }
	for range 2000 { // more than a pipe and a thousand lines
		ask()
	}
	lines, taken := bufio.NewScanner(r), make(chan bool, 1)
	go func() {
		for lines.Scan() {
			if strings.Contains(lines.Text(), "were dropped") {
				taken <- true
				return
			}
		}
		taken <- false
	}()
	if !<-taken {
		t.Error("nothing says that lines are missing")
	}
	for range 2000 {
		ask()
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
