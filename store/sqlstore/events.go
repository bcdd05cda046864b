package sqlstore

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lokt-dev/lokt"
)

// damagedEvent is the type of what is in the place of events that cannot be read.
const damagedEvent lokt.EventType = "damaged"

// openEvents reads the events of some locks. If they cannot be read, one of each lock has their place, and what was
// there is not known.
func (d *document) openEvents(key string, locks []string, first uint64, since int64) []lokt.LoggedEvent {
	var all []lokt.Event
	if err := d.open("events from number "+number(first), key, &all); err != nil {
		for _, lock := range locks {
			all = append(all, lokt.Event{
				Time: time.Unix(0, since).UTC(), Type: damagedEvent, Name: strings.ToValidUTF8(lock, "?"),
				Extra: map[string]string{lokt.ExtraReason: err.Error()},
			})
		}
	}
	logged := make([]lokt.LoggedEvent, len(all))
	for i := range all {
		logged[i] = lokt.LoggedEvent{Seq: first + uint64(i), Event: all[i]}
	}
	return logged
}

// eventRows are how the rows of events are found: what the checksum of one is over beside its text, the column that says
// which locks they are of, and the conditions that it has a name, or one that begins as a prefix does, which is before
// the next one.
type eventRows struct{ key, locks, is, begins string }

// With SQLite the events of all changes that were committed together share a row, with all names between spaces.
var (
	fileEvents   = eventRows{"CAST(first AS TEXT)", "locks", "instr(locks, ' ' || ? || ' ')", "instr(locks, ' ' || ?)"}
	serverEvents = eventRows{"lock", "lock", "lock = ?", "lock >= ? AND lock < ?"}
)

// names returns the names of the events' locks, between spaces.
func names(events []lokt.Event) string {
	all := make([]string, len(events))
	for i := range events {
		all[i] = events[i].Name
	}
	slices.Sort(all)
	return " " + strings.Join(slices.Compact(all), " ") + " "
}

// texts returns lists of texts: a document with an event that the query lets through has one of each list, namely the owner and one of the
// types. What stands for a damaged document has a type that is not in it.
func texts(q lokt.EventQuery) (all [][]string) {
	if id, err := lokt.Marshal(q.Owner); err == nil && q.Owner != "" {
		all = append(all, []string{string(id)})
	}
	var types []string
	for _, is := range q.Types {
		types = append(types, `"`+string(is)+`"`)
	}
	if len(types) > 0 && !slices.Contains(q.Types, damagedEvent) {
		all = append(all, types)
	}
	return all
}

// readEvents reads the events that the query lets through.
func readEvents(read look, in eventRows, q lokt.EventQuery) (page lokt.EventPage, err error) {
	const oldest = "SELECT coalesce(min(first), 0) FROM lock_events"
	if err := read(oldest, nil, func(from row) error { return from.Scan(&page.Oldest) }); err != nil {
		return page, err
	}
	where, args, order, further := "true", []any(nil), " ORDER BY first", " AND first > ?"
	add := func(condition string, values ...any) {
		where, args = where+" AND "+condition, append(args, values[:strings.Count(condition, "?")]...)
	}
	if q.After > 0 {
		add("first >= coalesce((SELECT max(first) FROM lock_events WHERE first <= ?), 0)", int64(q.After+1))
	}
	if q.Before > 0 {
		add("first < ?", int64(q.Before))
	}
	if q.Name != "" {
		add(in.is, q.Name)
	}
	if q.Prefix != "" { // names are ASCII
		add(in.begins, q.Prefix, q.Prefix[:len(q.Prefix)-1]+string(q.Prefix[len(q.Prefix)-1]+1))
	}
	if !q.Since.IsZero() {
		add("until >= ?", q.Since.UnixNano())
	}
	if !q.Until.IsZero() {
		add("since < ?", q.Until.UnixNano())
	}
	for _, wanted := range texts(q) { // finds few others, which need not be decoded
		condition, text := "false", []any(nil)
		for _, w := range wanted {
			one, arg := holding("doc", w)
			condition, text = condition+" OR "+one, append(text, arg...)
		}
		add("("+condition+")", text...)
	}
	if q.Latest {
		order, further = order+" DESC", " AND first < ?"
	}
	limit := lokt.MaxEvents
	if q.Limit > 0 {
		limit = min(q.Limit, limit)
	}
	const atOnce = 1000
	more := ""
	for n, room := atOnce, true; n == atOnce && room; { // the statement finds few more than are let through
		n = 0
		var first, since int64
		statement := "SELECT first, " + in.locks + ", " + in.key + ", since, doc, sum FROM lock_events WHERE " + where + more + order + " LIMIT ?"
		if err := read(statement, append(args[:len(args):len(args)], atOnce), func(from row) error {
			var locks, key string
			var d document
			if err := from.Scan(&first, &locks, &key, &since, &d.text, &d.sum); err != nil {
				return err
			}
			n++
			events := d.openEvents(key, strings.Fields(locks), uint64(first), since)
			if q.Latest {
				slices.Reverse(events)
			}
			for i := range events {
				if !q.Matches(&events[i]) {
					continue
				}
				if room = len(page.Events) < limit; !room {
					page.More = true
					return errEnough
				}
				page.Events = append(page.Events, events[i])
			}
			return nil
		}); err != nil {
			return page, err
		}
		if more == "" {
			more, args = further, append(args, nil)
		}
		args[len(args)-1] = first
	}
	if q.Latest {
		slices.Reverse(page.Events)
	}
	return page, nil
}

// forgetLockEvents forgets events of locks that are too old or too many.
func (o *Options) forgetLockEvents(exec execute, now time.Time) error {
	before := int64(-1 << 63)
	if o.KeepEventsFor >= 0 {
		before = now.Add(-o.KeepEventsFor).UnixNano()
	}
	return forgetEvents(exec, "lock_events", before, o.KeepEvents)
}

// forgetEvents forgets the oldest events of a table that came before a time, or are beyond so many if that is not negative:
// some at once, but more than come meanwhile.
func forgetEvents(exec execute, table string, before int64, keep int) error {
	if keep < 0 {
		keep = math.MaxInt
	}
	for range 30 {
		gone, err := exec(strings.ReplaceAll(`DELETE FROM events WHERE first <= (
			SELECT max(first) FROM (SELECT first, last, until FROM events ORDER BY first LIMIT 1000) oldest
			WHERE until < ? OR last <= (SELECT last FROM events ORDER BY first DESC LIMIT 1) - ?)`, "events", table), before, keep)
		if gone == 0 || err != nil {
			return err
		}
	}
	return nil
}

// errEnough ends the reading of rows.
var errEnough = errors.New("no more rows are wanted")

// span returns the times of the earliest and the latest event, in nanoseconds.
func span(events []lokt.Event) (since, until int64) {
	since, until = events[0].Time.UnixNano(), events[0].Time.UnixNano()
	for i := range events {
		t := events[i].Time.UnixNano()
		since, until = min(since, t), max(until, t)
	}
	return since, until
}

// alarm wakes everybody who waits for something to happen.
type alarm struct {
	mu sync.Mutex
	c  chan struct{}
}

// next returns a channel that is closed when something has happened after the call.
func (a *alarm) next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c == nil {
		a.c = make(chan struct{})
	}
	return a.c
}

func (a *alarm) ring() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.c != nil {
		close(a.c)
		a.c = nil
	}
}
