package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/rows"
	"github.com/lokt-dev/lokt/jobs"
)

// How often what there is is looked at while any page follows, how often a page that is told nothing is told so, how
// long telling it may take, and how often, at most, its token is looked at again. For locks that become overdue, all have
// to be looked at: that is done at one look of so many.
const (
	lookEvery   = 400 * time.Millisecond
	lateLooks   = 12
	silence     = 15 * time.Second
	tellTimeout = 10 * time.Second
	enterEvery  = time.Second
)

// live tells open pages that something has changed. One goroutine looks for all of them, and only while there are any.
type live struct {
	d *Dashboard

	mu      sync.Mutex
	open    int
	by      map[string]int // pages that follow, by person
	number  uint64         // of changes
	changed chan struct{}  // closed with the next one
	stop    context.CancelFunc
}

func newLive(d *Dashboard) *live {
	return &live{d: d, by: map[string]int{}, changed: make(chan struct{})}
}

// serve streams a line for each change, in the format of server-sent events.
func (l *live) serve(w http.ResponseWriter, r *http.Request) {
	v := l.d.visit(w, r)
	if v == nil {
		return
	}
	who := v.Who()
	if status := l.enter(who); status != http.StatusOK {
		http.Error(w, "too many pages follow what happens: reload to look again", status)
		return
	}
	defer l.leave(who)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	if r.Method == http.MethodHead {
		return
	}
	entered := time.Now()
	out := http.NewResponseController(w)
	seen := uint64(0)
	for first := true; ; first = false {
		l.mu.Lock()
		number, changed := l.number, l.changed
		l.mu.Unlock()
		text := "event: here\ndata: \n\n"
		if first || number != seen {
			text = fmt.Sprintf("event: changed\ndata: %d\nretry: 2000\n\n", number)
		}
		seen = number
		_ = out.SetWriteDeadline(time.Now().Add(tellTimeout)) // a connection without deadlines ends when the client does
		if _, err := fmt.Fprint(w, text); err != nil || out.Flush() != nil {
			return
		}
		select {
		case <-changed:
		case <-time.After(silence):
		case <-r.Context().Done():
			return
		case <-l.d.Stop.Done():
			return
		}
		if l.d.Enter != nil && time.Since(entered) >= enterEvery { // a stream would outlive its token otherwise
			if caller, err := l.d.Enter(withCookie(r)); err != nil || caller.Name() != who || !caller.May(Read, "") {
				return
			}
			entered = time.Now()
		}
	}
}

// enter lets one more page of a person follow, unless the status says otherwise.
func (l *live) enter(who string) (status int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open >= l.d.Streams:
		return http.StatusServiceUnavailable
	case who != "" && l.by[who] >= l.d.StreamsEach:
		return http.StatusTooManyRequests
	}
	l.by[who]++
	if l.open++; l.open == 1 {
		var ctx context.Context
		ctx, l.stop = context.WithCancel(l.d.Stop)
		go l.look(ctx)
	}
	return http.StatusOK
}

func (l *live) leave(who string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[who]--; l.by[who] == 0 {
		delete(l.by, who)
	}
	if l.open--; l.open == 0 {
		l.stop()
	}
}

// look looks for changes until ctx ends.
func (l *live) look(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	late := l.d.late(ctx)
	before := l.d.state(ctx) + late
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if n%lateLooks == 0 {
			late = l.d.late(ctx)
		}
		now := l.d.state(ctx) + late
		if now == before || ctx.Err() != nil {
			continue
		}
		before = now
		l.mu.Lock()
		l.number++
		close(l.changed)
		l.changed = make(chan struct{})
		l.mu.Unlock()
	}
}

// late returns the locks that are overdue, which nothing that happens tells.
func (d *Dashboard) late(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	all, _ := rows.Locks(ctx, d.Locks) // pages tell the error
	var names []string
	for _, l := range all.Locks {
		if l.State == rows.Overdue {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	return fmt.Sprint(names)
}

// state returns a text that differs when something has changed.
func (d *Dashboard) state(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	text := ""
	if d.Events != nil {
		page, err := d.Events.ReadEvents(ctx, lokt.EventQuery{Latest: true, Limit: 1})
		text = fmt.Sprint(page.Newest, err)
	} else {
		for s, err := range d.Locks.List(ctx, lokt.Filter{}) {
			text += fmt.Sprint(s.Lock.Name, s.Lock.Revision, err)
		}
	}
	if d.Jobs == nil {
		return text
	}
	for _, r := range d.runs.underWay() {
		text += fmt.Sprint(" ", r.ID, r.CanUndo)
	}
	status, err := d.Jobs.Status(ctx)
	status.Busy = nil
	text += fmt.Sprintf(" %+v %v", status, err)
	newest, err := d.Jobs.List(ctx, jobs.Filter{Limit: 1})
	for _, v := range newest.Jobs {
		text += fmt.Sprint(" ", v.Job.Revision)
	}
	return text + fmt.Sprint(err)
}
