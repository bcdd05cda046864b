package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// A client is a lokt.Service like any other, so a Locker over it keeps leases on a server.
func ExampleClient() {
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(memstore.New())}))
	defer server.Close()

	client, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	locker, err := lokt.NewLocker(client, lokt.Owner{ID: "deployer", Host: "ci-1"}, lokt.LockerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = locker.Do(context.Background(), "deploy", lokt.Options{TTL: 30 * time.Second, Wait: time.Minute}, func(ctx context.Context, token uint64) error {
		fmt.Println("deploying with token", token)
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// deploying with token 1
	// <nil>
}

// What a server of one's own answers can be mounted beside other routes.
func ExampleNewHandler() {
	store := memstore.New()
	locks := httpapi.NewHandler(httpapi.Config{Locks: lokt.NewManager(store), Events: store})
	mux := http.NewServeMux()
	mux.Handle("/v1/", locks)
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	server := httptest.NewServer(mux)
	defer server.Close()

	client, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	snap, err := client.Get(context.Background(), "deploy")
	fmt.Println(snap.Lock.Name, snap.Lock.Free(), err)
	// Output: deploy true <nil>
}
