// Package clitest is a place for tests to type commands at.
package clitest

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/jobs"
	"github.com/lokt-dev/lokt/lockfile"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Desk is where a test types commands: a directory, and an owner.
type Desk struct {
	T        testing.TB
	Dir      string
	Owner    string
	commands []app.Command
}

// New returns a desk in an empty directory.
func New(t testing.TB, owner string, commands []app.Command) Desk {
	return Desk{T: t, Dir: t.TempDir(), Owner: owner, commands: commands}
}

// As returns another owner's desk in the same directory.
func (d Desk) As(owner string) Desk {
	d.Owner = owner
	return d
}

// Lokt runs a command line and returns how it ended and what it wrote.
func (d Desk) Lokt(args ...string) (code int, out, errs string) {
	d.T.Helper()
	var stdout, stderr bytes.Buffer
	code = app.Run(d.commands, args, app.Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		Getenv: func(key string) string {
			switch key {
			case "LOKT_OWNER":
				return d.Owner
			case "LOKT_ROOT":
				return filepath.Join(d.Dir, "root")
			}
			return ""
		},
		Environ: os.Environ,
		Dir:     func() (string, error) { return d.Dir, nil },
	}, app.Dial)
	return code, stdout.String(), stderr.String()
}

// Must runs a command line that succeeds.
func (d Desk) Must(args ...string) (out string) {
	d.T.Helper()
	code, out, errs := d.Lokt(args...)
	if code != 0 {
		d.T.Fatalf("lokt %s: exit %d: %s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// JSON runs a command line with --json and decodes what it writes.
func (d Desk) JSON(v any, args ...string) (code int) {
	d.T.Helper()
	code, out, errs := d.Lokt(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		d.T.Fatalf("lokt %s: exit %d: %v: %s%s", strings.Join(args, " "), code, err, out, errs)
	}
	return code
}

// Write puts a file below the root.
func (d Desk) Write(name, text string) {
	d.T.Helper()
	path := filepath.Join(d.Dir, "root", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		d.T.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.T.Fatal(err)
	}
}

// Record puts a lock's record below the root, as an older program would have written it.
func (d Desk) Record(dir string, r lockfile.Record) {
	d.T.Helper()
	if r.AcquiredTS.IsZero() {
		r.AcquiredTS = time.Now()
	}
	data, err := r.Encode(nil)
	if err != nil {
		d.T.Fatal(err)
	}
	d.Write(filepath.Join(dir, r.Name+".json"), string(data))
}

// Newer is a record that a later program wrote, which this one cannot read.
const Newer = `{"version":99,"name":"x","owner":"zoe"}`

// Server is an app.Remote in this process.
type Server struct {
	store *memstore.Store
	Info  app.ServerInfo
	Down  error // what Ask answers
}

func (f *Server) Locks() lokt.Service                         { return lokt.NewManager(f.store) }
func (f *Server) Events() lokt.EventLog                       { return f.store }
func (f *Server) Jobs() jobs.Service                          { return nil }
func (f *Server) Know(...string)                              {}
func (f *Server) Close() error                                { return nil }
func (f *Server) Ask(context.Context) (app.ServerInfo, error) { return f.Info, f.Down }

// Shown hides all of a lease ID but the end.
func (f *Server) Shown(leaseID string) string {
	if strings.HasPrefix(leaseID, "L-") {
		return leaseID
	}
	return "L-" + leaseID[max(0, len(leaseID)-4):]
}

// AtServer is a desk whose commands are about a server.
type AtServer struct {
	t        *testing.T
	commands []app.Command
	Server   *Server
	env      map[string]string
	Asked    []app.Server // that were dialled
}

func NewAtServer(t *testing.T, commands []app.Command, env ...string) *AtServer {
	a := &AtServer{t: t, commands: commands, Server: &Server{store: memstore.New()}, env: map[string]string{"LOKT_SERVER": "http://127.0.0.1:7117", "LOKT_OWNER": "ann"}}
	a.Server.Info = app.ServerInfo{URL: "http://127.0.0.1:7117", Version: "dev", Store: "memory", Anonymous: true, Locks: true, Events: true, RoundTrip: time.Millisecond}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		a.env[k] = v
	}
	return a
}

// Lokt runs a command line.
func (a *AtServer) Lokt(args ...string) (code int, out, errs string) {
	a.t.Helper()
	var stdout, stderr bytes.Buffer
	dir := a.t.TempDir()
	code = app.Run(a.commands, args, app.Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		Getenv: func(key string) string { return a.env[key] },
		Environ: func() []string {
			var all []string
			for k, v := range a.env {
				all = append(all, k+"="+v)
			}
			return all
		},
		Dir: func() (string, error) { return dir, nil },
	}, func(s app.Server) (app.Remote, error) {
		a.Asked = append(a.Asked, s)
		return a.Server, nil
	})
	return code, stdout.String(), stderr.String()
}
