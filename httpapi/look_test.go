package httpapi_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// Promise S-128.
func TestWhoOnlyLooksGivesUpOnServersThatNeverAnswer(t *testing.T) {
	for name, dial := range map[string]func(ctx context.Context) (net.Conn, error){
		"accepted": func(context.Context) (net.Conn, error) {
			here, there := net.Pipe()
			go func() { // it reads, and says nothing
				b := make([]byte, 4096)
				for {
					if _, err := there.Read(b); err != nil {
						return
					}
				}
			}()
			return here, nil
		},
		"dropped": func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	} {
		for _, urls := range []string{"http://a.example", "http://a.example,http://b.example", "http://a.example,http://b.example,http://c.example"} {
			synctest.Test(t, func(t *testing.T) {
				transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
				client, err := httpapi.New(urls, httpapi.ClientOptions{Look: 10 * time.Second, Patience: 2 * time.Second, HTTPClient: &http.Client{Transport: transport}})
				if err != nil {
					t.Fatal(err)
				}
				for what, look := range map[string]func() error{
					"get":   func() error { _, err := client.Get(t.Context(), "x"); return err },
					"audit": func() error { _, err := client.ReadEvents(t.Context(), lokt.EventQuery{}); return err },
					"list": func() error {
						for _, err := range client.List(t.Context(), lokt.Filter{}) {
							return err
						}
						return nil
					},
				} {
					begun := time.Now()
					err := look()
					if took := time.Since(begun); took > 11*time.Second || !errors.Is(err, lokt.ErrUnavailable) {
						t.Errorf("%s, %s: after %v: %v", name, what, took, err)
					}
					for u := range strings.SplitSeq(urls, ",") {
						if err != nil && !strings.Contains(err.Error(), u) {
							t.Errorf("%s, %s: %v does not name %s", name, what, err, u)
						}
					}
				}
				transport.CloseIdleConnections()
				synctest.Wait()
			})
		}
	}
}
