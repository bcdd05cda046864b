package app

import (
	"context"
	"io"
	"os"
)

// WhileRead returns a context that also ends when nobody reads any more what is written to w: the next program of a
// pipeline has ended, or the terminal is gone. Waiting for something to write would be the only way to find out otherwise.
func WhileRead(parent context.Context, w io.Writer) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	if f, ok := w.(*os.File); ok {
		go func() {
			if unread(ctx, f) {
				cancel()
			}
		}()
	}
	return ctx, cancel
}
