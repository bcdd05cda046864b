package section

import (
	"strings"
	"testing"
)

func TestASectionTakesThePlaceOfTheLastOneWhateverEndsLines(t *testing.T) {
	t.Parallel()
	one, other := Begin+"one\n"+End, Begin+"other\nlines\n"+End
	for _, text := range []string{"", "# a", "# a\n\n", "# a\n" + one, "# a\n\n" + one + "\nb\n", one + "b"} {
		want, err := Put(text, other)
		if err != nil || strings.Count(want, Begin) != 1 || !strings.Contains(want, other) {
			t.Fatalf("%q becomes %q, %v", text, want, err)
		}
		for _, from := range []string{text, want} { // as git may check it out on Windows
			got, err := Put(strings.ReplaceAll(from, "\n", "\r\n"), other)
			if crlf := strings.ReplaceAll(want, "\n", "\r\n"); err != nil || got != crlf && strings.Contains(from, "\n") {
				t.Errorf("%q with CRLF becomes %q, %v, want %q", from, got, err, crlf)
			}
		}
	}
	if _, err := Put(strings.ReplaceAll(Begin, "\n", "\r\n"), one); err == nil {
		t.Error("a section without an end is replaced")
	}
}
