//go:build !unix

package faultfs

// syncDir does nothing: Windows cannot flush a directory, and makes renames durable by itself or not at all.
func syncDir(string) error { return nil }
