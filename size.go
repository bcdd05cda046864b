package lokt

// How large a lock may become: stores read and write it as a whole, and etcd takes 1.5 MiB at a time.

import "fmt"

// MaxLockSize bounds what is on record about one lock: all its holders and waiters together, in bytes as ClaimSize counts
// them. A claim that would make it larger is refused with ErrFull; nothing else is.
const MaxLockSize = 1280 << 10

// Sizes, in bytes, of what a claim takes on record beside its texts, in whatever store takes most: as a holder, with all
// times and numbers.
const (
	holderSize  = 450
	rareSize    = 180 // of fields that few claims set
	processSize = 120
	yieldSize   = 200
	entrySize   = 6 // of a list or a map
)

// ClaimSize returns how many bytes of MaxLockSize the claim takes, whether it waits or holds.
func ClaimSize(c Claim) int {
	n := holderSize + textSize(c.LeaseID) + ownerSize(&c.Owner)
	if c.MaxHold != 0 || c.Preempt != 0 || c.Priority != 0 || c.Refresh || c.Owner.Process.Child != 0 {
		n += rareSize
	}
	if c.Process != nil {
		n += processSize + textSize(c.Process.Boot) + textSize(c.Process.Namespace) + textSize(c.Process.Liveness)
	}
	for k, v := range c.Metadata {
		n += entrySize + textSize(k) + textSize(v)
	}
	for _, id := range c.Within {
		n += entrySize + textSize(id)
	}
	return n
}

func ownerSize(o *Owner) int {
	return textSize(o.ID) + textSize(o.Session) + textSize(o.Host) +
		textSize(o.Process.Boot) + textSize(o.Process.Namespace) + textSize(o.Process.Liveness)
}

// textSize returns how long a text becomes in JSON at most.
func textSize(s string) int {
	n := len(s)
	for i := range len(s) {
		switch b := s[i]; {
		case b < ' ', b == '<', b == '>', b == '&', b == 0x7f, b == 0xe2: // the last one may begin a line separator
			n += 5
		case b == '"', b == '\\':
			n++
		}
	}
	return n
}

// room returns an error that wraps ErrFull if the lock has none for the claim, in the place of a hold with the same lease ID, if
// there is one.
func (l *Lock) room(c Claim) error {
	n := len(l.Holders) + len(l.Queue)
	size, wanted := ClaimSize(c), 0 // by a claim that makes holders yield, each of which then says to whom
	want := func(c *Claim) {
		if c.Preempt > 0 {
			wanted = max(wanted, yieldSize+ownerSize(&c.Owner))
		}
	}
	want(&c)
	for i := range l.Holders {
		if l.Holders[i].LeaseID == c.LeaseID {
			continue
		}
		size += ClaimSize(l.Holders[i].Claim)
		if y := l.Holders[i].Yield; y != nil {
			wanted = max(wanted, yieldSize+ownerSize(&y.To))
		}
	}
	for i := range l.Queue {
		size += ClaimSize(l.Queue[i].Claim)
		want(&l.Queue[i].Claim)
	}
	if size += (n + 1) * wanted; size <= MaxLockSize {
		return nil
	}
	return fmt.Errorf("%w: %q has %d holders and waiters, and with one more of %d bytes would have more than %d KiB on record: "+
		"try again later, say less in metadata, or spread them over several locks", ErrFull, l.Name, n, ClaimSize(c), MaxLockSize>>10)
}

// eventsPerStep is how many bytes of events one step lets grants from the queue have, about: who is left is granted the lock
// by the next step, which those who were granted it take at once.
const eventsPerStep = 128 << 10

// eventSize returns how much a grant from the queue adds to the events, about.
func eventSize(c *Claim) int { return 2*(300+ownerSize(&c.Owner)) + textSize(c.LeaseID) }
