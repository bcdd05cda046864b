//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// server is a process that was started to be measured.
type server struct {
	cmd   *exec.Cmd
	addr  string
	begun time.Time
}

// stop ends the process and waits for it.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	impatience := time.AfterFunc(20*time.Second, func() { _ = s.cmd.Process.Kill() })
	defer impatience.Stop()
	_ = s.cmd.Wait()
}

// kill ends the process at once.
func (s *server) kill() { _, _ = s.cmd.Process.Kill(), s.cmd.Wait() }

// resident returns how much memory the process has, in bytes.
func (s *server) resident() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	return float64(pages) * float64(os.Getpagesize()), err
}

// start runs a command whose output goes to a log in the run's directory.
func (e *env) start(path string, args ...string) (s *server, out io.Reader, err error) {
	log, err := os.OpenFile(filepath.Join(e.dir, filepath.Base(path)+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(path, args...) //nolint:noctx // stopped by hand
	cmd.Dir, cmd.Stderr = e.dir, log
	if out, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, err
	}
	s = &server{cmd: cmd, begun: time.Now()}
	return s, out, cmd.Start()
}

// ready waits until a server prints a line with the word listening, in which a URL names its address.
func (s *server) ready(out io.Reader) error {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "listening") {
			_, rest, _ := strings.Cut(lines.Text(), "http://")
			s.addr, _, _ = strings.Cut(rest, " ")
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return nil
		}
	}
	s.stop()
	return fmt.Errorf("%s is not ready: see its log in the run's directory", s.cmd.Path)
}

// loktd starts the daemon on a store, with a name for a database of SQLite, and returns once it is ready.
func (e *env) loktd(store string) (*server, error) {
	if !strings.Contains(store, ":") {
		store = "sqlite:" + filepath.Join(e.dir, store+".db")
	}
	s, out, err := e.start(filepath.Join(e.dir, "loktd"), "--listen", "127.0.0.1:0", "--store", store,
		"--capacity", "1000000", "--lease-ttl", "1h", "--max-parked", "20000", "--max-parked-each", "20000")
	if err != nil {
		return nil, err
	}
	return s, s.ready(out)
}

// peer runs a program that listens on a free port, which the args name as PORT, and waits until it accepts connections.
// It returns nil if the program is not installed.
func (e *env) peer(name string, args ...string) (*server, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	l, err := listen()
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "PORT", port)
	}
	s, out, err := e.start(path, args...)
	if err != nil {
		return nil, err
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	for s.addr = addr; time.Since(s.begun) < 10*time.Second; time.Sleep(50 * time.Millisecond) {
		if c, err := dial(addr); err == nil {
			_ = c.Close()
			return s, nil
		}
	}
	s.stop()
	return nil, fmt.Errorf("%s does not listen", name)
}

// bare starts a server that decodes a heartbeat, answers like one, and does nothing else. It is this program started
// anew, so that it costs a process of its own, as the daemon does.
func (e *env) bare() (*server, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s, out, err := e.start(exe, "-bare")
	if err != nil {
		return nil, err
	}
	return s, s.ready(out)
}

func bareHandler() error {
	l, err := listen()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+base+"/leases/{id}/heartbeat", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			WorkerID string `json:"worker_id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.WorkerID == "" || r.PathValue("id") == "" {
			http.Error(w, "bad", http.StatusUnprocessableEntity)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct {
			OK        bool   `json:"ok"`
			ExpiresAt string `json:"expires_at"`
		}{true, time.Now().UTC().Format("2006-01-02T15:04:05.000Z")})
	})
	fmt.Printf("listening on http://%s \n", l.Addr())
	return (&http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}).Serve(l)
}
