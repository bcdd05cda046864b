package shell_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/internal/shell"
)

// numbered returns texts with # replaced by a number, one for each.
func numbered(text string, n int) string {
	var all strings.Builder
	for i := range n {
		all.WriteString(strings.ReplaceAll(text, "#", strconv.Itoa(i)))
	}
	return all.String()
}

func TestLinesThatGrowAreJudgedInTime(t *testing.T) {
	for name, c := range map[string]struct {
		line    string
		refused bool
	}{
		"many commands":   {strings.Repeat("make build;", 10_000), false},
		"many variables":  {numbered("v#=1;(:);", 10_000), true},
		"loops in loops":  {strings.Repeat("for i in 1 2 3 4 5 6 7 8 9; do ", 12) + "true $i;" + strings.Repeat("done;", 12), true},
		"growing words":   {"x=aaaaaaaa;" + strings.Repeat("x=$x$x$x$x;", 30), true},
		"inside a string": {"sh -c 'x=aaaaaaaa;" + strings.Repeat("x=$x$x$x$x;", 30) + "'", true},
		"brackets":        {"make build; echo $((" + strings.Repeat("(", 60_000), true},
		"braces":          {"make build " + strings.Repeat("{a,b}", 1000), false},
		"many braces":     {strings.Repeat("x "+strings.Repeat("{a,b}", 14)+";", 1700), true},
		"braces in one":   {"make build x" + strings.Repeat(`"y"{a,`, 900) + strings.Repeat("}", 900), false},
		"a long line":     {"make build #" + strings.Repeat("x", 200_000), true},
	} {
		done := make(chan struct{})
		var r shell.Result
		var err error
		go func() {
			defer close(done)
			r, err = finder(t, nil).Find(c.line)
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s: this takes too long", name)
		}
		if (err != nil) != c.refused || !c.refused && len(r.Needs) == 0 {
			t.Errorf("%s: %v, %d commands that need a lock", name, err, len(r.Needs))
		}
	}
}
