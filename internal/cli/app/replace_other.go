//go:build !unix

package app

import (
	"context"
	"errors"
	"os/exec"
)

// replaceBy runs another program and ends with its exit code.
func (a *App) replaceBy(path string, args []string) error {
	c := exec.CommandContext(context.Background(), path, args...)
	c.Stdin, c.Stdout, c.Stderr, c.Env = a.In, a.Out, a.Err, a.Environ()
	err := c.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return Exit(ended.ExitCode())
	}
	return err
}
