package jobs

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// Cron is when a schedule is due. The zero Cron is not to be used: see ParseCron.
type Cron struct {
	at   cron.Schedule // as if all days had 24 hours
	zone *time.Location
}

// ParseCron reads the five fields of cron, or "@hourly", "@every 90s" and the like. They are in UTC, unless a time zone stands
// before them, as in "CRON_TZ=Europe/Berlin 30 4 * * *". The error says what to write.
func ParseCron(text string) (Cron, error) {
	zone, rest, _ := strings.Cut(text, " ")
	if strings.Contains(zone, "TZ=") && (rest == "" || strings.HasSuffix(zone, "=Local") || strings.HasSuffix(zone, "=")) { // the parser panics, or takes it for UTC
		return Cron{}, cronError(errors.New("the time zone should have a name, and fields should follow"))
	}
	at, err := cron.ParseStandard(text)
	in := time.UTC
	switch s := at.(type) {
	case *cron.SpecSchedule:
		if s.Minute == 0 || s.Hour == 0 || s.Dom == 0 || s.Month == 0 || s.Dow == 0 || s.Next(time.Unix(0, 0)).IsZero() {
			err = errors.New("there is no such day, or no number in one of the fields")
		} else if s.Location != time.Local { // which stands for none
			in = s.Location
		}
		s.Location = time.UTC
	case cron.ConstantDelaySchedule:
		_, every, _ := strings.Cut(text, "@every ")
		if d, _ := time.ParseDuration(every); d != s.Delay || d > MaxDuration { // the parser rounds it
			err = fmt.Errorf("@every should have whole seconds, at least 1s and at most %v", MaxDuration)
		}
	}
	if err != nil {
		return Cron{}, cronError(err)
	}
	return Cron{at, in}, nil
}

func cronError(err error) error {
	return fmt.Errorf(`input should be five fields such as "30 4 * * 1-5" (minute, hour, day of month, month, day of week from 0, Sunday, to 6), or "@hourly", "@daily", `+
		`"@weekly", "@monthly", "@yearly", "@every 90s", and begin with "CRON_TZ=Europe/Berlin " if that is not in UTC: %w`, err)
}

// Next returns the first tick after a time; of "@every" that is so much later, in whole seconds.
func (c Cron) Next(after time.Time) time.Time {
	if every, ok := c.at.(cron.ConstantDelaySchedule); ok {
		return after.Add(every.Delay).Round(time.Second)
	}
	for from := after; ; { // one stretch after the other in which no clock is set: the parser does not know what to do when one is
		_, offset := from.In(c.zone).Zone()
		_, end := from.In(c.zone).ZoneBounds()
		if !end.IsZero() && !end.After(from) { // on the last day of a leap year it is said to be over when that day begins
			end = from.AddDate(0, 0, 1)
		}
		next := c.at.Next(after.UTC().Add(time.Duration(offset) * time.Second))
		tick := next.Add(-time.Duration(offset) * time.Second)
		switch {
		case !next.IsZero() && (end.IsZero() || tick.Before(end)):
			return tick
		case end.IsZero(): // the parser looks five years ahead, and leap days can be eight apart
			after = after.AddDate(4, 0, 0)
		default:
			after, from = end.Add(-time.Second), end
		}
	}
}

// Last returns the last tick until now, of those from a tick on that is not after now.
func (c Cron) Last(tick, now time.Time) time.Time {
	if every, ok := c.at.(cron.ConstantDelaySchedule); ok {
		return tick.Add(now.Sub(tick).Truncate(every.Delay))
	}
	n := sort.Search(int(now.Sub(tick)/time.Second), func(n int) bool { // the first second after which nothing comes until now
		return c.Next(tick.Add(time.Duration(n) * time.Second)).After(now)
	})
	return tick.Add(time.Duration(n) * time.Second)
}

// Ticks are what the rules keep of a schedule, and of the jobs that it submits, its runs. What is submitted may say only what it
// is for, as a run does that is submitted again.
type Ticks struct {
	Schedule string    `json:"schedule_id,omitzero"` // of a run: the job whose Cron it was submitted by
	Tick     time.Time `json:"tick,omitzero"`        // of a run: what it is for

	Next    time.Time `json:"next_tick,omitzero"`     // of a schedule
	Last    time.Time `json:"last_tick,omitzero"`     // of a schedule: that of its last run; zero before the first
	LastRun string    `json:"last_run_id,omitzero"`   // of a schedule: the job; empty before the first
	Skipped int       `json:"skipped_ticks,omitzero"` // of a schedule: how many have come since, but the last run had not ended
}
