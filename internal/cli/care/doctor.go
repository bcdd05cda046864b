package care

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/docs"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/quote"
	"github.com/lokt-dev/lokt/internal/version"
	"github.com/lokt-dev/lokt/lockfile"
	"github.com/lokt-dev/lokt/store/filestore"
	"github.com/lokt-dev/lokt/store/place"
)

type doctorOptions struct{ fix, prove bool }

func newDoctor(a cmd) *cobra.Command {
	var o doctorOptions
	cmd := app.Plain("doctor", func(*cobra.Command) error {
		d := &doctor{cmd: a, doctorOptions: o}
		if len(a.ServerURLs()) > 0 {
			return d.checkServers()
		}
		return d.checkFiles(context.Background())
	})
	cmd.Flags().BoolVar(&o.fix, "fix", false, "repair permissions and remove what crashed processes left")
	cmd.Flags().BoolVar(&o.prove, "prove", false, "let processes race for a lock for two seconds, and see whether they exclude each other")
	return cmd
}

// doctor looks for trouble. It opens the store itself: a store that cannot be opened is a finding.
type doctor struct {
	cmd
	doctorOptions
	root  app.RootDir
	store *filestore.Store // nil if it cannot be opened
	found []place.Condition

	servers []serverInfo // nil if files are checked
}

func (d *doctor) ok(name, format string, args ...any) { d.add(name, place.OK, "", format, args) }

func (d *doctor) warn(name, fix, format string, args ...any) {
	d.add(name, place.Warn, fix, format, args)
}

func (d *doctor) fail(name, fix, format string, args ...any) {
	d.add(name, place.Fail, fix, format, args)
}

func (d *doctor) add(name string, status place.Status, fix, format string, args []any) {
	d.found = append(d.found, place.Condition{Name: name, Status: status, Message: fmt.Sprintf(format, args...), Fix: fix})
}

// has reports whether a check has come out with that status so far.
func (d *doctor) has(status place.Status) bool {
	return slices.ContainsFunc(d.found, func(c place.Condition) bool { return c.Status == status })
}

func (d *doctor) checkFiles(ctx context.Context) (err error) {
	if d.root, err = d.FindRoot(); err != nil {
		return err
	}
	files := d.survey() // with --fix, what it repairs may make the rest possible
	d.checkRoot()
	d.tellSurvey(files)
	store, err := filestore.Open(d.root.Path, filestore.Options{})
	switch {
	case err == nil:
		d.store = store
		d.Opened = &app.Backend{Service: lokt.NewManager(store), Store: store, Root: d.root}
	case !d.has(place.Fail):
		d.fail("root", "", "%v", err)
	}
	d.found = slices.Concat(d.found, place.Files(existing(d.root.Path)), place.Host(), place.Commands())
	d.checkSpace()
	d.checkClock(files)
	if d.store != nil {
		d.checkRecords(ctx, files)
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
	overall, end := place.OK, app.Exit(app.ExitOK)
	switch {
	case d.has(place.Fail):
		overall, end = place.Fail, app.Exit(app.ExitError)
	case d.has(place.Warn):
		overall = place.Warn
	}
	say := func(status place.Status, name, format string, args ...any) {
		if !d.JSON {
			d.Say("%-4s  %-20s %s", strings.Replace(string(status), "unknown", "?", 1), name, app.OneLine(fmt.Sprintf(format, args...)))
		}
	}
	list := func(promises []string) string { return strings.Join(promises, " ") }
	for _, c := range d.found {
		switch {
		case len(c.Promises) == 0:
			say(c.Status, c.Name, "%s", c.Message)
		case c.Status == place.OK:
			say(c.Status, c.Name, "%s (%s)", c.Message, list(c.Promises))
		default:
			say(c.Status, c.Name, "%s", c.Message)
			say("", "", "%s: otherwise %s", list(c.Promises), c.Follows)
		}
		if c.Fix != "" {
			say("", "", "→ %s", c.Fix)
		}
	}
	all := place.Count(docs.Promises(), d.found)
	say("", "promises", "%d hold everywhere; of those that depend on the place %d hold here, not known: %d (%s), not kept: %d (%s); %d are about other places",
		all.Everywhere, len(all.Here), len(all.Unknown), cmp.Or(list(all.Unknown), "none"), len(all.Broken), cmp.Or(list(all.Broken), "none"), all.Elsewhere)
	return errors.Join(d.Answer(struct {
		ProtocolVersion int               `json:"protocol_version"`
		Version         string            `json:"version"`
		RootMethod      string            `json:"root_method"` // server, if one is checked
		RootPath        string            `json:"root_path"`   // or its addresses
		Checks          []place.Condition `json:"checks"`
		Promises        place.Tally       `json:"promises"`
		Overall         place.Status      `json:"overall"` // the worst status but unknown
		Servers         []serverInfo      `json:"servers,omitempty"`
	}{lockfile.Version, version.String(), d.root.Method, d.root.Path, d.found, all, overall, d.servers}, "overall: %s", overall), end)
}

const elsewhere = "choose another place with LOKT_ROOT or --root"

func (d *doctor) checkRoot() {
	how := map[string]string{
		app.MethodFlag: "as --root says", app.MethodEnv: "as LOKT_ROOT says",
		app.MethodGit: "in the git directory, which all worktrees of the repository share", app.MethodLocal: "there is no git repository around",
		app.MethodUser: "this user's, from wherever they are asked for", app.MethodSystem: "this host's, which are root's",
	}[d.root.Method]
	fi, err := os.Stat(d.root.Path)
	at := existing(d.root.Path)
	closed := writable(at)
	_, noLink := os.Readlink(d.root.Path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		d.fail("root", elsewhere, "%v (%s)", err, how)
	case err == nil && !fi.IsDir():
		d.fail("root", "move it away, or "+elsewhere, "%s is not a directory (%s)", d.root.Path, how)
	case closed != nil:
		d.fail("root", writableAgain(closed), "%s (%s) cannot be written: %s: %v", d.root.Path, how, at, closed)
	case err != nil && noLink == nil: // to what is not there: what opens it says so
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

// knownVariables mean something to lokt: those that it reads, and those that a guard sets for its command.
const knownVariables = "LOKT_ROOT LOKT_OWNER LOKT_AGENT_ID LOKT_ON_LOST LOKT_SERVER LOKT_SERVER_TOKEN LOKT_TOKEN_FILE LOKT_CA_FILE LOKT_CERT_FILE " +
	"LOKT_KEY_FILE LOKT_NAME LOKT_LEASE LOKT_TOKEN LOKT_HELD"

func (d *doctor) checkEnvironment() {
	n := len(d.found)
	for _, kv := range d.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "LOKT_") && value != "" && !among(knownVariables, name) && !strings.HasPrefix(name, "LOKT_SERVER_") {
			d.warn("environment", "those that do are "+strings.ReplaceAll(knownVariables, " ", ", "), "%s means nothing to lokt", name)
		}
	}
	if env := d.Getenv("LOKT_ROOT"); env != "" && d.root.Method == app.MethodEnv && !filepath.IsAbs(env) && d.servers == nil {
		d.warn("environment", "export LOKT_ROOT="+quote.Word(d.root.Path), "LOKT_ROOT=%s is not absolute: each directory has its own locks", env)
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
	who := d.Who()
	if err := (lokt.Claim{Name: "x", Owner: who.Owner}).Validate(); err != nil {
		d.fail("identity", "correct LOKT_OWNER and LOKT_AGENT_ID", "%v: every claim is refused", err)
		return
	}
	d.ok("identity", "%s", who)
}

func (d *doctor) checkRecords(ctx context.Context, files *survey) {
	found, fixed, err := d.store.Check(ctx, d.fix)
	if err != nil {
		d.fail("records", "", "%v", err)
		return
	}
	var left []string
	bad := false
	for _, f := range found {
		if f.Stays {
			d.fail("files", "", "%s %s; until then lokt refuses what needs it", f.Path, f.Problem)
			continue
		}
		if f.Name == "" {
			left = append(left, fmt.Sprintf("%s (%s)", f.Path, f.Problem))
			continue
		}
		bad = true
		s, err := d.store.View(ctx, f.Name)
		switch {
		case errors.Is(err, lokt.ErrDamaged):
			d.fail("records", d.CommandLine("unlock", f.Name, "--force"), "%s keeps everybody out of %s: %v", f.Path, f.Name, err)
		case err != nil:
			d.fail("records", "", "%s: %v", f.Path, err)
		case s.Lock.Corrupt != "":
			d.warn("records", d.CommandLine("unlock", f.Name, "--force"), "%s is damaged (%s): the next claim takes %s over", f.Path, f.Problem, f.Name)
		default:
			d.fail("records", d.CommandLine("unfreeze", f.Name, "--force"), "%s keeps everybody out of %s: %s", f.Path, f.Name, f.Problem)
		}
	}
	if m, err := measure(ctx, d.Opened, 0); err != nil {
		d.fail("records", "", "%v", err)
	} else if !bad {
		d.ok("records", "all can be read; names: %d, holds: %d, stale: %d, waiting: %d, frozen: %d", m.names, m.Holds, m.StaleHolds, m.Waiting, m.Frozen)
	}
	for _, dir := range files.proofs {
		if d.fix && os.RemoveAll(dir) == nil {
			fixed++
			continue
		}
		left = append(left, dir+" (of a doctor --prove that was killed)")
	}
	switch {
	case len(left) > 0:
		d.warn("leftovers", d.CommandLine("doctor", "", "--fix"), "do not belong there: %s", some(left))
	case fixed > 0:
		d.ok("leftovers", "removed: %d", fixed)
	default:
		d.ok("leftovers", "none")
	}
	d.ok("protocol", "version %d: programs with the same one can share these locks", lockfile.Version)
}

// auditLarge is a size that a log which is rotated does not reach.
const auditLarge = 2 * audit.MaxSize

func (d *doctor) checkAudit(ctx context.Context) {
	log := audit.Open(d.store.Root())
	fi, err := os.Lstat(log.Path())
	if err == nil {
		err = writable(log.Path())
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.ok("audit", "no log yet")
		return
	case err == nil && !fi.Mode().IsRegular():
		d.fail("audit", "move it away", "%s is not a regular file: nothing is recorded", log.Path())
		return
	case err != nil:
		d.fail("audit", writableAgain(err), "%s cannot be written: %v", log.Path(), err)
		return
	}
	junk := 0
	for _, err := range log.Read(ctx, audit.Query{Limit: 1}) {
		if _, ok := errors.AsType[*audit.GarbageError](err); ok {
			junk++
		} else if err != nil {
			d.fail("audit", "", "%v", err)
			return
		}
	}
	size := fmt.Sprintf("%s can be written and has %d KiB", log.Path(), (fi.Size()+1023)/1024)
	switch {
	case fi.Size() > auditLarge:
		d.warn("audit", "look at the permissions of "+d.root.Path, "%s: it is not rotated as it should be", size)
	case junk > 0:
		d.warn("audit", "they are skipped when the log is read, and go with the file that they are in", "%s; lines that are no entries: %d", size, junk)
	default:
		d.ok("audit", "%s", size)
	}
}

func (d *doctor) checkClock(files *survey) {
	const fix = "set the clock; expiry of records written elsewhere is judged by it"
	now := time.Now()
	switch ahead := files.newest.Sub(now); {
	case now.Year() < 2025:
		d.fail("clock", fix, "it says %s, which is long ago", now.Format(time.RFC3339))
	case ahead > time.Minute:
		d.warn("clock", fix, "it says %s, but %s was changed %s later: it, or the file system's clock, is wrong",
			now.Format(time.RFC3339), files.youngest, app.Short(ahead))
	default:
		d.ok("clock", "%s", now.Format(time.RFC3339))
	}
}
