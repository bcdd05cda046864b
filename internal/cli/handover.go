package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// remoteProgram is the program that is this one with a network.
const remoteProgram = "lokt-remote"

// CallerVariable is where lokt tells lokt-remote its version.
const CallerVariable = "LOKT_CALLER_VERSION"

// handOver makes lokt-remote carry out the command line. It returns only if that is not possible, or to end with the exit
// code of lokt-remote.
func (a *app) handOver() error {
	path, err := findRemote()
	if err != nil {
		return hint(err, "it is the part of lokt that talks to servers: install it from the same release, or use files with --server ''")
	}
	env := []string{CallerVariable + "=" + Version()}
	for _, kv := range a.Environ() {
		if !strings.HasPrefix(kv, CallerVariable+"=") {
			env = append(env, kv)
		}
	}
	return replaceBy(path, append([]string{path}, a.words...), env)
}

// findRemote returns the path of lokt-remote: beside this program, else in PATH.
func findRemote() (string, error) {
	name := remoteProgram
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if self, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(self); err == nil {
			self = real
		}
		beside := filepath.Join(filepath.Dir(self), name)
		if fi, err := os.Stat(beside); err == nil && fi.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		if inner := errors.Unwrap(err); inner != nil {
			err = inner
		}
		return "", fmt.Errorf("a server is named, and the program %s is neither beside lokt nor in PATH (%w)", remoteProgram, err)
	}
	return path, nil
}

// checkCaller tells of a caller of another release than this program's.
func (a *app) checkCaller(own string) {
	if a.Caller != "" && a.Caller != own && a.Caller != unknownVersion && own != unknownVersion {
		a.tell("warning: lokt is version %s and lokt-remote is %s: install both from one release", a.Caller, own)
	}
}
