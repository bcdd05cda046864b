package place

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Promise S-226.
func TestEveryPromiseOfTheTableIsOne(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "semantics.md"))
	if err != nil {
		t.Fatal(err)
	}
	for name, promises := range dependent() {
		for _, p := range strings.Fields(promises) {
			if !regexp.MustCompile(`(?m)^- \*\*` + p + `\*\*`).Match(page) {
				t.Errorf("%s: docs/semantics.md promises no %s", name, p)
			}
		}
	}
}

// sound fails the test if a condition says too little.
func sound(t *testing.T, all []Condition) map[string]Condition {
	t.Helper()
	by := map[string]Condition{}
	for _, c := range all {
		if c.Name == "" || c.Message == "" || c.Status != OK && c.Follows == "" {
			t.Errorf("%+v says too little", c)
		}
		if len(c.Promises) == 0 && c.Name != "ready" {
			t.Errorf("no promise depends on %q", c.Name)
		}
		by[c.Name] = c
	}
	return by
}

// expectStatus fails the test unless the conditions came out so.
func expectStatus(t *testing.T, all []Condition, want map[string]Status) {
	t.Helper()
	by := sound(t, all)
	for name, status := range want {
		if by[name].Status != status {
			t.Errorf("%s: %+v, want it to be %s", name, by[name], status)
		}
	}
}

// Promise S-226.
func TestPostgresIsJudgedByItsSettings(t *testing.T) {
	ask := func(fsync, pages, level, sync string, copies int, err error) []Condition {
		return Postgres(func(_ context.Context, _ string, to ...any) error {
			for i, text := range []string{fsync, pages, level, sync, "200ms"} {
				*to[i].(*string) = text
			}
			*to[5].(*int) = copies
			return err
		})(t.Context())
	}
	for what, c := range map[string]struct {
		found []Condition
		want  map[string]Status
	}{
		"as it comes":              {ask("on", "on", "on", "", 0, nil), map[string]Status{"database-disk": OK, "commit": OK, "standbys": OK}},
		"without fsync":            {ask("off", "on", "on", "", 0, nil), map[string]Status{"database-disk": Warn, "commit": OK, "standbys": OK}},
		"with torn pages":          {ask("on", "off", "on", "", 0, nil), map[string]Status{"database-disk": Warn, "commit": OK, "standbys": OK}},
		"early commits":            {ask("on", "on", "off", "", 0, nil), map[string]Status{"database-disk": OK, "commit": Warn, "standbys": OK}},
		"a standby that lags":      {ask("on", "on", "on", "", 1, nil), map[string]Status{"database-disk": OK, "commit": OK, "standbys": Warn}},
		"a standby that is asked":  {ask("on", "on", "on", "*", 1, nil), map[string]Status{"database-disk": OK, "commit": OK, "standbys": OK}},
		"standbys asked of nobody": {ask("on", "on", "local", "*", 1, nil), map[string]Status{"database-disk": OK, "commit": OK, "standbys": Warn}},
		"no answer":                {ask("", "", "", "", 0, errors.New("x")), map[string]Status{"database-disk": Unknown, "commit": Unknown, "standbys": Unknown}},
	} {
		t.Run(what, func(t *testing.T) { expectStatus(t, c.found, c.want) })
	}
}

func TestThisHostCanBeAsked(t *testing.T) {
	dir := t.TempDir()
	all := slices.Concat(Host(), Commands(), Files(dir), Memory(t.Context()), SQLite(filepath.Join(dir, "x.db"))(t.Context()), []Condition{Ready(true), Ready(false)})
	want := map[string]Status{"store": Warn, "ready": Fail}
	if runtime.GOOS == "linux" {
		want["kernel-locks"], want["commands"], want["boot-clock"] = OK, OK, OK
	}
	expectStatus(t, all, want)
}

func TestMemoryIsNoDisk(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "lokt-place-")
	if err != nil {
		t.Skip(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	expectStatus(t, []Condition{onDisk("disk", dir)}, map[string]Status{"disk": Warn})
	if options := mountOptions(dir); !strings.Contains(options, "rw") {
		t.Errorf("its options are %q", options)
	}
}

// A file system that keeps no locks lets two in.
func TestKernelLocksAreTriedWithTwoFiles(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere they are not tried")
	}
	dir := t.TempDir()
	for range 2 { // and given back
		if works, err := excludes(dir); !works || err != nil {
			t.Errorf("it works: %v, %v", works, err)
		}
	}
	if _, err := excludes(dir + "/none"); err == nil {
		t.Error("what is not there was tried")
	}
}

func TestEveryPromiseIsCountedOnceAndByTheWorst(t *testing.T) {
	found := []Condition{
		{Name: "a", Status: OK, Promises: []string{"S-1", "S-2", "S-3"}}, {Name: "b", Status: Unknown, Promises: []string{"S-2", "S-3"}},
		{Name: "c", Status: Warn, Promises: []string{"S-3"}}, {Name: "d", Status: Unknown, Promises: []string{"S-3"}},
	}
	depend := map[string]bool{}
	for _, promises := range dependent() {
		for _, p := range strings.Fields(promises) {
			depend[p] = true
		}
	}
	got := Count(1000, found)
	if fmt.Sprint(got.Here, got.Unknown, got.Broken) != "[S-1] [S-2] [S-3]" || got.Everywhere != 1000-len(depend) || got.Elsewhere != len(depend)-3 {
		t.Errorf("%+v; %d depend: %v", got, len(depend), slices.Sorted(maps.Keys(depend)))
	}
}
