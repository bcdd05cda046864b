// Command lokt-sim plays lokt's code in a simulated world: lokt runs it for `lokt sim`.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/sim"
)

func main() { sim.Main(os.Args) }
