package agent

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/pelletier/go-toml/v2"

	"github.com/lokt-dev/lokt/internal/cli/app"
)

// record remembers what init has changed in one checkout.
type record struct {
	Top     string   `json:"top"` // of the checkout, from the directory of the record
	Changes []change `json:"changes"`
}

type change struct {
	Path    string `json:"path"` // from the top of the checkout, where links lead
	Missing bool   `json:"missing,omitzero"`
	MadeDir bool   `json:"made_dir,omitzero"`
	Mixed   bool   `json:"mixed,omitzero"` // before has something of lokt's: an earlier run put it there, and others changed the file

	Mode   fs.FileMode `json:"mode,omitzero"` // before
	Before []byte      `json:"before"`        // in base64, as the next one
	After  []byte      `json:"after"`
}

// recordPath returns where the record of this checkout is: worktrees share the directory, and a repository may be moved with it.
func (s *setup) recordPath() string {
	sum := sha256.Sum256([]byte(relative(s.root, s.top)))
	return filepath.Join(s.root, "init-"+hex.EncodeToString(sum[:6])+".json")
}

// others reports whether other checkouts that share the directory are enrolled, and need its shims.
func (s *setup) others() bool {
	all, _ := filepath.Glob(filepath.Join(s.root, "init-*.json")) // the pattern is a good one
	return slices.ContainsFunc(all, func(path string) bool {
		r, err := readRecord(path)
		return path != s.recordPath() && (err != nil || exists(app.Against(s.root, filepath.FromSlash(r.Top))))
	})
}

func readRecord(path string) (r record, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil && json.Unmarshal(text, &r) != nil {
		err = errors.New("this record of what lokt init changed is damaged: remove it, and take out by hand what lokt put into files")
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// note takes note of a change that is about to be made. Of a file that was changed before, what it was at first counts.
func (s *setup) note(one change) error {
	r := &s.record
	i := slices.IndexFunc(r.Changes, func(c change) bool { return c.Path == one.Path })
	if i >= 0 && bytes.Equal(r.Changes[i].After, one.Before) {
		r.Changes[i].After = one.After
	} else {
		one.Mixed = i >= 0 && bytes.Contains(one.Before, []byte("lokt"))
		r.Changes = slices.DeleteFunc(r.Changes, func(c change) bool { return c.Path == one.Path })
		r.Changes = append(r.Changes, one)
	}
	r.Top = relative(s.root, s.top)
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return write(s.recordPath(), text)
}

// byHand ends what is said of a file that is left as it is.
const byHand = "add by hand what docs/agents.md says"

// checkJSON says what is wrong with a text, and in which line, unless it is empty or JSON as edited takes it.
func checkJSON(text []byte) error {
	var bad *jsontext.SyntacticError
	var v jsontext.Value
	switch err := json.Unmarshal(text, &v); {
	case len(bytes.TrimSpace(text)) == 0 || err == nil:
		return nil
	case errors.Is(err, jsontext.ErrDuplicateName):
		return errors.New("this is JSON that has a name twice: " + byHand)
	case errors.As(err, &bad) && bad.ByteOffset <= int64(len(text)):
		return fmt.Errorf("line %d: this is no JSON without comments: %s", 1+bytes.Count(text[:bad.ByteOffset], []byte("\n")), byHand)
	}
	return errors.New("this is no JSON: " + byHand)
}

// edited returns an object of JSON in which to has changed what is at the end of the path, and the order of all else stays. What is
// not there, or null, is nothing to it.
func edited(object jsontext.Value, to func(jsontext.Value) (jsontext.Value, error), path ...string) (jsontext.Value, error) {
	if object = bytes.TrimSpace(object); string(object) == "null" {
		object = nil
	}
	switch {
	case len(path) == 0:
		return to(object)
	case len(object) == 0:
		object = jsontext.Value("{}")
	case object.Kind() != '{':
		return nil, errors.New("this is no object of JSON: " + byHand)
	}
	var out bytes.Buffer
	d, e := jsontext.NewDecoder(bytes.NewReader(object)), jsontext.NewEncoder(&out)
	_, err := d.ReadToken()
	err = errors.Join(err, e.WriteToken(jsontext.BeginObject))
	for found := false; err == nil && (!found || d.PeekKind() == '"'); {
		name, value := jsontext.String(path[0]), jsontext.Value(nil)
		if d.PeekKind() == '"' {
			if name, err = d.ReadToken(); err == nil {
				name = name.Clone()
				value, err = d.ReadValue()
			}
		}
		if name.String() == path[0] && err == nil {
			found = true
			if value, err = edited(value, to, path[1:]...); err != nil {
				return nil, fmt.Errorf("%q: %w", path[0], err)
			}
		}
		err = errors.Join(err, e.WriteToken(name), e.WriteValue(value))
	}
	err = errors.Join(err, e.WriteToken(jsontext.EndObject))
	return out.Bytes(), err
}

// server is what a file that names MCP servers says of lokt's.
const (
	serverJSON = `{"command":"lokt","args":["mcp"]}`
	serverTOML = "[mcp_servers.lokt]\ncommand = \"lokt\"\nargs = [\"mcp\"]\n"
)

var namesLokt = regexp.MustCompile(`"lokt"\s*:`)

// install returns one of the agent's files with the hooks and the MCP server in it that are to be there.
func (h harness) install(file string, now []byte) ([]byte, error) {
	if strings.HasSuffix(file, ".toml") {
		return withServer(now)
	}
	text, err := jsontext.Value(now), error(nil)
	change := func(to func(jsontext.Value) (jsontext.Value, error), path ...string) error { // only then it has to be plain JSON
		if err = checkJSON(text); err == nil {
			text, err = edited(text, to, path...)
		}
		return err
	}
	keep := func(with string) func(jsontext.Value) (jsontext.Value, error) {
		return func(have jsontext.Value) (jsontext.Value, error) {
			if have != nil {
				return have, nil
			}
			return jsontext.Value(with), nil
		}
	}
	for _, event := range h.events() {
		if file != h.settings || bytes.Contains(now, []byte(h.call(event))) { // also if somebody has added it by hand
			continue
		}
		entry := map[string]any{"command": program + h.call(event)}
		if h.name != "cursor" {
			entry = map[string]any{"hooks": []any{map[string]any{"type": "command", "command": program + h.call(event)}}}
		} else if change(keep("1"), "version") != nil {
			return nil, err
		}
		if event == h.edit {
			entry["matcher"] = h.matcher
		}
		if change(func(list jsontext.Value) (jsontext.Value, error) {
			var all []jsontext.Value
			if json.Unmarshal([]byte(cmp.Or(string(list), "[]")), &all) != nil {
				return nil, errors.New("this is no list of JSON: " + byHand)
			}
			one, err := json.Marshal(entry, json.Deterministic(true))
			if err != nil {
				return nil, err
			}
			return json.Marshal(append(all, one))
		}, "hooks", event) != nil {
			return nil, err
		}
	}
	if file == h.servers && !namesLokt.Match(now) && change(keep(serverJSON), "mcpServers", "lokt") != nil {
		return nil, err
	}
	if bytes.Equal(text, now) {
		return now, nil
	}
	if err := text.Indent(jsontext.WithIndent("  ")); err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}

// withServer is install for a file in TOML, whose text may name lokt's server in several ways.
func withServer(now []byte) ([]byte, error) {
	type servers struct {
		All map[string]any `toml:"mcp_servers"`
	}
	var have, then servers
	var bad *toml.DecodeError
	switch err := toml.Unmarshal(now, &have); {
	case errors.As(err, &bad):
		line, _ := bad.Position()
		return nil, fmt.Errorf("line %d: this is no TOML that can be read: %s", line, byHand)
	case err != nil:
		return nil, fmt.Errorf("%w: %s", err, byHand)
	case have.All["lokt"] != nil:
		return now, nil
	}
	text := append([]byte(strings.TrimLeft(strings.TrimRight(string(now), "\r\n")+"\n\n", "\n")), serverTOML...)
	if toml.Unmarshal(text, &then) != nil { // such as behind mcp_servers = {}, to which no table can be added
		return nil, errors.New("its mcp_servers is written such that lokt's cannot be put behind it: " + byHand)
	}
	return text, nil
}
