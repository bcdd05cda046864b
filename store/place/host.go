package place

import (
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
	all := []Condition{holds(commands, "a command is ended with everything that it has started")}
	if runtime.GOOS != "linux" {
		all[0] = Found(commands, Warn, "on this system a command is ended with its process group only",
			"what has left the group goes on after the lock is lost, and after a guard was killed", "run on Linux what must not")
	}
	if _, err := os.ReadFile("/proc/pressure/cpu"); err != nil {
		return append(all, Found(pressure, Unknown, "the kernel does not tell how busy the machine is", "--pressure holds nothing back",
			"boot a Linux kernel with psi=1"))
	}
	return append(all, holds(pressure, "told by the kernel"))
}

// Files returns the conditions for lock files in or below the directory, which must exist.
func Files(dir string) []Condition {
	kind, local := process.LocalFS(dir)
	fs := holds(filesystem, orKind(kind)+", which is local")
	if !local {
		fs = Found(filesystem, Warn, fmt.Sprintf("%s is on %s, which other hosts or programs may have a say in", dir, kind),
			"locks hold between processes of this host at most: another host may let a second holder in",
			"keep the locks on a local disk with LOKT_ROOT, or use a server for several hosts; --prove tries this one from this host")
	}
	locks := holds(kernelLocks, "one open file keeps another out")
	if works, err := excludes(dir); err != nil {
		locks = Found(kernelLocks, Unknown, "not tried: "+err.Error(), "two may hold a lock", "let processes race: --prove")
	} else if !works {
		locks = Found(kernelLocks, Fail, dir+" is locked by two at once: the file system does not keep locks",
			"two may hold a lock", "choose another place with LOKT_ROOT or --root")
	}
	return []Condition{fs, locks, onDisk(disk, dir, kind), seesProcesses()}
}

func orKind(kind string) string {
	if kind == "" {
		return "of a kind that is not known"
	}
	return kind
}

// SQLite is a database of SQLite in the file.
func SQLite(path string) Ask {
	dir := filepath.Dir(path)
	kind, local := process.LocalFS(dir)
	file := holds(dbFile, orKind(kind)+", which is local")
	if !local {
		file = Found(dbFile, Warn, fmt.Sprintf("the database is on %s, which other hosts or programs may have a say in", kind),
			"two processes may have the database at once, and damage it", "keep it on a local disk, or use PostgreSQL or etcd")
	}
	return func(context.Context) []Condition { return []Condition{file, onDisk(dbDisk, dir, kind)} }
}

// onDisk finds out whether what is flushed is there after a loss of power.
func onDisk(name, dir, kind string) Condition {
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
		before, after, ok := strings.Cut(line, " - ")
		rest := strings.Fields(after)
		if !ok || len(f) < 6 || len(rest) < 3 || len(strings.Fields(before)) < 6 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		if rel, err := filepath.Rel(at, dir); err == nil && rel != ".." && !strings.HasPrefix(rel, "../") && len(at) >= longest {
			longest, options = len(at), f[5]+","+rest[2]
		}
	}
	return options
}

func boot() Condition {
	if _, ok := process.Monotonic(); !ok || process.BootID() == "" {
		return Found(bootClock, Warn, "there is no clock that all processes share and nobody can set, or the boot has no name",
			"the wall clock says what is expired: set forward, it ends leases early, and set back, late", "let NTP slew the clock, and not step it")
	}
	return holds(bootClock, "what is expired is judged by a clock that nobody can set")
}

// seesProcesses finds out whether the death of processes can be seen.
func seesProcesses() Condition {
	if runtime.GOOS != "linux" {
		return holds(processes, "known by their IDs and the times of their start")
	}
	self, err := os.Readlink("/proc/self")
	_, first := os.Stat("/proc/1")
	switch {
	case err != nil || self != strconv.Itoa(os.Getpid()):
		return Found(processes, Warn, "/proc shows processes of another namespace, or none",
			"a lease with --pid lasts for its TTL though the process has died, and agents are told apart by session only", "mount /proc anew")
	case first != nil:
		return Found(processes, Warn, "/proc hides the processes of other users (hidepid)",
			"those that hold a lease with --pid count as alive until its TTL is over", "mount /proc with hidepid=0, or share locks within one user")
	}
	return holds(processes, "those of this namespace can be seen; any others count as alive until the TTL, but guards by their kernel locks")
}

const runaway = "a holder may believe in a lease that has ended for everybody else"

// Rate returns how fast the clock runs, for who holds locks and for who keeps them.
func Rate() Condition {
	const most = 10_000 // parts in a million, 1 %
	ppm, _, err := clock()
	switch {
	case err != nil:
		return Found(clockRate, Unknown, "the system does not tell by how much it corrects the clock", runaway, "")
	case max(ppm, -ppm) > most:
		return Found(clockRate, Warn, fmt.Sprintf("the clock is made to run off by %d parts in a million, which is more than 1 %%", ppm),
			runaway, "reset it with adjtimex --tick 10000 --frequency 0")
	}
	return holds(clockRate, fmt.Sprintf("corrected by %d parts in a million", ppm))
}

func wall() Condition {
	if _, synced, err := clock(); err != nil || !synced {
		return Found(wallClock, Unknown, "no time service says that it is right",
			"tokens may fall if it is set back and an older copy of the locks is put in their place", "run an NTP client")
	}
	return holds(wallClock, "kept by a time service")
}
