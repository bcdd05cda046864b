package filestore

import (
	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/faultfs"
)

// birth returns when the file was made, in nanoseconds since 1970, or 0 if the file system does not say.
func birth(f faultfs.File) int64 {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BTIME, &st)
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}
