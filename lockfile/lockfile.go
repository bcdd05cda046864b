// Package lockfile reads and writes the record of a lock on disk, version 1 of the format: one JSON object in
// locks/NAME.json, or in freezes/NAME.json for a freeze.
//
// The fields that other programs rely on keep their names and meanings within version 1; fields may be added. A reader
// ignores keys that it does not know, and a writer keeps them.
package lockfile

import (
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/lokt-dev/lokt"
)

// Version is the newest version of the format that this package reads and the one that it writes.
const Version = 1

// MaxSize is the largest record, in bytes, that readers accept: a lock with very many holders.
const MaxSize = 64 << 20

// form is how records are written and read: durations as nanoseconds, and names as encoding/json has always matched
// them.
var form = json.JoinOptions(
	json.Deterministic(true), json.MatchCaseInsensitiveNames(true),
	jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true),
	json.WithMarshalers(json.MarshalToFunc(func(out *jsontext.Encoder, d time.Duration) error {
		return out.WriteToken(jsontext.Int(int64(d)))
	})),
	json.WithUnmarshalers(json.UnmarshalFromFunc(func(in *jsontext.Decoder, d *time.Duration) error {
		return json.UnmarshalDecode(in, (*int64)(d))
	})),
)

// The ways in which a record can be no record.
var (
	// ErrCorrupt means that the bytes are not a lock record: not JSON, or without a name or an owner.
	ErrCorrupt = errors.New("not a lock record")
	// ErrVersion means that a newer program wrote the record.
	ErrVersion = errors.New("record has a newer version")
	// ErrName means that the record is about another name than the file's.
	ErrName = errors.New("record is about another lock")
)

// Record is the on-disk form of a hold or of a freeze. Times have nanoseconds; durations are in the unit that the
// field's name gives.
type Record struct {
	Version    int       `json:"version"`
	Name       string    `json:"name"`
	LockID     string    `json:"lock_id,omitzero"` // the lease ID, 32 hexadecimal digits
	Owner      string    `json:"owner"`
	Host       string    `json:"host"`
	PID        int       `json:"pid"`
	PIDStart   int64     `json:"pid_start_ns,omitzero"` // as lokt.Process.Start; the name is historical
	AgentID    string    `json:"agent_id,omitzero"`
	AcquiredTS time.Time `json:"acquired_ts"`
	TTLSec     int64     `json:"ttl_sec,omitzero"` // rounded up
	ExpiresAt  time.Time `json:"expires_at,omitzero"`

	// What follows was added within version 1.

	Kind       string            `json:"kind,omitzero"` // KindGuard, KindLease, KindFreeze; empty in records of older programs
	HeldSince  time.Time         `json:"held_since,omitzero"`
	Renewals   int               `json:"renewals,omitzero"`
	Token      uint64            `json:"token,omitzero"`
	Limit      int               `json:"limit,omitzero"`  // most holders at once; absent means one
	TTL        time.Duration     `json:"ttl_ns,omitzero"` // exact, if not whole seconds
	MaxHold    time.Duration     `json:"max_hold_ns,omitzero"`
	Priority   int               `json:"priority,omitzero"`
	AnySession bool              `json:"any_session,omitzero"` // the owner is the same in every session
	Attended   bool              `json:"attended,omitzero"`    // the holder is a running program that renews
	Bound      bool              `json:"pid_bound,omitzero"`   // the death of pid frees the lock, as it does for a guard or without a kind
	BootID     string            `json:"boot_id,omitzero"`
	PIDNS      string            `json:"pid_ns,omitzero"`   // the namespace in which pid is meant
	Liveness   string            `json:"liveness,omitzero"` // byte of a liveness file that a kernel lock covers while the holder lives
	ChildPID   int               `json:"child_pid,omitzero"`
	ChildStart int64             `json:"child_start,omitzero"`
	Asker      *Asker            `json:"asker,omitzero"` // the process that asked, if it is not pid
	Pending    time.Time         `json:"pending_until,omitzero"`
	Yield      *Yield            `json:"yield,omitzero"`
	Within     []string          `json:"within,omitempty"`
	Ticket     int               `json:"ticket,omitzero"`  // the number of the process that waits, or waited, with it
	Wait       time.Duration     `json:"wait_ns,omitzero"` // of a waiter, negative waits without end; of a holder with pending_until, how long it had waited
	Preempt    time.Duration     `json:"preempt_ns,omitzero"`
	Newest     bool              `json:"newest,omitzero"`
	Ousted     string            `json:"ousted,omitzero"` // of a waiter: whose newer one has sent it away
	Refresh    bool              `json:"refresh,omitzero"`
	Reason     string            `json:"reason,omitzero"` // of a freeze
	Metadata   map[string]string `json:"metadata,omitempty"`
	Slot       int               `json:"slot,omitzero"`
	Weight     lokt.Weight       `json:"weight,omitzero"`
	Paths      []string          `json:"paths,omitempty"` // patterns of the paths that it is about; none: about everything
	Messages   []lokt.Message    `json:"messages,omitempty"`
	Passed     uint64            `json:"passed,omitzero"` // of a waiter: token of the hold that goes on to it
	Clock      *Clock            `json:"clock,omitzero"`
	Holders    []*Record         `json:"holders,omitempty"` // all of them, if there are several; the record itself is the first

	Unknown map[string]jsontext.Value `json:",embed"` // what this version does not know, as it was read
}

// What a record's Kind can be.
const (
	KindGuard  = "guard"
	KindLease  = "lease"
	KindFreeze = "freeze"
)

// Yield is the on-disk form of lokt.Yield.
type Yield struct {
	To         string        `json:"to"`
	Host       string        `json:"host,omitzero"`
	AgentID    string        `json:"agent_id,omitzero"`
	AnySession bool          `json:"any_session,omitzero"`
	Asker      Asker         `json:"asker,omitzero"`
	AskedAt    time.Time     `json:"asked_at"`
	Grace      time.Duration `json:"grace_ns"`
	Deadline   time.Time     `json:"deadline,omitzero"`
	Heard      bool          `json:"heard,omitzero"`
}

// Clock ties a record's wall times to the monotonic clock of the host that wrote them. It counts only within the same
// boot and time namespace, and only while acquired_ts and expires_at are still the ones it was written with.
type Clock struct {
	BootID     string        `json:"boot_id"`
	TimeNS     string        `json:"time_ns,omitzero"`
	Monotonic  time.Duration `json:"monotonic_ns"` // reading at acquired_ts
	AcquiredTS time.Time     `json:"acquired_ts"`
	ExpiresAt  time.Time     `json:"expires_at,omitzero"`
}

// Now is one reading of a host's clocks.
type Now struct {
	Wall      time.Time
	Monotonic time.Duration
	BootID    string
	TimeNS    string
}

// Shift returns what to add to the record's wall times to compare them with now.Wall: by how much the wall clock was
// stepped since, as far as the monotonic clock can tell.
func (r *Record) Shift(now Now) time.Duration {
	c := r.Clock
	if c == nil || c.BootID == "" || c.BootID != now.BootID || c.TimeNS != now.TimeNS ||
		!c.AcquiredTS.Equal(r.AcquiredTS) || !c.ExpiresAt.Equal(r.ExpiresAt) {
		return 0
	}
	shift := now.Wall.Sub(r.AcquiredTS) - (now.Monotonic - c.Monotonic)
	if shift.Abs() < time.Millisecond { // less comes of reading two clocks one after the other
		return 0
	}
	return shift
}

// NewClock returns the clock entry for a record with the given times, which are on now's wall clock; nil if there is no
// monotonic clock to tie them to.
func NewClock(now Now, acquired, expires time.Time) *Clock {
	if now.BootID == "" || acquired.IsZero() {
		return nil
	}
	return &Clock{
		BootID: now.BootID, TimeNS: now.TimeNS, Monotonic: now.Monotonic - now.Wall.Sub(acquired),
		AcquiredTS: acquired, ExpiresAt: expires,
	}
}

// Decode reads the record of the named lock. A hold that has no lock_id, as hand-made ones may, is given one that is
// made of the record's bytes. Errors wrap ErrCorrupt, ErrVersion or ErrName.
func Decode(name string, data []byte) (*Record, error) {
	r := &Record{}
	if err := json.Unmarshal(data, r, form); err != nil {
		return nil, undecoded(data, err)
	}
	switch {
	case r.Version > Version:
		return nil, fmt.Errorf("%w: %d, and this program knows %d", ErrVersion, r.Version, Version)
	case r.Name == "":
		return nil, fmt.Errorf("%w: it has no name", ErrCorrupt)
	case r.Name != name && r.Owner != "":
		return nil, fmt.Errorf("%w: %q", ErrName, r.Name)
	}
	if err := r.sound(); err != nil {
		return nil, err
	}
	for _, h := range r.Holders {
		if err := h.sound(); err != nil {
			return nil, err
		}
		h.Name = name
	}
	for i, one := range append([]*Record{r}, r.Holders...) {
		if one.LockID == "" {
			one.LockID = madeID(data, max(i-1, 0)) // the record itself is the first of its holders
		}
	}
	return r, nil
}

// sound reports as ErrCorrupt what no program writes.
func (r *Record) sound() error {
	switch {
	case r == nil || r.Owner == "":
		return fmt.Errorf("%w: a hold without an owner", ErrCorrupt)
	case r.TTLSec < 0 || r.TTL < 0 || r.Limit < 0 || r.MaxHold < 0 || r.Slot < 0 || r.Ticket < 0:
		return fmt.Errorf("%w: a negative duration or number", ErrCorrupt)
	case r.Version < 0:
		return fmt.Errorf("%w: version %d", ErrCorrupt, r.Version)
	case r.Token >= 1<<63: // tokens could not rise for long beyond it
		return fmt.Errorf("%w: token %d", ErrCorrupt, r.Token)
	}
	return nil
}

// undecoded explains bytes that are not a record. A newer version may have given fields other types: whoever wrote it
// must not be taken for damage.
func undecoded(data []byte, err error) error {
	var v struct {
		Version jsontext.Value `json:"version"`
	}
	if json.Unmarshal(data, &v, form) == nil {
		n, err := strconv.ParseFloat(strings.Trim(string(v.Version), `"`), 64)
		if err == nil && n > Version || errors.Is(err, strconv.ErrRange) && n > 0 {
			return fmt.Errorf("%w: %s, and this program knows %d", ErrVersion, v.Version, Version)
		}
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}

// madeID returns the lease ID of the i-th hold in a record without one.
func madeID(data []byte, i int) string {
	h := fnv.New128a()
	_, _ = h.Write(data)
	_, _ = h.Write([]byte{byte(i), byte(i >> 8), byte(i >> 16)})
	return hex.EncodeToString(h.Sum(nil))
}

// Encode returns the record as one line of JSON, with the unknown keys that its holds had in old, which may be nil. It
// fails if the record is too large to be read again, or has a time that cannot be written.
func (r *Record) Encode(old *Record) ([]byte, error) {
	r.Version = Version
	r.keep(old)
	for _, h := range r.Holders {
		h.Version = Version
		h.keep(old)
	}
	return line(r, "record", r.Name)
}

// line returns a record or queue as one line of JSON that can be read again.
func line(v any, what, name string) ([]byte, error) {
	data, err := json.Marshal(v, form)
	if err == nil && len(data) >= MaxSize {
		err = fmt.Errorf("it would have more than %d bytes", MaxSize)
	}
	if err != nil {
		return nil, fmt.Errorf("encode %s of %q: %w", what, name, err)
	}
	return append(data, '\n'), nil
}

// keep takes over the unknown keys of the same hold in old.
func (r *Record) keep(old *Record) {
	r.Unknown = nil
	if old == nil {
		return
	}
	for _, was := range append([]*Record{old}, old.Holders...) {
		if was.LockID == r.LockID && len(was.Unknown) > 0 {
			r.Unknown = was.Unknown
			return
		}
	}
}

// All returns the records of all holders, first first. What the record itself says of its first holder prevails over
// what the list says: programs and people that know nothing of the list change the former.
func (r *Record) All() []*Record {
	if len(r.Holders) == 0 {
		return []*Record{r}
	}
	first := *r
	first.Holders = nil
	rest := r.Holders
	if rest[0].LockID == r.LockID {
		rest = rest[1:]
	}
	return append([]*Record{&first}, rest...)
}

// ttl returns the exact time to live.
func (r *Record) ttl() time.Duration {
	if r.TTL > 0 {
		return r.TTL
	}
	return time.Duration(min(r.TTLSec, math.MaxInt64/int64(time.Second))) * time.Second
}

// Expiry returns when the hold expires by the record's own wall clock: expires_at, or for records that lack it the
// acquisition plus the time to live. It is zero if the hold does not expire.
func (r *Record) Expiry() time.Time {
	if r.ExpiresAt.IsZero() && r.ttl() > 0 {
		return r.AcquiredTS.Add(r.ttl())
	}
	return r.ExpiresAt
}

// move adds d to a time unless it is zero.
func move(t time.Time, d time.Duration) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(d)
}
