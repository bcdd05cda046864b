//go:build !unix

package guard

import (
	"os"
	"syscall"
)

var passedOn = []os.Signal{os.Interrupt}

// terminal stands for the console, which sends an interrupt to every process attached to it.
type terminal struct{}

func openTerminal() terminal                { return terminal{} }
func (terminal) close()                     {}
func (terminal) delivered(s os.Signal) bool { return s == os.Interrupt }

// tree is the command alone: what it started cannot be found here.
type tree struct{}

func newTree(bool) tree { return tree{} }

func (tree) signal(p *os.Process, _ syscall.Signal) { _ = p.Kill() }
func (tree) killRest(int)                           {}
