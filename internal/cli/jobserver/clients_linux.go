package jobserver

import (
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/lokt-dev/lokt/internal/foreign"
	"github.com/lokt-dev/lokt/internal/process"
)

// heldByClients returns how many tokens the processes that have the file open can have at most. A make has one for each command
// that it runs, but the first, and a shell has none. Others have no more than they run programs or threads.
func heldByClients(file fs.FileInfo) (most int) {
	children := map[int]int{}
	var clients []func() int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		name, parent, threads, ok := process.Stat(pid)
		children[parent]++
		if has, _ := foreign.Has(pid, file); !ok || len(has) == 0 { // what may not be looked at is no client
			continue
		}
		clients = append(clients, func() int {
			switch {
			case isMake(name):
				return max(0, children[pid]-1)
			case slices.Contains([]string{"sh", "bash", "dash", "zsh", "ksh"}, name):
				return 0
			}
			return max(children[pid], threads)
		})
	}
	for _, held := range clients {
		most += held()
	}
	return most
}
