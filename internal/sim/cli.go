package sim

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

// Commands returns the command of this package.
func Commands() []app.Command { return commands(nil) }

func commands(t *testing.T) []app.Command {
	return []app.Command{{Name: "sim", Place: app.Nowhere, Build: func(a *app.App) *cobra.Command { return newSim(a, t) }}}
}

// Main runs the command line of this process and ends it. Bubbles are for tests, so the command is one.
func Main(args []string) {
	os.Args = args[:1]
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "sim", F: func(t *testing.T) {
		os.Exit(app.Main(commands(t), args[1:]))
	}}}, nil, nil)
}

// Tree returns the command, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System()).Tree(nil) }

// simOptions are the flags of lokt sim.
type simOptions struct {
	Options
	seeds   int
	explain bool
	picture string
	shrink  time.Duration
}

func newSim(a *app.App, t *testing.T) *cobra.Command {
	o := simOptions{}
	cmd := app.Describe("sim", &cobra.Command{Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		switch {
		case o.World != "" && !slices.Contains(Worlds(), o.World):
			return app.Usagef("--world %s is none of %s", o.World, strings.Join(Worlds(), ", "))
		case o.seeds < 1:
			return app.Usagef("--seeds %d is no number of seeds", o.seeds)
		}
		o.Mask.Tame = len(o.Mask.Keep) > 0
		return o.run(a, t)
	}})
	f := cmd.Flags()
	f.Uint64Var(&o.Seed, "seed", 1, "which course to play; the first one, with --seeds")
	f.IntVar(&o.seeds, "seeds", 1, "how many courses to play")
	f.StringVar(&o.World, "world", "", "only this world: "+strings.Join(Worlds(), ", ")+" (default: as the seed decides)")
	f.BoolVar(&o.explain, "explain", false, "tell what happened, step by step")
	f.IntSliceVar(&o.Mask.Keep, "keep", nil, "let only these decisions of the course be wild")
	f.IntSliceVar(&o.Mask.Idle, "idle", nil, "leave these actions of the course out")
	f.DurationVar(&o.shrink, "shrink", 30*time.Second, "how long to look for a smaller course, if a promise is broken")
	f.StringVar(&o.picture, "picture", "", "write the history of a course in which answers contradict each other to this HTML file")
	return cmd
}

// run plays the courses, and fails at the first in which a promise is broken.
func (o *simOptions) run(a *app.App, t *testing.T) error {
	begun, reached, steps, took := time.Now(), map[string]int{}, 0, time.Duration(0)
	for i := range o.seeds {
		one := o.Options
		one.Seed += uint64(i)
		r := Play(t, one)
		for what := range r.Reached {
			reached[what]++
		}
		if steps, took = steps+r.Steps, took+r.Took; r.Violation != nil {
			fmt.Fprintf(a.Out, "seed %d (%s) breaks a promise, after %d courses: %s\n", one.Seed, r.World, i+1, r.Violation.Kind)
			r = Shrink(t, r, o.shrink)
		}
		for _, e := range r.Trace {
			if o.explain {
				fmt.Fprintln(a.Out, e)
			}
		}
		if r.Violation != nil {
			return o.failed(a, r)
		}
	}
	fmt.Fprintf(a.Out, "%d courses, %d steps and %v of simulated time in %v: no promise was broken\n",
		o.seeds, steps, took.Round(time.Second), time.Since(begun).Round(time.Millisecond))
	if o.seeds < enough {
		return nil
	}
	for _, what := range slices.Sorted(maps.Keys(reached)) {
		fmt.Fprintf(a.Out, "%8d  %s\n", reached[what], what)
	}
	never := slices.DeleteFunc(mustReach(), func(what string) bool { return reached[what] > 0 })
	if o.World == "" && len(never) > 0 {
		return fmt.Errorf("of what the courses should reach, %d was never seen: %s", len(never), strings.Join(never, "; "))
	}
	return nil
}

// enough is how many courses should reach everything.
const enough = 2000

// failed tells of a course in which a promise was broken.
func (o *simOptions) failed(a *app.App, r *Result) error {
	again := fmt.Sprintf("lokt sim --seed %d --world %s", r.Seed, r.World)
	if r.Mask.Tame && len(r.Mask.Keep) == 0 {
		r.Mask.Keep = []int{-1} // none
	}
	for i, list := range [][]int{r.Mask.Keep, r.Mask.Idle} {
		if len(list) > 0 {
			again += [...]string{" --keep ", " --idle "}[i] + strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
		}
	}
	fmt.Fprintf(a.Out, "%s: %s\n", r.Violation.Kind, r.Violation.Text)
	if o.picture != "" && r.history != nil {
		var page bytes.Buffer
		if err := cmp.Or(r.history.Draw(&page), os.WriteFile(o.picture, page.Bytes(), 0o644)); err != nil {
			return err
		}
	}
	return fmt.Errorf("a promise is broken: see %s --explain", again)
}
