//go:build unix

package sim

import "syscall"

const hasFiles = true

// sysInfo is what FileInfo.Sys returns.
func sysInfo(inode uint64, links int) any {
	st := &syscall.Stat_t{Ino: inode}
	for range links { // of a type that differs
		st.Nlink++
	}
	return st
}
