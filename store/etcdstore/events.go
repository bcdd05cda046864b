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

// tail is what this process knows of the events in etcd: the newest of them, as they came in.
type tail struct {
	mu       sync.Mutex
	recent   []lokt.LoggedEvent // in order
	since    uint64             // all events with a higher number are among the recent, once they have come in
	oldest   uint64             // lowest number that was found in etcd
	heard    int64              // revision of the last change whose events came in
	own      int64              // of the last one that this store made
	wake     chan struct{}      // closed when an event comes in
	unpruned int                // changes since somebody looked whether there are too many
	pruning  bool
}

// maxRecent is how many events a store has in memory, for those who follow along.
const maxRecent = 4096

// begin says that from the revision on all events come in; 0 says that it is not known from when on.
func (t *tail) begin(rev int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recent, t.since = nil, 1<<64-1
	if rev > 0 {
		t.since, t.heard = uint64(rev)<<eventBits-1, max(t.heard, rev-1)
	}
	t.ring()
}

// reset forgets everything: the revisions of etcd begin anew.
func (t *tail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recent, t.since, t.oldest, t.heard, t.own = nil, 1<<64-1, 0, 0, 0
}

// ring wakes all who wait for events. Its caller holds the mutex.
func (t *tail) ring() {
	if t.wake != nil {
		close(t.wake)
		t.wake = nil
	}
}

// hear takes in the events of a change.
func (t *tail) hear(kv *mvccpb.KeyValue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if uint64(kv.ModRevision)<<eventBits <= t.since {
		return
	}
	t.recent = append(t.recent, decodeEvents(kv)...)
	if n := len(t.recent) - maxRecent; n > maxRecent {
		t.since = t.recent[n-1].Seq
		t.recent = slices.Clone(t.recent[n:])
	}
	t.heard = kv.ModRevision
	t.ring()
}

// after returns the recent events that the query lets through, and whether these are all. It has those of this store;
// those of others come in a little later.
func (t *tail) after(q lokt.EventQuery) (p lokt.EventPage, complete bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.recent)
	if q.Latest || n == 0 || q.After < t.since || q.After >= t.recent[n-1].Seq || t.heard < t.own {
		return p, false
	}
	for _, e := range t.recent {
		if q.Matches(&e) {
			p.Events = append(p.Events, e)
		}
	}
	p.Oldest, p.Newest = t.recent[0].Seq, t.recent[n-1].Seq
	if t.oldest > 0 {
		p.Oldest = min(p.Oldest, t.oldest)
	}
	return p, true
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
	p, complete := s.tail.after(q)
	if !complete {
		bounded, cancel := s.bound(ctx)
		defer cancel()
		var err error
		if p, err = s.scan(bounded, q); errors.Is(err, rpctypes.ErrCompacted) { // meanwhile
			p, err = s.scan(bounded, q)
		}
		if err != nil {
			return lokt.EventPage{}, s.explain(ctx, err)
		}
		s.tail.mu.Lock()
		s.tail.oldest = max(s.tail.oldest, p.Oldest)
		s.tail.mu.Unlock()
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
	events := decodeEvents(r.Kvs[0])
	switch {
	case len(events) == 0:
		seq = uint64(r.Kvs[0].ModRevision) << eventBits
	case order == clientv3.SortAscend:
		seq = events[0].Seq
	default:
		seq = events[len(events)-1].Seq
	}
	return seq, r.Header.Revision, nil
}

// WaitEvents implements lokt.EventLog.
func (s *Store) WaitEvents(ctx context.Context, after uint64) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	t := &s.tail
	t.mu.Lock()
	if t.wake == nil {
		t.wake = make(chan struct{})
	}
	wake, newest, blind := t.wake, uint64(0), after < t.since
	if n := len(t.recent); n > 0 {
		newest = t.recent[n-1].Seq
	}
	t.mu.Unlock()
	if newest <= after && blind { // there may be older ones that never came in
		bounded, cancel := s.bound(ctx)
		defer cancel()
		var err error
		if newest, _, err = s.lastEvent(bounded, clientv3.SortDescend, 0); err != nil {
			return s.explain(ctx, err)
		}
	}
	if newest > after {
		return nil
	}
	return s.sleep(ctx, wake)
}

// stored notes that this store has stored events, and sees to it that there are not too many.
func (s *Store) stored(rev int64) {
	t := &s.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	t.own = max(t.own, rev)
	if t.unpruned++; t.pruning || t.unpruned < max(s.keep/20, 1) {
		return
	}
	t.pruning, t.unpruned = true, 0
	s.work.Go(func() {
		s.prune()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.pruning = false
	})
}

// prune forgets the oldest events if there are too many. If it fails, a later one makes up for it.
func (s *Store) prune() {
	ctx, cancel := s.bound(s.ctx)
	defer cancel()
	ctx = clientv3.WithRequireLeader(ctx)
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
