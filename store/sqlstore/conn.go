package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"modernc.org/sqlite"
)

// conn is a connection to SQLite that keeps every statement prepared. It is for one goroutine at a time.
type conn struct {
	raw   driver.Conn
	stmts map[string]prepared
	args  []driver.NamedValue
}

// prepared is what the driver's statements can do.
type prepared interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// dial opens a connection and runs the statements that set it up.
func dial(dsn string, setup ...string) (*conn, error) {
	raw, err := (&sqlite.Driver{}).Open(dsn)
	if err != nil {
		return nil, err
	}
	c := &conn{raw: raw, stmts: map[string]prepared{}}
	if err := c.setUp(append([]string{"PRAGMA busy_timeout = 1000"}, setup...)); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *conn) setUp(statements []string) error {
	for _, s := range statements {
		if err := c.once(context.Background(), s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// close finalizes the statements and closes the connection.
func (c *conn) close() error {
	for _, s := range c.stmts {
		_ = s.Close()
	}
	clear(c.stmts)
	return c.raw.Close()
}

func (c *conn) prepare(statement string) (prepared, error) {
	if s := c.stmts[statement]; s != nil {
		return s, nil
	}
	s, err := c.compile(statement)
	if err == nil {
		c.stmts[statement] = s
	}
	return s, err
}

func (c *conn) compile(statement string) (prepared, error) {
	s, err := c.raw.Prepare(statement)
	if err != nil {
		return nil, err
	}
	p, ok := s.(prepared)
	if !ok {
		return nil, errors.Join(fmt.Errorf("driver's statements are %T", s), s.Close())
	}
	return p, nil
}

// bind converts arguments. The result is valid until the next call.
func (c *conn) bind(args []any) []driver.NamedValue {
	c.args = c.args[:0]
	for i, a := range args {
		switch v := a.(type) {
		case int:
			a = int64(v)
		case uint64:
			a = int64(v)
		case bool:
			a = flag(v)
		}
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: a})
	}
	return c.args
}

// once runs statements that are not worth keeping, or that work when they are compiled.
func (c *conn) once(ctx context.Context, statement string, args ...any) error {
	s, err := c.compile(statement)
	if err != nil {
		return err
	}
	_, err = s.ExecContext(ctx, c.bind(args))
	return errors.Join(err, s.Close())
}

// exec implements querier.
func (c *conn) exec(ctx context.Context, statement string, args ...any) error {
	_, err := c.run(ctx, statement, args)
	return err
}

// change implements querier.
func (c *conn) change(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := c.run(ctx, statement, args)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (c *conn) run(ctx context.Context, statement string, args []any) (driver.Result, error) {
	s, err := c.prepare(statement)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, c.bind(args))
}

// query implements querier.
func (c *conn) query(ctx context.Context, statement string, args []any, each func(r *row) error) (err error) {
	s, err := c.prepare(statement)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(ctx, c.bind(args))
	if err != nil {
		return err
	}
	defer func() {
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	r := row{values: make([]driver.Value, len(rows.Columns()))}
	for n := 0; ; n++ {
		if n%256 == 255 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := rows.Next(r.values); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		r.next, r.err = 0, nil
		if err := each(&r); err != nil {
			return err
		}
		if r.err != nil {
			return damaged(r.err)
		}
	}
}

// ask implements querier.
func (c *conn) ask(ctx context.Context, questions ...question) error {
	for _, q := range questions {
		if err := c.query(ctx, q.statement, q.args, q.each); err != nil {
			return err
		}
	}
	return nil
}

// one runs a query that finds one number.
func one(ctx context.Context, q querier, statement string, args ...any) (n int64, err error) {
	err = q.query(ctx, statement, args, func(r *row) error {
		n = r.number()
		return nil
	})
	return n, err
}
