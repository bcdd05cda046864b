// Command loktd keeps locks and jobs for many hosts: see `loktd --help`.
package main

import (
	"os"
	_ "time/tzdata" // for schedules: what they are in must not depend on the host

	"github.com/lokt-dev/lokt/internal/daemon"
)

func main() {
	os.Exit(daemon.Main(os.Args[1:], daemon.System()))
}
