package locks

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
	"github.com/lokt-dev/lokt/httpapi"
	"github.com/lokt-dev/lokt/internal/cli/app"
	"github.com/lokt-dev/lokt/internal/quote"
	"github.com/lokt-dev/lokt/internal/testkit/clitest"
	"github.com/lokt-dev/lokt/lockfile"
)

// situations are what a lock x can be in, and how it comes to be.
func situations() map[string]func(d clitest.Desk) {
	past := time.Now().Add(-time.Hour)
	return map[string]func(d clitest.Desk){
		"free":                    func(clitest.Desk) {},
		"held by another":         func(d clitest.Desk) { d.As("zoe").Must("lock", "x") },
		"held by oneself":         func(d clitest.Desk) { d.Must("lock", "x") },
		"held by another, shared": func(d clitest.Desk) { d.As("zoe").Must("lock", "x", "--shared") },
		"held by several": func(d clitest.Desk) {
			d.As("zoe").Must("lock", "x", "--slots", "2")
			d.Must("lock", "x", "--slots", "2")
		},
		"frozen by another": func(d clitest.Desk) { d.As("zoe").Must("freeze", "x", "--ttl", "5m") },
		"frozen by oneself": func(d clitest.Desk) { d.Must("freeze", "x", "--ttl", "5m") },
		"held by oneself and frozen": func(d clitest.Desk) {
			d.Must("lock", "x")
			d.As("zoe").Must("freeze", "x", "--ttl", "5m")
		},
		"held by another and frozen": func(d clitest.Desk) {
			d.As("zoe").Must("lock", "x", "--ttl", "5m")
			d.As("zoe").Must("freeze", "x", "--ttl", "5m", "--reason", "it's broken")
		},
		"expired": func(d clitest.Desk) {
			d.Record("locks", lockfile.Record{Name: "x", LockID: "1", Owner: "zoe", Host: "h", TTLSec: 60, AcquiredTS: past, Kind: "lease"})
		},
		"without an ID": func(d clitest.Desk) { d.Record("locks", lockfile.Record{Name: "x", Owner: "zoe", Host: "h"}) },
		"with an ID that a shell would take apart": func(d clitest.Desk) {
			d.Record("locks", lockfile.Record{Name: "x", LockID: "it's; rm $HOME", Owner: "zoe", Host: "h"})
		},
		"corrupt":         func(d clitest.Desk) { d.Write("locks/x.json", "{") },
		"about to be":     func(d clitest.Desk) { d.Write("locks/x.json", "") },
		"newer":           func(d clitest.Desk) { d.Write("locks/x.json", clitest.Newer) },
		"frozen, damaged": func(d clitest.Desk) { d.Write("freezes/x.json", "{") },
		"freeze expired": func(d clitest.Desk) {
			d.Record("freezes", lockfile.Record{Name: "x", Owner: "zoe", TTLSec: 60, AcquiredTS: past})
		},
		"corrupt, frozen": func(d clitest.Desk) { d.Write("locks/x.json", "{"); d.Must("freeze", "x", "--ttl", "5m") },
		"queued": func(d clitest.Desk) {
			w := lockfile.Record{
				Name: "x", LockID: "w", Owner: "zoe", Host: "h", AcquiredTS: time.Now(), ExpiresAt: time.Now().Add(time.Minute), Wait: time.Minute,
			}
			q := lockfile.Queue{Name: "x", Waiters: []*lockfile.Record{&w}}
			data, err := q.Encode()
			if err != nil {
				d.T.Fatal(err)
			}
			d.Write("queue/x.json", string(data))
		},
	}
}

func TestWhyAndLockNeverDisagree(t *testing.T) {
	for name, arrange := range situations() {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, "ann")
			arrange(d)
			var why whyJSON
			code := d.JSON(&why, "why", "x")
			if want := map[string]int{"free": app.ExitOK, "blocked": app.ExitBlocked}[why.Status]; code != want {
				t.Errorf("why says %s and ends with %d", why.Status, code)
			}
			blocking := slices.ContainsFunc(why.Reasons, func(r reason) bool { return r.Blocking })
			if blocking != (why.Status == "blocked") {
				t.Errorf("why says %s for reasons %+v", why.Status, why.Reasons)
			}
			locked, _, errs := d.Lokt("lock", "x")
			if (locked == 0) != (code == 0) {
				t.Errorf("why ends with %d, and lock with %d: %s", code, locked, errs)
			}
		})
	}
}

// words takes a line apart as a shell does, as far as suggestions use its syntax.
func words(line string) []string {
	var all []string
	var word strings.Builder
	in, quoted := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\'':
			quoted, in = !quoted, true
		case quoted:
			word.WriteByte(c)
		case c == '\\':
			i++
			word.WriteByte(line[i])
		case c == ' ':
			if in {
				all = append(all, word.String())
			}
			word.Reset()
			in = false
		default:
			word.WriteByte(c)
			in = true
		}
	}
	return append(all, word.String())
}

func TestSuggestionsOfWhyAreCommandsThatWork(t *testing.T) {
	for name, arrange := range situations() {
		t.Run(name, func(t *testing.T) {
			for i := 0; ; i++ {
				d := newDesk(t, "ann")
				arrange(d)
				var why whyJSON
				d.JSON(&why, "why", "x")
				if len(why.Suggestions) == 0 {
					t.Error("there is nothing to do")
				}
				if i >= len(why.Suggestions) {
					break
				}
				line := why.Suggestions[i]
				args := words(line)
				if args[0] != "lokt" {
					t.Errorf("%q is no command of lokt", line)
				}
				waits := slices.Contains(args, "--wait")
				if waits {
					args = append(args, "--timeout", "1ms")
				}
				code, out, errs := d.Lokt(args[1:]...)
				if code != app.ExitOK && !(waits && code == app.ExitBlocked) {
					t.Errorf("%s: exit %d: %s%s", line, code, out, errs)
				}
			}
		})
	}
}

func TestWhatForceSuggestsLetsOneIn(t *testing.T) {
	for _, name := range []string{"held by another", "held by several", "frozen by another", "frozen, damaged", "newer", "without an ID", "corrupt"} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, "ann")
			situations()[name](d)
			var why whyJSON
			d.JSON(&why, "why", "x")
			for _, line := range why.Suggestions {
				if strings.Contains(line, "--force") {
					d.Must(words(line)[1:]...)
				}
			}
			d.Must("lock", "x")
		})
	}
}

func TestWordsAreQuotedForAShell(t *testing.T) {
	for word, want := range map[string]string{
		"plain-1.2_3": "plain-1.2_3", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$HOME": "'$HOME'", "é": "'é'", "/tmp/x": "/tmp/x",
	} {
		if got := quote.Word(word); got != want {
			t.Errorf("%q is quoted as %s, not %s", word, got, want)
		}
		if back := words(quote.Word(word)); len(back) != 1 || back[0] != word {
			t.Errorf("%q comes back as %q", word, back)
		}
	}
}

func TestAVerdictExpiresWhenTheLastThingInTheWayDoes(t *testing.T) {
	d := newDesk(t, "ann")
	d.As("zoe").Must("lock", "x", "--ttl", "5m")
	d.As("zoe").Must("freeze", "x", "--ttl", "1h")
	var why whyJSON
	d.JSON(&why, "why", "x")
	if left := time.Until(why.ExpiresAt); left < 50*time.Minute || left > time.Hour {
		t.Errorf("it is blocked for another %v", left)
	}
	d.As("zoe").Must("lock", "x") // without an end
	why = whyJSON{}
	d.JSON(&why, "why", "x")
	if !why.ExpiresAt.IsZero() {
		t.Errorf("it is blocked until %v", why.ExpiresAt)
	}
}

// Promise S-142.
func TestWaitersThatAreAwayAreMarked(t *testing.T) {
	d := newDesk(t, "ann")
	waits := func(ids ...string) {
		q := lockfile.Queue{Name: "x"}
		for _, id := range ids {
			left := time.Minute
			if strings.HasPrefix(id, "away") {
				left = 20 * time.Second
			}
			q.Waiters = append(q.Waiters, &lockfile.Record{
				Name: "x", LockID: id, Owner: id, Host: "h", AcquiredTS: time.Now(), ExpiresAt: time.Now().Add(left), Wait: time.Minute,
			})
		}
		data, err := q.Encode()
		if err != nil {
			t.Fatal(err)
		}
		d.Write("queue/x.json", string(data))
	}
	queued := func() reason {
		t.Helper()
		var why whyJSON
		d.JSON(&why, "why", "x")
		i := slices.IndexFunc(why.Reasons, func(r reason) bool { return r.Type == whyQueued })
		if i < 0 {
			t.Fatalf("nobody waits: %+v", why)
		}
		return why.Reasons[i]
	}
	says := func(want string, args ...string) {
		t.Helper()
		if _, out, _ := d.Lokt(args...); !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s says\n%s, not %s", args, out, want)
		}
	}

	waits("away1", "here1", "away2", "here2")
	var v lockView
	d.JSON(&v, "status", "x")
	if v.Waiters != 4 || v.Away != 2 || len(v.Queue) != 4 || !v.Queue[0].Away || v.Queue[1].Away || !v.Queue[1].Until.IsZero() ||
		*v.Queue[2].Leaves < 10 || *v.Queue[2].Leaves > 20 || v.Queue[2].Until.IsZero() {
		t.Errorf("the status is %+v", v)
	}
	says(`(?m)^queue.1.owner: +away1\n(.*\n)*queue.1.away: +true\n(.*\n)*queue.1.leaves: +[12]?\ds\n(queue.2.*\n)*queue.2.owner: +here1$`, "status", "x")
	if _, out, _ := d.Lokt("status", "x"); strings.Contains(out, "queue.2.away") {
		t.Errorf("who is there is away: %s", out)
	}
	says(`4 \(2 away\)`, "status")
	if r := queued(); !r.Blocking || r.Owner != "here1" || r.Count != 4 || r.Away != 2 || r.Message != "here1@h waits for it already, and 1 more" {
		t.Errorf("the reason is %+v", r)
	}
	says(`2 of those who wait are away: they are passed over`, "why", "x")

	waits("away1", "here1")
	says(`here1@h waits for it already \(away1@h, who waits too, is away: passed over until it asks again, out of the queue in `, "why", "x")

	waits("away1") // keeps nobody out
	if r := queued(); r.Blocking || r.Owner != "away1" || r.Count != 1 || r.Away != 1 {
		t.Errorf("the reason is %+v", r)
	}
	says(`to be had:\n.* away1@h waits for it already \(but is away: `, "why", "x")
	d.Must("lock", "x")

	waits("here1")
	var one map[string]any
	d.JSON(&one, "status", "x")
	if _, there := one["waiters_away"]; there {
		t.Errorf("nobody is away: %v", one)
	}
}

func TestWhatHoldsALockForAJobIsNoGuard(t *testing.T) {
	url := clitest.Server(t).URL
	client, err := httpapi.New(url, httpapi.ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Acquire(t.Context(), lokt.Claim{Name: "x", Owner: lokt.Owner{ID: "job:17", AnySession: true}, Strict: true, TTL: time.Minute}); err != nil {
		t.Fatal(err)
	}
	_, out, _ := clitest.New(t, "ann", Commands()).With("LOKT_SERVER="+url).Lokt("why", "x")
	if !strings.Contains(out, "see: lokt job show 17") || strings.Contains(out, "its guard") {
		t.Error(out)
	}
	_, _, said := clitest.New(t, "ann", Commands()).With("LOKT_SERVER="+url).Lokt("unlock", "x")
	if !strings.Contains(said, "see: lokt job show 17, or use --force") || strings.Contains(said, "LOKT_OWNER") {
		t.Error(said)
	}
}

func TestWhyTellsPeopleOfSomeHoldersAndHowManyThereAreBeside(t *testing.T) {
	d := newDesk(t, "ann")
	for i := range whyMost + 3 {
		d.As(fmt.Sprint("o", i)).Must("lock", "x", "--slots", strconv.Itoa(whyMost+3))
	}
	code, out, _ := d.Lokt("why", "x")
	if code != app.ExitBlocked || strings.Count(out, "it is held by") != whyMost || !strings.Contains(out, "and 3 more hold it: lokt status x") ||
		strings.Count(out, "\n") != 2*whyMost+3 {
		t.Errorf("exit %d: %s", code, out)
	}
	if _, out, _ = d.Lokt("why", "x", "--json"); strings.Count(out, "it is held by") != whyMost+3 {
		t.Errorf("programs are told %s", out)
	}
}
