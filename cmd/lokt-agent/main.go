// Command lokt-agent has the commands of lokt that enrol coding agents: lokt runs it for them. See `lokt help`.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/cli/agent"
)

func main() {
	os.Exit(agent.Main(os.Args))
}
