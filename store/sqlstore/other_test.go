//go:build !unix

package sqlstore

func limited(string) error { return nil }

func stopServer() {}
