package jobserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/lokt-dev/lokt/internal/process"
)

// heldByClients returns how many tokens the processes that have the file open can have at most. A make has one for each command
// that it runs, but the first, and a shell has none. Others have no more than they run programs or threads.
func heldByClients(file string) (most int) {
	type client struct {
		name    string
		threads int
	}
	children, clients := map[int]int{}, map[int]client{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		name, parent, threads, ok := process.Stat(pid)
		if !ok {
			continue
		}
		children[parent]++
		if opened(pid, file) {
			clients[pid] = client{name, threads}
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
