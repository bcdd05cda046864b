package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"os/signal"
	"time"

	"github.com/lokt-dev/lokt"
)

const (
	watchEvery = 200 * time.Millisecond // how often to look, unless looking takes long
	watchShare = 10                     // looking takes at most one part in so many of the time
	watchAges  = time.Second            // how often a terminal shows new ages
)

// watch shows one lock, or all if name is empty, again whenever something changes, until the program is interrupted. On a
// terminal it draws over what was there, about every second; elsewhere it writes a block, or a line of JSON, for each change.
func (a *app) watch(ctx context.Context, b *backend, name string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	terminal := isTerminal(a.Out) && !a.json
	next := time.NewTimer(0)
	defer next.Stop()
	var shown string
	var drawn time.Time
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		began := time.Now()
		locks, err := a.watchOnce(ctx, b, name)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if now := watched(locks); first || now != shown || terminal && time.Since(drawn) >= watchAges {
			shown, drawn = now, began
			if err := a.redraw(locks, name, terminal, first); err != nil {
				return err
			}
		}
		next.Reset(max(watchEvery, watchShare*time.Since(began)))
	}
}

// watchOnce returns what there is to see.
func (a *app) watchOnce(ctx context.Context, b *backend, name string) (locks []lockJSON, err error) {
	if name == "" {
		for v, err := range a.lookAtAll(ctx, b, false) {
			if err != nil {
				return nil, err
			}
			locks = append(locks, *v)
		}
		return locks, nil
	}
	v, err := a.look(ctx, b, name, false)
	if err != nil && !errors.Is(err, lokt.ErrDamaged) {
		return nil, err
	}
	return []lockJSON{v}, nil
}

// redraw writes what there is to see.
func (a *app) redraw(locks []lockJSON, name string, terminal, first bool) error {
	if a.json {
		if name != "" {
			return a.print(locks[0])
		}
		line, err := appendArray(nil, each(locks))
		if err == nil {
			_, err = a.Out.Write(line)
		}
		return err
	}
	var out bytes.Buffer
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
		out.Write(locks[0].appendDetail(nil))
	case len(locks) == 0:
		out.WriteString("no locks\n")
	default:
		var t table
		for i := range locks {
			t.add(&locks[i])
		}
		out.Write(t.append(nil))
	}
	if _, err := a.Out.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

func each(locks []lockJSON) iter.Seq2[*lockJSON, error] {
	return func(yield func(*lockJSON, error) bool) {
		for i := range locks {
			if !yield(&locks[i], nil) {
				return
			}
		}
	}
}
