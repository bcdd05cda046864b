package history

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/internal/audit"
	"github.com/lokt-dev/lokt/store/memstore"
)

// client makes claims of every kind until it has made n, gives most back, and leaves the rest to time.
func client(ctx context.Context, s lokt.Service, rng *rand.Rand, n int) {
	for range n {
		name := []string{"a", "b"}[rng.IntN(2)]
		c := lokt.Claim{
			Name: name, LeaseID: lokt.NewLeaseID(), TTL: time.Duration(100+rng.IntN(400)) * time.Millisecond, Strict: rng.IntN(2) == 0,
			Owner: lokt.Owner{ID: []string{"ann", "bob", "cyd"}[rng.IntN(3)], Host: "h", Session: fmt.Sprint(rng.IntN(2)), AnySession: rng.IntN(4) == 0},
			Limit: []int{0, 0, 2, 3, lokt.Shared}[rng.IntN(5)], Priority: rng.IntN(3) / 2, Wait: []time.Duration{0, time.Second, -1}[rng.IntN(3)],
		}
		switch rng.IntN(6) {
		case 0:
			if c.Limit == 2 || c.Limit == 3 {
				c.Limit = 0
			}
			c.Paths = [][]string{{"x/**"}, {"x/y", "z"}, {"z"}}[rng.IntN(3)]
		case 1:
			c.Limit, c.Weight = lokt.Shared, lokt.Weight{Takes: int64(1 + rng.IntN(3)), Of: 4}
		case 2:
			c.Newest = true
		case 3:
			c.Preempt = 50 * time.Millisecond
		case 4:
			c.Refresh = !c.Strict
		}
		wait, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(700))*time.Millisecond)
		h, err := s.Acquire(wait, c)
		cancel()
		if err == nil {
			time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
			switch rng.IntN(8) {
			case 0: // it is left to time
			case 1:
				_, _ = s.Renew(ctx, lokt.Renewal{Name: name, LeaseID: h.LeaseID})
			case 2:
				_, _ = s.Tell(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: h.Owner}, lokt.Message{Pass: &lokt.Claim{Owner: lokt.Owner{ID: "ann", Host: "h"}, TTL: time.Second}})
			case 3:
				_, _ = s.Release(ctx, lokt.Target{Name: name, Owner: h.Owner, Force: true})
			default:
				_, _ = s.Release(ctx, lokt.Target{Name: name, LeaseID: h.LeaseID, Owner: h.Owner})
			}
		}
		if rng.IntN(40) == 0 {
			_, _ = s.Freeze(ctx, name, lokt.Freeze{Owner: c.Owner, TTL: 50 * time.Millisecond})
		}
	}
}

// contend returns what happened while clients contended for two locks.
func contend(t *testing.T, store lokt.Store, seed uint64, clients, n int) []audit.Entry {
	t.Helper()
	m := lokt.NewManager(store)
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() { client(context.WithoutCancel(t.Context()), m, rand.New(rand.NewPCG(seed, uint64(i))), n) })
	}
	all.Wait()
	var entries []audit.Entry
	for after := uint64(0); ; {
		page, err := store.(lokt.EventLog).ReadEvents(context.WithoutCancel(t.Context()), lokt.EventQuery{After: after})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			after = e.Seq
			entries = append(entries, audit.FromEvent(e.Event))
		}
		if !page.More {
			return entries
		}
	}
}

func judge(entries []audit.Entry) *Judge {
	j := &Judge{}
	for _, e := range entries {
		j.Take(e)
	}
	return j
}

// right fails the test if anything is found.
func right(t *testing.T, entries []audit.Entry) *Judge {
	t.Helper()
	j := judge(entries)
	for _, f := range j.Findings {
		first, _ := json.Marshal(f.First)
		second, _ := json.Marshal(f.Second)
		t.Errorf("%s:\n%s\n%s", f.Broken, first, second)
	}
	if j.Grants < 10 {
		t.Errorf("there are %d grants", j.Grants)
	}
	return j
}

// bubble returns the history of a bubble, in which clocks cost nothing.
func bubble(t *testing.T, seed uint64) (entries []audit.Entry) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.NewWith(memstore.Options{Keep: 100_000})
		entries = contend(t, store, seed, 6, 40)
		_ = store.Close()
	})
	return entries
}

// Promise S-227.
func TestWhatReallyHappenedIsRight(t *testing.T) {
	for seed := range uint64(30) {
		entries := bubble(t, seed)
		if j := right(t, entries); j.Unknown > j.Grants*2/3 {
			t.Errorf("of %d grants %d could not be judged", j.Grants, j.Unknown)
		}
		redact := Redactor()
		hidden := make([]audit.Entry, len(entries))
		for i, e := range entries {
			hidden[i] = redact(e)
		}
		right(t, hidden)
		for _, f := range judge(entries[len(entries)/2:]).Findings { // what came before is not known, so neither is who was passed a hold
			if f.Broken != "order" {
				t.Errorf("in the second half: %+v", f)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// event makes one.
func event(t lokt.EventType, second int, lease string, token uint64, extra ...string) audit.Entry {
	e := audit.Entry{TS: time.Date(2026, 1, 1, 0, 0, second, 0, time.UTC), Event: string(t), Name: "x", LockID: lease, Owner: "o-" + lease, Host: "h", Extra: map[string]any{}}
	if token > 0 {
		e.Extra[audit.ExtraToken] = token
	}
	for pair := range slices.Chunk(extra, 2) {
		e.Extra[pair[0]] = pair[1]
	}
	return e
}

// Promise S-227.
func TestWhatCannotBeRightIsFoundWithBothEvents(t *testing.T) {
	const acquire, release, wait = lokt.EventAcquire, lokt.EventRelease, lokt.EventWait
	started := []string{lokt.ExtraOutcome, "started"}
	terms := func(limit int, strict bool, priority, takes, of int) []string {
		return []string{lokt.ExtraTerms, fmt.Sprintf(lokt.TermsForm, limit, strict, priority, takes, of, false)}
	}
	same := event(acquire, 1, "b", 2, terms(1, true, 0, 0, 0)...)
	same.Owner = "o-a"
	passed := event(acquire, 2, "c", 2)
	passed.Host = ""
	address := passed
	address.Owner = "c@h"
	for what, c := range map[string]struct {
		events []audit.Entry
		broken string
		first  int
		second int
	}{
		"a second holder":           {[]audit.Entry{event(acquire, 0, "a", 1), event(acquire, 1, "b", 2)}, "exclusion", 0, 1},
		"one after the other":       {events: []audit.Entry{event(acquire, 0, "a", 1), event(release, 1, "a", 1), event(acquire, 1, "b", 2)}},
		"two of two":                {events: []audit.Entry{event(acquire, 0, "a", 1, terms(2, true, 0, 0, 0)...), event(acquire, 1, "b", 2, terms(2, true, 0, 0, 0)...)}},
		"two guards of one":         {[]audit.Entry{event(acquire, 0, "a", 1, terms(1, true, 0, 0, 0)...), same}, "exclusion", 0, 1},
		"terms that no claim has":   {events: []audit.Entry{event(acquire, 0, "a", 1, terms(-1, false, 0, 5, 2)...)}},
		"too heavy":                 {[]audit.Entry{event(acquire, 0, "a", 1, terms(9, true, 0, 3, 4)...), event(acquire, 1, "b", 2, terms(9, true, 0, 2, 4)...)}, "exclusion", 0, 1},
		"paths apart":               {events: []audit.Entry{event(acquire, 0, "a", 1, "paths", "x/**"), event(acquire, 1, "b", 2, "paths", "y")}},
		"paths in common":           {[]audit.Entry{event(acquire, 0, "a", 1, "paths", "x/**"), event(acquire, 1, "b", 2, "paths", "x/y")}, "exclusion", 0, 1},
		"a token that falls":        {[]audit.Entry{event(acquire, 0, "a", 5), event(release, 1, "a", 5), event(acquire, 2, "b", 5)}, "token", 0, 2},
		"a grant while frozen":      {[]audit.Entry{event(lokt.EventFreeze, 0, "f", 0), event(acquire, 1, "a", 1)}, "freeze", 0, 1},
		"renewed after its end":     {[]audit.Entry{event(acquire, 0, "a", 1), event(release, 1, "a", 1), event(lokt.EventRenew, 2, "a", 1)}, "exclusion", 1, 2},
		"before whose turn it was":  {[]audit.Entry{event(acquire, 0, "a", 1), event(wait, 1, "b", 0, started...), event(release, 2, "a", 1), event(acquire, 3, "c", 2)}, "order", 1, 3},
		"past who was away":         {events: []audit.Entry{event(acquire, 0, "a", 1), event(wait, 1, "b", 0, started...), event(release, 2, "a", 1), event(acquire, 3, "c", 2, lokt.ExtraPassed, lokt.PublicID("b"))}},
		"past who came to nothing":  {events: []audit.Entry{event(acquire, 0, "a", 1), event(wait, 1, "b", 0, started...), event(wait, 2, "b", 0, lokt.ExtraOutcome, "timeout"), event(release, 3, "a", 1), event(acquire, 4, "c", 2)}},
		"in the place of a ticket":  {events: []audit.Entry{event(wait, 0, "b", 0, started...), event(wait, 1, "b", 0, lokt.ExtraOutcome, "cancelled"), event(wait, 2, "c", 0, started...), event(acquire, 3, "b", 1)}},
		"passed on to who has it":   {events: []audit.Entry{event(acquire, 0, "a", 1), event(wait, 1, "b", 0, started...), event(lokt.EventPass, 2, "a", 1, lokt.ExtraTo, "o-c"), event(release, 2, "a", 1), passed}},
		"passed on to an address":   {events: []audit.Entry{event(acquire, 0, "a", 1), event(wait, 1, "b", 0, started...), event(lokt.EventPass, 2, "a", 1, lokt.ExtraTo, "c@h"), event(release, 2, "a", 1), address}},
		"by priority":               {events: []audit.Entry{event(acquire, 0, "a", 1), event(wait, 1, "b", 0, started...), event(wait, 2, "c", 0, append(started, terms(1, false, 1, 0, 0)...)...), event(release, 3, "a", 1), event(acquire, 4, "c", 2, terms(1, false, 1, 0, 0)...)}},
		"who came before the first": {events: []audit.Entry{event(wait, 1, "b", 0, started...), event(acquire, 3, "c", 2), event(wait, 3, "c", 2, lokt.ExtraOutcome, "granted", lokt.ExtraWaited, "9000")}},
	} {
		t.Run(what, func(t *testing.T) {
			for _, seen := range []func(audit.Entry) audit.Entry{func(e audit.Entry) audit.Entry { return e }, Redactor("paths")} {
				var events []audit.Entry
				for _, e := range c.events {
					events = append(events, seen(e))
				}
				j := judge(events)
				if (c.broken == "") != (len(j.Findings) == 0) {
					t.Fatalf("found %+v", j.Findings)
				}
				if c.broken != "" && (j.Findings[0].Broken != c.broken || !j.Findings[0].First.TS.Equal(events[c.first].TS) || !j.Findings[0].Second.TS.Equal(events[c.second].TS)) {
					t.Errorf("found %+v", j.Findings)
				}
			}
		})
	}
}

// A hold whose end is missing shows, wherever it was.
func TestAnEndThatIsMissingIsFound(t *testing.T) {
	entries := bubble(t, 100)
	found := 0
	for i, e := range entries {
		ends := slices.Contains([]string{"release", "auto-prune", "force-break"}, e.Event)
		if ends && len(judge(slices.Delete(slices.Clone(entries), i, i+1)).Findings) > 0 {
			found++
		}
	}
	if found < 20 {
		t.Errorf("only %d of the ends that are missing are found", found)
	}
}

// Promise S-227.
func TestABundleTellsNothingOfWhoAndWhere(t *testing.T) {
	e := audit.Entry{TS: time.Now(), Event: "acquire", Name: "secret-name", LockID: "secret-lease", Owner: "secret-owner", Host: "secret-host", PID: 4242, AgentID: "secret-agent", Extra: map[string]any{
		"token": audit.Number("777"), "paths": "secret/**", "by": "secret-owner@secret-host", "to": "secret-owner@secret-host", "displaced": "secret-owner@secret-host", "text": "secret",
		"reason": "gone: now held by secret-owner", "lease_was": "secret-lease", "passed": "L-secret", "holder": "secret-owner", "freeze_reason": "secret", "else": "secret",
	}}
	one, other := Redactor(), Redactor()
	text := func(e audit.Entry) string {
		b, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	got := text(one(e))
	for _, secret := range []string{"secret", ":4242", ":777", strconv.Itoa(e.TS.Year()) + "-", lokt.PublicID("secret-lease")} {
		if strings.Contains(got, secret) {
			t.Errorf("%q is in %s", secret, got)
		}
	}
	if again := one(e); again.Owner == "" || again.Owner != one(e).Owner || other(e).Owner == again.Owner || again.LockID != again.Extra["lease_was"] {
		t.Errorf("it is %+v, and of another key %+v", again, other(e))
	}
	if kept := text(Redactor("names", "times", "tokens", "paths")(e)); !strings.Contains(kept, "secret-name") || !strings.Contains(kept, ":777") ||
		!strings.Contains(kept, "secret/**") || !strings.Contains(kept, fmt.Sprint(e.TS.Year())) || strings.Contains(kept, "secret-owner") {
		t.Errorf("what is to be kept is not: %s", kept)
	}
}
