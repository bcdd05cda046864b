package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

func TestBothPagesShowTheLock(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- run(ctx, l, filepath.Join(t.TempDir(), "locks")) }()
	for page, lines := range map[string][]string{
		"/metrics": {`lokt_lock_acquired_total{name="example",`, `lokt_lock_holder{holder="runner_`, "# TYPE lokt_lock_queue_length gauge"},
		"/plain":   {`lokt_lock_acquired_total{name="example"} 1`, `lokt_lock_holder{holder="runner_`, "# TYPE lokt_lock_queue_length gauge"},
	} {
		resp, err := http.Get("http://" + l.Addr().String() + page)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s: status %s, error %v", page, resp.Status, err)
		}
		for _, line := range lines {
			if !strings.Contains(string(body), line) {
				t.Errorf("%s has no %s:\n%s", page, line, body)
			}
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
