// Command campaign plays games in which real servers, clients and databases are hurt, in pieces, for hours in all. What was played
// is in a file, so that it goes on where it ended, and a page says what was injected and checked.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// game is a test that is played for LOKT_FAULT_TIME, and logs lines that begin with "counted".
type game struct{ name, pkg, test string }

func games() []game {
	return []game{
		{"SQLite", "internal/daemon", "TestWhatWasAcknowledgedSurvivesFaults"},
		{"PostgreSQL", "internal/replicas", "TestReplicasOnPostgreSQLUnderFaults"},
		{"PostgreSQL with a standby", "internal/replicas", "TestReplicasOnPostgreSQLThatFailsOverUnderFaults"},
		{"etcd of three members", "internal/replicas", "TestReplicasOnEtcdUnderFaults"},
	}
}

// piece is a game that was played to its end.
type piece struct {
	Game     string         `json:"game"`
	Seed     uint64         `json:"seed"`
	Begun    time.Time      `json:"begun"`
	Seconds  float64        `json:"seconds"`
	Commit   string         `json:"commit"`
	Failed   string         `json:"failed,omitzero"` // what it said
	Cause    string         `json:"cause,omitzero"`  // as far as somebody found it out later
	Injected map[string]int `json:"injected"`
	Checked  map[string]int `json:"checked"`
}

func main() {
	hours := flag.Float64("hours", 10, "how long to play in all, with what is on record")
	each := flag.Duration("piece", 30*time.Minute, "how long to make faults in one piece: an hour at most")
	until := flag.Duration("for", 0, "begin no piece after this time; 0 for no bound")
	only := flag.String("game", "", "play only the game of this name")
	root := flag.String("C", ".", "the directory of the repository")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c := campaign{root: *root, hours: *hours, each: min(*each, time.Hour), until: *until, only: *only}
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "campaign:", err)
		os.Exit(1)
	}
}

type campaign struct {
	root        string
	hours       float64
	each, until time.Duration
	only        string // the game; empty for all
	bin         string // of the built games
	pieces      []piece
}

// Where the record, the page, and what failed pieces said are.
const (
	record = "tools/campaign/pieces.json"
	page   = "docs/campaign.md"
	logs   = "dist/campaign"
)

func (c *campaign) run(ctx context.Context) error {
	b, err := os.ReadFile(c.path(record))
	if err == nil {
		err = json.Unmarshal(b, &c.pieces)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if c.bin, err = os.MkdirTemp("", "lokt-campaign-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(c.bin) }()
	among := slices.DeleteFunc(games(), func(g game) bool { return c.only != "" && g.name != c.only })
	if len(among) == 0 {
		return fmt.Errorf("there is no game %q", c.only)
	}
	begun, failed := time.Now(), 0
	for c.played("").Hours() < c.hours && (c.until == 0 || time.Since(begun) < c.until) {
		next := slices.MinFunc(among, func(a, b game) int { return int(c.played(a.name) - c.played(b.name)) })
		p, err := c.play(ctx, next)
		if err != nil {
			return err
		}
		if p.Failed != "" {
			failed++
		}
		if err := c.keep(p); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d pieces failed: see %s", failed, c.path(logs))
	}
	return nil
}

func (c *campaign) path(name string) string { return filepath.Join(c.root, name) }

// played returns for how long a game was played, or all were.
func (c *campaign) played(game string) (d time.Duration) {
	for _, p := range c.pieces {
		if game == "" || p.Game == game {
			d += time.Duration(p.Seconds * float64(time.Second))
		}
	}
	return d
}

var counted = regexp.MustCompile(`counted (injected|checked): (\{.*\})`)

// play plays one piece. A game that is ended before its time has not been played.
func (c *campaign) play(ctx context.Context, g game) (p piece, err error) {
	program := filepath.Join(c.bin, filepath.Base(g.pkg)+".test")
	if _, err := os.Stat(program); err != nil {
		build := exec.CommandContext(ctx, "go", "test", "-vet=off", "-c", "-o", program, "./"+g.pkg)
		build.Dir, build.Stderr = c.root, os.Stderr
		if err := build.Run(); err != nil {
			return p, err
		}
	}
	commit := c.git(ctx, "rev-parse", "--short", "HEAD") // an archive has none
	if c.git(ctx, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!"+record, ":!"+page) != "" {
		commit += ", changed"
	}
	p = piece{
		Game: g.name, Seed: rand.Uint64(), Begun: time.Now().UTC().Truncate(time.Second), Commit: commit,
		Injected: map[string]int{}, Checked: map[string]int{},
	}
	fmt.Printf("%s: %v of %s with seed %d\n", p.Begun.Format(time.TimeOnly), c.each, g.name, p.Seed)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-test.run=^"+g.test+"$", "-test.v", "-test.timeout="+(c.each+time.Hour).String())
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.path(g.pkg), &out, &out
	cmd.Env = append(os.Environ(), "LOKT_FAULT_TIME="+c.each.String(), fmt.Sprint("LOKT_SEED=", p.Seed))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with all that it has started
	begun := time.Now()
	ended := cmd.Run()
	p.Seconds = time.Since(begun).Round(time.Millisecond).Seconds()
	switch {
	case ctx.Err() != nil:
		return p, errors.New("interrupted: the next start plays this piece again")
	case bytes.Contains(out.Bytes(), []byte("--- SKIP")):
		return p, fmt.Errorf("%s cannot be played here: %s", g.name, out.String())
	}
	for _, m := range counted.FindAllSubmatch(out.Bytes(), -1) {
		into := map[string]map[string]int{"injected": p.Injected, "checked": p.Checked}[string(m[1])]
		if err := json.Unmarshal(m[2], &into); err != nil {
			return p, err
		}
	}
	if ended != nil {
		p.Failed = c.told(p, out.Bytes())
	}
	return p, nil
}

func (c *campaign) git(ctx context.Context, args ...string) string {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = c.root
	out, _ := cmd.Output()
	return strings.TrimSpace(string(out))
}

// told keeps what a piece said that failed, and returns the first line about it.
func (c *campaign) told(p piece, out []byte) string {
	if err := os.MkdirAll(c.path(logs), 0o755); err == nil {
		_ = os.WriteFile(filepath.Join(c.path(logs), fmt.Sprint(p.Seed, ".log")), out, 0o644)
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "_test.go:") && !strings.Contains(line, "counted") && !strings.Contains(line, "LOKT_SEED") && !strings.Contains(line, "was to be had") {
			return line[:min(len(line), 300)]
		}
	}
	return "it ended without a word"
}

// keep puts a piece on record, and writes the page anew.
func (c *campaign) keep(p piece) error {
	c.pieces = append(c.pieces, p)
	b, err := json.MarshalIndent(c.pieces, "", "\t")
	if err == nil {
		err = os.WriteFile(c.path(record)+".new", append(b, '\n'), 0o644)
	}
	if err == nil {
		err = os.Rename(c.path(record)+".new", c.path(record))
	}
	if err == nil {
		err = os.WriteFile(c.path(page), []byte(c.report()), 0o644)
	}
	return err
}

const introduction = `# A campaign of faults

` + "`make campaign HOURS=10`" + ` plays games in which real daemons, clients and databases are killed, stopped, cut off, filled and set to other times, until they were
played for so long in all, and writes this page. It goes on where it ended: [pieces.json](../tools/campaign/pieces.json) has each piece, with its seed, which decides
the order and the length of faults; what processes make of them is chance. What is looked for says [testing](testing.md). A failed piece says so here, and stays.

`

// report returns the page.
func (c *campaign) report() string {
	var s strings.Builder
	last := c.pieces[len(c.pieces)-1]
	fmt.Fprintf(&s, "%sSo far: %v, pieces: %d, from %s to %s.\n\n| game | pieces | time | failed |\n|---|---|---|---|\n", introduction,
		c.played("").Round(time.Minute), len(c.pieces), c.pieces[0].Begun.Format(time.DateOnly), last.Begun.Format(time.DateOnly))
	var tables, failures strings.Builder
	for _, g := range games() {
		pieces, failed, injected, checked := 0, 0, map[string]int{}, map[string]int{}
		for _, p := range c.pieces {
			if p.Game != g.name {
				continue
			}
			pieces++
			for what, n := range p.Injected {
				injected[what] += n
			}
			for what, n := range p.Checked {
				checked[what] += n
			}
			if p.Failed != "" {
				failed++
				fmt.Fprintf(&failures, "- %s, %s, seed %d, commit %s: `%s` %s\n", g.name, p.Begun.Format(time.DateTime), p.Seed, p.Commit, p.Failed, p.Cause)
			}
		}
		if pieces == 0 {
			continue
		}
		fmt.Fprintf(&s, "| %s | %d | %v | %d |\n", g.name, pieces, c.played(g.name).Round(time.Second), failed)
		fmt.Fprintf(&tables, "\n## %s\n\n", g.name)
		list(&tables, "injected", injected)
		list(&tables, "seen and checked", checked)
	}
	s.WriteString(tables.String())
	if failures.Len() > 0 {
		s.WriteString("\n## Failed\n\n" + failures.String())
	}
	return s.String()
}

// list writes counts as a table.
func list(s *strings.Builder, title string, counts map[string]int) {
	fmt.Fprintf(s, "| %s | times |\n|---|---|\n", title)
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(s, "| %s | %d |\n", what, counts[what])
	}
	s.WriteString("\n")
}
