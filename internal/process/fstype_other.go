//go:build !linux && !darwin && !windows

package process

// LocalFS returns "" and true: it is not known how to ask on this system.
func LocalFS(path string) (fstype string, local bool) { return "", true }
