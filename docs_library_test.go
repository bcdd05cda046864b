package lokt_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// surroundings are what the snippets of docs/library.md take for granted: packages, and names that a reader knows by then.
const surroundings = `package snippets

import (
	"context"
	"errors"
	"log"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/easy"
	"github.com/lokt-dev/lokt/store/filestore"
	"github.com/lokt-dev/lokt/telemetry"
)

var (
	ctx    context.Context
	locker *lokt.Locker
	owner  lokt.Owner
	err    error
	dir    string
	files  []string

	_ = errors.Is
	_ = log.Printf
	_ atomic.Bool
	_ = time.Minute
	_ = otel.GetMeterProvider
	_ = filestore.Open
	_ = easy.Open
	_ = telemetry.New
)

func importFile(context.Context, string, uint64) error { return nil }
`

var goSnippet = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")

// compilable returns a file that has the snippet in it: as declarations, or else as the body of a function of which all
// names are used. The error is the parser's.
func compilable(snippet string, n int) (string, error) {
	if _, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+snippet, 0); err == nil {
		return strings.Replace(surroundings, "package snippets", fmt.Sprintf("package snippet%d", n), 1) +
			"\nfunc (s *Syncer) processQueue(context.Context) error { return nil }\n" + snippet, nil
	}
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, "", "package p\nfunc _() error {\n"+snippet+"\n}", 0)
	if err != nil {
		return "", err
	}
	body := f.Decls[0].(*ast.FuncDecl).Body
	used := map[string]bool{}
	for _, s := range body.List {
		if a, ok := s.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
			for _, name := range a.Lhs {
				used[name.(*ast.Ident).Name] = true
			}
		}
	}
	var b bytes.Buffer
	if err := printer.Fprint(&b, files, body.List); err != nil {
		return "", err
	}
	for name := range used {
		fmt.Fprintf(&b, "\n_ = %s", name)
	}
	return strings.Replace(surroundings, "package snippets", fmt.Sprintf("package snippet%d", n), 1) +
		"\nfunc _() error {\n" + b.String() + "\nreturn err\n}\n", nil
}

func TestTheSnippetsOfTheLibraryPageCompile(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("docs", "library.md"))
	if err != nil {
		t.Fatal(err)
	}
	snippets := goSnippet.FindAllSubmatch(page, -1)
	if len(snippets) != bytes.Count(page, []byte("```go")) || len(snippets) < 5 {
		t.Fatalf("found %d snippets", len(snippets))
	}
	dir, err := os.MkdirTemp(".", ".snippets-") // in this module, for its dependencies
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	vet := []string{"vet"}
	for i, s := range snippets {
		source, err := compilable(string(s[1]), i)
		if err != nil {
			t.Errorf("%v in:\n%s", err, s[1])
			continue
		}
		at := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "snippet.go"), []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		vet = append(vet, "./"+filepath.ToSlash(at))
	}
	if out, err := exec.CommandContext(t.Context(), "go", vet...).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
