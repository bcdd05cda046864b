package filestore

import (
	"golang.org/x/sys/unix"

	"github.com/lokt-dev/lokt/internal/vfs"
)

// identify tells which file f is.
func identify(f vfs.File) (fileID, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return identifyByStat(f)
	}
	id := fileID{dev: unix.Mkdev(st.Dev_major, st.Dev_minor), inode: st.Ino, regular: st.Mode&unix.S_IFMT == unix.S_IFREG}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return id, nil
}
