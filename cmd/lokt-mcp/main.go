// Command lokt-mcp serves lokt to agents over the Model Context Protocol: lokt runs it for `lokt mcp`.
package main

import (
	"os"

	"github.com/lokt-dev/lokt/internal/cli/mcp"
)

func main() {
	os.Exit(mcp.Main(os.Args))
}
