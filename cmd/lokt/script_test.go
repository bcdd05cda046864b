package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// The scripts in testdata run the real program. Beside testscript's own commands they have:
//
//	exits CODE PROGRAM ARG...   runs a program, which must end with this very exit code
//	json FILE PATH [VALUE]      FILE is one JSON value and has something at PATH: VALUE, or what matches the regular
//	                            expression after a ~. PATH is keys and indexes with dots between; len is a length. With !
//	                            there is nothing at PATH, or something else than VALUE
//	jsonenv NAME FILE PATH      sets an environment variable to what is at PATH
//	await FILE [REGEXP]         waits until the file is there (and has a match)
//	queued NAME OWNER           waits until the owner is in the queue of the lock
//
// Some of them run a second time with a server in LOKT_SERVER, and then the condition [server] is true.
//
// and, for child processes, the program hold STARTED GO, which makes the file STARTED and waits until there is a file GO.

// patience is how long a script waits for what must happen.
const patience = 2 * time.Minute

func TestScripts(t *testing.T) {
	t.Parallel()
	p := scripts(nil)
	p.Dir = "testdata"
	testscript.Run(t, p)
}

// scripts returns how scripts are run: with the server that start starts for each, or with files if it is nil.
func scripts(start func(env *testscript.Env) (url string, err error)) testscript.Params {
	return testscript.Params{
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			path, err := program()
			if err != nil {
				return err
			}
			env.Setenv("PATH", filepath.Dir(path)+string(filepath.ListSeparator)+env.Getenv("PATH"))
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("HOME", home)
			if start != nil {
				url, err := start(env)
				if err != nil {
					return err
				}
				env.Setenv("LOKT_SERVER", url)
			}
			return os.Mkdir(home, 0o700)
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root": // whom permissions do not stop
				return os.Geteuid() == 0, nil
			case "server":
				return start != nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   cmdExits,
			"json":    cmdJSON,
			"jsonenv": cmdJSONEnv,
			"await":   cmdAwait,
			"queued":  cmdQueued,
		},
	}
}

func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, not %d", got, want)
	}
}

func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: [!] json FILE PATH [VALUE]")
	}
	got, found := lookUp(ts, args[0], args[1])
	switch {
	case len(args) == 2 && found == neg:
		ts.Fatalf("%s: found is %v: %s", args[1], found, got)
	case len(args) == 2:
		return
	case !found && !neg:
		ts.Fatalf("nothing at %s", args[1])
	}
	same := got == args[2]
	if pattern, ok := strings.CutPrefix(args[2], "~"); ok {
		re, err := regexp.Compile(pattern)
		ts.Check(err)
		same = re.MatchString(got)
	}
	if found && same == neg {
		ts.Fatalf("%s is %s", args[1], got)
	}
}

func cmdJSONEnv(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: jsonenv NAME FILE PATH")
	}
	got, found := lookUp(ts, args[1], args[2])
	if !found {
		ts.Fatalf("nothing at %s", args[2])
	}
	ts.Setenv(args[0], got)
}

// lookUp returns what is at the path in a file that has one JSON value.
func lookUp(ts *testscript.TestScript, file, path string) (text string, found bool) {
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(file)))
	dec.UseNumber()
	var doc any
	ts.Check(dec.Decode(&doc))
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		ts.Fatalf("%s has more than one JSON value", file)
	}
	return at(doc, path)
}

// at returns what is at the path in the document, as text.
func at(doc any, path string) (text string, found bool) {
	for _, key := range strings.Split(path, ".") {
		switch v := doc.(type) {
		case map[string]any:
			if doc, found = v[key]; key == "len" {
				doc, found = len(v), true
			}
		case []any:
			i, err := strconv.Atoi(key)
			if found = err == nil && i < len(v); found {
				doc = v[i]
			} else if found = key == "len"; found {
				doc = len(v)
			}
		default:
			found = path == "."
		}
		if !found {
			return "", false
		}
	}
	if s, ok := doc.(string); ok {
		return s, true
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(doc); err != nil {
		return err.Error(), true
	}
	return strings.TrimSuffix(b.String(), "\n"), true
}

func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: await FILE [REGEXP]")
	}
	re := regexp.MustCompile("")
	if len(args) == 2 {
		var err error
		re, err = regexp.Compile("(?m)" + args[1])
		ts.Check(err)
	}
	if !poll(patience, func() bool {
		data, err := os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && re.Match(data)
	}) {
		ts.Fatalf("waited in vain for %s", args[0])
	}
}

func cmdQueued(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: queued NAME OWNER")
	}
	if !poll(patience, func() bool {
		if ts.Exec("lokt", "status", args[0], "--json") != nil {
			return false
		}
		var lock struct {
			Queue []struct{ Owner string }
		}
		ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &lock))
		return slices.ContainsFunc(lock.Queue, func(w struct{ Owner string }) bool { return w.Owner == args[1] })
	}) {
		ts.Fatalf("waited in vain for %s in the queue of %s", args[1], args[0])
	}
}

// hold is a program for the scripts to guard.
func hold() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: hold STARTED GO")
		os.Exit(1)
	}
	if err := os.WriteFile(os.Args[1], nil, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if !poll(patience, func() bool { _, err := os.Stat(os.Args[2]); return err == nil }) {
		fmt.Fprintln(os.Stderr, "waited in vain for", os.Args[2])
		os.Exit(1)
	}
}

// poll looks until it is done, and reports whether it is in time. It looks the less often the longer it takes and has taken.
func poll(atMost time.Duration, done func() bool) bool {
	for began := time.Now(); ; {
		looked := time.Now()
		if done() {
			return true
		}
		if looked.Sub(began) > atMost {
			return false
		}
		time.Sleep(min(max(3*time.Millisecond, 4*time.Since(looked), time.Since(began)/20), 200*time.Millisecond))
	}
}
