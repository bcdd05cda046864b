package audit

import (
	"fmt"
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
	if d, err := parseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("time %q is not understood: %s", s, want)
}

// days are weeks and days, which time.ParseDuration does not know.
var days = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[0-9.]+[wd]`) })

func parseDuration(s string) (time.Duration, error) {
	return time.ParseDuration(days().ReplaceAllStringFunc(s, func(part string) string {
		number, weeks := strings.CutSuffix(part, "w")
		n, err := strconv.ParseFloat(strings.TrimSuffix(number, "d"), 64)
		if err != nil {
			return part
		}
		if weeks {
			n *= 7
		}
		return strconv.FormatFloat(24*n, 'f', -1, 64) + "h"
	}))
}
