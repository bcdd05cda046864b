// Package clitest is a place for tests to type commands at.
package clitest

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/lockfile"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Desk is where a test types commands: a directory, and variables of the environment.
type Desk struct {
	T        testing.TB
	Dir      string
	env      map[string]string
	commands []app.Command
}

// New returns a desk in an empty directory, with its root below.
func New(t testing.TB, owner string, commands []app.Command) Desk {
	d := Desk{T: t, Dir: t.TempDir(), commands: commands}
	return d.With("LOKT_OWNER="+owner, "LOKT_ROOT="+filepath.Join(d.Dir, "root"))
}

// As returns another owner's desk in the same directory.
func (d Desk) As(owner string) Desk { return d.With("LOKT_OWNER=" + owner) }

// With returns a desk in the same directory, with further variables.
func (d Desk) With(env ...string) Desk {
	d.env = maps.Clone(d.env)
	if d.env == nil {
		d.env = map[string]string{}
	}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		d.env[k] = v
	}
	return d
}

// Lokt runs a command line and returns how it ended and what it wrote.
func (d Desk) Lokt(args ...string) (code int, out, errs string) {
	d.T.Helper()
	var stdout, stderr bytes.Buffer
	code = app.Run(d.commands, args, app.Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		Getenv: func(key string) string { return d.env[key] },
		Environ: func() (all []string) {
			for k, v := range d.env {
				all = append(all, k+"="+v)
			}
			return all
		},
		Dir: func() (string, error) { return d.Dir, nil },
	})
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

// Server returns a server of locks and events in memory, which ends with the test.
func Server(t testing.TB) *httptest.Server {
	store := memstore.New()
	s := httptest.NewServer(httpapi.NewHandler(httpapi.Config{
		Locks: lokt.NewManager(store), Events: store, About: httpapi.About{Version: "dev", Store: "memory"},
	}))
	t.Cleanup(s.Close)
	return s
}
