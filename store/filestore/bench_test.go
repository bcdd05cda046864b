package filestore_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/filestore"
)

// locker returns a Locker over a new root where somebody holds so many other locks.
func locker(b *testing.B, others int) *lokt.Locker {
	b.Helper()
	root := b.TempDir()
	s, err := filestore.Open(root, filestore.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	first := lokt.Claim{Name: "other-0", Owner: lokt.Owner{ID: "somebody", Host: s.Host()}, TTL: time.Hour, Attended: true}
	if _, err := lokt.NewManager(s).Acquire(b.Context(), first); err != nil {
		b.Fatal(err)
	}
	record, err := os.ReadFile(filepath.Join(root, "locks", "other-0.json"))
	if err != nil {
		b.Fatal(err)
	}
	for i := 1; i < others; i++ {
		name := fmt.Sprint("other-", i)
		text := bytes.Replace(record, []byte(`"other-0"`), []byte(`"`+name+`"`), 1)
		if err := os.WriteFile(filepath.Join(root, "locks", name+".json"), text, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	self, err := s.Self()
	if err != nil {
		b.Fatal(err)
	}
	k, err := lokt.NewLocker(lokt.NewManager(s), lokt.Owner{Host: s.Host(), Process: self}, lokt.LockerOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return k
}

// Other locks are to make it at most 1.3 times as slow, and it is to take at most 1.5 times as long as BenchmarkDurableFile.
func BenchmarkAcquireReleaseBesideOthers(b *testing.B) {
	for _, others := range []int{1, 10_000} {
		b.Run(fmt.Sprint("beside-", others), func(b *testing.B) {
			k := locker(b, others)
			for b.Loop() {
				l, err := k.Acquire(b.Context(), "x", lokt.Options{ManualHeartbeat: true})
				if err != nil {
					b.Fatal(err)
				}
				if err := l.Release(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// What any lock on files must do to survive the loss of power, and nothing else.
func BenchmarkDurableFile(b *testing.B) {
	dir := b.TempDir()
	tmp, path := filepath.Join(dir, "bare.tmp"), filepath.Join(dir, "bare.json")
	record := make([]byte, 600)
	for b.Loop() {
		f, err := os.Create(tmp)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.Write(record); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
		if err := os.Rename(tmp, path); err != nil {
			b.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			b.Fatal(err)
		}
	}
}
