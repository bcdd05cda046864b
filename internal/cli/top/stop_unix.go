//go:build unix

package top

import (
	"context"
	"os"
	"os/exec"
	"os/signal"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"
)

// stop stops this process and those around it, as a terminal does, if there is a shell that would let them go on.
func stop() tea.Msg {
	if sid, err := unix.Getsid(0); err != nil || sid == unix.Getpgrp() {
		return nil
	}
	return tea.ExecProcess(exec.CommandContext(context.Background(), "sh", "-c", "kill -STOP 0"), nil)() // SIGTSTP is taken
}

// stopping stops when a signal says so.
func stopping(p *tea.Program) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGTSTP)
	for range got {
		p.Send(stop())
	}
}
