package app

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/easy"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/nearest"
	"github.com/lokt-dev/lokt/internal/version"
	"github.com/lokt-dev/lokt/internal/vfs"
	"github.com/lokt-dev/lokt/store/filestore"
)

// Backend is where the locks are: in files, or on a server.
type Backend struct {
	lokt.Service
	Store *filestore.Store // nil on a server
	Root  RootDir
	Far   *httpapi.Client // nil with files
	URLs  []string
}

// Where says in a word or two where the locks are.
func (b *Backend) Where() string {
	if b.Far != nil {
		return "on " + ShownURLs(b.URLs)
	}
	return "in " + b.Root.Path
}

// Backend opens the locks that the command line, the environment and the working directory name.
func (a *App) Backend() (*Backend, error) {
	if a.Opened != nil {
		return a.Opened, nil
	}
	if urls := a.ServerURLs(); len(urls) > 0 {
		far, err := a.Client()
		if err != nil {
			return nil, err
		}
		a.Opened = &Backend{Service: far, Far: far, URLs: urls}
		return a.Opened, nil
	}
	root, err := a.FindRoot()
	if err != nil {
		return nil, err
	}
	if root.Method == MethodSystem && os.Geteuid() != 0 {
		return nil, Hint(fmt.Errorf("the locks of this host, in %s, are root's", root.Path), "run this as root, or keep your own with --user")
	}
	if root.Warning != "" {
		a.Tell("%s", root.Warning)
	}
	var told sync.Map // what is wrong with the log is so at every renewal
	store, err := filestore.Open(root.Path, filestore.Options{Warn: func(err error) {
		if _, again := told.LoadOrStore(err.Error(), true); !again {
			a.Tell("warning: %v", err)
		}
	}})
	if errors.Is(err, fs.ErrPermission) {
		err = Hint(err, whoseFiles)
	}
	if err != nil {
		return nil, err
	}
	a.Opened = &Backend{Service: lokt.NewManager(store), Store: store, Root: root}
	return a.Opened, nil
}

// Open checks the names of locks, and opens the locks, before any file is touched.
func (a *App) Open(names ...string) (*Backend, error) {
	if err := ValidNames(names...); err != nil {
		return nil, err
	}
	return a.Backend()
}

// MakeRoot makes the directory of the locks if it is not there yet, and says so if it is one that other directories do
// not share.
func (a *App) MakeRoot(b *Backend) {
	if b.Store != nil && b.Root.Method == MethodLocal && vfs.Mkdir(b.Root.Path, 0o700) == nil {
		a.Tell("made %s: locks of this directory and of those below it; --user keeps one place for all, LOKT_ROOT names another", b.Root.Path)
	}
}

// Shown returns what a lease ID is shown as.
func (b *Backend) Shown(leaseID string) string {
	if b.Far == nil {
		return leaseID
	}
	return httpapi.Shown(leaseID)
}

// Record appends an event of this process to the audit log.
func (b *Backend) Record(e lokt.Event) error {
	if b.Store == nil {
		return nil
	}
	return audit.Open(b.Store.Root()).Append(audit.Encode([]lokt.Event{e}))
}

// LiveFile returns the descriptor whose inheritance makes a command's life count as the guard's.
func (b *Backend) LiveFile() *os.File {
	if b.Store == nil {
		return nil
	}
	return b.Store.LiveFile()
}

// FindRoot finds the directory of the locks. The working directory need not be there any more if it does not matter.
func (a *App) FindRoot() (RootDir, error) {
	env := a.Getenv("LOKT_ROOT")
	if given := cmp.Or(a.RootFlag, env); given == MethodUser || given == MethodSystem {
		path, err := easy.Root(given)
		return RootDir{Path: path, Method: given}, err
	}
	if filepath.IsAbs(cmp.Or(a.RootFlag, env)) {
		return findRoot("", a.RootFlag, env), nil
	}
	dir, err := a.Dir()
	if err != nil {
		return RootDir{}, fmt.Errorf("working directory: %w", err)
	}
	r := findRoot(nearest.Real(dir), a.RootFlag, env)
	if at := filepath.Dir(r.Path); r.Method == MethodLocal && filepath.Dir(at) == at {
		return r, Hint(fmt.Errorf("the working directory is %s, and locks there would be those of every directory", at), "name a directory for them with LOKT_ROOT or --root")
	}
	return r, nil
}

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
			return RootDir{Path: Against(dir, given.path), Method: given.method}
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
		dir = Against(filepath.Dir(dotGit), strings.TrimSpace(path))
	}
	if line, err := readLine(filepath.Join(dir, "commondir")); err == nil {
		dir = Against(dir, line)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if fi, err := os.Stat(filepath.Join(dir, "HEAD")); err != nil || fi.IsDir() {
		return "", fmt.Errorf("%s is no git directory", dir)
	}
	return dir, nil
}

// Against resolves path relative to base, unless it is absolute.
func Against(base, path string) string {
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
	dir = nearest.Real(dir)
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if filepath.Dir(at) == at {
			return dir
		}
	}
}

// ServerURLs returns the addresses of the server that the command line or the environment names; none means files.
func (a *App) ServerURLs() []string {
	given := a.ServerFlag
	switch {
	case a.ServerGiven:
	case a.RootFlag != "": // said on this very command line, and a directory is no server's
	default:
		given = a.Getenv("LOKT_SERVER")
	}
	var urls []string
	for _, u := range strings.Split(given, ",") {
		if u = strings.TrimSpace(u); u != "" {
			urls = append(urls, u)
		}
	}
	if urls == nil && strings.Contains(given, ",") { // of variables that are not set: this is no choice of files
		return []string{given}
	}
	return urls
}

// ShownURLs returns addresses for people.
func ShownURLs(urls []string) string {
	var all []string
	for _, u := range urls {
		all = append(all, WithoutUser(u))
	}
	return strings.Join(all, ", ")
}

// WithoutUser returns the address without the name and the password that it may have.
func WithoutUser(url string) string {
	scheme, rest, found := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, '@'); found && i >= 0 {
		return scheme + "://" + rest[i+1:]
	}
	return url
}

// Timeouts of requests.
const (
	patience = 2 * time.Second  // while no server answers: enough for one that is started again, short for a wrong address
	lookTime = 10 * time.Second // for a command that only looks, over all servers
)

// ClientOptions returns how the environment says to reach a server. Errors are about files and variables.
func (a *App) ClientOptions() (o httpapi.ClientOptions, err error) {
	if o, err = easy.ClientOptions(a.Getenv); errors.Is(err, lokt.ErrInvalid) {
		err = Usage(err)
	}
	o.UserAgent, o.Patience, o.Look = "lokt/"+version.String(), patience, lookTime
	return o, err
}

// errNoServer is the error of commands that work on a server only.
var errNoServer = errors.New("this takes a server")

// Client returns a client of the server that the command line or the environment names. It does not connect.
func (a *App) Client() (*httpapi.Client, error) {
	urls := a.ServerURLs()
	if a.client != nil || len(urls) == 0 {
		return a.client, nil
	}
	o, err := a.ClientOptions()
	if err != nil {
		return nil, err
	}
	if a.client, err = httpapi.New(strings.Join(urls, ","), o); err != nil {
		return nil, Usage(err)
	}
	return a.client, nil
}

// CheckPlace refuses a command line that names two places, or none for a command that needs a server.
func (a *App) CheckPlace(p Place) error {
	if a.ServerFlag != "" && a.RootFlag != "" {
		return Usagef("--root is about files and --server about a server: give one of them")
	}
	if p == OnServer && len(a.ServerURLs()) == 0 {
		return Hint(errNoServer, "say which with LOKT_SERVER or --server, such as http://127.0.0.1:7117; loktd runs one")
	}
	return nil
}

// Reached adds to an error of a server that cannot be reached, or will not have the caller, what to do.
func (a *App) Reached(err error) error {
	urls := a.ServerURLs()
	if len(urls) == 0 || !errors.Is(err, lokt.ErrUnavailable) || errors.As(err, new(*HintError)) {
		return err
	}
	return Hint(err, "is loktd running there, and is the address right, http or https (%s)? See: %s", ShownURLs(urls), a.CommandLine("doctor", ""))
}
