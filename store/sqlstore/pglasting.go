package sqlstore

import (
	"context"
	"time"
)

// pgLonger is how much longer a statement may take that nobody waits for any more.
const pgLonger = time.Second

// outliving returns a context for what is begun for somebody: it ends after so long, or a moment after that of who wanted it. To call a
// statement back costs the connection, because it is not known how far the server is, and a pooler may not survive it; nearly all end by themselves
// within that moment. Those that do not are called back, or the connections would be busy for people who have left.
func outliving(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), atMost)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(pgLonger, cancel) })
	return limited, func() {
		stop()
		cancel()
	}
}

// lasting runs statements as long as one context says, whoever asks for them.
type lasting struct {
	ctx context.Context //nolint:containedctx // that of lend, in the place of those of callers
	c   *pgConn
}

func (l lasting) exec(_ context.Context, statement string, args ...any) error {
	return l.c.exec(l.ctx, statement, args...)
}

func (l lasting) change(_ context.Context, statement string, args ...any) (int64, error) {
	return l.c.change(l.ctx, statement, args...)
}

func (l lasting) query(_ context.Context, statement string, args []any, each func(r *row) error) error {
	return l.c.query(l.ctx, statement, args, each)
}

func (l lasting) ask(_ context.Context, questions ...question) error {
	return l.c.ask(l.ctx, questions...)
}
