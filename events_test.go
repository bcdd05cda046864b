package lokt_test

import (
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// Promise S-65.
func TestAQueryLetsThroughWhatItSays(t *testing.T) {
	at := time.Unix(1000, 0)
	e := lokt.LoggedEvent{Seq: 7, Event: lokt.Event{Time: at, Type: lokt.EventRenew, Name: "a_b", Owner: lokt.Owner{ID: "o"}}}
	for _, test := range []struct {
		q    lokt.EventQuery
		want bool
	}{
		{lokt.EventQuery{}, true},
		{lokt.EventQuery{After: 6, Before: 8, Name: "a_b", Prefix: "a_", Owner: "o", Since: at, Until: at.Add(1)}, true},
		{lokt.EventQuery{Limit: 1, Latest: true}, true},
		{lokt.EventQuery{After: 7}, false}, {lokt.EventQuery{Before: 7}, false},
		{lokt.EventQuery{Name: "a"}, false}, {lokt.EventQuery{Prefix: "aX"}, false}, {lokt.EventQuery{Owner: "p"}, false},
		{lokt.EventQuery{Types: []lokt.EventType{lokt.EventAcquire, lokt.EventRenew}}, true},
		{lokt.EventQuery{Types: []lokt.EventType{lokt.EventAcquire}}, false},
		{lokt.EventQuery{Since: at.Add(1)}, false}, {lokt.EventQuery{Until: at}, false},
	} {
		if got := test.q.Matches(&e); got != test.want {
			t.Errorf("%+v: %v", test.q, got)
		}
	}
}
