package sqlstore

import "syscall"

// space returns how many bytes may still be written on the file system of the path, if that is known.
func space(path string) (bytes int64, known bool) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil || st.Blocks == 0 {
		return 0, false
	}
	return int64(st.Bavail) * int64(st.Bsize), true //nolint:gosec,unconvert // no file system is that large; elsewhere Bsize has 32 bits
}
