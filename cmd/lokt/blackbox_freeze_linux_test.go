package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestAFreezeKeepsEverybodyNewOutAndNobodyElse(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x")
	p.as("first").want(0, "lock", "mine")
	for _, name := range []string{"x", "mine", "none"} {
		p.as("operator").want(0, "freeze", name, "--ttl", "10m", "--reason", "incident 42")
	}
	for _, name := range []string{"x", "mine", "none"} {
		for _, args := range [][]string{
			{"lock", name}, {"guard", name, "--", "true"}, {"lock", name, "--shared"}, {"guard", name, "--slots", "5", "--", "true"},
			{"lock", name, "--wait", "--timeout", "50ms"}, {"guard", name, "--wait", "--timeout", "50ms", "--", "true"},
		} {
			for _, who := range []string{"other", "operator"} {
				r := p.as(who).run(args...)
				if r.code != 2 {
					t.Errorf("%s, %s: %v", who, args, r)
				}
				contains(t, r.stderr, "incident 42")
			}
		}
	}
	p.as("other").want(4, "unfreeze", "none")
	p.as("other").want(3, "unfreeze", "nothing")

	// Who is in stays in, and may go on: a lease is refreshed, a guard beats on and ends as it likes.
	p.as("first").want(0, "lock", "mine", "--ttl", "5m")
	p.as("first").want(0, "unlock", "mine")
	p.as("first").want(2, "lock", "mine")
	h.finish()
	p.as("first").want(2, "guard", "x", "--", "true")

	for _, name := range []string{"x", "mine", "none"} {
		p.as("operator").want(0, "unfreeze", name)
		p.free(name)
	}
	if got := p.audit("none", "freeze", "unfreeze", "freeze-deny"); len(got) < 4 {
		t.Errorf("audited: %v", got)
	}
}

func TestAWaiterFromBeforeAFreezeEntersWhenItIsOver(t *testing.T) {
	t.Parallel()
	for what, thaw := range map[string]func(p *place){
		"by unfreeze":       func(p *place) { p.as("operator").want(0, "unfreeze", "x") },
		"by force":          func(p *place) { p.as("another").want(0, "unfreeze", "x", "--force") },
		"when it expires":   func(*place) {},
		"because it was rm": func(p *place) { p.sh(`rm "$LOKT_ROOT/freezes/x.json"`) },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			h := p.as("first").hold("x")
			first := p.as("waiter-1").start(p.as("waiter-1").lokt("guard", "x", "--wait", "--", "sh", "-c", loop))
			p.queued("x", 1)
			second := p.as("waiter-2").start(p.as("waiter-2").lokt("lock", "x", "--wait"))
			p.queued("x", 2)
			ttl := 10 * time.Minute
			if what == "when it expires" {
				ttl = 2 * time.Second
			}
			began := time.Now()
			p.as("operator").want(0, "freeze", "x", "--ttl", ttl.String())
			h.finish() // now only the freeze is in the way
			if ttl > time.Minute {
				time.Sleep(600 * time.Millisecond) // in which waiters look several times
				if !p.absent("x") || len(p.queue("x")) != 2 {
					t.Fatalf("somebody entered: %s", p.bytes("x"))
				}
				p.as("other").want(2, "lock", "x")
			}
			thaw(p)
			first.running()
			if d := time.Since(began); what == "when it expires" && d < ttl {
				t.Errorf("entered after %v", d)
			}
			p.queued("x", 1)
			first.finish()
			if r := second.wait(); r.code != 0 {
				t.Error(r)
			}
		})
	}
}

func TestAFreezeIsARecordWithAnExpiry(t *testing.T) {
	p := newPlace(t)
	p.as("operator").want(0, "freeze", "x", "--ttl", "10m", "--reason", "r")
	var r record
	data := p.file("freezes/x.json")
	check(t, json.Unmarshal(data, &r))
	if r.Version != 1 || r.Name != "x" || r.Owner != "operator" || r.TTLSec != 600 || r.ExpiresAt.Sub(r.AcquiredTS) != 10*time.Minute {
		t.Errorf("%s", data)
	}
	if !p.absent("x") {
		t.Error("a freeze made a lock's record")
	}
	p.want(64, "freeze", "y")
	p.want(64, "freeze", "y", "--ttl", "0")
	p.want(64, "freeze", "y", "--ttl", "-1m")
	p.free("y")
}

func TestADamagedFreezeLetsNobodyInUntilItIsRemovedByForce(t *testing.T) {
	p := newPlace(t)
	for what, data := range map[string]string{
		"garbage": "{garbage", "empty": "", "no-owner": `{"version":1,"name":"no-owner"}`, "newer": `{"version":99,"name":"newer","owner":"o"}`,
		"another": `{"version":1,"name":"something-else","owner":"o","acquired_ts":"2020-01-01T00:00:00Z","ttl_sec":1}`,
	} {
		p.plant("freezes/"+what+".json", []byte(data))
		for _, args := range [][]string{
			{"lock", what}, {"guard", what, "--", "true"}, {"guard", what, "--wait", "--timeout", "50ms", "--", "true"}, {"why", what},
		} {
			if r := p.as("operator").run(args...); r.code != 2 {
				t.Errorf("%s: %v: %v", what, args, r)
			} else if args[0] != "why" {
				contains(t, r.stderr, "unfreeze "+what+" --force")
			}
		}
		if r := p.run("unfreeze", what); r.code == 0 {
			t.Errorf("%s: unfreeze without force: %v", what, r)
		}
		if got := string(p.file("freezes/" + what + ".json")); got != data {
			t.Errorf("%s: the record became %q", what, got)
		}
		p.want(0, "unfreeze", what, "--force")
		p.free(what)
		if got := p.audit(what, "force-unfreeze"); len(got) != 1 {
			t.Errorf("%s: audited: %v", what, p.audit(what))
		}
	}
}

func TestAWaiterStaysOutOfADamagedFreezeAndEntersOnceItIsRemoved(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").hold("x")
	w := p.as("waiter").start(p.as("waiter").lokt("guard", "x", "--wait", "--", "sh", "-c", loop))
	p.queued("x", 1)
	p.plant("freezes/x.json", []byte("{garbage"))
	h.finish()
	time.Sleep(600 * time.Millisecond) // in which it looks several times
	if !p.absent("x") {
		t.Fatalf("it entered: %s", p.bytes("x"))
	}
	p.want(0, "unfreeze", "x", "--force")
	w.running().finish()
}

func TestAFreezeAndAReleaseAtTheSameMomentNeverLetAWaiterIn(t *testing.T) {
	p := newPlace(t)
	for i := range often(40) {
		h := p.as("first").hold("x")
		w := p.as("waiter").start(p.as("waiter").lokt("guard", "x", "--wait", "--", "sh", "-c", `date +%s%N; exec cat`))
		p.queued("x", 1)
		g := newGate(t)
		f := p.as("operator").start(g.behind(p, p.as("operator").lokt("freeze", "x", "--ttl", "10m")))
		g.open()
		check(t, h.in.Close())
		f.wait()
		h.wait()
		frozen := len(p.queue("x")) == 1 // the freeze was first; otherwise it found the waiter in
		if frozen == !p.absent("x") {
			t.Fatalf("round %d: %d wait, and the record is: %s", i, len(p.queue("x")), p.bytes("x"))
		}
		if frozen {
			p.as("operator").want(2, "lock", "x")
		} else if !strings.HasPrefix(w.line(), "1") {
			t.Fatalf("round %d: the waiter is in, but its command does not run: %s", i, &w.stderr)
		}
		p.as("operator").want(0, "unfreeze", "x")
		w.finish()
	}
}
