package archtest

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/token"
	"go/types"
	"path"
	"slices"
	"strconv"
	"testing"
)

// ruleFiles are the files that decide, in the root and in jobs: pure functions of their arguments.
func ruleFiles() []string {
	return []string{
		"rules.go", "queue.go", "release.go", "deadlock.go",
		"engine.go", "grant.go", "reserve.go", "locks.go", "read.go", "record.go", "load.go", "submit.go", "clock.go", // of jobs/engine
	}
}

// pureImports are the packages that a rule may use. Of time, only arithmetic: see impureNames.
func pureImports() []string {
	return []string{
		"bytes", "cmp", "container/list", "crypto/sha256", "encoding/hex", "encoding/json", "github.com/go-json-experiment/json", "github.com/go-json-experiment/json/jsontext", "github.com/tidwall/btree", "errors", "fmt", "hash/fnv", "iter", "maps", "math", "math/bits", "slices", "sort", "strconv",
		"strings", "time", "unicode", "unicode/utf8", module, module + "/internal/glob", module + "/internal/heap", module + "/jobs",
	}
}

// impureNames are what pureImports offer that depends on anything but arguments, or does anything but return.
func impureNames() []string {
	return []string{
		"time.Now", "time.Since", "time.Until", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker", "time.Tick", "time.Sleep",
		"time.Local", "time.LoadLocation", "fmt.Print", "fmt.Println", "fmt.Printf", "fmt.Scan", "fmt.Scanln", "fmt.Scanf",
	}
}

// purityViolations finds what is impure in the rule files of a package, and in what they use elsewhere in it.
func purityViolations(tr *tree, dir string) []string {
	p := tr.pkgs[dir]
	if p == nil {
		return nil
	}
	type body struct {
		in   *file
		decl *ast.FuncDecl
	}
	info := resolve(tr, p)
	bodies := map[types.Object]body{}
	var todo []body
	for _, f := range p.code() {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
				b := body{f, fn}
				bodies[info.Defs[fn.Name]] = b
				if slices.Contains(ruleFiles(), path.Base(f.path)) {
					todo = append(todo, b)
				}
			}
		}
	}
	var bad []string
	seen := map[*ast.FuncDecl]bool{}
	for len(todo) > 0 {
		b := todo[0]
		todo = todo[1:]
		if seen[b.decl] {
			continue
		}
		seen[b.decl] = true
		names := importNames(b.in)
		complain := func(n ast.Node, what string) {
			bad = append(bad, fmt.Sprintf("%s: %s %s, and rules must be pure", tr.at(n), b.decl.Name.Name, what))
		}
		ast.Inspect(b.decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				complain(n, "starts a goroutine")
			case *ast.ChanType, *ast.SendStmt, *ast.SelectStmt:
				complain(n, "uses a channel")
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					complain(n, "uses a channel")
				}
			case *ast.Ident:
				if f, ok := bodies[info.Uses[n]]; ok {
					todo = append(todo, f)
				}
			case *ast.SelectorExpr:
				x, ok := n.X.(*ast.Ident)
				if !ok || names[x.Name] == "" {
					break
				}
				imported := names[x.Name]
				if !slices.Contains(pureImports(), imported) || slices.Contains(impureNames(), imported+"."+n.Sel.Name) {
					complain(n, "uses "+imported+"."+n.Sel.Name)
				}
				return false
			}
			return true
		})
	}
	return bad
}

// resolve finds out what the names in the package stand for. What cannot be imported stays unknown, which does no harm
// here: only the package's own functions are looked up.
func resolve(tr *tree, p *pkg) *types.Info {
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
	var files []*ast.File
	for _, f := range p.code() {
		files = append(files, f.ast)
	}
	conf := types.Config{Importer: importer.Default(), Error: func(error) {}}
	_, _ = conf.Check(p.dir, tr.fset, files, info) // the compiler reports errors better
	return info
}

// importNames maps the names under which the file knows its imports to their paths.
func importNames(f *file) map[string]string {
	names := map[string]string{}
	for _, s := range f.ast.Imports {
		p, _ := strconv.Unquote(s.Path.Value) // the parser has checked it
		name := path.Base(p)
		if s.Name != nil {
			name = s.Name.Name
		}
		names[name] = p
	}
	return names
}

func TestRulesDependOnNothingButTheirArguments(t *testing.T) {
	tr := load(t)
	if !slices.ContainsFunc(tr.pkgs["."].files, func(f *file) bool { return f.path == "rules.go" }) {
		t.Error("rules.go is gone: name the files that decide in ruleFiles")
	}
	report(t, purityViolations(tr, "."))
	report(t, purityViolations(tr, "jobs/engine"))
}

func TestPurityCheckFindsClocksChannelsAndWhatIsCalled(t *testing.T) {
	bad := purityViolations(sources(t, map[string]string{
		"rules.go": `package lokt
			import ("time"; "strings"; "os")
			func clock() time.Time { return time.Now() }
			func fine(a, b time.Time) bool { return a.After(b) && strings.Contains("a", "b") }
			func env() string { return os.Getenv("A") }
			func background() { go clock() }
			func wait(c interface{}) { var d chan int; d <- 1; <-d }
			func indirect(l lock) { elsewhere(); l.method() }`,
		"other.go": `package lokt
			import ("crypto/rand"; "time"; "io")
			type lock struct{}
			func elsewhere() { _, _ = rand.Read(nil) }
			func (lock) method() time.Duration { return time.Since(time.Time{}) }
			type other struct{}
			func (other) method() { time.Sleep(1); _ = io.EOF }`,
	}), ".")
	expect(t, bad,
		"clock uses time.Now",
		"env uses os.Getenv",
		"background starts a goroutine",
		"wait uses a channel", "wait uses a channel", "wait uses a channel",
		"elsewhere uses crypto/rand.Read",
		"method uses time.Since",
	)
}
