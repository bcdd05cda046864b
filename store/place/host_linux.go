package place

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// clock returns by how much the kernel makes the clock run off its own rate, in parts in a million, and whether a time
// service says that what it shows is right.
func clock() (ppm int, synced bool, err error) {
	var t unix.Timex
	_, err = unix.Adjtimex(&t)
	const perTick, scale = 100, 1 << 16 // a tick is nominally 10,000 µs, a hundred of them a second; see adjtimex(2)
	return int(t.Tick-10_000)*perTick + int(t.Freq/scale), t.Status&unix.STA_UNSYNC == 0, err
}

// excludes reports whether a lock of the kernel on the directory keeps out who has opened it, too.
func excludes(dir string) (works bool, err error) {
	for range 2 {
		f, err := os.Open(dir)
		if err != nil {
			return false, err
		}
		defer f.Close()
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) { // the second, or somebody else is at it
			return true, nil
		} else if err != nil {
			return false, err
		}
	}
	return false, nil
}
