package worker

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt/jobs"
)

// encoded returns what a handler returned as JSON; nothing is none.
func encoded(result any) (jsontext.Value, error) {
	if result == nil {
		return nil, nil
	}
	b, err := toJSON(result)
	if err != nil {
		return nil, fmt.Errorf("the result is no JSON: %w", err)
	}
	return b, nil
}

// toJSON encodes a value, and leaves one that is JSON as it is.
func toJSON(v any) (jsontext.Value, error) {
	if raw, ok := v.(jsontext.Value); ok && json.Valid(raw) {
		return raw, nil
	}
	return json.Marshal(v)
}

// failureJSON returns an error as JSON: as it has it itself, or its text.
func failureJSON(err error) jsontext.Value {
	var own json.Marshaler
	if errors.As(err, &own) {
		if b, err := json.Marshal(own); err == nil {
			return b
		}
	}
	text := err.Error()
	b, _ := json.Marshal(text[:min(len(text), jobs.MaxTextLen)]) // strings always encode
	return b
}
