package app

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
)

// Words for people, and numbers for programs.

// Seconds rounds a duration up to whole seconds.
func Seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// Short rounds a duration for people.
func Short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 100*time.Millisecond:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// UTC returns a time for JSON: in UTC, and zero if it is out of what JSON can tell.
func UTC(t time.Time) time.Time {
	if t = t.UTC(); t.IsZero() || t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}
	}
	return t
}

// Age returns the whole seconds since a time.
func Age(now, since time.Time) int64 {
	if since.IsZero() {
		return 0
	}
	return int64(max(now.Sub(since), 0) / time.Second)
}

// Remaining returns the seconds until a deadline, rounded up, 0 once it is over, or nil if there is none.
func Remaining(now, deadline time.Time) *int64 {
	if deadline.IsZero() {
		return nil
	}
	left := Seconds(max(deadline.Sub(now), 0))
	return &left
}

// PID returns a process ID for people, and nothing for that of no process.
func PID(pid int) string { return strings.TrimPrefix(strconv.Itoa(pid), "0") }

// Strings returns the texts of a list of names.
func Strings[T ~string](list []T) []string {
	all := make([]string, len(list))
	for i, t := range list {
		all[i] = string(t)
	}
	return all
}

// IsTerminal reports whether a person sees what is written to w.
func IsTerminal(w io.Writer) bool {
	f, _ := w.(*os.File)
	fi, err := f.Stat()            // of no file, an error
	null, _ := os.Stat(os.DevNull) // the same as no file, if it is not there
	return err == nil && fi.Mode()&os.ModeCharDevice != 0 && !os.SameFile(fi, null)
}

// Printable replaces what could confuse a terminal: other people's names come from files.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Cf, r) {
			return '?'
		}
		return r
	}, s)
}

// OneLine replaces what could confuse a terminal, or a reader of lines.
func OneLine(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(Printable(s), "\n", " "), "\t", " ")
}

// Table returns rows as a table for people.
func Table(rows [][]string) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = cmp.Or(OneLine(cell), "-")
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a builder takes everything
	return out.String()
}

// Table writes rows as a table to standard output.
func (a *App) Table(rows [][]string) error { return a.Write(Table(rows)) }

// Write writes text to standard output as it is.
func (a *App) Write(text string) error {
	if _, err := io.WriteString(a.Out, text); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// Details returns the JSON form of v for people: a line for each member, under its path. Durations lose the unit of their
// names, and members that say nothing are left out.
func Details(v any) (string, error) {
	data, err := lokt.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("JSON: %w", err)
	}
	return DetailsOf(data)
}

// DetailsOf returns a JSON document for people, as Details does.
func DetailsOf(doc jsontext.Value) (string, error) {
	var out strings.Builder
	err := details(&out, "", doc)
	return out.String(), err
}

func details(out *strings.Builder, path string, value jsontext.Value) error {
	kind := value.Kind()
	if kind != '{' && (kind != '[' || !bytes.ContainsRune(value, '{')) {
		if name, text := detail(path, value); text != "" {
			fmt.Fprintf(out, "%-14s %s\n", OneLine(name)+":", OneLine(text))
		}
		return nil
	}
	in := jsontext.NewDecoder(bytes.NewReader(value), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	_, err := in.ReadToken()
	for n := 1; err == nil && in.PeekKind() != '}' && in.PeekKind() != ']'; n++ {
		name := jsontext.Int(int64(n))
		if kind == '{' {
			name, err = in.ReadToken()
		}
		below := strings.TrimPrefix(path+"."+name.String(), ".") // before the token is gone
		member, e := in.ReadValue()
		if err = cmp.Or(err, e); err == nil {
			err = details(out, below, member)
		}
	}
	return err
}

// detail returns how a value without members is shown; the text is empty if it says nothing.
func detail(path string, value jsontext.Value) (name, text string) {
	switch value.Kind() {
	case 'n', 'f':
		return path, ""
	case '"':
		text, _ := jsontext.AppendUnquote(nil, value)
		return path, string(text)
	case '0':
		name, seconds := strings.CutSuffix(strings.TrimSuffix(path, "ec"), "_s") // in seconds, under the names of records or of jobs
		if n, err := strconv.ParseFloat(string(value), 64); err == nil && seconds {
			return name, Short(time.Duration(n * float64(time.Second)))
		}
	case '[':
		return path, strings.NewReplacer("[", "", "]", "", `"`, "", ",", ", ").Replace(string(value))
	}
	return path, string(value)
}
