package locks

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
)

const (
	watchEvery  = 200 * time.Millisecond // how often to look, unless looking takes long
	watchServer = time.Second            // how often to ask a server
	watchShare  = 10                     // looking takes at most one part in so many of the time
	watchAges   = time.Second            // how often a terminal shows new ages
)

// watch shows one lock, or all if name is empty, again whenever something changes, until the program is interrupted. On a
// terminal it draws over what was there, about every second; elsewhere it writes a block, or a line of JSON, for each change.
func (a cmd) watch(ctx context.Context, b *app.Backend, name string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	terminal := app.IsTerminal(a.Out) && !a.JSON
	every := watchEvery
	if b.Far != nil {
		every = watchServer
	}
	var shown string
	var drawn time.Time
	away := false
	for first := true; ; first = false {
		began := time.Now()
		locks, err := a.watchOnce(ctx, b, name)
		outage := err != nil && !first && b.Far != nil && errors.Is(err, lokt.ErrUnavailable)
		switch now := watched(locks); {
		case ctx.Err() != nil:
			return nil
		case outage && !away:
			a.Tell("warning: %v; trying again", err)
		case outage:
		case err != nil:
			return err
		case first || now != shown || terminal && time.Since(drawn) >= watchAges:
			shown, drawn = now, began
			if err := a.redraw(locks, name, terminal, first); err != nil {
				return err
			}
		}
		away = outage
		if !app.Pause(ctx, max(every, watchShare*time.Since(began))) {
			return nil
		}
	}
}

// watchOnce returns the views to show.
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

// redraw writes the views.
func (a cmd) redraw(locks []lockView, name string, terminal, first bool) (err error) {
	switch {
	case a.JSON && name != "":
		return a.Print(locks[0])
	case a.JSON:
		return a.Print(locks)
	}
	text := "no locks\n"
	if name != "" {
		text, err = app.Details(locks[0])
	} else if len(locks) > 0 {
		text = app.Table(table(locks))
	}
	stamp := time.Now().Format(time.DateTime) + "\n"
	switch {
	case terminal:
		text = "\x1b[H\x1b[J" + stamp + text // to the top, and clear from there
	case !first:
		text = "\n" + stamp + text
	}
	return errors.Join(err, a.Write(text))
}
