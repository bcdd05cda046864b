package audit

import (
	"testing"
	"time"
)

func TestParseSinceReadsDurationsDatesAndTimes(t *testing.T) {
	zone := time.FixedZone("CET", 3600)
	now := noon.In(zone)
	day := 24 * time.Hour
	for s, want := range map[string]time.Time{
		"15m":                       noon.Add(-15 * time.Minute),
		"2h":                        noon.Add(-2 * time.Hour),
		"1h30m":                     noon.Add(-90 * time.Minute),
		"1.5h":                      noon.Add(-90 * time.Minute),
		"0s":                        noon,
		"0":                         noon,
		"500ms":                     noon.Add(-500 * time.Millisecond),
		"7d":                        noon.Add(-7 * day),
		"0.5d":                      noon.Add(-day / 2),
		"2w":                        noon.Add(-14 * day),
		"1w1d1h":                    noon.Add(-8*day - time.Hour),
		"1d12h":                     noon.Add(-day - 12*time.Hour),
		"1h1d":                      noon.Add(-day - time.Hour),
		"2026-11-21":                time.Date(2026, 11, 21, 0, 0, 0, 0, zone),
		"2026-11-21T10:00":          time.Date(2026, 11, 21, 10, 0, 0, 0, zone),
		"2026-11-21 10:00:05":       time.Date(2026, 11, 21, 10, 0, 5, 0, zone),
		"2026-11-21T10:00:05.25":    time.Date(2026, 11, 21, 10, 0, 5, 250e6, zone),
		"2026-11-21T10:00:00Z":      noon.Add(-2 * time.Hour),
		"2026-11-21T10:00:00.5Z":    noon.Add(-2*time.Hour + time.Second/2),
		"2026-11-21T10:00:00+02:00": noon.Add(-4 * time.Hour),
	} {
		if got, err := ParseSince(s, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
}

func TestParseSinceRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, s := range []string{
		"", " ", "-1h", "-2d", "1d-2h", "--1h", "15", "yesterday", "d", "infd", "NaNd", "1e3d", "0x1d", "1..5d",
		"999999999d", "99999999999999h", "106751d24h", "2026-13-01", "2026-02-30", "2026-11-21T25:00:00Z", "10:00", "1 h",
	} {
		if got, err := ParseSince(s, noon); err == nil {
			t.Errorf("%q is read as %v", s, got)
		}
	}
}
