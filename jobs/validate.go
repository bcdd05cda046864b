package jobs

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lokt-dev/lokt"
)

// checker collects what is wrong with a request.
type checker struct{ problems []Problem }

func (c *checker) add(kind string, loc []any, format string, args ...any) {
	c.problems = append(c.problems, Problem{Type: kind, Loc: loc, Msg: fmt.Sprintf(format, args...)})
}

// check returns the problems that were found as an error, or nil.
func check(look func(c *checker)) error {
	c := &checker{}
	if look(c); len(c.problems) == 0 {
		return nil
	}
	return &InvalidError{Problems: c.problems}
}

// At makes the location of a problem.
func At(loc ...any) []any { return loc }

// id checks an identifier: a line of text that every store and log can keep.
func (c *checker) id(s string, needed bool, loc []any) {
	switch {
	case s == "" && needed:
		c.add("string_too_short", loc, "String should have at least 1 character")
	case len(s) > MaxIDLen:
		c.add("string_too_long", loc, "String should have at most %d bytes", MaxIDLen)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f }):
		c.add("value_error", loc, "String should be UTF-8 without control characters")
	}
}

// text checks what people write.
func (c *checker) text(s string, loc []any) {
	switch {
	case len(s) > MaxTextLen:
		c.add("string_too_long", loc, "String should have at most %d bytes", MaxTextLen)
	case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
		c.add("value_error", loc, "String should be UTF-8 without NUL")
	}
}

// between checks a number; NaN is too small.
func between[T int | float64](c *checker, n, least, most T, loc []any) {
	switch {
	case n > most:
		c.add("less_than_equal", loc, "Input should be less than or equal to %v", most)
	case n < least, n != n:
		c.add("greater_than_equal", loc, "Input should be greater than or equal to %v", least)
	}
}

// wait checks for how long a request may be held, which is in milliseconds on the wire.
func (c *checker) wait(d time.Duration) {
	switch {
	case d < 0:
		c.add("greater_than_equal", At("wait_ms"), "Input should be greater than or equal to 0")
	case d > MaxWait:
		c.add("less_than_equal", At("wait_ms"), "Input should be less than or equal to %d", MaxWait.Milliseconds())
	}
}

func (c *checker) fraction(f *float64, loc []any) {
	if f != nil {
		between(c, *f, 0, 1, loc)
	}
}

func (c *checker) size(n, most int, loc []any) {
	if n > most {
		c.add("too_long", loc, "List should have at most %d items, not %d", most, n)
	}
}

// json checks a value that is kept as it is, within a record of the job; none is fine.
func (c *checker) json(v jsontext.Value, loc []any) {
	twice := jsontext.AllowDuplicateNames(true)
	const few = 9_000 // levels are nested at most in what is shorter than that; the JSON library stops at 10,000
	if v == nil || v.IsValid(twice) && (len(v) < few || slices.Concat(jsontext.Value("[[[["), v,
		jsontext.Value("]]]]")).IsValid(twice)) {
		return
	}
	c.add("json_invalid", loc, "Input should be one JSON value")
}

func (c *checker) ids(all []string, most int, name string, prefix []any) {
	c.size(len(all), most, append(prefix[:len(prefix):len(prefix)], name))
	for i, s := range all[:min(len(all), most)] {
		c.id(s, false, append(prefix[:len(prefix):len(prefix)], name, i))
	}
}

// Validate returns what is wrong with the spec for a service of so many units in total, as an *InvalidError with
// locations that begin with the given elements, or nil.
func (s *Spec) Validate(total int, prefix ...any) error {
	return check(func(c *checker) { c.spec(s, total, prefix) })
}

func (c *checker) spec(s *Spec, total int, prefix []any) {
	in := func(loc ...any) []any { return append(prefix[:len(prefix):len(prefix)], loc...) }
	c.id(s.Type, true, in("type"))
	if !slices.Contains(Priorities(), s.Priority) {
		c.add("enum", in("priority"), "Input should be 'high', 'normal', 'low' or 'background'")
	}
	between(c, s.Units, 1, total, in("requested_units"))
	if p := strings.TrimLeft(string(s.Payload[:min(len(s.Payload), 64)]), " \t\r\n"); !strings.HasPrefix(p, "{") {
		c.add("dict_type", in("payload"), "Input should be an object")
	} else {
		c.json(s.Payload, in("payload"))
	}
	c.id(s.IdempotencyKey, false, in("idempotency_key"))
	c.ids(s.Tags, MaxTags, "tags", prefix)
	if s.MaxRuntime < 0 {
		c.add("greater_than", in("max_runtime_s"), "Input should be greater than 0")
	}
	between(c, max(s.MaxRuntime.Seconds(), 0), 0, MaxDuration.Seconds(), in("max_runtime_s"))
	between(c, s.MaxAttempts, 1, MaxAttempts, in("max_attempts"))
	between(c, s.RetryBackoff.Seconds(), 0, MaxDuration.Seconds(), in("retry_backoff_s"))
	if y := s.RunAt.UTC().Year(); !s.RunAt.IsZero() && (y < 1 || y > 9999) {
		c.add("value_error", in("run_at"), "Year should be from 1 to 9999")
	}
	c.size(len(s.Locks), MaxLocks, in("locks"))
	seen := map[string]bool{}
	for i, name := range s.Locks[:min(len(s.Locks), MaxLocks)] {
		if lokt.ValidateName(name) != nil {
			c.add("value_error", in("locks", i),
				"Lock names are made of at most %d letters, digits and . _ -, without two dots in a row",
				lokt.MaxNameLen)
		} else if seen[name] {
			c.add("value_error", in("locks", i), "Each lock should be named once")
		}
		seen[name] = true
	}
}

// ValidateSubmit checks specs that were submitted together.
func ValidateSubmit(specs []Spec, total int) error {
	return check(func(c *checker) {
		switch {
		case len(specs) == 0:
			c.add("too_short", At("jobs"), "List should have at least 1 item")
		case len(specs) > MaxSubmit:
			c.size(len(specs), MaxSubmit, At("jobs"))
		default:
			for i := range specs {
				c.spec(&specs[i], total, At("jobs", i))
			}
		}
	})
}

// Validate returns what is wrong with the request as an *InvalidError, or nil.
func (a *Request) Validate() error {
	return check(func(c *checker) {
		c.id(a.WorkerID, true, At("worker_id"))
		if a.MaxUnits < 0 {
			c.add("greater_than_equal", At("max_units"), "Input should be greater than or equal to 1")
		}
		c.ids(a.Types, MaxTypes, "types", nil)
		c.ids(a.Capabilities, MaxTypes, "capabilities", nil)
		c.wait(a.Wait)
		c.id(a.RequestID, false, At("request_id"))
	})
}

// Validate returns what is wrong with the heartbeat as an *InvalidError, or nil. A lease ID that cannot be one is only
// unknown.
func (b *Heartbeat) Validate() error {
	return check(func(c *checker) {
		c.id(b.WorkerID, true, At("worker_id"))
		c.fraction(b.Progress, At("progress"))
		c.json(b.Checkpoint, At("checkpoint"))
		c.wait(b.Wait)
	})
}

// ValidateBatch checks heartbeats that were sent together.
func ValidateBatch(workerID string, leaseIDs []string) error {
	return check(func(c *checker) {
		c.id(workerID, true, At("worker_id"))
		if len(leaseIDs) == 0 {
			c.add("too_short", At("lease_ids"), "List should have at least 1 item")
		}
		c.size(len(leaseIDs), MaxHeartbeats, At("lease_ids"))
	})
}

// Validate returns what is wrong with the completion as an *InvalidError, or nil.
func (e *Completion) Validate() error {
	return check(func(c *checker) {
		c.id(e.WorkerID, true, At("worker_id"))
		if e.Status != Completed && e.Status != Failed {
			c.add("enum", At("status"), "Input should be 'completed' or 'failed'")
		}
		c.json(e.Result, At("result"))
		c.json(e.Error, At("error"))
	})
}

// Validate returns what is wrong with the report as an *InvalidError, or nil.
func (p *Progress) Validate() error {
	return check(func(c *checker) {
		c.id(p.WorkerID, true, At("worker_id"))
		c.fraction(p.Progress, At("progress"))
		c.json(p.Metrics, At("metrics"))
		if p.Message != nil {
			c.text(*p.Message, At("message"))
		}
	})
}

// Validate returns what is wrong with the filter as an *InvalidError, or nil. Any limit is fine.
func (f *Filter) Validate() error {
	return check(func(c *checker) {
		if f.State != "" && !slices.Contains(States(), f.State) {
			c.add("enum", At("state"),
				"Input should be 'queued', 'leased', 'running', 'completed', 'failed', 'expired' or 'cancelled'")
		}
		c.id(f.Type, false, At("type"))
		c.id(f.Tag, false, At("tag"))
		if _, err := ParseCursor(f.After); err != nil {
			c.add("value_error", At("after"), "Input should be the 'next' of an earlier page")
		}
	})
}

// ValidateReason checks why somebody cancels or revokes.
func ValidateReason(reason string) error {
	return check(func(c *checker) { c.text(reason, At("reason")) })
}

// ValidateDays checks how many days of history are asked for.
func ValidateDays(days int) error {
	return check(func(c *checker) { between(c, days, 1, MaxDays, At("days")) })
}

// ValidateType checks the name of a type; the empty one stands for all.
func ValidateType(jobType string) error {
	return check(func(c *checker) { c.id(jobType, false, At("type")) })
}

// ValidateAge checks how many days old what is to be forgotten is at least.
func ValidateAge(days int) error {
	return check(func(c *checker) { between(c, days, 1, math.MaxInt, At("days")) })
}

// TooLargeError says which specs of a list ask for more units than there are.
func TooLargeError(specs []int, total int) error {
	return check(func(c *checker) {
		for _, i := range specs {
			between(c, total+1, 1, total, At("jobs", i, "requested_units"))
		}
	})
}
