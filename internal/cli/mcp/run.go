package mcp

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

// runner runs lokt.
type runner struct {
	app   *app.App
	given sync.Map // tickets of this server, which it goes on with itself
}

// in returns what commands in another directory share.
func (r *runner) in(dir string) *app.App {
	s := r.app.Streams
	if dir != "" {
		s.Dir = func() (string, error) { return filepath.Abs(dir) }
	}
	other := app.New(nil, s)
	other.RootFlag, other.ServerFlag, other.ServerGiven = r.app.RootFlag, r.app.ServerFlag, r.app.ServerGiven
	return other
}

// newTicket asks for a ticket, whoever calls: see package wait.
const newTicket = "LOKT_TICKET=new"

var ticketLine = regexp.MustCompile(`lokt wait --ticket ([a-z2-7]+)`)

// lokt runs a command of lokt, and returns what it says.
func (r *runner) lokt(ctx context.Context, dir string, args ...string) answer {
	command := append([]string{args[0]}, args[1:]...)
	switch {
	case r.app.RootFlag != "":
		command = append([]string{"--root", r.app.RootFlag}, command...)
	case r.app.ServerGiven:
		command = append([]string{"--server", r.app.ServerFlag}, command...)
	}
	c := exec.CommandContext(ctx, program(), command...)
	var out, said bytes.Buffer
	c.Dir, c.Env, c.Stdout, c.Stderr = dir, append(r.app.Environ(), newTicket), &out, &said
	if runtime.GOOS != "windows" {
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // which gives back what it was about to take
	}
	c.WaitDelay = time.Second
	err := c.Run()
	text := strings.TrimSpace(out.String())
	var note string // the last thing said of the wait: whose turn it is, and how to go on
	for line := range strings.Lines(said.String()) {
		line = strings.TrimSpace(strings.TrimPrefix(line, "lokt: "))
		if strings.HasPrefix(line, "waiting, ") {
			note = line
		} else if line != "" && !strings.HasPrefix(line, "gave up after") || note == "" {
			text = strings.TrimSpace(text + "\n" + line)
		}
	}
	if found := ticketLine.FindStringSubmatch(note); err != nil && found != nil {
		r.given.Store(found[1], true)
		note, _, _ = strings.Cut(note, "; if this command is ended")
		return answer{text: cut(note, most/2) + "\nticket: " + found[1] + "\nCall wait with it within 2 minutes, or run this in a shell: " + found[0]}
	}
	var ended *exec.ExitError
	switch {
	case err == nil || errors.As(err, &ended) && ended.ExitCode() == app.ExitBlocked:
		return answer{text: text}
	case text == "":
		text = err.Error()
	}
	return answer{text: text, failed: true}
}

// goOn goes on with a ticket. One that a command in a shell gave runs that command, which has its place there.
func (r *runner) goOn(ctx context.Context, ticket string) answer {
	if _, own := r.given.Load(ticket); !own {
		return answer{text: "this ticket is not of this server: run this in a shell: lokt wait --ticket " + ticket, failed: true}
	}
	return r.lokt(ctx, "", "wait", "--ticket", ticket)
}

// program returns lokt: the one beside this program, else that on the path.
func program() string {
	name := "lokt"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if self, err := os.Executable(); err == nil {
		if self, err = filepath.EvalSymlinks(self); err == nil {
			if beside := filepath.Join(filepath.Dir(self), name); fileExists(beside) {
				return beside
			}
		}
	}
	return name
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// cut shortens a text to so many bytes.
func cut(text string, n int) string {
	const more = "\n… (more: run lokt status)"
	if len(text) <= n {
		return text
	}
	text = text[:n-len(more)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + more
}
