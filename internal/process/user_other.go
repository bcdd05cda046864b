//go:build !linux

package process

func passwdName(int) string { return "" }
