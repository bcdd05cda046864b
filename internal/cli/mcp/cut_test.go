package mcp

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Promise S-223.
func TestAnAnswerIsCutBehindALineOrElseBehindACharacter(t *testing.T) {
	const more = "\n… (more: run lokt status)"
	for n := len(more) + 10; n < 100; n++ {
		for _, lines := range []string{strings.Repeat("ö is held\n", 100), strings.Repeat("ö", 200)} {
			kept, found := strings.CutSuffix(cut(lines, n), more)
			if !found || len(kept)+len(more) > n || !utf8.ValidString(kept) {
				t.Fatalf("%d bytes: %q", n, kept)
			}
			if i := strings.LastIndexByte(kept, '\n') + 1; len(kept) > len("ö is held\n") && strings.Contains(lines, "\n") && kept[i:] != "ö is held" {
				t.Errorf("%d bytes end with %q", n, kept[i:])
			}
		}
	}
}
