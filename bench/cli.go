//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// command returns what runs a program once, on a root of its own.
func (e *env) command(root string, args ...string) func() error {
	return func() error {
		if err := e.prepare(root, args...).Run(); err != nil {
			return fmt.Errorf("%v: %w", args, err)
		}
		return nil
	}
}

func (e *env) prepare(root string, args ...string) *exec.Cmd {
	path := args[0]
	if path == "lokt" {
		path = filepath.Join(e.dir, "lokt")
	}
	cmd := exec.Command(path, args[1:]...) //nolint:noctx // ends by itself
	cmd.Dir = e.dir
	cmd.Env = append(os.Environ(), "LOKT_ROOT="+filepath.Join(e.dir, root), "LOKT_OWNER=bench")
	return cmd
}

// guard compares a guarded command with flock's, and the start alone with that of a program that does nothing.
func guard(e *env) ([]row, error) {
	t, err := inTurn(e.n(400),
		timed(e.command("cli", "lokt", "guard", "x", "--", "true")), timed(e.command("cli", "flock", "file", "true")),
		timed(e.command("cli", "lokt", "version")), timed(e.command("cli", "true")))
	if err != nil {
		return nil, err
	}
	return []row{
		shorter("`lokt guard x -- true` against `flock F true`", t[0], t[1], "flock", 2.2),
		shorter("`lokt version`, the start alone, against `true`", t[2], t[3], "true", 0),
	}, nil
}

// waiting measures from the end of a guarded command to the start of the next, and 8 that wait for each other.
func waiting(e *env) ([]row, error) {
	var times []float64
	for i := range e.n(15) {
		t, err := e.handOff("hand-off-" + strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		times = append(times, t)
	}
	handOff := percentile(times, 0.5)
	t, err := inTurn(e.n(10),
		timed(e.eight("drain", "lokt", "guard", "x", "--wait", "--", "sleep", "0.05")),
		timed(e.eight("drain", "flock", "drain-file", "sleep", "0.05")))
	if err != nil {
		return nil, err
	}
	return []row{
		{what: "hand-off to a single waiter after a hold of 2 s", ours: seconds(handOff),
			figure: handOff * 1e3, unit: "ms", most: 5},
		shorter("8 waiters with holds of 50 ms, until all are done", t[0], t[1], "flock", 2),
	}, nil
}

func (e *env) handOff(root string) (float64, error) {
	const stamp = "date +%s%N"
	var out [2]bytes.Buffer
	first := e.prepare(root, "lokt", "guard", "x", "--", "sh", "-c", "sleep 2; "+stamp)
	second := e.prepare(root, "lokt", "guard", "x", "--wait", "--", "sh", "-c", stamp)
	first.Stdout, second.Stdout = &out[0], &out[1]
	if err := first.Start(); err != nil {
		return 0, err
	}
	for range 1500 { // until it holds
		if _, err := os.Stat(filepath.Join(e.dir, root, "locks", "x.json")); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := errors.Join(second.Start(), first.Wait(), second.Wait()); err != nil {
		return 0, err
	}
	from, err1 := strconv.ParseInt(strings.TrimSpace(out[0].String()), 10, 64)
	to, err2 := strconv.ParseInt(strings.TrimSpace(out[1].String()), 10, 64)
	return time.Duration(to - from).Seconds(), errors.Join(err1, err2)
}

// eight starts 8 of the same command at once and waits for all.
func (e *env) eight(root string, args ...string) func() error {
	return func() error {
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() { errs[i] = e.command(root, args...)() })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
}
