package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// countServers returns how many servers are tried one after the other. Together they have as long as is waited for a connection: one
// that is dead without a word must not keep anybody from the next.
func countServers(c *pgx.ConnConfig) int {
	all := map[string]bool{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port))): true}
	for _, f := range c.Fallbacks { // a server is there twice that may be spoken to with TLS or without
		all[net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port)))] = true
	}
	return len(all)
}

// uncancelled has a connection closed without a request to cancel what it is at. A commit that waits for a standby must not be
// called back: PostgreSQL would show it to all at once, and a standby that takes over would not have it.
func uncancelled(c *pgx.ConnConfig) {
	var connected atomic.Bool
	dial, then := c.DialFunc, c.AfterConnect
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if connected.Load() {
			return nil, errors.ErrUnsupported
		}
		return dial(ctx, network, addr)
	}
	c.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if connected.Store(true); then != nil {
			return then(ctx, conn)
		}
		return nil
	}
}

// renewing returns what has a connection made with what is in the files for passwords, certificates and authorities then. What
// cannot be used, halfway through a change, is as it was known before.
func renewing(url string, known *pgx.ConnConfig) func(*pgx.ConnConfig) {
	var mu sync.Mutex
	return func(c *pgx.ConnConfig) {
		mu.Lock()
		defer mu.Unlock()
		if now, err := pgxpool.ParseConfig(url); err == nil {
			now.ConnConfig.Password = cmp.Or(now.ConnConfig.Password, known.Password)
			known = now.ConnConfig
		}
		c.Host, c.Port, c.Password, c.TLSConfig, c.Fallbacks = known.Host, known.Port, known.Password, known.TLSConfig, known.Fallbacks
	}
}
