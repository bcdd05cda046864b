package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/lokt-dev/lokt/easy"
)

// RootDir is where locks live, and why there.
type RootDir struct {
	Path    string
	Method  string // one of those below
	Warning string // something that looked like the right place, but was not usable
}

// Methods. The last two are also what --root and LOKT_ROOT say for them.
const (
	MethodFlag   = "flag"
	MethodEnv    = "env"
	MethodGit    = "git"
	MethodLocal  = "local"
	MethodUser   = easy.User
	MethodSystem = easy.System
)

// findRoot finds the directory of the locks for a process in dir: the flag, LOKT_ROOT, lokt in the common directory of
// the git repository around dir, the nearest .lokt, or .lokt in dir itself, but never
// one in the top directory. It creates nothing and runs nothing.
func findRoot(dir, flag, env string) RootDir {
	for _, given := range []struct{ path, method string }{{flag, MethodFlag}, {env, MethodEnv}} {
		if given.path != "" {
			if !filepath.IsAbs(given.path) {
				given.path = filepath.Join(dir, given.path)
			}
			return RootDir{Path: filepath.Clean(given.path), Method: given.method}
		}
	}
	r := RootDir{Path: filepath.Join(dir, ".lokt"), Method: MethodLocal}
	for at := dir; ; at = filepath.Dir(at) {
		dotGit := filepath.Join(at, ".git")
		common, err := gitCommonDir(dotGit)
		if err == nil {
			return RootDir{Path: filepath.Join(common, "lokt"), Method: MethodGit}
		}
		if _, none := os.Stat(dotGit); !errors.Is(none, fs.ErrNotExist) && !errors.Is(none, fs.ErrPermission) {
			r.Warning = fmt.Sprintf("warning: %s is not usable (%v): keeping locks in .lokt instead", dotGit, err)
			break
		}
		if filepath.Dir(at) == at {
			break
		}
	}
	for at := dir; filepath.Dir(at) != at; at = filepath.Dir(at) { // never in the top directory, which everything is below
		if fi, err := os.Stat(filepath.Join(at, ".lokt")); err == nil && fi.IsDir() {
			r.Path = filepath.Join(at, ".lokt")
			break
		}
	}
	return r
}

// gitCommonDir returns the directory that all worktrees of a repository share, given its .git: a directory, or a file that
// names one, as worktrees and submodules have it (gitrepository-layout(5)).
func gitCommonDir(dotGit string) (string, error) {
	fi, err := os.Stat(dotGit)
	if err != nil {
		return "", err
	}
	dir := dotGit
	if !fi.IsDir() {
		line, err := readLine(dotGit)
		if err != nil {
			return "", err
		}
		path, ok := strings.CutPrefix(line, "gitdir:")
		if !ok {
			return "", errors.New("it names no gitdir")
		}
		dir = against(filepath.Dir(dotGit), strings.TrimSpace(path))
	}
	if line, err := readLine(filepath.Join(dir, "commondir")); err == nil {
		dir = against(dir, line)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if fi, err := os.Stat(filepath.Join(dir, "HEAD")); err != nil || fi.IsDir() {
		return "", fmt.Errorf("%s is no git directory", dir)
	}
	return dir, nil
}

// against resolves path relative to base, unless it is absolute.
func against(base, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(base, path)
}

// readLine returns the first line of a small regular file.
func readLine(path string) (string, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !fi.Mode().IsRegular() || fi.Size() > 1<<16 {
		return "", fmt.Errorf("%s is no small file", path)
	}
	b, err := os.ReadFile(path)
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line), err
}

// Repository returns the top of the repository around dir, or dir.
func Repository(dir string) string {
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if filepath.Dir(at) == at {
			return dir
		}
	}
}
