package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
)

// further returns the program that carries out a command that is none of lokt's own, as git finds those of its own: lokt-NAME
// beside lokt, else in PATH. It is empty if there is none.
func (a *App) further(args []string) string {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || lokt.ValidateName(args[0]) != nil || a.has(args[0]) {
		return ""
	}
	name := "lokt-" + args[0]
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	beside := ""
	if self, err := os.Executable(); err == nil {
		if self, err = filepath.EvalSymlinks(self); err == nil {
			beside = filepath.Join(filepath.Dir(self), name)
		}
	}
	for _, name := range []string{beside, name} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// replaceBy makes this process run another program, or, where that cannot be, runs it and ends with its exit code.
func (a *App) replaceBy(path string, args []string) error {
	err := syscall.Exec(path, append([]string{path}, args...), a.Environ())
	if !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("%s: %w", path, err)
	}
	c := exec.CommandContext(context.Background(), path, args...)
	c.Stdin, c.Stdout, c.Stderr, c.Env = a.In, a.Out, a.Err, a.Environ()
	err = c.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return Exit(ended.ExitCode())
	}
	return err
}

func (a *App) has(name string) bool {
	return name == "help" || strings.HasPrefix(name, "__") || slices.ContainsFunc(a.all, func(c Command) bool { return c.Name == name })
}

// unknown is the error about a command that there is not. It names those that were probably meant.
func unknown(parent *cobra.Command, word string) error {
	if parent.SuggestionsMinimumDistance <= 0 {
		parent.SuggestionsMinimumDistance = 2
	}
	if near := parent.SuggestionsFor(word); len(near) > 0 {
		return Usagef("unknown command %q for %q: did you mean %s?", word, parent.Name(), strings.Join(near, " or "))
	}
	return Usagef("unknown command %q for %q", word, parent.Name())
}
