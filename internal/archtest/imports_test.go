package archtest

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ours is the import table: for each package of the module, which of the module's packages its code may import. Tests
// may import more. Packages are named by directory, the root is ".". A package that is not here fails the test; an entry
// whose package does not exist is harmless.
func ours() map[string][]string {
	table := map[string][]string{
		".":             {"internal/ahead", "internal/glob", "internal/heap", "internal/rawjson"},
		"jobs":          {"."},
		"jobs/engine":   {".", "internal/heap", "jobs"},
		"jobs/manager":  {".", "internal/jitter", "jobs", "jobs/engine"},
		"jobs/worker":   {".", "internal/jitter", "jobs"},
		"jobs/jobstest": {".", "jobs", "jobs/manager", "jobs/worker"},
		"lokttest":      {"."},
		"lockfile":      {"."},

		"store/place":     {"internal/process"},
		"store/memstore":  {".", "jobs"},
		"store/filestore": {".", "lockfile", "internal/ahead", "internal/atomicfile", "internal/audit", "internal/jitter", "internal/kernel", "internal/vfs", "internal/process"},
		"store/sqlstore":  {".", "jobs", "internal/atomicfile", "internal/joint", "internal/vfs", "store/place"},
		"store/etcdstore": {".", "internal/renewed", "internal/joint", "store/etcdstore/members", "store/place"},
		"docs":            {},

		"store/etcdstore/members": {"store/place"},

		"httpapi":   {".", "jobs", "jobs/engine", "internal/jitter", "internal/process", "internal/rawjson", "store/place"},
		"telemetry": {".", "jobs", "internal/promtext"},
		"dashboard": {".", "internal/quote", "internal/rows", "jobs"},

		"internal/archtest":         {},
		"internal/auth":             {".", "httpapi", "internal/atomicfile", "internal/renewed", "internal/vfs"},
		"internal/promtext":         {},
		"internal/renewed":          {},
		"internal/version":          {},
		"easy":                      {".", "httpapi", "internal/renewed", "store/filestore"},
		"internal/terraform":        {"."},
		"internal/quote":            {},
		"internal/rawjson":          {},
		"internal/glob":             {},
		"internal/ahead":            {},
		"internal/joint":            {},
		"internal/heap":             {},
		"internal/jitter":           {},
		"internal/kernel":           {".", "internal/audit", "internal/process", "internal/vfs", "lockfile"},
		"internal/sim":              {".", "httpapi", "internal/atomicfile", "internal/audit", "internal/cli/app", "internal/kernel", "internal/process", "internal/vfs", "jobs", "jobs/manager", "jobs/worker", "lockfile", "lokttest", "store/filestore", "store/memstore"},
		"internal/identity":         {".", "internal/process"},
		"internal/replicas":         {},
		"internal/testkit/parallel": {},
		"internal/testkit/ports":    {},
		"internal/testkit/programs": {},
		"internal/testkit/servers":  {"internal/testkit/ports"},
		"internal/e2e":              {".", "internal/process", "store/filestore"},
		"internal/vfs":              {},
		"internal/testkit/faultfs":  {"internal/vfs"},
		"internal/testkit/faultvfs": {},
		"internal/atomicfile":       {"internal/vfs"},
		"internal/process":          {"."},
		"internal/audit":            {".", "internal/vfs"},
		"internal/guard":            {".", "internal/process"},
		"internal/cli/app":          {".", "easy", "httpapi", "internal/audit", "internal/guard", "internal/identity", "internal/nearest", "internal/process", "internal/quote", "internal/version", "internal/vfs", "jobs", "lockfile", "store/filestore"},
		"internal/cli/wait":         {".", "httpapi", "internal/audit", "internal/cli/app", "internal/guard", "internal/identity", "internal/process", "internal/rows"},
		"internal/machine":          {},
		"internal/cli/machine":      {".", "internal/cli/app", "internal/machine"},
		"internal/cli/jobserver":    {".", "internal/cli/app", "internal/foreign", "internal/guard", "internal/machine", "internal/process"},
		"internal/cli/locks":        {".", "internal/audit", "internal/cli/app", "internal/cli/machine", "internal/cli/wait", "internal/foreign", "internal/guard", "internal/nearest", "internal/process", "jobs", "lockfile"},
		"internal/cli/job":          {".", "httpapi", "internal/cli/app", "internal/cli/bench", "internal/cli/bulk", "internal/guard", "internal/process", "internal/rows", "jobs", "jobs/worker"},
		"internal/cli/care":         {".", "docs", "httpapi", "internal/atomicfile", "internal/audit", "internal/cli/app", "internal/cli/locks", "internal/cli/proof", "internal/guard", "internal/process", "internal/promtext", "internal/quote", "internal/section", "internal/version", "internal/vfs", "lockfile", "store/filestore", "store/place"},
		"internal/testkit/clitest":  {".", "httpapi", "internal/cli/app", "lockfile", "store/memstore"}, // for tests
		"internal/cli":              {"internal/cli/app", "internal/cli/care", "internal/cli/job", "internal/cli/locks", "internal/cli/talk", "internal/cli/wait"},
		"internal/foreign":          {"internal/process", "internal/quote", "internal/rows"},
		"internal/section":          {},
		"internal/nearest":          {},
		"internal/policy":           {".", "internal/nearest"},
		"internal/shell":            {"internal/policy"},
		"internal/cli/agent":        {".", "internal/atomicfile", "internal/cli/app", "internal/cli/turns", "internal/cli/wait", "internal/glob", "internal/guard", "internal/identity", "internal/policy", "internal/process", "internal/rows", "internal/section", "internal/shell", "internal/vfs"},
		"internal/cli/bulk":         {".", "httpapi", "internal/cli/app", "internal/guard"},
		"internal/cli/turns":        {".", "internal/cli/app", "internal/cli/locks", "internal/policy"},
		"internal/history":          {".", "internal/audit"},
		"internal/cli/proof":        {"internal/audit", "internal/cli/app", "internal/history"},
		"internal/cli/talk":         {".", "internal/cli/app", "internal/guard"},
		"internal/cli/bench":        {".", "internal/cli/app", "internal/guard", "jobs"},
		"internal/cli/mcp":          {"internal/cli/app", "internal/cli/wait", "internal/policy", "internal/rows", "internal/shell", "internal/version"},
		"internal/cli/top":          {".", "httpapi", "internal/cli/app", "internal/rows", "jobs"},
		"internal/rows":             {".", "jobs"},
		"internal/cli/man":          {"internal/cli", "internal/cli/agent", "internal/cli/bench", "internal/cli/mcp", "internal/cli/jobserver", "internal/cli/top", "internal/daemon", "internal/sim", "internal/version"}, // writes the man pages, so that lokt need not link what does

		"clients/scenarios": {},

		"examples/queue":   {".", "store/filestore"},
		"examples/metrics": {".", "store/filestore", "telemetry"},

		"cmd/lokt":       {"internal/cli"},
		"cmd/lokt-agent": {"internal/cli/agent"},
		"cmd/lokt-bench": {"internal/cli/bench"},
		"cmd/lokt-mcp":   {"internal/cli/mcp"},
		"cmd/lokt-top":   {"internal/cli/top"},

		"cmd/lokt-sim":       {"internal/sim"},
		"cmd/lokt-jobserver": {"internal/cli/jobserver"},
		"cmd/loktd":          {"internal/daemon"},
	}
	// These wire the others together, so for them the table says what they must leave alone.
	all := append(slices.Collect(maps.Keys(table)), "internal/daemon", "bench")
	allBut := func(not ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(p string) bool {
			return slices.Contains(not, p) || strings.HasPrefix(p, "cmd/") || strings.HasPrefix(p, "examples/") ||
				strings.HasPrefix(p, testkit) && p != testkit+"servers"
		})
	}
	table["internal/daemon"] = allBut(testkit+"servers", "internal/sim", "internal/cli", "internal/cli/man", "internal/cli/mcp", "internal/cli/top", "lokttest", "jobs/jobstest", "bench")
	table["bench"] = allBut("internal/sim", "internal/cli/man", "internal/cli/mcp", "internal/cli/top", "lokttest", "jobs/jobstest")
	return table
}

// testkit begins the packages that make things fail, and servers, for tests; bench starts servers too.
const testkit = "internal/testkit/"

// theirs lists the dependencies that code, other than tests, may import, by path prefix, and which packages may. Each
// is there for a reason, which docs/adr/0003-dependencies.md gives.
func theirs() map[string][]string {
	return map[string][]string{
		"github.com/spf13/cobra":                 {"internal/cli", "internal/cli/agent", "internal/cli/app", "internal/cli/bench", "internal/cli/bulk", "internal/sim", "internal/cli/locks", "internal/cli/machine", "internal/cli/jobserver", "internal/cli/job", "internal/cli/care", "internal/cli/man", "internal/cli/mcp", "internal/cli/talk", "internal/cli/top", "internal/cli/turns", "internal/cli/wait", "internal/daemon"},
		"charm.land/bubbletea/v2":                {"internal/cli/top"},
		"github.com/charmbracelet/x":             {"internal/cli/top"},
		"github.com/modelcontextprotocol/go-sdk": {"internal/cli/mcp"},
		"mvdan.cc/sh/v3":                         {"internal/shell"},
		"github.com/pelletier/go-toml":           {"internal/cli/agent", "internal/policy"},
		"github.com/spf13/pflag":                 {"internal/cli/job", "internal/daemon"},
		"github.com/coreos/go-systemd":           {"internal/daemon"},
		"github.com/fsnotify/fsnotify":           {"store/filestore"},
		"github.com/tidwall/btree":               {"jobs/engine"},
		"github.com/robfig/cron":                 {"jobs"},
		"golang.org/x/sys":                       {"internal/atomicfile", "internal/audit", "internal/vfs", "internal/cli/app", "internal/cli/care", "internal/cli/jobserver", "internal/cli/top", "internal/guard", "internal/process", "store/filestore", "store/place"},

		"golang.org/x/time": {"internal/auth", "internal/daemon"},

		"modernc.org/sqlite":                 {"store/sqlstore", "internal/testkit/faultvfs"},
		"modernc.org/libc":                   {"internal/testkit/faultvfs"},
		"github.com/jackc/pgx":               {"store/sqlstore", "bench", "internal/testkit/servers"},
		"go.etcd.io/etcd":                    {"store/etcdstore", "store/etcdstore/members", "internal/daemon", "bench"},
		"go.uber.org/zap":                    {"store/etcdstore", "internal/daemon"}, // the etcd client's logger, to silence it
		"google.golang.org/grpc":             {"store/etcdstore"},                    // the etcd client's status codes
		"go.opentelemetry.io/otel":           {"telemetry", "internal/daemon", "examples/metrics"},
		"golang.org/x/net":                   {"internal/daemon"},
		"github.com/prometheus":              {"internal/daemon", "examples/metrics"},
		"pgregory.net/rapid":                 {"lokttest", "jobs/jobstest"},
		"github.com/anishathalye":            {"lokttest", "jobs/jobstest"},
		"go.uber.org/goleak":                 {"lokttest", "jobs/jobstest"},
		"github.com/rogpeppe":                {"bench"},
		"github.com/gofrs":                   {"store/sqlstore", "bench", "internal/cli/agent", "internal/cli/wait", "internal/testkit/programs"},
		"go.opentelemetry.io/contrib":        {"internal/daemon"},
		"github.com/go-json-experiment/json": {".", "dashboard", "internal/foreign", "internal/rows", "jobs", "jobs/engine", "jobs/worker", "jobs/jobstest", "httpapi", "internal/rawjson", "internal/sim", "internal/cli/agent", "internal/cli/job", "lockfile", "internal/audit", "internal/cli/app", "store/etcdstore", "store/filestore", "store/sqlstore"},
	}
}

// outside lists the standard packages that the vocabulary and rules of locks and jobs have no business with.
func outside() []string { return []string{"os", "net", "database/sql", "syscall", "testing", "log"} }

// under reports whether the import path is the prefix or below it.
func under(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func importViolations(tr *tree) []string {
	var bad []string
	own, foreign := ours(), theirs()
	for dir, p := range tr.pkgs {
		allowed, known := own[dir]
		if !known {
			bad = append(bad, fmt.Sprintf("package %s is not in the import table: say in imports_test.go what it may import", dir))
			continue
		}
		for _, f := range p.code() {
			for _, path := range f.imports() {
				switch {
				case under(path, module):
					to := strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
					if to == "" {
						to = "."
					}
					if !slices.Contains(allowed, to) {
						bad = append(bad, fmt.Sprintf("%s: package %s must not import %s", f.path, dir, to))
					}
				case strings.Contains(strings.Split(path, "/")[0], "."):
					if !mayUse(foreign, path, dir) {
						bad = append(bad, fmt.Sprintf("%s: package %s must not import %s", f.path, dir, path))
					}
				case (dir == "." || dir == "jobs" || dir == "jobs/engine") && slices.ContainsFunc(outside(), func(o string) bool { return under(path, o) }):
					bad = append(bad, fmt.Sprintf("%s: package %s must not import %s", f.path, dir, path))
				}
			}
		}
	}
	return bad
}

func mayUse(foreign map[string][]string, path, dir string) bool {
	for prefix, users := range foreign {
		if under(path, prefix) && slices.Contains(users, dir) {
			return true
		}
	}
	return false
}

func TestEveryPackageImportsOnlyWhatTheTableAllows(t *testing.T) {
	report(t, importViolations(load(t)))
}

func TestImportCheckFindsWhatTheTableForbids(t *testing.T) {
	bad := importViolations(sources(t, map[string]string{
		"a.go":                   `package lokt; import ("os/signal"; "github.com/lokt-dev/lokt/jobs"; "strings")`,
		"a_test.go":              `package lokt; import ("os"; "github.com/lokt-dev/lokt/lokttest")`,
		"jobs/a.go":              `package jobs; import ("net/http"; "github.com/lokt-dev/lokt")`,
		"store/memstore/a.go":    `package memstore; import "github.com/lokt-dev/lokt/store/filestore"`,
		"store/etcdstore/a.go":   `package etcdstore; import "go.etcd.io/etcd/client/v3"`,
		"internal/cli/a.go":      `package cli; import ("github.com/lokt-dev/lokt/internal/cli/locks"; "modernc.org/sqlite")`,
		"internal/newcomer/a.go": `package newcomer`,
	}))
	expect(t, bad,
		"package . must not import os/signal",
		"package . must not import jobs",
		"package jobs must not import net/http",
		"package store/memstore must not import store/filestore",
		"package internal/cli must not import modernc.org/sqlite",
		"package internal/newcomer is not in the import table",
	)
}

// The client starts in two milliseconds because of what it does not link; this looks at all that it does link.
func TestClientLinksNoDatabaseAndNoEtcd(t *testing.T) {
	top := root(t)
	if _, err := os.Stat(filepath.Join(top, "cmd", "lokt")); os.IsNotExist(err) {
		return
	}
	cmd := exec.Command("go", "list", "-deps", "./cmd/lokt")
	cmd.Dir = top
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps ./cmd/lokt: %v", err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, module) {
		t.Fatalf("go list does not name %s among what cmd/lokt links", module)
	}
	for _, dep := range deps {
		for _, no := range []string{
			"database/sql", "modernc.org/sqlite", "github.com/jackc/pgx", "go.etcd.io", "google.golang.org", "github.com/prometheus",
			"go.opentelemetry.io", "github.com/spf13/cobra/doc", "testing", "expvar",
			module + "/internal/daemon", module + "/store/sqlstore", module + "/store/etcdstore",
			"github.com/modelcontextprotocol", module + "/internal/cli/mcp", // in lokt-mcp
			"charm.land", "github.com/charmbracelet", module + "/internal/cli/top", // in lokt-top
			"mvdan.cc", "github.com/pelletier", module + "/internal/shell", module + "/internal/policy", // what takes long to load is in lokt-agent
		} {
			if under(dep, no) {
				t.Errorf("cmd/lokt links %s: find the import with: go mod why, or go list -deps", dep)
			}
		}
	}
}
