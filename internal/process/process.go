// Package process tells which process this is, and whether another one still lives.
//
// Death is claimed only if it is certain: a process ID means something only on one boot of one kernel and in one PID
// namespace, and is used again after its process has gone. What cannot be known is Unknown, which callers treat as
// alive until its time to live has passed. Where the kernel has them (Linux), locks on open files prove death and life
// better than any process ID does; see LockByte.
package process

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strconv"
	"sync"

	"github.com/lokt-dev/lokt"
)

// State is what can be said about a process.
type State int

// The states. Only Dead is proof of anything.
const (
	Unknown State = iota
	Alive
	Dead
)

func (s State) String() string {
	switch s {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	}
	return "unknown"
}

// The errors that callers tell apart, with errors.Is.
var (
	ErrInvalidPID = errors.New("not a process ID")
	ErrNoProcess  = errors.New("no such process")
)

// kernel is what this process knows of where it runs. It cannot change while the process lives.
type kernel struct{ boot, namespace string }

var (
	here = sync.OnceValue(func() kernel { return kernel{BootID(), namespace()} })
	self = sync.OnceValue(func() lokt.Process {
		k, pid := here(), os.Getpid()
		return lokt.Process{PID: pid, Start: ownStart(), Boot: k.boot, Namespace: k.namespace}
	})
)

// Self returns the calling process. What the system does not tell is left empty; Liveness always is. The
// system is asked once.
func Self() lokt.Process { return self() }

// Lookup returns a process of this host by its ID as this process sees it. The error is ErrInvalidPID or ErrNoProcess;
// a zombie is no process.
func Lookup(pid int) (lokt.Process, error) {
	if !validPID(pid) {
		return lokt.Process{}, fmt.Errorf("%w: %d", ErrInvalidPID, pid)
	}
	s := inspect(pid)
	if !s.exists || s.zombie {
		return lokt.Process{}, fmt.Errorf("%w: %d", ErrNoProcess, pid)
	}
	k := here()
	return lokt.Process{PID: pid, Start: s.start, Boot: k.boot, Namespace: k.namespace}, nil
}

// sight is what the kernel tells about a process ID.
type sight struct {
	exists bool
	zombie bool  // it has ended, threads and all, but its parent has not looked yet
	start  int64 // 0 if it is not told
}

// Check says whether p lives: the process itself, or the child that it runs if it names one. sameHost says whether it was
// recorded on a host of this name.
//
// A process of another boot is dead if the host is the same, and unknown otherwise. One of another PID namespace is
// unknown. A process ID that no longer exists, or has another start time, means death. So does a zombie, unless threads
// of it still run. If p does not say when it started, existence is life; if it does and the kernel does not, nothing
// is known. Without boot and namespace, as older programs record processes, the same host has to do.
func Check(p lokt.Process, sameHost bool) State {
	return judge(p, sameHost, here(), inspect)
}

// CheckOn is Check as a process of another boot sees it, which started says to be there, and since when.
func CheckOn(boot string, started func(pid int) (start int64, exists bool), p lokt.Process, sameHost bool) State {
	return judge(p, sameHost, kernel{boot: boot}, func(pid int) sight {
		start, exists := started(pid)
		return sight{exists: exists, start: start}
	})
}

func judge(p lokt.Process, sameHost bool, here kernel, inspect func(pid int) sight) State {
	sameBoot := p.Boot != "" && p.Boot == here.boot
	sameNamespace := p.Namespace == here.namespace
	switch {
	case !validPID(p.PID):
		return Unknown
	case !sameHost && !(sameBoot && sameNamespace && p.Namespace != ""):
		return Unknown // another kernel, or a container of this one that cannot be told from others
	case p.Boot != "" && here.boot != "" && !sameBoot:
		return Dead
	case p.Namespace != "" && !sameNamespace:
		return Unknown
	}
	state := judgePID(inspect(p.PID), p.Start)
	if state == Alive || p.Child == 0 {
		return state
	}
	child := Unknown
	if validPID(p.Child) {
		child = judgePID(inspect(p.Child), p.ChildStart)
	}
	switch {
	case child == Alive:
		return Alive
	case child == Dead && state == Dead:
		return Dead
	}
	return Unknown
}

func judgePID(s sight, start int64) State {
	switch {
	case !s.exists || s.zombie:
		return Dead
	case start == 0:
		return Alive
	case s.start == 0:
		return Unknown
	case s.start != start:
		return Dead // the ID belongs to a later process
	}
	return Alive
}

func validPID(pid int) bool { return pid > 0 && int(int32(pid)) == pid }

// Relative is the calling process, or one that it descends from.
type Relative struct {
	PID      int
	Start    int64  // as lokt.Process.Start
	Name     string // of its program, as the system has it: shortened
	Session  int    // the kernel's, named by the process that began it
	Terminal bool   // its session has one
}

// Lineage returns the calling process, its parent, and so on, as far as this user and this PID namespace can see: on Linux
// and macOS.
func Lineage() []Relative {
	const most = 64
	var all []Relative
	for pid := os.Getpid(); pid > 0 && len(all) < most; {
		r, parent, ok := lookUp(pid)
		if !ok {
			break
		}
		all, pid = append(all, r), parent
	}
	return all
}

// Session returns an ID for the session of the calling process, such as "session-1234-ab12cd34": that of its terminal,
// usually. It is the same for all processes of the session and differs from that of every other session living on the
// host, containers included. It does not depend on the session's leader, which may end long before its session does:
// until the last process of the session has gone the kernel does not use the ID again. Where the leader is outside the
// PID namespace all such processes of the namespace share one ID. On Windows it is the logon session.
func Session() string { return ID("session", int64(sessionID())) }

// ID returns a word for something that numbers tell apart on this boot and in this PID namespace.
func ID(what string, numbers ...int64) string {
	h := fnv.New32a()
	k := here()
	h.Write([]byte(k.boot + "\x00" + k.namespace))
	const zeros = "00000000"
	sum := strconv.FormatUint(uint64(h.Sum32()), 16)
	for _, n := range numbers {
		what += "-" + strconv.FormatInt(n, 10)
	}
	return what + "-" + zeros[len(sum):] + sum
}
