package archtest

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	promised = regexp.MustCompile(`(?m)^- \*\*S-(\d+)\*\* `)
	givenUp  = regexp.MustCompile(`(?m)^- ~~\*\*S-(\d+)\*\*~~`)
	number   = regexp.MustCompile(`\bS-(\d+)\b`)
	citation = regexp.MustCompile(`(?:\/\/|#) Promises? S-\d`)
)

// promiseViolations finds promises of docs/semantics.md that no test cites, numbers that stand for two, and citations of numbers
// that there are not. A promise keeps its number, and stands where it belongs. A test cites promises in a comment that begins with "Promise S-1" or "Promises S-1, S-2".
func promiseViolations(semantics string, tests, pages map[string]string) []string {
	var bad []string
	cited := map[string]bool{}
	for _, m := range promised.FindAllStringSubmatch(semantics, -1) {
		if _, there := cited["S-"+m[1]]; there {
			bad = append(bad, fmt.Sprintf("docs/semantics.md: S-%s stands for two promises", m[1]))
		}
		cited["S-"+m[1]] = false
	}
	for _, m := range givenUp.FindAllStringSubmatch(semantics, -1) {
		cited["S-"+m[1]] = true
	}
	for name, text := range tests {
		for i, line := range strings.Split(text, "\n") {
			if !citation.MatchString(line) {
				continue
			}
			for _, n := range number.FindAllString(line, -1) {
				if _, there := cited[n]; !there {
					bad = append(bad, fmt.Sprintf("%s:%d: there is no promise %s", name, i+1, n))
					continue
				}
				cited[n] = true
			}
		}
	}
	for name, text := range pages {
		for _, n := range number.FindAllString(text, -1) {
			if _, there := cited[n]; !there {
				bad = append(bad, fmt.Sprintf("%s: there is no promise %s", name, n))
			}
		}
	}
	for n, by := range cited {
		if !by {
			bad = append(bad, fmt.Sprintf("docs/semantics.md: no test cites %s", n))
		}
	}
	return bad
}

func TestEveryPromiseIsCitedByATest(t *testing.T) {
	tests, pages := map[string]string{}, map[string]string{}
	walk(t, func(name string, read func() []byte) {
		client := strings.HasSuffix(name, ".test.ts") || strings.HasSuffix(name, ".test.mjs") || path.Ext(name) == ".py" && strings.HasPrefix(path.Base(name), "test_")
		suite := path.Dir(name) == "lokttest" || path.Dir(name) == "jobs/jobstest"
		switch {
		case name == "internal/archtest/promises_test.go": // which has examples of bad ones
		case strings.HasSuffix(name, "_test.go"), path.Ext(name) == ".txtar", client, suite && path.Ext(name) == ".go":
			tests[name] = string(read())
		case path.Ext(name) == ".md":
			pages[name] = string(read())
		}
	})
	report(t, promiseViolations(pages["docs/semantics.md"], tests, pages))
}

func TestPromiseCheckFindsWhatIsWrong(t *testing.T) {
	bad := promiseViolations("- **S-1** a\n- **S-4** c\n- **S-2** b, as S-1\n- **S-1** d\n",
		map[string]string{"a_test.go": "// Promise S-1.\n// as S-2 has it\n// Promises S-1, S-3 and more.\n"},
		map[string]string{"docs/x.md": "see S-2 and S-9"})
	expect(t, bad, "S-1 stands for two promises", "no test cites S-2", "no test cites S-4", "a_test.go:3: there is no promise S-3", "docs/x.md: there is no promise S-9")
}
