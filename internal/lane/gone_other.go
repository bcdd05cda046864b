//go:build !unix

package lane

// gone returns false: that cannot be known without waiting.
func (*conn) gone() bool { return false }
