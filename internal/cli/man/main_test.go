package main

import (
	"bytes"
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
	if !strings.Contains(have, " loktd.1 ") || !strings.Contains(have, " loktd-token-create.1 ") {
		t.Errorf("the pages of loktd are missing among%s", have)
	}
	if len(pages) < want || want < 8 || strings.Contains(have, "__") {
		t.Errorf("%d commands have the pages%s", want, have)
	}
	text, err := os.ReadFile(filepath.Join(dir, "lokt-guard.1"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("ttl")) || !bytes.Contains(text, []byte("EXAMPLE")) {
		t.Errorf("the page of guard is incomplete:\n%s", text)
	}
}
