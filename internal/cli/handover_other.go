//go:build !unix

package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
)

// replaceBy runs another program in the place of this one, and ends as that does. What interrupts programs of a terminal
// reaches that one too, and is left to it.
func replaceBy(path string, args, env []string) error {
	signal.Ignore(os.Interrupt)
	c := exec.Command(path, args[1:]...)
	c.Env, c.Stdin, c.Stdout, c.Stderr = env, os.Stdin, os.Stdout, os.Stderr
	err := c.Run()
	var e *exec.ExitError
	switch {
	case err == nil:
		return &silentError{exitOK}
	case errors.As(err, &e):
		return &silentError{e.ExitCode()}
	}
	return fmt.Errorf("%s: %w", path, err)
}
