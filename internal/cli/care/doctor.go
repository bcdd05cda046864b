package care

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
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
		RunE:    func(*cobra.Command, []string) error { return a.runDoctor(o) },
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

// check is what one look found.
type check struct {
	Name    string `json:"name"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitzero"` // what to do
}

// diagnosis is all that was found.
type diagnosis struct {
	ProtocolVersion int     `json:"protocol_version"`
	Version         string  `json:"version"`
	RootMethod      string  `json:"root_method"` // server, if one is checked
	RootPath        string  `json:"root_path"`   // or its addresses
	Checks          []check `json:"checks"`
	Overall         string  `json:"overall"` // the worst status

	Servers []app.ServerInfo `json:"servers,omitempty"`
}

// doctor looks for what is wrong. It opens the store itself, for a store that cannot be opened is what it is there for.
type doctor struct {
	cmd
	fix    bool
	root   app.RootDir
	exists bool
	store  *filestore.Store // nil if it cannot be opened
	found  []check

	servers []app.ServerInfo // if they are what is looked at
}

func (d *doctor) add(status, name, format string, args ...any) *check {
	d.found = append(d.found, check{Name: name, Status: status, Message: fmt.Sprintf(format, args...)})
	return &d.found[len(d.found)-1]
}

func (a cmd) runDoctor(o doctorOptions) error {
	if len(a.ServerURLs()) > 0 {
		return a.runDoctorServer(o)
	}
	root, err := a.FindRoot()
	if err != nil {
		return err
	}
	d := &doctor{cmd: a, fix: o.fix, root: root}
	ctx := context.Background()
	if fi, err := os.Stat(root.Path); err == nil && fi.IsDir() {
		d.exists = true
		d.checkPermissions()
	}
	repaired := d.found // told behind what they may have made possible
	d.found = nil
	d.checkRoot()
	d.found = append(d.found, repaired...)
	d.checkSymlinks()
	d.open()
	d.checkFileSystem()
	d.checkSpace()
	d.checkKernelLocks()
	d.checkClock()
	if d.store != nil {
		d.checkRecords(ctx)
		d.checkAudit(ctx)
	}
	d.checkEnvironment()
	d.checkIdentity()
	if o.prove {
		d.checkExclusion(ctx)
	}
	return d.tellAll()
}

// tellAll shows what was found.
func (d *doctor) tellAll() error {
	v := diagnosis{
		ProtocolVersion: lockfile.Version, Version: app.Version(), RootMethod: d.root.Method, RootPath: d.root.Path,
		Checks: d.found, Overall: checkOK, Servers: d.servers,
	}
	for _, c := range d.found {
		if c.Status == checkFail || c.Status == checkWarn && v.Overall == checkOK {
			v.Overall = c.Status
		}
	}
	end := app.ExitOK
	if v.Overall == checkFail {
		end = app.ExitError
	}
	if d.JSON {
		return errors.Join(d.Print(v), app.Exit(end))
	}
	for _, c := range v.Checks {
		d.Say("%-4s  %-12s %s", c.Status, c.Name, cell(c.Message))
		if c.Fix != "" {
			d.Say("%-4s  %-12s → %s", "", "", cell(c.Fix))
		}
	}
	d.Say("overall: %s", v.Overall)
	return app.Exit(end)
}

func (d *doctor) checkRoot() {
	how := map[string]string{
		app.MethodFlag: "as --root says", app.MethodEnv: "as LOKT_ROOT says",
		app.MethodGit: "in the git directory, which all worktrees of the repository share", app.MethodLocal: "there is no git repository around",
	}[d.root.Method]
	fi, err := os.Stat(d.root.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		at := existing(d.root.Path)
		if err := writable(at); err != nil {
			d.add(checkFail, "root", "%s does not exist and cannot be made: %s: %v (%s)", d.root.Path, at, err, how).
				Fix = writableAgain(err, elsewhere)
			return
		}
		d.add(checkOK, "root", "%s (%s) does not exist yet: the first lock makes it", d.root.Path, how)
	case err != nil:
		d.add(checkFail, "root", "%v (%s)", err, how).Fix = "choose another place with LOKT_ROOT or --root"
	case !fi.IsDir():
		d.add(checkFail, "root", "%s is not a directory (%s)", d.root.Path, how).Fix = "move it away, or choose another place with LOKT_ROOT or --root"
	default:
		if err := writable(d.root.Path); err != nil {
			d.add(checkFail, "root", "%s (%s) cannot be written: %v", d.root.Path, how, err).Fix = writableAgain(err, "repair its permissions, or "+elsewhere)
			return
		}
		d.add(checkOK, "root", "%s (%s)", d.root.Path, how)
	}
	if d.root.Warning != "" {
		c := d.add(checkWarn, "root", "%s", strings.TrimPrefix(d.root.Warning, "warning: "))
		c.Fix = "repair the repository, or say with LOKT_ROOT where locks belong: others may look elsewhere"
	}
}

const elsewhere = "choose another place with LOKT_ROOT or --root"

// writableAgain says what to do about a place that cannot be written: advice, unless the whole file system is read-only.
func writableAgain(err error, advice string) string {
	if errors.Is(err, syscall.EROFS) {
		return "mount the file system for writing (if it was, see the kernel's log for why it is not), or " + elsewhere
	}
	return advice
}

// existing returns the nearest directory above path, or path, that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || filepath.Dir(path) == path {
			return path
		}
		path = filepath.Dir(path)
	}
}

// open opens the store if that is possible.
func (d *doctor) open() {
	store, err := filestore.Open(d.root.Path, filestore.Options{})
	if err != nil {
		if !d.failed() {
			d.add(checkFail, "root", "%v", err)
		}
		return
	}
	d.store = store
	d.Opened = &app.Backend{Service: lokt.NewManager(store), Store: store, Root: d.root}
}

// failed reports whether a check has failed so far.
func (d *doctor) failed() bool {
	for _, c := range d.found {
		if c.Status == checkFail {
			return true
		}
	}
	return false
}
