package main

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// holdAndExpire starts a guard and stops it until its hold has expired.
func (p *place) holdAndExpire(name string) *holder {
	p.t.Helper()
	h := p.hold(name, "--ttl", "8s")
	h.noted(name)
	h.stop()
	p.eventually("the lock expires", func() bool { return p.run("exists", name).code == 3 })
	return h
}

// Promise S-19.
func TestGuardThatWasStoppedHoldsTheLockAgainAndKeepsIt(t *testing.T) {
	p := newPlace(t)
	h := p.holdAndExpire("x")
	h.kill(syscall.SIGCONT)
	h.tells(`the lock "x" was not renewed in time; nobody took it, and it is held again`)
	if r := p.record("x"); r.ChildPID != h.child { // Promise S-294.
		t.Errorf("the hold that was taken again names no command: %+v", r)
	}
	for range 18 { // for longer than the TTL
		time.Sleep(500 * time.Millisecond)
		p.held("x")
	}
	if got := p.audit("x", "renew"); len(got) == 0 {
		t.Error("the lock that was taken again is not renewed")
	}
	if r := h.end(); r.code != 0 {
		t.Error(r)
	}
}

// Promise S-19.
func TestGuardThatWasStoppedSaysSoIfOthersMayHaveHadTheLock(t *testing.T) {
	p := newPlace(t)
	h := p.holdAndExpire("x")
	p.free("x")
	h.kill(syscall.SIGCONT)
	h.tells("others may have had it meanwhile")
	if r := h.end(); r.code != 0 || strings.Contains(h.stderr.String(), "nobody took it") {
		t.Error(r, h.stderr.String())
	}
}

// Promises S-19, S-198.
func TestAHoldThatIsPassedGoesOnThoughNobodyLooks(t *testing.T) {
	p := newPlace(t)
	h := p.as("ana").hold("x")
	p.as("ana").want(0, "pass", "x", "--to", "bob")
	h.tells(`the lock "x" was lost`)
	p.want(0, "exists", "x")
	if r := h.end(); r.code != 0 || strings.Count(r.stderr, "was lost") != 1 {
		t.Error(r)
	}
	p.want(0, "exists", "x")
}

// Promises S-18, S-198.
func TestAHoldThatIsPassedGoesOnAfterAGuardThatWasStoppedForTooLong(t *testing.T) {
	p := newPlace(t)
	h := p.as("ana").start(p.as("ana").lokt("guard", "x", "--on-lost", "stop", "--", "sh", "-c", `trap "" TERM; echo $$; while :; do sleep 0.05; done`)).running()
	p.as("ana").want(0, "pass", "x", "--to", "bob")
	h.tells("stopping the command")
	h.stop()
	p.eventually("its time is over", func() bool { return p.run("exists", "x").code == 3 })
	h.kill(syscall.SIGCONT)
	if r := h.wait(); r.code != 5 {
		t.Error(r)
	}
	p.want(0, "exists", "x")
}
