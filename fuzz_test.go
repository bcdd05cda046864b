package lokt

import "testing"

// FuzzRules plays requests to one lock, made from the fuzzer's bytes six at a time, and lets the referee judge each.
func FuzzRules(f *testing.F) {
	for _, steps := range scenarios {
		var b []byte
		for _, s := range steps {
			b = append(b, s.kind, s.owner, s.lease, s.shape, s.life, s.order)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var steps []step
		for ; len(b) >= stepSize && len(steps) < 200; b = b[stepSize:] {
			steps = append(steps, stepOf(b))
		}
		if err := play(steps); err != nil {
			t.Fatal(err)
		}
	})
}

// Steps by name, for scenarios. A lease is counted back from the newer claim.
const (
	stepClaim   = 0
	stepAgain   = 6
	stepRenew   = 8
	stepRelease = 10
	stepEndOwn  = 12
	stepLeave   = 13
	stepFreeze  = 14
	stepThaw    = 15
	stepPrune   = 16
	stepTime    = 17
	stepDie     = 19
	stepAsk     = 220
	stepPass    = 221

	alice, bob, carol, dave, alice2, aliceAny = 0, 1, 2, 3, 4, 5

	exclusive, two, sharing, strict, refreshing = 1, 2, 3, 4, 8

	forEver, briefly, forThree, forTen = 0, 1, 2, 3
	atMostFive                         = 3 << 4

	urgent, waiting, newer, preempting = 2, 1 << 5, 3 + 1<<5, 43 // the last one waits, too, and is urgent
	patient, yielding, slowly          = 75, 65, 3 << 6          // without wanting nobody newer; and preempting; with a grace of a minute

	ticket, tended = 132, 66 // of an owner's claim

	atTheEnd, pastTheEnd, forty, twoPast = 1, 2, 6, 8
)

// scenarios are courses of events worth starting from.
var scenarios = [][]step{
	{ // a queue, drained by releases
		{stepClaim, alice, 0, exclusive, forTen, 0}, {stepClaim, bob, 0, exclusive, forTen, waiting}, {stepClaim, carol, 0, exclusive, forTen, waiting},
		{stepRelease, alice, 2, 2, 0, 0}, {stepAgain, 0, 1, 0, 0, 0}, {stepRelease, bob, 1, 2, 0, 0}, {stepAgain, 0, 0, 0, 0, 0}, {stepRelease, carol, 0, 2, 0, 0},
	},
	{ // a queue by priority, over an expiry at the very moment and past it
		{stepClaim, alice, 0, exclusive, forThree, 0}, {stepClaim, bob, 0, exclusive, 0, waiting}, {stepClaim, carol, 0, exclusive, 0, waiting + urgent},
		{stepTime, 0, 0, 0, atTheEnd, 0}, {stepClaim, dave, 0, 0, 0, 0}, {stepTime, 0, 0, 0, pastTheEnd, 0}, {stepClaim, dave, 0, 0, 0, 0}, {stepRenew, 0, 3, 0, 0, 0},
	},
	{ // readers, a writer among them, and a reader who re-enters past it
		{stepClaim, alice, 0, sharing, 0, 0}, {stepClaim, bob, 0, sharing, 0, 0}, {stepClaim, carol, 0, exclusive, 0, waiting}, {stepClaim, dave, 0, sharing, 0, waiting},
		{stepClaim, alice, 0, sharing, 0, 0}, {stepEndOwn, alice, 0, 2, 0, 0}, {stepEndOwn, bob, 0, 2, 0, 0}, {stepAgain, 0, 2, 0, 0, 0}, {stepEndOwn, carol, 0, 2, 0, 0},
	},
	{ // guards of one owner, and a limit that shrinks
		{stepClaim, alice, 0, two + strict, 0, 0}, {stepClaim, alice, 0, two + strict, 0, 0}, {stepClaim, alice, 0, exclusive, 0, waiting},
		{stepClaim, alice, 0, two + strict, 0, waiting}, {stepRelease, alice, 3, 2, 0, 0}, {stepRelease, alice, 2, 2, 0, 0},
	},
	{ // an exclusive hold becomes a shared one, and lets others in
		{stepClaim, alice, 0, exclusive, forTen, 0}, {stepClaim, bob, 0, sharing, 0, waiting}, {stepClaim, alice, 0, sharing + refreshing, forThree, 0},
		{stepClaim, alice, 0, exclusive + refreshing, forThree, waiting}, {stepRelease, bob, 2, 2, 0, 0},
	},
	{ // a stale hold is taken up again, but not past who waits
		{stepClaim, alice, 0, exclusive, briefly, 0}, {stepTime, 0, 0, 0, forty, 0}, {stepClaim, alice, 0, exclusive + refreshing, briefly, 0},
		{stepClaim, bob, 0, exclusive, 0, waiting}, {stepTime, 0, 0, 0, pastTheEnd, 0}, {stepClaim, alice, 0, exclusive + refreshing, briefly, 0},
	},
	{ // a maximum hold, and a refresh that would shorten it to nothing
		{stepClaim, alice, 0, exclusive, forTen + atMostFive, 0}, {stepTime, 0, 0, 0, 5, 0}, {stepRenew, 0, 0, 0, 0, 0}, {stepTime, 0, 0, 0, atTheEnd, 0},
		{stepRenew, 0, 0, 0, 0, 0}, {stepTime, 0, 0, 0, pastTheEnd, 0}, {stepRenew, 0, 0, 0, 0, 0},
		{stepClaim, bob, 0, exclusive, forTen, 0}, {stepTime, 0, 0, 0, atTheEnd, 0}, {stepClaim, bob, 0, exclusive + refreshing, forTen + atMostFive, 0},
	},
	{ // freezes: a waiter waits on, a holder goes on, the end lets in
		{stepFreeze, alice, 0, 1, 1, 0}, {stepClaim, bob, 0, exclusive, 0, waiting}, {stepClaim, carol, 0, exclusive, 0, 0}, {stepThaw, bob, 0, 1, 0, 0},
		{stepTime, 0, 0, 0, pastTheEnd, 0}, {stepPrune, 0, 0, 0, 0, 0}, {stepFreeze, bob, 0, 0, 0, 0}, {stepRenew, 0, 1, 0, 0, 0}, {stepThaw, alice, 0, 0, 0, 0},
	},
	{ // preemption: a holder that renews is told, one that never looks is not waited for
		{stepClaim, alice, 0, exclusive, forTen, 0}, {stepClaim, bob, 0, exclusive, 0, preempting}, {stepRenew, 0, 1, 0, 0, 0}, {stepAgain, 0, 0, 0, 0, 0},
		{stepTime, 0, 0, 0, pastTheEnd, 0}, {stepAgain, 0, 0, 0, 0, 0}, {stepRenew, 0, 1, 0, 0, 0},
		{stepClaim, carol, 0, exclusive, 0, preempting}, {stepTime, 0, 0, 0, pastTheEnd, 0}, {stepPrune, 0, 0, 0, 0, 0},
	},
	{ // deaths: of a holder, of a waiter, of one who was granted and never came
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob, 0, exclusive, 0, waiting}, {stepClaim, carol, 0, exclusive, 0, waiting}, {stepDie, 0, 1, 0, 0, 0},
		{stepDie, 0, 2, 0, 0, 0}, {stepPrune, 0, 0, 0, 0, 0}, {stepTime, 0, 0, 0, pastTheEnd, 0}, {stepClaim, dave, 0, exclusive, 0, 0},
	},
	{ // waiters that leave: too late, in time, and for others' sake
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob, 0, exclusive, 0, waiting}, {stepClaim, carol, 0, sharing, 0, waiting}, {stepClaim, dave, 0, sharing, 0, waiting},
		{stepLeave, 0, 2, 1, 0, 0}, {stepEndOwn, alice, 0, 2, 0, 0}, {stepLeave, 0, 1, 0, 0, 0}, {stepLeave, 0, 0, 1, 0, 0},
	},
	{ // a reader's stale hold, a writer that waits, and the reader again
		{stepClaim, alice, 0, sharing, briefly, 0}, {stepClaim, bob, 0, sharing, 0, 0}, {stepClaim, carol, 0, exclusive, 0, waiting}, {stepTime, 0, 0, 0, pastTheEnd, 0},
		{stepClaim, alice, 0, sharing + refreshing, 0, 0},
	},
	{ // a guard that waits for its owner's guard, and may have its owner's lease instead
		{stepClaim, alice, 0, exclusive + strict, 0, 0}, {stepClaim, alice, 0, exclusive + strict + refreshing, 0, waiting}, {stepClaim, alice, 0, exclusive, 0, 0},
		{stepAgain, 0, 1, 0, 0, 0}, {stepFreeze, bob, 0, 0, 0, 0}, {stepClaim, alice, 0, exclusive + refreshing, briefly, 0}, {stepTime, 0, 0, 0, pastTheEnd, 0},
		{stepClaim, alice, 0, exclusive + refreshing, briefly, 0},
	},
	{ // damage while somebody waits, who asks again
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob, 0, two, 0, waiting}, {stepClaim, carol, 0, two, 0, waiting}, {stepDie, 0, 0, 15, 0, 0},
		{stepRenew, 0, 2, 0, 0, 0}, {stepAgain, 0, 1, 0, 0, 0}, {stepAgain, 0, 0, 0, 0, 0},
	},
	{ // damage: it keeps the queue out until somebody claims the lock
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob, 0, exclusive, 0, waiting}, {stepDie, 0, 0, 15, 0, 0}, {stepPrune, 0, 0, 0, 0, 0}, {stepDie, 0, 0, 15, 0, 0},
		{stepAgain, 0, 0, 0, 0, 0}, {stepClaim, carol, 0, sharing, 0, waiting},
	},
	{ // sessions of one ID, and an owner that stands for all of them
		{stepClaim, alice, 0, two, 0, 0}, {stepClaim, alice2, 0, two, 0, 0}, {stepClaim, aliceAny, 0, exclusive, forThree, 0}, {stepClaim, bob, 0, sharing, 0, waiting},
		{stepEndOwn, aliceAny, 0, 2, 0, 0},
	},
	{ // an owner's own hold takes more of it than a claim says there is
		{stepClaim, bob, 0, two + 1<<4, 0, 0}, {stepClaim, bob, 0, two + 6<<4, 0, 0},
	},
	{ // a newer waiter sends one away behind whom somebody could be in
		{stepClaim, alice, 0, two + strict, 0, 0}, {stepClaim, alice, 0, strict, 0, newer}, {stepClaim, bob, 0, two, 0, 65},
		{stepClaim, alice, 0, strict, 0, newer},
	},
	{ // one that was sent away, newer and preempting, had asked a holder to leave
		{stepClaim, bob, 0, exclusive, 0, 4}, {stepClaim, dave, 0, exclusive, 0, 40}, {stepClaim, alice, 0, two, forThree, newer},
		{stepAgain, 0, 1, 0, 0, 0}, {stepTime, 0, 0, 0, pastTheEnd, 0}, {stepPrune, 0, 0, 0, 0, 0},
	},
	{ // one leaves who waited on other terms than it leaves on
		{stepClaim, alice, 0, 0, 0, 0}, {stepClaim, alice, 0, 8, 0, 0}, {7, 4, 0, 0, 0, waiting}, {stepClaim, bob, 0, 0, 0, newer},
		{19, 0, 0, 15, 0, 0}, {stepLeave, 0, 1, 0, 0, 0},
	},
	{ // one comes too late for its grant, and gets its place back before a newer one
		{stepClaim, alice, 0, 0, 0, 0}, {stepClaim, bob, 0, two, 0, newer}, {stepClaim, alice, 0, two + refreshing, 0, 0}, {stepClaim, bob, 0, 0, 0, newer},
		{stepTime, 0, 0, 0, 2, 0}, {stepAgain, 0, 2, 0, 0, 0},
	},
	{ // a grant meets the death of its ticket's process, and another goes on
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob + ticket, 0, exclusive, 0, patient}, {stepRelease, alice, 1, 2, 0, 0}, {stepDie, 0, 0, 0, 0, 0},
		{stepAgain, 0, 0, 0, 0, 0}, {stepPrune, 0, 0, 0, 0, 0},
	},
	{ // a grant that is taken up by another process than the one that waited
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob + ticket, 0, exclusive, 0, patient}, {stepRelease, alice, 1, 2, 0, 0},
		{7, bob + ticket, 0, exclusive, 0, patient}, {stepDie, 0, 0, 0, 0, 0}, {stepPrune, 0, 0, 0, 0, 0},
	},
	{ // a place that is asked for by another process, the first one being dead
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob, 0, exclusive, 0, yielding}, {stepDie, 0, 0, 0, 0, 0}, {stepAgain, 0, 0, 0, 0, 0},
	},
	{ // a ticket that has lapsed is given back
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob + ticket, 0, exclusive, 0, patient}, {stepTime, 0, 0, 0, forty, 0}, {stepTime, 0, 0, 0, forty, 0},
		{stepTime, 0, 0, 0, forty, 0}, {stepTime, 0, 0, 0, forty, 0}, {stepRelease, bob, 0, 2, 0, 0},
	},
	{ // one with a ticket was sent away, stops waiting when the lock is free, and asks again
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob + ticket, 0, exclusive, 0, newer}, {stepClaim, carol, 0, exclusive, 0, newer}, {stepRelease, alice, 2, 2, 0, 0},
		{stepRelease, carol, 0, 2, 0, 0}, {stepLeave, 0, 1, 0, 0, 0}, {stepAgain, 0, 1, 0, 0, 0},
	},
	{ // a hold that has a weight is passed on
		{stepClaim, alice, 0, two + 1<<4, 0, 0}, {stepPass, alice, 0, 0, 0, bob},
	},
	{ // a guard's hold is passed on beside which there is room
		{stepClaim, alice, 0, two + strict, 0, 0}, {stepPass, alice, 0, 0, 0, bob}, {stepRelease, alice, 1, 2, 0, 0},
	},
	{ // one of two holds of an owner is passed on, beside the other of which nobody may enter
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, alice, 0, exclusive, 0, 0}, {stepPass, alice, 0, 0, 0, bob},
	},
	{ // two guards' holds are passed on to one owner
		{stepClaim, alice, 0, two + strict, 0, 0}, {stepClaim, carol, 0, two + strict, 0, 0}, {stepPass, alice, 0, 0, 0, bob}, {stepPass, carol, 0, 0, 0, bob},
		{stepRelease, alice, 3, 2, 0, 0}, {stepRelease, carol, 2, 2, 0, 0},
	},
	{ // a hold is passed on that another has asked to yield within a minute
		{stepClaim, alice + tended, 0, exclusive + strict, forTen, 0}, {stepClaim, carol, 0, exclusive, slowly, preempting}, {stepRenew, 0, 1, 0, 0, 0},
		{stepPass, alice, 0, 0, 0, bob},
	},
	{ // who is passed a hold cannot have it in time
		{stepClaim, alice, 0, exclusive + strict, 0, 0}, {stepPass, alice, 0, 0, 0, bob}, {stepFreeze, carol, 0, 0, 0, 0}, {stepTime, 0, 0, 0, forty, 0},
		{stepTime, 0, 0, 0, forty, 0}, {stepTime, 0, 0, 0, forty, 0}, {stepPrune, 0, 0, 0, 0, 0},
	},
	{ // a hold is passed on to one who had come too late for a grant, and waits again
		{stepClaim, alice, 0, exclusive, 0, 0}, {stepClaim, bob, 0, exclusive, 0, patient}, {stepRelease, alice, 1, 2, 0, 0}, {stepTime, 0, 0, 0, pastTheEnd, 0},
		{stepClaim, carol, 0, exclusive + strict, 0, 0}, {stepAgain, 0, 1, 0, 0, 0}, {stepPass, carol, 0, 0, 0, bob}, {stepRelease, carol, 1, 2, 0, 0},
	},
	{ // who is passed a hold comes too late, and has the note all the same
		{stepClaim, alice, 0, exclusive + strict, 0, 0}, {stepClaim, bob, 0, exclusive, 0, patient}, {stepPass, alice, 0, 0, 0, bob}, {stepRelease, alice, 2, 2, 0, 0},
		{stepTime, 0, 0, 0, pastTheEnd, 0}, {stepAgain, 0, 1, 0, 0, 0},
	},
	{ // the record is damaged of a hold that is passed on, and the note is left
		{stepClaim, alice, 0, exclusive + strict, 0, 0}, {stepPass, alice, 0, 0, 0, bob}, {stepDie, 0, 0, 15, 0, 0}, {stepLeave, 0, 0, 0, 0, 0},
	},
	{ // one comes too late for its grant, and asks again from another session, which its owner's other hold is not of
		{0, 0, 0x5e, 0xa, 0x2c, 0xb7}, {1, 1, 1, 0xe, 0x3b, 1}, {3, 0x36, 0xd5, 0, 0xf2, 0xff}, {0xd, 0x56, 0xa6, 4, 0, 2},
		{0x39, 0x9c, 0, 8, 0x79, 2}, {7, 0x22, 9, 0xf, 0xa7, 0x13},
	},
	{ // one says that it has heard by when it is to leave, and that is over
		{stepClaim, alice + tended, 0, exclusive, forTen, 0}, {stepClaim, bob, 0, exclusive, 0, preempting}, {stepRenew, 0, 1, 0, 0, 0},
		{stepTime, 0, 0, 0, twoPast, 0}, {stepRenew, 0, 1, 1, 0, 0},
	},
	{ // a hold is passed on in the step in which a freeze is over, and in which its owner has more of the lock
		{stepClaim, dave, 0, two, 0, 0}, {stepClaim, alice, 0, two, 0, 0}, {stepClaim, carol, 0, exclusive, 0, patient}, {stepFreeze, bob, 0, 0, 1, 0},
		{stepClaim, dave, 0, two, 0, patient}, {stepTime, 0, 0, 0, twoPast, 0}, {stepPass, dave, 0, 0, 0, alice},
	},
	{ // an owner takes as its own, without a program, what it was told to leave, and that is over
		{stepClaim, alice + tended, 0, exclusive, 0, 0}, {stepClaim, bob, 0, exclusive, 0, preempting}, {stepRenew, 0, 1, 0, 0, 0},
		{stepTime, 0, 0, 0, twoPast, 0}, {stepClaim, alice, 0, exclusive + refreshing, 0, 0},
	},
}
