package audit

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ParseSince reads how far back to look: a duration before now ("90s", "15m", "1h30m", "7d", "2w", "1d12h"), a date
// ("2026-11-21", its beginning in now's time zone), a date and time there ("2026-11-21T14:00", seconds optional, a
// space will do for the T), or RFC 3339 with or without fractions of a second. A day is 24 hours.
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

// days are weeks and days before what time.ParseDuration reads.
var days = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:([0-9.]+)w)?(?:([0-9.]+)d)?(.*)$`) })

// parseDuration is time.ParseDuration that also knows weeks and days, which come first.
func parseDuration(s string) (time.Duration, bool) {
	m := days().FindStringSubmatch(s)
	if m == nil || s == "" {
		return 0, false
	}
	sum := 0.0
	for i, unit := range []time.Duration{7 * 24 * time.Hour, 24 * time.Hour} {
		if m[i+1] == "" {
			continue
		}
		n, err := strconv.ParseFloat(m[i+1], 64)
		if err != nil {
			return 0, false
		}
		sum += n * float64(unit)
	}
	rest, err := time.ParseDuration(cmp.Or(m[3], "0"))
	if sum += float64(rest); err != nil || rest < 0 || sum >= math.MaxInt64 {
		return 0, false
	}
	return time.Duration(sum), true
}
