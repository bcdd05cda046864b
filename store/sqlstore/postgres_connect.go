package sqlstore

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
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

// raiseFloors has tokens and revisions go on far above all that may have been lost, by 2^32, and gives everybody who lives by time a full time, as
// after an outage: once, whoever else finds that something may have been lost.
const raiseFloors = `UPDATE state SET token_floor = greatest(token_floor, m.token, $2) + 4294967296,
	revision_floor = greatest(revision_floor, m.revision, $3) + 4294967296, clock = least(clock, ` + pgNow + ` * 1000 - $1)
	FROM (SELECT coalesce(max(token), 0) AS token, coalesce(max(revision), 0) AS revision FROM locks) m WHERE token_floor < $2 + 4294967296`

// meet looks which server is at the other end of a connection, before anything is stored over it. A standby that has been promoted since
// the last one, which begins a timeline of its own, may not have had everything, nor has one whose log ends before where it was.
func (d *serverDB) meet(ctx context.Context, c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, pgExchange)
	defer cancel()
	timeline, end, err := position(ctx, c)
	if err != nil || timeline == "" {
		return err
	}
	d.meeting.Lock()
	defer d.meeting.Unlock()
	if timeline != d.timeline || end < d.end { // perhaps because others have looked since
		if timeline, end, err = position(ctx, c); err != nil {
			return err
		}
	}
	if d.timeline != "" && (d.timeline != timeline || end < d.end) {
		d.locks.mu.Lock()
		tokens, revisions := d.locks.highest.tokens, d.locks.highest.revisions
		d.locks.mu.Unlock()
		if _, err := c.Exec(ctx, raiseFloors, int64(2*awayAfter), int64(tokens), int64(revisions)); err != nil {
			return err
		}
	}
	d.timeline, d.end = timeline, end
	return nil
}

// interpreted has no plan compiled: that takes tenths of a second for each statement, all of which end sooner. PostgreSQL would compile all if its
// settings have it think them expensive, as before version 18 where it is told to avoid nested loops, or scans of tables.
func interpreted(ctx context.Context, c *pgx.Conn) error {
	var b pgx.Batch
	b.Queue("SELECT set_config('jit', 'off', false) FROM pg_settings WHERE name = 'jit'") // which a server that is too old has not
	return exchange(ctx, c, &b, pgExchange)
}

// position is where the server's log ends, and in which timeline; that is empty if the server has no such thing, or does not say.
func position(ctx context.Context, c *pgx.Conn) (timeline string, end int64, err error) {
	err = c.QueryRow(ctx, "SELECT left(pg_walfile_name(l), 8), (l - '0/0')::bigint FROM pg_current_wal_lsn() l").Scan(&timeline, &end)
	passing := []string{"08", "40", "53", "55", "57"} // classes of errors that may be over soon; 55 is that of a standby
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && !slices.Contains(passing, e.Code[:2]) {
		return "", 0, nil
	}
	return timeline, end, err
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
