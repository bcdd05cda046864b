package jobserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// heldByClients returns how many tokens the processes that have the file open can have at most. A make has one for each command
// that it runs, but the first, and a shell has none. Others have no more than they run programs or threads.
func heldByClients(file string) (most int) {
	children, clients := map[int]int{}, map[int]process{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, ok := look(pid)
		if !ok {
			continue
		}
		children[p.parent]++
		if opened(pid, file) {
			clients[pid] = p
		}
	}
	for pid, p := range clients {
		switch n := children[pid]; p.name {
		case "make", "gmake":
			most += max(0, n-1)
		case "sh", "bash", "dash", "zsh", "ksh":
		default:
			most += max(n, p.threads)
		}
	}
	return most
}

type process struct {
	name            string
	parent, threads int
}

// look reads proc(5)'s stat of a process. Its name is in parentheses, and may have some itself.
func look(pid int) (p process, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	text := string(data)
	from, to := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if err != nil || from < 0 || to < from {
		return p, false
	}
	f := strings.Fields(text[to+1:])
	if len(f) < 18 {
		return p, false
	}
	p.name = text[from+1 : to]
	p.parent, _ = strconv.Atoi(f[1])
	p.threads, _ = strconv.Atoi(f[17])
	return p, true
}

// opened reports whether a process has the file open. What may not be looked at is no client.
func opened(pid int, file string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		if link, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && link == file {
			return true
		}
	}
	return false
}
