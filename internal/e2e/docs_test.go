//go:build unix

package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// block is a fenced block of a page, and the comment before it that says how to run it, if there is one.
type block struct {
	language, how, text string
	line                int
}

// blocks returns the fenced blocks of a page.
func blocks(t *testing.T, path string) []block {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []block
	var open *block
	how := ""
	for i, line := range strings.Split(string(data), "\n") {
		switch language, fence := strings.CutPrefix(line, "```"); {
		case fence && open != nil:
			all, open = append(all, *open), nil
		case fence:
			open, how = &block{language: language, how: how, line: i + 1}, ""
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "<!--"):
			how = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(line, "<!--"), "-->"))
		}
	}
	if open != nil {
		t.Fatalf("%s:%d: the block has no end", path, open.line)
	}
	return all
}

// pattern returns what matches an output that a page shows: "…" stands for anything in a line, and so does any number of
// spaces for any other.
func pattern(text string) *regexp.Regexp {
	quoted := regexp.QuoteMeta(text)
	quoted = regexp.MustCompile(` +`).ReplaceAllString(quoted, ` +`)
	return regexp.MustCompile("^" + strings.ReplaceAll(quoted, "…", ".*") + "$")
}

// TestThePageOnTheSchedulerIsRight runs the commands of the page, one block after the other, in one directory.
func TestThePageOnTheSchedulerIsRight(t *testing.T) {
	t.Parallel()
	const page = "../../docs/scheduler.md"
	s := newSite(t, time.Minute)
	run := func(b block) (cmd *exec.Cmd, out *bytes.Buffer) {
		cmd = exec.Command("sh", "-e", "-c", b.text)
		out = &bytes.Buffer{}
		cmd.Dir, cmd.Stdout = s.dir, out
		cmd.Env = append(s.environ(), "PATH="+s.bin+":"+os.Getenv("PATH"), "LOKT_OWNER=ada")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		return cmd, out
	}
	example, err := os.ReadFile("../../jobs/worker/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	flat := regexp.MustCompile(`(?m)^\t+`)
	output, ran := "", 0
	for _, b := range blocks(t, page) {
		want := 0
		switch {
		case b.language == "go":
			if !strings.Contains(flat.ReplaceAllString(string(example), ""), flat.ReplaceAllString(b.text, "")) {
				t.Errorf("%s:%d: this is not in jobs/worker/example_test.go", page, b.line)
			}
			continue
		case b.language == "text":
			if !pattern(b.text).MatchString(output) {
				t.Errorf("%s:%d: the output is\n%s", page, b.line, output)
			}
			continue
		case b.language != "sh":
			t.Errorf("%s:%d: nobody knows how to run this", page, b.line)
			continue
		case strings.HasPrefix(b.how, "not run:"):
			continue
		case b.how == "in another terminal":
			cmd, _ := run(b)
			cmd.Stdout = nil
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				_ = cmd.Wait() // was killed
			})
			continue
		case strings.HasPrefix(b.how, "exits "):
			if want, err = strconv.Atoi(b.how[len("exits "):]); err != nil {
				t.Fatal(err)
			}
		}
		cmd, out := run(b)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(2*patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		err := cmd.Wait()
		late.Stop()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || cmd.ProcessState.ExitCode() != want {
			t.Fatalf("%s:%d: %v\n%s%s", page, b.line, err, out, &errs)
		}
		output = out.String()
		ran++
	}
	if ran < 10 {
		t.Errorf("only %d blocks were run", ran)
	}
}
