package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/store/filestore"
)

// app is what the commands share.
type app struct {
	Streams
	dial        func(Server) (Remote, error)
	rootFlag    string
	serverFlag  string
	serverGiven bool // --server stands on the command line, even if empty
	json        bool
	jsonErrors  bool     // --json stands on a command line that may not parse
	words       []string // the command line, without the program's name
	help        string   // the command line that tells of the command that runs; empty for lokt help
	opened      *backend
	dialled     Remote
}

// backend is where the locks are: in files, or on a server.
type backend struct {
	lokt.Service
	store *filestore.Store // nil on a server
	root  rootDir
	far   Remote // nil with files
	urls  []string
}

// where says in a word or two where the locks are.
func (b *backend) where() string {
	if b.far != nil {
		return "on " + shownURLs(b.urls)
	}
	return "in " + b.root.Path
}

// findRoot finds the directory of the locks. The working directory need not be there any more if it does not matter.
func (a *app) findRoot() (rootDir, error) {
	env := a.Getenv("LOKT_ROOT")
	if filepath.IsAbs(cmp.Or(a.rootFlag, env)) {
		return findRoot("", a.rootFlag, env), nil
	}
	dir, err := a.Dir()
	if err != nil {
		return rootDir{}, fmt.Errorf("working directory: %w", err)
	}
	return findRoot(dir, a.rootFlag, env), nil
}

// backend opens the locks that the command line, the environment and the working directory name.
func (a *app) backend() (*backend, error) {
	if a.opened != nil {
		return a.opened, nil
	}
	if urls := a.serverURLs(); len(urls) > 0 {
		far, err := a.remote()
		if err != nil {
			return nil, err
		}
		a.opened = &backend{Service: far.Locks(), far: far, urls: urls}
		return a.opened, nil
	}
	root, err := a.findRoot()
	if err != nil {
		return nil, err
	}
	if root.Warning != "" {
		a.tell("%s", root.Warning)
	}
	store, err := filestore.Open(root.Path, filestore.Options{Warn: func(err error) { a.tell("warning: %v", err) }})
	if err != nil {
		return nil, err
	}
	a.opened = &backend{Service: lokt.NewManager(store), store: store, root: root}
	return a.opened, nil
}

// asker returns who runs this command, for commands that only look or end things.
func (a *app) asker() lokt.Owner {
	o := lokt.Owner{ID: a.Getenv("LOKT_OWNER"), Session: a.Getenv("LOKT_AGENT_ID"), Process: process.Self()}
	o.Host, _ = os.Hostname()
	o.AnySession = o.ID != ""
	if o.ID == "" {
		o.ID = process.UserName()
	}
	if o.Session == "" {
		o.Session = process.Session()
		if process.BootID() == "" && len(a.serverURLs()) > 0 {
			o.Session += "-" + o.Host // nothing else in it differs between hosts
		}
	}
	return o
}

// claimant returns who runs this command, with a kernel lock in the store that lasts as long as the process does.
func (a *app) claimant(b *backend) (lokt.Owner, error) {
	o := a.asker()
	if b.store == nil { // which sees no processes: what is held ends in time, or by a word
		return o, nil
	}
	self, err := b.store.Self()
	if err != nil {
		return o, err
	}
	o.Process = self
	return o, nil
}

// print writes v as one line of JSON to standard output.
func (a *app) print(v any) error {
	enc := json.NewEncoder(a.Out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// say writes a line to standard output.
func (a *app) say(format string, args ...any) {
	fmt.Fprintln(a.Out, printable(fmt.Sprintf(format, args...)))
}

// minTTL is the shortest TTL of the command line: older programs count in seconds.
const minTTL = time.Second

// ttl returns the TTL to use for the one that was given, raised if it is too short to be told to older programs.
func (a *app) ttl(d time.Duration) (time.Duration, error) {
	switch {
	case d < 0:
		return 0, usagef("--ttl %v is negative", d)
	case d > 0 && d < minTTL:
		a.tell("warning: --ttl %v is too short: using %v", d, minTTL)
		return minTTL, nil
	}
	return d, nil
}
