package place

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/lokt-dev/lokt/internal/process"
)

// Host returns the conditions of this host for who keeps locks.
func Host() []Condition { return []Condition{Rate(), wall(), boot()} }

// Commands returns the conditions for programs that run commands on this host.
func Commands() []Condition {
	all := []Condition{holds("commands", "a command is ended with everything that it has started")}
	if runtime.GOOS != "linux" {
		all[0] = Found("commands", Warn, "on this system a command is ended with its process group only",
			"what has left the group goes on after the lock is lost, and after a guard was killed", "run on Linux what must not")
	}
	if _, err := os.ReadFile("/proc/pressure/cpu"); err != nil {
		return append(all, Found("pressure", Unknown, "the kernel does not tell how busy the machine is", "--pressure holds nothing back",
			"boot a Linux kernel with psi=1"))
	}
	return append(all, holds("pressure", "told by the kernel"))
}

// Files returns the conditions for lock files in or below the directory, which must exist.
func Files(dir string) []Condition {
	locks := holds("kernel-locks", "one open file keeps another out")
	if works, err := excludes(dir); err != nil {
		locks = Found("kernel-locks", Unknown, "not tried: "+err.Error(), "two may hold a lock", "let processes race: --prove")
	} else if !works {
		locks = Found("kernel-locks", Fail, dir+" is locked by two at once: the file system does not keep locks",
			"two may hold a lock", "choose another place with LOKT_ROOT or --root")
	}
	return []Condition{onHost("filesystem", dir, "locks hold between processes of this host at most: another host may let a second holder in",
		"keep the locks on a local disk with LOKT_ROOT, or use a server for several hosts; --prove tries this one from this host"),
		locks, onDisk("disk", dir), seesProcesses()}
}

// SQLite is a database of SQLite in the file.
func SQLite(path string) Ask {
	dir := filepath.Dir(path)
	return func(context.Context) []Condition {
		return []Condition{onHost("database-file", dir, "two processes may have the database at once, and damage it",
			"keep it on a local disk, or use PostgreSQL or etcd"), onDisk("database-disk", dir)}
	}
}

// onHost finds out whether only this host has a say in what is in the directory.
func onHost(name, dir, follows, fix string) Condition {
	kind, local := process.LocalFS(dir)
	if !local {
		return Found(name, Warn, fmt.Sprintf("%s is on %s, which other hosts or programs may have a say in", dir, kind), follows, fix)
	}
	return holds(name, cmp.Or(kind, "of a kind that is not known")+", which is local")
}

// onDisk finds out whether what is flushed is there after a loss of power.
func onDisk(name, dir string) Condition {
	kind, _ := process.LocalFS(dir)
	follows := "what was acknowledged is gone, all or its newest part, after a crash of the host or a loss of power"
	if kind == "tmpfs" || kind == "ramfs" {
		return Found(name, Warn, kind+" is in memory: a restart of the host leaves nothing of it", follows, "choose a directory on a disk")
	}
	options := mountOptions(dir)
	for _, o := range []string{"nobarrier", "barrier=0", "volatile"} {
		if strings.Contains(","+options+",", ","+o+",") {
			return Found(name, Warn, "the file system is mounted with "+o+": it does not wait for the disk", follows, "mount it without "+o)
		}
	}
	if options == "" {
		return Found(name, Unknown, "how the file system is mounted is not told", follows, "")
	}
	return holds(name, "the file system waits for the disk; what the disk itself does cannot be seen")
}

// mountOptions returns those of the mount and of its file system on which dir is, as Linux tells; empty if it does not.
func mountOptions(dir string) (options string) {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	data, _ := os.ReadFile("/proc/self/mountinfo") // see proc_pid_mountinfo(5)
	longest := -1
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		at := strings.ReplaceAll(f[4], `\040`, " ")
		if rel, err := filepath.Rel(at, dir); err == nil && filepath.IsLocal(rel) && len(at) >= longest {
			longest, options = len(at), f[5]+","+f[len(f)-1]
		}
	}
	return options
}

func boot() Condition {
	if _, ok := process.Monotonic(); !ok || process.BootID() == "" {
		return Found("boot-clock", Warn, "there is no clock that all processes share and nobody can set, or the boot has no name",
			"the wall clock says what is expired: set forward, it ends leases early, and set back, late", "let NTP slew the clock, and not step it")
	}
	return holds("boot-clock", "what is expired is judged by a clock that nobody can set")
}

// seesProcesses finds out whether the death of processes can be seen.
func seesProcesses() Condition {
	if runtime.GOOS != "linux" {
		return holds("processes", "known by their IDs and the times of their start")
	}
	self, err := os.Readlink("/proc/self")
	_, first := os.Stat("/proc/1")
	if err != nil || first != nil || self != strconv.Itoa(os.Getpid()) {
		return Found("processes", Warn, "/proc shows processes of another namespace, or not those of other users (hidepid), or none",
			"a lease with --pid lasts for its TTL though the process has died, and agents may be told apart by session only", "mount /proc anew, with hidepid=0")
	}
	return holds("processes", "those of this namespace can be seen; any others count as alive until the TTL, but guards by their kernel locks")
}

const runaway = "a holder may believe in a lease that has ended for everybody else"

// Rate returns how fast the clock runs, for who holds locks and for who keeps them.
func Rate() Condition {
	const most = 10_000 // parts in a million, 1 %
	ppm, _, err := clock()
	switch {
	case err != nil:
		return Found("clock-rate", Unknown, "the system does not tell by how much it corrects the clock", runaway, "")
	case max(ppm, -ppm) > most:
		return Found("clock-rate", Warn, fmt.Sprintf("the clock is made to run off by %d parts in a million, which is more than 1 %%", ppm),
			runaway, "reset it with adjtimex --tick 10000 --frequency 0")
	}
	return holds("clock-rate", fmt.Sprintf("corrected by %d parts in a million", ppm))
}

func wall() Condition {
	if _, synced, err := clock(); err != nil || !synced {
		return Found("wall-clock", Unknown, "no time service says that it is right",
			"tokens may fall if it is set back and an older copy of the locks is put in their place", "run an NTP client")
	}
	return holds("wall-clock", "kept by a time service")
}
