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

// stop gives the terminal back and stops the process group, if there is a shell that would let it go on; then it takes the terminal again.
func stop() tea.Msg {
	if sid, err := unix.Getsid(0); err != nil || sid == unix.Getpgrp() {
		return nil
	}
	return tea.ExecProcess(exec.CommandContext(context.Background(), "sh", "-c", "kill -STOP 0"), nil)() // SIGTSTP would come to stopping
}

// stopping does so when SIGTSTP says so.
func stopping(p *tea.Program) {
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGTSTP)
	for range got {
		p.Send(stop())
	}
}
