package sqlstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// form is a statement of which many can be made one: an insertion of one row, or a deletion by one column.
type form struct {
	head, row, tail string // of an insertion: up to VALUES, the parameters in parentheses, what follows
	keys            []int  // which parameters must not be alike, because a statement may change a row once only
	delete          string // of a deletion: up to the parameter

	copy string // what does the same as an insertion that leaves rows alone that are there, if there are none
}

// copies are rows of new things in the text format of COPY (https://www.postgresql.org/docs/current/sql-copy.html), which is the fastest way into a table.
type copies struct {
	form *form
	rows []byte
}

// keptRows is the most memory of copies that is used again.
const keptRows = 1 << 20

// gather keeps a row to be copied, and reports whether it is of a kind that can be.
func (c *pgConn) gather(statement string, args []any) bool {
	f := c.words.form(statement)
	if f == nil || f.copy == "" {
		return false
	}
	i := slices.IndexFunc(c.copies, func(p copies) bool { return p.form == f })
	if i < 0 {
		i, c.copies = len(c.copies), append(c.copies, copies{form: f})
	}
	c.copies[i].rows = appendRow(c.copies[i].rows, args)
	return true
}

// pour sends what waits, and then the rows that were gathered, which ends the gathering.
func (c *pgConn) pour(ctx context.Context) error {
	c.copying = false
	if err := c.flush(ctx); err != nil {
		return err
	}
	for i := range c.copies {
		p := &c.copies[i]
		if len(p.rows) == 0 {
			continue
		}
		if _, err := c.PgConn().CopyFrom(ctx, bytes.NewReader(p.rows), p.form.copy); err != nil {
			return err
		}
		if p.rows = p.rows[:0]; cap(p.rows) > keptRows {
			p.rows = nil
		}
	}
	return nil
}

// alreadyThere reports whether rows could not be copied because there is such a row already, which insertions leave alone.
func alreadyThere(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "23505"
}

// appendRow appends a row, of what pgArgs returns.
func appendRow(b []byte, args []any) []byte {
	for _, a := range args {
		switch v := a.(type) {
		case nil:
			b = append(b, `\N`...)
		case int64:
			b = strconv.AppendInt(b, v, 10)
		case float64:
			b = strconv.AppendFloat(b, v, 'g', -1, 64)
		case []byte:
			b = hex.AppendEncode(append(b, `\\x`...), v)
		case string:
			b = appendEscaped(b, v)
		default: // no column has any other
			b = appendEscaped(b, fmt.Sprint(v))
		}
		b = append(b, '\t')
	}
	b[len(b)-1] = '\n'
	return b
}

func appendEscaped(b []byte, s string) []byte {
	for {
		i := strings.IndexAny(s, "\\\t\n\r")
		if i < 0 {
			return append(b, s...)
		}
		b = append(append(b, s[:i]...), '\\')
		switch s[i] {
		case '\t':
			b = append(b, 't')
		case '\n':
			b = append(b, 'n')
		case '\r':
			b = append(b, 'r')
		default:
			b = append(b, '\\')
		}
		s = s[i+1:]
	}
}

// sizes are how many rows are inserted by one statement: few different ones, because each stays prepared.
func sizes() []int { return []int{256, 64, 16, 4, 2, 1} }

// form returns the form of a statement, or nil if it has none.
func (d *dictionary) form(statement string) *form {
	if f, ok := d.forms.Load(statement); ok {
		return f.(*form)
	}
	f := parseForm(statement)
	d.forms.Store(statement, f)
	return f
}

func parseForm(statement string) *form {
	if head, ok := strings.CutSuffix(statement, " = ?"); ok && strings.HasPrefix(head, "DELETE FROM ") && !strings.Contains(head, "?") &&
		!strings.Contains(head, " AND ") {
		return &form{delete: head}
	}
	head, values, ok := strings.Cut(statement, " VALUES (")
	if !ok || !strings.HasPrefix(head, "INSERT INTO ") || strings.Contains(head, "?") {
		return nil
	}
	row, tail, ok := strings.Cut(values, ")")
	if !ok || strings.Trim(row, "?, ") != "" || strings.Contains(tail, "?") {
		return nil
	}
	f := &form{head: head + " VALUES ", row: "(" + row + ")", tail: tail}
	if strings.HasSuffix(tail, "DO NOTHING") {
		f.copy = "COPY " + strings.TrimPrefix(head, "INSERT INTO ") + " FROM STDIN"
	}
	if !strings.Contains(tail, "DO UPDATE") {
		return f
	}
	_, list, _ := strings.Cut(head, "(")
	columns := strings.Split(strings.TrimSuffix(list, ")"), ",")
	for i := range columns {
		columns[i] = strings.TrimSpace(columns[i])
	}
	_, list, _ = strings.Cut(tail, "ON CONFLICT (")
	list, _, _ = strings.Cut(list, ")")
	for key := range strings.SplitSeq(list, ",") {
		f.keys = append(f.keys, slices.Index(columns, strings.TrimSpace(key)))
	}
	return f
}

// queue adds the statements to the batch, as few.
func (f *form) queue(b *pgx.Batch, words *dictionary, all []effect) {
	if f.delete != "" {
		b.Queue(words.translate(f.delete+" = ANY(?)"), array(all))
		return
	}
	for len(all) > 0 {
		n := f.distinct(all)
		for _, size := range sizes() {
			for ; n >= size; n -= size {
				args := make([]any, 0, size*len(all[0].args))
				for _, e := range all[:size] {
					args = append(args, e.args...)
				}
				b.Queue(words.translate(f.insertion(size)), args...)
				all = all[size:]
			}
		}
	}
}

// distinct returns how many rows from the first on have different keys.
func (f *form) distinct(all []effect) int {
	if len(f.keys) == 0 {
		return len(all)
	}
	seen := make(map[string]bool, len(all))
	for i, e := range all {
		key := ""
		for _, k := range f.keys {
			key += fmt.Sprintf("%v\x00", e.args[k])
		}
		if seen[key] {
			return i
		}
		seen[key] = true
	}
	return len(all)
}

// array returns the only arguments of statements, which have one type.
func array(all []effect) any {
	if _, numbers := all[0].args[0].(int64); numbers {
		return arrayOf[int64](all)
	}
	return arrayOf[string](all)
}

func arrayOf[T any](all []effect) []T {
	list := make([]T, 0, len(all))
	for _, e := range all {
		if v, ok := e.args[0].(T); ok {
			list = append(list, v)
		}
	}
	return list
}
