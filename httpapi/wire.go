package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	"github.com/lokt-dev/lokt"
)

// PublicID returns what people, logs and other callers see instead of a lease ID: "L-" and the first 20 hexadecimal
// digits of its SHA-256. Nobody can find the lease ID from it. It is empty for an empty lease ID.
func PublicID(leaseID string) string {
	if leaseID == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(leaseID))
	return "L-" + hex.EncodeToString(sum[:10])
}

// isPublicID reports whether id looks as PublicID makes them.
func isPublicID(id string) bool {
	digits, found := strings.CutPrefix(id, "L-")
	return found && len(digits) == 20 && strings.Trim(digits, "0123456789abcdef") == ""
}

// maxMillis is the longest duration on the wire, in milliseconds: what fits into a time.Duration.
const maxMillis = int64(1<<63-1) / int64(time.Millisecond)

// millis returns a duration in whole milliseconds, rounded up: no time to live gets shorter on the way.
func millis(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > 0 && time.Duration(ms)*time.Millisecond < d && ms < maxMillis {
		ms++
	}
	return ms
}

// duration returns what millis was made from, or an error that wraps lokt.ErrInvalid if it is out of range.
func duration(member string, ms int64) (time.Duration, error) {
	if ms > maxMillis || ms < -maxMillis {
		return 0, invalid("%s is out of range", member)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// wireTime is a time on the wire: RFC 3339 in UTC with three digits of the second, and what follows them cut off.
type wireTime time.Time

const timeFormat = "2006-01-02T15:04:05.000Z"

// MarshalJSON implements json.Marshaler.
func (t wireTime) MarshalJSON() ([]byte, error) {
	return []byte(`"` + time.Time(t).UTC().Format(timeFormat) + `"`), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *wireTime) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	v, err := time.Parse(time.RFC3339Nano, s)
	*t = wireTime(v)
	return err
}

// time returns the time; the zero time for nil.
func (t *wireTime) time() time.Time {
	if t == nil {
		return time.Time{}
	}
	return time.Time(*t)
}

// optionalTime returns nil for the zero time.
func optionalTime(t time.Time) *wireTime {
	if t.IsZero() {
		return nil
	}
	w := wireTime(t)
	return &w
}

// wireProcess is a lokt.Process, but for what only the host itself can look at.
type wireProcess struct {
	PID       int    `json:"pid,omitempty"`
	Start     int64  `json:"start,omitempty"`
	Boot      string `json:"boot,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// wireOwner is a lokt.Owner.
type wireOwner struct {
	ID         string       `json:"id"`
	Session    string       `json:"session,omitempty"`
	AnySession bool         `json:"any_session,omitempty"`
	Host       string       `json:"host,omitempty"`
	Process    *wireProcess `json:"process,omitempty"` // for display
}

func toOwner(o lokt.Owner) wireOwner {
	w := wireOwner{ID: o.ID, Session: o.Session, AnySession: o.AnySession, Host: o.Host}
	if p := (wireProcess{o.Process.PID, o.Process.Start, o.Process.Boot, o.Process.Namespace}); p != (wireProcess{}) {
		w.Process = &p
	}
	return w
}

func (w wireOwner) owner() lokt.Owner {
	o := lokt.Owner{ID: w.ID, Session: w.Session, AnySession: w.AnySession, Host: w.Host}
	if p := w.Process; p != nil {
		o.Process = lokt.Process{PID: p.PID, Start: p.Start, Boot: p.Boot, Namespace: p.Namespace}
	}
	return o
}

// wireClaim is what holders and waiters share.
type wireClaim struct {
	ID       string            `json:"id,omitempty"`       // the public ID
	LeaseID  string            `json:"lease_id,omitempty"` // only in the answer to who named it
	Owner    wireOwner         `json:"owner"`
	Kind     string            `json:"kind"`
	Strict   bool              `json:"strict,omitempty"`
	Attended bool              `json:"attended,omitempty"`
	Limit    int               `json:"limit,omitempty"`
	Priority int               `json:"priority,omitempty"`
	TTL      int64             `json:"ttl_ms,omitempty"`
	MaxHold  int64             `json:"max_hold_ms,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func toClaim(c lokt.Claim) wireClaim {
	return wireClaim{
		ID: PublicID(c.LeaseID), Owner: toOwner(c.Owner), Kind: c.Kind(), Strict: c.Strict, Attended: c.Attended, Limit: c.Limit,
		Priority: c.Priority, TTL: millis(c.TTL), MaxHold: millis(c.MaxHold), Metadata: c.Metadata,
	}
}

func (w wireClaim) claim(name string, own func(string) string) lokt.Claim {
	c := lokt.Claim{
		Name: name, LeaseID: own(w.ID), Owner: w.Owner.owner(), Strict: w.Strict, Attended: w.Attended, Limit: w.Limit,
		Priority: w.Priority, TTL: time.Duration(w.TTL) * time.Millisecond, MaxHold: time.Duration(w.MaxHold) * time.Millisecond,
		Metadata: w.Metadata,
	}
	if w.LeaseID != "" {
		c.LeaseID = w.LeaseID
	}
	return c
}

// wireHolder is a lokt.Holder.
type wireHolder struct {
	Name string `json:"name"`
	wireClaim
	Token      uint64     `json:"token"`
	HeldSince  wireTime   `json:"held_since"`
	AcquiredAt wireTime   `json:"acquired_at"`
	ExpiresAt  *wireTime  `json:"expires_at,omitempty"`
	Renewals   int        `json:"renewals,omitempty"`
	Pending    *wireTime  `json:"pending_until,omitempty"`
	Yield      *wireYield `json:"yield,omitempty"`
	Stale      string     `json:"stale,omitempty"` // why the hold does not count any more
}

// wireYield is a lokt.Yield.
type wireYield struct {
	To       wireOwner `json:"to"`
	AskedAt  wireTime  `json:"asked_at"`
	Grace    int64     `json:"grace_ms"`
	Deadline *wireTime `json:"deadline,omitempty"`
}

// toHolder returns the holder as others see it; s says whether it is stale.
func toHolder(h lokt.Holder, s lokt.Snapshot) wireHolder {
	w := wireHolder{
		Name: h.Name, wireClaim: toClaim(h.Claim), Token: h.Token, HeldSince: wireTime(h.HeldSince), AcquiredAt: wireTime(h.AcquiredAt),
		ExpiresAt: optionalTime(h.ExpiresAt), Renewals: h.Renewals, Pending: optionalTime(h.Pending),
	}
	if y := h.Yield; y != nil {
		w.Yield = &wireYield{To: toOwner(y.To), AskedAt: wireTime(y.AskedAt), Grace: millis(y.Grace), Deadline: optionalTime(y.Deadline)}
	}
	w.Stale, _ = s.Stale(h)
	return w
}

// toOwnHolder returns the holder as who named the lease ID sees it.
func toOwnHolder(h lokt.Holder, leaseID string) wireHolder {
	w := toHolder(h, lokt.Snapshot{})
	if h.LeaseID == leaseID {
		w.LeaseID = leaseID
	}
	return w
}

func (w wireHolder) holder(own func(string) string) lokt.Holder {
	h := lokt.Holder{
		Claim: w.claim(w.Name, own), Token: w.Token, HeldSince: w.HeldSince.time(), AcquiredAt: w.AcquiredAt.time(),
		ExpiresAt: w.ExpiresAt.time(), Renewals: w.Renewals, Pending: w.Pending.time(),
	}
	if y := w.Yield; y != nil {
		h.Yield = &lokt.Yield{To: y.To.owner(), AskedAt: y.AskedAt.time(), Grace: time.Duration(y.Grace) * time.Millisecond, Deadline: y.Deadline.time()}
	}
	return h
}

func toHolders(holders []lokt.Holder, s lokt.Snapshot) []wireHolder {
	all := make([]wireHolder, len(holders))
	for i, h := range holders {
		all[i] = toHolder(h, s)
	}
	return all
}

func fromHolders(ws []wireHolder, own func(string) string) []lokt.Holder {
	if len(ws) == 0 {
		return nil
	}
	all := make([]lokt.Holder, len(ws))
	for i, w := range ws {
		all[i] = w.holder(own)
	}
	return all
}

// wireWaiter is a lokt.Waiter.
type wireWaiter struct {
	Name string `json:"name"`
	wireClaim
	Preempt int64    `json:"preempt_ms,omitempty"`
	Within  []string `json:"within,omitempty"` // public IDs
	Since   wireTime `json:"since"`
	Until   wireTime `json:"until"`
	Dead    bool     `json:"dead,omitempty"`
	Away    bool     `json:"away,omitempty"` // for those who read: clients find out by Until
}

func toWaiters(waiters []*lokt.Waiter, s lokt.Snapshot) []wireWaiter {
	all := make([]wireWaiter, len(waiters))
	for i, w := range waiters {
		all[i] = wireWaiter{
			Name: w.Name, wireClaim: toClaim(w.Claim), Preempt: millis(w.Preempt), Since: wireTime(w.Since), Until: wireTime(w.Until), Dead: s.Dead[w.LeaseID],
			Away: s.Away(w),
		}
		for _, id := range w.Within {
			all[i].Within = append(all[i].Within, PublicID(id))
		}
	}
	return all
}

func fromWaiters(ws []wireWaiter, own func(string) string) []*lokt.Waiter {
	if len(ws) == 0 {
		return nil
	}
	all := make([]*lokt.Waiter, len(ws))
	for i, w := range ws {
		all[i] = &lokt.Waiter{Claim: w.claim(w.Name, own), Since: w.Since.time(), Until: w.Until.time()}
		all[i].Preempt = time.Duration(w.Preempt) * time.Millisecond
		for _, id := range w.Within {
			all[i].Within = append(all[i].Within, own(id))
		}
	}
	return all
}

// wireFreeze is a lokt.Freeze.
type wireFreeze struct {
	ID        string    `json:"id,omitempty"` // a public ID
	Owner     wireOwner `json:"owner"`
	Reason    string    `json:"reason,omitempty"`
	At        wireTime  `json:"at"`
	TTL       int64     `json:"ttl_ms,omitempty"`
	ExpiresAt *wireTime `json:"expires_at,omitempty"`
	Damaged   string    `json:"damaged,omitempty"`
}

func toFreeze(f *lokt.Freeze) *wireFreeze {
	if f == nil {
		return nil
	}
	return &wireFreeze{
		ID: PublicID(f.ID), Owner: toOwner(f.Owner), Reason: f.Reason, At: wireTime(f.At), TTL: millis(f.TTL),
		ExpiresAt: optionalTime(f.ExpiresAt), Damaged: f.Damaged,
	}
}

func (w *wireFreeze) freeze() *lokt.Freeze {
	if w == nil {
		return nil
	}
	return &lokt.Freeze{
		ID: w.ID, Owner: w.Owner.owner(), Reason: w.Reason, At: w.At.time(), TTL: time.Duration(w.TTL) * time.Millisecond,
		ExpiresAt: w.ExpiresAt.time(), Damaged: w.Damaged,
	}
}
