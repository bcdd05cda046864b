//go:build !unix

package daemon

// ignoreFailures does nothing: there are no such signals.
func ignoreFailures() {}
