//go:build !unix

package sqlstore

func limited(string) error { return nil }

func fail(string) error { return nil }

func stopServer() {}

func crowd(string) error { return nil }
