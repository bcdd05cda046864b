//go:build !unix

package guard

import (
	"cmp"
	"os"
	"syscall"
)

var passedOn = []os.Signal{os.Interrupt}

// terminal stands for the console, which sends an interrupt to every process attached to it.
type terminal struct{}

func openTerminal() terminal                { return terminal{} }
func (terminal) close()                     {}
func (terminal) delivered(s os.Signal) bool { return s == os.Interrupt }

func noteSenders() {}

// witness is not needed here.
type witness struct{}

func (witness) begin()             {}
func (witness) end()               {}
func (witness) saw(os.Signal) bool { return false }

// child is the command.
type child struct {
	p   *os.Process
	pid int
}

func start(c Command) (*child, error) {
	p, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{Env: c.Env, Files: []*os.File{cmp.Or(c.Stdin, os.Stdin), os.Stdout, os.Stderr}})
	if err != nil {
		return nil, err
	}
	return &child{p: p, pid: p.Pid}, nil
}

func (p *child) wait() int {
	s, err := p.p.Wait()
	if err != nil {
		return 1
	}
	return s.ExitCode()
}

func (p *child) signal(syscall.Signal) error { return p.p.Kill() }
func (p *child) elsewhere() bool             { return false }

// tree is the command alone: what it started cannot be found here.
type tree struct{}

func newTree(bool) tree { return tree{} }

func (tree) deaths() (deaths <-chan os.Signal, enough func()) { return nil, func() {} }
func (tree) reap(*child, *witness)                            {}

func (tree) signal(p *child, s syscall.Signal) error { return p.signal(s) }
func (tree) killRest()                               {}
