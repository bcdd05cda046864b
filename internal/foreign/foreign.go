// Package foreign finds the processes behind locks of other programs: kernel locks on a file, and files that are locks by
// being there.
package foreign

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/quote"
)

// Free, Held and Stale are states of a file's lock. A stale one keeps others out, and nobody is seen who made it.
const Free, Held, Stale = "free", "held", "stale"

// What a process has of a file: a lock of one of three kinds, none, or nothing at all, if it is a git that works in the repository.
const flock, posix, ofd, opened, inside = "flock", "fcntl", "fcntl (OFD)", "open", "at work"

// Process is one that has a lock, waits for one, or may be who made the file.
type Process struct {
	PID     int       `json:"pid,omitzero"` // 0 if it is not told to this user
	Command string    `json:"command,omitzero"`
	User    string    `json:"user,omitzero"`
	Since   time.Time `json:"running_since,omitzero"`
	Lock    string    `json:"lock"`
	Shared  bool      `json:"shared,omitzero"`
}

// String describes the process in a line.
func (p Process) String() string {
	text := "  - a process that this user may not look at: "
	if p.PID > 0 {
		text = fmt.Sprintf("  - pid %d, %s, %s, running since %s: ", p.PID, p.User, p.Command, p.Since.Format(time.DateTime))
	}
	return text + p.Lock + map[bool]string{true: ", shared"}[p.Shared]
}

// Report is what is known of the locks on a file.
type Report struct {
	Path        string    `json:"path"` // absolute
	Kind        string    `json:"kind"` // whose file it is: git, cargo, dpkg, bazel, terraform, or file
	Status      string    `json:"status"`
	Processes   []Process `json:"processes"`
	Detail      string    `json:"detail"`      // what it means, and what is not seen
	Suggestions []string  `json:"suggestions"` // lines to type
}

// String describes the report in lines.
func (r Report) String() string {
	text := r.Path + " is " + r.Status + "\n"
	for _, p := range r.Processes {
		text += p.String() + "\n"
	}
	if text += r.Detail; len(r.Suggestions) > 0 {
		text += "\nwhat you can do:\n  " + strings.Join(r.Suggestions, "\n  ")
	}
	return text
}

// ErrUnsupported means that this system does not tell who locks a file.
var ErrUnsupported = errors.New("this system does not tell lokt who locks a file, as Linux does in /proc: lsof, where it is there, lists who has one open")

// Look finds out who has locks on the file.
func Look(path string) (r Report, err error) {
	if path, err = filepath.Abs(path); err != nil {
		return r, err
	}
	k, there, unseen := kindOf(path), exists(path), ""
	r = Report{Path: path, Kind: k.name, Status: Free, Suggestions: []string{}}
	if r.Processes, unseen, err = find(k); err != nil {
		return r, err
	}
	for _, p := range r.Processes {
		if k.made || p.Lock != opened {
			r.Status = Held
		}
	}
	if fstype, local := process.LocalFS(filepath.Dir(path)); !local {
		unseen = "what other hosts do, which share the file system " + fstype
	}
	switch {
	case r.Status == Held:
		r.Detail, r.Suggestions = k.held, append(r.Suggestions, k.wait...)
	case !there:
		r.Detail = "there is no such file"
	case k.left == "":
		r.Detail = "no process has it locked: what keeps others out, if anything does, is something else, such as what is in the file"
	default:
		if r.Detail = k.left; k.made {
			r.Status = Stale
		}
		if unseen == "" {
			r.Suggestions = append(r.Suggestions, k.end)
		}
	}
	for _, more := range []string{k.said, strings.TrimSuffix("not seen is "+unseen, "not seen is ")} {
		r.Detail = strings.TrimSuffix(r.Detail+"; "+more, "; ")
	}
	return r, nil
}

// kind is what is known of the locks of a program.
type kind struct {
	name string
	of   string   // the file on which the kernel has the lock
	made bool     // the file is the lock by being there
	git  string   // directory of the repository
	held string   // what it means that the lock is held
	wait []string // lines for then
	left string   // what it means that nobody has it, if the file ought not to be there then
	end  string   // line for then
	said string   // by the program itself
}

func kindOf(path string) kind {
	dir, base := filepath.Split(path)
	dir = filepath.Clean(dir)
	k := kind{name: "file", of: path, held: "wait for the process, or end it: to remove the file does not take the lock from it", end: "rm " + quote.Word(path)}
	state, info := strings.CutSuffix(strings.TrimPrefix(base, "."), ".lock.info")
	switch k.git = gitDir(dir); {
	case k.git != "" && strings.HasSuffix(base, ".lock"):
		k.name, k.made, k.held = "git", true, "git removes it when it is done; if it waits for an editor or a hook, end that"
		k.left = "no git is seen that made it: it keeps everybody out until it is removed"
		return k
	case base == ".cargo-lock" || strings.HasPrefix(base, ".package-cache"):
		k.name, k.held = "cargo", "cargo waits for it by itself; builds that have a target directory each do not wait for each other"
		k.wait = []string{"cargo build --target-dir OTHER_DIRECTORY"}
	case strings.HasPrefix(path, "/var/lib/dpkg/"), strings.HasPrefix(path, "/var/lib/apt/"), strings.HasPrefix(path, "/var/cache/apt/"):
		k.name, k.held = "dpkg", "wait for the process: if the file is removed, others are let in beside it, and break the database of packages"
		k.wait = []string{"apt-get -o DPkg::Lock::Timeout=600 install PACKAGE"}
	case base == "lock" && exists(filepath.Join(dir, "server")):
		k.name, k.held, k.said = "bazel", "bazel waits for it by itself", words(small(path))+" server="+words(small(filepath.Join(dir, "server", "server.pid.txt")))
		k.wait = []string{"bazel --output_base=" + quote.Word(dir) + " shutdown", "bazel --output_base=OTHER_DIRECTORY build TARGET"}
	case strings.HasSuffix(base, ".tflock"):
		k.made, k.left = true, "it locks a state that is not on this host: ask who made it before you take it from them"
		k.terraform(path)
	case info:
		k.of, k.left = filepath.Join(dir, state), "nobody has the state locked: the file was left over, and keeps nobody out"
		k.terraform(path)
	case strings.HasSuffix(base, ".tfstate"):
		k.terraform(filepath.Join(dir, "."+base+".lock.info"))
	}
	k.git = ""
	return k
}

// terraform takes what Terraform has written about its lock.
func (k *kind) terraform(info string) {
	k.name, k.held, k.wait = "terraform", "terraform can wait for it", []string{"terraform plan -lock-timeout=10m"}
	var v struct{ ID, Operation, Who, Created string }
	if err := json.Unmarshal(small(info), &v); err != nil || v.ID == "" {
		return
	}
	if k.said = words([]byte(v.Operation + " by " + v.Who + " since " + v.Created + ", lock ID " + v.ID)); k.made {
		k.end = "terraform force-unlock " + quote.Word(v.ID)
	}
}

// gitDir returns the directory of the git repository, or of its worktree, in which dir is, or nothing.
func gitDir(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	for at := dir; filepath.Dir(at) != at; at = filepath.Dir(at) {
		if exists(filepath.Join(at, "HEAD")) && (exists(filepath.Join(at, "objects")) || exists(filepath.Join(at, "commondir"))) {
			return at
		}
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// small reads a file that tells something in a few words; it is empty if there is none.
func small(path string) []byte {
	fi, err := os.Stat(path)
	if err != nil || !fi.Mode().IsRegular() || fi.Size() > 1<<16 {
		return nil
	}
	text, _ := os.ReadFile(path) // nothing, if it cannot be read
	return text
}

// words returns a text of other programs in a line.
func words(text []byte) string {
	return strings.ToValidUTF8(strings.Join(strings.Fields(string(text)), " "), "?")
}
