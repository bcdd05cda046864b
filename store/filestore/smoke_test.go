package filestore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

func TestALockerOverFilesTakesRenewsAndGivesBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	self, err := s.Self()
	if err != nil {
		t.Fatal(err)
	}
	m := lokt.NewManager(s)
	k, err := lokt.NewLocker(m, lokt.Owner{Host: s.Host(), Process: self}, lokt.LockerOptions{Defaults: lokt.Options{TTL: 400 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	l, err := k.Acquire(ctx, "x", lokt.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(filepath.Join(dir, "locks", "x.json"))
	t.Log(string(b))
	_, err = m.Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "other"}, Wait: time.Second})
	if !errors.Is(err, lokt.ErrHeld) {
		t.Fatal(err)
	}
	if l.Err() != nil {
		t.Fatal(l.Err())
	}
	done := make(chan error)
	go func() {
		h, err := m.Acquire(ctx, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "other"}, Wait: 5 * time.Second})
		t.Log(h.Token, err)
		done <- err
	}()
	time.Sleep(300 * time.Millisecond)
	start := time.Now()
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Log("handoff", time.Since(start))
	b, _ = os.ReadFile(filepath.Join(dir, "audit.log"))
	t.Log(string(b))
}
