// Package machine tells how large this machine is for the processes of this one's control group, and how busy. It reads what
// Linux shows of itself; elsewhere the number of cores is known, and nothing else.
package machine

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Machine is where to look. The zero value is this machine.
type Machine struct {
	Root  string // of the file system, in tests
	cores int    // instead of what the system says, in tests
}

// PerSlot is how much memory, in bytes, a slot is meant to have: a compiler or a linker of a large program.
const PerSlot = 2 << 30

// Slots returns how many commands the machine has room for at once: one for each core and for each PerSlot of memory, at
// least one.
func (m Machine) Slots() int {
	slots := m.Cores()
	if memory := m.Memory(); memory > 0 {
		slots = min(slots, int(memory/PerSlot))
	}
	return max(1, slots)
}

// Cores returns how many cores this process may keep busy: those that it may run on, or fewer if a control group has a
// quota, rounded up.
func (m Machine) Cores() int {
	cores := cmp.Or(m.cores, runtime.NumCPU())
	limit := func(quota, period string) {
		q, _ := strconv.ParseFloat(quota, 64) // what is no number, such as "max", is no limit, and so is -1
		p, _ := strconv.ParseFloat(period, 64)
		if q > 0 && p > 0 {
			cores = min(cores, int(math.Ceil(q/p)))
		}
	}
	for _, dir := range m.groups("") {
		quota, period, _ := strings.Cut(m.line(dir, "cpu.max"), " ")
		limit(quota, period)
	}
	for _, dir := range m.groups("cpu") {
		limit(m.line(dir, "cpu.cfs_quota_us"), m.line(dir, "cpu.cfs_period_us"))
	}
	return max(1, cores)
}

// Memory returns how many bytes of memory this process and those beside it may have: the machine's, or fewer if a control
// group has a limit; 0 if that is not known.
func (m Machine) Memory() int64 {
	var all int64
	data, _ := os.ReadFile(filepath.Join(m.root(), "proc/meminfo"))
	for line := range strings.Lines(string(data)) {
		if n, _ := fmt.Sscanf(line, "MemTotal: %d kB", &all); n == 1 {
			all <<= 10
			break
		}
	}
	for controller, file := range map[string]string{"": "memory.max", "memory": "memory.limit_in_bytes"} {
		for _, dir := range m.groups(controller) {
			if n, err := strconv.ParseInt(m.line(dir, file), 10, 64); err == nil && n > 0 {
				all = min(all, n) // a limit beyond what there is is none
			}
		}
	}
	return all
}

func (m Machine) root() string { return cmp.Or(m.Root, "/") }

// line returns the first line of a file, without spaces around it; nothing if it cannot be read.
func (m Machine) line(dir, file string) string {
	data, _ := os.ReadFile(filepath.Join(dir, file))
	text, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(text)
}

// groups returns the directories of this process's control group and of those around it, of a controller of version 1, or of
// version 2 for none. In a container the outermost may be the container's own.
func (m Machine) groups(controller string) (dirs []string) {
	mounts := []string{filepath.Join(m.root(), "sys/fs/cgroup", controller)}
	if controller == "" {
		mounts = append(mounts, filepath.Join(mounts[0], "unified")) // beside version 1
	}
	data, _ := os.ReadFile(filepath.Join(m.root(), "proc/self/cgroup"))
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 || !slices.Contains(strings.Split(f[1], ","), controller) {
			continue
		}
		for path := filepath.Clean("/" + f[2]); ; path = filepath.Dir(path) {
			for _, mount := range mounts {
				dirs = append(dirs, filepath.Join(mount, path))
			}
			if path == "/" {
				break
			}
		}
	}
	return dirs
}

// Pressure returns what Linux measures on: of cpu, io and memory the one for which some process waited in the largest part of
// the last ten seconds, and that part in percent. It is of the whole machine or of this process's control group, whichever is
// more; 0 if that is not known.
func (m Machine) Pressure() (resource string, percent float64) {
	for _, r := range []string{"cpu", "io", "memory"} {
		lines := []string{m.line(filepath.Join(m.root(), "proc/pressure"), r)} // the first is about some, and the second about all
		if dirs := m.groups(""); len(dirs) > 0 {
			lines = append(lines, m.line(dirs[0], r+".pressure"))
		}
		for _, f := range strings.Fields(strings.Join(lines, " ")) {
			if v, ok := strings.CutPrefix(f, "avg10="); ok {
				if n, _ := strconv.ParseFloat(v, 64); n > percent {
					resource, percent = r, n
				}
			}
		}
	}
	return resource, percent
}

const units = "KMGT"

// ParseSize reads a number of bytes, such as 512M or 4G, in powers of 1024.
func ParseSize(text string) (int64, error) {
	number, shift := strings.TrimSuffix(strings.TrimSuffix(text, "B"), "i"), 0
	if n := len(number); n > 0 {
		if i := strings.IndexByte(units, number[n-1]&^0x20); i >= 0 {
			number, shift = number[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if n = math.Ldexp(n, shift); err != nil || !(n >= 1 && n < 1<<50) {
		return 0, fmt.Errorf("%q is no amount of memory, such as 512M or 4G", text)
	}
	return int64(n), nil
}

// Size writes a number of bytes for people, as ParseSize reads it.
func Size(n int64) string {
	unit, f := "", float64(n)
	for i := 0; i < len(units) && f >= 1024; i++ {
		f, unit = f/1024, units[i:i+1]
	}
	return strconv.FormatFloat(math.Round(f*10)/10, 'f', -1, 64) + unit
}
