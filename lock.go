package lokt

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lokt-dev/lokt/internal/glob"
)

// Limits on what a claim may carry, so that no store and no wire has to cope with more.
const (
	MaxNameLen    = 200              // bytes in a lock's name
	MaxIDLen      = 256              // bytes in an owner's ID, session or host, and in a lease ID
	MaxHolders    = 2_500            // holds of one lock at a time
	MaxWaiters    = 10_000           // waiters of one lock; more are refused with ErrFull
	MaxMetadata   = 4096             // bytes in all keys and values of a claim's metadata together
	MaxMessages   = 8                // of a hold, which remembers the last; each and its answer have MaxIDLen bytes at most
	MaxPaths      = 16 << 10         // bytes in all patterns of a lock's holders, and in those of its waiters
	MaxWeight     = int64(1) << 50   // the most that there is of what claims take
	MinTTL        = time.Millisecond // the shortest time to live that rules accept; the command line raises it to 1 s
	Exclusive     = 1                // the limit of a claim that shares with nobody
	Shared        = 1<<31 - 1        // the limit of a claim that shares with any number of others
	PresenceTTL   = 15 * time.Second // after a request, how long a queued claim counts as attended: later, those behind pass
	QueueTTL      = 30 * time.Second // how long its claim keeps its place then, unless it asks again
	OfferTTL      = 2 * time.Second  // how long a grant from the queue stays whose claimant does not take it up
	ReturnTimeout = 2 * time.Second  // how long a claimant may take between two requests that wait for the same claim
	AwayTTL       = 10 * time.Second // how long one stays whose client has hung up: it may ask again over a new connection
	TicketTTL     = 2 * time.Minute  // how long a claim with a ticket keeps its place when nobody asks for it
	WaitRefresh   = 10 * time.Second // how often a waiter asks again to stay in the queue
	PassTimeout   = 10 * time.Second // how long a program may take to end that was told that its hold was passed on
)

// Lock is everything remembered about one name. A name that nobody holds, waits for or froze is a free lock:
// the zero Lock but for its name and its token.
type Lock struct {
	Name     string    `json:"name"`
	Revision uint64    `json:"revision,string"` // differs after every stored change; compare for equality only
	Token    uint64    `json:"token"`           // last fencing token issued; never falls
	Holders  []Holder  `json:"holders"`         // in order of grant
	Queue    []*Waiter `json:"queue"`           // next first: by priority, then place
	Freeze   *Freeze   `json:"freeze,omitzero"`
	Corrupt  string    `json:"corrupt,omitzero"` // why what the store found is no lock. The next change clears it

	// Before calm, nobody in the queue goes away or leaves, and nobody may enter unless the lock is open. If it is plain, nobody
	// is away, and all claims there are plain. Of a lock that was read nothing of this is known.
	calm        time.Time
	open, plain bool
}

// Owner says who claims: two claims of the same owner do not block each other, unless both are strict.
type Owner struct {
	ID         string  `json:"id"`                   // a user, an agent, a runner
	Session    string  `json:"session,omitzero"`     // the terminal or agent session within the ID ("agent_id" in records)
	AnySession bool    `json:"any_session,omitzero"` // the ID alone tells this owner apart: it was chosen on purpose
	Host       string  `json:"host,omitzero"`
	Process    Process `json:"process,omitzero"` // the process that asks
}

// Same reports whether o, who claims, is the owner of what other claimed earlier: the ID is equal, and so is the
// session unless the ID was chosen on purpose.
func (o Owner) Same(other Owner) bool {
	return o.ID == other.ID && (o.AnySession || o.Session == other.Session)
}

// alone returns what tells the owner apart from others, for counting.
func (o Owner) alone() Owner {
	if o.AnySession {
		return Owner{ID: o.ID, AnySession: true}
	}
	return Owner{ID: o.ID, Session: o.Session}
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
	PID       int    `json:"pid,omitzero"`
	Start     int64  `json:"start,omitzero"`     // as the system counts: Linux ticks since boot, macOS nanoseconds since 1970
	Boot      string `json:"boot,omitzero"`      // ID of the kernel's boot
	Namespace string `json:"namespace,omitzero"` // ID of the PID namespace in which PID means this process
	Liveness  string `json:"liveness,omitzero"`  // where the store finds a kernel lock that lasts as long as the process

	Child      int   `json:"child,omitzero"`       // PID of its command: the process is not gone while that lives
	ChildStart int64 `json:"child_start,omitzero"` // as Start, of the child
}

// Claim asks for a lock.
type Claim struct {
	Name    string `json:"name,omitzero"`
	LeaseID string `json:"lease_id,omitzero"` // chosen by the claimant, who may send a claim twice; made if empty
	ID      string `json:"id,omitzero"`       // stands for the lease ID where that is not told: see PublicID
	Owner   Owner  `json:"owner"`

	// Process is the process whose death frees the lock; nil if only release and expiry do.
	Process *Process `json:"process,omitzero"`

	// Attended says that the holder is a running program that renews the hold while it lives. A record of such a hold
	// need not outlive the loss of power: its holder does not.
	Attended bool `json:"attended,omitzero"`

	Limit    int               `json:"limit,omitzero"`       // most holders, itself included; 0 means Exclusive
	Strict   bool              `json:"strict,omitzero"`      // conflicts with strict holds of the same owner too
	Refresh  bool              `json:"refresh,omitzero"`     // renew a hold of the owner that is not strict, if there is one
	TTL      time.Duration     `json:"ttl_ms,omitzero"`      // life without renewal; 0 never expires
	MaxHold  time.Duration     `json:"max_hold_ms,omitzero"` // no renewal passes this age; 0 is unlimited
	Priority int               `json:"priority,omitzero"`    // place in the queue: higher first
	Preempt  time.Duration     `json:"preempt_ms,omitzero"`  // ask holders of lower priority to leave within this time
	Newest   bool              `json:"newest,omitzero"`      // one that waits sends away earlier ones like it, of no higher priority: they end with a BlockedError
	Wait     time.Duration     `json:"wait_ms,omitzero"`     // how long to queue; 0 does not, negative without end
	Metadata map[string]string `json:"metadata,omitempty"`

	// Ticket, if above 0, says that the claim, while it is queued, outlives who waits for it: the wait may end or be cancelled, or its
	// process be dead, and those behind pass it. Another process of the owner goes on in the same place that asks with the lease ID
	// within TicketTTL. It counts these processes, from 1: what comes late with a lower number than another's changes nothing.
	Ticket int `json:"ticket,omitzero"`

	// Paths are patterns of paths, such as src/auth/** or **/*.{c,h}: the claim is about these only, and not about all that
	// the lock stands for. Claims that have no path in common have nothing to do with each other. Such a claim shares with
	// nobody or with all.
	Paths []string `json:"paths,omitempty"`

	// Weight, if set, is what the claim takes of something that there is a certain amount of.
	Weight Weight `json:"weight,omitzero"`

	// Within names the leases that cannot end before this claim is answered, because their holder is what claims: a
	// command inside a guard, a function that holds another lock. Circles of such claims are found and broken.
	Within []string `json:"within,omitempty"`
}

// Weight is what a claim takes of something that there is a certain amount of, such as bytes of memory. All holders of a lock
// together take no more than the least that any of them says there is.
type Weight struct {
	Takes int64 `json:"takes"`
	Of    int64 `json:"of"` // at least Takes, at most MaxWeight
}

// Holder is a granted claim.
type Holder struct {
	Claim
	Token      uint64    `json:"token"`               // fencing token: higher than that of every earlier grant of the name
	Slot       int       `json:"slot,omitzero"`       // of a strict hold that shares: the lowest number, from 1, that none of the others had
	HeldSince  time.Time `json:"held_since"`          // time of the grant
	AcquiredAt time.Time `json:"acquired_at"`         // time of the grant or of the last renewal
	ExpiresAt  time.Time `json:"expires_at,omitzero"` // zero if it does not expire
	Renewals   int       `json:"renewals,omitzero"`
	Pending    time.Time `json:"pending_until,omitzero"` // granted from the queue, and passed on then unless it is taken up; Wait is how long it took
	Yield      *Yield    `json:"yield,omitzero"`         // if set: a claim of higher priority, or one that it was passed to, asked this holder to leave
	Messages   []Message `json:"messages,omitempty"`     // oldest first

	// HeartbeatIn is when a server wants the next renewal, counted from its answer to a claim or a renewal; 0 if nobody says.
	HeartbeatIn time.Duration `json:"heartbeat_in_ms,omitzero"`
}

// Message is what somebody asks a holder, or leaves for the next one, and the answer. It ends with the hold.
type Message struct {
	ID     string    `json:"id"` // chosen by who asks, who may send it twice
	From   Owner     `json:"from"`
	At     time.Time `json:"at"`
	Text   string    `json:"text"`
	Answer string    `json:"answer,omitzero"`
	Pass   *Claim    `json:"pass,omitzero"` // see Service.Tell; holds do not have it
}

// Yield is the wish of a waiting claim that a holder leave.
type Yield struct {
	To       Owner         `json:"to"`
	AskedAt  time.Time     `json:"asked_at"`
	Grace    time.Duration `json:"grace_ms"`
	Deadline time.Time     `json:"deadline,omitzero"` // when the hold ends; zero until a renewal was answered so
	Heard    bool          `json:"heard,omitzero"`    // the holder knows: otherwise the hold lasts as long as it was last told before
}

// Waiter is a queued claim. It is never changed in place: snapshots share it.
type Waiter struct {
	Claim
	Place    int64     `json:"place"`              // among those of its priority: lower ones come first
	Since    time.Time `json:"since"`              // when it was queued
	Until    time.Time `json:"until"`              // when it leaves the queue unless its claimant asks again; see Snapshot.Away
	Passed   uint64    `json:"passed,omitzero"`    // token of the hold that goes on to this claim; if it has no Wait, nobody need be there
	Messages []Message `json:"messages,omitempty"` // for its hold
	Ousted   string    `json:"ousted,omitzero"`    // whose newer claim has sent it away; it is on record only to be told so: see Claim.Newest
}

// Freeze keeps everybody out who is not in already.
type Freeze struct {
	ID        string        `json:"id,omitzero"`
	Owner     Owner         `json:"owner"`
	Reason    string        `json:"reason,omitzero"`
	At        time.Time     `json:"at"`
	TTL       time.Duration `json:"ttl_ms,omitzero"`
	ExpiresAt time.Time     `json:"expires_at,omitzero"`
	Damaged   string        `json:"damaged,omitzero"` // why the stored freeze cannot be read; it is in force until removed
}

// limit returns the most holders the claim shares with, with the default applied.
func (c Claim) limit() int { return cmp.Or(c.Limit, Exclusive) }

// overlaps reports whether the claims are about something in common.
func (c *Claim) overlaps(o *Claim) bool {
	return len(c.Paths) == 0 || len(o.Paths) == 0 || glob.Overlap(c.Paths, o.Paths)
}

// pathBytes returns how long the patterns of the claim are.
func (c *Claim) pathBytes() int { return len(strings.Join(c.Paths, "")) }

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
	case c.Ticket < 0:
		return invalid("ticket %d is negative", c.Ticket)
	case c.Preempt < 0:
		return invalid("grace for preemption %v is negative", c.Preempt)
	case c.Weight.Takes < 0 || c.Weight.Of > MaxWeight:
		return invalid("weight %d of %d is not between 0 and %d", c.Weight.Takes, c.Weight.Of, MaxWeight)
	case c.Weight.Takes > c.Weight.Of:
		return invalid("weight %d would never fit: there is %d in all", c.Weight.Takes, c.Weight.Of)
	case len(c.Paths) > 0 && c.limit() != Exclusive && c.limit() != Shared:
		return invalid("a claim of paths shares with nobody or with all, and its limit is %d", c.Limit)
	}
	if err := glob.Check(c.Paths); err != nil {
		return invalid("%v", err)
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
// of them, no two dots in a row, and not a dot alone. The error wraps ErrInvalid.
func ValidateName(name string) error {
	switch {
	case name == "":
		return invalid("lock name is empty")
	case len(name) > MaxNameLen:
		return invalid("lock name has %d bytes, more than %d", len(name), MaxNameLen)
	case name == ".": // which no URL has as a part
		return invalid("\".\" is no lock name")
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
	if prefix == "" || prefix == "." {
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
	if i := l.held(leaseID); i >= 0 {
		return l.Holders[i], true
	}
	return Holder{}, false
}

// held returns the place of the lease among the holders, or -1.
func (l *Lock) held(leaseID string) int {
	for i := range l.Holders {
		if l.Holders[i].LeaseID == leaseID {
			return i
		}
	}
	return -1
}

// Position returns how many waiters are ahead of the lease ID in the queue, and whether it is queued at all: one that holds
// the lock is not.
func (l Lock) Position(leaseID string) (int, bool) {
	if l.held(leaseID) >= 0 {
		return -1, false
	}
	for i, j := 0, len(l.Queue)-1; i <= j; i, j = i+1, j-1 { // most who ask are next, or have just come
		switch leaseID {
		case l.Queue[i].LeaseID:
			return i, true
		case l.Queue[j].LeaseID:
			return j, true
		}
	}
	return -1, false
}

// QueueChange returns the lease IDs of those who have left the queue since the lock was as it was, and those who came or
// changed. Waiters are never changed in place, so equal pointers are equal waiters.
func (l *Lock) QueueChange(since *Lock) (gone []string, put []*Waiter) {
	was, again := since.Queue, map[string]bool{}
	pass := func(n int) {
		for _, w := range was[:n] {
			gone = append(gone, w.LeaseID)
		}
		was = was[n:]
	}
	for _, w := range l.Queue {
		if i := slices.Index(was, w); i >= 0 {
			pass(i)
			was = was[1:]
		} else {
			put, again[w.LeaseID] = append(put, w), true
		}
	}
	pass(len(was))
	return slices.DeleteFunc(gone, func(id string) bool { return again[id] }), put
}

// Free reports whether nothing is remembered but the token.
func (l Lock) Free() bool {
	return len(l.Holders) == 0 && len(l.Queue) == 0 && l.Freeze == nil && l.Corrupt == ""
}

// Equal reports whether the locks are the same but for their revisions.
func (l *Lock) Equal(o *Lock) bool {
	renewals := func(l *Lock) (n int) { // most changes are one: to compare a thousand holders takes long
		for i := range l.Holders {
			n += l.Holders[i].Renewals
		}
		return n
	}
	return l.Name == o.Name && l.Token == o.Token && l.Corrupt == o.Corrupt && renewals(l) == renewals(o) && reflect.DeepEqual(l.Freeze, o.Freeze) &&
		(len(l.Holders)+len(o.Holders) == 0 || reflect.DeepEqual(l.Holders, o.Holders)) &&
		slices.EqualFunc(l.Queue, o.Queue, func(a, b *Waiter) bool { return a == b || reflect.DeepEqual(a, b) })
}

// Clone returns a copy whose holders and waiters can be added, removed and replaced. What these refer to is shared with l,
// and not to be changed.
func (l Lock) Clone() Lock {
	l.Holders, l.Queue = slices.Clone(l.Holders), slices.Clone(l.Queue)
	return l
}
