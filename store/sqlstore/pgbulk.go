package sqlstore

import (
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// form is a statement of which many can be made one: an insertion of one row, or a deletion by one column.
type form struct {
	head, row, tail string // of an insertion: up to VALUES, the parameters in parentheses, what follows
	keys            []int  // which parameters must not be alike, because a statement may change a row once only
	delete          string // of a deletion: up to the parameter
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
				b.Queue(words.translate(f.head+f.row+strings.Repeat(", "+f.row, size-1)+f.tail), args...)
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
