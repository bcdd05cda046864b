package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
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

// Promise S-142.
func TestWaitersThatAreAwayAreMarkedUntilTheyAskAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := lokt.NewManager(memstore.New())
		handler := httpapi.NewHandler(httpapi.Config{Locks: locks})
		if _, err := locks.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "holder"}}); err != nil {
			t.Fatal(err)
		}
		wait := func(id string) (hangUp func()) {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				_, _ = locks.Poll(ctx, &lokt.Claim{Name: "x", LeaseID: id, Owner: lokt.Owner{ID: id}, Wait: -1})
			}()
			synctest.Wait()
			return func() { cancel(); synctest.Wait() }
		}
		away := func() (marked string) {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/locks/x", nil))
			var l struct {
				Now   time.Time
				Queue []struct {
					ID    string
					Owner struct{ ID string }
					Until time.Time
				}
				Away []string
			}
			if err := json.Unmarshal(w.Body.Bytes(), &l); err != nil || w.Code != http.StatusOK {
				t.Fatalf("%d %s: %v", w.Code, w.Body, err)
			}
			for _, q := range l.Queue {
				marked += q.Owner.ID
				if slices.Contains(l.Away, q.ID) {
					marked += fmt.Sprintf(" away %v", q.Until.Sub(l.Now))
				}
				marked += ";"
			}
			return marked
		}
		first := wait("a")
		second := wait("b")
		for _, step := range []struct {
			do   func()
			want string
		}{
			{func() {}, "a;b;"},
			{first, "a away 10s;b;"},
			{func() { time.Sleep(4 * time.Second) }, "a away 6s;b;"},
			{func() { first = wait("a") }, "a;b;"},
			{second, "a;b away 10s;"},
			{func() { first() }, "a away 10s;b away 10s;"},
		} {
			if step.do(); away() != step.want {
				t.Errorf("waiting are %s, not %s", away(), step.want)
			}
		}
	})
}
