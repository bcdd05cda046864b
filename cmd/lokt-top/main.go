// Command lokt-top shows locks and jobs in a terminal, as they change: lokt runs it for `lokt top`.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/cli/top"
)

func main() {
	os.Exit(top.Main(os.Args))
}
