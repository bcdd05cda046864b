// Package parallel is for tests that wait for something most of the time, so that more of them run at once than there
// are processors.
package parallel

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
)

// Run runs the tests of a package, n parallel ones at once by [Default], and returns the exit code.
func Run(m *testing.M, n int) int {
	if err := Default(n); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// Default makes n parallel tests of this package run at once, unless the command line says how many. It is for
// TestMain.
func Default(n int) error {
	flag.Parse()
	f := flag.Lookup("test.parallel")
	if f == nil || f.Value.String() != f.DefValue {
		return nil
	}
	return f.Value.Set(strconv.Itoa(n))
}
