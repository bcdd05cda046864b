package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/lockfile"
	"github.com/lokt-dev/lokt/store/filestore"
)

// command returns a function that runs a program on a root of its own and expects it to succeed.
func (e *env) command(root string, args ...string) func() error {
	return func() error {
		cmd := exec.CommandContext(e.ctx, args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "LOKT_ROOT="+root, "LOKT_OWNER=bench")
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%v: %w", args, err)
		}
		return nil
	}
}

func commandLine(e *env) ([]result, error) {
	root := filepath.Join(e.dir, "cli")
	file := filepath.Join(e.dir, "flock")
	t, err := inTurn(e.n(400),
		e.command(root, e.lokt, "guard", "x", "--", "true"),
		e.command(root, "flock", file, "true"),
		e.command(root, "true"),
		e.command(root, e.lokt, "version"),
	)
	if err != nil {
		return nil, err
	}
	guard := compare("`lokt guard x -- true` against `flock F true`", t[0], t[1], "flock", 1.6)
	guard.note = "most of it is the start of a Go program, which the next row shows alone; to get there takes a smaller command line library and a start with fewer threads"
	return []result{
		guard,
		compare("`lokt version`, the start alone, against `true`", t[3], t[2], "true", 0),
	}, nil
}

// fill writes n records of locks that somebody holds.
func fill(root string, n int) error {
	s, err := filestore.Open(root, filestore.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	first := lokt.Claim{Name: "other-0", Owner: lokt.Owner{ID: "somebody", Host: s.Host()}, TTL: time.Hour, Attended: true}
	if _, err := lokt.NewManager(s).Acquire(ctx, first); err != nil {
		return err
	}
	template, err := os.ReadFile(filepath.Join(root, "locks", "other-0.json"))
	if err != nil {
		return err
	}
	if _, err := lockfile.Decode("other-0", template); err != nil {
		return err
	}
	for i := 1; i < n; i++ {
		name := "other-" + strconv.Itoa(i)
		record := bytes.Replace(template, []byte(`"other-0"`), []byte(`"`+name+`"`), 1)
		if err := os.WriteFile(filepath.Join(root, "locks", name+".json"), record, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func manyLocks(e *env) ([]result, error) {
	const many = 10_000
	one, full := filepath.Join(e.dir, "one"), filepath.Join(e.dir, "full")
	if err := errors.Join(fill(one, 1), fill(full, many)); err != nil {
		return nil, err
	}
	t, err := inTurn(e.n(200),
		e.command(full, e.lokt, "lock", "mine"), e.command(one, e.lokt, "lock", "mine"),
		e.command(full, e.lokt, "exists", "other-0"), e.command(one, e.lokt, "exists", "other-0"),
	)
	if err != nil {
		return nil, err
	}
	s, err := inTurn(e.n(15), e.command(full, e.lokt, "status"), e.command(full, e.lokt, "status", "--json"))
	if err != nil {
		return nil, err
	}
	return []result{
		compare("`lokt lock` with 10,000 other locks against 1", t[0], t[1], "one lock", 1.3),
		compare("`lokt exists` with 10,000 other locks against 1", t[2], t[3], "one lock", 1.3),
		{what: "`lokt status` of 10,000 locks", ours: ms(s[0]), ratio: s[0].Seconds(), aim: 0.25, unit: "s"},
		{what: "`lokt status --json` of 10,000 locks", ours: ms(s[1]), ratio: s[1].Seconds(), aim: 0.25, unit: "s"},
	}, nil
}

func waiting(e *env) ([]result, error) {
	handOff, err := e.handOff()
	if err != nil {
		return nil, err
	}
	root, file := filepath.Join(e.dir, "drain"), filepath.Join(e.dir, "drain.flock")
	t, err := inTurn(e.n(10),
		e.drain(root, e.lokt, "guard", "x", "--wait", "--", "sleep", "0.05"),
		e.drain(root, "flock", file, "sleep", "0.05"),
	)
	if err != nil {
		return nil, err
	}
	return []result{
		{what: "hand-off to a single waiter after a hold of 2 s", ours: ms(handOff), ratio: handOff.Seconds() * 1e3, aim: 5, unit: "ms",
			note: "from the end of one command to the start of the next"},
		compare("8 waiters with holds of 50 ms, until all are done", t[0], t[1], "flock", 2),
	}, nil
}

// stamp prints the time in nanoseconds.
const stamp = `date +%s%N`

// handOff measures from the end of a guarded command to the start of the one that waited for it.
func (e *env) handOff() (time.Duration, error) {
	var times []time.Duration
	for i := range e.n(15) {
		root := filepath.Join(e.dir, "hand-off-"+strconv.Itoa(i))
		var out [2]bytes.Buffer
		guard := func(b *bytes.Buffer, script string, flags ...string) *exec.Cmd {
			cmd := exec.CommandContext(e.ctx, e.lokt, append(append([]string{"guard", "x"}, flags...), "--", "sh", "-c", script)...)
			cmd.Env = append(os.Environ(), "LOKT_ROOT="+root)
			cmd.Stdout = b
			return cmd
		}
		first := guard(&out[0], "sleep 2; "+stamp)
		held, err := first.StderrPipe()
		if err != nil {
			return 0, err
		}
		if err := first.Start(); err != nil {
			return 0, err
		}
		go func() { _ = bufio.NewScanner(held).Scan() }()
		if err := eventually(func() bool { _, err := os.Stat(filepath.Join(root, "locks", "x.json")); return err == nil }); err != nil {
			return 0, err
		}
		second := guard(&out[1], stamp, "--wait")
		if err := second.Start(); err != nil {
			return 0, err
		}
		if err := errors.Join(first.Wait(), second.Wait()); err != nil {
			return 0, err
		}
		from, err1 := strconv.ParseInt(strings.TrimSpace(out[0].String()), 10, 64)
		to, err2 := strconv.ParseInt(strings.TrimSpace(out[1].String()), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return 0, err
		}
		times = append(times, time.Duration(to-from))
	}
	return median(times), nil
}

// eventually waits for something that another process does.
func eventually(done func() bool) error {
	for range 5000 {
		if done() {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("it did not happen within 5 s")
}

// drain starts 8 of the same command at once and waits for all.
func (e *env) drain(root string, args ...string) func() error {
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
