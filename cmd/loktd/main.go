// Command loktd keeps locks and jobs for many hosts: see `loktd --help`.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/daemon"
)

func main() {
	os.Exit(daemon.Main(os.Args[1:], daemon.System()))
}
