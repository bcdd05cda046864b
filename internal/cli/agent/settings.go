package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

// record remembers what init has changed in one checkout.
type record struct {
	Top     string   `json:"top"` // of the checkout, from the directory of the record
	Changes []change `json:"changes"`
}

type change struct {
	Path    string `json:"path"` // from the top of the checkout
	Missing bool   `json:"missing,omitzero"`
	MadeDir bool   `json:"made_dir,omitzero"`
	Itself  bool   `json:"itself,omitzero"` // and not the file to which it leads if it is a link

	Mode   fs.FileMode `json:"mode,omitzero"` // before
	Before []byte      `json:"before"`        // in base64, as the next one
	After  []byte      `json:"after"`
}

// place returns where the checkout is, seen from the locks: a repository may be moved with all its records.
func (s *setup) place() string {
	if rel, err := filepath.Rel(s.root, s.top); err == nil {
		return rel
	}
	return s.top
}

// recordPath returns where the record of this checkout is: worktrees share the directory.
func (s *setup) recordPath() string {
	sum := sha256.Sum256([]byte(s.place()))
	return filepath.Join(s.root, "init-"+hex.EncodeToString(sum[:6])+".json")
}

// others reports whether other checkouts that share the directory are enrolled, and need its shims.
func (s *setup) others() bool {
	all, _ := filepath.Glob(filepath.Join(s.root, "init-*.json")) // the pattern is a good one
	return slices.ContainsFunc(all, func(path string) bool {
		r, err := readRecord(path)
		return path != s.recordPath() && (err != nil || exists(app.Against(s.root, r.Top)))
	})
}

func readRecord(path string) (r record, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func (r *record) has(path string) bool {
	return slices.ContainsFunc(r.Changes, func(c change) bool { return c.Path == path })
}

// note takes note of a change that is about to be made. Of a file that was changed before, what it was at first counts.
func (r *record) note(path, place string, one change) error {
	if i := slices.IndexFunc(r.Changes, func(c change) bool { return c.Path == one.Path }); i >= 0 && bytes.Equal(r.Changes[i].After, one.Before) {
		r.Changes[i].After = one.After
	} else {
		r.Changes = slices.DeleteFunc(r.Changes, func(c change) bool { return c.Path == one.Path })
		r.Changes = append(r.Changes, one)
	}
	r.Top = place
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return write(path, text)
}

// member is a member of an object whose order is to stay.
type member struct {
	name  string
	value jsontext.Value
}

type object []member

func readObject(text []byte) (object, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, nil
	}
	if v := jsontext.Value(text); !v.IsValid() || v.Kind() != '{' {
		return nil, errors.New("this is no object of JSON without comments: add the hooks by hand, see docs/agents.md")
	}
	d := jsontext.NewDecoder(bytes.NewReader(text))
	_, err := d.ReadToken()
	var o object
	for err == nil && d.PeekKind() != '}' {
		var name, value jsontext.Value
		if name, err = d.ReadValue(); err != nil {
			break
		}
		var text string
		if err = json.Unmarshal(name, &text); err == nil {
			value, err = d.ReadValue()
			o = append(o, member{text, value.Clone()})
		}
	}
	return o, err
}

func (o object) get(name string) jsontext.Value {
	if i := slices.IndexFunc(o, func(m member) bool { return m.name == name }); i >= 0 {
		return o[i].value
	}
	return nil
}

func (o object) set(name string, value jsontext.Value) object {
	if i := slices.IndexFunc(o, func(m member) bool { return m.name == name }); i >= 0 {
		o[i].value = value
		return o
	}
	return append(o, member{name, value})
}

func (o object) text() (jsontext.Value, error) {
	var out bytes.Buffer
	e := jsontext.NewEncoder(&out)
	err := e.WriteToken(jsontext.BeginObject)
	for _, m := range o {
		err = errors.Join(err, e.WriteToken(jsontext.String(m.name)), e.WriteValue(m.value))
	}
	err = errors.Join(err, e.WriteToken(jsontext.EndObject))
	return out.Bytes(), err
}

// install returns the agent's settings with the hooks in them.
func (h harness) install(now []byte) ([]byte, error) {
	settings, err := readObject(now)
	if err != nil {
		if slices.ContainsFunc(h.events(), func(event string) bool { return !bytes.Contains(now, []byte(h.call(event))) }) {
			return nil, err
		}
		return now, nil // somebody has added them by hand
	}
	hooks, err := readObject(settings.get("hooks"))
	if err != nil {
		return nil, fmt.Errorf("hooks: %w", err)
	}
	changed := false
	for _, event := range h.events() {
		command := program + h.call(event)
		var list []jsontext.Value
		if v := hooks.get(event); v != nil {
			if err := json.Unmarshal(v, &list); err != nil {
				return nil, fmt.Errorf("hooks of %s: %w", event, err)
			}
		}
		if slices.ContainsFunc(list, func(v jsontext.Value) bool { return bytes.Contains(v, []byte(h.call(event))) }) {
			continue
		}
		entry := map[string]any{"command": command}
		if h.name != "cursor" {
			entry = map[string]any{"hooks": []any{map[string]any{"type": "command", "command": command}}}
		}
		if event == h.edit {
			entry["matcher"] = h.matcher
		}
		text, err := marshal(entry)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(append(list, text))
		if err != nil {
			return nil, err
		}
		hooks, changed = hooks.set(event, value), true
	}
	if !changed {
		return now, nil
	}
	if h.name == "cursor" && settings.get("version") == nil {
		settings = settings.set("version", jsontext.Value("1"))
	}
	value, err := hooks.text()
	if err != nil {
		return nil, err
	}
	whole, err := settings.set("hooks", value).text()
	if err != nil {
		return nil, err
	}
	if err := whole.Indent(jsontext.WithIndent("  ")); err != nil {
		return nil, err
	}
	return append(whole, '\n'), nil
}
