//go:build linux

// Command bench measures the built lokt and loktd against their peers and prints docs/benchmarks.md. Each row runs both
// sides in turn, in one run, and prints their ratio: machines differ, so only ratios mean anything elsewhere.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// env is what the rows share.
type env struct {
	dir   string  // of this run's files, and of the built programs
	scale float64 // how many times as long as usual to measure, and of how much
}

// n scales how often something is done, or how much of it there is.
func (e *env) n(full int) int { return max(3, int(float64(full)*e.scale)) }

// span scales for how long something is done.
func (e *env) span(full time.Duration) time.Duration {
	return max(time.Second/5, time.Duration(float64(full)*e.scale))
}

// row is one line of the report.
type row struct {
	what, ours, theirs string
	figure             float64 // the ratio, or a figure in a unit
	unit               string
	least, most        float64 // the floor or the ceiling; 0 if there is none
	note               string
}

// measurements are small functions that run their sides in turn.
func measurements() []struct {
	name string
	run  func(*env) ([]row, error)
} {
	return []struct {
		name string
		run  func(*env) ([]row, error)
	}{
		{"guard", guard}, {"waiting", waiting}, {"heartbeats", heartbeats}, {"durable", durable},
		{"workers", workers}, {"grants", grants}, {"size", size}, {"restart", restart}, {"etcd", againstEtcd},
		{"waiters", waiters}, {"expiry", expiry}, {"advisory", againstAdvisoryLocks}, {"river", againstRiver},
	}
}

func main() {
	out := flag.String("o", "", "write the report to this file instead of standard output")
	only := flag.String("run", "", "measure only what has this in its name")
	scale := flag.Float64("scale", 1, "measure this many times as long as usual")
	bare := flag.Bool("bare", false, "serve a bare HTTP handler to compare with, until killed")
	flag.Parse()
	measure := func() error { return run(*out, *only, *scale) }
	if *bare {
		measure = bareHandler
	}
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(out, only string, scale float64) error {
	dir, err := os.MkdirTemp(".", ".bench-") // locks live beside the work, and /tmp is often another file system
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	e := &env{dir, scale}
	if err := build(dir, ".", "-trimpath", "-ldflags", "-s -w", "./cmd/lokt", "./cmd/loktd"); err != nil {
		return err
	}
	var rows []row
	var failed []error // the other rows are worth having
	for _, m := range measurements() {
		if !strings.Contains(m.name, only) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring:", m.name)
		some, err := m.run(e)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", m.name, err))
		}
		rows = append(rows, some...)
	}
	text := report(rows)
	if out == "" {
		_, err = os.Stdout.WriteString(text)
	} else {
		err = os.WriteFile(out, []byte(text), 0o644)
	}
	return errors.Join(append(failed, err)...)
}

// build builds programs of the module in a directory.
func build(to, in string, args ...string) error {
	cmd := exec.Command("go", append([]string{"build", "-o", to}, args...)...) //nolint:noctx // ends by itself
	cmd.Dir, cmd.Env = in, append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, b)
	}
	return nil
}

func report(rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Benchmarks\n\n"+
		"`make bench` writes this page. Each row compares two sides that were measured in turn, in one run on one machine\n"+
		"that both share with what loads them. Only the ratios mean anything elsewhere. All else is a `Benchmark…`\n"+
		"beside the code: `go test ./PACKAGE -run XXX -bench .`, read with benchstat.\n\n"+
		"This run: %s, %s/%s, %d CPUs, %s.\n\n"+
		"| what | lokt | compared with | ratio or figure | aim | |\n|---|---|---|---|---|---|\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Now().UTC().Format("2006-01-02"))
	verdicts := map[bool]string{true: "met", false: "**missed**"}
	for _, r := range rows {
		figure, aim, verdict := fmt.Sprintf("%.2f %s", r.figure, r.unit), "", ""
		switch {
		case r.ours == "":
			figure, verdict = "", "not measured"
		case r.least > 0:
			aim, verdict = fmt.Sprintf("≥ %g %s", r.least, r.unit), verdicts[r.figure >= r.least]
		case r.most > 0:
			aim, verdict = fmt.Sprintf("≤ %g %s", r.most, r.unit), verdicts[r.figure <= r.most]
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.what, cmp.Or(r.ours, "-"), cmp.Or(r.theirs, "-"),
			strings.TrimSpace(figure), strings.TrimSpace(aim), strings.TrimSpace(verdict+" "+r.note))
	}
	return b.String()
}

// missing is the row of a peer that is not installed.
func missing(what, peer string) []row { return []row{{what: what, theirs: peer + " is not installed"}} }

// faster compares two rates, whose ratio should be at least so much.
func faster(what string, ours, theirs float64, peer string, least float64) row {
	return row{what: what, ours: perSecond(ours), theirs: perSecond(theirs) + " (" + peer + ")",
		figure: ours / theirs, least: least}
}

// shorter compares two times in seconds, whose ratio should be at most so much.
func shorter(what string, ours, theirs float64, peer string, most float64) row {
	return row{what: what, ours: seconds(ours), theirs: seconds(theirs) + " (" + peer + ")",
		figure: ours / theirs, most: most}
}

func perSecond(r float64) string { return fmt.Sprintf("%.0f/s", r) }

func seconds(s float64) string { return fmt.Sprintf("%.2f ms", s*1e3) }

// inTurn measures each side so many times, one after the other in every round, and returns the medians.
func inTurn(rounds int, sides ...func() (float64, error)) ([]float64, error) {
	all := make([][]float64, len(sides))
	for range rounds {
		for i, side := range sides {
			r, err := side()
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], r)
		}
	}
	medians := make([]float64, len(sides))
	for i := range all {
		medians[i] = percentile(all[i], 0.5)
	}
	return medians, nil
}

// percentile returns the value that the given share of values does not exceed.
func percentile(values []float64, share float64) float64 {
	slices.Sort(values)
	return values[int(share*float64(len(values)-1))]
}

// timed makes a side of what is to be done in little time: it returns the seconds that it took.
func timed(do func() error) func() (float64, error) {
	return func() (float64, error) {
		begun := time.Now()
		err := do()
		return time.Since(begun).Seconds(), err
	}
}
