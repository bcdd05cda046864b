package care

import (
	"os"

	"golang.org/x/sys/unix"
)

// space returns how much may still be written on the file system of the path: bytes and files, or -1 if the file system
// does not say.
func space(path string) (bytes, files int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return -1, -1, err
	}
	blocks := st.Bavail
	if os.Geteuid() == 0 {
		blocks = st.Bfree
	}
	bytes, files = int64(blocks)*st.Bsize, int64(st.Ffree) //nolint:gosec // no file system is that large
	if st.Blocks == 0 {
		bytes = -1
	}
	if st.Files == 0 {
		files = -1
	}
	return bytes, files, nil
}
