//go:build !linux

package sqlstore

// space returns how many bytes may still be written on the file system of the path, if that is known.
func space(string) (bytes int64, known bool) { return 0, false }
