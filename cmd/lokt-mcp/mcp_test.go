package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/lokt-dev/lokt/internal/testkit/programs"
)

// A client of the protocol uses every tool of the built program over its standard input and output.
//
// Promise S-223.
func TestAClientOfTheProtocolUsesEveryTool(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".git"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lokt.toml"), []byte("[[command]]\nrun = [\"make build\"]\nlock = \"build\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "LOKT_ROOT="+filepath.Join(dir, ".lokt"), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "LOKT_SERVER=", "LOKT_AGENT_ID=")
	command := func(owner string, args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), filepath.Join(built, "lokt"), args...)
		c.Dir, c.Env = dir, append(env, "LOKT_OWNER="+owner)
		return c
	}
	run := func(owner string, args ...string) {
		t.Helper()
		if out, err := command(owner, args...).CombinedOutput(); err != nil {
			t.Fatalf("lokt %v: %v: %s", args, err, out)
		}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: command("agent", "mcp")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	list, err := session.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 6 {
		t.Fatalf("there are the tools %v, %v", list, err)
	}
	call := func(failed bool, tool, want string, args map[string]any) string {
		t.Helper()
		ctx, done := context.WithTimeout(t.Context(), 45*time.Second) // a tool takes 18 s at most, and the machine some
		defer done()
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatalf("%s %v: %v", tool, args, err)
		}
		text := r.Content[0].(*mcp.TextContent).Text
		if r.IsError != failed || !strings.Contains(text, want) || len(text) > 1000 {
			t.Errorf("%s %v is answered (error: %v, %d bytes) %s, want %s", tool, args, r.IsError, len(text), text, want)
		}
		return text
	}
	call(false, "guards", "it needs build. Run this line instead, which waits for its turn:\ncd . && lokt guard build", map[string]any{"command": "cd . && make build"})
	call(false, "guards", "nothing guards it", map[string]any{"command": "ls"})
	call(false, "reserve", "reserved src/**", map[string]any{"patterns": []string{"src/**"}, "why": "bd-1", "ttl": "1h"})
	call(false, "status", "src/**", map[string]any{})
	call(false, "release", "released src/**", map[string]any{})
	call(true, "release", "no such reservation", map[string]any{})
	call(true, "reserve", "give the patterns", map[string]any{"patterns": []string{}})
	call(true, "wait", "run this in a shell: lokt wait --ticket abcdef", map[string]any{"ticket": "abcdef"})
	run("zoe", "lock", "build")
	call(false, "ask", "asked zoe@", map[string]any{"lock": "build", "question": "soon?"})
	call(false, "status", "zoe@", map[string]any{"lock": "build"})
	run("zoe", "unlock", "build")
	call(false, "wait", "build", map[string]any{"locks": []string{"build"}})

	// Who waits longer than a tool may take goes on in the same place.
	run("zoe", "reserve", "doc/**")
	call(false, "status", "doc/a` is reserved by zoe@", map[string]any{"paths": []string{"doc/a"}})
	begun := time.Now()
	waiting := call(false, "reserve", "waiting, 1st in the queue: doc/** is reserved by zoe@", map[string]any{"patterns": []string{"doc/a"}})
	if took := time.Since(begun); took < 15*time.Second {
		t.Errorf("it gave up after %v", took)
	}
	ticket := regexp.MustCompile(`(?m)^ticket: ([a-z2-7]{6})$`).FindStringSubmatch(waiting)
	if ticket == nil || !strings.Contains(waiting, "lokt wait --ticket "+ticket[1]) {
		t.Fatalf("there is no ticket in %s", waiting)
	}
	timer := time.AfterFunc(time.Second, func() {
		if out, err := command("zoe", "reserve", "--release").CombinedOutput(); err != nil {
			t.Errorf("release: %v: %s", err, out)
		}
	})
	defer timer.Stop()
	call(false, "wait", "reserved doc/a", map[string]any{"ticket": ticket[1]})
}

// Promise S-287.
func TestASignalEndsTheServerThoughAToolWaits(t *testing.T) {
	t.Parallel()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)              // what this process ignores, as under nohup, its programs do, too
	for _, sent := range []os.Signal{syscall.SIGTERM, syscall.SIGHUP} { // the latter when a terminal is closed
		t.Run(sent.String(), func(t *testing.T) { endsBy(t, sent) })
	}
}

func endsBy(t *testing.T, sent os.Signal) {
	t.Helper()
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	lokt := func(owner string, args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), filepath.Join(built, "lokt"), args...)
		c.Dir, c.Env = dir, append(os.Environ(), "LOKT_ROOT="+filepath.Join(dir, ".lokt"), "XDG_CACHE_HOME="+dir, "LOKT_SERVER=", "LOKT_AGENT_ID=", "LOKT_OWNER="+owner)
		return c
	}
	if out, err := lokt("zoe", "reserve", "a").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := lokt("agent", "mcp")
	in, err := c.StdinPipe()
	if err := errors.Join(err, c.Start()); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"reserve","arguments":{"patterns":["a"]}}}`,
	} {
		if _, err := io.WriteString(in, line+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		out, err := lokt("zoe", "reserve", "--json").Output()
		if strings.Contains(string(out), `"waiters":1`) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the tool does not wait: %v, %s", err, out)
		}
	}
	begun := time.Now()
	if err := errors.Join(c.Process.Signal(sent), c.Wait()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it ended after %v", took)
	}
}

func TestToolsInOtherDirectoriesFindTheLocksThatTheServerWasTold(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	lokt := func(args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), filepath.Join(built, "lokt"), append([]string{"--root", "locks"}, args...)...)
		c.Dir, c.Env = dir, append(os.Environ(), "LOKT_SERVER=", "LOKT_AGENT_ID=", "LOKT_OWNER=zoe")
		return c
	}
	if out, err := lokt("lock", "build").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: lokt("mcp")}, nil)
	if err = errors.Join(err, os.Mkdir(filepath.Join(dir, "sub"), 0o700)); err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "status", Arguments: map[string]any{"lock": "build", "directory": "sub"}})
	if err != nil {
		t.Fatal(err)
	}
	if text := r.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, "zoe@") {
		t.Errorf("it says %s", text)
	}
}

// Promise S-287.
func TestTheServerEndsThoughNobodyTakesItsAnswers(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	for _, signal := range []os.Signal{nil, syscall.SIGTERM} {
		c := exec.CommandContext(t.Context(), filepath.Join(built, "lokt-mcp"))
		c.Dir = t.TempDir()
		in, noIn := c.StdinPipe()
		out, to, noOut := os.Pipe()
		c.Stdout = to
		if err := errors.Join(noIn, noOut, c.Start(), to.Close()); err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		for i := range 3000 { // whose answers are more than a pipe holds
			if _, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,"method":"ping"}`+"\n", i); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // it has begun
			t.Fatal(err)
		}
		if signal == nil {
			err = in.Close()
		} else {
			err = c.Process.Signal(signal)
		}
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("with signal %v: %v", signal, err)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("with signal %v it does not end", signal)
		}
	}
}

// Promise S-287.
func TestAToolSaysThatItHasNoAnswer(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := exec.CommandContext(t.Context(), filepath.Join(built, "lokt"), "--server", "http://"+silent.Addr().String(), "mcp")
	c.Dir, c.Env = t.TempDir(), append(os.Environ(), "LOKT_AGENT_ID=", "LOKT_OWNER=agent")
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: c}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	for want, call := range map[string]*mcp.CallToolParams{
		"no answer within 19s": {Name: "reserve", Arguments: map[string]any{"patterns": []string{"a"}, "no_wait": true}},
		"no such file":         {Name: "guards", Arguments: map[string]any{"command": "make", "directory": "gone"}},
	} {
		r, err := session.CallTool(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		if text := r.Content[0].(*mcp.TextContent).Text; !r.IsError || !strings.Contains(text, want) {
			t.Errorf("%s is answered %s, want %s", call.Name, text, want)
		}
	}
}

// Promise S-250.
func TestWhatIsNoMessageIsAnsweredAndTheServerGoesOn(t *testing.T) {
	t.Parallel()
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	number := regexp.MustCompile(`"id":([0-9.]{2,}),`) // that cannot be kept, and that the error has
	for line, want := range map[string]float64{
		"garbage": -32700, ping + " x": -32700, `{"jsonrpc":`: -32700, "\xff": -32700, strings.Repeat("x", 17<<20): -32600,
		"5": -32600, "[]": -32600, "[" + ping + "]": -32600, `{"a":1}`: -32600, `{"jsonrpc":"1.0","id":7,"method":"ping"}`: -32600,
		`{"jsonrpc":"2.0","id":7,"method":5}`: -32600, `{"jsonrpc":"2.0","id":true,"method":"ping"}`: -32600, `{"jsonrpc":"2.0","id":7}`: -32600,
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`: -32600, `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`: -32600,
		"": 0, " \r": 0, `{"jsonrpc":"2.0","id":7,"result":{}}`: 0,
	} {
		ctx, done := context.WithTimeout(t.Context(), time.Minute)
		defer done()
		c := exec.CommandContext(ctx, filepath.Join(built, "lokt-mcp"))
		c.Dir = t.TempDir()
		in, noIn := c.StdinPipe()
		out, noOut := c.StdoutPipe()
		if err := errors.Join(noIn, noOut, c.Start()); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, line+"\n"+ping+" \n"); err != nil {
			t.Errorf("%.80q: %v", line, err)
		}
		codes := []float64{want, 0}
		if want == 0 {
			codes = codes[1:]
		}
		answers := json.NewDecoder(out)
		for _, code := range codes {
			var a struct {
				ID    json.RawMessage
				Error struct{ Code float64 }
			}
			id := "null"
			if n := number.FindStringSubmatch(line); n != nil && code != 0 {
				id = n[1]
			} else if code == 0 {
				id = "7"
			}
			if err := answers.Decode(&a); err != nil || a.Error.Code != code || string(a.ID) != id {
				t.Errorf("%.80q is answered %+v, %v; want %v", line, a, err, code)
			}
		}
		if err := errors.Join(in.Close(), c.Wait()); err != nil {
			t.Errorf("%.80q: %v", line, err)
		}
	}
}

// The registry's form wants a name like a domain, at most 100 characters of description, and a version.
func TestTheFileForRegistriesIsWhatTheyTake(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "server.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Schema                     string `json:"$schema"`
		Name, Description, Version string
	}
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+$`).MatchString(f.Name) || f.Description == "" || len(f.Description) > 100 || f.Version == "" || f.Schema == "" {
		t.Errorf("it has %+v", f)
	}
}
