package dashboard

import (
	"fmt"
	"slices"
	"time"

	"github.com/lokt-dev/lokt"
)

// timelineEvents is from how many events a timeline is drawn.
const timelineEvents = 500

// Sizes of a timeline in its own units, and the most rows that it has.
const (
	timelineWidth = 1000.0
	timelineLeft  = 180.0
	rowHeight     = 22
	timelineRows  = 12
)

// timeline shows who held a lock and who waited for it.
type timeline struct {
	From, To time.Time
	Rows     []timelineRow
	Ticks    []tick
	Height   int
	More     int // holds and waits that are left out
}

// timelineRow is one owner's, who may have several: no two bars of a row are at the same time.
type timelineRow struct {
	Owner string
	Y     int
	Bars  []bar
	from  time.Time // when the earliest of them begins
}

// bar is a hold or a wait.
type bar struct {
	X, Width float64
	Y        int
	Waits    bool
	Text     string
}

type tick struct {
	X  float64
	At time.Time
}

// span is a hold or wait that has begun.
type span struct {
	owner    string
	from, to time.Time
	waits    bool
	token    uint64
}

// spans returns the holds and waits that the events, oldest first, tell of. What has not ended lasts until now.
func spans(events []lokt.LoggedEvent, now time.Time) (all []span) {
	open := map[string]*span{} // by lease and kind
	begin := func(e *lokt.LoggedEvent, waits bool) {
		key := fmt.Sprint(e.ID, waits)
		if open[key] == nil {
			open[key] = &span{owner: e.Owner.String(), from: e.Time, waits: waits, token: e.Token}
		}
	}
	end := func(id string, at time.Time, waits bool) {
		key := fmt.Sprint(id, waits)
		if s := open[key]; s != nil {
			s.to = at
			all = append(all, *s)
			delete(open, key)
		}
	}
	for i := range events {
		switch e := &events[i]; e.Type {
		case lokt.EventWait:
			if e.Extra[lokt.ExtraOutcome] == "started" {
				begin(e, true)
			} else {
				end(e.ID, e.Time, true)
			}
		case lokt.EventAcquire, lokt.EventTakeover:
			end(e.ID, e.Time, true)
			end(e.Extra[lokt.ExtraLeaseWas], e.Time, false)
			begin(e, false)
		case lokt.EventRelease, lokt.EventLost, lokt.EventAutoPrune, lokt.EventForceBreak, lokt.EventStaleBreak, lokt.EventCorruptBreak:
			end(e.ID, e.Time, false)
		}
	}
	for _, s := range open {
		s.to = now
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b span) int { return a.from.Compare(b.from) })
	return all
}

// draw returns the timeline of the events, or nil if they tell of no hold and no wait.
func draw(events []lokt.LoggedEvent, now time.Time) *timeline {
	all := spans(events, now)
	if len(all) == 0 {
		return nil
	}
	t := &timeline{From: all[0].from, To: now}
	length := max(t.To.Sub(t.From), time.Second)
	x := func(at time.Time) float64 {
		return timelineLeft + (timelineWidth-timelineLeft)*min(max(float64(at.Sub(t.From))/float64(length), 0), 1)
	}
	for _, s := range slices.Backward(all) { // whoever was there last comes first
		i := slices.IndexFunc(t.Rows, func(r timelineRow) bool { return r.Owner == s.owner && !r.from.Before(s.to) })
		if i < 0 {
			if i = len(t.Rows); i == timelineRows {
				t.More++
				continue
			}
			t.Rows = append(t.Rows, timelineRow{Owner: s.owner, Y: i*rowHeight + rowHeight/2 + 4})
		}
		t.Rows[i].from = s.from
		b := bar{X: x(s.from), Width: max(x(s.to)-x(s.from), 1.5), Y: i*rowHeight + 4, Waits: s.waits}
		what := fmt.Sprintf("held, token %d", s.token)
		if s.waits {
			what = "waited"
		}
		b.Text = fmt.Sprintf("%s: %s for %s, from %s UTC", s.owner, what, short(s.to.Sub(s.from)), s.from.UTC().Format(time.TimeOnly))
		t.Rows[i].Bars = append(t.Rows[i].Bars, b)
	}
	for i := range 5 {
		at := t.From.Add(length * time.Duration(i) / 4)
		t.Ticks = append(t.Ticks, tick{min(x(at), timelineWidth-30), at})
	}
	t.Height = len(t.Rows)*rowHeight + 24
	return t
}
