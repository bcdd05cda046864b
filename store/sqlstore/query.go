package sqlstore

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
)

// querier runs statements: a connection, in or outside of a transaction. Statements are written with ? for parameters.
type querier interface {
	// exec runs a statement for its effect.
	exec(ctx context.Context, statement string, args ...any) error

	// change runs a statement and returns how many rows it changed.
	change(ctx context.Context, statement string, args ...any) (int64, error)

	// query runs a statement and calls each with every row, until that fails.
	query(ctx context.Context, statement string, args []any, each func(r *row) error) error

	// ask does so for several statements, one after another, but in one round trip.
	ask(ctx context.Context, questions ...question) error
}

// question is a statement to be run for its rows.
type question struct {
	statement string
	args      []any
	each      func(r *row) error
}

// atomically runs f in a transaction of SQLite that nobody else writes beside.
func atomically(ctx context.Context, q querier, f func() error) error {
	err := q.exec(ctx, "BEGIN IMMEDIATE")
	if err != nil {
		return err
	}
	if err = f(); err == nil {
		err = q.exec(ctx, "COMMIT")
	}
	if err != nil {
		_ = q.exec(ctx, "ROLLBACK") // it may have been rolled back already
	}
	return err
}

// row reads the columns of one row of a result, one after another, NULL as zero. Text and bytes are copies.
type row struct {
	values []driver.Value
	next   int
	err    error // the first column that is not what was asked for

	lists map[string][]string // those that were read, because most are alike
	words map[string]string   // the same
}

func (r *row) value() driver.Value {
	if r.next >= len(r.values) {
		r.fail("one column more")
		return nil
	}
	r.next++
	return r.values[r.next-1]
}

func (r *row) fail(want string) {
	if r.err == nil {
		r.err = fmt.Errorf("column %d is not %s", r.next, want)
	}
}

func (r *row) text() string {
	switch v := r.value().(type) {
	case string:
		return v
	case []byte:
		return string(v)
	case nil:
	default:
		r.fail("text")
	}
	return ""
}

func (r *row) bytes() []byte {
	switch v := r.value().(type) {
	case []byte:
		return v
	case string:
		return []byte(v)
	case nil:
	default:
		r.fail("bytes")
	}
	return nil
}

func (r *row) number() int64 {
	switch v := r.value().(type) {
	case int64:
		return v
	case nil:
	default:
		r.fail("a whole number")
	}
	return 0
}

func (r *row) count() uint64 { return uint64(r.number()) }

func (r *row) yes() bool {
	switch v := r.value().(type) {
	case bool:
		return v
	case int64:
		return v != 0
	case nil:
	default:
		r.fail("yes or no")
	}
	return false
}

// damaged is the error of a row that is not what was stored.
func damaged(err error) error {
	return fmt.Errorf("%w: %w: a row cannot be read: %w", lokt.ErrUnavailable, lokt.ErrDamaged, err)
}

// damagedRow is the error of a row of a journal, which somebody may want to set aside.
func damagedRow(table string, id int64, err error) error {
	return fmt.Errorf("%w: %w: row %d of table %s: %w: restore a backup, or set what is damaged aside with loktd repair FILE (SetAside), which says what is lost by it",
		lokt.ErrUnavailable, lokt.ErrDamaged, id, table, err)
}

func (r *row) span() time.Duration { return time.Duration(r.number()) }

// float reads a number that may be absent.
func (r *row) float() *float64 {
	switch v := r.value().(type) {
	case float64:
		return &v
	case int64:
		f := float64(v)
		return &f
	case nil:
	default:
		r.fail("a number")
	}
	return nil
}

// word reads a text of which there are few different ones.
func (r *row) word() string {
	text := r.text()
	if word, ok := r.words[text]; ok {
		return word
	}
	if r.words == nil || len(r.words) > 1000 {
		r.words = map[string]string{}
	}
	r.words[text] = text
	return text
}

// nanos reads a time that is stored in nanoseconds since 1970.
func (r *row) nanos() time.Time {
	if n := r.number(); n != 0 {
		return time.Unix(0, n).UTC()
	}
	return time.Time{}
}

// millis reads a time that is stored in milliseconds since 1970.
func (r *row) millis() time.Time {
	if n := r.number(); n != 0 {
		return time.UnixMilli(n).UTC()
	}
	return time.Time{}
}

// document reads JSON exactly as it was stored.
func (r *row) document() jsontext.Value { return jsontext.Value(r.bytes()) }

// decode reads JSON into a value; NULL leaves it as it is.
func (r *row) decode(into any) {
	b := r.bytes()
	if b == nil {
		return
	}
	if err := json.Unmarshal(b, into); err != nil && r.err == nil {
		r.err = fmt.Errorf("column %d: %w", r.next, err)
	}
}

// list reads a JSON array of strings, which may be shared with other rows.
func (r *row) list() (all []string) {
	text := r.text()
	if text == "" {
		return nil
	}
	if all, ok := r.lists[text]; ok {
		return all
	}
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		r.fail("a list")
		return nil
	}
	if r.lists == nil || len(r.lists) > 1000 {
		r.lists = map[string][]string{}
	}
	r.lists[text] = all
	return all
}

// nanos stores a time; the zero time is NULL.
func nanos(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return unixNano(t)
}

// The first and the last time that there are nanoseconds for, in 1677 and 2262.
const firstNano, lastNano = math.MinInt64, math.MaxInt64

// unixNano returns nanoseconds since 1970: of times that are too far away, those of the last one that is not, lest what ends then has
// ended long ago.
func unixNano(t time.Time) int64 {
	switch {
	case t.After(time.Unix(0, lastNano)):
		return lastNano
	case t.Before(time.Unix(0, firstNano)):
		return firstNano
	}
	return t.UnixNano()
}

// millis stores a time in milliseconds; the zero time is NULL.
func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// text stores a string; the empty one is NULL.
func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// number stores an integer; 0 is NULL.
func number[N ~int | ~int64 | ~uint64](n N) any {
	if n == 0 {
		return nil
	}
	return int64(n)
}

// document stores JSON as it is; none is NULL.
func document(m jsontext.Value) any {
	if m == nil {
		return nil
	}
	return string(m)
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
