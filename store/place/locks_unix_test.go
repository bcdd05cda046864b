//go:build unix

package place

import (
	"testing"
)

// A file system that keeps no locks lets two in.
func TestKernelLocksAreTriedWithTwoFiles(t *testing.T) {
	dir := t.TempDir()
	for range 2 { // and given back
		if works, err := excludes(dir); !works || err != nil {
			t.Errorf("it works: %v, %v", works, err)
		}
	}
	if _, err := excludes(dir + "/none"); err == nil {
		t.Error("what is not there was tried")
	}
}
