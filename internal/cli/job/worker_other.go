//go:build !unix

package job

import "os/exec"

// apart does nothing: here, what a console sends goes to all that are attached to it.
func apart(*exec.Cmd) {}

// killGroup does nothing: what a killed process has started cannot be found here.
func killGroup(int) {}
