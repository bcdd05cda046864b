package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const maxLines = 900 // of a file that is not a test

func sizeAndCommentViolations(tr *tree) []string {
	var bad []string
	for dir, p := range tr.pkgs {
		code := p.code()
		if len(code) > 0 && !slices.ContainsFunc(code, func(f *file) bool { return f.ast.Doc != nil }) {
			bad = append(bad, fmt.Sprintf("package %s has no package comment", dir))
		}
		for _, f := range code {
			if f.lines > maxLines {
				bad = append(bad, fmt.Sprintf("%s has %d lines, more than %d: split it by what it does", f.path, f.lines, maxLines))
			}
		}
		for _, f := range p.files {
			for _, d := range f.ast.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					bad = append(bad, fmt.Sprintf("%s: func init runs at every start, and unasked", tr.at(fn)))
				}
			}
		}
	}
	return bad
}

func TestPackagesAreCommentedFilesAreShortAndNothingHasAnInit(t *testing.T) {
	report(t, sizeAndCommentViolations(load(t)))
}

func TestStyleCheckFindsMissingCommentsLongFilesAndInits(t *testing.T) {
	bad := sizeAndCommentViolations(sources(t, map[string]string{
		"a/a.go":      "package a\nfunc init() {}\nfunc (t) init() {}\n",
		"b/b.go":      "// Package b is commented.\npackage b\n" + strings.Repeat("\n", maxLines-1),
		"c/c_test.go": "package c\n" + strings.Repeat("\n", maxLines+1),
	}))
	expect(t, bad, "package a has no package comment", "a/a.go:2: func init", "b/b.go has 901 lines")
}

// conventional methods say nothing that their names do not.
func conventional() []string {
	return []string{"Error", "String", "Unwrap", "MarshalJSON", "UnmarshalJSON", "MarshalText", "UnmarshalText", "ServeHTTP", "Len", "Less", "Swap"}
}

// docViolations finds exported names without a comment in packages that others can import.
func docViolations(tr *tree) []string {
	var bad []string
	for dir, p := range tr.pkgs {
		if dir == "internal" || strings.HasPrefix(dir, "internal/") {
			continue
		}
		for _, f := range p.code() {
			if f.ast.Name.Name == "main" {
				continue
			}
			for _, d := range f.ast.Decls {
				for _, name := range undocumented(d) {
					bad = append(bad, fmt.Sprintf("%s: exported %s has no comment", tr.at(name), name.Name))
				}
			}
		}
	}
	return bad
}

// undocumented returns the exported names that the declaration introduces without a comment. One comment is enough for
// a group of constants or variables.
func undocumented(d ast.Decl) []*ast.Ident {
	var bare []*ast.Ident
	switch d := d.(type) {
	case *ast.FuncDecl:
		hidden := d.Recv != nil && (!ast.IsExported(receiver(d)) || slices.Contains(conventional(), d.Name.Name))
		if d.Doc == nil && d.Name.IsExported() && !hidden {
			bare = append(bare, d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
					bare = append(bare, s.Name)
				}
			case *ast.ValueSpec:
				for _, n := range s.Names {
					if n.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
						bare = append(bare, n)
					}
				}
			}
		}
	}
	return bare
}

// receiver returns the name of a method's receiver type.
func receiver(d *ast.FuncDecl) string {
	e := d.Recv.List[0].Type
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

func TestEveryExportedNameHasAComment(t *testing.T) {
	report(t, docViolations(load(t)))
}

func TestDocCheckFindsBareNames(t *testing.T) {
	bad := docViolations(sources(t, map[string]string{
		"internal/x/x.go": "package x\nfunc Bare() {}\n",
		"a/a.go": `package a
			func Bare() {}
			// Told is told.
			func Told() {}
			type T struct{}
			func (T) Method() {}
			func (*T) String() string { return "" }
			type hidden struct{}
			func (hidden) Method2() {}
			// Group.
			const ( A = 1; B = 2 )
			const C = 1
			var (
				D = 1 // told
				E = 1
			)
			`,
	}))
	expect(t, bad, "exported Bare", "exported T ", "exported Method ", "exported C", "exported E")
}

// globalViolations finds package-level variables that are not constant in all but name. Errors, tables, compiled
// expressions, embedded files and what the linker sets are fine as long as no code, tests included, assigns to them.
// ofTheProcess may have variables: signal handlers belong to the process, whoever runs in it.
const ofTheProcess = "internal/guard/sender_linux.go"

func globalViolations(tr *tree) []string {
	var bad []string
	for _, p := range tr.pkgs {
		vars := map[string]bool{}
		code := slices.DeleteFunc(slices.Clone(p.code()), func(f *file) bool { return f.path == ofTheProcess })
		for _, f := range code {
			for _, d := range f.ast.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.VAR {
					continue
				}
				for _, s := range g.Specs {
					v := s.(*ast.ValueSpec)
					for i, n := range v.Names {
						if n.Name == "_" {
							continue
						}
						vars[n.Name] = true
						if why := mutable(g, v, i); why != "" {
							bad = append(bad, fmt.Sprintf("%s: package variable %s is %s", tr.at(n), n.Name, why))
						}
					}
				}
			}
		}
		for _, f := range p.files {
			ast.Inspect(f.ast, func(n ast.Node) bool {
				if _, ok := n.(*ast.GenDecl); ok && !f.test {
					return true
				}
				for _, name := range assigned(n) {
					if vars[name] {
						bad = append(bad, fmt.Sprintf("%s: assigns to package variable %s, or to a local one that hides it", tr.at(n), name))
					}
				}
				return true
			})
		}
	}
	return bad
}

// mutable says why the i-th name of the declaration is not a constant in all but name; it is empty if it is.
func mutable(g *ast.GenDecl, v *ast.ValueSpec, i int) string {
	if shared(v.Type) {
		return "made to be changed"
	}
	if len(v.Values) == 0 {
		for _, doc := range []*ast.CommentGroup{g.Doc, v.Doc} {
			if doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") }) {
				return ""
			}
		}
		return "declared without a value, so it is there to be assigned to"
	}
	if i >= len(v.Values) {
		return ""
	}
	switch e := v.Values[i].(type) {
	case *ast.UnaryExpr:
		if e.Op == token.AND {
			return "a pointer to shared state"
		}
	case *ast.CompositeLit:
		if shared(e.Type) {
			return "made to be changed"
		}
	case *ast.CallExpr:
		if id, ok := e.Fun.(*ast.Ident); ok && (id.Name == "make" || id.Name == "new") {
			return "empty, so it is there to be filled"
		}
	}
	return ""
}

// shared reports whether the type is one of those that exist to be changed by several goroutines, or a channel.
func shared(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ChanType:
		return true
	case *ast.IndexExpr:
		return shared(e.X)
	case *ast.SelectorExpr:
		x, ok := e.X.(*ast.Ident)
		return ok && (x.Name == "sync" || x.Name == "atomic")
	}
	return false
}

// assigned returns the names of the variables to which, or to a part of which, the statement assigns, or of which it
// takes the address.
func assigned(n ast.Node) []string {
	var targets []ast.Expr
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok != token.DEFINE {
			targets = n.Lhs
		}
	case *ast.IncDecStmt:
		targets = []ast.Expr{n.X}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			targets = []ast.Expr{n.X}
		}
	case *ast.CallExpr:
		if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "delete" || id.Name == "clear") {
			targets = n.Args[:min(1, len(n.Args))]
		}
	}
	var names []string
	for _, e := range targets {
		for {
			if x, ok := e.(*ast.IndexExpr); ok {
				e = x.X
				continue
			}
			if x, ok := e.(*ast.SelectorExpr); ok {
				e = x.X
				continue
			}
			break
		}
		if id, ok := e.(*ast.Ident); ok {
			names = append(names, id.Name)
		}
	}
	return names
}

func TestNothingMutableIsGlobal(t *testing.T) {
	report(t, globalViolations(load(t)))
}

func TestGlobalCheckFindsWhatChanges(t *testing.T) {
	bad := globalViolations(sources(t, map[string]string{
		"a/a.go": `package a
			import ("errors"; "regexp"; "sync"; "time")
			var ErrA = errors.New("a")
			var words = regexp.MustCompile("a")
			var table = map[string]int{"a": 1}
			var _ error = ErrA
			var now = time.Now
			var mu sync.Mutex
			var count int
			var cache = make(map[string]int)
			var current = &T{}
			//go:embed x.html
			var files embed.FS
			var filled = []int{1}
			func f() { filled[0] = 2; delete(table, "a"); local := 1; local = 2; _ = local }`,
		"a/a_test.go": `package a
			func g() { now = nil }`,
	}))
	expect(t, bad,
		"mu is made to be changed",
		"count is declared without a value",
		"cache is empty",
		"current is a pointer",
		"assigns to package variable filled", "assigns to package variable table", "assigns to package variable now",
	)
}

// machineWords are parts of paths and addresses that mean something on one machine, or to one build's package
// registry, and nothing to a reader. They are spelled in pieces so that this file does not contain them.
func machineWords() []string {
	return []string{"/wo" + "rk/", "../sha" + "red", "/root/" + "go", "proxy.gol" + "ang.org", "sum.gol" + "ang.org", "index.gol" + "ang.org"}
}

func machineViolations(name string, text []byte) []string {
	var bad []string
	for i, line := range strings.Split(string(text), "\n") {
		for _, w := range machineWords() {
			if strings.Contains(line, w) {
				bad = append(bad, fmt.Sprintf("%s:%d: %q does not belong into the tree", name, i+1, w))
			}
		}
	}
	return bad
}

func TestTheTreeNamesNoMachinePathsOrRegistryHosts(t *testing.T) {
	walk(t, func(name string, read func() []byte) {
		if text := read(); utf8.Valid(text) {
			report(t, machineViolations(name, text))
		}
	})
}

func TestMachineCheckFindsThePlace(t *testing.T) {
	bad := machineViolations("x.md", []byte("fine\nsee /wo"+"rk/main\n"))
	expect(t, bad, "x.md:2: ")
}
