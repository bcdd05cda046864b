package job

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/internal/process"
)

// Each command of a worker is run by a process of its own, which ends the command, and all that it has started, when the
// lease is about to end: also if the worker is stopped or killed. The worker tells it what to do on its standard input: a
// line of JSON, the payload, and then news about the lease, a line of JSON each; one without content
// says stop. When that ends, so has the worker.

const cmdRunJob = "__run-job"

// childOrders is the first line of what a worker tells the process that runs a command.
type childOrders struct {
	Payload int `json:"payload"` // bytes that follow the line
	leashNews
	Grace int64 `json:"grace"` // milliseconds between TERM and KILL
}

// leashNews says how long the lease may be relied on: until a reading of the host's monotonic clock if there is one, and
// for so long from when it is heard otherwise. Milliseconds.
type leashNews struct {
	Until int64 `json:"until"`
	Left  int64 `json:"left"`
}

// newLeashNews returns the news for a lease that may be relied on for so long.
func newLeashNews(left time.Duration) leashNews {
	n := leashNews{Left: left.Milliseconds()}
	if now, ok := process.Monotonic(); ok {
		n.Until = (now + left).Milliseconds()
	}
	return n
}

func newRunJob(a cmd) *cobra.Command {
	return &cobra.Command{
		Use:    cmdRunJob + " -- COMMAND [ARG...]",
		Short:  "Run a command for a worker",
		Hidden: true,
		Args:   app.UsageArgs(cobra.MinimumNArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			signals := guard.Notify() // until the end of the process
			path, err := guard.Find(args[0])
			if err != nil {
				return a.NotRun(err)
			}
			in := bufio.NewReader(a.In)
			orders, payload, err := readOrders(in)
			if err != nil {
				return fmt.Errorf("orders of the worker: %w", err)
			}
			stdin, err := feed(payload)
			if err != nil {
				return err
			}
			grace := time.Duration(orders.Grace) * time.Millisecond
			l := newLeash(orders.leashNews)
			go l.follow(in)
			code, err := guard.Run(guard.Command{
				Path: path, Args: args, Env: a.Environ(), Stdin: stdin, StopGrace: grace, Leash: l, Bound: true,
			}, nil, signals)
			if err != nil {
				return a.NotRun(err)
			}
			return app.Exit(code)
		},
	}
}

// readOrders reads what comes first.
func readOrders(in *bufio.Reader) (o childOrders, payload []byte, err error) {
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err == nil && o.Payload < 0 {
		err = errors.New("a payload of less than nothing")
	}
	if err != nil {
		return o, nil, err
	}
	payload = make([]byte, o.Payload)
	_, err = io.ReadFull(in, payload)
	return o, payload, err
}

// feed returns a file from which the payload can be read.
func feed(payload []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() {
		_, _ = w.Write(payload) // fails if the command does not read it all, which is its business
		_ = w.Close()
	}()
	return r, nil
}

// leash is how long the command may run, as the worker tells.
type leash struct {
	start time.Time
	until atomic.Int64 // by now
	done  chan struct{}
}

func newLeash(n leashNews) *leash {
	l := &leash{start: time.Now(), done: make(chan struct{})}
	l.hear(n)
	return l
}

// now reads the clock that the processes of this host share, or if there is none, one of this process.
func (l *leash) now() (reading time.Duration, shared bool) {
	if now, ok := process.Monotonic(); ok {
		return now, true
	}
	return time.Since(l.start), false
}

// hear takes in news.
func (l *leash) hear(n leashNews) {
	now, shared := l.now()
	until := now + time.Duration(n.Left)*time.Millisecond
	if shared && n.Until > 0 {
		until = time.Duration(n.Until) * time.Millisecond
	}
	l.until.Store(int64(until))
}

// Done implements guard.Leash.
func (l *leash) Done() <-chan struct{} { return l.done }

// Remaining implements guard.Leash.
func (l *leash) Remaining() time.Duration {
	now, _ := l.now()
	return time.Duration(l.until.Load()) - now
}

// follow does what the worker tells, until it says stop or nothing any more: then it is gone, and with it whoever keeps
// the lease.
func (l *leash) follow(in *bufio.Reader) {
	defer close(l.done)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var n leashNews
		if err := json.Unmarshal(line, &n); err != nil {
			return
		}
		if n == (leashNews{}) {
			return
		}
		l.hear(n)
	}
}
