package lokt

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits on what a claim may carry, so that no store and no wire has to cope with more.
const (
	MaxNameLen  = 200              // bytes in a lock's name
	MaxIDLen    = 256              // bytes in an owner's ID, session or host, and in a lease ID
	MaxMetadata = 4096             // bytes in all keys and values of a claim's metadata together
	MinTTL      = time.Millisecond // the shortest time to live that rules accept; the command line raises it to 1 s
	Exclusive   = 1                // the limit of a claim that shares with nobody
	Shared      = 1<<31 - 1        // the limit of a claim that shares with any number of others
	PresenceTTL   = 15 * time.Second // how long the claimant of a queued claim counts as being there after it asked: later, those behind pass
	QueueTTL   = 30 * time.Second // how long its claim keeps its place then, unless it asks again
	OfferTTL  = 2 * time.Second  // how long a grant from the queue stays whose claimant does not take it up
	ReturnTimeout  = 2 * time.Second  // how long a claimant may take between two requests that wait for the same claim
	AwayTTL   = 10 * time.Second // how long one stays whose client is known to have hung up, so that it can ask again over a new connection
	WaitRefresh = 10 * time.Second // how often a waiter asks again to stay in the queue
	NoticeTimeout  = DefaultTTL       // how much longer than its grace a running program may stay that holds without a time to live: it looks from time to time only
)

// Lock is everything remembered about one name. A name that nobody holds, waits for or froze is a free lock:
// the zero Lock but for its name and its token.
type Lock struct {
	Name     string
	Revision uint64   // differs after every stored change; compare for equality only
	Token    uint64   // last fencing token issued; never falls, not even across release and restart
	Holders  []Holder // in order of grant
	Queue    []Waiter // next first: by priority, then arrival
	Freeze   *Freeze
	Corrupt  string // why what the store found cannot be a lock; empty if it can. The next change clears it
}

// Owner says who claims: two claims of the same owner do not block each other, unless both are strict.
type Owner struct {
	ID         string // a user, an agent, a runner
	Session    string // the terminal or agent session within the ID ("agent_id" in records)
	AnySession bool   // the ID alone tells this owner apart, whatever the session: it was chosen on purpose
	Host       string
	Process    Process // the process that asks
}

// Same reports whether o, who claims, is the owner of what other claimed earlier: the ID is equal, and so is the
// session unless the ID was chosen on purpose.
func (o Owner) Same(other Owner) bool {
	return o.ID == other.ID && (o.AnySession || o.Session == other.Session)
}

// key partitions holders into owners for counting.
func (o Owner) key() string {
	if o.AnySession {
		return o.ID
	}
	return o.ID + "\x00" + o.Session
}

func (o Owner) String() string {
	s := o.ID
	if o.Host != "" {
		s += "@" + o.Host
	}
	return s
}

// Process identifies a process so that its death can be told from another's life. All fields are optional: what is
// not known cannot prove death.
type Process struct {
	PID       int
	Start     int64  // as the operating system counts it: Linux clock ticks since boot, macOS nanoseconds since 1970
	Boot      string // ID of the kernel's boot
	Namespace string // ID of the PID namespace in which PID means this process
	Liveness  string // where the store finds a kernel lock that lasts exactly as long as the process and its children

	Child      int   // PID of the command that the process runs, if any: the process is not gone while that lives
	ChildStart int64 // as Start, of the child
}

// Claim asks for a lock.
type Claim struct {
	Name    string
	LeaseID string // chosen by the claimant before asking, so that a claim may be sent twice; generated if empty
	Owner   Owner

	// Process is the process whose death frees the lock; nil if only release and expiry do.
	Process *Process

	// Attended says that the holder is a running program that renews the hold while it lives. A record of such a hold
	// need not outlive the loss of power: its holder does not.
	Attended bool

	Limit    int           // most holders, itself included, that it shares with; 0 means Exclusive
	Strict   bool          // conflicts with strict holds of the same owner too
	Refresh  bool          // if the owner has a hold that is not strict, renew that one instead of adding another
	TTL      time.Duration // life without renewal; 0 never expires
	MaxHold  time.Duration // no renewal passes this age; 0 is unlimited
	Priority int           // place in the queue: higher first
	Preempt  time.Duration // ask holders of lower priority to leave within this time, while waiting; 0 does not
	Wait     time.Duration // how long to queue; 0 does not, negative without end
	Metadata map[string]string

	// Within names the leases that cannot end before this claim is answered, because their holder is what claims: a
	// command inside a guard, a function that holds another lock. Circles of such claims are found and broken.
	Within []string
}

// Holder is a granted claim.
type Holder struct {
	Claim
	Token      uint64    // fencing token of the grant: higher than that of every earlier grant of the name
	HeldSince  time.Time // time of the grant
	AcquiredAt time.Time // time of the grant or of the last renewal
	ExpiresAt  time.Time // zero if it does not expire
	Renewals   int
	Pending    time.Time // if set: granted from the queue, and passed on at this time unless its waiter takes it up; Wait is how long that had waited
	Yield      *Yield    // if set: a claim of higher priority asked this holder to leave
}

// Yield is the wish of a waiting claim of higher priority that a holder leave.
type Yield struct {
	To       Owner
	AskedAt  time.Time
	Grace    time.Duration
	Deadline time.Time // when the hold ends; zero until the holder has been told
}

// Waiter is a queued claim.
type Waiter struct {
	Claim
	Since time.Time // when it was queued
	Until time.Time // when it leaves the queue unless its claimant asks again; see Snapshot.Away
}

// Freeze keeps everybody out who is not in already.
type Freeze struct {
	ID        string
	Owner     Owner
	Reason    string
	At        time.Time
	TTL       time.Duration
	ExpiresAt time.Time
	Damaged   string // why the stored freeze cannot be read; nobody enters until it is removed by force
}

// limit returns the most holders the claim shares with, with the default applied.
func (c Claim) limit() int {
	if c.Limit == 0 {
		return Exclusive
	}
	return c.Limit
}

// Kind names what sort of hold the claim makes: "guard" for a strict one that lives with a process, "lease" otherwise.
func (c Claim) Kind() string {
	if c.Strict {
		return "guard"
	}
	return "lease"
}

// Validate reports the first thing wrong with the claim, as an error that wraps ErrInvalid.
func (c Claim) Validate() error {
	if err := ValidateName(c.Name); err != nil {
		return err
	}
	for _, f := range []struct{ what, value string }{
		{"owner", c.Owner.ID}, {"session", c.Owner.Session}, {"host", c.Owner.Host}, {"lease ID", c.LeaseID},
	} {
		if err := validateText(f.what, f.value); err != nil {
			return err
		}
	}
	switch {
	case c.Owner.ID == "":
		return invalid("owner is empty")
	case c.Limit < 0:
		return invalid("limit %d is negative", c.Limit)
	case c.TTL < 0 || c.TTL > 0 && c.TTL < MinTTL:
		return invalid("TTL %v is not at least %v", c.TTL, MinTTL)
	case c.MaxHold < 0 || c.MaxHold > 0 && c.MaxHold < MinTTL:
		return invalid("maximum hold %v is not at least %v", c.MaxHold, MinTTL)
	case c.Preempt < 0:
		return invalid("grace for preemption %v is negative", c.Preempt)
	}
	size := 0
	for k, v := range c.Metadata {
		if k == "" {
			return invalid("metadata has an empty key")
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return invalid("metadata %q=%q is not UTF-8", k, v)
		}
		size += len(k) + len(v)
	}
	if size > MaxMetadata {
		return invalid("metadata has %d bytes, more than %d", size, MaxMetadata)
	}
	return nil
}

// ValidateName reports whether name can name a lock: letters, digits, dot, underscore and hyphen, at most MaxNameLen
// of them, and no two dots in a row. The error wraps ErrInvalid.
func ValidateName(name string) error {
	switch {
	case name == "":
		return invalid("lock name is empty")
	case len(name) > MaxNameLen:
		return invalid("lock name has %d bytes, more than %d", len(name), MaxNameLen)
	case strings.Contains(name, ".."):
		return invalid("lock name %q contains \"..\"", name)
	}
	for i := range len(name) {
		if !nameByte(name[i]) {
			return invalid("lock name %q has a character other than A-Z a-z 0-9 . _ -", name)
		}
	}
	return nil
}

// ValidatePrefix reports whether prefix can begin a lock's name; the empty one begins all of them.
func ValidatePrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	return ValidateName(prefix)
}

func nameByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '_' || b == '-'
}

func validateText(what, s string) error {
	if len(s) > MaxIDLen {
		return invalid("%s has %d bytes, more than %d", what, len(s), MaxIDLen)
	}
	for _, r := range s {
		if unicode.IsControl(r) || r == 0xfffd {
			return invalid("%s %q has a control character or is not UTF-8", what, s)
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// Holder returns the holder with the lease ID.
func (l Lock) Holder(leaseID string) (Holder, bool) {
	if i := slices.IndexFunc(l.Holders, func(h Holder) bool { return h.LeaseID == leaseID }); i >= 0 {
		return l.Holders[i], true
	}
	return Holder{}, false
}

// Position returns how many waiters are ahead of the lease ID in the queue, and whether it is queued at all.
func (l Lock) Position(leaseID string) (int, bool) {
	i := slices.IndexFunc(l.Queue, func(w Waiter) bool { return w.LeaseID == leaseID })
	return i, i >= 0
}

// Free reports whether nothing is remembered but the token.
func (l Lock) Free() bool {
	return len(l.Holders) == 0 && len(l.Queue) == 0 && l.Freeze == nil && l.Corrupt == ""
}

// clone returns a copy whose holders, queue and freeze can be changed.
func (l Lock) clone() Lock {
	l.Holders = slices.Clone(l.Holders)
	l.Queue = slices.Clone(l.Queue)
	return l
}

// Clone returns a copy that shares nothing with l.
func (l Lock) Clone() Lock {
	l = l.clone()
	for i := range l.Holders {
		h := &l.Holders[i]
		h.Claim = h.Claim.clone()
		h.Yield = clonePtr(h.Yield)
	}
	for i := range l.Queue {
		l.Queue[i].Claim = l.Queue[i].Claim.clone()
	}
	l.Freeze = clonePtr(l.Freeze)
	return l
}

func (c Claim) clone() Claim {
	c.Metadata = maps.Clone(c.Metadata)
	c.Process = clonePtr(c.Process)
	c.Within = slices.Clone(c.Within)
	return c
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	v := *p
	return &v
}

// enqueue puts w behind every waiter of at least its priority.
func (l *Lock) enqueue(w Waiter) {
	i, _ := slices.BinarySearchFunc(l.Queue, w, func(have, w Waiter) int {
		if have.Priority >= w.Priority {
			return -1
		}
		return cmp.Compare(w.Priority, have.Priority)
	})
	l.Queue = slices.Insert(l.Queue, i, w)
}
