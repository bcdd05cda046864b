package lokt

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

// table describes locks by a few words each, at noon: "name: holder holder | waiter waiter". A holder is OWNER=LEASE, a
// waiter OWNER(LEASES IT CANNOT END)@SECOND OF ITS ARRIVAL. A waiter's lease ID is its owner and the lock's name. Before
// the @, "*2" is the limit (1 if it says nothing) and "!" makes it strict; "~" at the end makes it stale.
func table(t *testing.T, lines ...string) []Snapshot {
	t.Helper()
	var locks []Snapshot
	for _, line := range lines {
		name, rest, _ := strings.Cut(line, ":")
		holders, queue, _ := strings.Cut(rest, "|")
		s := Snapshot{Lock: Lock{Name: name}, Now: noon, Dead: map[string]bool{}}
		claim := func(word string) (Claim, string) {
			c := Claim{Name: name, Limit: 1}
			word, c.Strict = strings.CutSuffix(word, "!")
			if w, n, ok := strings.Cut(word, "*"); ok {
				word = w
				if _, err := fmt.Sscan(n, &c.Limit); err != nil {
					t.Fatal(err)
				}
			}
			return c, word
		}
		for _, word := range strings.Fields(holders) {
			word, stale := strings.CutSuffix(word, "~")
			c, word := claim(word)
			c.Owner.ID, c.LeaseID, _ = strings.Cut(word, "=")
			h := Holder{Claim: c, Token: 1}
			if stale {
				h.ExpiresAt = noon.Add(-1)
			}
			s.Lock.Holders = append(s.Lock.Holders, h)
		}
		for _, word := range strings.Fields(queue) {
			word, at, _ := strings.Cut(word, "@")
			at, gone := strings.CutSuffix(at, "~")
			c, word := claim(word)
			second := 0
			if _, err := fmt.Sscan(at, &second); err != nil {
				t.Fatal(err)
			}
			who, within, _ := strings.Cut(strings.TrimSuffix(word, ")"), "(")
			c.Owner.ID, c.LeaseID = who, who+name
			if within != "" {
				c.Within = strings.Split(within, ",")
			}
			if gone {
				s.Dead[c.LeaseID] = true
			}
			s.Lock.Queue = append(s.Lock.Queue, &Waiter{
				Claim: c, Since: noon.Add(time.Duration(second-60) * time.Second), Until: noon.Add(time.Minute),
			})
		}
		locks = append(locks, s)
	}
	return locks
}

func TestCirclesAreFound(t *testing.T) {
	for _, c := range []struct {
		name   string
		locks  []string
		victim string // empty if there is no circle
		cycle  string
	}{
		{"nothing at all", nil, "", ""},
		{"a queue", []string{"x: a=1 | b@1 c@2"}, "", ""},
		{"each waits for the other", []string{"x: a=1 | b(2)@5", "y: b=2 | a(1)@3"}, "bx", "b x a y b"},
		{"the one who came last gives way", []string{"x: a=1 | b(2)@3", "y: b=2 | a(1)@5"}, "ay", "a y b x a"},
		{"a job gives way, whoever came last", []string{"x: job:a=1 | b(2)@5", "y: b=2 | job:a(1)@3"}, "job:ay", "job:a y b x job:a"},
		{"of two who came at once, the greater lease", []string{"x: a=1 | b(2)@3", "y: b=2 | a(1)@3"}, "bx", "b x a y b"},
		{"three in a ring", []string{"x: a=1 | c(3)@1", "y: b=2 | a(1)@2", "z: c=3 | b(2)@3"}, "bz", "b z c x a y b"},
		{"converging waits", []string{"x: a=1 | b(2)@1", "y: a=4 | c(3)@2", "z: b=2 c=3 | d(9)@3"}, "", ""},
		{"a diamond", []string{"x: a=1 | b(2)@1 c(3)@2", "y: b=2 | d(4)@3", "z: c=3 | e(4)@4"}, "", ""},
		{"a chain", []string{"x: a=1 | b(2)@1", "y: b=2 | c(3)@2", "z: c=3 | d(4)@3"}, "", ""},
		{"who waits for a circle is no part of it", []string{"x: a=1 | b(2)@5 d(9)@8", "y: b=2 | a(1)@3", "z: d=9 | e(7)@9"}, "bx", "b x a y b"},
		{"a holder that may still let go", []string{"x: a=1 | b(2)@5", "y: b=2 | a@3"}, "", ""},
		{"a hold that has expired", []string{"x: a=1~ | b(2)@5", "y: b=2 | a(1)@3"}, "", ""},
		{"a waiter that is gone", []string{"x: a=1 | b(2)@5", "y: b=2 | a(1)@3~"}, "", ""},
		{"through the queue", []string{"x: a=1 | b@1 c(3)@2", "y: c=3 | a(1)@3"}, "ay", "a y c x a"},
		{"only through the queue", []string{"x: a=1*9 | b@1 c(3)*9@2", "y: c=3 | a(1)@3"}, "ay", "a y c x b x a"},
		{"a bystander ahead does not give way", []string{"x: a=1 | c(3)@2 b@9", "y: c=3 | a(1)@1"}, "cx", "c x a y c"},
		{"nor one that came last and is in the circle, but keeps nobody", []string{"x: a=1*9 | b@9 c(3)*9@2", "y: c=3 | a(1)@1"}, "cx", "c x b x a y c"},
		{"past the queue, by re-entry", []string{"x: a=1*9 | b@1 a(3)*9@2", "y: a=3 | c@3"}, "", ""},
		{"inside itself", []string{"x: a=1! | a(1)!@1"}, "ax", "a x a"},
		{"inside itself, but not strictly", []string{"x: a=1! | b@1 a(1)@2"}, "", ""},
		{"two upgrades", []string{"x: a=1*9 b=2*9 | a(1)@1 b(2)@2"}, "bx", "b x a x b"},
		{"one upgrade", []string{"x: a=1*9 b=2*9 | a(1)@1"}, "", ""},
		{"a slot may come free", []string{"x: a=1*2 c=3*2 | b(2)*2@5", "y: b=2 | a(1)@3"}, "", ""},
		{"no slot can come free", []string{"x: a=1*2 c=3*2 | b(2)*2@5", "y: b=2 | a(1)@3 c(3)@4"}, "bx", "b x a y b"},
		{"a writer needs every reader to go", []string{"x: a=1*9 c=3*9 | b(2)@5", "y: b=2 | a(1)*9@3"}, "bx", "b x a y b"},
		{"two who claim inside one lease", []string{"x: a=1 | b(2)@5", "y: b=2 | z(1)@3", "z: q=7 | y(1)@4"}, "bx", "b x z y b"},
		{"two circles, the later one", []string{"p: a=1 | b(2)@1", "q: b=2 | a(1)@2", "r: c=3 | d(4)@3", "s: d=4 | c(3)@4"}, "cs", "c s d r c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			locks := table(t, c.locks...)
			for range 5 {
				rand.Shuffle(len(locks), func(i, j int) { locks[i], locks[j] = locks[j], locks[i] })
				victim, cycle, found := FindDeadlock(locks)
				if found != (c.victim != "") || victim.LeaseID != c.victim || strings.Join(cycle, " ") != c.cycle {
					t.Fatalf("found %v: %s, %v", found, victim.LeaseID, cycle)
				}
			}
		})
	}
}

func TestLongQueueBehindACircleIsNoPartOfIt(t *testing.T) {
	const n = 20_000
	ring := table(t, "x: a=1 | b(2)@1", "y: b=2 | a(1)@2")
	for i := range n {
		w := Waiter{Claim: Claim{Name: "x", LeaseID: fmt.Sprint(i), Owner: Owner{ID: fmt.Sprint(i)}, Within: []string{fmt.Sprint("lease-", i)}}, Since: noon, Until: noon}
		ring[0].Lock.Queue = append(ring[0].Lock.Queue, &w)
	}
	victim, _, found := FindDeadlock(ring)
	if !found || victim.LeaseID != "ay" {
		t.Errorf("found %v: %s", found, victim.LeaseID)
	}
}

// web is a random set of locks in which claims may only wait for what has a higher number.
func web(t *rapid.T) []Snapshot {
	n := rapid.IntRange(2, 8).Draw(t, "locks")
	owners := rapid.IntRange(2, 8).Draw(t, "owners")
	locks := make([]Snapshot, n)
	held := make([][]string, owners) // leases that each owner has
	top := make([]int, owners)       // the highest lock of each owner, from 1
	number := 0
	for i := range locks {
		locks[i] = Snapshot{Lock: Lock{Name: fmt.Sprintf("lock-%d", i)}, Now: noon}
		for who := range owners {
			if rapid.IntRange(0, 2).Draw(t, "holds") > 0 {
				continue
			}
			c := Claim{Name: locks[i].Lock.Name, LeaseID: fmt.Sprintf("hold-%d-%d", i, who), Owner: Owner{ID: fmt.Sprint(who)}}
			c.Limit = rapid.SampledFrom([]int{1, 2, 3, Shared}).Draw(t, "limit")
			c.Strict = rapid.Bool().Draw(t, "strict")
			if locks[i].Lock.admits(&c) {
				locks[i].Lock.Holders = append(locks[i].Lock.Holders, Holder{Claim: c})
				held[who] = append(held[who], c.LeaseID)
				top[who] = i + 1
			}
		}
	}
	for who := range owners { // an owner waits for at most one lock, above all that it holds
		if top[who] >= n || rapid.IntRange(0, 3).Draw(t, "idle") == 0 {
			continue
		}
		l := &locks[rapid.IntRange(top[who], n-1).Draw(t, "wants")].Lock
		number++
		l.enqueue(&Waiter{
			Claim: Claim{
				Name: l.Name, LeaseID: fmt.Sprintf("wait-%d", number), Owner: Owner{ID: fmt.Sprint(who)}, Within: held[who],
				Limit: rapid.SampledFrom([]int{1, 2, 3, Shared}).Draw(t, "limit"), Priority: rapid.IntRange(0, 1).Draw(t, "priority"),
			},
			Since: noon.Add(time.Duration(number/2) * time.Second), Until: noon.Add(time.Hour),
		})
	}
	return locks
}

// Promise S-44.
func TestClaimsInAGivenOrderNeverMakeACircle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		if victim, cycle, found := FindDeadlock(web(t)); found {
			t.Fatalf("victim %s of %v", victim.LeaseID, cycle)
		}
	})
}

func TestPlantedCircleIsFoundWhoeverLooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		locks := web(t)
		size := rapid.IntRange(2, 5).Draw(t, "circle")
		members := map[string]bool{}
		for i := range size { // planted-i is held by ring-i and wanted by ring-(i-1)
			name, next := fmt.Sprintf("planted-%d", i), (i+size-1)%size
			id := fmt.Sprintf("ring-wait-%d", next)
			members[id] = true
			locks = append(locks, Snapshot{Now: noon, Lock: Lock{
				Name:    name,
				Holders: []Holder{{Claim: Claim{Name: name, LeaseID: fmt.Sprintf("ring-%d", i), Owner: Owner{ID: fmt.Sprintf("ring-%d", i)}}}},
				Queue: []*Waiter{{
					Claim: Claim{Name: name, LeaseID: id, Owner: Owner{ID: fmt.Sprintf("ring-%d", next)}, Within: []string{fmt.Sprintf("ring-%d", next)}},
					Since: noon.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "since")) * time.Second), Until: noon.Add(time.Hour),
				}},
			}})
		}
		last := &Waiter{}
		for _, s := range locks {
			for _, w := range s.Lock.Queue {
				if members[w.LeaseID] && (w.Since.After(last.Since) || w.Since.Equal(last.Since) && w.LeaseID > last.LeaseID) {
					last = w
				}
			}
		}
		victim, cycle, found := FindDeadlock(locks)
		if !found || victim.LeaseID != last.LeaseID || len(cycle) != 2*size+1 || cycle[0] != victim.Owner.ID || cycle[2*size] != cycle[0] {
			t.Fatalf("found %v: %s of %v, not %s", found, victim.LeaseID, cycle, last.LeaseID)
		}
		for i := 1; i < len(cycle); i += 2 {
			if !strings.HasPrefix(cycle[i], "planted-") || slices.Contains(cycle[i+1:], cycle[i]) {
				t.Fatalf("the circle is told as %v", cycle)
			}
		}
		shuffled := rapid.Permutation(locks).Draw(t, "order")
		again, other, _ := FindDeadlock(shuffled)
		if !reflect.DeepEqual(again, victim) || !slices.Equal(other, cycle) {
			t.Fatalf("who looks in another order finds %s of %v, not %s of %v", again.LeaseID, other, victim.LeaseID, cycle)
		}
	})
}

// Promise S-45.
func TestVictimThatGivesWayBreaksTheCircle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		locks := web(t)
		// Whoever holds may now want anything: circles of all kinds come about.
		for i := range locks {
			l := &locks[i].Lock
			for j := range l.Queue {
				w := l.Queue[j]
				for k := range locks {
					for _, h := range locks[k].Lock.Holders {
						if rapid.IntRange(0, 3).Draw(t, "bound") == 0 {
							w.Within = append(slices.Clone(w.Within), h.LeaseID)
						}
					}
				}
			}
		}
		waiters := func() (n int) {
			for _, s := range locks {
				n += len(s.Lock.Queue)
			}
			return n
		}
		for rounds := waiters(); ; rounds-- {
			victim, cycle, found := FindDeadlock(locks)
			if !found {
				g := newWaitGraph(locks)
				g.dropFree()
				for _, n := range g.nodes {
					if n.stuck {
						t.Fatalf("%s is stuck, and there is no circle", n.waiter.LeaseID)
					}
				}
				return
			}
			if rounds == 0 || len(victim.Within) == 0 || len(cycle) < 3 {
				t.Fatalf("victim %+v of %v", victim, cycle)
			}
			for i := range locks {
				if locks[i].Lock.Name == victim.Name {
					at, _ := locks[i].Lock.Position(victim.LeaseID)
					locks[i].Lock.leave(at)
				}
			}
		}
	})
}
