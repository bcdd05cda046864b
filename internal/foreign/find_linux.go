package foreign

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/rows"
)

// find returns the processes that have locks on a file, wait for one, or have it open, and says whom it could not look at. What a
// process has open tells whose a lock is: a lock may outlive the process that took it, in a child that inherits the open
// file. The kernel's list has the rest.
func find(k kind) (found []Process, unseen string, err error) {
	fi, err := os.Stat(k.of)
	if errors.Is(err, fs.ErrNotExist) {
		return []Process{}, "", nil
	}
	table, e1 := os.ReadFile("/proc/locks")
	all, e2 := os.ReadDir("/proc")
	if err = errors.Join(err, e1, e2); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	var hidden []int
	found = []Process{}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		has, err := Has(pid, fi)
		if errors.Is(err, fs.ErrPermission) {
			hidden = append(hidden, pid)
		}
		if len(has) == 0 && k.git != "" && gitAt(pid, k.git) {
			has = []Process{{PID: pid, Lock: inside}}
		}
		found = append(found, has...)
	}
	name := fmt.Sprintf("%02x:%02x:%d", st.Dev>>8&0xfff, st.Dev&0xff|st.Dev>>12&0xfff00, st.Ino)
	for line := range strings.Lines(string(table)) {
		p, file := parse(line)
		isHidden := slices.Contains(hidden, p.PID)
		if file != name || slices.ContainsFunc(found, func(o Process) bool { return o.Lock == p.Lock && (o.PID == p.PID || !isHidden) }) {
			continue
		}
		if !isHidden { // it took the lock for another, and is gone or has closed the file
			p.PID = 0
		}
		found = append(found, p)
	}
	for i := range found {
		found[i].describe()
	}
	if k.made && len(hidden) > 0 && int(st.Uid) != os.Getuid() {
		unseen = "what the processes of its owner do, " + process.NameOf(int(st.Uid))
	}
	return found, unseen, nil
}

// parse reads a line of /proc/locks, or what stands behind "lock:" in one of /proc/PID/fdinfo: 1: FLOCK ADVISORY WRITE 708
// fd:00:1234 0 EOF (proc_locks(5)). The file, as device and inode, is empty if the line tells of no lock that somebody has.
func parse(line string) (p Process, file string) {
	f := strings.Fields(line)
	if len(f) < 8 {
		return p, ""
	}
	pid, _ := strconv.Atoi(f[4]) // the kernel writes numbers: -1 for none
	p = Process{PID: max(pid, 0), Lock: map[string]string{"FLOCK": flock, "POSIX": posix, "OFDLCK": ofd}[f[1]], Shared: f[3] == "READ"}
	if p.Lock == "" { // one that waits, or a lease, which keeps nobody out
		return p, ""
	}
	return p, f[5]
}

// Has returns what a process has of a file: the locks of its open files, or that one is open.
func Has(pid int, file fs.FileInfo) (list []Process, err error) {
	dir, isOpen := filepath.Join("/proc", strconv.Itoa(pid)), false
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	for _, e := range fds {
		if fi, err := os.Stat(filepath.Join(dir, "fd", e.Name())); err != nil || !os.SameFile(fi, file) {
			continue
		}
		isOpen = true
		for line := range strings.Lines(string(small(filepath.Join(dir, "fdinfo", e.Name())))) {
			lock, _ := strings.CutPrefix(line, "lock:")
			p, file := parse(lock)
			if p.PID = pid; file != "" && !slices.Contains(list, p) { // once for all descriptors of one open file
				list = append(list, p)
			}
		}
	}
	if isOpen && len(list) == 0 {
		list = []Process{{PID: pid, Lock: opened}}
	}
	return list, err
}

// gitAt reports whether the process is a git that works in the repository: by its directory, or by what it was told.
func gitAt(pid int, repository string) bool {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	told := string(small(filepath.Join(dir, "cmdline"))) + string(small(filepath.Join(dir, "environ")))
	at, _ := os.Readlink(filepath.Join(dir, "cwd")) // nowhere, if it is not told
	tree := strings.TrimSuffix(repository, "/.git")
	if of := words(small(filepath.Join(repository, "gitdir"))); of != "" { // of a linked worktree
		tree = filepath.Dir(of)
	}
	name, _, _, _ := process.Stat(pid)
	return strings.HasPrefix(name, "git") &&
		(strings.Contains(told, repository) || strings.HasPrefix(at+"/", tree+"/") || strings.HasPrefix(at+"/", repository+"/"))
}

// describe finds out what the process is.
func (p *Process) describe() {
	fi, err := os.Stat(filepath.Join("/proc", strconv.Itoa(p.PID)))
	if p.PID == 0 || err != nil {
		return
	}
	p.Command = rows.Cut(words([]byte(strings.Join(process.Args(p.PID), " "))), 200)
	p.User = process.NameOf(int(fi.Sys().(*syscall.Stat_t).Uid))
	const tick = time.Second / 100    // USER_HZ
	known, _ := process.Lookup(p.PID) // of one that is gone, nothing
	var up float64                    // seconds since boot
	if n, _ := fmt.Sscan(string(small("/proc/uptime")), &up); n == 1 && known.Start > 0 {
		p.Since = time.Now().Add(time.Duration(known.Start)*tick - time.Duration(up*float64(time.Second))).Truncate(time.Second)
	}
}
