package care

import (
	"os"

	"golang.org/x/sys/unix"
)

// space returns how many bytes and files may still be written on the file system of the path, or -1 if it does not say.
func space(path string) (bytes, files int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return -1, -1, err
	}
	bytes, files = int64(st.Bavail*uint64(st.Bsize)), int64(st.Ffree) //nolint:gosec // no file system is that large
	if os.Geteuid() == 0 {
		bytes = int64(st.Bfree * uint64(st.Bsize)) //nolint:gosec // as above
	}
	if st.Blocks == 0 {
		bytes = -1
	}
	if st.Files == 0 {
		files = -1
	}
	return bytes, files, nil
}
