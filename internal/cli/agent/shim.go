package agent

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/policy"
	"github.com/lokt-dev/lokt/internal/shell"
)

// A shim is a link to this program under the name of another one, in a directory that comes first on the path. It runs
// that other program, under the guard that the policy asks for.

// shims returns the directory of the shims for those who work in dir. It is with the locks, which are not under version
// control and which worktrees share.
func (a cmd) shims(dir string) string { return filepath.Join(a.lockRoot(dir), "shims") }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// shim runs the program of that name, and returns its exit code. A guard around it with the same lock lets it through.
func shim(a cmd, name string, args []string) int {
	real := behind(name)
	if real == "" {
		a.Tell("%s: there is no such program behind the shim of lokt", name)
		return 127
	}
	command := append([]string{real}, args...)
	dir, err := a.Dir()
	if err == nil {
		f := &shell.Finder{Dir: dir, Policy: policies(), Root: a.lockRoot, Lokt: loktPath()}
		var guard []string
		if guard, err = f.Guard(append([]string{name}, args...)); err == nil && len(guard) > 0 {
			command = append(guard, command...)
		}
	}
	if err != nil {
		a.Tell("lokt cannot judge this: %v", err)
		if bad := new(policy.Error); errors.As(err, &bad) && bad.Closed {
			return app.ExitError
		}
	}
	return a.become(command)
}

// become makes this process run a command, or runs it and returns its exit code where that cannot be.
func (a cmd) become(command []string) int {
	path, err := exec.LookPath(command[0])
	if err == nil {
		err = syscall.Exec(path, command, a.Environ())
	}
	if runtime.GOOS == "windows" {
		c := exec.CommandContext(context.Background(), path, command[1:]...)
		c.Stdin, c.Stdout, c.Stderr = a.In, a.Out, a.Err
		err = c.Run()
		if ended := new(exec.ExitError); errors.As(err, &ended) {
			return ended.ExitCode()
		}
	}
	if err == nil {
		return app.ExitOK
	}
	a.Tell("%s: %v", command[0], err)
	return 126
}

// behind returns the program of that name on the path that is no shim of this one.
func behind(name string) string {
	own, err := self()
	if err != nil {
		return ""
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil && filepath.IsAbs(path) {
			if real, err := filepath.EvalSymlinks(path); err == nil && real != own && filepath.Base(real) != program {
				return path
			}
		}
	}
	return ""
}
