package sqlstore

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// pgConn is a connection to a server of PostgreSQL. It is for one goroutine at a time. Statements that are run for their effect are
// gathered and sent together with the next one of which the result is wanted, so that a transaction takes few round trips.
type pgConn struct {
	*pgx.Conn
	waiting []effect
	copying bool     // rows of new things are gathered to be copied, which pour does
	copies  []copies // those that were
	words   *dictionary
	losses  *atomic.Int64 // how many connections were lost
	before  int64         // how many, when this one was opened
}

// effect is a statement to be run for its effect.
type effect struct {
	statement string
	args      []any
}

// dictionary keeps statements as PostgreSQL wants them.
type dictionary struct {
	known sync.Map // by statement
	forms sync.Map // *form by statement, or nil
}

// translate numbers the parameters, and leaves out what is a hint to SQLite.
func (d *dictionary) translate(statement string) string {
	if s, ok := d.known.Load(statement); ok {
		return s.(string)
	}
	var b strings.Builder
	n := 0
	for rest := strings.ReplaceAll(statement, "CROSS JOIN", "JOIN"); ; {
		before, after, more := strings.Cut(rest, "?")
		b.WriteString(before)
		if !more {
			break
		}
		n++
		b.WriteString("$" + strconv.Itoa(n))
		rest = after
	}
	d.known.Store(statement, b.String())
	return b.String()
}

// pgArgs makes arguments, where they are, what the driver takes for the columns' types.
func pgArgs(args []any) []any {
	for i, a := range args {
		switch v := a.(type) {
		case int:
			a = int64(v)
		case uint64:
			a = int64(v)
		case bool:
			a = flag(v)
		case string:
			a = clean(v)
		}
		args[i] = a
	}
	return args
}

// clean replaces what PostgreSQL does not take in text.
func clean(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// exec implements querier.
func (c *pgConn) exec(_ context.Context, statement string, args ...any) error {
	if args = pgArgs(args); !c.copying || !c.gather(statement, args) {
		c.waiting = append(c.waiting, effect{statement, args})
	}
	return nil
}

// change implements querier. It does not know how many rows there will be, and says none.
func (c *pgConn) change(ctx context.Context, statement string, args ...any) (int64, error) {
	return 0, c.exec(ctx, statement, args...)
}

// flush sends what waits.
func (c *pgConn) flush(ctx context.Context) error {
	b := c.batch()
	if b.Len() == 0 {
		return nil
	}
	return c.SendBatch(ctx, b).Close()
}

// batch returns what waits, the same statements in a row made one.
func (c *pgConn) batch() *pgx.Batch {
	b := &pgx.Batch{}
	for rest := c.waiting; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].statement == rest[0].statement {
			n++
		}
		if f := c.words.form(rest[0].statement); n > 1 && f != nil {
			f.queue(b, c.words, rest[:n])
		} else {
			for _, e := range rest[:n] {
				b.Queue(c.words.translate(e.statement), e.args...)
			}
		}
		rest = rest[n:]
	}
	clear(c.waiting)
	c.waiting = c.waiting[:0]
	return b
}

// query implements querier.
func (c *pgConn) query(ctx context.Context, statement string, args []any, each func(r *row) error) error {
	return c.ask(ctx, question{statement, args, each})
}

// ask implements querier.
func (c *pgConn) ask(ctx context.Context, questions ...question) (err error) {
	b := c.batch()
	before := b.Len()
	for _, q := range questions {
		b.Queue(c.words.translate(q.statement), pgArgs(q.args)...)
	}
	results := c.SendBatch(ctx, b)
	defer func() {
		if e := results.Close(); err == nil {
			err = e
		}
	}()
	for range before {
		if _, err := results.Exec(); err != nil {
			return err
		}
	}
	for _, q := range questions {
		rows, err := results.Query()
		if err == nil {
			err = each(rows, q.each)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls a function with every row.
func each(rows pgx.Rows, f func(r *row) error) error {
	defer rows.Close()
	var r row
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			return err
		}
		r.values = r.values[:0]
		for _, v := range values {
			r.values = append(r.values, v)
		}
		r.next, r.err = 0, nil
		if err := f(&r); err != nil {
			return err
		}
		if r.err != nil {
			return damaged(r.err)
		}
	}
	return rows.Err()
}

// abandon rolls back what was begun, and reports whether the connection is of further use.
func (c *pgConn) abandon(ctx context.Context) bool {
	c.waiting, c.copying, c.copies = nil, false, nil
	fit := false
	if !c.IsClosed() {
		_, err := c.Exec(ctx, "ROLLBACK")
		fit = err == nil
	}
	if c.IsClosed() && ctx.Err() == nil { // nobody here closed it
		c.losses.Add(1)
	}
	return fit
}

// gone reports whether the connection is closed, or likely to be: another one was lost since this one was opened, as all are when
// the server ends.
func (c *pgConn) gone() bool { return c.IsClosed() || c.before != c.losses.Load() }
