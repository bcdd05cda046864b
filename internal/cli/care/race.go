package care

import (
	"bytes"
	"cmp"
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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/process"
)

// The demonstration and doctor --prove let processes race: each reads a number from a file, thinks, and writes back one
// more. Whether two were in at once is found out by means that have nothing to do with lokt: then a number is lost.

const (
	cmdAddOne = "__add-one"
	racers    = 4
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
			return addOne(args[0], thinking)
		},
	}
}

// addOne adds one to the number in the file, without care.
func addOne(path string, thinking time.Duration) error {
	n, err := readCount(path)
	if err != nil {
		return err
	}
	time.Sleep(thinking)
	return os.WriteFile(path, []byte(strconv.Itoa(n+1)+"\n"), 0o600)
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
	Entered int   `json:"expected"`
	Count   int   `json:"got"`
	Lost    int   `json:"lost"` // updates
	Millis  int64 `json:"elapsed_ms"`
}

// race lets processes add one to the number in a file, each again and again while it may. They run this program, with the
// arguments before those that make it add one, and know nothing of the locks that their caller may hold.
func (a cmd) race(ctx context.Context, dir string, thinking time.Duration, again func(rounds int) bool, args ...string) (r race, err error) {
	program, err := os.Executable()
	if err != nil {
		return r, err
	}
	if len(args) > 0 {
		args = append(slices.Clone(args), "--", program)
	}
	path := filepath.Join(dir, "counter.txt")
	args = append(args, cmdAddOne, path, thinking.String())
	if err := os.WriteFile(path, []byte("0\n"), 0o600); err != nil {
		return r, err
	}
	env := slices.DeleteFunc(slices.Clone(a.Environ()), func(kv string) bool { return strings.HasPrefix(kv, "LOKT_") })
	start := time.Now()
	var entered atomic.Int64
	ends := make([]error, racers)
	var running sync.WaitGroup
	for i := range racers {
		running.Go(func() {
			for n := 0; ends[i] == nil && again(n); n++ {
				c := exec.CommandContext(ctx, program, args...)
				c.Env, c.WaitDelay = env, 5*time.Second
				c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
				if out, err := c.CombinedOutput(); err != nil {
					ends[i] = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
				}
				entered.Add(1)
			}
		})
	}
	running.Wait()
	r.Entered, r.Millis = int(entered.Load()), time.Since(start).Milliseconds()
	if err := cmp.Or(context.Cause(ctx), errors.Join(ends...)); err != nil {
		return r, err
	}
	r.Count, err = readCount(path)
	r.Lost = r.Entered - r.Count
	return r, err
}

const (
	demoRounds   = 5 // of each process
	demoThinking = 20 * time.Millisecond
	demoLimit    = 5 * time.Minute // on a machine that does much else
	demoTries    = 3               // of the race that is meant to be lost
)

func newDemo(a cmd) *cobra.Command {
	return app.Plain("demo", func(*cobra.Command) error { return a.runDemo() })
}

func (a cmd) runDemo() (err error) {
	dir, err := os.MkdirTemp("", "lokt-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, stop := guard.Notify().Context(context.Background())
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	narrate := func(format string, args ...any) {
		if !a.JSON {
			a.Say(format, args...)
		}
	}
	run := func(args ...string) (race, error) {
		r, err := a.race(ctx, dir, demoThinking, func(n int) bool { return n < demoRounds }, args...)
		if err != nil {
			return r, fmt.Errorf("demo: %w", err)
		}
		return r, nil
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
	for try := 0; try < demoTries && without.Lost == 0 && err == nil; try++ {
		without, err = run()
	}
	if err != nil {
		return err
	}
	show(without)
	narrate("With lokt:      lokt guard counter --wait -- add-one counter.txt")
	with, err := run("guard", "counter", "--wait", "--timeout", demoLimit.String(), "--root", filepath.Join(dir, "locks"))
	if err != nil {
		return err
	}
	show(with)
	if a.JSON {
		err = a.Print(map[string]any{"without": without, "with": with, "ok": with.Lost == 0}) // with lokt nothing was lost
	}
	switch {
	case with.Lost != 0:
		a.Tell("the guarded programs were not kept apart, which must not happen: look with lokt doctor --prove")
		return app.Exit(app.ExitError)
	case without.Lost == 0:
		narrate("This machine was too busy to run two programs at once, so nothing was lost either way. Try again.")
	default:
		narrate("The first lost updates because programs read the same number. The second took a little longer and lost none:")
		narrate("try it on your own: lokt guard build --ttl 5m -- make build")
	}
	return err
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
	r, err := d.tryExclusion(ctx)
	kind, _ := process.LocalFS(existing(d.root.Path))
	switch {
	case err != nil:
		d.fail(name, "", "the race could not be run: %v", err)
	case r.Lost != 0:
		d.fail(name, fmt.Sprintf("do not keep locks on this file system (%s): set LOKT_ROOT to a local disk", kind),
			"%d processes entered %d times, and %d of their updates were lost: two were in at once", racers, r.Entered, r.Lost)
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
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, proofTime+proofPatience)
	defer cancel()
	until := time.Now().Add(proofTime)
	return d.race(ctx, dir, proofThinking, func(int) bool { return time.Now().Before(until) },
		"guard", "prove", "--wait", "--timeout", proofPatience.String(), "--root", root)
}
