package mcp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/cli/wait"
	"github.com/lokt-dev/lokt/internal/rows"
)

// runner runs lokt.
type runner struct {
	app   *app.App
	given sync.Map // what each ticket of this server is for, a reservation: it goes on with these itself
}

// reservation is what is to be reserved.
type reservation struct {
	dir      string
	patterns []string
}

// heard returns the answer about a reservation. One that was new is given back if the request was cancelled meanwhile: nobody hears of it.
func (r *runner) heard(ctx context.Context, text string, err error, of reservation) (string, error) {
	if err != nil || !errors.Is(ctx.Err(), context.Canceled) || !strings.HasPrefix(text, "reserved ") || strings.HasPrefix(text, "reserved again ") {
		return text, err
	}
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), longest)
	defer done()
	return r.lokt(ctx, of.dir, append([]string{"reserve", "--release", "--"}, of.patterns...)...)
}

var ticketLine = regexp.MustCompile(`lokt wait --ticket ([a-z2-7]+)`)

// lokt runs a command of lokt, and returns what it says.
func (r *runner) lokt(ctx context.Context, dir string, args ...string) (string, error) {
	switch {
	case r.app.RootFlag != "":
		args = append([]string{"--root", r.app.RootFlag}, args...)
	case r.app.ServerGiven:
		args = append([]string{"--server", r.app.ServerFlag}, args...)
	}
	c := exec.CommandContext(ctx, cmp.Or(app.LookUp("lokt"), "lokt"), args...)
	var out, said bytes.Buffer
	c.Dir, c.Env, c.Stdout, c.Stderr = dir, append(r.app.Environ(), wait.TicketVar+"=new"), &out, &said // a ticket, whoever calls
	if runtime.GOOS != "windows" {
		c.Cancel = func() error { return c.Process.Signal(os.Interrupt) } // which gives back what it was about to take
	}
	c.WaitDelay = time.Second / 2
	err := c.Run()
	if c.ProcessState != nil && c.ProcessState.Success() { // before it heard that it was to end
		err = nil
	}
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
		r.given.LoadOrStore(found[1], reservation{dir, args[slices.Index(args, "--")+1:]})
		note, _, _ = strings.Cut(note, "; if this command is ended")
		return cut(note, most/2) + "\nticket: " + found[1] + "\nCall wait with it within 2 minutes, or run this in a shell: " + found[0], nil
	}
	var ended *exec.ExitError
	if err == nil || errors.As(err, &ended) && ended.ExitCode() == app.ExitBlocked {
		return text, nil
	}
	if text == "" && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		text = fmt.Sprintf("there was no answer within %v: what was asked for may have been done all the same, so look with status", longest)
	}
	return "", errors.New(cmp.Or(text, err.Error()))
}

// cut shortens a text to so many bytes, behind a line if the first one fits.
func cut(text string, n int) string {
	const more = "\n… (more: run lokt status)"
	if len(text) <= n {
		return text
	}
	text = text[:n-len(more)+1] // with the end of a line that just fits
	if i := strings.LastIndexByte(text, '\n'); i > 0 {
		return text[:i] + more
	}
	return rows.Cut(text, n-len("…")-len(more)) + "…" + more
}
