package sqlstore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// notify has other processes told: the names of locks that changed or have new events, and an exclamation mark if jobs did.
// It is a hint: who waits looks anyway.
func (d *serverDB) notify(words ...string) {
	for _, w := range words {
		select {
		case d.words <- w:
		default: // nobody tells them
		}
	}
}

// tell notifies the other processes until the database is closed. It does so after changes were stored, in a transaction of
// its own, because PostgreSQL lets only one transaction with a notification commit at a time.
func (d *serverDB) tell(ctx context.Context) {
	for ended := false; !ended; {
		words := map[string]bool{}
		select {
		case w := <-d.words:
			words[w] = true
		case <-ctx.Done():
			ended = true
		}
		for len(d.words) > 0 {
			words[<-d.words] = true
		}
		text := strings.Join(slices.Collect(maps.Keys(words)), " ")
		if len(text) > 7900 { // a notification has no room for it
			text = "* !"
		}
		_ = d.lend(context.WithoutCancel(ctx), d.writers, pgLonger, func(ctx context.Context, c *pgx.Conn) error {
			const tell = "SELECT pg_notify($1, $2) FROM set_config('synchronous_commit', 'off', true)" // a hint need not outlive the power
			_, err := c.Exec(ctx, tell, d.channel, d.origin+" "+text)
			return err
		})
		select {
		case <-time.After(notifyEvery):
		case <-ctx.Done():
		}
	}
}

// listen wakes whom the changes of other processes concern.
func (d *serverDB) listen(ctx context.Context) {
	pool, listen := d.readers.Config(), "LISTEN "+pgx.Identifier{d.channel}.Sanitize()
	config := pool.ConnConfig
	config.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) {
		if words := strings.Fields(n.Payload); len(words) > 0 && words[0] != d.origin {
			d.hear(words[1:])
		}
	}
	for ctx.Err() == nil {
		_ = pool.BeforeConnect(ctx, config) // which cannot fail
		c, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			if _, err = c.Exec(ctx, listen); err == nil {
				d.hear([]string{"*", "!"}) // nobody told us while we did not listen
			}
			for err == nil { // a server that is dead without a word ends no connection
				quiet, cancel := context.WithTimeout(ctx, presence)
				err = c.PgConn().WaitForNotification(quiet)
				cancel()
				if pgconn.Timeout(err) && ctx.Err() == nil {
					soon, cancel := context.WithTimeout(ctx, pgExchange)
					_, err = c.Exec(soon, listen)
					cancel()
				}
			}
			_ = c.Close(context.WithoutCancel(ctx))
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func (d *serverDB) hear(words []string) {
	for _, w := range words {
		if w == "!" {
			poke(d.jobs.changed)
		} else {
			d.locks.stale(w)
			d.locks.grown.ring()
		}
	}
}
