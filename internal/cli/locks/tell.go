package locks

import (
	"bytes"
	"io"
	"math"
	"sync"
	"time"

	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
)

// teller is a stream for people that keeps a guard waiting for a moment only: where nobody reads, as on a terminal after
// Ctrl-S, locks have to be renewed, too.
type teller struct {
	to    io.Writer
	lines chan toldLine
	mu    sync.Mutex
	last  chan struct{} // closed when all have been written; nil before the first
	ended bool          // the command has, and what is told is waited for
}

// toldLine is a line, and what is closed when it has been written.
type toldLine struct {
	text    []byte
	written chan struct{}
}

const tellTime = 100 * time.Millisecond

// tellBeside lets the command's work go on while what is told to people is written. The returned function waits until that is done.
// A signal ends that.
func tellBeside(a *app.App, signals *guard.Signals) (finish func()) {
	t := &teller{to: a.Err, lines: make(chan toldLine, 100)}
	a.Err = t
	return func() {
		t.mu.Lock()
		t.ended = true
		last := t.last
		t.mu.Unlock()
		if last == nil {
			return
		}
		select {
		case <-last:
		case <-time.After(tellTime):
			signals.Stop()
			<-last
		}
	}
}

// Write implements io.Writer. It does not fail: what does not fit is lost, as what nobody reads is.
func (t *teller) Write(text []byte) (int, error) {
	l := toldLine{bytes.Clone(text), make(chan struct{})}
	t.mu.Lock()
	select {
	case t.lines <- l:
		if t.last == nil {
			go func() {
				for l := range t.lines {
					_, _ = t.to.Write(l.text) // there is nobody to tell
					close(l.written)
				}
			}()
		}
		t.last = l.written
	default:
		close(l.written)
	}
	pause := tellTime
	if t.ended {
		pause = math.MaxInt64
	}
	t.mu.Unlock()
	select {
	case <-l.written:
	case <-time.After(pause):
	}
	return len(text), nil
}
