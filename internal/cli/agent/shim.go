package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/policy"
)

// A shim is a link to this program under the name of another one, in a directory that comes first on the path. It runs
// that other program, under the guard that the policy asks for. The directory is with the locks, which are not under version
// control and which worktrees share.

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
	dir, err := a.Dir()
	var guard []string
	if err == nil {
		guard, err = a.finder(dir).Guard(append([]string{name}, args...))
	}
	if err != nil {
		a.Tell("lokt cannot judge this: %v", err)
		if policy.Refuses(dir, err) {
			return app.ExitError
		}
	}
	if len(guard) > 0 {
		args = slices.Concat(guard[1:], []string{real}, args)
		real, err = exec.LookPath(guard[0])
	}
	if err == nil || len(guard) == 0 {
		err = a.ReplaceBy(real, args)
	}
	return a.Finish(err)
}

// behind returns the program of that name on the path that is no shim of this one.
func behind(name string) string {
	own, err := app.Self()
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
