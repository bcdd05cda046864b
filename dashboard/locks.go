package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/rows"
)

// perPage is how many rows a page has.
const perPage = 100

// board is what is on record about all locks, as it was a moment ago.
type board struct {
	mu sync.Mutex
	at time.Time
	rows.Board
	err error
}

// locks returns all locks that the person may see, and who waits for each other in a circle of them, if anybody does.
func (v *visit) locks() (seen []rows.Lock, circle string, err error) {
	b := &v.board
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.at) > freshFor {
		b.Board, b.err = rows.Locks(v.r.Context(), v.Locks)
		if b.at = time.Now(); b.err != nil {
			b.at = time.Time{}
		}
	}
	seen = make([]rows.Lock, 0, len(b.Locks))
	for _, r := range b.Locks {
		if v.May(Read, r.Name) {
			seen = append(seen, r)
		}
	}
	for i, name := range b.Circle {
		if i%2 == 1 && !v.May(Read, name) { // all others are owners
			return seen, "", b.err
		}
	}
	return seen, rows.CircleText(b.Circle), b.err
}

// overviewBody is the JSON twin of the first page.
type overviewBody struct {
	Counts     []count      `json:"counts"`
	Jobs       *jobCounts   `json:"jobs,omitzero"`
	Locks      []rows.Lock  `json:"locks"`
	Matches    int          `json:"matches"`
	Circle     string       `json:"circle,omitzero"` // who waits for each other
	Contention []contention `json:"contention"`

	Query string `json:"-"`
	State string `json:"-"`
	Pages pages  `json:"pages"`
}

type count struct {
	State string `json:"state"`
	Count int    `json:"count"`
}

// pages says where in a long list a page is.
type pages struct {
	Page  int    `json:"page"`
	Of    int    `json:"of"`
	Older string `json:"older,omitzero"`
	Newer string `json:"newer,omitzero"`
}

func (d *Dashboard) overview(v *visit) (*page, error) {
	all, circle, err := v.locks()
	if err != nil {
		return nil, err
	}
	b := overviewBody{Circle: circle, Query: v.r.FormValue("q"), State: v.r.FormValue("state"), Locks: []rows.Lock{}}
	for _, state := range rows.States() {
		n := 0
		for _, r := range all {
			if r.State == state {
				n++
			}
		}
		b.Counts = append(b.Counts, count{state, n})
	}
	all = slices.DeleteFunc(all, func(r rows.Lock) bool {
		return b.State != "" && r.State != b.State ||
			!strings.Contains(strings.ToLower(r.Name+" "+r.Holder), strings.ToLower(b.Query))
	})
	b.Matches = len(all)
	b.Locks, b.Pages = paged(v, all)
	if b.Contention, err = v.contention(); err != nil {
		return nil, err
	}
	if d.Jobs != nil {
		if b.Jobs, err = v.jobCounts(); err != nil {
			return nil, err
		}
	}
	return &page{Title: "Locks", Line: "lokt status", Body: b}, nil
}

// paged returns the rows of the page that is asked for.
func paged[R any](v *visit, all []R) ([]R, pages) {
	p := pages{Of: max((len(all)+perPage-1)/perPage, 1)}
	p.Page, _ = strconv.Atoi(v.r.FormValue("page")) // what is no number is the first
	p.Page = min(max(p.Page, 1), p.Of)
	at := func(page int) string {
		q := v.r.URL.Query()
		q.Set("page", strconv.Itoa(page))
		return v.r.URL.Path + "?" + q.Encode()
	}
	if p.Page < p.Of {
		p.Older = at(p.Page + 1)
	}
	if p.Page > 1 {
		p.Newer = at(p.Page - 1)
	}
	from := (p.Page - 1) * perPage
	return all[from:min(from+perPage, len(all))], p
}

// lockBody is the JSON twin of the page of one lock.
type lockBody struct {
	rows.Lock
	Holds    []hold             `json:"holds"`
	More     int                `json:"holds_more,omitzero"` // how many more there are
	Queue    []queued           `json:"queue"`
	Behind   int                `json:"queue_more,omitzero"` // how many more wait
	Freeze   *lokt.Freeze       `json:"freeze,omitzero"`
	Events   []lokt.LoggedEvent `json:"events"`
	Typical  time.Duration      `json:"typical_hold_ms,omitzero"` // the median of the holds that ended lately
	Boxes    []box              `json:"-"`
	Timeline *timeline          `json:"-"`
}

// hold is a hold as people see it.
type hold struct {
	lokt.Holder
	Late  bool   `json:"overdue,omitzero"`
	Stale string `json:"stale,omitzero"` // why it counts no more
}

// queued is a claim that waits.
type queued struct {
	*lokt.Waiter
	Position int           `json:"position"`
	Away     bool          `json:"away,omitzero"`
	Estimate time.Duration `json:"estimate_ms,omitzero"` // until it is granted, from how long holds took lately
}

// box is a place for a holder.
type box struct {
	Who  string
	Late bool
}

// mostBoxes is for how many places boxes are drawn.
const mostBoxes = 64

func (d *Dashboard) lock(v *visit) (*page, error) {
	name := v.r.PathValue("name")
	if err := cmp.Or(lokt.ValidateName(name), v.need(Read, name)); err != nil {
		return nil, err
	}
	s, err := d.Locks.Get(v.r.Context(), name)
	if err != nil && !errors.Is(err, lokt.ErrDamaged) {
		return nil, err
	}
	s.Lock.Name = name
	b := lockBody{Lock: rows.OfLock(s), Holds: []hold{}, Queue: []queued{}, Events: []lokt.LoggedEvent{}}
	if s.Over() {
		b.State = "free"
	}
	if err != nil {
		b.State, b.Why = rows.Unreadable, err.Error()
	}
	first := s.Lock
	first.Queue, first.Holders = first.Queue[:min(len(first.Queue), perPage)], first.Holders[:min(len(first.Holders), perPage)]
	public := first.Public()
	b.Freeze = s.Frozen().Public()
	for i, h := range public.Holders {
		one := hold{Holder: h, Late: rows.Late(s.Now, &h)}
		one.Stale, _ = s.Stale(s.Lock.Holders[i])
		b.Holds = append(b.Holds, one)
		if one.Stale == "" && len(b.Boxes) < mostBoxes {
			b.Boxes = append(b.Boxes, box{h.Owner.String(), one.Late})
		}
	}
	limit := 1
	if len(s.Lock.Holders) > 0 {
		limit = max(s.Lock.Holders[0].Limit, 1)
	}
	for len(b.Boxes) < min(limit, mostBoxes) && limit != lokt.Shared {
		b.Boxes = append(b.Boxes, box{})
	}
	var events []lokt.LoggedEvent
	if d.Events != nil {
		page, err := d.Events.ReadEvents(v.r.Context(), lokt.EventQuery{Name: name, Types: turns(), Latest: true, Limit: timelineEvents})
		if err != nil {
			return nil, err
		}
		for _, e := range page.Events {
			e.Event = e.Public()
			events = append(events, e)
		}
		var took []time.Duration
		for _, e := range events {
			took = rows.Took(took, e.Extra[lokt.ExtraHeld])
		}
		b.Typical = rows.Typical(took)
		b.Timeline = draw(events, s.Now)
		b.Events = slices.Clone(events[max(len(events)-50, 0):])
		slices.Reverse(b.Events)
	}
	for i, w := range public.Queue {
		left := time.Duration(0)
		if len(s.Lock.Holders) > 0 && b.Freeze == nil { // a freeze lets nobody in, however long holds last
			left = rows.Estimate(s.Now, s.Lock.Holders, i, limit, b.Typical)
		}
		b.Queue = append(b.Queue, queued{w, i + 1, s.Away(s.Lock.Queue[i]), left})
	}
	b.Behind, b.More = len(s.Lock.Queue)-len(b.Queue), len(s.Lock.Holders)-len(b.Holds)
	return &page{Title: name, Line: "lokt status", Of: name, Body: b}, nil
}

// turns are the events that tell how a lock went from one to the next: all but renewals.
func turns() []lokt.EventType {
	return []lokt.EventType{
		lokt.EventAcquire, lokt.EventDeny, lokt.EventFreezeDeny, lokt.EventRelease, lokt.EventRenewFail, lokt.EventLost,
		lokt.EventTakeover, lokt.EventAutoPrune, lokt.EventForceBreak, lokt.EventStaleBreak, lokt.EventCorruptBreak,
		lokt.EventFreeze, lokt.EventUnfreeze, lokt.EventForceThaw, lokt.EventWait, lokt.EventPreempt, lokt.EventMismatch,
		lokt.EventAsk, lokt.EventAnswer, lokt.EventPass,
	}
}

// unlock ends the holds that the person saw, and none that was granted since.
func (d *Dashboard) unlock(v *visit) (string, error) {
	name := v.r.PathValue("name")
	if err := v.need(Force, name); err != nil {
		return "", err
	}
	if v.r.PostFormValue("confirm") != name {
		return "", fmt.Errorf("%w: type the name of the lock, %s, to end its holds", lokt.ErrInvalid, name)
	}
	upTo, err := strconv.ParseUint(cmp.Or(v.r.PostFormValue("up_to"), "0"), 10, 64)
	if err != nil {
		return "", fmt.Errorf("%w: up_to is no token", lokt.ErrInvalid)
	}
	_, err = d.Locks.Release(v.r.Context(), lokt.Target{Name: name, Owner: v.owner(), Force: true, UpTo: upTo})
	return "/locks/" + name, err
}

func (d *Dashboard) freeze(v *visit) (string, error) {
	name := v.r.PathValue("name")
	if err := v.need(Lock, name); err != nil {
		return "", err
	}
	f := lokt.Freeze{Owner: v.owner(), Reason: strings.TrimSpace(v.r.PostFormValue("reason"))}
	if text := v.r.PostFormValue("ttl"); text != "" {
		var err error
		if f.TTL, err = time.ParseDuration(text); err != nil || f.TTL <= 0 {
			return "", fmt.Errorf("%w: %q is no duration such as 90s, 15m or 2h", lokt.ErrInvalid, text)
		}
	}
	_, err := d.Locks.Freeze(v.r.Context(), name, f)
	return "/locks/" + name, err
}

// unfreeze ends the freeze that the person saw: one's own, or with the right to force anybody's.
func (d *Dashboard) unfreeze(v *visit) (string, error) {
	name := v.r.PathValue("name")
	if err := v.need(Lock, name); err != nil {
		return "", err
	}
	_, err := d.Locks.Unfreeze(v.r.Context(), lokt.Target{Name: name, LeaseID: v.r.PostFormValue("freeze"), Owner: v.owner(), Force: v.May(Force, name)})
	return "/locks/" + name, err
}

// ask asks the hold that the person saw.
func (d *Dashboard) ask(v *visit) (string, error) {
	name := v.r.PathValue("name")
	if err := v.need(Lock, name); err != nil {
		return "", err
	}
	t := lokt.Target{Name: name, LeaseID: v.r.PostFormValue("holder"), Owner: v.owner()}
	text := strings.TrimSpace(v.r.PostFormValue("text"))
	if text == "" {
		return "", fmt.Errorf("%w: there is no question", lokt.ErrInvalid)
	}
	_, err := d.Locks.Tell(v.r.Context(), t, lokt.Message{Text: text})
	return "/locks/" + name, err
}

// contention is how long claims have waited for a lock.
type contention struct {
	Name  string        `json:"name"`
	Day   time.Duration `json:"day_ms"`
	Week  time.Duration `json:"week_ms"`
	Waits int           `json:"waits"` // within a week

	Circles int `json:"circles"` // of these waits, those that gave way because they were part of a circle
}

// history is what was waited, read now and then.
type history struct {
	mu  sync.Mutex
	at  time.Time
	all []contention
}

// Bounds on reading the history of waits: how long it is shown, and how many events are read.
const (
	historyFor   = 20 * time.Second
	historyPages = 20
)

// contention returns what was waited for longest within a week.
func (v *visit) contention() ([]contention, error) {
	if v.Events == nil {
		return []contention{}, nil
	}
	h := &v.waits
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.at) > historyFor {
		all, err := v.Dashboard.sumWaits(v.r.Context(), time.Now())
		if err != nil {
			return nil, err
		}
		h.at, h.all = time.Now(), all
	}
	seen := []contention{}
	for _, c := range h.all {
		if v.May(Read, c.Name) && len(seen) < 10 {
			seen = append(seen, c)
		}
	}
	return seen, nil
}

// sumWaits sums up the waits of a week that have ended, the newest of them if there are very many.
func (d *Dashboard) sumWaits(ctx context.Context, now time.Time) ([]contention, error) {
	byName := map[string]*contention{}
	q := lokt.EventQuery{Types: []lokt.EventType{lokt.EventWait}, Since: now.Add(-7 * 24 * time.Hour), Latest: true}
	for range historyPages {
		page, err := d.Events.ReadEvents(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Events {
			ms, err := strconv.ParseInt(e.Extra[lokt.ExtraWaited], 10, 64)
			if err != nil {
				continue
			}
			c := byName[e.Name]
			if c == nil {
				c = &contention{Name: e.Name}
				byName[e.Name] = c
			}
			waited := time.Duration(ms) * time.Millisecond
			c.Week += waited
			c.Waits++
			if e.Extra[lokt.ExtraOutcome] == "deadlock" {
				c.Circles++
			}
			if now.Sub(e.Time) < 24*time.Hour {
				c.Day += waited
			}
		}
		if !page.More || len(page.Events) == 0 {
			break
		}
		q.Before = page.Events[0].Seq
	}
	var all []contention
	for _, c := range byName {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b contention) int { return cmp.Or(cmp.Compare(b.Week, a.Week), cmp.Compare(a.Name, b.Name)) })
	return all[:min(len(all), 1000)], nil
}
