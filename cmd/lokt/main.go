// Command lokt guards what only one may touch: see `lokt help`.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
