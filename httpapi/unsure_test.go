package httpapi_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
)

// fading loses the first answer, and after the second one everything.
type fading struct {
	handler http.Handler
	asked   int
}

func (f *fading) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.asked++; f.asked > 2 {
		return nil, errors.New("the network is cut")
	}
	w := httptest.NewRecorder()
	if f.handler.ServeHTTP(w, r); f.asked == 1 {
		return nil, errors.New("connection reset by peer")
	}
	return w.Result(), nil
}

// Promise S-245.
func TestAClaimThatCannotBeTakenBackMayBeGrantedYetAndTheErrorSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := memory()
		if _, err := c.Locks.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "a"}, TTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		client, err := httpapi.New("http://lokt.example", httpapi.ClientOptions{HTTPClient: &http.Client{Transport: &fading{handler: httpapi.NewHandler(c)}}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "b"}, TTL: time.Minute})
		var blocked *lokt.BlockedError
		if !errors.As(err, &blocked) || !blocked.Unsure || !strings.Contains(err.Error(), "may be granted yet") {
			t.Errorf("the claim ended with %v", err)
		}
	})
}
