//go:build unix

package job

import (
	"os/exec"
	"syscall"
)

// apart keeps what is sent to the worker's process group, by a terminal for example, from the command.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills what is left of a process group. Its number is not given to others while any of it runs.
func killGroup(id int) { _ = syscall.Kill(-id, syscall.SIGKILL) } // fails if nothing is left
