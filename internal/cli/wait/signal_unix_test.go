//go:build unix

package wait

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/guard"
	"github.com/lokt-dev/lokt/store/memstore"
)

func interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

// Promises S-40, S-251.
func TestASignalAfterTheGrantDoesNotKeepItFromBeingTold(t *testing.T) {
	a := &app.App{Streams: app.Streams{Getenv: func(string) string { return "" }}}
	b := &app.Backend{Service: lokt.NewManager(memstore.New())}
	if _, err := (&Flags{Wait: true}).Acquire(t.Context(), a, b, lokt.Claim{Name: "x"}, nil); err != nil {
		t.Fatal(err)
	}
	interrupt(t) // which would end this process
	time.Sleep(100 * time.Millisecond)
}

// Promise S-53.
func TestAClaimThatASignalEndsIsTakenBackFromASlowServer(t *testing.T) {
	asked, ended := make(chan bool, 9), make(chan bool, 9)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			ended <- true
			return
		}
		asked <- true
		select {
		case <-r.Context().Done():
		case <-ended:
			ended <- true
		}
	}))
	defer server.Close()
	far, err := httpapi.New(server.URL, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a := &app.App{Streams: app.Streams{Getenv: func(string) string { return "" }}}
	go func() {
		<-asked
		interrupt(t)
	}()
	_, err = (&Flags{}).Acquire(t.Context(), a, &app.Backend{Service: far, Far: far}, lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "ann"}}, nil)
	if signal := (*guard.SignalError)(nil); !errors.As(err, &signal) || len(ended) == 0 {
		t.Errorf("%v, and it was taken back %d times", err, len(ended))
	}
}
