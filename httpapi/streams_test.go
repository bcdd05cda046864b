package httpapi_test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/store/memstore"
)

// Each stream reads for itself, so that many would take all that there is when events come fast.
func TestManyStreamsOfEventsReadSeldom(t *testing.T) {
	store := memstore.New()
	locks := lokt.NewManager(store)
	server := httptest.NewServer(httpapi.NewHandler(httpapi.Config{Locks: locks, Events: store}))
	defer server.Close()
	const streams, events = 40, 10
	var first *bufio.Scanner
	for range streams {
		r, err := http.Get(server.URL + "/v1/events?type=acquire")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		lines := bufio.NewScanner(r.Body)
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), "id: ") {
			t.Fatalf("the stream begins with %q, %v", lines.Text(), lines.Err())
		}
		first = lines
	}
	begun := time.Now()
	for i := range events {
		name := fmt.Sprint("lock", i)
		if _, err := locks.Acquire(t.Context(), lokt.Claim{Name: name, Owner: lokt.Owner{ID: "o"}}); err != nil {
			t.Fatal(err)
		}
		for first.Scan() && !strings.Contains(first.Text(), `"`+name+`"`) {
		}
		if first.Err() != nil {
			t.Fatal(first.Err())
		}
	}
	if took := time.Since(begun); took < (events-2)*streams*time.Millisecond {
		t.Errorf("%d events were read one by one within %v, by one of %d streams", events, took, streams)
	}
}
