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
)

// The demonstration: workers run a program again and again that reads a number from a file, thinks, and writes the number
// back plus one.

const (
	cmdDemoWorker = "__add-one"
	demoWorkers   = 4
	demoRounds    = 5
	demoThinking  = 20 * time.Millisecond
	demoLimit     = 5 * time.Minute // on a machine that does much else
	demoTries     = 3               // of the race that is meant to be lost
)

// demoPart is how one half of the demonstration came out.
type demoPart struct {
	Command  string `json:"command"`
	Expected int    `json:"expected"`
	Got      int    `json:"got"`
	Lost     int    `json:"lost"`
	Millis   int64  `json:"elapsed_ms"`
}

type demoJSON struct {
	Workers int      `json:"workers"`
	Rounds  int      `json:"rounds"` // of each worker
	Without demoPart `json:"without"`
	With    demoPart `json:"with"`
	OK      bool     `json:"ok"` // with lokt nothing was lost
}

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

func newDemoWorker(cmd) *cobra.Command {
	return &cobra.Command{
		Use:    cmdDemoWorker + " FILE",
		Short:  "Add one to the number in a file, slowly, for the demonstration",
		Hidden: true,
		Args:   app.UsageArgs(cobra.ExactArgs(1)),
		RunE:   func(_ *cobra.Command, args []string) error { return addOne(args[0]) },
	}
}

func addOne(path string) error {
	n, err := readCount(path)
	if err != nil {
		return err
	}
	time.Sleep(demoThinking)
	return os.WriteFile(path, []byte(strconv.Itoa(n+1)+"\n"), 0o600)
}

func (a cmd) runDemo() (err error) {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	dir, err := os.MkdirTemp("", "lokt-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	d := demo{cmd: a, ctx: ctx, program: program, dir: dir}
	return d.run()
}

// demo is one run of the demonstration.
type demo struct {
	cmd
	ctx     context.Context
	program string
	dir     string
}

// narrate writes a line for who watches.
func (d *demo) narrate(format string, args ...any) {
	if !d.JSON {
		d.Say(format, args...)
	}
}

func (d *demo) run() error {
	v := demoJSON{Workers: demoWorkers, Rounds: demoRounds}
	d.narrate("%d workers add one to the number in a file, %d times each, all at once. Each time a program reads the number,", demoWorkers, demoRounds)
	d.narrate("thinks for %v, and writes back one more.", demoThinking)
	d.narrate("")
	d.narrate("Without lokt:   add-one counter.txt")
	var err error
	for range demoTries {
		if v.Without, err = d.part("add-one counter.txt"); err != nil {
			return err
		}
		if v.Without.Lost > 0 {
			break
		}
	}
	d.show(v.Without)
	d.narrate("")
	d.narrate("With lokt:      lokt guard counter --wait -- add-one counter.txt")
	guard := []string{"guard", "counter", "--wait", "--timeout", demoLimit.String(), "--root", filepath.Join(d.dir, "locks"), "--", d.program}
	if v.With, err = d.part("lokt guard counter --wait -- add-one counter.txt", guard...); err != nil {
		return err
	}
	d.show(v.With)
	v.OK = v.With.Lost == 0
	end := app.ExitOK
	if !v.OK {
		end = app.ExitError
	}
	if d.JSON {
		return errors.Join(d.Print(v), app.Exit(end))
	}
	d.narrate("")
	switch {
	case !v.OK:
		d.Tell("the guarded programs were not kept apart, which must not happen: look with lokt doctor --prove")
	case v.Without.Lost == 0:
		d.narrate("This machine was too busy to run two programs at once, so nothing was lost either way. Try again.")
	default:
		d.narrate("The first lost updates because programs read the same number. The second took a little longer and lost none:")
		d.narrate("try it on your own: lokt guard build --ttl 5m -- make build")
	}
	return app.Exit(end)
}

func (d *demo) show(p demoPart) {
	verdict := "nothing was lost"
	if p.Lost != 0 {
		verdict = fmt.Sprintf("%d updates were lost", p.Lost)
	}
	d.narrate("  expected %d, got %d: %s (%s)", p.Expected, p.Got, verdict, app.Short(time.Duration(p.Millis)*time.Millisecond))
}

// part lets the workers run the program with the arguments, and behind them those that make it add one.
func (d *demo) part(command string, args ...string) (demoPart, error) {
	p := demoPart{Command: command, Expected: demoWorkers * demoRounds}
	path := filepath.Join(d.dir, "counter.txt")
	if err := os.WriteFile(path, []byte("0\n"), 0o600); err != nil {
		return p, fmt.Errorf("demo: %w", err)
	}
	args = append(slices.Clone(args), cmdDemoWorker, path)
	start := time.Now()
	var working sync.WaitGroup
	var failed [demoWorkers]error
	for i := range failed {
		working.Go(func() {
			for range demoRounds {
				if failed[i] = d.start(args); failed[i] != nil {
					return
				}
			}
		})
	}
	working.Wait()
	p.Millis = time.Since(start).Milliseconds()
	if cause := context.Cause(d.ctx); cause != nil {
		return p, fmt.Errorf("demo: %w", cause)
	}
	if err := errors.Join(failed[:]...); err != nil {
		return p, err
	}
	var err error
	if p.Got, err = readCount(path); err != nil {
		return p, fmt.Errorf("demo: %w", err)
	}
	p.Lost = p.Expected - p.Got
	return p, nil
}

// start runs this program once. The locks that its caller may hold are none of its business.
func (d *demo) start(args []string) error {
	var errOut bytes.Buffer
	c := exec.CommandContext(d.ctx, d.program, args...)
	c.Env = slices.DeleteFunc(slices.Clone(d.Environ()), func(kv string) bool { return strings.HasPrefix(kv, "LOKT_") })
	c.Stderr = &errOut
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 5 * time.Second
	if err := c.Run(); err != nil {
		return fmt.Errorf("demo: %w: %s", err, strings.TrimSpace(errOut.String()))
	}
	return nil
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
