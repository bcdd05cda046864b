//go:build !unix

package auth

import "os"

// handOver does nothing: files belong to whom their directory says.
func handOver(*os.File) error { return nil }
