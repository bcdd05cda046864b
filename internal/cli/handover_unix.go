//go:build unix

package cli

import (
	"fmt"
	"syscall"
)

// replaceBy makes this process run another program. It returns only if that fails.
func replaceBy(path string, args, env []string) error {
	return fmt.Errorf("%s: %w", path, syscall.Exec(path, args, env))
}
