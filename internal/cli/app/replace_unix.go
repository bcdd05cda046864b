//go:build unix

package app

import (
	"fmt"
	"syscall"
)

// replaceBy makes this process run another program. It returns only if that fails.
func (a *App) replaceBy(path string, args []string) error {
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, append([]string{path}, args...), a.Environ()))
}
