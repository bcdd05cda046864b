package httpapi_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/api.md anew from openapi.json")

// apiSchema is as much of a schema as the reference tells.
type apiSchema struct {
	Ref         string               `json:"$ref"`
	Type        any                  `json:"type"` // a name, or several
	Description string               `json:"description"`
	Properties  map[string]apiSchema `json:"properties"`
	Required    []string             `json:"required"`
	Items       *apiSchema           `json:"items"`
	Additional  any                  `json:"additionalProperties"`
	Enum        []any                `json:"enum"`
	Const       any                  `json:"const"`
	Default     any                  `json:"default"`
	Format      string               `json:"format"`
	Minimum     json.Number          `json:"minimum"`
	Maximum     json.Number          `json:"maximum"`
	MinLength   json.Number          `json:"minLength"`
	MaxLength   json.Number          `json:"maxLength"`
	MinItems    json.Number          `json:"minItems"`
	MaxItems    json.Number          `json:"maxItems"`
	OneOf       []apiSchema          `json:"oneOf"`
	AnyOf       []apiSchema          `json:"anyOf"`
	AllOf       []apiSchema          `json:"allOf"`
}

type apiContent map[string]struct {
	Schema apiSchema `json:"schema"`
}

type apiAnswer struct {
	Ref         string     `json:"$ref"`
	Description string     `json:"description"`
	Content     apiContent `json:"content"`
}

type apiOperation struct {
	Tags        []string `json:"tags"`
	Summary     string   `json:"summary"`
	Description string   `json:"description"`
	Parameters  []struct {
		Name        string    `json:"name"`
		In          string    `json:"in"`
		Required    bool      `json:"required"`
		Description string    `json:"description"`
		Schema      apiSchema `json:"schema"`
	} `json:"parameters"`
	Body *struct {
		Content apiContent `json:"content"`
	} `json:"requestBody"`
	Responses map[string]apiAnswer `json:"responses"`
}

type apiDocument struct {
	Info struct {
		Description string `json:"description"`
	} `json:"info"`
	Tags []struct {
		Name        string `json:"name"`
		Description string `json:"description"`
	} `json:"tags"`
	Paths      map[string]map[string]apiOperation `json:"paths"`
	Components struct {
		Schemas   map[string]apiSchema `json:"schemas"`
		Responses map[string]apiAnswer `json:"responses"`
	} `json:"components"`
}

// The reference for people is made from the description for programs, which other tests compare with what the server does.
func TestTheReferenceSaysWhatTheOpenAPIDocumentSays(t *testing.T) {
	source, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var d apiDocument
	if err := json.Unmarshal(source, &d); err != nil {
		t.Fatal(err)
	}
	want := d.reference()
	path := filepath.Join("..", "docs", "api.md")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // a page for everybody
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Error("docs/api.md is older than openapi.json: go test ./httpapi -run TheReference -update")
	}
	for path := range d.Paths {
		if !strings.Contains(want, path) {
			t.Errorf("the reference does not mention %s", path)
		}
	}
}

func (d *apiDocument) reference() string {
	var b strings.Builder
	b.WriteString("# HTTP API\n\nMade from `httpapi/openapi.json`, which a server also gives at `/openapi.json`. How the parts play together is in\n[protocol.md](protocol.md); how to work with jobs is in [scheduler.md](scheduler.md).\n\n" + d.Info.Description + "\n")
	for _, tag := range d.Tags {
		fmt.Fprintf(&b, "\n## %s\n", strings.ToUpper(tag.Name[:1])+tag.Name[1:])
		if tag.Description != "" {
			fmt.Fprintf(&b, "\n%s\n", tag.Description)
		}
		for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
			for _, method := range []string{"get", "post", "put", "delete"} {
				if op, ok := d.Paths[path][method]; ok && slices.Contains(op.Tags, tag.Name) {
					d.operation(&b, strings.ToUpper(method), path, op)
				}
			}
		}
	}
	b.WriteString("\n## Types\n")
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		s := d.Components.Schemas[name]
		fmt.Fprintf(&b, "\n### %s\n", name)
		if s.Description != "" {
			fmt.Fprintf(&b, "\n%s\n", s.Description)
		}
		if len(s.Properties) == 0 {
			fmt.Fprintf(&b, "\n%s.\n", upper(kindOf(s)))
		}
		members(&b, s)
	}
	return b.String()
}

func (d *apiDocument) operation(b *strings.Builder, method, path string, op apiOperation) {
	fmt.Fprintf(b, "\n### `%s %s`\n\n%s. %s\n", method, path, op.Summary, op.Description)
	if len(op.Parameters) > 0 {
		b.WriteString("\n| parameter | in | type | |\n|---|---|---|---|\n")
		for _, p := range op.Parameters {
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", p.Name, p.In, kindOf(p.Schema), cell(p.Description, p.Schema, p.Required && p.In != "path"))
		}
	}
	if op.Body != nil {
		fmt.Fprintf(b, "\nBody: %s.\n", contents(op.Body.Content))
		for _, c := range op.Body.Content {
			members(b, c.Schema)
		}
	}
	b.WriteString("\n| status | |\n|---|---|\n")
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		a := op.Responses[status]
		if name, ok := strings.CutPrefix(a.Ref, "#/components/responses/"); ok {
			a = d.Components.Responses[name]
		}
		if status == "default" {
			status = "else"
		}
		what := a.Description
		if len(a.Content) > 0 {
			what += " " + upper(contents(a.Content)) + "."
		}
		fmt.Fprintf(b, "| %s | %s |\n", status, what)
	}
}

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func contents(c apiContent) string {
	var all []string
	for _, media := range slices.Sorted(maps.Keys(c)) {
		all = append(all, fmt.Sprintf("`%s`: %s", media, kindOf(c[media].Schema)))
	}
	return strings.Join(all, ", or ")
}

// members writes a table of an object's members.
func members(b *strings.Builder, s apiSchema) {
	if len(s.Properties) == 0 {
		return
	}
	b.WriteString("\n| member | type | |\n|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, kindOf(p), cell(p.Description, p, slices.Contains(s.Required, name)))
	}
}

func cell(description string, s apiSchema, required bool) string {
	var notes []string
	if required {
		notes = append(notes, "Required.")
	}
	if description != "" {
		notes = append(notes, description)
	}
	for _, bound := range []struct {
		what string
		n    json.Number
	}{
		{"At least", s.Minimum},
		{"At most", s.Maximum},
		{"Shortest:", s.MinLength},
		{"Longest:", s.MaxLength},
		{"Fewest:", s.MinItems},
		{"Most:", s.MaxItems},
	} {
		if bound.n != "" {
			notes = append(notes, fmt.Sprintf("%s %s.", bound.what, bound.n))
		}
	}
	if s.Default != nil {
		text, _ := json.Marshal(s.Default)
		notes = append(notes, fmt.Sprintf("Default: `%s`.", text))
	}
	return strings.ReplaceAll(strings.Join(notes, " "), "|", "\\|")
}

// kindOf names a schema's type, with a link if it has a name.
func kindOf(s apiSchema) string {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	}
	for _, several := range []struct {
		all  []apiSchema
		word string
	}{{s.OneOf, " or "}, {s.AnyOf, " or "}, {s.AllOf, " and "}} {
		if len(several.all) > 0 {
			var names []string
			for _, one := range several.all {
				names = append(names, kindOf(one))
			}
			return strings.Join(names, several.word)
		}
	}
	switch {
	case s.Const != nil:
		text, _ := json.Marshal(s.Const)
		return fmt.Sprintf("`%s`", text)
	case len(s.Enum) > 0:
		var names []string
		for _, v := range s.Enum {
			text, _ := json.Marshal(v)
			names = append(names, fmt.Sprintf("`%s`", text))
		}
		return strings.Join(names, ", ")
	}
	var names []string
	switch kind := s.Type.(type) {
	case string:
		names = []string{kind}
	case []any:
		for _, k := range kind {
			names = append(names, fmt.Sprint(k))
		}
	default:
		return "any JSON"
	}
	for i, name := range names {
		switch {
		case name == "array" && s.Items != nil:
			names[i] = "list of " + kindOf(*s.Items)
		case name == "string" && s.Format != "":
			names[i] = "string (" + s.Format + ")"
		}
	}
	return strings.Join(names, " or ")
}
