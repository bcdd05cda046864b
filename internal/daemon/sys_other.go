//go:build !unix

package daemon

// ignoreFailures does nothing: there are no such signals.
func ignoreFailures() {}

// fileLimit returns 0: there is no such limit.
func fileLimit() int { return 0 }
