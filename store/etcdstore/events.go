package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lokt-dev/lokt"
)

// An event's number is the revision of its change, shifted by eventBits, and its place in it. Keys begin with a slightly
// lower revision, because that of the change is not known before it is stored.
const eventBits = 16

// maxRequestBytes is how much one change may put into one request, of which etcd takes 1.5 MiB with all that belongs to
// it. Events that find no room beside a record are not kept.
const maxRequestBytes = 1_500_000

// changeEvents are the events of one change, without the name of its lock in each.
type changeEvents struct {
	Name   string           `json:"name"`
	Events []jsontext.Value `json:"events"`
}

func (s *Store) eventKey(id string) string {
	return fmt.Sprintf("%s%s%016x-%s", s.prefix, dirEvent, s.rev.Load(), id)
}

// encodeEvents makes the value of a key of those of the events that fit into so many bytes.
func encodeEvents(name string, events []lokt.Event, most int) ([]byte, error) {
	r := changeEvents{Name: name}
	size := 100 + len(name)
	for _, e := range events {
		e.Name = ""
		one, err := lokt.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("events of %q: %w", name, err)
		}
		if size += len(one) + 1; size > most || len(r.Events) == 1<<eventBits {
			break
		}
		r.Events = append(r.Events, one)
	}
	return lokt.Marshal(r)
}

// decodeEvents returns the events of one change; none of what cannot be read.
func decodeEvents(kv *mvccpb.KeyValue) []lokt.LoggedEvent {
	var r struct {
		Name   string       `json:"name"`
		Events []lokt.Event `json:"events"`
	}
	if err := lokt.Unmarshal(kv.Value, &r); err != nil {
		return nil
	}
	all := make([]lokt.LoggedEvent, len(r.Events))
	for i, e := range r.Events {
		e.Name = r.Name
		all[i] = lokt.LoggedEvent{Seq: uint64(kv.ModRevision)<<eventBits | uint64(i), Event: e}
	}
	return all
}

// tail is what this process knows of the newest events in etcd.
type tail struct {
	mu       sync.Mutex
	wake     chan struct{} // closed when an event comes in, or may have been missed
	unpruned int           // changes since somebody looked whether there are too many
	pruning  bool
}

// next returns a channel that is closed when there may be a new event.
func (t *tail) next() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wake == nil {
		t.wake = make(chan struct{})
	}
	return t.wake
}

// ring wakes all who wait for events.
func (t *tail) ring() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wake != nil {
		close(t.wake)
		t.wake = nil
	}
}

// eventPage is how many changes are asked for at a time.
const eventPage = 512

// ReadEvents implements lokt.EventLog. Numbers are the same for all stores on the same keys. If etcd is restored from a
// snapshot, numbers may come again.
func (s *Store) ReadEvents(ctx context.Context, q lokt.EventQuery) (lokt.EventPage, error) {
	if err := s.usable(ctx); err != nil {
		return lokt.EventPage{}, err
	}
	if q.Limit <= 0 || q.Limit > lokt.MaxEvents {
		q.Limit = lokt.MaxEvents
	}
	bounded, cancel := s.bound(ctx)
	defer cancel()
	p, err := s.scan(bounded, q)
	if errors.Is(err, rpctypes.ErrCompacted) { // meanwhile
		p, err = s.scan(bounded, q)
	}
	if err != nil {
		return lokt.EventPage{}, s.explain(ctx, err)
	}
	if p.More = len(p.Events) > q.Limit; p.More && q.Latest {
		p.Events = p.Events[len(p.Events)-q.Limit:]
	} else if p.More {
		p.Events = p.Events[:q.Limit]
	}
	return p, nil
}

// scan reads the events that the query lets through: one more than its limit, at least, if there are so many. They are
// in order, and all of one moment.
func (s *Store) scan(ctx context.Context, q lokt.EventQuery) (p lokt.EventPage, err error) {
	var at int64
	if p.Oldest, at, err = s.lastEvent(ctx, clientv3.SortAscend, 0); err != nil || p.Oldest == 0 {
		return p, err
	}
	if p.Newest, _, err = s.lastEvent(ctx, clientv3.SortDescend, at); err != nil {
		return p, err
	}
	low, high := int64(q.After>>eventBits), int64(p.Newest>>eventBits)
	if q.Before > 0 {
		high = min(high, int64(q.Before>>eventBits))
	}
	order := clientv3.SortAscend
	if q.Latest {
		order = clientv3.SortDescend
	}
	for low <= high && len(p.Events) <= q.Limit {
		r, err := s.getEvents(ctx, order, eventPage, at, clientv3.WithMinModRev(low), clientv3.WithMaxModRev(max(high, 1)))
		if err != nil {
			return p, err
		}
		for _, kv := range r.Kvs {
			events := slices.DeleteFunc(decodeEvents(kv), func(e lokt.LoggedEvent) bool { return !q.Matches(&e) })
			if q.Latest {
				slices.Reverse(events)
			}
			p.Events = append(p.Events, events...)
			if q.Latest {
				high = kv.ModRevision - 1
			} else {
				low = kv.ModRevision + 1
			}
		}
		if len(r.Kvs) < eventPage {
			break
		}
	}
	if q.Latest {
		slices.Reverse(p.Events)
	}
	return p, nil
}

// getEvents reads the events of some changes, in order, as they were at the revision if that is not 0.
func (s *Store) getEvents(
	ctx context.Context, order clientv3.SortOrder, limit, rev int64, options ...clientv3.OpOption,
) (r *clientv3.GetResponse, err error) {
	options = append(options, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, order),
		clientv3.WithLimit(limit), clientv3.WithRev(rev))
	err = s.try(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.Get(ctx, s.prefix+dirEvent, options...)
		return err
	})
	return r, err
}

// lastEvent returns the number of the oldest, or newest, event at the revision, or now if that is 0, and the revision.
// The number is 0 if there is none.
func (s *Store) lastEvent(ctx context.Context, order clientv3.SortOrder, rev int64) (seq uint64, at int64, err error) {
	r, err := s.getEvents(ctx, order, 1, rev)
	if err != nil || len(r.Kvs) == 0 {
		return 0, 0, err
	}
	kv := r.Kvs[0]
	if seq = uint64(kv.ModRevision) << eventBits; order == clientv3.SortDescend {
		seq |= uint64(max(len(decodeEvents(kv))-1, 0))
	}
	return seq, r.Header.Revision, nil
}

// WaitEvents implements lokt.EventLog.
func (s *Store) WaitEvents(ctx context.Context, after uint64) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	wake := s.tail.next()
	bounded, cancel := s.bound(ctx)
	defer cancel()
	newest, _, err := s.lastEvent(bounded, clientv3.SortDescend, 0)
	if err != nil {
		return s.explain(ctx, err)
	}
	if newest > after {
		return nil
	}
	return s.sleep(ctx, wake)
}

// stored sees to it that there are not too many events.
func (s *Store) stored() {
	t := &s.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unpruned++; t.pruning || t.unpruned < max(s.keep/20, 1) {
		return
	}
	t.pruning, t.unpruned = true, 0
	s.work.Go(func() {
		s.prune()
		t.mu.Lock()
		t.pruning, t.unpruned = false, t.unpruned-1 // which stored makes up for
		t.mu.Unlock()
		s.stored() // there may be many again
	})
}

// prune forgets the oldest events if there are too many. If it fails, a later one makes up for it.
func (s *Store) prune() {
	ctx, cancel := s.bound(clientv3.WithRequireLeader(s.ctx))
	defer cancel()
	n, err := s.client.Get(ctx, s.prefix+dirEvent, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || n.Count <= int64(s.keep) {
		return
	}
	over := n.Count - int64(s.keep)
	r, err := s.client.Get(ctx, s.prefix+dirEvent, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(over+1))
	if err != nil || len(r.Kvs) == 0 {
		return
	}
	_, _ = s.client.Delete(ctx, s.prefix+dirEvent, clientv3.WithRange(string(r.Kvs[len(r.Kvs)-1].Key))) // see above
}
