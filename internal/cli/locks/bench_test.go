package locks

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/process"
	"github.com/lokt-dev/lokt/lockfile"
)

// manyLocks makes a directory of n locks, every other one a guard's whose process is gone.
func manyLocks(tb testing.TB, n int) (root string) {
	tb.Helper()
	root = tb.TempDir()
	if err := os.Mkdir(filepath.Join(root, "locks"), 0o700); err != nil {
		tb.Fatal(err)
	}
	now := lockfile.Now{Wall: time.Now(), BootID: process.BootID(), TimeNS: process.TimeNamespace()}
	now.Monotonic, _ = process.Monotonic()
	host, _ := os.Hostname()
	for i := range n {
		p := process.Self()
		p.Start++ // of another process that had the ID
		h := lokt.Holder{
			Claim: lokt.Claim{
				Name: fmt.Sprintf("lock-%05d", i), LeaseID: lokt.NewLeaseID(), TTL: time.Hour,
				Owner: lokt.Owner{ID: fmt.Sprintf("agent-%d", i%7), Session: "session-1-00000000", Host: host, Process: p},
			},
			Token: uint64(i + 1), HeldSince: now.Wall, AcquiredAt: now.Wall, ExpiresAt: now.Wall.Add(time.Hour),
		}
		if i%2 == 0 {
			h.Strict, h.Attended, h.Process = true, true, &p
		}
		data, err := lockfile.FromHolder(h, now).Encode(nil)
		if err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "locks", h.Name+".json"), data, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return root
}

// The time for `lokt status` of 10,000 locks is to stay under a quarter of a second, the start of the program included.
func BenchmarkStatusOf10000Locks(b *testing.B) {
	root := manyLocks(b, 10_000)
	for _, form := range []string{"table", "json"} {
		b.Run(form, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var out, errs bytes.Buffer
				s := app.System()
				s.Out, s.Err = &out, &errs
				args := []string{"status", "--root", root}
				if form == "json" {
					args = append(args, "--json")
				}
				if code := app.Run(Commands(), args, s); code != 0 || out.Len() < 10_000*100 {
					b.Fatalf("exit %d, %d bytes, %s", code, out.Len(), errs.String())
				}
			}
		})
	}
}
