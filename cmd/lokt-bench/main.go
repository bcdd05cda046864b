// Command lokt-bench measures the disk, the server and the database that locks are kept on: lokt runs it for `lokt bench`.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/cli/bench"
)

func main() {
	os.Exit(bench.Main(os.Args))
}
