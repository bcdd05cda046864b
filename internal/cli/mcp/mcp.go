// Package mcp serves lokt to agents over the Model Context Protocol, on standard input and output. A tool runs lokt, so that it
// says what a command line says, to whoever the agent's process is: the protocol tells of no session.
package mcp

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/shell"
	"github.com/lokt-dev/lokt/internal/version"
)

// Commands returns the command of this package.
func Commands() []app.Command {
	return []app.Command{{Name: "mcp", Build: newMCP, Place: app.Nowhere}} // its tools find the place themselves
}

// Main runs the command line of this process and returns its exit code.
func Main(args []string) int { return app.MainOf(Commands()[0], args[1:]) }

// Tree returns the command, for documentation.
func Tree() *cobra.Command { return app.New(Commands(), app.System()).Tree(nil) }

func newMCP(a *app.App) *cobra.Command {
	return app.Plain("mcp", func(*cobra.Command) error {
		ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} // unless nohup or so keeps them off
		ctx, stop := signal.NotifyContext(context.Background(), slices.DeleteFunc(ends, signal.Ignored)...)
		defer stop()
		if root := a.RootFlag; root != "" && root != app.MethodUser && root != app.MethodSystem { // the same for tools in other directories
			dir, err := a.Dir()
			if err != nil {
				return err
			}
			a.RootFlag = app.Against(dir, root)
		}
		out := &output{Writer: a.Out}
		ctx, over := context.WithCancel(ctx)
		in, lines := io.Pipe()
		go func() {
			_, err := io.Copy(lines, &requests{in: bufio.NewReader(a.In), out: out})
			_ = lines.CloseWithError(err) // never fails
			over()
		}()
		done := make(chan error, 2)
		context.AfterFunc(ctx, func() {
			_ = lines.Close() // a signal is the end of the requests, which ends those that wait
			time.AfterFunc(leave, func() { done <- nil })
		})
		go func() { done <- server(a).Run(context.Background(), &mcp.IOTransport{Reader: in, Writer: out}) }()
		return <-done
	})
}

const instructions = "Locks and reservations of paths, shared with other agents and people on this machine. Ask `guards` before a command that builds, " +
	"migrates or deploys; `reserve` paths before you edit them, and `release` them after. What waits answers within 20 seconds with a ticket: " +
	"call `wait` with it, or run the given line in a shell, which waits as long as it takes."

// where is what all tools take.
type where struct {
	Directory string `json:"directory,omitempty" jsonschema:"the directory it is about; default: where this server was started"`
}

type guardsInput struct {
	where
	Command string `json:"command" jsonschema:"a line of shell that you are about to run"`
}

type reserveInput struct {
	where
	Patterns []string `json:"patterns" jsonschema:"paths or globs, seen from the directory, such as src/auth/**; all or none are reserved"`
	Why      string   `json:"why,omitempty" jsonschema:"what for; others are shown it"`
	Shared   bool     `json:"shared,omitempty" jsonschema:"share with others that share"`
	TTL      string   `json:"ttl,omitempty" jsonschema:"end it after this long, such as 2h; default: when it is released"`
	NoWait   bool     `json:"no_wait,omitempty" jsonschema:"do not wait if somebody else has one of them"`
}

type releaseInput struct {
	where
	Patterns []string `json:"patterns,omitempty" jsonschema:"exactly the patterns of one reservation; default: all of yours"`
	Lock     string   `json:"lock,omitempty" jsonschema:"instead: a lock that you took with lokt lock"`
}

type waitInput struct {
	where
	Ticket string   `json:"ticket,omitempty" jsonschema:"of an earlier answer: go on in the same place"`
	Locks  []string `json:"locks,omitempty" jsonschema:"instead: until these locks are free; none is taken"`
	Any    bool     `json:"any,omitempty" jsonschema:"until one of the locks is free"`
}

type statusInput struct {
	where
	Lock  string   `json:"lock,omitempty" jsonschema:"one lock; default: all locks, and what is reserved"`
	Paths []string `json:"paths,omitempty" jsonschema:"instead: who has reserved one of these paths"`
}

type askInput struct {
	where
	Lock     string `json:"lock" jsonschema:"the lock whose holder is asked; paths for reservations"`
	Question string `json:"question" jsonschema:"a sentence"`
}

// server returns the server with its tools.
func server(a *app.App) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "lokt", Title: "lokt", Version: version.String()}, &mcp.ServerOptions{
		Instructions: instructions, Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	r, no := &runner{app: a}, false
	look, act := &mcp.ToolAnnotations{ReadOnlyHint: true}, &mcp.ToolAnnotations{DestructiveHint: &no}
	add(s, "guards", "Which locks a command needs, by the policy of the repository, and the line to run instead.", look, r.guards)
	add(s, "reserve", "Reserve paths, so that nobody else edits them, or wait for them for up to 18 seconds.", act,
		func(ctx context.Context, in reserveInput) (string, error) {
			if len(in.Patterns) == 0 {
				return "", errors.New("give the patterns to reserve")
			}
			args := []string{"reserve", "--why=" + in.Why, "--ttl=" + cmp.Or(in.TTL, "0"), fmt.Sprintf("--shared=%v", in.Shared)}
			whole, done := context.WithTimeout(context.WithoutCancel(ctx), longest) // what does not wait is over soon, and says what it did
			defer done()
			run := whole
			if !in.NoWait {
				run, args = ctx, append(args, "--wait", "--timeout", patience.String())
			}
			text, err := r.lokt(run, in.Directory, append(append(args, "--"), in.Patterns...)...)
			return r.heard(ctx, text, err, reservation{in.Directory, in.Patterns})
		})
	add(s, "release", "Give reservations back, or a lock.", act, func(ctx context.Context, in releaseInput) (string, error) {
		if in.Lock != "" {
			return r.lokt(ctx, in.Directory, "unlock", "--", in.Lock)
		}
		return r.lokt(ctx, in.Directory, append([]string{"reserve", "--release", "--"}, in.Patterns...)...)
	})
	add(s, "wait", "Go on waiting with a ticket, or wait until locks are free; answers within 20 seconds.", act,
		func(ctx context.Context, in waitInput) (string, error) {
			of, _ := r.given.Load(in.Ticket)
			switch of, own := of.(reservation); {
			case own:
				text, err := r.lokt(ctx, "", "wait", "--ticket", in.Ticket)
				return r.heard(ctx, text, err, of)
			case in.Ticket != "": // that command has its place in the shell
				return "", errors.New("this ticket is not of this server: run this in a shell: lokt wait --ticket " + in.Ticket)
			case len(in.Locks) == 0:
				return "", errors.New("give a ticket, or locks")
			}
			return r.lokt(ctx, in.Directory, append([]string{"wait", fmt.Sprintf("--any=%v", in.Any), "--timeout", patience.String(), "--"}, in.Locks...)...)
		})
	add(s, "status", "Who holds, waits for or has reserved what.", look, func(ctx context.Context, in statusInput) (string, error) {
		switch {
		case len(in.Paths) > 0:
			return r.lokt(ctx, in.Directory, append([]string{"reserve", "--check", "--"}, in.Paths...)...)
		case in.Lock != "":
			return r.lokt(ctx, in.Directory, "why", "--", in.Lock)
		}
		all, err := r.lokt(ctx, in.Directory, "status")
		reserved, noPaths := r.lokt(ctx, in.Directory, "reserve")
		return cut(all, most/2) + "\n" + cut(reserved, most/2), cmp.Or(err, noPaths)
	})
	add(s, "ask", "Ask who holds a lock something; the answer will be in status.", act, func(ctx context.Context, in askInput) (string, error) {
		return r.lokt(ctx, in.Directory, "ask", "--", in.Lock, in.Question)
	})
	return s
}

// add adds a tool, whose answer or error is a text.
func add[In any](s *mcp.Server, name, about string, hints *mcp.ToolAnnotations, do func(context.Context, In) (string, error)) {
	tool := &mcp.Tool{Name: name, Description: about, Annotations: hints}
	mcp.AddTool(s, tool, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
		ctx, done := context.WithTimeout(ctx, longest)
		defer done()
		text, err := do(ctx, in)
		if err != nil {
			return nil, nil, errors.New(cut(err.Error(), most))
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: cut(text, most)}}}, nil, nil
	})
}

// Limits of an answer.
const (
	most     = 1_000            // bytes: fewer than 400 tokens
	patience = 18 * time.Second // how long commands wait
	longest  = 19 * time.Second // until one is ended
	leave    = 2 * time.Second  // how long answers are tried when nobody asks any more: nobody may take them
)

// guards says which locks a line needs.
func (r *runner) guards(_ context.Context, in guardsInput) (string, error) {
	here := *r.app
	if in.Directory != "" {
		here.Dir = func() (string, error) { return filepath.Abs(in.Directory) }
	}
	dir, err := here.Dir()
	if err == nil {
		_, err = os.Stat(dir) // of which nothing would be known
	}
	if err != nil {
		return "", err
	}
	root := func(dir string) string {
		here.Dir = func() (string, error) { return dir, nil }
		found, _ := here.FindRoot() // that of the directory, if there is none
		return found.Path
	}
	found, err := (&shell.Finder{Dir: dir, Getenv: here.Getenv, Root: root, Lokt: "lokt"}).Find(in.Command)
	switch {
	case err != nil:
		return "", fmt.Errorf("lokt cannot judge this: %w", err)
	case len(found.Needs) == 0:
		return "nothing guards it: run it as it is", nil
	}
	text := "it needs " + strings.Join(found.Locks, ", ") + ". Run this line instead, which waits for its turn:\n" + found.Line
	if len(text) > most { // half of a line would be another
		return "", errors.New("the line with its guards is too long for an answer: put the command into a script, and ask for the line that runs it under lokt guard")
	}
	return text, nil
}
