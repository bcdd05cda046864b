package care

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/internal/version"
	"github.com/lokt-dev/lokt/lockfile"
	"github.com/lokt-dev/lokt/store/filestore"
)

type doctorOptions struct{ fix, prove bool }

func newDoctor(a cmd) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check that locks work here",
		Long: "Check where the locks are, whether the file system and the clock can be relied on, what is damaged, and who you are\n" +
			"to others. If a server is named, check whether it can be reached and what you may do there. Nothing is changed without\n" +
			"--fix or --prove. The exit code is 1 if a check failed, warnings are not failures.",
		Example: "  lokt doctor\n  lokt doctor --fix\n  lokt doctor --prove --json",
		Args:    app.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			d := &doctor{cmd: a, doctorOptions: o}
			if len(a.ServerURLs()) > 0 {
				return d.checkServers()
			}
			return d.checkFiles(context.Background())
		},
	}
	cmd.Flags().BoolVar(&o.fix, "fix", false, "repair permissions and remove what crashed processes left")
	cmd.Flags().BoolVar(&o.prove, "prove", false, "let processes race for a lock for two seconds, and see whether they exclude each other")
	return cmd
}

// Values of a check's status.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
)

// check is the result of one look.
type check struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitzero"` // what to do
}

// doctor looks for trouble. It opens the store itself: a store that cannot be opened is a finding.
type doctor struct {
	cmd
	doctorOptions
	root  app.RootDir
	store *filestore.Store // nil if it cannot be opened
	files survey
	found []check

	servers []app.ServerInfo // nil if files are checked
}

func (d *doctor) ok(name, format string, args ...any) { d.add(name, checkOK, "", format, args) }

func (d *doctor) warn(name, fix, format string, args ...any) {
	d.add(name, checkWarn, fix, format, args)
}

func (d *doctor) fail(name, fix, format string, args ...any) {
	d.add(name, checkFail, fix, format, args)
}

func (d *doctor) add(name, status, fix, format string, args []any) {
	d.found = append(d.found, check{Name: name, Status: status, Message: fmt.Sprintf(format, args...), Fix: fix})
}

// has reports whether a check has come out with that status so far.
func (d *doctor) has(status string) bool {
	return slices.ContainsFunc(d.found, func(c check) bool { return c.Status == status })
}

func (d *doctor) checkFiles(ctx context.Context) (err error) {
	if d.root, err = d.FindRoot(); err != nil {
		return err
	}
	d.survey() // with --fix, what it repairs may make the rest possible
	d.checkRoot()
	d.tellSurvey()
	store, err := filestore.Open(d.root.Path, filestore.Options{})
	switch {
	case err == nil:
		d.store = store
		d.Opened = &app.Backend{Service: lokt.NewManager(store), Store: store, Root: d.root}
	case !d.has(checkFail):
		d.fail("root", "", "%v", err)
	}
	d.checkFileSystem()
	d.checkSpace()
	d.checkClock()
	if d.store != nil {
		d.checkRecords(ctx)
		d.checkAudit(ctx)
	}
	d.checkEnvironment()
	d.checkIdentity()
	if d.prove {
		d.checkExclusion(ctx)
	}
	return d.tellAll()
}

// tellAll shows the findings.
func (d *doctor) tellAll() error {
	overall, end := checkOK, app.Exit(app.ExitOK)
	switch {
	case d.has(checkFail):
		overall, end = checkFail, app.Exit(app.ExitError)
	case d.has(checkWarn):
		overall = checkWarn
	}
	if d.JSON {
		return errors.Join(d.Print(struct {
			ProtocolVersion int              `json:"protocol_version"`
			Version         string           `json:"version"`
			RootMethod      string           `json:"root_method"` // server, if one is checked
			RootPath        string           `json:"root_path"`   // or its addresses
			Checks          []check          `json:"checks"`
			Overall         string           `json:"overall"` // the worst status
			Servers         []app.ServerInfo `json:"servers,omitempty"`
		}{lockfile.Version, version.String(), d.root.Method, d.root.Path, d.found, overall, d.servers}), end)
	}
	for _, c := range d.found {
		d.Say("%-4s  %-12s %s", c.Status, c.Name, app.OneLine(c.Message))
		if c.Fix != "" {
			d.Say("%-4s  %-12s → %s", "", "", app.OneLine(c.Fix))
		}
	}
	d.Say("overall: %s", overall)
	return end
}

const elsewhere = "choose another place with LOKT_ROOT or --root"

func (d *doctor) checkRoot() {
	how := map[string]string{
		app.MethodFlag: "as --root says", app.MethodEnv: "as LOKT_ROOT says",
		app.MethodGit: "in the git directory, which all worktrees of the repository share", app.MethodLocal: "there is no git repository around",
	}[d.root.Method]
	fi, err := os.Stat(d.root.Path)
	at := existing(d.root.Path)
	closed := writable(at)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		d.fail("root", elsewhere, "%v (%s)", err, how)
	case err == nil && !fi.IsDir():
		d.fail("root", "move it away, or "+elsewhere, "%s is not a directory (%s)", d.root.Path, how)
	case closed != nil:
		d.fail("root", writableAgain(closed), "%s (%s) cannot be written: %s: %v", d.root.Path, how, at, closed)
	case err != nil:
		d.ok("root", "%s (%s) does not exist yet: the first lock makes it", d.root.Path, how)
	default:
		d.ok("root", "%s (%s)", d.root.Path, how)
	}
	if d.root.Warning != "" {
		d.warn("root", "repair the repository, or say with LOKT_ROOT where locks belong: others may look elsewhere",
			"%s", strings.TrimPrefix(d.root.Warning, "warning: "))
	}
}

// writableAgain says what to do about a file that cannot be written.
func writableAgain(err error) string {
	if errors.Is(err, syscall.EROFS) {
		return "mount the file system for writing (if it was, see the kernel's log for why it is not), or " + elsewhere
	}
	return "repair its permissions, or " + elsewhere
}

// existing returns path, or the nearest directory above it that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || filepath.Dir(path) == path {
			return path
		}
		path = filepath.Dir(path)
	}
}

func (d *doctor) checkFileSystem() {
	at := existing(d.root.Path)
	kind, local := process.LocalFS(at)
	switch {
	case !local:
		d.warn("filesystem", "keep the locks on a local disk with LOKT_ROOT, or use a server for several hosts; --prove tries this one from this host",
			"%s is on %s, which other hosts or programs may have a say in: locks hold between processes of this host at most", at, kind)
	case kind == "":
		d.ok("filesystem", "of a kind that is not known")
	default:
		d.ok("filesystem", "%s, which is local", kind)
	}
}

// Less than this is no room for locks: a record is small, but there are queues, logs and temporary files beside it.
const (
	leastBytes = 1 << 20
	leastFiles = 32
)

func (d *doctor) checkSpace() {
	at := existing(d.root.Path)
	bytes, files, err := space(at)
	const fix = "make room: on a full file system nobody gets a lock, for what cannot be recorded is not granted; or " + elsewhere
	switch {
	case err != nil:
		d.warn("space", "", "%s: %v", at, err)
	case bytes >= 0 && bytes < leastBytes:
		d.fail("space", fix, "%s has %d KiB left", at, bytes>>10)
	case files >= 0 && files < leastFiles:
		d.fail("space", fix, "%s has room for %d files more", at, files)
	case bytes >= 0:
		d.ok("space", "%d MiB left", bytes>>20)
	}
}

// knownVariables are the environment variables that mean something to lokt.
func knownVariables() []string {
	return []string{
		"LOKT_ROOT", "LOKT_OWNER", "LOKT_AGENT_ID", "LOKT_ON_LOST", "LOKT_SERVER", // read
		"LOKT_SERVER_TOKEN", "LOKT_TOKEN_FILE", "LOKT_CA_FILE", "LOKT_CERT_FILE", "LOKT_KEY_FILE",
		"LOKT_NAME", "LOKT_LEASE", "LOKT_TOKEN", "LOKT_HELD", // set for the command of a guard
	}
}

func (d *doctor) checkEnvironment() {
	n := len(d.found)
	for _, kv := range d.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "LOKT_") && value != "" && !slices.Contains(knownVariables(), name) && !strings.HasPrefix(name, "LOKT_SERVER_") {
			d.warn("environment", "those that do are "+strings.Join(knownVariables(), ", "), "%s means nothing to lokt", name)
		}
	}
	if env := d.Getenv("LOKT_ROOT"); env != "" && !filepath.IsAbs(env) && d.servers == nil {
		d.warn("environment", "export LOKT_ROOT="+app.Quoted(d.root.Path), "LOKT_ROOT=%s is not absolute: each directory has its own locks", env)
	}
	if v := d.Getenv("LOKT_ON_LOST"); v != "" && v != locks.OnLostWarn && v != locks.OnLostStop {
		d.fail("environment", "unset LOKT_ON_LOST", "LOKT_ON_LOST=%s is neither warn nor stop: guard refuses it", v)
	}
	switch around := d.Getenv("LOKT_HELD"); {
	case len(d.found) > n:
	case around != "":
		d.ok("environment", "inside a guard that holds %s", d.Getenv("LOKT_NAME"))
	default:
		d.ok("environment", "nothing odd")
	}
}

func (d *doctor) checkIdentity() {
	o := d.Asker()
	if err := (lokt.Claim{Name: "x", Owner: o}).Validate(); err != nil {
		d.fail("identity", "correct LOKT_OWNER and LOKT_AGENT_ID", "%v: every claim is refused", err)
		return
	}
	switch {
	case o.AnySession:
		d.ok("identity", "you are %s, from LOKT_OWNER, in every session", o)
	case d.Getenv("LOKT_AGENT_ID") != "":
		d.ok("identity", "you are %s, from your user name, in session %s, from LOKT_AGENT_ID", o, o.Session)
	default:
		d.add("identity", checkOK, "programs that start each command in a new session must set LOKT_OWNER or LOKT_AGENT_ID to be one owner",
			"you are %s, from your user name, in session %s, that of the terminal or of whatever started this", []any{o, o.Session})
	}
}
