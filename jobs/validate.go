package jobs

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
)

// checker collects what is wrong with a request, which is nothing in the zero checker.
type checker struct {
	job      int // of a list, counted from 1; 0 for no list
	problems []Problem
}

// whole is the field itself, not one of its elements.
const whole = -1

// add notes what is wrong with an element of a field, or with the whole of it. A field within others is limits/db/slots.
func (c *checker) add(kind, field string, i int, format string, args ...any) {
	var loc []any
	if c.job > 0 {
		loc = append(loc, "jobs", c.job-1)
	}
	for name := range strings.SplitSeq(field, "/") {
		loc = append(loc, name)
	}
	if i != whole {
		loc = append(loc, i)
	}
	c.problems = append(c.problems, Problem{Type: kind, Loc: loc, Msg: fmt.Sprintf(format, args...)})
}

// err returns the problems that were found, or nil.
func (c *checker) err() error {
	if len(c.problems) == 0 {
		return nil
	}
	return &InvalidError{Problems: c.problems}
}

// id checks an identifier: a line of text that every store and log can keep.
func (c *checker) id(s string, needed bool, field string, i int) {
	switch {
	case s == "" && needed:
		c.add("string_too_short", field, i, "String should have at least 1 character")
	case len(s) > MaxIDLen:
		c.add("string_too_long", field, i, "String should have at most %d bytes", MaxIDLen)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		c.add("value_error", field, i, "String should be UTF-8 without control characters")
	}
}

// text checks what people write.
func (c *checker) text(s, field string) {
	switch {
	case len(s) > MaxTextLen:
		c.add("string_too_long", field, whole, "String should have at most %d bytes", MaxTextLen)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		c.add("value_error", field, whole, "String should be UTF-8 without NUL")
	}
}

// between checks a number; NaN is too small.
func between[T int | int64 | float64](c *checker, n, least, most T, field string) {
	switch {
	case n > most:
		c.add("less_than_equal", field, whole, "Input should be less than or equal to %v", most)
	case n < least, n != n:
		c.add("greater_than_equal", field, whole, "Input should be greater than or equal to %v", least)
	}
}

// wait checks for how long a request may be held, which is in milliseconds on the wire.
func (c *checker) wait(d time.Duration) {
	between(c, float64(d)/float64(time.Millisecond), 0, float64(MaxWait.Milliseconds()), "wait_ms")
}

func (c *checker) fraction(f *float64, field string) {
	if f != nil {
		between(c, *f, 0, 1, field)
	}
}

func (c *checker) size(n, most int, field string) {
	if n > most {
		c.add("too_long", field, whole, "List should have at most %d items, not %d", most, n)
	}
}

// json checks a value that is kept as it is, within a record of the job; none is fine.
func (c *checker) json(v jsontext.Value, field string) {
	twice := jsontext.AllowDuplicateNames(true)
	const few = 9_000 // levels are nested at most in what is shorter than that; the JSON library stops at 10,000
	if v == nil || v.IsValid(twice) && (len(v) < few || slices.Concat(jsontext.Value("[[[["), v,
		jsontext.Value("]]]]")).IsValid(twice)) {
		return
	}
	c.add("json_invalid", field, whole, "Input should be one JSON value")
}

func (c *checker) ids(all []string, most int, field string) {
	c.size(len(all), most, field)
	for i, s := range all[:min(len(all), most)] {
		c.id(s, false, field, i)
	}
}

// Validate returns what is wrong with the spec for a service of so many units in total, as an *InvalidError, or nil.
func (s *Spec) Validate(total int) error {
	var c checker
	c.spec(s, total)
	return c.err()
}

func (c *checker) spec(s *Spec, total int) {
	c.id(s.Type, true, "type", whole)
	if !slices.Contains(Priorities(), s.Priority) {
		c.add("enum", "priority", whole, "Input should be 'high', 'normal', 'low' or 'background'")
	}
	between(c, s.Units, 1, total, "requested_units")
	if p := strings.TrimLeft(string(s.Payload[:min(len(s.Payload), 64)]), " \t\r\n"); !strings.HasPrefix(p, "{") {
		c.add("dict_type", "payload", whole, "Input should be an object")
	} else {
		c.json(s.Payload, "payload")
	}
	c.id(s.IdempotencyKey, false, "idempotency_key", whole)
	c.ids(s.Tags, MaxTags, "tags")
	if s.MaxRuntime < 0 {
		c.add("greater_than", "max_runtime_s", whole, "Input should be greater than 0")
	}
	between(c, max(s.MaxRuntime.Seconds(), 0), 0, MaxDuration.Seconds(), "max_runtime_s")
	between(c, s.MaxAttempts, 1, MaxAttempts, "max_attempts")
	between(c, s.RetryBackoff.Seconds(), 0, MaxDuration.Seconds(), "retry_backoff_s")
	if y := s.RunAt.UTC().Year(); !s.RunAt.IsZero() && (y < 1 || y > 9999) {
		c.add("value_error", "run_at", whole, "Year should be from 1 to 9999")
	}
	c.size(len(s.Locks), MaxLocks, "locks")
	for i, name := range s.Locks[:min(len(s.Locks), MaxLocks)] {
		if lokt.ValidateName(name) != nil {
			c.add("value_error", "locks", i, "Lock names are made of at most %d letters, digits and . _ -, without two dots in a row",
				lokt.MaxNameLen)
		} else if slices.Contains(s.Locks[:i], name) {
			c.add("value_error", "locks", i, "Each lock should be named once")
		}
	}
	if s.Extra != nil {
		c.after(s.Extra.After)
		c.id(s.Extra.Fair, false, "fair_key", whole)
		for _, name := range slices.Sorted(maps.Keys(s.Extra.Limits)) {
			c.limit("limits/"+name, s.Extra.Limits[name], slices.Contains(s.Locks, name))
		}
		c.cron(s.Extra, s.RunAt)
		if t := s.Extra.Ticks; t != nil {
			c.id(t.Schedule, false, "schedule_id", whole)
		}
	}
}

// cron checks when a job is to be submitted.
func (c *checker) cron(x *Extra, from time.Time) {
	if c.id(x.Cron, false, "cron", whole); x.Cron == "" || len(x.Cron) > MaxIDLen {
		return
	}
	if at, err := ParseCron(x.Cron); err != nil {
		c.add("value_error", "cron", whole, "No schedule: %v", err)
	} else if at.Next(from).Year() > 9999 {
		c.add("value_error", "run_at", whole, "The first tick should come before the year 10000")
	} else if len(x.After) > 0 {
		c.add("value_error", "cron", whole, "A schedule runs after no other job: leave out after, or cron")
	}
}

// after checks which jobs a job is to run after.
func (c *checker) after(all []string) {
	c.size(len(all), MaxAfter, "after")
	for i, id := range all[:min(len(all), MaxAfter)] {
		switch n, listed := Listed(id); {
		case listed && (n < 0 || n >= c.job-1):
			c.add("value_error", "after", i, "A number should be that of a job before this one in the list, the first of which is #0")
		case !listed && !PossibleID(id):
			c.add("value_error", "after", i, "Input should be the ID of a job")
		case slices.Contains(all[:i], id):
			c.add("value_error", "after", i, "Each job should be named once")
		}
	}
}

// limit checks the limit on a lock, which should be among those that the job names.
func (c *checker) limit(field string, l Limit, named bool) {
	if !named {
		c.add("value_error", field, whole, "Limits should be on locks that the job names")
	}
	between(c, l.Slots, 0, lokt.MaxHolders, field+"/slots")
	between(c, l.Starts, 0, MaxStarts, field+"/starts")
	between(c, l.Burst, 0, max(l.Starts, 0), field+"/burst")
	between(c, l.Per.Seconds(), 0, MaxPer.Seconds(), field+"/per_s")
	if (l.Starts > 0) != (l.Per > 0) || l.Starts > 0 && l.Every() < time.Millisecond {
		c.add("value_error", field, whole, "A rate should have starts and per_s, with a millisecond at least for each")
	}
}

// Listed returns which of the specs of a list a name in Extra.After stands for, if it stands for one: "#2" is the third. It is
// negative if the name is wrong.
func Listed(name string) (n int, listed bool) {
	number, listed := strings.CutPrefix(name, "#")
	n, err := strconv.Atoi(number)
	if err != nil || strconv.Itoa(n) != number {
		n = -1
	}
	return n, listed
}

// UnknownError says which jobs that others are to run after are not known: the index of the spec, and that in its After.
func UnknownError(places [][2]int) error {
	var c checker
	for _, p := range places {
		c.job = p[0] + 1
		c.add("value_error", "after", p[1], "There is no such job, or it ended so long ago that it is forgotten")
	}
	return c.err()
}

// ValidateSubmit checks specs that were submitted together.
func ValidateSubmit(specs []Spec, total int) error {
	var c checker
	if len(specs) == 0 {
		c.add("too_short", "jobs", whole, "List should have at least 1 item")
	}
	if c.size(len(specs), MaxSubmit, "jobs"); len(specs) <= MaxSubmit {
		for i := range specs {
			c.job = i + 1
			c.spec(&specs[i], total)
		}
	}
	return c.err()
}

// Validate returns what is wrong with the request as an *InvalidError, or nil.
func (a *Request) Validate() error {
	var c checker
	c.id(a.WorkerID, true, "worker_id", whole)
	if a.MaxUnits < 0 {
		c.add("greater_than_equal", "max_units", whole, "Input should be greater than or equal to 1")
	}
	c.ids(a.Types, MaxTypes, "types")
	c.ids(a.Capabilities, MaxTypes, "capabilities")
	c.wait(a.Wait)
	c.id(a.RequestID, false, "request_id", whole)
	return c.err()
}

// Validate returns what is wrong with the heartbeat as an *InvalidError, or nil. A lease ID that cannot be one is only
// unknown.
func (b *Heartbeat) Validate() error {
	var c checker
	c.id(b.WorkerID, true, "worker_id", whole)
	c.fraction(b.Progress, "progress")
	c.json(b.Checkpoint, "checkpoint")
	c.wait(b.Wait)
	return c.err()
}

// ValidateBatch checks heartbeats that were sent together.
func ValidateBatch(workerID string, leaseIDs []string) error {
	var c checker
	c.id(workerID, true, "worker_id", whole)
	if len(leaseIDs) == 0 {
		c.add("too_short", "lease_ids", whole, "List should have at least 1 item")
	}
	c.size(len(leaseIDs), MaxHeartbeats, "lease_ids")
	return c.err()
}

// Validate returns what is wrong with the completion as an *InvalidError, or nil.
func (e *Completion) Validate() error {
	var c checker
	c.id(e.WorkerID, true, "worker_id", whole)
	if e.Status != Completed && e.Status != Failed && e.Status != Queued { // the text is that of other schedulers
		c.add("enum", "status", whole, "Input should be 'completed' or 'failed'")
	}
	if e.Status == Queued && (e.Result != nil || e.Error != nil) {
		c.add("value_error", "status", whole, "a job that goes back to the queue has no result and no error")
	}
	c.json(e.Result, "result")
	c.json(e.Error, "error")
	return c.err()
}

// Validate returns what is wrong with the report as an *InvalidError, or nil.
func (p *Progress) Validate() error {
	var c checker
	c.id(p.WorkerID, true, "worker_id", whole)
	c.fraction(p.Progress, "progress")
	c.json(p.Metrics, "metrics")
	c.text(p.Text, "output")
	between(&c, p.Offset, 0, 1<<53-1, "offset")
	if p.Message != nil {
		c.text(*p.Message, "message")
	}
	return c.err()
}

// Validate returns what is wrong with the filter as an *InvalidError, or nil. Any limit is fine.
func (f *Filter) Validate() error {
	var c checker
	if f.State != "" && !slices.Contains(States(), f.State) {
		c.add("enum", "state", whole,
			"Input should be 'scheduled', 'queued', 'leased', 'running', 'completed', 'failed', 'expired' or 'cancelled'")
	}
	c.id(f.Type, false, "type", whole)
	c.id(f.Tag, false, "tag", whole)
	if _, err := ParseCursor(f.After); err != nil {
		c.add("value_error", "after", whole, "Input should be the 'next' of an earlier page")
	}
	return c.err()
}

// ValidateReason checks why somebody cancels or revokes.
func ValidateReason(reason string) error {
	var c checker
	c.text(reason, "reason")
	return c.err()
}

// ValidateDays checks a number of days, of which there may be so many.
func ValidateDays(days, most int) error {
	var c checker
	between(&c, days, 1, most, "days")
	return c.err()
}

// ValidateType checks the name of a type; the empty one stands for all.
func ValidateType(jobType string) error {
	var c checker
	c.id(jobType, false, "type", whole)
	return c.err()
}

// TooLargeError says which specs of a list ask for more units than there are.
func TooLargeError(specs []int, total int) error {
	var c checker
	for _, i := range specs {
		c.job = i + 1
		between(&c, total+1, 1, total, "requested_units")
	}
	return c.err()
}
