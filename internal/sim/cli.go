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
		os.Exit(app.MainOf(commands(t)[0], args[1:]))
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

// report is what came of the courses, for programs.
type report struct {
	Courses   int            `json:"courses"`
	Steps     int            `json:"steps"`
	Simulated float64        `json:"simulated_sec"`
	Elapsed   int64          `json:"elapsed_ms"`
	Reached   map[string]int `json:"reached"`         // in how many courses
	Never     []string       `json:"never,omitzero"`  // reached, and should have been
	Trace     []string       `json:"trace,omitzero"`  // what happened, with --explain
	Broken    *broken        `json:"broken,omitzero"` // promise
}

type broken struct {
	Seed  uint64 `json:"seed"`
	World string `json:"world"`
	Kind  string `json:"kind"`
	Text  string `json:"text"`
	Again string `json:"again"` // command that plays it
}

// run plays the courses, and fails at the first in which a promise is broken.
func (o *simOptions) run(a *app.App, t *testing.T) error {
	begun, took, sum := time.Now(), time.Duration(0), report{Reached: map[string]int{}}
	say := func(format string, args ...any) {
		if !a.JSON {
			fmt.Fprintf(a.Out, format+"\n", args...)
		}
	}
	answer := func(failed error) error {
		sum.Simulated, sum.Elapsed = took.Seconds(), time.Since(begun).Milliseconds()
		if !a.JSON {
			return failed
		}
		err := a.Print(sum)
		if err == nil && failed != nil {
			err = app.Exit(app.ExitError)
		}
		return err
	}
	for i := range o.seeds {
		one := o.Options
		one.Seed += uint64(i)
		r := Play(t, one)
		for what := range r.Reached {
			sum.Reached[what]++
		}
		sum.Courses, sum.Steps, took = i+1, sum.Steps+r.Steps, took+r.Took
		if r.Violation != nil {
			say("seed %d (%s) breaks a promise, after %d courses: %s", one.Seed, r.World, i+1, r.Violation.Kind)
			r = Shrink(t, r, o.shrink)
		}
		for _, e := range r.Trace {
			if o.explain {
				say("%s", e)
				sum.Trace = append(sum.Trace, e.String())
			}
		}
		if r.Violation != nil {
			sum.Broken = &broken{r.Seed, r.World, r.Violation.Kind, r.Violation.Text, again(r)}
			say("%s: %s", r.Violation.Kind, r.Violation.Text)
			if err := o.draw(r); err != nil {
				return err
			}
			return answer(fmt.Errorf("a promise is broken: see %s --explain", sum.Broken.Again))
		}
	}
	say("%d courses, %d steps and %v of simulated time in %v: no promise was broken",
		o.seeds, sum.Steps, took.Round(time.Second), time.Since(begun).Round(time.Millisecond))
	if o.seeds < enough {
		return answer(nil)
	}
	for _, what := range slices.Sorted(maps.Keys(sum.Reached)) {
		say("%8d  %s", sum.Reached[what], what)
	}
	never := slices.DeleteFunc(mustReach(), func(what string) bool { return sum.Reached[what] > 0 })
	if o.World == "" && len(never) > 0 {
		sum.Never = never
		return answer(fmt.Errorf("of what the courses should reach, %d was never seen: %s", len(never), strings.Join(never, "; ")))
	}
	return answer(nil)
}

// enough is how many courses should reach everything.
const enough = 2000

// again returns the command that plays a course once more.
func again(r *Result) string {
	line := fmt.Sprintf("lokt sim --seed %d --world %s", r.Seed, r.World)
	if r.Mask.Tame && len(r.Mask.Keep) == 0 {
		r.Mask.Keep = []int{-1} // none
	}
	for i, list := range [][]int{r.Mask.Keep, r.Mask.Idle} {
		if len(list) > 0 {
			line += [...]string{" --keep ", " --idle "}[i] + strings.Trim(strings.ReplaceAll(fmt.Sprint(list), " ", ","), "[]")
		}
	}
	return line
}

// draw draws the history of a course, if that was asked for.
func (o *simOptions) draw(r *Result) error {
	if o.picture == "" || r.history == nil {
		return nil
	}
	var page bytes.Buffer
	return cmp.Or(r.history.Draw(&page), os.WriteFile(o.picture, page.Bytes(), 0o644))
}
