//go:build unix && !(linux && (amd64 || arm64))

package guard

import "syscall"

func noteSenders() {}

// sentByProcess reports false: who sent a signal is not known here.
func sentByProcess(syscall.Signal) bool { return false }
