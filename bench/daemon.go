package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
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
	cmd  *exec.Cmd
	addr string
	log  string
}

// stop ends the process and waits for it.
func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		<-done
	}
}

// resident returns how much memory the process has, in bytes.
func (s *server) resident() (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	return float64(pages) * float64(os.Getpagesize()), err
}

// settle waits until the process has next to nothing to do, for a minute at most.
func (s *server) settle() error {
	const look = 500 * time.Millisecond
	last := time.Duration(-1)
	for range 120 {
		used, err := s.cpu()
		if err != nil {
			return err
		}
		if last >= 0 && used-last < look/20 {
			return nil
		}
		last = used
		time.Sleep(look)
	}
	return errors.New(s.cmd.Path + " does not come to rest")
}

// cpu returns how much time the process has used of the CPUs, to a hundredth of a second.
func (s *server) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ") // the command's name may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("unexpected: %q", b)
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime: proc(5)
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}

// loktd starts the daemon on a database of that name in the run's directory, and returns once it is ready, with the time
// that took.
func (e *env) loktd(database string, flags ...string) (*server, time.Duration, error) {
	return e.loktdOn(cmp.Or(e.store, "sqlite:"+filepath.Join(e.dir, database)), flags...)
}

// loktdOn starts the daemon on a store.
func (e *env) loktdOn(store string, flags ...string) (*server, time.Duration, error) {
	command := append([]string{filepath.Join(e.dir, "loktd"), "serve", "--listen", "127.0.0.1:0", "--store", store}, flags...)
	if e.wrap != nil {
		command = e.wrap(command)
	}
	return startServer(e.dir, command[0], command[1:]...)
}

// startServer runs a command until it prints a line with the word listening, in which an http URL names its address.
func startServer(dir, path string, args ...string) (*server, time.Duration, error) {
	log := filepath.Join(dir, filepath.Base(path)+".log")
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = f.Close() }()
	cmd := exec.Command(path, args...) //nolint:noctx // stopped by hand
	cmd.Stderr = f
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, 0, err
	}
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	s := &server{cmd: cmd, log: log}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), "listening") {
			continue
		}
		took := time.Since(begun)
		_, rest, _ := strings.Cut(lines.Text(), "http://")
		s.addr, _, _ = strings.Cut(rest, " ")
		go func() { _, _ = io.Copy(io.Discard, out) }()
		return s, took, nil
	}
	s.stop()
	return nil, 0, fmt.Errorf("%s is not ready: see %s", filepath.Base(path), log)
}

// startPeer runs a peer that listens on a free port, which the args name as PORT, and waits until it accepts connections.
// It returns nil if the program is not installed.
func (e *env) startPeer(name string, args ...string) (*server, error) {
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
	log, err := os.Create(filepath.Join(e.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	command := append([]string{path}, args...)
	if e.wrap != nil {
		command = e.wrap(command)
	}
	cmd := exec.Command(command[0], command[1:]...) //nolint:noctx // stopped by hand
	cmd.Dir, cmd.Stdout, cmd.Stderr = e.dir, log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, addr: addr, log: log.Name()}
	for range 200 {
		if c, err := dial(addr); err == nil {
			_ = c.Close()
			return s, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.stop()
	return nil, fmt.Errorf("%s does not listen: see %s", name, log.Name())
}
