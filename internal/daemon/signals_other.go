//go:build !unix

package daemon

// ignoreLimits does nothing: there are no such signals.
func ignoreLimits() {}
