package app

import (
	"bytes"
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
)

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
