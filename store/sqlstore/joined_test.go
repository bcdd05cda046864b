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
		for i := range 9 {
			err = errors.Join(err, j.exec(ctx, a, i, "y"))
		}
		err = errors.Join(err, j.exec(ctx, b, 1), j.exec(ctx, b, 2), other(j), j.exec(ctx, a, 9, "y"), j.flush(ctx), j.flush(ctx))
		want := []string{
			"INSERT INTO a (x, y) VALUES (?, ?), (?, ?), (?, ?), (?, ?) ON CONFLICT (x) DO NOTHING[0 y 1 y 2 y 3 y]",
			"INSERT INTO a (x, y) VALUES (?, ?), (?, ?), (?, ?), (?, ?) ON CONFLICT (x) DO NOTHING[4 y 5 y 6 y 7 y]",
			a + "[8 y]", b + "[1]", b + "[2]", gone + "[1]", a + "[9 y]",
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
