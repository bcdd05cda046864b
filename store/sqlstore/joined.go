package sqlstore

import (
	"context"
	"strings"
)

// joinedRows are how many rows are inserted into a table of SQLite by one statement: the largest number for which there are enough. Half of what it
// takes to insert a row by itself belongs to the statement.
var joinedRows = [...]int{32, 8, 2} //nolint:gochecknoglobals // never changed

// joined runs insertions of rows into one table, one after another, as fewer statements. What waits is run before anything else, and
// by flush, so an error may be that of an insertion that was asked for before.
type joined struct {
	querier
	insertions *insertions

	statement string   // what waits is for
	several   []string // what inserts joinedRows of its rows
	args      []any
	rows      int
}

// insertions keep the statements that insert several rows, by the one that inserts one; none for one that does something else. The
// zero value is ready for use, by one goroutine at a time.
type insertions struct{ known map[string][]string }

// several returns the statements that insert joinedRows rows as the given one inserts one, or none if it does not. When one of them fails, the
// rows that it has inserted stay until the transaction is rolled back (OR FAIL). To take back those of the statement alone, SQLite would have to
// copy each page before the statement changes it.
func (i *insertions) several(statement string) []string {
	several, ok := i.known[statement]
	if ok {
		return several
	}
	if f := parseForm(statement); f != nil && f.head != "" {
		for _, rows := range joinedRows {
			several = append(several, strings.Replace(f.insertion(rows), "INSERT INTO ", "INSERT OR FAIL INTO ", 1))
		}
	}
	if i.known == nil {
		i.known = map[string][]string{}
	}
	i.known[statement] = several
	return several
}

// insertion returns the statement that inserts so many rows.
func (f *form) insertion(rows int) string {
	return f.head + f.row + strings.Repeat(", "+f.row, rows-1) + f.tail
}

// exec implements querier.
func (j *joined) exec(ctx context.Context, statement string, args ...any) error {
	if j.rows == 0 || statement != j.statement {
		if err := j.flush(ctx); err != nil {
			return err
		}
		if j.statement, j.several = statement, j.insertions.several(statement); j.several == nil {
			return j.querier.exec(ctx, statement, args...)
		}
	}
	j.args = append(j.args, args...)
	if j.rows++; j.rows < joinedRows[0] {
		return nil
	}
	return j.flush(ctx)
}

// flush runs what waits.
func (j *joined) flush(ctx context.Context) error {
	if j.rows == 0 {
		return nil
	}
	defer j.forget()
	args, each := j.args, len(j.args)/j.rows
	for i, rows := range joinedRows {
		for ; len(args) >= rows*each; args = args[rows*each:] {
			if err := j.querier.exec(ctx, j.several[i], args[:rows*each]...); err != nil {
				return err
			}
		}
	}
	for ; len(args) > 0; args = args[each:] {
		if err := j.querier.exec(ctx, j.statement, args[:each]...); err != nil {
			return err
		}
	}
	return nil
}

func (j *joined) forget() {
	clear(j.args)
	j.args, j.rows = j.args[:0], 0
}

// change implements querier.
func (j *joined) change(ctx context.Context, statement string, args ...any) (int64, error) {
	if err := j.flush(ctx); err != nil {
		return 0, err
	}
	return j.querier.change(ctx, statement, args...)
}

// query implements querier.
func (j *joined) query(ctx context.Context, statement string, args []any, each func(r *row) error) error {
	if err := j.flush(ctx); err != nil {
		return err
	}
	return j.querier.query(ctx, statement, args, each)
}

// ask implements querier.
func (j *joined) ask(ctx context.Context, questions ...question) error {
	if err := j.flush(ctx); err != nil {
		return err
	}
	return j.querier.ask(ctx, questions...)
}
