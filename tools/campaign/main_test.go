package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// module has games that end at once: one for each, of which that on etcd fails.
const module = `package x

import (
	"os"
	"testing"
)

func TestWhatWasAcknowledgedSurvivesFaults(t *testing.T)             { play(t) }
func TestReplicasOnPostgreSQLUnderFaults(t *testing.T)               { play(t) }
func TestReplicasOnPostgreSQLThatFailsOverUnderFaults(t *testing.T)  { play(t) }
func TestReplicasOnEtcdUnderFaults(t *testing.T)                     { play(t); t.Error("two holders at once") }

func play(t *testing.T) {
	if os.Getenv("LOKT_SEED") == "" || os.Getenv("LOKT_FAULT_TIME") != "10ms" {
		t.Fatal("no seed, or no time")
	}
	t.Log("counted injected: {\"kill -9\":2}")
	t.Log("counted checked: {\"locks\":3}")
	t.Log("counted checked: {\"jobs\":4}")
}
`

func TestACampaignGoesOnWhereItEnded(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"go.mod": "module x\n\ngo 1.26.0\n", "internal/daemon/x_test.go": module, "internal/replicas/x_test.go": module,
		"docs/x": "", "tools/campaign/x": "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	start := func(hours float64) error {
		c := campaign{root: root, hours: hours, each: 10 * time.Millisecond, until: 20 * time.Millisecond} // less than a build takes
		return c.run(t.Context())
	}
	text := func() string {
		b, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := (&campaign{root: root, hours: 1, each: 10 * time.Millisecond}).run(ended); err == nil {
		t.Error("a campaign that is interrupted ends well")
	}
	if _, err := os.Stat(filepath.Join(root, record)); err == nil {
		t.Error("a piece that was interrupted is on record")
	}
	for i, g := range games() {
		if err := start(1); (err != nil) != (g.name == "etcd of three members") {
			t.Fatalf("%s: %v", g.name, err)
		}
		if got := strings.Count(text(), "| kill -9 | 2 |\n"); got != i+1 || !strings.Contains(text(), "## "+g.name+"\n") {
			t.Errorf("after %d pieces:\n%s", i+1, text())
		}
	}
	if !strings.Contains(text(), "## Failed\n") || !strings.Contains(text(), "two holders at once") || !strings.Contains(text(), "| jobs | 4 |\n| locks | 3 |\n") {
		t.Error(text())
	}
	if kept, _ := filepath.Glob(filepath.Join(root, logs, "*.log")); len(kept) != 1 {
		t.Errorf("kept: %v", kept)
	}
	before := text()
	if err := start(0); err != nil || text() != before {
		t.Errorf("what was played for as long as it should be goes on: %v", err)
	}
}
