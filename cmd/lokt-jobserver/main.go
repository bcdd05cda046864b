// Command lokt-jobserver hands out CPU tokens to builds: lokt runs it for `lokt jobserver`.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/cli/jobserver"
)

func main() {
	os.Exit(jobserver.Main(os.Args))
}
