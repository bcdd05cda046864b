//go:build unix

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/lokt-dev/lokt/internal/testkit/servers"
)

// startPostgres starts a server, or returns nil if there is none on this machine.
func startPostgres() (*postgres, error) {
	p, err := servers.StartPostgres()
	if errors.Is(err, servers.ErrNoPostgres) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &postgres{
		url:  func(schema string) string { return p.URL(p.Addr, schema) },
		exec: p.Exec,
		pids: func() ([]int, error) {
			return family("-p\x00" + p.Addr[strings.LastIndexByte(p.Addr, ':')+1:] + "\x00")
		},
		stop: p.Stop,
	}, nil
}

// family returns the process whose program is postgres and whose arguments contain the text, and its children.
func family(args string) ([]int, error) {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	head := 0
	for _, path := range all {
		b, err := os.ReadFile(path)
		program, _, _ := bytes.Cut(b, []byte{0})
		if err == nil && bytes.HasSuffix(program, []byte("/postgres")) && bytes.Contains(b, []byte(args)) {
			head, _ = strconv.Atoi(filepath.Base(filepath.Dir(path)))
		}
	}
	if head == 0 {
		return nil, errors.New("the server's process is not found")
	}
	pids := []int{head}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", head, head))
	for _, w := range strings.Fields(string(children)) {
		pid, _ := strconv.Atoi(w)
		pids = append(pids, pid)
	}
	return pids, err
}
