// Package rawjson writes JSON with raw values as they are. The JSON library takes white space out of a jsontext.Value that
// it writes; what clients sent is to be kept to the byte.
package rawjson

import (
	"bytes"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Form is one way of writing Go values. Its zero value is none; New makes it.
type Form struct{ writers sync.Pool }

// New returns the form with these marshalers, which may be nil, and options without marshalers.
func New(marshalers *json.Marshalers, options ...json.Options) *Form {
	f := &Form{}
	f.writers.New = func() any {
		w := &writer{}
		all := json.WithMarshalers(json.JoinMarshalers(json.MarshalToFunc(w.hold), marshalers))
		w.options = json.JoinOptions(append(options[:len(options):len(options)], all)...)
		return w
	}
	return f
}

// Marshal writes v. Fields that are raw values may be omitzero, but not omitempty.
func (f *Form) Marshal(v any, options ...json.Options) ([]byte, error) {
	w := f.writers.Get().(*writer)
	defer func() {
		clear(w.held)
		w.held = w.held[:0]
		f.writers.Put(w)
	}()
	data, err := json.Marshal(v, append([]json.Options{w.options}, options...)...)
	if err != nil || len(w.held) == 0 {
		return data, err
	}
	return w.fill(data), nil
}

// writer writes a 0 for each raw value, and then puts the values in their places.
type writer struct {
	options json.Options
	held    []held
}

type held struct {
	value jsontext.Value
	end   int // of the 0
}

func (w *writer) hold(out *jsontext.Encoder, v jsontext.Value) error {
	if v == nil {
		return out.WriteToken(jsontext.Null)
	}
	if err := out.WriteValue(jsontext.Value("0")); err != nil {
		return err
	}
	w.held = append(w.held, held{v, int(out.OutputOffset())})
	return nil
}

func (w *writer) fill(data []byte) []byte {
	size := len(data)
	for _, h := range w.held {
		size += len(h.value)
	}
	b, from := bytes.NewBuffer(make([]byte, 0, size)), 0
	for _, h := range w.held {
		b.Write(data[from : h.end-1])
		b.Write(h.value)
		from = h.end
	}
	b.Write(data[from:])
	return b.Bytes()
}
