package guard

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// zombies returns how many children of this process have ended and are not reaped.
func zombies(t *testing.T) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[1-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has gone
		}
		if f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:]); string(f[0]) == "Z" && string(f[1]) == fmt.Sprint(os.Getpid()) {
			n++
		}
	}
	return n
}

// A command that may have to be stopped with all that it started hands its orphans down to the guard.
func TestOrphansOfACommandDoNotPileUp(t *testing.T) {
	d := newDesk(t)
	dir := t.TempDir()
	log, over := filepath.Join(dir, "log"), filepath.Join(dir, "over")
	eventually := func(what string, so func() bool) {
		for end := time.Now().Add(time.Minute); !so(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("not within a minute: %s", what)
				return
			}
		}
	}
	watched := make(chan struct{})
	code, err := d.run(Command{Stop: true, StopGrace: time.Second, Started: func(int) {
		go func() {
			defer close(watched)
			eventually("the orphans have ended", func() bool {
				data, err := os.ReadFile(log)
				return err == nil && bytes.Count(data, []byte("\n")) == 5
			})
			eventually("they are reaped", func() bool { return zombies(t) == 0 })
			if err := os.WriteFile(over, nil, 0o600); err != nil {
				t.Error(err)
			}
		}()
	}}, d.lease(lokt.Options{TTL: time.Hour}), fmt.Sprintf(
		"for i in 1 2 3 4 5; do (setsid sh -c 'echo >>%s' &) ; done; while [ ! -e %s ]; do sleep 0.05; done; exit 7", log, over))
	<-watched
	if err != nil || code != 7 {
		t.Errorf("code %d, %v", code, err)
	}
}
