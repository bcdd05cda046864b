// Package docs has the page of promises, for programs that say which of them hold where they run.
package docs

import (
	_ "embed" // for the page
	"strings"
)

//go:embed semantics.md
var semantics string

// Promises returns how many promises docs/semantics.md has.
func Promises() int { return strings.Count(semantics, "\n- **S-") }
