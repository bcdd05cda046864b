package locks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

const (
	watchEvery = 200 * time.Millisecond // how often to look, unless looking takes long
	watchShare = 10                     // looking takes at most one part in so many of the time
	watchAges  = time.Second            // how often a terminal shows new ages
	watchQuiet = 20 * time.Second       // how long a server is waited for that has nothing new
	awayPause  = time.Second            // before a server that does not answer is asked again
)

// watch shows one lock, or all if name is empty, again whenever something changes, until the program is interrupted. On a
// terminal it draws over what was there, about every second; elsewhere it writes a block, or a line of JSON, for each change.
func (a cmd) watch(ctx context.Context, b *app.Backend, name string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	ctx, done := app.WhileRead(ctx, a.Out)
	defer done()
	terminal := app.IsTerminal(a.Out) && !a.JSON
	var shown string
	var drawn time.Time
	away := false
	for first := true; ; first = false {
		began := time.Now()
		seen := mark(b, ctx)
		locks, err := a.watchOnce(ctx, b, name)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !first && b.Far != nil && errors.Is(err, lokt.ErrUnavailable):
			if !away {
				a.Tell("warning: %v; trying again", err)
			}
			if away = true; !app.Pause(ctx, awayPause) {
				return nil
			}
			continue
		case err != nil:
			return err
		}
		away = false
		if now := watched(locks); first || now != shown || terminal && time.Since(drawn) >= watchAges {
			shown, drawn = now, began
			if err := a.redraw(locks, name, terminal, first); err != nil {
				return err
			}
		}
		rest := watchEvery
		if b.Far == nil { // a server says when to look
			rest = max(rest, watchShare*time.Since(began))
		}
		if !app.Pause(ctx, rest) {
			return nil
		}
		if b.Far != nil {
			limit := quiet(locks)
			if terminal {
				limit = watchAges - watchEvery
			}
			sleep(b, ctx, name, locks, seen, limit)
		}
	}
}

// mark returns the number of the server's newest event, or nothing if there is none.
func mark(b *app.Backend, ctx context.Context) (newest uint64) {
	if b.Far == nil {
		return 0
	}
	page, err := b.Far.Events().ReadEvents(ctx, lokt.EventQuery{Limit: 1, Latest: true})
	if err != nil { // then the locks cannot be read either, or the server keeps no events
		return 0
	}
	return page.Newest
}

// sleep waits until something has changed on the server since what was seen, for so long at most. It may return early, but
// not at once without end.
func sleep(b *app.Backend, ctx context.Context, name string, locks []lockView, seen uint64, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var err error
	if name != "" && len(locks) == 1 {
		err = b.Wait(ctx, lokt.Watch{Name: name, Seen: locks[0].revision})
	} else {
		err = b.Far.Events().WaitEvents(ctx, seen)
	}
	if err != nil { // whatever it is, the next look tells
		app.Pause(ctx, awayPause)
	}
}

// quiet returns for how long time alone changes nothing in what is seen of the locks.
func quiet(locks []lockView) time.Duration {
	limit := watchQuiet
	soon := func(left *int64) {
		if left != nil && *left > 0 { // rounded up
			limit = min(limit, time.Duration(*left)*time.Second)
		}
	}
	for i := range locks {
		soon(locks[i].Remaining)
		for _, h := range locks[i].Holders {
			soon(h.Remaining)
		}
		if f := locks[i].Freeze; f != nil {
			soon(f.Remaining)
		}
	}
	return limit
}

// watchOnce returns what there is to see.
func (a cmd) watchOnce(ctx context.Context, b *app.Backend, name string) ([]lockView, error) {
	if name == "" {
		return a.lookAtAll(ctx, b, false)
	}
	v, err := a.look(ctx, b, name, false)
	if err != nil && !errors.Is(err, lokt.ErrDamaged) {
		return nil, err
	}
	return []lockView{v}, nil
}

// redraw writes what there is to see.
func (a cmd) redraw(locks []lockView, name string, terminal, first bool) error {
	switch {
	case a.JSON && name != "":
		return a.Print(locks[0])
	case a.JSON:
		return a.Print(locks)
	}
	var out strings.Builder
	switch {
	case terminal:
		out.WriteString("\x1b[H\x1b[J") // to the top, and clear from there
	case !first:
		out.WriteByte('\n')
	}
	if terminal || !first {
		fmt.Fprintf(&out, "%s\n", time.Now().Format(time.DateTime))
	}
	switch {
	case name != "":
		out.WriteString(locks[0].detail())
	case len(locks) == 0:
		out.WriteString("no locks\n")
	default:
		out.WriteString(app.Table(table(locks)))
	}
	return a.Write(out.String())
}
