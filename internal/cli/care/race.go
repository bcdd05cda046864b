package care

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/process"
)

// The demonstration and doctor --prove let processes race: each reads a number from a file, thinks, and writes back one
// more. Whether two are in at once is found out by means that have nothing to do with lokt.

const (
	cmdAddOne   = "__add-one"
	exitOverlap = 9 // of a process that met another one
	racers      = 4
)

func newAddOne(cmd) *cobra.Command {
	return &cobra.Command{
		Use:    cmdAddOne + " FILE DURATION",
		Short:  "Add one to the number in a file, slowly, for a race",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			thinking, err := time.ParseDuration(args[1])
			if err != nil {
				return app.Usage(err)
			}
			overlap, err := addOne(args[0], thinking)
			if err == nil && overlap {
				err = app.Exit(exitOverlap)
			}
			return err
		},
	}
}

// addOne adds one to the number in the file without care. In between it makes a file that must not be there yet, and
// reports whether it was.
func addOne(path string, thinking time.Duration) (overlap bool, err error) {
	marker := path + ".inside"
	f, err := os.OpenFile(marker, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if overlap = errors.Is(err, fs.ErrExist); err != nil && !overlap {
		return false, err
	}
	n, err := readCount(path)
	if err == nil {
		time.Sleep(thinking)
		err = os.WriteFile(path, []byte(strconv.Itoa(n+1)+"\n"), 0o600)
	}
	if !overlap {
		err = errors.Join(err, f.Close(), os.Remove(marker))
	}
	return overlap, err
}

// readCount returns the number in a file; a file that is not there, or that is being written, has 0.
func readCount(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n, nil
}

// race is how a race came out.
type race struct {
	Entered  int   `json:"expected"`
	Count    int   `json:"got"`
	Lost     int   `json:"lost"` // updates
	Millis   int64 `json:"elapsed_ms"`
	overlaps int
}

// race lets processes add one to the number in a file, each again and again while it may. They run this program, with the
// arguments before those that make it add one, and know nothing of the locks that their caller may hold. Even with an error
// the result has the overlaps so far.
func (a cmd) race(ctx context.Context, path string, thinking time.Duration, again func(rounds int) bool, args ...string) (r race, err error) {
	program, err := os.Executable()
	if err != nil {
		return r, err
	}
	if len(args) > 0 {
		args = append(slices.Clone(args), "--", program)
	}
	args = append(args, cmdAddOne, path, thinking.String())
	if err := os.WriteFile(path, []byte("0\n"), 0o600); err != nil {
		return r, err
	}
	start := time.Now()
	var mu sync.Mutex
	var running sync.WaitGroup
	for range racers {
		running.Go(func() {
			for n := 0; again(n); n++ {
				overlap, e := a.enter(ctx, program, args)
				mu.Lock()
				r.Entered++
				if overlap {
					r.overlaps++
				}
				err = errors.Join(err, e)
				mu.Unlock()
				if e != nil {
					return
				}
			}
		})
	}
	running.Wait()
	r.Millis = time.Since(start).Milliseconds()
	if cause := context.Cause(ctx); cause != nil {
		return r, cause
	}
	if err == nil {
		r.Count, err = readCount(path)
		r.Lost = r.Entered - r.Count
	}
	return r, err
}

// enter runs the program once.
func (a cmd) enter(ctx context.Context, program string, args []string) (overlap bool, err error) {
	var errOut bytes.Buffer
	c := exec.CommandContext(ctx, program, args...)
	c.Env = slices.DeleteFunc(slices.Clone(a.Environ()), func(kv string) bool { return strings.HasPrefix(kv, "LOKT_") })
	c.Stderr = &errOut
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 5 * time.Second
	err = c.Run()
	if c.ProcessState != nil && c.ProcessState.ExitCode() == exitOverlap {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return false, nil
}

const (
	demoRounds   = 5 // of each process
	demoThinking = 20 * time.Millisecond
	demoLimit    = 5 * time.Minute // on a machine that does much else
	demoTries    = 3               // of the race that is meant to be lost
)

func newDemo(a cmd) *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show a race, and the same with a lock",
		Long: "Show what happens when several programs change a file at once, and what happens when lokt guard runs them. Everything\n" +
			"takes place in a temporary directory, with real processes, and takes a few seconds at most.",
		Example: "  lokt demo\n  lokt demo --json",
		Args:    app.NoArgs,
		RunE:    func(*cobra.Command, []string) error { return a.runDemo() },
	}
}

func (a cmd) runDemo() (err error) {
	dir, err := os.MkdirTemp("", "lokt-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	narrate := func(format string, args ...any) {
		if !a.JSON {
			a.Say(format, args...)
		}
	}
	run := func(args ...string) (race, error) {
		return a.race(ctx, filepath.Join(dir, "counter.txt"), demoThinking, func(n int) bool { return n < demoRounds }, args...)
	}
	show := func(r race) {
		verdict := "nothing was lost"
		if r.Lost != 0 {
			verdict = fmt.Sprintf("%d updates were lost", r.Lost)
		}
		narrate("  expected %d, got %d: %s (%s)\n", r.Entered, r.Count, verdict, app.Short(time.Duration(r.Millis)*time.Millisecond))
	}
	narrate("%d workers add one to the number in a file, %d times each, all at once. Each time a program reads the number,", racers, demoRounds)
	narrate("thinks for %v, and writes back one more.\n", demoThinking)
	narrate("Without lokt:   add-one counter.txt")
	var without race
	for try := 0; try < demoTries && without.Lost == 0; try++ {
		if without, err = run(); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	show(without)
	narrate("With lokt:      lokt guard counter --wait -- add-one counter.txt")
	with, err := run("guard", "counter", "--wait", "--timeout", demoLimit.String(), "--root", filepath.Join(dir, "locks"))
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	show(with)
	end := app.Exit(app.ExitOK)
	if with.Lost != 0 {
		end = app.Exit(app.ExitError)
	}
	switch {
	case a.JSON:
		return errors.Join(a.Print(struct {
			Without race `json:"without"`
			With    race `json:"with"`
			OK      bool `json:"ok"` // with lokt nothing was lost
		}{without, with, with.Lost == 0}), end)
	case with.Lost != 0:
		a.Tell("the guarded programs were not kept apart, which must not happen: look with lokt doctor --prove")
	case without.Lost == 0:
		narrate("This machine was too busy to run two programs at once, so nothing was lost either way. Try again.")
	default:
		narrate("The first lost updates because programs read the same number. The second took a little longer and lost none:")
		narrate("try it on your own: lokt guard build --ttl 5m -- make build")
	}
	return end
}

const (
	proofPrefix   = ".prove-" // of a directory of its own inside the root, so that neither its locks nor its log are touched
	proofTime     = 2 * time.Second
	proofPatience = 20 * time.Second // for all to end, on a busy machine
	proofThinking = 100 * time.Microsecond
)

func (d *doctor) checkExclusion(ctx context.Context) {
	const name = "exclusion"
	if d.store == nil {
		d.fail(name, "", "not tried, for the locks cannot be used")
		return
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r, err := d.tryExclusion(ctx)
	kind, _ := process.LocalFS(existing(d.root.Path))
	switch {
	case r.overlaps > 0 || r.Lost != 0:
		d.fail(name, fmt.Sprintf("do not keep locks on this file system (%s): set LOKT_ROOT to a local disk", kind),
			"%d processes entered %d times; %d times another was in already, and %d of their updates were lost", racers, r.Entered, r.overlaps, r.Lost)
	case err != nil:
		d.fail(name, "", "the race could not be run: %v", err)
	default:
		d.ok(name, "%d processes entered %d times in %s, and never two at once", racers, r.Entered, app.Short(proofTime))
	}
}

// tryExclusion runs the race of guards.
func (d *doctor) tryExclusion(ctx context.Context) (r race, err error) {
	if err := os.MkdirAll(filepath.Dir(d.root.Path), 0o700); err != nil {
		return r, err
	}
	if os.Mkdir(d.root.Path, 0o700) == nil {
		defer func() { _ = os.Remove(d.root.Path) }() // fails if others use it by now
	}
	root, err := os.MkdirTemp(d.root.Path, proofPrefix)
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp("", "lokt-prove-")
	defer func() { err = errors.Join(err, os.RemoveAll(root), os.RemoveAll(dir)) }()
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, proofTime+proofPatience)
	defer cancel()
	until := time.Now().Add(proofTime)
	return d.race(ctx, filepath.Join(dir, "count"), proofThinking, func(int) bool { return time.Now().Before(until) },
		"guard", "prove", "--wait", "--timeout", proofPatience.String(), "--root", root)
}
