package easy_test

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/easy"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

func Example() {
	dir, _ := os.MkdirTemp("", "lokt")
	defer os.RemoveAll(dir)
	locks, err := easy.Open(dir) // or the URL of a server
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()
	err = locks.Do(context.Background(), "import", lokt.Options{Wait: time.Minute}, func(ctx context.Context, token uint64) error {
		fmt.Println("alone, until ctx ends")
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// alone, until ctx ends
	// <nil>
}

// TestMain is also a program that takes a lock and dies with it.
func TestMain(m *testing.M) {
	if dir := os.Getenv("TEST_HOLD"); dir != "" {
		locks, err := easy.Open(dir)
		if err == nil {
			_, err = locks.Acquire(context.Background(), "x", lokt.Options{TTL: time.Hour})
		}
		fmt.Println(err)
		select {}
	}
	os.Exit(m.Run())
}

func open(t *testing.T, where string) *easy.Locker {
	t.Helper()
	locks, err := easy.Open(where)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close() }) // at the end of a test
	return locks
}

func TestGoroutinesExcludeEachOther(t *testing.T) {
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())}))
	t.Cleanup(server.Close)
	for _, where := range []string{filepath.Join(t.TempDir(), "locks"), server.URL} {
		locks := open(t, where)
		lease, err := locks.Acquire(t.Context(), "x", lokt.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := locks.Acquire(t.Context(), "x", lokt.Options{}); !errors.Is(err, lokt.ErrHeld) {
			t.Errorf("%s: a second acquisition: %v", where, err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if lease, err = locks.Acquire(t.Context(), "x", lokt.Options{}); err != nil {
			t.Fatalf("%s: after the release: %v", where, err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestLockOfADeadProcessIsFreeAtOnce(t *testing.T) {
	dir := t.TempDir()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), "TEST_HOLD="+dir)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	locks := open(t, dir)
	_, held := locks.Acquire(t.Context(), "x", lokt.Options{})
	_, _ = c.Process.Kill(), c.Wait()
	if err != nil || line != "<nil>\n" || !errors.Is(held, lokt.ErrHeld) {
		t.Fatalf("%q, %v; while it lives: %v", line, err, held)
	}
	if _, err := locks.Acquire(t.Context(), "x", lokt.Options{}); err != nil {
		t.Errorf("after kill -9: %v", err)
	}
}

// Promise S-311.
func TestPlaceAndTokenComeFromTheEnvironment(t *testing.T) {
	var sent string
	locks := httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = r.Header.Get("Authorization")
		locks.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LOKT_SERVER", "")
	t.Setenv("LOKT_ROOT", "")
	if _, err := easy.Open(""); !errors.Is(err, lokt.ErrInvalid) {
		t.Errorf("no place: %v", err)
	}
	t.Chdir(t.TempDir())
	for _, place := range []string{"localhost:7117", "[::1]:7117"} {
		t.Setenv("LOKT_SERVER", "")
		if _, err := easy.Open(place); !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), "http://"+place) {
			t.Errorf("%s: %v", place, err)
		}
		for _, server := range []string{place, "locks"} {
			t.Setenv("LOKT_SERVER", server)
			if _, err := easy.Open(""); !errors.Is(err, lokt.ErrInvalid) || !strings.Contains(err.Error(), "http://") {
				t.Errorf("LOKT_SERVER=%s: %v", server, err)
			}
		}
	}
	if made, err := os.ReadDir("."); len(made) > 0 || err != nil {
		t.Errorf("made: %v, %v", made, err)
	}
	for _, dir := range []string{"./a:1", `C:\locks`} {
		open(t, dir)
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	if root, err := easy.Root(easy.User); err != nil || root != filepath.Join(home, ".local", "state", "lokt") {
		t.Errorf("this user's locks are in %s, %v", root, err)
	}
	t.Setenv("LOKT_SERVER", server.URL)
	t.Setenv("LOKT_SERVER_TOKEN", "")
	t.Setenv("LOKT_TOKEN_FILE", file)
	for _, want := range []string{"Bearer from file", "Bearer given"} {
		l := open(t, "")
		if _, err := l.Held(t.Context(), "x"); err != nil || sent != want {
			t.Errorf("sent %q, not %q: %v", sent, want, err)
		}
		t.Setenv("LOKT_SERVER_TOKEN", "given")
	}
	t.Setenv("LOKT_SERVER_TOKEN", "")
	for l, texts := open(t, ""), []string{"next", "", "one after"}; len(texts) > 0; texts = texts[1:] {
		if err := os.WriteFile(file, []byte(texts[0]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		want := "Bearer " + cmp.Or(texts[0], "next")
		if _, err := l.Held(t.Context(), "x"); err != nil || sent != want {
			t.Errorf("with %q in the file, sent %q: %v", texts[0], sent, err)
		}
	}
	t.Setenv("LOKT_CA_FILE", file)
	if _, err := easy.Open(""); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("no certificate: %v", err)
	}
}
