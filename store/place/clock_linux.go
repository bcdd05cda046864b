package place

import "golang.org/x/sys/unix"

// clock returns by how much the kernel makes the clock run off its own rate, in parts in a million, and whether a time
// service says that what it shows is right.
func clock() (ppm int, synced bool, err error) {
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return 0, false, err
	}
	const perTick, scale = 100, 1 << 16 // a tick is nominally 10,000 µs, a hundred of them a second; see adjtimex(2)
	return int(t.Tick-10_000)*perTick + int(t.Freq/scale), t.Status&unix.STA_UNSYNC == 0, nil
}
