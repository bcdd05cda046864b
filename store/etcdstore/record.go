package etcdstore

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
)

// version is that of the records.
const version = 1

// keepChanges is how many IDs of changes a record remembers, for those who were not told whether theirs was stored.
const keepChanges = 16

// record is a lock as it stands under lock/ or free/. Times are by the lock's own clock; see clock.
type record struct {
	Version int       `json:"version"`
	Name    string    `json:"name"`
	Token   uint64    `json:"token"`
	At      time.Time `json:"at"` // what the lock's clock showed when this was decided
	Holders []holder  `json:"holders,omitempty"`
	Queue   []waiter  `json:"queue,omitempty"`
	Freeze  *freeze   `json:"freeze,omitempty"`
	Changes []string  `json:"changes,omitempty"` // IDs of the last changes, oldest first
}

// etcdLease names the etcd lease on which something's life depends.
type etcdLease struct {
	ID      clientv3.LeaseID
	Seconds int64 // what was asked for
}

func (l etcdLease) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%x/%ds", int64(l.ID), l.Seconds), nil
}

func (l *etcdLease) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%x/%ds", (*int64)(&l.ID), &l.Seconds)
	return err
}

// span is a duration in Go's notation, which is exact.
type span time.Duration

func (s span) MarshalText() ([]byte, error) { return []byte(time.Duration(s).String()), nil }

func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = span(d)
	return err
}

type owner struct {
	ID         string   `json:"id"`
	Session    string   `json:"session,omitempty"`
	AnySession bool     `json:"any_session,omitempty"`
	Host       string   `json:"host,omitempty"`
	Process    *process `json:"process,omitempty"`
}

type process struct {
	PID        int    `json:"pid,omitempty"`
	Start      int64  `json:"start,omitempty"`
	Boot       string `json:"boot,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Liveness   string `json:"liveness,omitempty"`
	Child      int    `json:"child,omitempty"`
	ChildStart int64  `json:"child_start,omitempty"`
}

type claim struct {
	LeaseID  string            `json:"lease_id"`
	Owner    owner             `json:"owner"`
	Process  *process          `json:"process,omitempty"`
	Attended bool              `json:"attended,omitempty"`
	Limit    int               `json:"limit,omitempty"`
	Strict   bool              `json:"strict,omitempty"`
	Refresh  bool              `json:"refresh,omitempty"`
	TTL      span              `json:"ttl,omitempty"`
	MaxHold  span              `json:"max_hold,omitempty"`
	Priority int               `json:"priority,omitempty"`
	Preempt  span              `json:"preempt,omitempty"`
	Wait     span              `json:"wait,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Within   []string          `json:"within,omitempty"`
}

type holder struct {
	claim
	Token      uint64     `json:"token"`
	HeldSince  time.Time  `json:"held_since"`
	AcquiredAt time.Time  `json:"acquired_at"`
	ExpiresAt  time.Time  `json:"expires_at,omitzero"` // a forecast if there is a lease
	Renewals   int        `json:"renewals,omitempty"`
	Pending    time.Time  `json:"pending,omitzero"`
	Yield      *yield     `json:"yield,omitempty"`
	Lease      *etcdLease `json:"etcd_lease,omitempty"`
}

type yield struct {
	To       owner     `json:"to"`
	AskedAt  time.Time `json:"asked_at"`
	Grace    span      `json:"grace"`
	Deadline time.Time `json:"deadline,omitzero"`
}

type waiter struct {
	claim
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

type freeze struct {
	ID        string     `json:"id"`
	Owner     owner      `json:"owner"`
	Reason    string     `json:"reason,omitempty"`
	At        time.Time  `json:"at"`
	TTL       span       `json:"ttl,omitempty"`
	ExpiresAt time.Time  `json:"expires_at,omitzero"`
	Lease     *etcdLease `json:"etcd_lease,omitempty"`
}

// freezeID stands for the freeze where holds are known by lease IDs, which have no control characters.
const freezeID = "\x00"

// leases are the etcd leases of a lock's holds, by lease ID, and of its freeze, by freezeID.
type leases map[string]etcdLease

// encode makes the value of a key. The events of the lock are kept elsewhere.
func encode(l lokt.Lock, at time.Time, timers leases, changes []string) ([]byte, error) {
	r := record{Version: version, Name: l.Name, Token: l.Token, At: at.UTC(), Changes: changes}
	for _, h := range l.Holders {
		r.Holders = append(r.Holders, holder{
			claim: fromClaim(h.Claim), Token: h.Token, HeldSince: h.HeldSince.UTC(), AcquiredAt: h.AcquiredAt.UTC(), ExpiresAt: utc(h.ExpiresAt),
			Renewals: h.Renewals, Pending: utc(h.Pending), Yield: fromYield(h.Yield), Lease: timers.of(h.LeaseID),
		})
	}
	for _, w := range l.Queue {
		r.Queue = append(r.Queue, waiter{claim: fromClaim(w.Claim), Since: w.Since.UTC(), Until: w.Until.UTC()})
	}
	if f := l.Freeze; f != nil {
		r.Freeze = &freeze{
			ID: f.ID, Owner: fromOwner(f.Owner), Reason: f.Reason, At: f.At.UTC(), TTL: span(f.TTL), ExpiresAt: utc(f.ExpiresAt), Lease: timers.of(freezeID),
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", l.Name, err)
	}
	return text, nil
}

// decode reads the value of a key. Its errors wrap lokt.ErrDamaged.
func decode(name string, text []byte) (r record, l lokt.Lock, timers leases, err error) {
	damaged := func(why string) (record, lokt.Lock, leases, error) {
		return record{}, lokt.Lock{Name: name}, nil, fmt.Errorf("%w: record of %q in etcd: %s", lokt.ErrDamaged, name, why)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return damaged(err.Error())
	}
	if r.Version != version {
		return damaged("version " + strconv.Itoa(r.Version) + " is not known")
	}
	if r.Name != name {
		return damaged("it is that of " + strconv.Quote(r.Name))
	}
	l = lokt.Lock{Name: name, Token: r.Token}
	timers = leases{}
	for _, h := range r.Holders {
		if h.Lease != nil {
			timers[h.LeaseID] = *h.Lease
		}
		l.Holders = append(l.Holders, lokt.Holder{
			Claim: h.lokt(name), Token: h.Token, HeldSince: h.HeldSince, AcquiredAt: h.AcquiredAt, ExpiresAt: h.ExpiresAt,
			Renewals: h.Renewals, Pending: h.Pending, Yield: h.Yield.lokt(),
		})
	}
	for _, w := range r.Queue {
		l.Queue = append(l.Queue, &lokt.Waiter{Claim: w.lokt(name), Since: w.Since, Until: w.Until})
	}
	if f := r.Freeze; f != nil {
		if f.Lease != nil {
			timers[freezeID] = *f.Lease
		}
		l.Freeze = &lokt.Freeze{ID: f.ID, Owner: f.Owner.lokt(), Reason: f.Reason, At: f.At, TTL: time.Duration(f.TTL), ExpiresAt: f.ExpiresAt}
	}
	return r, l, timers, nil
}

func (t leases) of(id string) *etcdLease {
	if l, ok := t[id]; ok {
		return &l
	}
	return nil
}

// utc is UTC that leaves the zero time alone.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}

func fromProcess(p lokt.Process) process {
	return process{PID: p.PID, Start: p.Start, Boot: p.Boot, Namespace: p.Namespace, Liveness: p.Liveness, Child: p.Child, ChildStart: p.ChildStart}
}

func (p *process) lokt() lokt.Process {
	if p == nil {
		return lokt.Process{}
	}
	return lokt.Process{PID: p.PID, Start: p.Start, Boot: p.Boot, Namespace: p.Namespace, Liveness: p.Liveness, Child: p.Child, ChildStart: p.ChildStart}
}

func fromOwner(o lokt.Owner) owner {
	r := owner{ID: o.ID, Session: o.Session, AnySession: o.AnySession, Host: o.Host}
	if o.Process != (lokt.Process{}) {
		p := fromProcess(o.Process)
		r.Process = &p
	}
	return r
}

func (o owner) lokt() lokt.Owner {
	return lokt.Owner{ID: o.ID, Session: o.Session, AnySession: o.AnySession, Host: o.Host, Process: o.Process.lokt()}
}

func fromClaim(c lokt.Claim) claim {
	r := claim{
		LeaseID: c.LeaseID, Owner: fromOwner(c.Owner), Attended: c.Attended, Limit: c.Limit, Strict: c.Strict, Refresh: c.Refresh, TTL: span(c.TTL),
		MaxHold: span(c.MaxHold), Priority: c.Priority, Preempt: span(c.Preempt), Wait: span(c.Wait), Metadata: c.Metadata, Within: c.Within,
	}
	if c.Process != nil {
		p := fromProcess(*c.Process)
		r.Process = &p
	}
	return r
}

func (c claim) lokt(name string) lokt.Claim {
	r := lokt.Claim{
		Name: name, LeaseID: c.LeaseID, Owner: c.Owner.lokt(), Attended: c.Attended, Limit: c.Limit, Strict: c.Strict, Refresh: c.Refresh,
		TTL: time.Duration(c.TTL), MaxHold: time.Duration(c.MaxHold), Priority: c.Priority, Preempt: time.Duration(c.Preempt), Wait: time.Duration(c.Wait),
		Metadata: c.Metadata, Within: c.Within,
	}
	if c.Process != nil {
		p := c.Process.lokt()
		r.Process = &p
	}
	return r
}

func fromYield(y *lokt.Yield) *yield {
	if y == nil {
		return nil
	}
	return &yield{To: fromOwner(y.To), AskedAt: y.AskedAt.UTC(), Grace: span(y.Grace), Deadline: utc(y.Deadline)}
}

func (y *yield) lokt() *lokt.Yield {
	if y == nil {
		return nil
	}
	return &lokt.Yield{To: y.To.lokt(), AskedAt: y.AskedAt, Grace: time.Duration(y.Grace), Deadline: y.Deadline}
}
