package etcdstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lokt-dev/lokt"
)

// Promise S-126.
func TestTheSizeOfALockIsNoLessThanThatOfItsRecord(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 12, 13, 14, 15, 123456789, time.UTC)
	long := strings.Repeat("<", lokt.MaxIDLen)
	process := lokt.Process{
		PID: 4194304, Start: 1 << 50, Boot: "7f0c3d5e-6f61-4b8e-9a8e-0d6f3f2b1a11", Namespace: "4026531836", Liveness: strings.Repeat("l", 40), Child: 4194304, ChildStart: 1 << 50,
	}
	for what, c := range map[string]lokt.Claim{
		"plain": {LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: "a"}},
		"all": {
			LeaseID: lokt.NewLeaseID(), Owner: lokt.Owner{ID: long, Session: long, Host: long, AnySession: true, Process: process}, Process: &process, Attended: true,
			Limit: lokt.Shared, Strict: true, Refresh: true, TTL: 123456789123456, MaxHold: 123456789123456, Priority: -123456789, Preempt: 123456789123456, Wait: -1,
			Metadata: map[string]string{"a\x00\"\\": "\u2028\x7f&>", "b": strings.Repeat("\x01", lokt.MaxMetadata/2)}, Within: []string{long, long},
		},
	} {
		l := lokt.Lock{Name: "x"}
		timers := leases{}
		size := 0
		for i := range 20 {
			c.LeaseID = fmt.Sprint("lease-", i)
			timers[c.LeaseID] = etcdLease{ID: 1<<63 - 1, Seconds: 1 << 30}
			h := lokt.Holder{Claim: c, Token: 1 << 60, HeldSince: now, AcquiredAt: now, ExpiresAt: now, Pending: now, Renewals: 1 << 40}
			l.Holders = append(l.Holders, h)
			l.Queue = append(l.Queue, lokt.Waiter{Claim: c, Since: now, Until: now})
			size += 2 * lokt.ClaimSize(c)
		}
		text, err := encode(l, now, timers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if rest := len(`{"version":1,"name":"x","token":0,"at":"2026-11-12T13:14:15.123456789Z","holders":[],"queue":[]}`); len(text)-rest > size {
			t.Errorf("%s: %d bytes are counted as %d", what, len(text)-rest, size)
		}
	}
}
