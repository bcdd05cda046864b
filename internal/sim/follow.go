package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/lokt-dev/lokt"
)

// follower reads the events of a lock, or all, and knows up to which it has.
type follower struct {
	*actor
	lock  string
	after uint64
	asked time.Duration // since when it waits for one after that; 0 if it does not
}

// follow adds one, who reads pages, waits for events, and has them as a stream that ends now and then.
func (w *world) follow(r *rand.Rand, lock string) {
	f := &follower{actor: w.newActor("reader"+lock, r), lock: lock}
	w.followers = append(w.followers, f)
	log := lokt.EventLog(session{w.db, f.actor})
	if w.net {
		log = w.reach(f.actor)
	}
	r = rand.New(rand.NewPCG(r.Uint64(), 0))
	w.running.Go(func() {
		for f.pass(f.ctx, pointWork, "reads on") == fine {
			if w.net && f.after > 0 && r.IntN(2) == 0 { // from the beginning on nobody is told of a gap
				f.streams(r)
			} else {
				f.asked = w.now()
				err := log.WaitEvents(f.ctx, f.after)
				w.idle() // whose mutex shows that the driver has looked
				if f.asked = 0; err == nil {
					w.count("a reader waits until there is an event")
				}
				for page := (lokt.EventPage{More: true}); err == nil && page.More; {
					page, err = log.ReadEvents(f.ctx, lokt.EventQuery{After: f.after, Name: lock, Limit: 1 + r.IntN(10)})
					f.sees(page.Oldest, page.Events...)
					if err == nil && !page.More {
						f.upTo(page.Newest)
					}
				}
			}
			w.sleep(randomly(r, time.Millisecond, 5*time.Second))
		}
	})
}

// streams reads what a daemon sends, after the last event, until the connection is cut.
func (f *follower) streams(r *rand.Rand) {
	ctx, done := context.WithTimeout(f.ctx, time.Minute)
	defer done()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.w.daemons[0].name+"/v1/events?name="+f.lock, nil)
	req.Header.Set("Last-Event-ID", fmt.Sprint(f.after))
	resp, err := wire{f.w, f.actor}.RoundTrip(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	text = text[:min(len(text), r.IntN(2*len(text)+1))]
	f.w.count("a stream of events ends")
	blocks := bytes.Split(text, []byte("\n\n"))
	for _, block := range blocks[:len(blocks)-1] { // the last one is not whole
		var id uint64
		var gap lokt.EventPage
		var e lokt.LoggedEvent
		_, _ = fmt.Sscanf(string(block), "id: %d", &id)
		_, data, _ := bytes.Cut(block, []byte("data: "))
		switch {
		case bytes.HasPrefix(block, []byte("event: gap")) && lokt.Unmarshal(data, &gap) == nil:
			f.sees(gap.Oldest)
		case len(data) > 0 && lokt.Unmarshal(data, &e) == nil:
			f.sees(0, e)
		default:
			f.upTo(id)
		}
	}
}

// sees takes in events, and which one is the oldest that is kept.
func (f *follower) sees(oldest uint64, events ...lokt.LoggedEvent) {
	if oldest > f.after+1 {
		f.w.count("a reader of events is told that some are forgotten")
		f.after = oldest - 1
	}
	for _, e := range events {
		f.upTo(e.Seq - 1)
		if e.Seq <= f.after || e.Seq > uint64(len(f.w.log)) || tell(e.Event) != tell(f.w.log[e.Seq-1]) {
			f.w.broke("events", "%s has read up to event %d of %d, and is told of %d: %s", f.name, f.after, len(f.w.log), e.Seq, tell(e.Event))
		}
		f.after = max(f.after, e.Seq)
	}
}

// upTo takes in that there are no more events up to that number.
func (f *follower) upTo(seq uint64) {
	for ; f.after < min(seq, uint64(len(f.w.log))); f.after++ {
		if missed := f.w.log[f.after]; f.lock == "" || missed.Name == f.lock {
			f.w.broke("events", "%s is not told of event %d: %s", f.name, f.after+1, tell(missed))
		}
	}
}

// behind reports whether there are events of which the reader has not heard. It is no matter of requests that were lost if it has waited
// for them since nothing fails.
func (f *follower) behind() bool {
	is := f.after < uint64(len(f.w.log))
	if is && f.w.calm && f.asked > f.w.calmSince && f.w.now()-max(f.w.grown, f.asked) > 3*time.Second {
		f.w.broke("wake-up", "%s waits for an event after %d, and there have been %d for a while", f.name, f.after, len(f.w.log))
	}
	return is
}
