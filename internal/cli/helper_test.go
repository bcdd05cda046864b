package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/lockfile"
)

// desk is where a test types commands: a directory, and an owner.
type desk struct {
	t     testing.TB
	dir   string
	owner string
}

// newDesk returns a desk in an empty directory.
func newDesk(t testing.TB, owner string) desk { return desk{t, t.TempDir(), owner} }

// as returns another owner's desk in the same directory.
func (d desk) as(owner string) desk {
	d.owner = owner
	return d
}

// lokt runs a command line and returns how it ended and what it wrote.
func (d desk) lokt(args ...string) (code int, out, errs string) {
	d.t.Helper()
	var stdout, stderr bytes.Buffer
	code = Main(args, Streams{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		Getenv: func(key string) string {
			switch key {
			case "LOKT_OWNER":
				return d.owner
			case "LOKT_ROOT":
				return filepath.Join(d.dir, "root")
			}
			return ""
		},
		Environ: os.Environ,
		Dir:     func() (string, error) { return d.dir, nil },
	})
	return code, stdout.String(), stderr.String()
}

// must runs a command line that succeeds.
func (d desk) must(args ...string) (out string) {
	d.t.Helper()
	code, out, errs := d.lokt(args...)
	if code != 0 {
		d.t.Fatalf("lokt %s: exit %d: %s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// json runs a command line with --json and decodes what it writes.
func (d desk) json(v any, args ...string) (code int) {
	d.t.Helper()
	code, out, errs := d.lokt(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		d.t.Fatalf("lokt %s: exit %d: %v: %s%s", strings.Join(args, " "), code, err, out, errs)
	}
	return code
}

// write puts a file below the root.
func (d desk) write(name, text string) {
	d.t.Helper()
	path := filepath.Join(d.dir, "root", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// record puts a lock's record below the root, as an older program would have written it.
func (d desk) record(dir string, r lockfile.Record) {
	d.t.Helper()
	if r.AcquiredTS.IsZero() {
		r.AcquiredTS = time.Now()
	}
	data, err := r.Encode(nil)
	if err != nil {
		d.t.Fatal(err)
	}
	d.write(filepath.Join(dir, r.Name+".json"), string(data))
}

// newer is a record that a later program wrote, which this one cannot read.
const newer = `{"version":99,"name":"x","owner":"zoe"}`
