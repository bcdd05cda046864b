//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command lokt guards what only one may touch: see `lokt help`. It starts without a look at the limits of control groups:
// that takes a good part of a start, and the work is its command's.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
