package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Who runs go test after make, or the other way round, is not to compile everything twice.
func TestMakeBuildsAsGoTestDoes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if strings.Contains(line, "-trimpath") && (strings.Contains(line, "GOFLAGS") || strings.Contains(line, "go test") || strings.Contains(line, "(TEST)")) {
			t.Errorf("%s: go test has no such flag, and compiles for itself", line)
		}
	}
}

func TestMakeChecksThatGoModIsTidy(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)^check:.* tidy\b`).Match(text) || !regexp.MustCompile(`(?m)^tidy:.*\n\t\$\(GO\) mod tidy -diff$`).Match(text) {
		t.Error("make check does not run go mod tidy -diff")
	}
}
