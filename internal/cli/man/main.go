// Command man writes the manual pages of all programs, one for each command, into a directory: its argument. It is apart from
// them, so that they need not link the library that turns commands into pages.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/lokt-dev/lokt/internal/cli"
	"github.com/lokt-dev/lokt/internal/cli/agent"
	"github.com/lokt-dev/lokt/internal/cli/bench"
	"github.com/lokt-dev/lokt/internal/cli/jobserver"
	"github.com/lokt-dev/lokt/internal/cli/mcp"
	"github.com/lokt-dev/lokt/internal/cli/top"
	"github.com/lokt-dev/lokt/internal/daemon"
	"github.com/lokt-dev/lokt/internal/sim"
	"github.com/lokt-dev/lokt/internal/version"
)

func main() {
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "man:", err)
		os.Exit(1)
	}
}

// write makes the directory and puts the pages there. They are dated by SOURCE_DATE_EPOCH, if that is set.
func write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	trees := []*cobra.Command{cli.Tree(), daemon.Tree(daemon.Streams{})}
	for _, tree := range slices.Concat(trees, agent.Tree().Commands(), bench.Tree().Commands(), jobserver.Tree().Commands(), mcp.Tree().Commands(), sim.Tree().Commands(), top.Tree().Commands()) {
		tree.DisableAutoGenTag = true
		if err := doc.GenManTree(tree, &doc.GenManHeader{Section: "1", Source: "lokt " + version.String(), Manual: "lokt"}, dir); err != nil {
			return err
		}
	}
	return nil
}
