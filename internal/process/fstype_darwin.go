package process

import "golang.org/x/sys/unix"

// LocalFS returns the type of the file system that holds path, and whether it is of this host alone. A path that cannot
// be asked about has type "" and counts as local.
func LocalFS(path string) (fstype string, local bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return "", true
	}
	return unix.ByteSliceToString(s.Fstypename[:]), s.Flags&unix.MNT_LOCAL != 0
}
