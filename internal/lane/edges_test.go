package lane_test

import (
	"net/http"
	"testing"
)

func TestAnswersThatAreNotTakenInKeepNothingBusy(t *testing.T) {
	returned := make(chan struct{})
	large := make([]byte, 64<<20)
	s := newSite(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(large)
		close(returned)
	}), nil)
	c := dial(t, s.simple)
	c.send(post("/large", ""))
	<-returned
	s.until("nothing is busy", func() bool { return s.waiting == 0 })
}
