// Command bench measures lokt against its peers on the machine it runs on and prints docs/benchmarks.md. Every figure is a
// ratio of things measured in turn in one run, because machines differ and are shared; absolute times are given beside it.
package main

import (
	"context"
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

// section is one group of measurements of the report.
type section struct {
	name string
	run  func(*env) ([]result, error)
}

// env is what the measurements share.
type env struct {
	ctx   context.Context
	lokt  string // path of the built command
	dir   string // of this run's files
	scale float64
	store string // of the daemon; empty for SQLite in the run's directory

	wrap func(command []string) []string // what runs a server's command, if set
}

// result is one line of the report.
type result struct {
	what   string
	ours   string
	theirs string
	ratio  float64 // 0 if there is no peer
	aim    float64 // the greatest ratio, or figure, that is good; 0 if none was set
	least  float64 // the least one; 0 if none was set
	unit   string  // of a figure without a peer; empty for a ratio
	note   string
}

// n returns how often to repeat something that is done full times in a full run.
func (e *env) n(full int) int { return max(3, int(float64(full)*e.scale)) }

func main() {
	out := flag.String("o", "", "write the report to this file instead of standard output")
	only := flag.String("run", "", "measure only the sections whose name contains this")
	scale := flag.Float64("scale", 1, "repeat each measurement this many times as often as usual")
	store := flag.String("store", "", "let the daemon keep its state in this store, instead of SQLite in a new directory")
	bare := flag.Bool("bare", false, "serve a bare HTTP handler to compare with, until killed")
	database := flag.String("scheduler", "", "keep the jobs of this database, as standard input asks for")
	flag.Parse()
	measure := func() error { return run(*out, *only, *store, *scale) }
	switch {
	case *bare:
		measure = bareHandler
	case *database != "":
		measure = func() error { return keepJobs(*database) }
	}
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(out, only, store string, scale float64) error {
	dir, err := os.MkdirTemp(".", ".bench-") // locks live beside the work, and /tmp is often another file system
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	e := &env{ctx: context.Background(), dir: dir, lokt: filepath.Join(dir, "lokt"), scale: scale, store: store}
	build := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", dir, "github.com/lokt-dev/lokt/cmd/...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w: %s", err, b)
	}
	var report strings.Builder
	header(&report)
	for _, s := range []section{
		{"The command line", commandLine},
		{"Many locks", manyLocks},
		{"Waiting", waiting},
		{"The Go library", library},
		{"Heartbeats", heartbeats},
		{"Scheduler: heartbeats", schedulerBeats},
		{"Scheduler: cycles", schedulerCycles},
		{"Scheduler: grants", schedulerGrants},
		{"Scheduler: size", schedulerSize},
		{"Scheduler: restart", schedulerRestart},
		{"Scheduler: parked", schedulerParked},
		{"Locks over HTTP", remoteLocks},
		{"Stores", stores},
		{"Replicas", replicas},
		{"Costs", costs},
	} {
		if !strings.Contains(strings.ToLower(s.name), strings.ToLower(only)) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring:", s.name)
		results, err := s.run(e)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		table(&report, s.name, results)
	}
	if out == "" {
		_, err = os.Stdout.WriteString(report.String())
		return err
	}
	return os.WriteFile(out, []byte(report.String()), 0o644)
}

func header(b *strings.Builder) {
	fmt.Fprintf(b, `# Benchmarks

Written by `+"`make bench`"+`, which runs `+"`go run ./bench`"+`. Every row compares two things that were measured in turn, in one run, on one
machine; only the ratios mean anything elsewhere. Times are medians.

This run: %s, %s/%s, %d CPUs, %s.
`, runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Now().UTC().Format("2006-01-02"))
}

func table(b *strings.Builder, name string, results []result) {
	fmt.Fprintf(b, "\n## %s\n\n| what | lokt | compared with | ratio or figure | aim | |\n|---|---|---|---|---|---|\n", name)
	for _, r := range results {
		figure, aim, verdict := fmt.Sprintf("%.2f", r.ratio), "", ""
		if r.unit != "" {
			figure += " " + r.unit
		}
		if r.aim > 0 {
			aim = fmt.Sprintf("≤ %g", r.aim)
			if r.unit != "" {
				aim += " " + r.unit
			}
			verdict = "met"
			if r.ratio > r.aim {
				verdict = "**missed**"
			}
		}
		if r.least > 0 {
			aim = fmt.Sprintf("≥ %g", r.least)
			if r.unit != "" {
				aim += " " + r.unit
			}
			verdict = "met"
			if r.ratio < r.least {
				verdict = "**missed**"
			}
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", r.what, r.ours, r.theirs, figure, aim, strings.TrimSpace(verdict+" "+r.note))
	}
}

// median returns the middle of the durations.
func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// inTurn runs each of the functions n times, one after the other in every round, and returns the median time of each.
func inTurn(n int, fs ...func() error) ([]time.Duration, error) {
	times := make([][]time.Duration, len(fs))
	for round := range n + n/10 + 1 { // the first rounds warm up
		for i, f := range fs {
			begun := time.Now()
			if err := f(); err != nil {
				return nil, err
			}
			if round > n/10 {
				times[i] = append(times[i], time.Since(begun))
			}
		}
	}
	medians := make([]time.Duration, len(fs))
	for i := range fs {
		medians[i] = median(times[i])
	}
	return medians, nil
}

// compare returns a result for two medians.
func compare(what string, ours, theirs time.Duration, peer string, aim float64) result {
	return result{
		what: what, ours: ms(ours), theirs: ms(theirs) + " (" + peer + ")", ratio: float64(ours) / float64(theirs), aim: aim,
	}
}

func ms(d time.Duration) string {
	if d < 100*time.Microsecond {
		return fmt.Sprintf("%.1f µs", float64(d)/1e3)
	}
	return fmt.Sprintf("%.2f ms", float64(d)/1e6)
}
