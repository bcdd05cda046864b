// Command metrics serves what happens to its locks to Prometheus: through OpenTelemetry and its exporter at /metrics, and as
// the recorder's own text, which needs neither, at /plain.
//
//	metrics -listen localhost:9101 -dir locks
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/exporters/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/store/filestore"
	"github.com/lokt-dev/lokt/telemetry"
)

func main() {
	listen := flag.String("listen", "localhost:9101", "address to serve at")
	dir := flag.String("dir", "locks", "directory of the locks")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", *listen)
	if err == nil {
		err = run(ctx, l, *dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "metrics:", err)
		os.Exit(1)
	}
}

// run serves until the context ends, and holds a lock meanwhile.
func run(ctx context.Context, l net.Listener, dir string) (err error) {
	registry := client.NewRegistry()
	exporter, err := prometheus.New(prometheus.WithRegisterer(registry), prometheus.WithNamespace("lokt"))
	if err != nil {
		return err
	}
	provider := sdk.NewMeterProvider(sdk.WithReader(exporter))
	rec, err := telemetry.New(telemetry.Options{MeterProvider: provider})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rec.Close()) }()
	store, err := filestore.Open(dir, filestore.Options{Observe: rec.Observe})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	owner, err := store.Runner()
	if err != nil {
		return err
	}
	locker, err := lokt.NewLocker(lokt.NewManager(store), owner, lokt.LockerOptions{
		Defaults: lokt.Options{Process: &owner.Process}, Observe: rec.Observe,
	})
	if err != nil {
		return err
	}
	lease, err := locker.Acquire(ctx, "example", lokt.Options{Wait: -1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release(context.WithoutCancel(ctx))) }()

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /plain", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_ = rec.WriteText(r.Context(), w) // a client that has left cannot be told
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
