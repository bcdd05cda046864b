package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/lokt-dev/lokt/internal/testkit/ports"
)

// serverProgram returns the path of loktd.
func serverProgram() (string, error) {
	dir, err := programDir()
	return filepath.Join(dir, "loktd"), err
}

// daemon is a loktd that a test has started.
type daemon struct {
	store  string
	args   []string
	listen string // always the same
	url    string
	cmd    *exec.Cmd
	log    *bytes.Buffer // to be looked at when it has ended
}

// up starts the daemon and waits until it answers. Started again it has the same address.
func (d *daemon) up() error {
	path, err := serverProgram()
	if err != nil {
		return err
	}
	if d.listen == "" {
		addresses, err := ports.Free(1)
		if err != nil {
			return err
		}
		d.listen = addresses[0]
	}
	d.log = &bytes.Buffer{}
	d.cmd = exec.Command(path, append([]string{"serve", "--store", d.store, "--listen", d.listen}, d.args...)...)
	d.cmd.Stderr = d.log
	d.cmd.Env = withoutOurs(os.Environ())
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := d.cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, found := strings.Cut(strings.TrimSpace(line), "listening on ")
	if err != nil || !found {
		d.kill()
		return fmt.Errorf("loktd says %q (%w): %s", line, err, d.log)
	}
	_, d.listen, _ = strings.Cut(url, "://")
	d.url = url
	return nil
}

// kill ends the daemon without a word.
func (d *daemon) kill() {
	if d.cmd != nil && d.cmd.Process != nil {
		_ = d.cmd.Process.Kill() // it may have ended
		_ = d.cmd.Wait()         // the error is that it was killed
	}
}

// withoutOurs returns the environment without what means something to lokt or loktd.
func withoutOurs(env []string) []string {
	var rest []string
	for _, kv := range env {
		if !strings.HasPrefix(kv, "LOKT_") && !strings.HasPrefix(kv, "LOKTD_") {
			rest = append(rest, kv)
		}
	}
	return rest
}

// scriptsForBoth are the scripts that run on a server too, beside those in testdata/server.
var scriptsForBoth = []string{
	"refused", "freeze", "freeze_usage", "misc", "names", "prime", "promises_guard", "promises_tokens", "promises_waiting", "status", "turns", "unlock", "unlock_many",
	"watch", "why",
}

func TestScriptsOnAServer(t *testing.T) {
	t.Parallel()
	if _, err := serverProgram(); err != nil {
		t.Fatal(err)
	}
	p := scripts(func(env *testscript.Env) (string, error) {
		d := &daemon{store: "sqlite:" + filepath.Join(env.WorkDir, "loktd.db")}
		env.Defer(d.kill)
		err := d.up()
		return d.url, err
	})
	only, err := filepath.Glob(filepath.Join("testdata", "server", "*.txtar"))
	if err != nil || len(only) == 0 {
		t.Fatal("no scripts for servers", err)
	}
	p.Files = only
	for _, name := range scriptsForBoth {
		p.Files = append(p.Files, filepath.Join("testdata", name+".txtar"))
	}
	testscript.Run(t, p)
}
