package audit

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseSince reads how far back to look: a duration before now ("90s", "15m", "1h30m", "7d", "2w", "1d12h"), a date
// ("2026-11-21", its beginning in now's time zone), a date and time there ("2026-11-21T14:00", seconds optional, a space will
// do for the T), or RFC 3339 with or without fractions of a second. A day is 24 hours.
func ParseSince(s string, now time.Time) (time.Time, error) {
	const want = `want a duration such as 15m, 2h or 7d, a date such as 2006-01-02, or a time such as 2006-01-02T15:04:05Z`
	switch {
	case strings.TrimSpace(s) == "":
		return time.Time{}, fmt.Errorf("time is empty: %s", want)
	case s[0] == '-':
		return time.Time{}, fmt.Errorf("time %q is negative: a duration counts back from now as it is", s)
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	for _, layout := range []string{
		"2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02 15:04:05",
	} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	if d, ok := parseDuration(s); ok {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("time %q is not understood: %s", s, want)
}

// parseDuration is time.ParseDuration that also knows weeks and days, which come first.
func parseDuration(s string) (time.Duration, bool) {
	var sum float64
	for _, unit := range []struct {
		sign string
		size time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		digits, after, ok := strings.Cut(s, unit.sign)
		if !ok {
			continue
		}
		if strings.Trim(digits, "0123456789.") != "" {
			return 0, false
		}
		n, err := strconv.ParseFloat(digits, 64)
		if err != nil {
			return 0, false
		}
		sum += n * float64(unit.size)
		if s = after; s == "" {
			return time.Duration(sum), sum < math.MaxInt64
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, false
	}
	sum += float64(d)
	if sum == float64(d) {
		return d, true
	}
	return time.Duration(sum), sum < math.MaxInt64
}
