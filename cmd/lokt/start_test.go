package main

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Every command pays for what packages prepare before it is known which it is: one regular expression with counted repeats
// cost more than a tenth of a guard's time.
func TestPackagesPrepareLittleBeforeTheCommandIsKnown(t *testing.T) {
	t.Parallel()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	all := regexp.MustCompile(`(?m)^init (\S+) .* (\d+) bytes`).FindAllStringSubmatch(string(out), -1)
	sum := 0
	for _, one := range all {
		n, _ := strconv.Atoi(one[2])
		if sum += n; n > 8<<10 && strings.Contains(one[1], "/lokt") {
			t.Errorf("%s allocates %d bytes", one[1], n)
		}
	}
	if len(all) < 10 || sum > 100<<10 {
		t.Errorf("%d packages allocate %d bytes", len(all), sum)
	}
}
