package process

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// BootID returns the ID of the kernel's boot, or "" if the kernel does not tell.
func BootID() string { return bootID() }

var bootID = sync.OnceValue(func() string {
	buf := make([]byte, 64)
	data, err := readFile("/proc/sys/kernel/random/boot_id", buf)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(data))
})

// initialTime is the inode of the time namespace that the kernel starts with.
const initialTime = "4026531834"

// namespace returns what must be equal for a process ID and a start time to mean the same: the inode of the PID
// namespace and, because start times are told relative to it, that of the time namespace unless that is the initial one.
func namespace() string {
	pid := inode("/proc/self/ns/pid")
	if t := TimeNamespace(); pid != "" && t != "" && t != initialTime {
		return pid + "+" + t
	}
	return pid
}

// TimeNamespace returns the inode of the time namespace of the calling process, or "" if the kernel has none.
// Readings of Monotonic can be compared only within one.
func TimeNamespace() string { return timeNamespace() }

var timeNamespace = sync.OnceValue(func() string { return inode("/proc/self/ns/time") })

// inode returns the number in a link such as "pid:[4026531836]".
func inode(link string) string {
	buf := make([]byte, 64)
	n, err := unix.Readlink(link, buf)
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(buf[:n]), "[")
	number, _, _ := strings.Cut(rest, "]")
	return number
}

// Monotonic returns the reading of the clock that no clock step moves, that stands still while the machine sleeps, and
// that all processes of one boot and one time namespace share. ok is false where there is no such clock.
func Monotonic() (reading time.Duration, ok bool) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, false
	}
	return time.Duration(ts.Nano()), true
}

// asleep returns for how long the machine has slept since the boot, or a moment less.
func asleep() time.Duration {
	var all, awake unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &all) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &awake) != nil {
		return 0
	}
	return time.Duration(all.Nano() - awake.Nano())
}

func ownStart() int64 {
	s, _ := readStat("self")
	return s.start
}

// ownProc reports whether /proc shows process IDs as this process knows them. In a new PID namespace it does not
// until it has been mounted anew, and then entries of the same number are of other processes.
var ownProc = sync.OnceValue(func() bool {
	buf := make([]byte, 16)
	n, err := unix.Readlink("/proc/self", buf)
	return err == nil && string(buf[:n]) == strconv.Itoa(os.Getpid())
})

func inspect(pid int) sight {
	if name, ok := procName(pid); ok {
		if s, ok := readStat(name); ok {
			return sight{exists: true, zombie: s.ended(), start: s.start}
		}
	}
	// It is gone, or hidden from this user. Whoever may not signal it learns that it exists all the same.
	return sight{exists: !errors.Is(unix.Kill(pid, 0), unix.ESRCH)}
}

// procName returns the name in /proc of a process. If /proc is of another PID namespace, the kernel tells the number of a
// process there in the description of a descriptor of it.
func procName(pid int) (name string, ok bool) {
	if ownProc() {
		return strconv.Itoa(pid), true
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return "", false
	}
	defer closeFD(fd)
	buf := make([]byte, 1024)
	data, err := readFile("/proc/self/fdinfo/"+strconv.Itoa(fd), buf)
	if err != nil {
		return "", false
	}
	_, rest, _ := bytes.Cut(data, []byte("\nPid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	n, err := strconv.Atoi(string(bytes.TrimSpace(line)))
	return strconv.Itoa(n), err == nil && n > 0
}

// stat is what /proc/PID/stat tells of a process.
type stat struct {
	pid     int
	state   byte
	parent  int
	session int
	tty     bool
	threads int
	start   int64 // clock ticks since boot
	name    string
}

// ended reports whether all threads have. A leader that ended before its threads is a zombie, too.
func (s stat) ended() bool { return (s.state == 'Z' || s.state == 'X') && s.threads <= 1 }

// readStat reads /proc/NAME/stat; ok is false if there is none, or none for this user.
func readStat(name string) (s stat, ok bool) {
	buf := make([]byte, 1024)
	data, err := readFile("/proc/"+name+"/stat", buf)
	if err != nil {
		return stat{}, false
	}
	return parseStat(data)
}

// parseStat reads the fields by proc_pid_stat(5). The second, the command, may contain anything, spaces and parentheses
// included, but is followed by the last parenthesis.
func parseStat(line []byte) (stat, bool) {
	first, last := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if first < 1 || last < first {
		return stat{}, false
	}
	var s stat
	var err error
	if s.pid, err = strconv.Atoi(string(bytes.TrimSpace(line[:first]))); err != nil {
		return stat{}, false
	}
	s.name = string(line[first+1 : last])
	field := 3
	for f := range bytes.FieldsSeq(line[last+1:]) {
		switch field {
		case 3:
			s.state = f[0]
		case 4:
			s.parent, err = strconv.Atoi(string(f))
		case 6:
			s.session, err = strconv.Atoi(string(f))
		case 7:
			s.tty = string(f) != "0"
		case 20:
			s.threads, err = strconv.Atoi(string(f))
		case 22:
			s.start, err = strconv.ParseInt(string(f), 10, 64)
			return s, err == nil
		}
		if err != nil {
			return stat{}, false
		}
		field++
	}
	return stat{}, false
}

// readFile reads what one read of a file of /proc gives, without the cost of an os.File.
func readFile(path string, buf []byte) ([]byte, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	defer closeFD(fd)
	n, err := retry(func() (int, error) { return unix.Read(fd, buf) })
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}

// lookUp returns a process as Lineage does, and its parent.
func lookUp(pid int) (r Relative, parent int, ok bool) {
	if !ownProc() {
		return r, 0, false
	}
	s, ok := readStat(strconv.Itoa(pid))
	return Relative{PID: pid, Start: s.start, Name: s.name, Session: s.session, Terminal: s.tty}, s.parent, ok
}

// Stat returns the name of a process's program, shortened, its parent and how many threads it has.
func Stat(pid int) (name string, parent, threads int, ok bool) {
	s, ok := readStat(strconv.Itoa(pid))
	return s.name, s.parent, s.threads, ok
}

// Args returns how a process was called, as far as 4 KiB tell, or nil.
func Args(pid int) []string {
	data, err := readFile("/proc/"+strconv.Itoa(pid)+"/cmdline", make([]byte, 4096))
	if err != nil || len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
}

// closeFD closes a descriptor from which there is nothing to lose.
func closeFD(fd int) { _ = unix.Close(fd) }

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
