//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// A lokt that is granted the paths in the moment in which the client gives up.
const lateGrant = `#!/bin/sh
trap '' INT
case "$*" in
*--release*) touch released ;;
*--why=later*) echo "lokt: waiting, 1st; go on with: lokt wait --ticket abc" >&2; exit 2 ;;
*--wait*|*--ticket*) trap 'echo "reserved a until it is released"; exit' INT
	echo "lokt: waiting, 1st; go on with: lokt wait --ticket abc" >&2
	touch waits; while :; do sleep 0.05; done ;;
*) touch begun; until [ -e go ]; do sleep 0.05; done; echo "reserved a until it is released" ;;
esac
`

// Promise S-287.
func TestWhatIsReservedForACancelledRequestIsGivenBack(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join(built, "lokt-mcp"))
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "lokt-mcp"), program, 0o700), os.WriteFile(filepath.Join(dir, "lokt"), []byte(lateGrant), 0o700)); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), filepath.Join(dir, "lokt-mcp"))
	c.Dir = dir
	in, noIn := c.StdinPipe()
	out, noOut := c.StdoutPipe()
	if err := errors.Join(noIn, noOut, c.Start()); err != nil {
		t.Fatal(err)
	}
	answers := json.NewDecoder(out)
	say := func(format string, args ...any) {
		t.Helper()
		if _, err := fmt.Fprintf(in, `{"jsonrpc":"2.0",`+format+"}\n", args...); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(id int) {
		t.Helper()
		for {
			var a struct{ ID int }
			if err := answers.Decode(&a); err != nil {
				t.Fatal(err)
			}
			if a.ID == id {
				return
			}
		}
	}
	answered := func(id int) {
		t.Helper()
		say(`"id":%d,"method":"ping"`, id)
		hear(id)
	}
	comes := func(file string, within time.Duration) bool {
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if os.Remove(filepath.Join(dir, file)) == nil {
				return true
			}
		}
		return false
	}
	await := func(file string) {
		t.Helper()
		if !comes(file, 30*time.Second) {
			t.Fatalf("there is no %s", file)
		}
	}
	say(`"id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	say(`"method":"notifications/initialized"`)
	say(`"id":2,"method":"tools/call","params":{"name":"reserve","arguments":{"patterns":["a"],"no_wait":true}}`)
	await("begun")
	say(`"method":"notifications/cancelled","params":{"requestId":2}`)
	answered(3) // so it has been read
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await("released")
	say(`"id":4,"method":"tools/call","params":{"name":"reserve","arguments":{"patterns":["a"],"why":"later"}}`)
	hear(4)
	id := 5
	for _, call := range []string{`"name":"reserve","arguments":{"patterns":["a"]}`, `"name":"wait","arguments":{"ticket":"abc"}`} {
		for heard := false; !heard; id += 2 { // until this machine is not too busy for it to hear of its end in time
			say(`"id":%d,"method":"tools/call","params":{%s}`, id, call)
			await("waits")
			say(`"method":"notifications/cancelled","params":{"requestId":%d}`, id)
			answered(id + 1)
			if heard = comes("released", 3*time.Second); !heard && id > 30 {
				t.Fatalf("what was granted for %s is not given back", call)
			}
		}
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	if err := errors.Join(in.Close(), c.Wait()); err != nil {
		t.Error(err)
	}
}
