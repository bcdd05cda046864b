package lane_test

import (
	"net/http"
	"reflect"
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

func TestRequestsThatEndEarly(t *testing.T) {
	simple, plain := &recorded{Listener: listen(t)}, &recorded{Listener: listen(t)}
	newSiteOn(t, simple, plain, http.HandlerFunc(echo), nil)
	whole := post("/a", "12345")
	for _, before := range []string{"", post("/b", "1")} {
		for cut := range len(whole) {
			if before == "" && cut < 4 { // net/http answers these if nothing went before
				continue
			}
			all := before + whole[:cut]
			with, without := exchange(t, simple, all, nil), exchange(t, plain, all, nil)
			if !reflect.DeepEqual(with, without) {
				t.Errorf("%q is answered with\n%+v\nand by net/http with\n%+v", all, with, without)
			}
		}
	}
}
