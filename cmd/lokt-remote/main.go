// Command lokt-remote is lokt with a network: it carries out the same commands, on a server if one is named. lokt replaces
// itself by it, so nobody needs to call it.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/cli"
	"github.com/lokt-dev/lokt/internal/remote"
)

func main() {
	caller := os.Getenv(cli.CallerVariable)
	_ = os.Unsetenv(cli.CallerVariable) // which can only fail for a name that there cannot be
	os.Exit(cli.Main(os.Args[1:], cli.System(), cli.Options{Dial: remote.Dial, Explain: remote.Explain, Caller: caller}))
}
