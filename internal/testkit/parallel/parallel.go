// Package parallel is for tests that wait for something most of the time, so that more of them run at once than there
// are processors.
package parallel

import (
	"flag"
	"strconv"
)

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
