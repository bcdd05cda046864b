package care

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/locks"
	"github.com/lokt-dev/lokt/internal/process"
)

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
