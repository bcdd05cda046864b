package main

import (
	"bytes"
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lokt-dev/lokt/internal/cli"
)

func TestThereIsAPageForEveryCommandAndNoOther(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	pages, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range pages {
		names = append(names, p.Name())
	}
	have := " " + strings.Join(names, " ") + " "
	want := 1
	for _, c := range cli.Tree().Commands() {
		if page := "lokt-" + c.Name() + ".1"; c.IsAvailableCommand() {
			want++
			if !strings.Contains(have, " "+page+" ") {
				t.Errorf("%s is missing", page)
			}
		}
	}
	programs, err := os.ReadDir(filepath.Join("..", "..", "..", "cmd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		page := map[string]string{"lokt-agent": "lokt-init"}[p.Name()] // whose commands are lokt's
		if page = cmp.Or(page, p.Name()) + ".1"; !strings.Contains(have, " "+page+" ") {
			t.Errorf("%s of cmd/%s is missing among%s", page, p.Name(), have)
		}
	}
	for page, want := range map[string]string{"lokt": "lokt-guard", "lokt-guard": "EXAMPLE", "lokt-init": "remove", "loktd": "tls", "loktd-token-create": "scope"} {
		if text, err := os.ReadFile(filepath.Join(dir, page+".1")); err != nil || !bytes.Contains(text, []byte(want)) {
			t.Errorf("the page of %s is incomplete: %v\n%s", page, err, text)
		}
	}
	if len(pages) < want || want < 8 || strings.Contains(have, "__") {
		t.Errorf("%d commands have the pages%s", want, have)
	}
}
