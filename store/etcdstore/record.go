package etcdstore

import (
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

// maxRecordBytes is how large a record may become by what is added to it: etcd takes 1.5 MiB at a time, and what renewals
// and events add must fit, too.
const maxRecordBytes = 1_350_000

// record is a lock as it stands under lock/ or free/: its document, and what belongs to etcd. Times are by the lock's own
// clock; see state.now. Ends of holds with an etcd lease are forecasts.
type record struct {
	Version int `json:"version"`
	lokt.Lock
	At      time.Time `json:"at"` // what the lock's clock showed when this was decided
	Leases  leases    `json:"etcd_leases,omitempty"`
	Changes []string  `json:"changes,omitempty"` // IDs of the last changes, oldest first
}

// etcdLease names the etcd lease on which something's life depends.
type etcdLease struct {
	ID      clientv3.LeaseID
	Seconds int64 // what was asked for
}

// MarshalText implements encoding.TextMarshaler.
func (l etcdLease) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%x/%ds", int64(l.ID), l.Seconds), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *etcdLease) UnmarshalText(text []byte) error {
	_, err := fmt.Sscanf(string(text), "%x/%ds", (*int64)(&l.ID), &l.Seconds)
	return err
}

// freezeID stands for the freeze where holds are known by lease IDs, which have no control characters.
const freezeID = "\x00"

// leases are the etcd leases of a lock's holds, by lease ID, and of its freeze, by freezeID.
type leases map[string]etcdLease

// encode makes the value of a key. The events of the lock are kept elsewhere.
func encode(l lokt.Lock, at time.Time, timers leases, changes []string) ([]byte, error) {
	r := record{Version: version, Lock: l, At: at, Leases: leases{}, Changes: changes}
	r.Revision = 0
	for _, h := range l.Holders {
		if t, ok := timers[h.LeaseID]; ok {
			r.Leases[h.LeaseID] = t
		}
	}
	if t, ok := timers[freezeID]; ok && l.Freeze != nil {
		r.Leases[freezeID] = t
	}
	text, err := lokt.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("lock %q: %w", l.Name, err)
	}
	return text, nil
}

// decode reads the value of a key. Its errors wrap lokt.ErrDamaged.
func decode(name string, text []byte) (record, error) {
	damaged := func(why string) (record, error) {
		return record{Lock: lokt.Lock{Name: name}}, fmt.Errorf("%w: record of %q in etcd: %s", lokt.ErrDamaged, name, why)
	}
	r := record{Leases: leases{}}
	if err := lokt.Unmarshal(text, &r); err != nil {
		return damaged(err.Error())
	}
	if r.Version != version {
		return damaged("version " + strconv.Itoa(r.Version) + " is not known")
	}
	if r.Name != name {
		return damaged("it is that of " + strconv.Quote(r.Name))
	}
	return r, nil
}
