package jobs_test

import (
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/lokt-dev/lokt/jobs"
)

// Promise S-231. A day that begins at one o'clock, because clocks are set forward at midnight, has ticks like any other; so
// has one of 24 hours and a half.
func TestDaysOnWhichClocksAreSetHaveTheirTicks(t *testing.T) {
	for _, c := range []struct{ cron, after, want string }{
		{"CRON_TZ=Africa/Cairo 0 5 * * fri", "2027-04-27T12:00:00Z", "2027-04-30T02:00:00Z"},
		{"CRON_TZ=Africa/Cairo 0 5 30 4 *", "2027-04-01T12:00:00Z", "2027-04-30T02:00:00Z"},
		{"CRON_TZ=Asia/Beirut 0 5 * * sun", "2027-03-24T12:00:00Z", "2027-03-28T02:00:00Z"},
		{"CRON_TZ=Asia/Beirut 30 * * * sun", "2027-03-27T12:00:00Z", "2027-03-27T22:30:00Z"},
		{"CRON_TZ=Africa/Cairo 30 0 * * fri", "2027-04-27T12:00:00Z", "2027-05-06T21:30:00Z"}, // there is none on the 30th
		{"CRON_TZ=America/Havana 0 5 * * sun", "2027-03-09T12:00:00Z", "2027-03-14T09:00:00Z"},
		{"CRON_TZ=Europe/Berlin 30 2 * * *", "2027-03-27T12:00:00Z", "2027-03-29T00:30:00Z"},      // nor here
		{"CRON_TZ=America/Santiago 30 2 * * sat", "2028-09-02T21:40:00Z", "2028-09-09T05:30:00Z"}, // and not on Sunday
		{"CRON_TZ=Australia/Lord_Howe 5 5 * * 0", "2024-04-05T05:24:00Z", "2024-04-06T18:35:00Z"},
		{"0 5 * * fri", "2027-04-27T12:00:00Z", "2027-04-30T05:00:00Z"},
		{"0 0 29 2 *", "2097-01-01T00:00:00Z", "2104-02-29T00:00:00Z"},
		{"CRON_TZ=Europe/Berlin 30 0 1 1 *", "2040-12-31T00:00:00Z", "2040-12-31T23:30:00Z"}, // a leap year has a day more
		{"CRON_TZ=Australia/Sydney 30 12 * * *", "2040-12-30T12:00:00Z", "2040-12-31T01:30:00Z"},
	} {
		at, err := jobs.ParseCron(c.cron)
		if err != nil {
			t.Fatal(err)
		}
		after, err := time.Parse(time.RFC3339, c.after)
		if err != nil {
			t.Fatal(err)
		}
		next := at.Next(after)
		if got := next.Format(time.RFC3339); got != c.want {
			t.Errorf("%s after %s is due %s, not %s", c.cron, c.after, got, c.want)
		}
		if got := at.Last(next, next.Add(30*time.Second)); !got.Equal(next) {
			t.Errorf("%s: the last tick after %v is %v", c.cron, next, got)
		}
	}
}

func TestAScheduleNamesItsZone(t *testing.T) {
	for _, text := range []string{"CRON_TZ= 30 4 * * *", "TZ= 30 4 * * *", "CRON_TZ=Local 30 4 * * *", "CRON_TZ=Europe/Berlin"} {
		if _, err := jobs.ParseCron(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
