package daemon

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lokt-dev/lokt/jobs"
)

func TestAgeOfTheQueueIsThatOfItsOldestJob(t *testing.T) {
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	q := newQueued()
	model := map[string]jobs.Job{} // what is queued
	most := 0
	for step := range 20_000 {
		now := base.Add(time.Duration(step) * time.Second)
		j := jobs.Job{ID: fmt.Sprint(rand.IntN(300)), State: jobs.Queued, ReadyAt: now}
		j.Priority = jobs.Priorities()[rand.IntN(4)]
		before, in := model[j.ID]
		switch {
		case !in:
			model[j.ID] = j
			q.follow(&jobs.Changes{Jobs: []jobs.JobChange{{Job: j}}})
		case rand.IntN(3) == 0:
			before.State = jobs.Leased
			delete(model, j.ID)
			q.follow(&jobs.Changes{Jobs: []jobs.JobChange{{Job: before}}})
		case rand.IntN(3) == 0:
			before.State = jobs.Cancelled
			delete(model, j.ID)
			q.follow(&jobs.Changes{Ended: []jobs.Job{before}})
		default: // changed, and still queued
			before.Cancel = true
			q.follow(&jobs.Changes{Jobs: []jobs.JobChange{{Job: before}}})
		}
		for _, l := range q.line {
			most = max(most, l.Len())
		}
		if step%500 != 0 {
			continue
		}
		for _, p := range jobs.Priorities() {
			want := time.Duration(0)
			for _, j := range model {
				if j.Priority == p {
					want = max(want, now.Sub(j.ReadyAt))
				}
			}
			if got := q.age(p, now); got != want {
				t.Fatalf("in step %d the oldest job of priority %s is %v old, not %v", step, p, got, want)
			}
		}
	}
	if most > 2*300+1000 {
		t.Errorf("of 300 jobs at most, %d were remembered", most)
	}
	q.reset([]jobs.Job{{ID: "x", State: jobs.Queued, ReadyAt: base, Spec: jobs.Spec{Priority: jobs.High}}, {ID: "y", State: jobs.Running}})
	if got := q.age(jobs.High, base.Add(time.Hour)); got != time.Hour {
		t.Errorf("after loading the oldest is %v old", got)
	}
	if got := q.age(jobs.High, base.Add(-time.Hour)); got != 0 {
		t.Errorf("a job of the future is %v old", got)
	}
}

func TestPasswordsAreTakenOutOfURLs(t *testing.T) {
	for url, want := range map[string]string{
		"memory:": "memory:", "sqlite:/a/b@c.db": "sqlite:/a/b@c.db",
		"postgres://u:p@h:1/d?password=p": "postgres://…@h:1/d", "postgres://h/d": "postgres://h/d", "etcd://u:p@ss@h1,h2/x": "etcd://…@h1,h2/x",
	} {
		if got := redact(url); got != want {
			t.Errorf("%s becomes %s, not %s", url, got, want)
		}
	}
}

func TestSizesHaveUnits(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "1024": 1024, "64K": 65536, "64KiB": 65536, "1M": 1 << 20, "2MB": 2 << 20, "3G": 3 << 30} {
		var c Config
		if err := size(func(c *Config) *int64 { return &c.MaxBody })(&c, text); err != nil || c.MaxBody != want {
			t.Errorf("%s is %d, %v", text, c.MaxBody, err)
		}
	}
	for _, text := range []string{"", "K", "-1", "1.5M", "1T", "99999999999G", "1e3"} {
		if err := size(func(c *Config) *int64 { return &c.MaxBody })(&Config{}, text); err == nil {
			t.Errorf("%q is a size", text)
		}
	}
}

func TestFewThingsASecondAreLetThrough(t *testing.T) {
	var f few
	now := time.Unix(1_700_000_000, 0)
	count := func() (n int) {
		for range 100 {
			if f.allow(now) {
				n++
			}
		}
		return n
	}
	if a, b := count(), count(); a != 10 || b != 0 {
		t.Errorf("%d, then %d", a, b)
	}
	now = now.Add(time.Second)
	if n := count(); n != 10 {
		t.Errorf("a second later %d", n)
	}
}
