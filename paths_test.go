package lokt

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// of returns a claim of paths.
func of(who string, paths ...string) Claim {
	return Claim{Name: "paths", LeaseID: who + strings.Join(paths, ","), Owner: Owner{ID: who}, Paths: paths}
}

// taken returns a lock after these claims, which must be granted or queued as they say.
func taken(t *testing.T, claims ...Claim) Snapshot {
	t.Helper()
	s := Snapshot{Lock: Lock{Name: "paths"}, Now: noon}
	for _, c := range claims {
		d := acquire(s, c)
		if d.err != nil || (d.place != nil) != (c.Wait != 0) {
			t.Fatalf("%s: %v, queued: %v", c.LeaseID, d.err, d.place != nil)
		}
		s.Lock = d.Lock
	}
	return s
}

func queued(c Claim) Claim {
	c.Wait = -1
	return c
}

// Promise S-190.
func TestClaimsOfPathsExcludeEachOtherIfTheyHaveOneInCommon(t *testing.T) {
	s := taken(t, of("a", "src/auth/**"), of("b", "src/billing/**", "docs/*.md"), of("a", "src/auth/login.go"))
	for _, c := range []struct {
		claim Claim
		held  int // by how many
	}{
		{of("c", "src/ui/**"), 0},
		{of("c", "src/ui/**", "src/auth/x.go"), 1},
		{of("c", "**/*.go"), 3},
		{of("c", "docs/a/b.md"), 0},
		{of("b", "src/auth/**"), 2},
		{of("b", "docs/x.md"), 0},
		{Claim{Name: "paths", LeaseID: "all", Owner: Owner{ID: "c"}}, 3},
		{Claim{Name: "paths", LeaseID: "two", Owner: Owner{ID: "c"}, Limit: 2}, 3},
	} {
		var blocked *BlockedError
		err := s.WouldGrant(c.claim)
		if errors.As(err, &blocked); (err == nil) != (c.held == 0) || err != nil && len(blocked.Holders) != c.held {
			t.Errorf("%s is answered %v, and is to be held by %d", c.claim.LeaseID, err, c.held)
		}
	}
	shared := of("a", "src/**")
	shared.Limit = Shared
	s = taken(t, shared)
	other := of("b", "**/*.go")
	if s.WouldGrant(other) == nil {
		t.Error("what others share is granted to one alone")
	}
	if other.Limit = Shared; s.WouldGrant(other) != nil {
		t.Error("two that share do not")
	}
	one, two := of("b", "p"), of("c", "q")
	one.Limit, two.Limit = Shared, Shared
	s = taken(t, Claim{Name: "paths", LeaseID: "two", Owner: Owner{ID: "a"}, Limit: 2}, one)
	if s.WouldGrant(two) == nil {
		t.Error("a hold of everything for two is shared by three")
	}
	var blocked *BlockedError
	if err := s.WouldGrant(of("a", "q")); !errors.As(err, &blocked) || len(blocked.Holders) != 1 {
		t.Errorf("whom a hold of everything keeps out is told %v", err)
	}
	other.Limit = 2
	if err := other.Validate(); !errors.Is(err, ErrInvalid) {
		t.Errorf("a claim of paths for two is answered %v", err)
	}
	for _, bad := range []string{"", "/a", "a/../b", "a[", "**x", strings.Repeat("a", 2000)} {
		if err := of("a", "b", bad).Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("the pattern %.20q is answered %v", bad, err)
		}
	}
}

// Promises S-191, S-37.
func TestWhoWaitsForPathsLetsThoseInThatWantOthers(t *testing.T) {
	s := taken(t, of("a", "x/**"), queued(of("b", "x/1", "y/1")), of("c", "z"))
	if err := s.WouldGrant(of("c", "y/2")); err != nil {
		t.Errorf("who wants nothing of what is waited for is kept: %v", err)
	}
	var blocked *BlockedError
	if err := s.WouldGrant(of("c", "y/*")); !errors.As(err, &blocked) || len(blocked.Holders) != 0 || len(blocked.Ahead) != 1 {
		t.Errorf("who wants some of what is waited for is answered %v", err)
	}
	if err := s.WouldGrant(of("a", "y/1")); err != nil {
		t.Errorf("who is waited for waits: %v", err)
	}
	s = taken(t, of("a", "x"), of("b", "y"), queued(of("c", "x")), queued(of("d", "y")), queued(of("e", "x", "y")))
	d := release(s, Target{Name: "paths", Owner: Owner{ID: "b"}})
	if h, in := d.Lock.Holder("dy"); !in || len(d.Lock.Queue) != 2 || h.Pending.IsZero() {
		t.Errorf("after the release, %+v hold and %d wait", d.Lock.Holders, len(d.Lock.Queue))
	}
}

// Promises S-192, S-23.
func TestPatternsAreHadAllOrNone(t *testing.T) {
	s := taken(t, of("a", "x"))
	both := of("b", "x", "y")
	if d := acquire(s, both); d.err == nil || len(d.Lock.Holders) != 1 {
		t.Errorf("one of two is held, and %d hold", len(d.Lock.Holders))
	}
	again := of("a", "x")
	again.LeaseID, again.Refresh, again.TTL = "again", true, time.Hour
	if d := acquire(s, again); d.err != nil || len(d.Lock.Holders) != 1 || d.holder.LeaseID != "ax" || d.holder.TTL != time.Hour {
		t.Errorf("the same patterns again are answered %v, %+v", d.err, d.holder)
	}
	again.Paths = []string{"x", "z"}
	if d := acquire(s, again); d.err != nil || len(d.Lock.Holders) != 2 {
		t.Errorf("other patterns are answered %v, and %d hold", d.err, len(d.Lock.Holders))
	}
}

// Promise S-11.
func TestAHoldOfPathsIsTakenOverByWhoWantsThem(t *testing.T) {
	old := of("a", "x/**")
	old.TTL = time.Second
	s := taken(t, old)
	s.Now = noon.Add(time.Minute)
	takeover := func(e Event) bool { return e.Type == EventTakeover }
	if d := acquire(s, of("b", "y")); d.err != nil || slices.ContainsFunc(d.Events, takeover) {
		t.Errorf("who wants another path has taken over: %v, %+v", d.err, d.Events)
	}
	if d := acquire(s, of("b", "x/1")); d.err != nil || !slices.ContainsFunc(d.Events, takeover) {
		t.Errorf("who wants that path has not taken over: %v, %+v", d.err, d.Events)
	}
}

// Promise S-190.
func TestPatternsOfALockAreNotTooManyToCompare(t *testing.T) {
	s := Snapshot{Lock: Lock{Name: "paths"}, Now: noon}
	long := strings.Repeat("x", 500)
	granted := 0
	for i := range 100 {
		c := of("a", fmt.Sprintf("%03d%s", i, long), fmt.Sprintf("%03dy%s", i, long))
		if d := acquire(s, c); d.err == nil {
			s.Lock, granted = d.Lock, granted+1
		}
	}
	if granted != MaxPaths/1007 {
		t.Errorf("%d claims are granted", granted)
	}
	d := acquire(s, queued(of("b", "z"+long)))
	if d.err != nil || d.place == nil {
		t.Fatalf("there is no room to wait: %v", d.err)
	}
	for i := range 100 {
		if d = acquire(Snapshot{Lock: d.Lock, Now: noon}, queued(of("b", fmt.Sprintf("%03dw%s", i, long)))); d.err != nil {
			break
		}
	}
	full, newer := d, func(c Claim) Claim { c.Newest = true; return queued(c) }
	d = acquire(Snapshot{Lock: d.Lock, Now: noon}, newer(of("c", "z*")))
	if d.err != nil {
		t.Fatal(d.err)
	}
	d = acquire(Snapshot{Lock: d.Lock, Now: noon}, newer(of("d", "z*", long, "y"+long)))
	if w := d.Lock.Queue[len(d.Lock.Queue)-1]; !errors.Is(d.err, ErrFull) || w.Ousted != "" {
		t.Errorf("a claim is told %v, and for it %+v has been sent away", d.err, w)
	}
	if d = full; !errors.Is(d.err, ErrFull) {
		t.Errorf("a queue that is full answers %v", d.err)
	}
}

// Promise S-45.
func TestCirclesOfClaimsOfPathsAreFound(t *testing.T) {
	inside := func(c Claim, lease string) Claim {
		c.Within = []string{lease}
		return queued(c)
	}
	s := taken(t, of("a", "x/**"), of("b", "y/**"), inside(of("a", "y/1"), "ax/**"), inside(of("b", "x/1"), "by/**"))
	if victim, cycle, found := FindDeadlock([]Snapshot{s}); !found || len(cycle) != 5 || !slices.Contains([]string{"ay/1", "bx/1"}, victim.LeaseID) {
		t.Errorf("the circle is %v, %v", cycle, found)
	}
	s = taken(t, of("a", "x/**"), of("b", "y/1"), of("c", "z"), inside(of("a", "y/1"), "ax/**"), inside(of("b", "z"), "by/1"))
	if _, cycle, found := FindDeadlock([]Snapshot{s}); found {
		t.Errorf("who waits for nobody is in the circle %v", cycle)
	}
}
