package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// recorder is a querier that notes what is run.
type recorder struct {
	ran  []string
	fail string // statements that begin so fail
}

var errRecorded = errors.New("refused")

func (r *recorder) exec(_ context.Context, statement string, args ...any) error {
	if r.fail != "" && strings.HasPrefix(statement, r.fail) {
		return errRecorded
	}
	r.ran = append(r.ran, fmt.Sprint(statement, args))
	return nil
}

func (r *recorder) change(ctx context.Context, statement string, args ...any) (int64, error) {
	return 1, r.exec(ctx, statement, args...)
}

func (r *recorder) query(ctx context.Context, statement string, args []any, _ func(r *row) error) error {
	return r.exec(ctx, statement, args...)
}

func (r *recorder) ask(ctx context.Context, questions ...question) error {
	for _, q := range questions {
		if err := r.exec(ctx, q.statement, q.args...); err != nil {
			return err
		}
	}
	return nil
}

func TestInsertionsIntoOneTableAreJoinedInTheirOrder(t *testing.T) {
	const (
		a, b = "INSERT INTO a (x, y) VALUES (?, ?) ON CONFLICT (x) DO NOTHING", "INSERT INTO b (z) VALUES (?)"
		gone = "DELETE FROM a WHERE x = ?"
	)
	ctx := t.Context()
	for what, other := range map[string]func(j *joined) error{
		"deletion": func(j *joined) error { return j.exec(ctx, gone, 1) },
		"change":   func(j *joined) error { _, err := j.change(ctx, gone, 1); return err },
		"query":    func(j *joined) error { return j.query(ctx, gone, []any{1}, nil) },
		"question": func(j *joined) error { return j.ask(ctx, question{statement: gone, args: []any{1}}) },
	} {
		r := &recorder{}
		j := &joined{querier: r, insertions: &insertions{}}
		var err error
		for i := range 32 + 8 + 2 + 1 {
			err = errors.Join(err, j.exec(ctx, a, i, "y"))
		}
		err = errors.Join(err, j.exec(ctx, b, 1), j.exec(ctx, b, 2), j.exec(ctx, b, 3), other(j), j.exec(ctx, a, 43, "y"), j.flush(ctx), j.flush(ctx))
		several := func(first, rows int) string {
			var args []any
			for i := range rows {
				args = append(args, first+i, "y")
			}
			return "INSERT OR FAIL INTO a (x, y) VALUES (?, ?)" + strings.Repeat(", (?, ?)", rows-1) + " ON CONFLICT (x) DO NOTHING" + fmt.Sprint(args)
		}
		want := []string{
			several(0, 32), several(32, 8), several(40, 2), a + "[42 y]",
			"INSERT OR FAIL INTO b (z) VALUES (?), (?)[1 2]", b + "[3]", gone + "[1]", a + "[43 y]",
		}
		if err != nil || !slices.Equal(r.ran, want) {
			t.Errorf("with a %s: error %v, ran\n%s\nwant\n%s", what, err, strings.Join(r.ran, "\n"), strings.Join(want, "\n"))
		}
		r = &recorder{fail: "INSERT INTO b"}
		j = &joined{querier: r, insertions: &insertions{}}
		if err := errors.Join(j.exec(ctx, b, 1), other(j)); !errors.Is(err, errRecorded) || len(r.ran) != 0 {
			t.Errorf("a %s after an insertion that fails: error %v, ran %v", what, err, r.ran)
		}
	}
}
