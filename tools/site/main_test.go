package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestEveryLinkOfThePagesLeadsSomewhere(t *testing.T) {
	out := t.TempDir()
	if err := build(os.DirFS(filepath.Join("..", "..")), out); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"index.html", "docs/operations.html", "docs/adr/0003-dependencies.html", "CHANGELOG.html", "clients/python/README.html", "search.js", "style.css"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
}

func TestLinksLeadWithinTheSiteOrToTheSource(t *testing.T) {
	out := t.TempDir()
	err := build(fstest.MapFS{
		"README.md":   {Data: []byte("# One\n[two](docs/two.md#far-down) [code](doc.go) [page](https://example.org)\n")},
		"docs/two.md": {Data: []byte("# Two\n[one](../README.md) ![three](three.png)\n## Far down\nwhere `kittens` sleep\n")},
		"doc.go":      {},

		"docs/three.png": {Data: []byte("three")},
	}, out)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{
		"index.html":     {`href="docs/two.html#far-down"`, `href="` + source + `doc.go"`, `href="https://example.org"`, `<title>One</title>`},
		"docs/two.html":  {`href="../index.html"`, `id="far-down"`, `href="../style.css"`, `src="three.png"`},
		"docs/three.png": {"three"},
		"search.js":      {`{"page":"Two","title":"Far down","url":"docs/two.html#far-down","text":"where kittens sleep "}`},
	} {
		text, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s lacks %s:\n%s", name, w, text)
			}
		}
	}
}

func TestDeadLinksAreFound(t *testing.T) {
	err := build(fstest.MapFS{"README.md": {Data: []byte("# One\n[a](gone.md) [b](#nowhere) ![c](gone.png)\n")}}, t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "gone.md") || !strings.Contains(err.Error(), "#nowhere") || !strings.Contains(err.Error(), "gone.png") {
		t.Errorf("%v", err)
	}
}
