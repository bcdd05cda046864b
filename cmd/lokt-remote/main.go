// Command lokt-remote is lokt with a network: it carries out the same commands, on a server if one is named. lokt replaces
// itself by it, so nobody needs to call it.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/remote"
)

func main() {
	os.Exit(remote.Main(os.Args[1:]))
}
