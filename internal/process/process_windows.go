package process

import (
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// BootID returns "": Windows has no ID for a boot that all users can read. A record of an earlier boot is then judged
// by process ID and start time alone.
func BootID() string { return "" }

// namespace is empty: Windows has no PID namespaces that a process could tell apart.
func namespace() string { return "" }

// TimeNamespace returns "": Windows has no time namespaces.
func TimeNamespace() string { return "" }

// asleep returns 0: Go's own clock goes on while Windows sleeps, as the interrupt time that it reads does.
func asleep() time.Duration { return 0 }

// Monotonic returns false: without a boot ID, readings of different boots could not be told apart.
func Monotonic() (reading time.Duration, ok bool) { return 0, false }

func sessionID() int {
	var id uint32
	if err := windows.ProcessIdToSessionId(uint32(os.Getpid()), &id); err != nil {
		return 0
	}
	return int(id)
}

// lookUp tells nothing: it is not known here.
func lookUp(int) (r Relative, parent int, ok bool) { return r, 0, false }

// Args returns nil: it is not known here.
func Args(int) []string { return nil }

func ownStart() int64 { return inspect(os.Getpid()).start }

// inspect gives start times in nanoseconds since 1970.
func inspect(pid int) sight {
	h, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION|windows.SYNCHRONIZE, false, uint32(pid))
	if err != nil {
		// "Invalid parameter" is what Windows says of an ID that nobody has.
		return sight{exists: err != windows.ERROR_INVALID_PARAMETER}
	}
	defer windows.CloseHandle(h)
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(h, &created, &exited, &kernel, &user); err != nil {
		return sight{exists: true}
	}
	// A process that has ended keeps its ID while somebody has a handle.
	ended, err := windows.WaitForSingleObject(h, 0)
	return sight{exists: true, zombie: err == nil && ended == windows.WAIT_OBJECT_0, start: created.Nanoseconds()}
}
