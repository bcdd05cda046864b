//go:build unix && !linux

package guard

import "syscall"

// reapsQuickly: after waitUnreaped, to reap may wait as long as the command runs.
const reapsQuickly = false

// waitUnreaped returns at once: waiting without reaping is not to be had here, so a signal that arrives in the moment in
// which the command ends may be sent to a process ID that is free again.
func waitUnreaped(int) {}

// dying asks for nothing: no system but Linux tells a process of its parent's death by a signal.
func dying(bool) *syscall.SysProcAttr { return nil }
