package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestHeartbeatsMoveTheTimesEveryHalfTTL(t *testing.T) {
	p := newPlace(t)
	const ttl, beats = 4 * time.Second, 2
	h := p.as("first").hold("x", "--ttl", ttl.String())
	h.noted("x")
	first := p.record("x")
	if first.TTLSec != 4 || first.ExpiresAt.Sub(first.AcquiredTS) != ttl || first.Kind != "guard" || first.ChildPID != h.child {
		t.Errorf("at first: %+v", first)
	}
	p.eventually("it is renewed", func() bool { return p.record("x").Renewals >= first.Renewals+beats })
	last := p.record("x")
	each := last.AcquiredTS.Sub(first.AcquiredTS) / time.Duration(last.Renewals-first.Renewals)
	if each < ttl*9/20 || each > ttl {
		t.Errorf("renewed every %v, want %v", each, ttl/2)
	}
	if last.ExpiresAt.Sub(last.AcquiredTS) != ttl {
		t.Errorf("expires %v after the last renewal", last.ExpiresAt.Sub(last.AcquiredTS))
	}
	if last.LockID != first.LockID || last.Token != first.Token || last.PID != first.PID || last.HeldSince.Sub(first.HeldSince).Abs() > time.Millisecond {
		t.Errorf("was %+v and is %+v", first, last)
	}
	p.eventually("all renewals are audited", func() bool { return len(p.audit("x", "renew")) >= beats })
	renewals := p.audit("x", "renew")
	if renewals[0].LockID != first.LockID || renewals[0].Owner != "first" {
		t.Errorf("audited: %v", renewals)
	}
	h.finish()
	// With the command the heartbeats end, and nothing comes after the release.
	if all := p.audit("x"); all[len(all)-1].Event != "release" || !p.absent("x") {
		t.Errorf("audited: %v", all)
	}
}

func TestAGuardWithoutTTLDoesNotTouchItsRecord(t *testing.T) {
	p := newPlace(t)
	h := p.hold("x")
	h.noted("x")
	before := tree(t, p.root)
	time.Sleep(1500 * time.Millisecond)
	sameTree(t, "holding", before, tree(t, p.root))
	if strings.Contains(string(p.bytes("x")), "expires_at\":\"") || p.record("x").TTLSec != 0 {
		t.Errorf("a TTL in %s", p.bytes("x"))
	}
	h.finish()
}

func TestATTLBelowOneSecondIsRaisedWithAWarning(t *testing.T) {
	p := newPlace(t)
	r := p.want(0, "lock", "x", "--ttl", "200ms")
	contains(t, r.stderr, "warning", "1s")
	if rec := p.record("x"); rec.TTLSec != 1 || rec.ExpiresAt.Sub(rec.AcquiredTS) != time.Second {
		t.Errorf("%+v", rec)
	}
	p.want(0, "lock", "y", "--ttl", "1500ms")
	if rec := p.record("y"); rec.TTLSec != 2 || rec.ExpiresAt.Sub(rec.AcquiredTS) != 1500*time.Millisecond {
		t.Errorf("%+v", rec)
	}
	p.want(64, "lock", "z", "--ttl", "-1s")
}

// seven is a command that ends with 7 when its standard input does.
const seven = `echo $$; cat; exit 7`

func (p *place) holdSeven(args ...string) *holder {
	p.t.Helper()
	return p.start(p.lokt(append(append([]string{"guard"}, args...), "--", "sh", "-c", seven)...)).running()
}

// toldOnce fails the test unless the guard told of its loss once, and the audit log says so once.
func (h *holder) toldOnce(name string) {
	h.t.Helper()
	if n := strings.Count(h.stderr.String(), fmt.Sprintf("the lock %q was lost", name)); n != 1 {
		h.t.Errorf("told %d times that the lock was lost: %s", n, &h.stderr)
	}
	if got := h.audit(name, "lost"); len(got) != 1 {
		h.t.Errorf("audited: %v", got)
	}
}

func TestAGuardWhoseRecordWasDeletedWarnsOnceAndGoesOn(t *testing.T) {
	p := newPlace(t)
	h := p.holdSeven("x", "--ttl", "8s")
	h.noted("x")
	check(t, os.Remove(p.lockPath("x")))
	h.tells(`the lock "x" was lost`)
	time.Sleep(8200 * time.Millisecond) // in which it would beat twice
	if !p.absent("x") {
		t.Errorf("the record came back: %s", p.bytes("x"))
	}
	if !h.childLives() {
		t.Error("the command was stopped")
	}
	p.free("x")
	if r := h.end(); r.code != 7 {
		t.Error(r)
	}
	if !p.absent("x") {
		t.Errorf("the record came back: %s", p.bytes("x"))
	}
	h.toldOnce("x")
	if n := len(p.audit("x", "renew-fail")); n != 1 {
		t.Errorf("audited: %v", p.audit("x"))
	}
}

func TestAGuardThatWasForcedOutWarnsOnceAndLeavesTheNextHolderAlone(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").holdSeven("x", "--ttl", "8s")
	h.noted("x")
	p.as("operator").want(0, "unlock", "x", "--force")
	p.as("second").want(0, "lock", "x")
	theirs := string(p.bytes("x"))
	h.tells(`the lock "x" was lost`)
	contains(t, h.stderr.String(), "second")
	time.Sleep(8200 * time.Millisecond) // in which it would beat twice
	if r := h.end(); r.code != 7 {
		t.Error(r)
	}
	if got := string(p.bytes("x")); got != theirs {
		t.Errorf("the next holder's record was %s and is %s", theirs, got)
	}
	h.toldOnce("x")
	p.as("third").want(2, "lock", "x")
}

func TestAGuardWhoseExpiryWasEditedIntoThePastHoldsAgainIfNobodyCame(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").holdSeven("x", "--ttl", "8s")
	h.noted("x")
	was := p.record("x")
	p.edit("x", map[string]any{"expires_at": time.Now().Add(-10 * time.Second).UTC().Format(time.RFC3339Nano)})
	p.eventually("it holds again", func() bool { return p.current("x") })
	if is := p.record("x"); is.LockID != was.LockID || is.Owner != "first" || is.ExpiresAt.Sub(is.AcquiredTS) != 8*time.Second || is.Token < was.Token {
		t.Errorf("was %+v and is %+v", was, is)
	}
	p.held("x")
	renewals := p.record("x").Renewals
	p.eventually("it beats on", func() bool { return p.record("x").Renewals > renewals })
	if r := h.end(); r.code != 7 {
		t.Error(r)
	}
	p.free("x")
}

func TestAGuardWhoseExpiryWasEditedIntoThePastLosesToWhoeverCame(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").holdSeven("x", "--ttl", "8s")
	h.noted("x")
	p.edit("x", map[string]any{"expires_at": time.Now().Add(-10 * time.Second).UTC().Format(time.RFC3339Nano)})
	p.as("second").want(0, "lock", "x")
	theirs := string(p.bytes("x"))
	h.tells(`the lock "x" was lost`)
	if r := h.end(); r.code != 7 || string(p.bytes("x")) != theirs {
		t.Errorf("%v\nthe next holder's record was %s and is %s", r, theirs, p.bytes("x"))
	}
	h.toldOnce("x")
}

func TestAGuardThatWasStoppedPastItsTTLIsToldOfTheLossAndTouchesNothing(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").holdSeven("x", "--ttl", "8s")
	h.noted("x")
	h.stop()
	next := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "sh", "-c", loop)).running()
	next.noted("x")
	theirs := string(p.bytes("x"))
	h.kill(syscall.SIGCONT)
	h.tells(`the lock "x" was lost`)
	time.Sleep(8200 * time.Millisecond) // in which it would beat twice
	if !h.childLives() {
		t.Error("the command was stopped")
	}
	if got := string(p.bytes("x")); got != theirs {
		t.Errorf("the next holder's record was %s and is %s", theirs, got)
	}
	if r := h.end(); r.code != 7 {
		t.Error(r)
	}
	if got := string(p.bytes("x")); got != theirs {
		t.Errorf("the next holder's record was %s and is %s", theirs, got)
	}
	h.toldOnce("x")
	next.finish()
}

func TestAGuardThatWasStoppedPastItsTTLAloneHoldsAgain(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").holdSeven("x", "--ttl", "8s")
	h.noted("x")
	was := p.record("x")
	h.stop()
	p.eventually("it expires", func() bool { return p.as("second").run("exists", "x").code == 3 })
	h.kill(syscall.SIGCONT)
	p.eventually("it holds again", func() bool { return p.current("x") })
	if is := p.record("x"); is.Owner != "first" || is.Token <= was.Token {
		t.Errorf("was %+v and is %+v", was, is)
	}
	h.tells("held again")
	if r := h.end(); r.code != 7 {
		t.Error(r)
	}
	p.free("x")
}

// family is a command that leaves a family behind: a child in the background, and a grandchild that left the session. All
// of them write the time to $LOG, over and over, and ignore what $IGNORE names.
const family = `
member() { while :; do date +%s%N >>"$LOG"; sleep 0.1; done; }
trap 'echo TERM' TERM
[ -z "$IGNORE" ] || trap '' $IGNORE
echo $$
member &
( setsid sh -c 'while :; do date +%s%N >>"$LOG"; sleep 0.1; done' & ) 
member
`

// family starts a guard over a family, and waits until all of its members are at work.
func (p *place) family(ignore string, args ...string) (h *holder, log string) {
	p.t.Helper()
	log = filepath.Join(p.dir, "log")
	q := p.with("LOG="+log, "IGNORE="+ignore)
	h = q.start(q.lokt(append(append([]string{"guard"}, args...), "--", "sh", "-c", family)...)).running()
	p.eventually("the family is at work", func() bool {
		data, err := os.ReadFile(log)
		return err == nil && strings.Count(string(data), "\n") > 6
	})
	return h, log
}

// stoodStill is how long nobody of a family writes only if the machine stands still.
const stoodStill = time.Second

// workedUntil fails the test if the family did anything from a moment on, or does anything now. What it does at the end of a
// pause in which the machine stood still, and nobody could stop it, is not told from what it did before.
func workedUntil(t *testing.T, log string, end time.Time) {
	t.Helper()
	all := writes(t, log)
	i := slices.IndexFunc(all, func(at time.Time) bool { return !at.Before(end) })
	if i < 0 {
		return
	}
	late, last, woke := all[i], all[len(all)-1], i
	for woke > 0 && all[woke].Sub(all[woke-1]) < stoodStill {
		woke--
	}
	if woke == 0 || last.Sub(all[woke]) > stoodStill {
		t.Errorf("the command was at work from %v to %v, and was to have ended before %v", late, last, end)
	}
}

// writes returns the times of all that the family did, in order, and fails the test if it does anything after that.
func writes(t *testing.T, log string) (all []time.Time) {
	t.Helper()
	data, err := os.ReadFile(log)
	check(t, err)
	time.Sleep(300 * time.Millisecond)
	again, err := os.ReadFile(log)
	check(t, err)
	if string(again) != string(data) {
		t.Error("something of the command lives on")
	}
	for line := range strings.Lines(string(data)) {
		var n int64
		if _, err := fmt.Sscan(line, &n); err != nil {
			t.Fatalf("in the log: %q", line)
		}
		all = append(all, time.Unix(0, n))
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}

func TestOnLostStopEndsTheCommandAndItsWholeFamilyBeforeTheLockCanPass(t *testing.T) {
	t.Parallel()
	for what, ignore := range map[string]string{"who obey": "", "who ignore TERM": "TERM"} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			h, log := p.family(ignore, "x", "--ttl", "8s", "--on-lost", "stop")
			h.noted("x")
			// From now on nobody can change the lock, so that it cannot be renewed.
			guards := p.blockChanges()
			expires := p.record("x").ExpiresAt
			p.eventually("the command has ended", func() bool { return !h.childLives() })
			p.eventually("its family has, too", func() bool {
				data, err := os.ReadFile(log)
				check(t, err)
				time.Sleep(500 * time.Millisecond)
				again, err := os.ReadFile(log)
				check(t, err)
				return string(data) == string(again)
			})
			workedUntil(t, log, expires)
			guards()
			if r := h.wait(); r.code != 5 {
				t.Errorf("want exit 5: %v", r)
			}
			contains(t, h.stderr.String(), `the lock "x" is about to be lost: it could not be renewed in time: stopping the command`)
			p.free("x")
		})
	}
}

// blockChanges keeps everybody from changing any lock that was ever held, as a process does that is stopped in the midst
// of a change. The returned function ends that.
func (p *place) blockChanges() (unblock func()) {
	p.t.Helper()
	paths, err := filepath.Glob(p.path("guards", "*"))
	check(p.t, err)
	if len(paths) == 0 {
		p.t.Fatal("no guard files")
	}
	var files []*os.File
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		check(p.t, err)
		check(p.t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
		files = append(files, f)
	}
	unblock = func() {
		for _, f := range files {
			f.Close()
		}
	}
	p.t.Cleanup(unblock)
	return unblock
}

func TestARenewalThatFailsForAWhileIsTriedAgainAndNothingIsLost(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").holdSeven("x", "--ttl", "8s")
	h.noted("x")
	was := p.record("x")
	check(t, os.Rename(p.path("locks"), p.path("away")))
	check(t, os.WriteFile(p.path("locks"), nil, 0o600))
	h.tells("could not be renewed, trying again")
	check(t, os.Remove(p.path("locks")))
	check(t, os.Rename(p.path("away"), p.path("locks")))
	p.eventually("it is renewed", func() bool { return p.record("x").Renewals > was.Renewals })
	is := p.record("x")
	if is.Token != was.Token || is.AcquiredTS.Sub(was.AcquiredTS) > 8*time.Second {
		t.Errorf("was %+v and is %+v", was, is)
	}
	if r := h.end(); r.code != 7 || strings.Contains(r.stderr, "was lost") {
		t.Error(r)
	}
	if p.audit("x", "renew-fail") == nil || p.audit("x", "lost") != nil {
		t.Errorf("audited: %v", p.audit("x"))
	}
}

// Promises S-19, S-32.
func TestAGuardWithoutTTLThatWasForcedOutSaysSoWhileItsCommandRuns(t *testing.T) {
	p := newPlace(t)
	h := p.as("first").holdSeven("x")
	h.noted("x")
	p.as("operator").want(0, "unlock", "x", "--force")
	p.as("second").want(0, "lock", "x")
	h.tells(`the command goes on`)
	if !h.childLives() {
		t.Error("the command was stopped")
	}
	if r := h.end(); r.code != 7 {
		t.Error(r)
	}
	h.toldOnce("x")
}

func TestALossThatNoHeartbeatHasFoundIsToldOfAtTheEnd(t *testing.T) {
	p := newPlace(t)
	for says, args := range map[string][]string{
		`the lock "x" was lost`:                       {"x"}, // which it may see before the command has ended
		`the lock "x" was lost while the command ran`: {"x", "--ttl", "10m"},
	} {
		h := p.as("first").holdSeven(args...)
		h.noted("x")
		h.stop() // or it may look before the next holder is there
		p.as("second").want(0, "unlock", "x", "--force")
		p.as("second").want(0, "lock", "x")
		h.kill(syscall.SIGCONT)
		if r := h.end(); r.code != 7 {
			t.Error(r)
		}
		contains(t, h.stderr.String(), says, "second")
		p.as("second").want(0, "unlock", "x")
	}
	if got := p.audit("x", "lost"); len(got) != 2 {
		t.Errorf("audited: %v", got)
	}
}

func TestOnLostStopStopsTheCommandOfAGuardThatWasForcedOut(t *testing.T) {
	p := newPlace(t)
	for ignore, said := range map[string]string{"": "TERM", "TERM": ""} {
		h, log := p.family(ignore, "x", "--ttl", "8s", "--on-lost", "stop")
		p.as("operator").want(0, "unlock", "x", "--force")
		p.as("second").want(0, "lock", "x")
		theirs := string(p.bytes("x"))
		p.eventually("the command has ended", func() bool { return !h.childLives() })
		if r := h.wait(); r.code != 5 {
			t.Errorf("want exit 5: %v", r)
		}
		writes(t, log)
		if said != "" && h.line() != said {
			t.Errorf("a command that obeys did not get TERM")
		}
		if got := string(p.bytes("x")); got != theirs {
			t.Errorf("the next holder's record was %s and is %s", theirs, got)
		}
		p.as("second").want(0, "unlock", "x")
	}
}

func TestOnLostStopStopsTheCommandOfAGuardThatWasStoppedPastItsTTL(t *testing.T) {
	p := newPlace(t)
	h, log := p.with("LOKT_ON_LOST=stop").family("", "x", "--ttl", "8s")
	h.stop()
	next := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "sh", "-c", loop)).running()
	h.kill(syscall.SIGCONT)
	if r := h.wait(); r.code != 5 {
		t.Errorf("want exit 5: %v", r)
	}
	writes(t, log)
	next.finish()
}

func TestOnLostStopLeavesACommandAloneWhoseLockIsNotLost(t *testing.T) {
	p := newPlace(t)
	h := p.start(p.lokt("guard", "x", "--ttl", "8s", "--on-lost", "stop", "--", "sh", "-c", seven)).running()
	p.eventually("it is renewed", func() bool { return p.record("x").Renewals > 0 })
	if r := h.end(); r.code != 7 || r.stderr != "" {
		t.Error(r)
	}
	p.want(64, "guard", "x", "--on-lost", "explode", "--", "true")
	p.with("LOKT_ON_LOST=explode").want(64, "guard", "x", "--", "true")
}

func TestMaxHoldEndsAHoldThatIsRenewed(t *testing.T) {
	t.Parallel()
	for what, ttl := range map[string][]string{"with a TTL": {"--ttl", "8s"}, "without": nil} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			began := time.Now()
			h := p.as("first").holdSeven(append([]string{"x", "--max-hold", "6s"}, ttl...)...)
			next := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "sh", "-c", loop)).running()
			if d := time.Since(began); d < 6*time.Second {
				t.Errorf("the next one entered after %v", d)
			}
			h.tells(`the lock "x" was lost: its maximum hold is over`)
			if !h.childLives() {
				t.Error("the command was stopped")
			}
			if r := h.end(); r.code != 7 {
				t.Error(r)
			}
			h.toldOnce("x")
			next.finish()
		})
	}
}

func TestMaxHoldWithOnLostStopEndsTheFamilyBeforeTheNextEnters(t *testing.T) {
	t.Parallel()
	for what, ttl := range map[string][]string{"with a TTL": {"--ttl", "8s"}, "without": nil} {
		t.Run(what, func(t *testing.T) {
			p := newPlace(t)
			h, log := p.as("first").family("TERM", append([]string{"x", "--max-hold", "16s", "--on-lost", "stop"}, ttl...)...)
			next := p.as("second").start(p.as("second").lokt("guard", "x", "--wait", "--", "date", "+%s%N"))
			var entered int64
			_, err := fmt.Sscan(next.line(), &entered)
			check(t, err)
			if r := h.wait(); r.code != 5 || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("want exit 5 and one warning: %v", r)
			}
			contains(t, h.stderr.String(), "its maximum hold is over: stopping the command")
			workedUntil(t, log, time.Unix(0, entered))
			if r := next.wait(); r.code != 0 {
				t.Error(r)
			}
		})
	}
}
