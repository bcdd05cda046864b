package archtest

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/lokt-dev/lokt"

// A tree is the Go source of the module, for every operating system at once.
type tree struct {
	fset *token.FileSet
	pkgs map[string]*pkg // by directory relative to the module's root, "." for the root
}

type pkg struct {
	dir   string
	files []*file
}

type file struct {
	path  string // relative to the module's root
	ast   *ast.File
	lines int
	test  bool
}

// code returns the files that are not tests.
func (p *pkg) code() []*file {
	var files []*file
	for _, f := range p.files {
		if !f.test {
			files = append(files, f)
		}
	}
	return files
}

// imports returns the import paths of the file.
func (f *file) imports() []string {
	var paths []string
	for _, s := range f.ast.Imports {
		p, _ := strconv.Unquote(s.Path.Value) // the parser has checked it
		paths = append(paths, p)
	}
	return paths
}

func newTree() *tree { return &tree{fset: token.NewFileSet(), pkgs: map[string]*pkg{}} }

func (tr *tree) at(n ast.Node) string {
	p := tr.fset.Position(n.Pos())
	return p.Filename + ":" + strconv.Itoa(p.Line)
}

func (tr *tree) add(name string, src []byte) error {
	parsed, err := parser.ParseFile(tr.fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := path.Dir(name)
	if tr.pkgs[dir] == nil {
		tr.pkgs[dir] = &pkg{dir: dir}
	}
	tr.pkgs[dir].files = append(tr.pkgs[dir].files, &file{
		path:  name,
		ast:   parsed,
		lines: bytes.Count(src, []byte("\n")),
		test:  strings.HasSuffix(name, "_test.go"),
	})
	return nil
}

// sources makes a tree of the given files, to try a check on.
func sources(t *testing.T, files map[string]string) *tree {
	t.Helper()
	tr := newTree()
	for name, src := range files {
		if err := tr.add(name, []byte(src)); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

// load parses the module's Go files. Nested modules, testdata and what the go command ignores are left out.
func load(t *testing.T) *tree {
	t.Helper()
	tr := newTree()
	walk(t, func(name string, read func() []byte) {
		if path.Ext(name) == ".go" && !strings.Contains("/"+name, "/testdata/") {
			if err := tr.add(name, read()); err != nil {
				t.Error(err)
			}
		}
	})
	if tr.pkgs["."] == nil || tr.pkgs["internal/archtest"] == nil {
		t.Fatal("the walk did not find the module's packages")
	}
	return tr
}

// root returns the module's root directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// walk visits the module's regular files by their slash-separated names relative to its root, but for build output,
// nested modules and hidden directories other than .ci.
func walk(t *testing.T, visit func(name string, read func() []byte)) {
	t.Helper()
	top := root(t)
	err := filepath.WalkDir(top, func(full string, d fs.DirEntry, err error) error {
		if err != nil || full == top {
			return err
		}
		rel, err := filepath.Rel(top, full)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(full, "go.mod"))
			made := name == "bin" || d.Name() == "node_modules" || d.Name() == "dist" || d.Name() == "dist-test"
			if made || nested == nil || strings.HasPrefix(d.Name(), "_") || strings.HasPrefix(d.Name(), ".") && name != ".ci" {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() && name != ".git" { // which names another directory, in a worktree
			visit(name, func() []byte {
				data, err := os.ReadFile(full)
				if err != nil {
					t.Error(err)
				}
				return data
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// report fails the test once for each violation.
func report(t *testing.T, violations []string) {
	t.Helper()
	for _, v := range violations {
		t.Error(v)
	}
}

// expect tries a check on source that breaks it in known ways: there must be one violation for each of the substrings,
// in any order, and no other.
func expect(t *testing.T, violations []string, want ...string) {
	t.Helper()
	for _, w := range want {
		found := false
		for i, v := range violations {
			if strings.Contains(v, w) {
				violations = append(violations[:i:i], violations[i+1:]...)
				found = true
				break
			}
		}
		if !found {
			t.Errorf("no violation mentions %q", w)
		}
	}
	for _, v := range violations {
		t.Errorf("unexpected: %s", v)
	}
}
